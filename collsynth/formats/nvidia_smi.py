"""`nvidia-smi topo -m` text to its cells.

The reader needs neither the header nor the columns on the right, because pasted text has lost, glued
or indented them: it takes the lines whose first word names a device and whose next words are link
cells.  What the cells mean is decided in `nvidia_machine`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import InputError

MAX_GPUS = 1024
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CELL = re.compile(r"X|NV[1-9]\d{0,2}|PIX|PXB|PHB|NODE|SYS|SOC")
_ROW_NAME = re.compile(r"GPU\d+|NIC\d+|[A-Za-z][\w.:-]*")
_HEADER_NAME = re.compile(r"GPU\d+|NIC\d+|mlx\d+_(?:bond_)?\d+")
_P2P_CELL = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})

#: Path classes, best first (NCCL's order).
PATHS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
MATRIX_HINT = "the output of `nvidia-smi topo -m`"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells as written.

    Attributes:
        source: file name for messages.
        gpus: numbers of the GPUs, in row order.
        lines: line number of each GPU's row, from 1.
        links: NVLink count of each GPU pair (0: no NVLink), symmetric.
        paths: path class of each GPU pair (`PIX` ... `SYS`), None where the cell is NVLink or X.
        nics: names of the NICs, in column order.
        nic_paths: path class of each GPU (row) and NIC (column).
        numa: NUMA node of each GPU as the right-hand columns say, None when they do not.
        warnings: cells that contradict each other.
    """

    source: str
    gpus: tuple[int, ...]
    lines: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[str | None, ...], ...]
    nics: tuple[str, ...]
    nic_paths: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    line: int
    cells: tuple[str, ...]
    rest: str


def _clean(text: str) -> list[str]:
    return [_ESCAPE.sub("", line).replace("\r", "") for line in text.split("\n")]


def _rows(lines: list[str]) -> list[_Row]:
    """Lines whose first word names a device and whose second is a link cell."""
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split(None, 1)
        if len(words) < 2 or not _ROW_NAME.fullmatch(words[0]):
            continue
        name, rest = words
        cells = []
        while (match := re.match(r"\s*(\S+)", rest)) and _CELL.fullmatch(match.group(1)):
            cells.append("SYS" if match.group(1) == "SOC" else match.group(1))
            rest = rest[match.end() :]
        if cells:
            found.append(_Row(name, number, tuple(cells), rest))
    return found


def looks_like(text: str) -> bool:
    """Whether the text holds a device matrix (of `topo -m`, or of a sibling that `read_matrix` refuses)."""
    return any(re.match(r"\s*\|?\s*\**GPU\s?\d+\b", line) for line in _clean(text[: 1 << 20]))


def _refuse(lines: list[str], source: str) -> InputError:
    """Why a text that names GPUs is no `topo -m` matrix."""
    for number, line in enumerate(lines, 1):
        where = f"{source}:{number}"
        words = line.split()
        if not words:
            continue
        if re.match(r"GPU\d+$", words[0]) and _P2P_CELL & set(words[1:]):
            return InputError(
                "this is a peer-access matrix (`nvidia-smi topo -p2p`)", where=where, expected=MATRIX_HINT
            )
        if re.match(r"\s*GPU \d+: ", line) or re.match(r"\s*Link \d+: ", line):
            return InputError(
                "this is a list of links (`nvidia-smi nvlink -s` or `-L`), which does not say who is joined to whom",
                where=where, expected=MATRIX_HINT,
            )  # fmt: skip
        if line.lstrip().startswith("|"):
            return InputError("this is a table with bars (markdown), not the tool's output", where=where,
                              expected=MATRIX_HINT)  # fmt: skip
        if re.match(r"GPU\d+$", words[0]) and len(words) > 1 and re.fullmatch(r"\d+|XGMI|0x.*", words[1]):
            return InputError("this looks like `rocm-smi --showtopo`", where=where, expected=MATRIX_HINT)
    return InputError("there is no GPU row", where=source, expected=MATRIX_HINT)


def _numa(rest: str) -> int | None:
    """The NUMA node in what follows the cells: the column after the CPU list, if it can be told apart."""
    match = re.match(r"\s*\d[\d,-]*\s+(\d{1,3})(?:\s|$)", rest)
    return int(match.group(1)) if match else None


