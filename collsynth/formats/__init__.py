"""Files in and out.  What a text is, is decided from its content; what to write, from the suffix.

Each format is one module with `read`/`parse` and `write`; they are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import cast

from .. import registry
from ..errors import InputError
from ..parameters import arguments
from ..program import TARGETS, Program, Target
from ..schedule import Schedule
from ..topology import Capability, Topology, VertexKind
from .files import read_bytes

#: Larger texts are no machine.
MAX_TOPOLOGY_BYTES = 256 << 20


def built_in_topology(name: str, *, multicast: bool = False) -> Topology:
    """The machine that a registered name with parameters describes, e.g. `torus:8x8:bw=25GB/s`.

    Args:
        name: as `topo list` shows.
        multicast: turn the `nvls` parameter on.

    Raises:
        InputError: unknown name or parameter, wrong value, too large, or no switch that multicasts.
    """
    base = name.split(":", 1)[0]
    function = cast(Callable[..., Topology], registry.load("topologies", base))
    given = arguments(name, function)
    if multicast:
        if "nvls" not in signature(function).parameters:
            raise InputError(f"{base} has no NVLink switch that multicasts", where="--multicast", hint="dgx-h100")
        given["nvls"] = True
    return function(**given)


def load_topology(name: str | Path, *, gpu_model: str | None = None, multicast: bool = False) -> Topology:
    """The machine that a built-in name, a file, or `-` (standard input) describes.

    Args:
        name: `dgx-a100:nodes=2`, `machine.yaml`, the output of `nvidia-smi topo -m`, or `-`.
        gpu_model: GPU class that gives a matrix its speeds; refused where the input has its own.
        multicast: let NVLink switches multicast and reduce (NVLS).

    Raises:
        InputError: unknown name, no such file, or the text is no machine; the message says what was seen.
    """
    text_name = str(name)
    if not text_name:
        raise InputError("the name is empty", where="-t", expected="a built-in name, a file, or -")
    base = text_name.split(":", 1)[0]
    is_name = isinstance(name, str) and text_name != "-" and base in registry.entries("topologies")
    if is_name:
        if gpu_model is not None:
            raise InputError(f"{base} has its own speeds", where="--gpu-model", expected="a matrix without speeds")
        return built_in_topology(text_name, multicast=multicast)
    if text_name != "-" and not Path(text_name).exists():
        looks_like_path = "/" in text_name or Path(text_name).suffix in (".yaml", ".yml", ".json", ".txt", ".xml")
        if looks_like_path or isinstance(name, Path):
            raise InputError("no such file", where=text_name, expected="a file, or a name that `topo list` shows")
        registry.load("topologies", base)  # raises, with the names
    return parse_topology(
        read_text(text_name, MAX_TOPOLOGY_BYTES), _label(text_name), gpu_model=gpu_model, multicast=multicast
    )


def _label(path: str) -> str:
    return "<stdin>" if path == "-" else path


def read_text(path: str, limit: int) -> str:
    """A file (or `-`) as text.

    Raises:
        InputError: not readable, larger than `limit` bytes, or not text.
    """
    if path != "-" and Path(path).is_file() and Path(path).stat().st_size > limit:
        raise InputError(f"has {Path(path).stat().st_size} bytes", where=path, expected=f"at most {limit}")
    data = read_bytes(path)
    if len(data) > limit:
        raise InputError(f"has {len(data)} bytes", where=_label(path), expected=f"at most {limit}")
    return decode(data, _label(path))


def decode(data: bytes, source: str) -> str:
    """Bytes as text: UTF-8 with or without BOM, UTF-16 with BOM (PowerShell's redirection writes that).

    Raises:
        InputError: binary, or no such encoding.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
        if b"\0" in data:
            raise InputError("is binary", where=source, expected="text")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"byte {error.start} is not {encoding.removesuffix('-sig').upper()}", where=f"{source}:{line}",
            expected="UTF-8 text", hint="to save the file as UTF-8",
        ) from None  # fmt: skip


def parse_topology(text: str, source: str, *, gpu_model: str | None = None, multicast: bool = False) -> Topology:
    """The machine in a text of any supported format, recognised by its content.

    Args:
        text: the whole text.
        source: file name for messages.
        gpu_model, multicast: see `load_topology`.

    Raises:
        InputError: no machine; the message says what was seen.
    """
    from . import nvidia_smi, topology_native

    if topology_native.looks_like(text):
        if gpu_model is not None:
            raise InputError(f"{source} has its own speeds", where="--gpu-model", expected="a matrix without speeds")
        machine = topology_native.parse(text, source)
        return _with_multicast(machine) if multicast else machine
    if nvidia_smi.looks_like(text) and not text.lstrip().startswith("<"):
        from .gpu_models import gpu_class
        from .nvidia_machine import machine as machine_of

        gpu = None if gpu_model is None else gpu_class(gpu_model)
        name = "stdin" if source == "<stdin>" else Path(source).stem
        return machine_of(nvidia_smi.read_matrix(text, source), name, gpu, multicast=multicast)
    raise InputError(
        f"this is no machine description: {_seen(text)}",
        where=source,
        expected=f"the native format (key {topology_native.VERSION_KEY}) or the output of `nvidia-smi topo -m`",
    )


