"""`.sched` and `.prog`: a Schedule (with its topology and collective) or a Program, without loss.

A file is one magic line, the length of a JSON header, the header, and the columns it lists, little endian,
one after the other, each padded to 8 bytes:

    collsynth 2\\n   uint64 header length   header (UTF-8 JSON)   column 0   column 1 ...

The header says `kind` (`schedule` or `program`), the small fields, and for every column its name, length
and width: the bytes of one signed integer (1, 2, 4 or 8, the narrowest that holds all values), 0 for a
column whose values are all the same (then the value follows in the header), and -w for one whose steps from value
to value are stored in w bytes (offsets of a CSR, which only grow; its first value follows in the header).  Writing
the same value gives the same bytes; nothing is pickled; reading checks every length before it allocates and
the values through the types' own constructors.  Version 1, where every column has 8-byte values, is read too.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collective import Collective, RankSets
from ..errors import InputError
from ..program import Program, Protocol
from ..schedule import Schedule, SymmetryElement
from ..topology import Capability, LinkState, Topology, Vertex, VertexKind
from .files import check_writable, read_bytes, write_bytes_atomically

MAGIC = b"collsynth 2\n"
_ANY_VERSION = b"collsynth "
_MAX_HEADER = 1 << 28
_WIDTHS = (1, 2, 4, 8)
#: Columns whose values are all the same take no room in the file; what they may ask of memory is bounded.
_MAX_CONSTANT, _MAX_CONSTANTS = 1 << 24, 1 << 28

_PROGRAM_SCALARS = (
    "name", "collective", "nranks", "root", "nunits", "nchannels", "in_place", "out_of_place", "min_bytes", "max_bytes",
)  # fmt: skip
_ONE_SIDED_FIELDS = ("channel_kind", "groups", "semaphore_init")
_PROGRAM_COLUMNS = tuple(
    f.name for f in fields(Program) if f.name not in (*_PROGRAM_SCALARS, "protocol", "notes", *_ONE_SIDED_FIELDS)
)
_LINK_COLUMNS = ("link_src", "link_dst", "link_bandwidth", "link_latency", "link_overhead", "link_count")
_COLLECTIVE_COLUMNS = ("weight", "owner", "input_offset", "output_offset", "input_units", "output_units")
_ROW_COLUMNS = ("chunk", "src", "dst", "reduce", "level", "route_ptr", "route_links")

_Columns = dict[str, NDArray[np.int64]]


def looks_like(data: bytes) -> bool:
    """Whether the content is a `.sched` or `.prog` file (of any version)."""
    return data.startswith(_ANY_VERSION)


# --- writing -------------------------------------------------------------------------------------


def _width(low: int, high: int) -> int:
    """Bytes of the narrowest signed integer that holds low..high."""
    return next(w for w in _WIDTHS if -(1 << 8 * w - 1) <= low and high < 1 << 8 * w - 1)


def _encoded(column: NDArray[np.int64]) -> tuple[list[int], bytes]:
    """How a column is stored, (width, extra value) for the header, and its bytes; see the module's text."""
    if len(column) == 0:
        return [8], b""
    low, high = int(column.min()), int(column.max())
    if low == high and len(column) <= _MAX_CONSTANT:
        return [0, low], b""
    width = _width(low, high)
    steps = np.diff(column) if width > 1 and low > -(1 << 62) and high < 1 << 62 else None
    if steps is not None and (narrow := _width(int(steps.min()), int(steps.max()))) < width and steps.min() >= 0:
        return [-narrow, int(column[0])], steps.astype(f"<i{narrow}").tobytes()
    return [width], np.ascontiguousarray(column, dtype=f"<i{width}").tobytes()


def _pack(header: dict[str, Any], columns: _Columns) -> bytes:
    listed, bodies = [], []
    for name, column in columns.items():
        how, body = _encoded(column)
        listed.append([name, len(column), *how])
        bodies += [body, b"\0" * (-len(body) % 8)]
    text = json.dumps(header | {"columns": listed}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % 8)  # columns lie on 8-byte boundaries
    return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *bodies])