def read_matrix(text: str, source: str = "<text>") -> Matrix:
    """The cells of `nvidia-smi topo -m`.

    Args:
        text: the tool's output; escapes, lost tabs, indentation and other text around it do not matter.
        source: file name for messages.

    Raises:
        InputError: no matrix, another tool's matrix, two matrices, or rows that are cut; `where` is file:line.
    """
    lines = _clean(text)
    rows = _rows(lines)
    gpu_rows = [row for row in rows if re.fullmatch(r"GPU\d+", row.name)]
    if any(_P2P_CELL & set(row.rest.split()[:1]) for row in gpu_rows) or not gpu_rows:
        raise _refuse(lines, source)
    count = len(gpu_rows)
    if count > MAX_GPUS:
        raise InputError(f"{count} GPU rows", where=source, expected=f"at most {MAX_GPUS}")
    seen: dict[str, int] = {}
    for row in gpu_rows:
        if row.name in seen:
            raise InputError(
                f"{row.name} has a second row (first at line {seen[row.name]})", where=f"{source}:{row.line}",
                expected="one matrix",
            )  # fmt: skip
        seen[row.name] = row.line
    names = _header(lines[: gpu_rows[0].line - 1])
    listed = sum(name.startswith("GPU") for name in names)
    if listed > count:
        raise InputError(f"the header names {listed} GPUs, but there are {count} GPU rows", where=source,
                         expected="the whole matrix", hint="to paste all of it")  # fmt: skip
    columns = max(len(row.cells) for row in gpu_rows)
    for index, row in enumerate(gpu_rows):
        where = f"{source}:{row.line}"
        if len(row.cells) != columns or columns < count:
            raise InputError(f"{row.name} has {len(row.cells)} cells", where=where,
                             expected=f"{max(columns, count)}", hint="to paste the whole matrix")  # fmt: skip
        for column, cell in enumerate(row.cells):
            if (cell == "X") != (column == index):
                raise InputError(f"{row.name} has {cell} in column {column + 1}", where=where,
                                 expected=f"X in column {index + 1} and nowhere else")  # fmt: skip
            if column >= count and cell.startswith("NV"):
                raise InputError(f"{row.name} has {cell} in the column of a NIC", where=where, expected="a PCIe path")
    links, paths, warnings = _symmetric(gpu_rows, count)
    return Matrix(
        source=source,
        gpus=tuple(int(row.name[3:]) for row in gpu_rows),
        lines=tuple(row.line for row in gpu_rows),
        links=links,
        paths=paths,
        nics=_nic_names(names, rows, columns - count),
        nic_paths=tuple(row.cells[count:] for row in gpu_rows),
        numa=tuple(_numa(row.rest) for row in gpu_rows),
        warnings=warnings,
    )


def _header(lines: list[str]) -> list[str]:
    """Device names of the header line, also where its columns are glued together."""
    for line in reversed(lines):
        names = _HEADER_NAME.findall(line)
        if names:
            return names
    return []


def _nic_names(header: list[str], rows: list[_Row], count: int) -> tuple[str, ...]:
    for candidate in (
        [name for name in header if not name.startswith("GPU")],
        [row.name for row in rows if not row.name.startswith("GPU")],
    ):
        if len(candidate) == count == len(set(candidate)):
            return tuple(candidate)
    return tuple(f"NIC{index}" for index in range(count))


def _symmetric(
    rows: list[_Row], count: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[str | None, ...], ...], tuple[str, ...]]:
    """NVLink counts and path classes of the GPU block; where the two cells of a pair differ, the worse one."""
    links = [[0] * count for _ in range(count)]
    paths: list[list[str | None]] = [[None] * count for _ in range(count)]
    warnings = []
    for a in range(count):
        for b in range(a + 1, count):
            one, other = rows[a].cells[b], rows[b].cells[a]
            cell = one if _badness(one) >= _badness(other) else other
            if one != other:
                warnings.append(
                    f"{rows[a].name} to {rows[b].name} is {one} but back it is {other}; read as {cell} "
                    f"(lines {rows[a].line} and {rows[b].line})"
                )
            if cell.startswith("NV"):
                links[a][b] = links[b][a] = int(cell[2:])
            else:
                paths[a][b] = paths[b][a] = cell
    return tuple(map(tuple, links)), tuple(map(tuple, paths)), tuple(warnings)


def _badness(cell: str) -> tuple[int, int]:
    if cell.startswith("NV"):
        return 0, -int(cell[2:])
    return PATHS.index(cell), 0
