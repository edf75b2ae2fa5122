"""The native description of a machine: YAML or JSON, versioned; `topology.schema.json` describes it.

    collsynth-topology: 1
    name: two GPUs and a switch
    ranks: [gpu:0, {name: gpu:1, node: 0}]           # or a number: gpu:0 .. gpu:N-1
    devices:                                         # everything that only forwards
      - {name: switch:0, kind: switch, capability: multicast, total_capacity: 600GB/s}
    links:
      - {src: [gpu:0, gpu:1], dst: switch:0, bandwidth: 300, latency: 0.35, kind: nvlink, count: 12}
      - {src: gpu:0, dst: gpu:1, bandwidth: 200Gb/s, both: false}
    symmetry: [{gpu:0: gpu:1, gpu:1: gpu:0}]         # vertices that are not named stay
    assumptions: [...]
    warnings: [...]

A bandwidth is GB/s (10^9 bytes/s, one direction) as a number, text carries its unit; null or absent
means unknown.  A time is microseconds as a number.  `bandwidth` is that of all `count` parallel links
together.  A link entry joins every `src` with every `dst`, in both directions unless `both: false`.

The text is parsed event by event: no object is ever built from a tag, aliases are refused, depth and
number of values are bounded, and every value knows its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..parameters import check_extent
from ..topology import Capability, Link, LinkState, Topology, Vertex, VertexKind
from ..units import parse_bandwidth, parse_time
from .files import write_text_atomically

VERSION_KEY = "collsynth-topology"
VERSION = 1
MAX_DEPTH = 16
MAX_VALUES = 6_000_000
MAX_PROBLEMS = 50

_TOP_KEYS = (VERSION_KEY, "name", "ranks", "devices", "links", "symmetry", "assumptions", "warnings")
_VERTEX_KEYS = ("name", "kind", "node", "rail", "in_capacity", "out_capacity", "total_capacity", "capability")
_LINK_KEYS = ("src", "dst", "bandwidth", "latency", "overhead", "count", "kind", "state", "provenance", "both")


@dataclass(slots=True)
class Value:
    """A parsed value and its line.  `data` is text, a number, a bool, None, a list of Values, or a dict
    from text to Value."""

    data: Any
    line: int


# --- text to values --------------------------------------------------------------------------------

_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word[0] in "tT" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}


def _scalar(text: str, plain: bool) -> Any:
    """YAML 1.2 core schema, without octal, hexadecimal, infinities and NaN (they stay text)."""
    if not plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if len(text) < 64 and _FLOAT.fullmatch(text):
        return float(text)
    return text


def parse_values(text: str, source: str) -> Value:
    """The document in a YAML or JSON text as values with lines.

    Args:
        text: the whole text.
        source: file name for messages.

    Raises:
        InputError: not well-formed, aliases, tags, a repeated key, too deep, too large, or several documents.
    """
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # JSON may indent with tabs, YAML may not; inside JSON strings they are illegal
    try:
        return _build(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            " ".join(filter(None, (error.context, error.problem))) or "not well-formed",
            where=f"{source}:{min(mark.line, text.count(chr(10))) + 1}" if mark else source,
            expected="well-formed YAML or JSON (is the file complete?)",
        ) from None
    except yaml.YAMLError as error:
        raise InputError(str(error).split("\n")[0], where=source, expected="well-formed YAML or JSON") from None
    except RecursionError:
        raise InputError("nested too deeply", where=source, expected=f"at most {MAX_DEPTH} levels") from None


def _build(events: Iterator[Any], source: str) -> Value:
    root: Value | None = None
    stack: list[tuple[Value, list[Value]]] = []  # an open list or mapping, and the key that waits for its value
    count = 0

    def place(value: Value) -> None:
        nonlocal root
        if not stack:
            if root is not None:
                raise InputError("a second document begins", where=f"{source}:{value.line}", expected="one document")
            root = value
            return
        parent, pending = stack[-1]
        if isinstance(parent.data, list):
            parent.data.append(value)
        elif pending:
            parent.data[str(pending.pop().data)] = value
        elif isinstance(value.data, list | dict):
            raise InputError("a key is a list or mapping", where=f"{source}:{value.line}", expected="text as key")
        elif str(value.data) in parent.data:
            raise InputError(f"the key {value.data!r} is repeated", where=f"{source}:{value.line}")
        else:
            pending.append(value)

    for event in events:
        if isinstance(event, yaml.DocumentStartEvent | yaml.DocumentEndEvent | yaml.StreamStartEvent):
            continue
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise InputError("anchors and aliases are not read", where=f"{source}:{line}", expected="plain values")
        if isinstance(event, yaml.ScalarEvent):
            if event.tag not in (None, "!"):
                raise InputError(f"the tag {event.tag[:40]!r} is not read", where=f"{source}:{line}")
            place(Value(_scalar(event.value, event.implicit[0]), line))
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            if event.tag not in (None, "!"):
                raise InputError(f"the tag {event.tag[:40]!r} is not read", where=f"{source}:{line}")
            if len(stack) >= MAX_DEPTH:
                raise InputError("nested too deeply", where=f"{source}:{line}", expected=f"at most {MAX_DEPTH} levels")
            value = Value([] if isinstance(event, yaml.SequenceStartEvent) else {}, line)
            place(value)
            stack.append((value, []))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            stack.pop()
        count += 1
        if count > MAX_VALUES:
            raise InputError(f"more than {MAX_VALUES} values", where=f"{source}:{line}", expected="a smaller machine")
    if root is None:
        raise InputError("the file is empty", where=source)
    return root


# --- values to a machine -----------------------------------------------------------------------------


class _Reader:
    """Collects every problem that can be found in one go."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[InputError] = []
        self.names_are_known = True  # false: the vertices could not be read, so names of links are not looked up
        self.ids: dict[str, int] = {}

    def note(self, what: str, line: int, *, expected: str | None = None, hint: str | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(InputError(what, where=f"{self.source}:{line}", expected=expected, hint=hint))

    def finish(self) -> None:
        """Raise what was found, one line a problem."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            raise InputError("\n".join(map(str, self.problems)))

    def keys(self, value: Value, known: tuple[str, ...], what: str) -> dict[str, Value]:
        """The entries of a mapping; unknown keys are problems."""
        if not isinstance(value.data, dict):
            self.note(f"{what} is not a mapping", value.line, expected=f"keys {', '.join(known)}")
            return {}
        for key, entry in value.data.items():
            if key not in known:
                self.note(f"unknown key {key[:40]!r} in {what}", entry.line, expected=f"one of {', '.join(known)}")
        return value.data

    def entries(self, value: Value | None, what: str) -> list[Value]:
        """The entries of a list; absent means none."""
        if value is None or value.data is None:
            return []
        if not isinstance(value.data, list):
            self.note(f"{what} is not a list", value.line, expected="a list")
            return []
        return value.data

    def text(self, value: Value | None, what: str, default: str = "") -> str:
        if value is None:
            return default
        if isinstance(value.data, list | dict | bool) or value.data is None or len(str(value.data)) > 4096:
            self.note(f"{what} is not a text", value.line, expected="a text")
            return default
        return str(value.data)

    def texts(self, value: Value | None, what: str) -> tuple[str, ...]:
        return tuple(self.text(entry, what) for entry in self.entries(value, what))

    def integer(self, value: Value | None, what: str, least: int) -> int | None:
        if value is None or value.data is None:
            return None
        if type(value.data) is not int or not least <= value.data < 1 << 31:
            self.note(f"{what} {value.data!r} is not right", value.line, expected=f"a whole number from {least}")
            return None
        return value.data

    def quantity(self, value: Value | None, what: str, parse: Callable[..., int]) -> int | None:
        """A bandwidth or time; None when absent, null or wrong (which is noted)."""
        if value is None or value.data is None:
            return None
        if isinstance(value.data, list | dict):
            self.note(f"{what} is not a number", value.line, expected="a number, or a text with a unit")
            return None
        try:
            return parse(value.data)
        except InputError as error:
            self.note(f"{what}: {error.what}", value.line, expected=error.expected, hint=error.hint)
            return None

    def choice(self, value: Value | None, what: str, kinds: Any, default: Any) -> Any:
        text = self.text(value, what, default.value)
        try:
            return kinds(text)
        except ValueError:
            assert value is not None
            self.note(
                f"unknown {what} {text[:40]!r}", value.line, expected=f"one of {', '.join(k.value for k in kinds)}"
            )
            return default

    # --- parts ---

    def vertex(self, value: Value, rank: int | None) -> Vertex:
        fields = {"name": value} if not isinstance(value.data, dict) else self.keys(value, _VERTEX_KEYS, "a vertex")
        what = "a rank" if rank is not None else "a device"
        if "name" not in fields:
            self.note(f"{what} has no name", value.line, expected="name: ...")
        name = self.text(fields.get("name"), "name")
        if "name" in fields and name == "":
            self.note(f"the name of {what} is empty", value.line, expected="name: ...")
        elif name in self.ids:
            self.note(f"two vertices are called {name[:60]!r}", value.line, expected="unique names")
        self.ids[name] = len(self.ids)
        default = VertexKind.GPU if rank is not None else VertexKind.SWITCH
        limits = {
            key: self.quantity(fields.get(key), key, parse_bandwidth)
            for key in ("in_capacity", "out_capacity", "total_capacity")
        }
        return Vertex(
            name,
            self.choice(fields.get("kind"), "kind", VertexKind, default),
            rank=rank,
            node=self.integer(fields.get("node"), "node", 0),
            rail=self.integer(fields.get("rail"), "rail", 0),
            capability=self.choice(fields.get("capability"), "capability", Capability, Capability.NONE),
            **limits,
        )

    def vertices(self, fields: dict[str, Value], line: int) -> list[Vertex]:
        ranks = fields.get("ranks")
        if ranks is None:
            self.note("there are no ranks", line, expected="ranks: a number, or a list of names")
            return []
        if type(ranks.data) is int:
            number = self.integer(ranks, "ranks", 1) or 0
            check_extent(number, 0, f"{self.source}:{ranks.line}")
            found = [Vertex(f"gpu:{rank}", rank=rank) for rank in range(number)]
            self.ids = {vertex.name: rank for rank, vertex in enumerate(found)}
        else:
            entries = self.entries(ranks, "ranks")
            if not entries:
                self.note("there are no ranks", ranks.line, expected="at least one")
            found = [self.vertex(entry, rank) for rank, entry in enumerate(entries)]
        return found + [self.vertex(entry, None) for entry in self.entries(fields.get("devices"), "devices")]

    def ends(self, fields: dict[str, Value], key: str, line: int) -> list[int]:
        if key not in fields:
            self.note(f"a link has no {key}", line, expected=f"{key}: a name, or a list of names")
            return []
        value = fields[key]
        found = []
        entries = value.data if isinstance(value.data, list) else [value]
        if not entries:
            self.note(f"{key} is an empty list", value.line, expected=f"{key}: a name, or a list of names")
        for entry in entries:
            if isinstance(entry.data, list | dict) or entry.data is None:
                self.note(f"{key} is not a name", entry.line, expected="a name of ranks or devices")
                continue
            name = self.text(entry, key)
            if not self.names_are_known and name not in self.ids:
                continue
            if name not in self.ids:
                self.note(f"no vertex is called {name[:60]!r}", entry.line, expected="a name of ranks or devices")
            else:
                found.append(self.ids[name])
        return found

    def links(self, value: Value) -> Iterator[Link]:
        fields = self.keys(value, _LINK_KEYS, "a link")
        both = fields["both"].data if "both" in fields else True
        if not isinstance(both, bool):
            self.note(f"both is {both!r}", fields["both"].line, expected="true or false")
        bandwidth = self.quantity(fields.get("bandwidth"), "bandwidth", parse_bandwidth)
        latency = self.quantity(fields.get("latency"), "latency", parse_time) or 0
        overhead = self.quantity(fields.get("overhead"), "overhead", parse_time) or 0
        count = self.integer(fields.get("count"), "count", 1) or 1
        kind = self.text(fields.get("kind"), "kind", "link")
        state = self.choice(fields.get("state"), "state", LinkState, LinkState.OK)
        provenance = self.text(fields.get("provenance"), "provenance", f"{self.source}:{value.line}")
        sources = self.ends(fields, "src", value.line)
        targets = self.ends(fields, "dst", value.line)
        check_extent(0, 2 * len(sources) * len(targets), f"{self.source}:{value.line}")
        seen: set[tuple[int, int]] = set()
        many = len(sources) > 1 or len(targets) > 1
        for a in sources:
            for b in targets:
                if a == b and many:
                    continue  # `src: [a, b, c], dst: [a, b, c]` joins all three
                if a == b:
                    self.note("a link joins a vertex with itself", value.line, expected="two vertices")
                    continue
                for src, dst in ((a, b), (b, a)) if both else ((a, b),):
                    if (src, dst) not in seen:
                        seen.add((src, dst))
                        yield Link(src, dst, bandwidth, latency, overhead, count, kind, provenance, state)

    def symmetry(self, value: Value) -> list[int]:
        image = list(range(len(self.ids)))
        if not isinstance(value.data, dict):
            self.note("a symmetry is not a mapping", value.line, expected="{vertex: its image, ...}")
            return image
        for name, entry in value.data.items():
            target = self.text(entry, "symmetry")
            unknown = next((n for n in (name, target) if n not in self.ids), None)
            if unknown is not None:
                self.note(f"no vertex is called {unknown[:60]!r}", entry.line, expected="a name of ranks or devices")
            else:
                image[self.ids[name]] = self.ids[target]
        return image


def looks_like(text: str) -> bool:
    """Whether the text has our version key at its top level (in the first 64 KiB)."""
    head = text[: 1 << 16]
    if not head.lstrip("\ufeff \t\r\n").startswith("{"):
        return re.search(rf"(?m)^[\"']?{VERSION_KEY}[\"']?\s*:", head) is not None
    match = re.search(rf"[\"']?{VERSION_KEY}[\"']?\s*:", head)
    if match is None:
        return False
    # Another document may hold a machine inside; ours has the key at depth one.
    before = re.sub(r'"(?:[^"\\]|\\.)*"', "", head[: match.start()])
    return sum(before.count(c) for c in "{[") - sum(before.count(c) for c in "}]") == 1


def parse(text: str, source: str = "<text>") -> Topology:
    """The machine that a native text describes.

    Args:
        text: YAML or JSON.
        source: file name for messages and provenance.

    Raises:
        InputError: every problem that could be found, each with file:line.
    """
    document = parse_values(text, source)
    reader = _Reader(source)
    fields = reader.keys(document, _TOP_KEYS, "the document")
    version = fields.get(VERSION_KEY)
    if version is None or version.data != VERSION:
        shown = None if version is None else "no number" if isinstance(version.data, list | dict) else version.data
        reader.note(
            f"the version is {shown!r}", version.line if version else document.line,
            expected=f"{VERSION_KEY}: {VERSION}",
        )  # fmt: skip
        reader.finish()
    vertices = reader.vertices(fields, document.line)
    reader.names_are_known = not reader.problems
    check_extent(len(vertices), 0, source)
    links: list[Link] = []
    for entry in reader.entries(fields.get("links"), "links"):
        links.extend(reader.links(entry))
        check_extent(0, len(links), f"{source}:{entry.line}")
    symmetry = [reader.symmetry(entry) for entry in reader.entries(fields.get("symmetry"), "symmetry")]
    name = reader.text(fields.get("name"), "name", Path(source).stem or "machine")
    assumptions = reader.texts(fields.get("assumptions"), "assumptions")
    warnings = reader.texts(fields.get("warnings"), "warnings")
    reader.finish()
    try:
        return Topology.build(name, vertices, links, symmetry=symmetry, assumptions=assumptions, warnings=warnings)
    except InputError as error:
        raise InputError(error.what, where=source, expected=error.expected, hint=error.hint) from None


# --- a machine to text ---------------------------------------------------------------------------------


def _quantity(value: int, unit: int, parse: Callable[[Any], int], suffix: str) -> int | float | str:
    """A number in the edge's unit where that is exact, else text in the smallest unit."""
    whole, rest = divmod(value, unit)
    if not rest:
        return whole
    number = float(Fraction(value, unit))
    # YAML 1.1 readers take 1e-09 for a text.
    return number if "e" not in repr(number) and parse(number) == value else f"{value}{suffix}"


def bandwidth_value(value: int) -> int | float | str:
    """GB/s as a number where that is exact, else text in B/s."""
    return _quantity(value, 10**9, parse_bandwidth, "B/s")


def time_value(value: int) -> int | float | str:
    """Microseconds as a number where that is exact, else text in ps."""
    return _quantity(value, 10**6, parse_time, "ps")


def _vertex_document(vertex: Vertex) -> str | dict[str, Any]:
    entry: dict[str, Any] = {"name": vertex.name}
    if vertex.kind is not (VertexKind.GPU if vertex.rank is not None else VertexKind.SWITCH):
        entry["kind"] = vertex.kind.value
    for key in ("node", "rail"):
        if getattr(vertex, key) is not None:
            entry[key] = getattr(vertex, key)
    for key in ("in_capacity", "out_capacity", "total_capacity"):
        if getattr(vertex, key) is not None:
            entry[key] = bandwidth_value(getattr(vertex, key))
    if vertex.capability is not Capability.NONE:
        entry["capability"] = vertex.capability.value
    return entry if len(entry) > 1 else vertex.name


def document(topology: Topology) -> dict[str, Any]:
    """The native document of a machine; `parse(json.dumps(document(t)))` gives `t` back, links in order."""
    names = [vertex.name for vertex in topology.vertices]
    result: dict[str, Any] = {
        VERSION_KEY: VERSION,
        "name": topology.name,
        "ranks": [_vertex_document(v) for v in topology.vertices[: topology.nranks]],
        "devices": [_vertex_document(v) for v in topology.vertices[topology.nranks :]],
        "links": [],
    }
    links = topology.links()
    index = 0
    while index < len(links):
        link = links[index]
        entry: dict[str, Any] = {"src": names[link.src], "dst": names[link.dst]}
        entry["bandwidth"] = None if link.bandwidth is None else bandwidth_value(link.bandwidth)
        if link.latency:
            entry["latency"] = time_value(link.latency)
        if link.overhead:
            entry["overhead"] = time_value(link.overhead)
        if link.count != 1:
            entry["count"] = link.count
        entry["kind"] = link.kind
        if link.state is not LinkState.OK:
            entry["state"] = link.state.value
        if link.provenance:
            entry["provenance"] = link.provenance
        turned = Link(
            link.dst, link.src, link.bandwidth, link.latency, link.overhead, link.count, link.kind,
            link.provenance, link.state,
        )  # fmt: skip
        paired = index + 1 < len(links) and links[index + 1] == turned
        if not paired:
            entry["both"] = False
        result["links"].append(entry)
        index += 2 if paired else 1
    if topology.symmetry:
        result["symmetry"] = [
            {names[i]: names[int(image)] for i, image in enumerate(generator) if int(image) != i}
            for generator in topology.symmetry
        ]
    for key in ("assumptions", "warnings"):
        if getattr(topology, key):
            result[key] = list(getattr(topology, key))
    return result


def render(topology: Topology, *, as_json: bool = False) -> str:
    """The native text, one line for each vertex and link."""
    parts = []
    for key, value in document(topology).items():
        if isinstance(value, list) and value:
            rows = [json.dumps(row, ensure_ascii=False) for row in value]
            if as_json:
                parts.append(f"  {json.dumps(key)}: [\n    " + ",\n    ".join(rows) + "\n  ]")
            else:
                parts.append(f"{key}:\n" + "\n".join(f"  - {row}" for row in rows))
        else:
            text = json.dumps(value, ensure_ascii=False)
            parts.append(f"  {json.dumps(key)}: {text}" if as_json else f"{key}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n" if as_json else "\n".join(parts) + "\n"


def write(topology: Topology, path: str | Path, *, force: bool = False) -> None:
    """Write the native format: JSON for a name that ends in `.json`, else YAML.

    Raises:
        InputError: the file exists and `force` is not given, or it cannot be written there.
    """
    write_text_atomically(path, render(topology, as_json=str(path).endswith(".json")), force=force)