def dumps(value: Schedule | Program) -> bytes:
    """The file's bytes."""
    if isinstance(value, Program):
        header = {name: getattr(value, name) for name in _PROGRAM_SCALARS}
        header |= {"kind": "program", "protocol": value.protocol.value, "notes": list(value.notes)}
        if value.groups or value.semaphore_init:
            header |= {"groups": value.groups, "semaphore_init": value.semaphore_init}
        columns: _Columns = {name: getattr(value, name) for name in _PROGRAM_COLUMNS}
        if value.channel_kind is not None:
            columns["channel_kind"] = value.channel_kind
        return _pack(header, columns)
    topology, collective = value.topology, value.collective
    columns = {f"topology.{name}": getattr(topology, name) for name in _LINK_COLUMNS}
    columns |= {f"topology.symmetry.{i}": g for i, g in enumerate(topology.symmetry)}
    columns |= {f"collective.{name}": getattr(collective, name) for name in _COLLECTIVE_COLUMNS}
    for label in ("sources", "destinations"):
        sets: RankSets = getattr(collective, label)
        if sets.ptr is not None:
            columns |= {f"collective.{label}.ptr": sets.ptr, f"collective.{label}.ranks": sets.ranks}
    columns |= {name: getattr(value, name).astype(np.int64) for name in _ROW_COLUMNS}
    columns |= {name: column for name in ("group", "epoch") if (column := getattr(value, name)) is not None}
    for index, generator in enumerate(value.generators):
        columns |= {f"generator.{index}.vertices": generator.vertices, f"generator.{index}.chunks": generator.chunks}
    header = {
        "kind": "schedule",
        "method": value.method,
        "topology": {
            "name": topology.name,
            "vertices": [
                [v.name, v.kind.value, v.rank, v.node, v.rail, v.in_capacity, v.out_capacity, v.total_capacity,
                 v.capability.value]
                for v in topology.vertices
            ],
            "link_kind": list(topology.link_kind), "link_provenance": list(topology.link_provenance),
            "link_state": [state.value for state in topology.link_state],
            "assumptions": list(topology.assumptions), "warnings": list(topology.warnings),
        },
        "collective": {
            name: getattr(collective, name) for name in ("name", "nranks", "root", "combining", "payload_units")
        },
    }  # fmt: skip
    return _pack(header, columns)


def write(value: Schedule | Program, path: str | Path, *, force: bool = False) -> None:
    """Write a schedule (`.sched`) or program (`.prog`) in one move.

    Raises:
        InputError: the file exists and `force` is not given, or its folder does not exist.
    """
    check_writable(path, force=force)
    write_bytes_atomically(path, dumps(value), force=force)


# --- reading -------------------------------------------------------------------------------------


def _unpack(data: bytes, where: str) -> tuple[dict[str, Any], _Columns]:
    versions = {b"collsynth 1\n": 1, MAGIC: 2}
    version = versions.get(data[: len(MAGIC)])
    if version is None:
        if data.startswith(_ANY_VERSION):
            other = data[len(_ANY_VERSION) : 40].split(b"\n")[0].decode("ascii", "replace")
            raise InputError(f"version {other} of the format", where=where, expected="version 1 or 2")
        raise InputError("is no .sched or .prog file", where=where, expected="one that collsynth wrote")
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    if len(data) < start or length > min(_MAX_HEADER, len(data) - start):
        raise InputError("is cut off in its header", where=where, expected="a whole file")
    try:
        header = json.loads(data[start : start + length])
        listed = [_listed(entry, version) for entry in header["columns"]]
        if sum(rows for _, rows, width, _ in listed if width == 0) > _MAX_CONSTANTS:
            raise ValueError("too many values")
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise InputError("has a damaged header", where=where, expected="a file as collsynth wrote it") from error
    offset = start + length
    wanted = offset + sum(_stored(rows, width) for _, rows, width, _ in listed)
    if wanted != len(data):
        raise InputError(f"has {len(data)} bytes where its header says {wanted}", where=where, expected="a whole file")
    columns: _Columns = {}
    for name, rows, width, value in listed:
        columns[name] = _decoded(data, offset, rows, width, value)
        offset += _stored(rows, width)
    return header, columns


def _listed(entry: list[Any], version: int) -> tuple[str, int, int, int]:
    """(name, length, width, extra value) of a column from its entry in the header.

    Raises:
        ValueError: no such entry is ever written.
    """
    name, rows, width = str(entry[0]), entry[1], 8 if version == 1 else entry[2]
    value = entry[3] if width <= 0 else 0
    if not all(type(number) is int for number in (rows, width, value)) or abs(value) >= 1 << 63:
        raise ValueError("no number")
    if (
        rows < 0
        or (width and abs(width) not in _WIDTHS)
        or (width <= 0 and rows == 0)
        or (width == 0 and rows > _MAX_CONSTANT)
    ):
        raise ValueError("no such column")
    return name, rows, width, value


def _stored(rows: int, width: int) -> int:
    """Bytes that a column takes in the file, padding included."""
    size = (rows - (width < 0)) * abs(width)
    return size + -size % 8


def _decoded(data: bytes, offset: int, rows: int, width: int, value: int) -> NDArray[np.int64]:
    """The column stored at `offset`; see the module's text."""
    if width == 0:
        return np.full(rows, value, dtype=np.int64)
    if width > 0:
        return np.frombuffer(data, dtype=f"<i{width}", count=rows, offset=offset).astype(np.int64)
    column = np.empty(rows, dtype=np.int64)
    column[0] = value
    column[1:] = np.frombuffer(data, dtype=f"<i{-width}", count=rows - 1, offset=offset)
    return np.cumsum(column, out=column)


def parse(data: bytes, path: str = "<bytes>") -> Schedule | Program:
    """The value in a file's bytes.

    Args:
        data: the whole file.
        path: file name for messages.

    Raises:
        InputError: another version, cut off, damaged, or no valid schedule or program.
    """
    header, columns = _unpack(data, path)
    try:
        if header["kind"] == "program":
            return _program(header, columns)
        if header["kind"] == "schedule":
            return _schedule(header, columns)
        raise InputError(f"holds a {header['kind']!r}", expected="a schedule or program")
    except InputError as error:
        raise InputError(error.what, where=f"{path}: {error.where}" if error.where else path,
                         expected=error.expected) from error  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"is damaged ({error})", where=path, expected="a file as collsynth wrote it") from error