def _seen(text: str) -> str:
    """What an unknown text begins with, for messages."""
    body = text.strip()
    if not body:
        return "it is empty"
    if body.startswith("<"):
        return f"XML that begins with {body[:40].splitlines()[0]!r}"
    first = body.splitlines()[0]
    return f"it begins with {first[:60]!r}"


def _with_multicast(machine: Topology) -> Topology:
    """NVLink switches that multicast and reduce towards the GPU that asks."""
    joined = {
        int(v)
        for i, kind in enumerate(machine.link_kind)
        if kind == "nvlink"
        for v in (machine.link_src[i], machine.link_dst[i])
    }
    switches = {i for i in joined if machine.vertices[i].kind is VertexKind.SWITCH}
    if not switches:
        raise InputError(
            f"{machine.name} has no NVLink switch", where="--multicast", expected="a switch with nvlink links"
        )
    vertices = tuple(
        replace(v, capability=Capability.REDUCE_TO_REQUESTER) if i in switches else v
        for i, v in enumerate(machine.vertices)
    )
    return replace(machine, vertices=vertices)


def read(path: str | Path) -> Program | Schedule | Topology:
    """What a file holds, recognised by its content: MSCCL XML, MSCCL++ plan, `.sched`, `.prog`, or a machine.

    Raises:
        InputError: none of them, or the file is wrong; the message says what was seen.
    """
    from . import msccl_xml, mscclpp, nvidia_smi, sched, topology_native

    data = read_bytes(path)
    source = _label(str(path))
    if sched.looks_like(data):
        return sched.parse(data, source)
    if msccl_xml.looks_like(data):
        return msccl_xml.parse(data, source).program
    if mscclpp.looks_like(data):
        return mscclpp.parse(data, source).program
    text = decode(data, source) if len(data) <= MAX_TOPOLOGY_BYTES and b"\0" not in data else ""
    if topology_native.looks_like(text) or nvidia_smi.looks_like(text):
        return parse_topology(text, source)
    raise InputError(
        f"this is nothing that collsynth reads: {_seen(text) if text or not data else 'it is binary'}",
        where=source,
        expected="MSCCL XML, an MSCCL++ plan, .sched, .prog, the native topology format or `nvidia-smi topo -m`",
    )


def write(
    value: Program | Schedule | Topology,
    path: str | Path,
    *,
    target: Target = TARGETS["any"],
    size: int | None = None,
    force: bool = False,
) -> None:
    """Write by suffix: a Program as `.xml` (MSCCL XML), `.json` (MSCCL++ plan), `.prog` (lossless) or
    `.et` (Chakra, one file a rank), a Schedule as `.sched`, a Topology as `.yaml`, `.yml` or `.json`.

    Args:
        value: what to write.
        path: file name; for Chakra the prefix of the names `<prefix>.<rank>.et`.
        target: the runtime whose rules a program must meet.
        size: payload bytes, which Chakra traces carry.
        force: overwrite.

    Raises:
        InputError: the suffix does not suit the value, or the file cannot be written.
        RefusedError: the format or target cannot express the program.
    """
    suffix = Path(path).suffix.lower()
    kind = type(value).__name__
    if isinstance(value, Program) and suffix == ".xml":
        from . import msccl_xml

        msccl_xml.write(value, path, target=target, force=force)
    elif isinstance(value, Program) and suffix == ".json":
        from . import mscclpp

        mscclpp.write(value, path, force=force)
    elif isinstance(value, Program) and suffix == ".et":
        if size is None:
            raise InputError("a Chakra trace carries byte counts", where=str(path), expected="a size (-s)")
        from . import chakra

        chakra.write(value, str(path).removesuffix(".et"), size=size, force=force)
    elif (isinstance(value, Schedule) and suffix == ".sched") or (isinstance(value, Program) and suffix == ".prog"):
        from . import sched

        sched.write(value, path, force=force)
    elif isinstance(value, Topology) and suffix in (".yaml", ".yml", ".json"):
        from . import topology_native

        topology_native.write(value, path, force=force)
    else:
        suits = {"Program": ".xml, .json, .prog or .et", "Schedule": ".sched", "Topology": ".yaml, .yml or .json"}
        raise InputError(
            f"a {kind} is not written as {suffix or 'a file without suffix'}",
            where=str(path),
            expected=suits.get(kind, "a Program, Schedule or Topology"),
        )