def read(path: str | Path) -> Schedule | Program:
    """The schedule or program in a file (`-`: standard input); see `parse`."""
    return parse(read_bytes(path), "standard input" if str(path) == "-" else str(path))


def _typed(values: dict[str, Any], types: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """The named fields, each of the right JSON type."""
    for name, allowed in types.items():
        if type(values[name]) not in allowed:
            raise InputError(f"field {name} is {values[name]!r:.40}")
    return {name: values[name] for name in types}


_NUMBER, _TEXT, _FLAG, _NONE = (int,), (str,), (bool,), type(None)


def _program(header: dict[str, Any], columns: _Columns) -> Program:
    scalars = _typed(header, {
        "name": _TEXT, "collective": _TEXT, "nranks": _NUMBER, "root": (int, _NONE), "nunits": _NUMBER,
        "nchannels": _NUMBER, "in_place": _FLAG, "out_of_place": _FLAG, "min_bytes": (int, _NONE),
        "max_bytes": (int, _NONE),
    })  # fmt: skip
    arrays: dict[str, Any] = {name: columns[name] for name in _PROGRAM_COLUMNS}
    return Program(
        **scalars, **arrays,
        protocol=Protocol(header["protocol"]), notes=tuple(str(note) for note in header["notes"]),
        channel_kind=columns.get("channel_kind"), groups=_rows(header.get("groups", [])),
        semaphore_init=_rows(header.get("semaphore_init", [])),
    )  # fmt: skip


def _rows(value: Any) -> tuple[tuple[int, ...], ...]:
    """Lists of whole numbers as tuples."""
    rows = tuple(tuple(row) for row in value)
    if any(type(number) is not int for row in rows for number in row):
        raise InputError("groups or semaphores are no lists of whole numbers")
    return rows


def _schedule(header: dict[str, Any], columns: _Columns) -> Schedule:
    machine = header["topology"]
    vertices = tuple(
        Vertex(str(name), VertexKind(kind), rank, node, rail, into, out, total, Capability(capability))
        for name, kind, rank, node, rail, into, out, total, capability in machine["vertices"]
    )
    topology = Topology(
        name=str(machine["name"]), vertices=vertices,
        **{name: columns[f"topology.{name}"] for name in _LINK_COLUMNS},
        link_kind=tuple(machine["link_kind"]), link_provenance=tuple(machine["link_provenance"]),
        link_state=tuple(LinkState(state) for state in machine["link_state"]),
        symmetry=tuple(_numbered(columns, "topology.symmetry.{}")),
        assumptions=tuple(machine["assumptions"]), warnings=tuple(machine["warnings"]),
    )  # fmt: skip
    scalars = _typed(header["collective"], {
        "name": _TEXT, "nranks": _NUMBER, "root": (int, _NONE), "combining": _FLAG, "payload_units": _NUMBER,
    })  # fmt: skip
    nchunks, nranks = len(columns["collective.weight"]), scalars["nranks"]
    sets: dict[str, Any] = {
        label: _rank_sets(columns, f"collective.{label}", nchunks, nranks) for label in ("sources", "destinations")
    }
    shape: dict[str, Any] = {name: columns[f"collective.{name}"] for name in _COLLECTIVE_COLUMNS}
    collective = Collective(**scalars, **sets, **shape)
    generators = zip(
        _numbered(columns, "generator.{}.vertices"), _numbered(columns, "generator.{}.chunks"), strict=True
    )
    rows: dict[str, Any] = {name: columns[name] for name in _ROW_COLUMNS if name != "reduce"}
    return Schedule(
        topology, collective, **rows, reduce=columns["reduce"].astype(bool),
        generators=tuple(SymmetryElement(vertices, chunks) for vertices, chunks in generators),
        method=str(header["method"]), group=columns.get("group"), epoch=columns.get("epoch"),
    )  # fmt: skip


def _numbered(columns: _Columns, pattern: str) -> list[NDArray[np.int64]]:
    found: list[NDArray[np.int64]] = []
    while (name := pattern.format(len(found))) in columns:
        found.append(columns[name])
    return found


def _rank_sets(columns: _Columns, prefix: str, nchunks: int, nranks: int) -> RankSets:
    if f"{prefix}.ptr" not in columns:
        return RankSets.everyone(nchunks, nranks)
    ptr, ranks = columns[f"{prefix}.ptr"], columns[f"{prefix}.ranks"]
    in_order = len(ptr) == nchunks + 1 and ptr[0] == 0 and ptr[-1] == len(ranks) and (np.diff(ptr) >= 0).all()
    if not in_order or (len(ranks) and (ranks.min() < 0 or ranks.max() >= nranks)):
        raise InputError(f"{prefix} does not fit {nchunks} chunks and {nranks} ranks")
    return RankSets(nchunks, nranks, ptr, ranks)
