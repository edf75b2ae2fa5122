"""MSCCL++ plans as JSON values: checked access, the line of every operation, and generation 1 in the shape of 2.

A plan is taken apart by `Node`s, which know their place ("gpu 0 threadblock 1 op 3"), so that whatever is
missing or of the wrong type becomes an `InputError` that says where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

#: Larger numbers are not sensible in a plan (sizes are 64-bit).
MAX_NUMBER = 1 << 64
MAX_DEPTH = 64
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]|\n')
_LABELS = {"gpus": "gpu", "threadblocks": "threadblock", "ops": "op", "channels": "channel",
           "remote_buffers": "remote buffer", "semaphores": "semaphore"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and where it stands.

    Attributes:
        value: the value.
        file: name of the file, for messages.
        place: where in it, in words ("" is the whole).
    """

    value: Any
    file: str
    place: str = ""

    def fail(self, what: str, expected: str | None = None) -> InputError:
        """The error that something is wrong here."""
        return InputError(what, where=f"{self.file}: {self.place}" if self.place else self.file, expected=expected)

    def has(self, key: str) -> bool:
        """Whether this object has a key."""
        return isinstance(self.value, dict) and key in self.value

    def get(self, key: str, default: Any = None) -> Node:
        """The member `key`; `default` where there is none.

        Raises:
            InputError: this is no object, or the key is missing and there is no default.
        """
        if not isinstance(self.value, dict):
            raise self.fail(f"is {_kind(self.value)}", "an object")
        if key not in self.value and default is None:
            raise self.fail(f"key {key!r} is missing")
        place = f"{self.place} {key}" if self.place else key
        return Node(self.value.get(key, default), self.file, place)

    def items(self, key: str, default: Any = None) -> Iterator[Node]:
        """The elements of the list `key`, each named by its position."""
        node = self.get(key, default)
        if not isinstance(node.value, list):
            raise node.fail(f"is {_kind(node.value)}", "a list")
        label = _LABELS.get(key, key)
        for index, value in enumerate(node.value):
            yield Node(value, self.file, f"{self.place} {label} {index}" if self.place else f"{label} {index}")

    def number(self, key: str, default: int | None = None) -> int:
        """The whole number `key`, 0 or more."""
        node = self.get(key, default)
        if type(node.value) is not int or not 0 <= node.value < MAX_NUMBER:
            raise node.fail(f"is {node.value!r:.40}", "a whole number, 0 or more")
        return int(node.value)

    def numbers(self, key: str, default: list[int] | None = None) -> list[int]:
        """The list of whole numbers `key`."""
        node = self.get(key, default)
        if not isinstance(node.value, list) or any(type(v) is not int or not 0 <= v < 1 << 31 for v in node.value):
            raise node.fail(f"is {node.value!r:.40}", "a list of whole numbers")
        return list(node.value)

    def text(self, key: str, default: str | None = None) -> str:
        """The text `key`."""
        node = self.get(key, default)
        if not isinstance(node.value, str):
            raise node.fail(f"is {_kind(node.value)}", "a text")
        return node.value

    def flag(self, key: str, default: bool = False) -> bool:
        """The truth value `key`."""
        node = self.get(key, default)
        if not isinstance(node.value, bool):
            raise node.fail(f"is {node.value!r:.40}", "true or false")
        return node.value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def looks_like(data: bytes) -> bool:
    """Whether the content is a JSON object with the key `gpus` (a plan of any generation)."""
    begin = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return begin.startswith(b"{") and b'"gpus"' in data


def load(data: bytes, file: str) -> Node:
    """The plan in a file's bytes.

    Raises:
        InputError: no JSON, a key that is given twice, nested too deep, or no object with a list `gpus`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            double = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
            raise InputError(f"key {double!r} is given twice in one object", where=file)
        return found

    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", where=file, expected="JSON text") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"is no JSON: {error.msg}", where=f"{file}:{error.lineno}", expected="an MSCCL++ plan"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(
            f"is no sensible JSON ({type(error).__name__})", where=file, expected="an MSCCL++ plan"
        ) from None
    plan = Node(value, file)
    gpus = plan.get("gpus")
    if not isinstance(gpus.value, list) or not gpus.value:
        raise gpus.fail("is no list of GPUs" if gpus.value != [] else "is empty", "one object for each GPU")
    return plan


def operation_lines(data: bytes) -> dict[tuple[int, ...], int]:
    """Line of every operation: (gpu, threadblock, op) or, inside a pipeline, (gpu, threadblock, op, inner op)."""
    text = data.decode("utf-8-sig", errors="replace")
    lines: dict[tuple[int, ...], int] = {}
    # one entry a nesting level: [key that was read last, index in a list or None]
    stack: list[list[Any]] = []
    line, last = 1, ""
    wanted = {("gpus", "threadblocks", "ops"), ("gpus", "threadblocks", "ops", "ops")}
    for token in _TOKEN.findall(text):
        if token == "\n":
            line += 1
        elif token == "{":
            keys = tuple(level[0] for level in stack if level[1] is not None)
            if keys in wanted:
                lines[tuple(level[1] for level in stack if level[1] is not None)] = line
            stack.append(["", None])
        elif token == "[":
            stack.append([stack[-1][0] if stack else "", 0])
        elif token in "}]":
            if stack:
                stack.pop()
        elif token == ":":
            if stack:
                stack[-1][0] = last[1:-1]
        elif token == ",":
            if stack and stack[-1][1] is not None:
                stack[-1][1] += 1
        else:
            last = token
    return lines


# --- generation 1 ----------------------------------------------------------------------------------

_KINDS = {"sm": "memory", "proxy": "port", "nvls": "switch", "memory": "memory", "port": "port", "switch": "switch",
          "none": "none"}  # fmt: skip
_NAMES = {"rspkt": "respkt", "rpkt": "repkt", "cpkt": "upkt", "tpkt": "cpkt", "rsignal": "rlxsignal",
          "rwait": "rlxwait"}  # fmt: skip


def is_generation_1(plan: Node) -> bool:
    """Whether a plan has the keys of the schema before August 2025 (`inputChunks` ...)."""
    first = plan.value["gpus"][0]
    return isinstance(first, dict) and "inputChunks" in first


def modernised(plan: Node) -> Node:
    """A generation 1 plan in the shape of generation 2.

    Generation 1 binds buffers to channels (`srcbuff`, `dstbuff`), generation 2 lists them apart; its `cpkt`
    unpacks packets (now `upkt`), its `tpkt` packs them (now `cpkt`).  Names and keys that both have stay.

    Raises:
        InputError: something that both generations need is missing or of the wrong type.
    """
    top = {k: v for k, v in plan.value.items() if k != "gpus"}
    top.setdefault("collective", top.pop("colletive", ""))  # misspelt by its first writers
    top["gpus"] = [_modern_gpu(gpu) for gpu in plan.items("gpus")]
    return Node(top, plan.file)


def _modern_gpu(gpu: Node) -> dict[str, Any]:
    inputs, outputs = gpu.number("inputChunks"), gpu.number("outputChunks", 0)
    channels: list[dict[str, Any]] = []
    remote: list[dict[str, Any]] = []
    #: (kind, source buffer, destination buffer) -> [(channel id of the kind, remote buffer id)]
    bound: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    counts: dict[str, int] = {}
    for channel in gpu.items("channels"):
        kind = _channel_kind(channel, "type")
        if kind == "switch":
            groups = channel.get("rankGroups").value
            channels.append({"channel_type": kind, "buffer_type": channel.text("buff"), "rank_groups": groups})
            continue
        peers = channel.numbers("connectedTo")
        channels.append({"channel_type": kind, "connected_to": peers})
        if channel.has("dstbuff"):
            key = (kind, channel.text("srcbuff"), channel.text("dstbuff"))
            for index, peer in enumerate(peers):
                bound.setdefault(key, []).append((counts.get(kind, 0) + index, len(remote)))
                remote.append({"rank": peer, "type": key[2], "access_channel_types": [kind]})
        counts[kind] = counts.get(kind, 0) + len(peers)
    for buffer in gpu.items("remoteBuffers", []):
        kinds = [_KINDS.get(str(k), str(k)) for k in buffer.get("accessChannelTypes").value]
        remote.append({"rank": buffer.number("rank"), "type": buffer.text("type"), "access_channel_types": kinds})
    return {
        "id": gpu.number("id"), "input_chunks": inputs, "output_chunks": outputs or inputs,
        "scratch_chunks": gpu.number("scratchChunks", 0), "channels": channels, "remote_buffers": remote,
        "semaphores": [], "threadblocks": [_modern_block(block, bound) for block in gpu.items("threadblocks")],
    }  # fmt: skip


def _channel_kind(node: Node, key: str) -> str:
    kind = node.text(key, "none")
    if kind not in _KINDS:
        raise node.fail(f"channel type {kind!r}", "sm, proxy or nvls")
    return _KINDS[kind]


def _modern_block(block: Node, bound: dict[tuple[str, str, str], list[tuple[int, int]]]) -> dict[str, Any]:
    channels: dict[str, list[int]] = {}
    buffers: dict[str, list[int]] = {}
    #: (kind, source, destination) -> (first channel, first buffer) of that triple in the threadblock's lists
    first: dict[tuple[str, str, str], tuple[int, int]] = {}
    for channel in block.items("channels"):
        kind = _channel_kind(channel, "ctype")
        ids = channel.numbers("cids")
        here, refs = channels.setdefault(kind, []), buffers.setdefault(kind, [])
        if not channel.has("src") or kind == "switch":
            here += ids
            continue
        key = (kind, channel.text("src"), channel.text("dst"))
        first[key] = (len(here), len(refs))
        ends = bound.get(key, [])
        if any(i >= len(ends) for i in ids):
            raise channel.fail(f"channel ids {ids}", f"ids below {len(ends)}, the GPU's channels of that type")
        here += [ends[i][0] for i in ids]
        refs += [ends[i][1] for i in ids]
    for reference in block.items("remoteBuffersRefs", []):
        buffers.setdefault(_channel_kind(reference, "accessChannelType"), []).extend(reference.numbers("ids"))
    return {
        "id": block.number("id"),
        "channels": [{"channel_type": k, "channel_ids": ids} for k, ids in channels.items()],
        "remote_buffer_refs": [{"access_channel_type": k, "remote_buffer_ids": i} for k, i in buffers.items() if i],
        "ops": [_modern_operation(op, first) for op in block.items("ops")],
    }  # fmt: skip


def _modern_operation(op: Node, first: dict[tuple[str, str, str], tuple[int, int]]) -> dict[str, Any]:
    name, kind, size = op.text("name"), _channel_kind(op, "ctype"), op.number("cnt", 1)
    new: dict[str, Any] = {"name": _NAMES.get(name, name)}
    if kind != "none":
        new["channel_type"] = kind
    if op.has("barrier_id"):
        new["barrier_id"] = op.number("barrier_id")
        new["num_threadblocks"] = op.number("nthread_blocks")
    for list_name in ("src_buff", "dst_buff"):
        if op.has(list_name):
            new[list_name] = [
                {"buffer_id": b.number("buff_id"), "index": b.number("offset"), "size": b.number("size")}
                if b.has("buff_id") else
                {"type": b.text("type"), "index": b.number("offset"), "size": b.number("size")}
                for b in op.items(list_name)
            ]  # fmt: skip
    if op.has("cids"):
        new["channel_ids"] = op.numbers("cids")
    if kind == "switch":
        new["src_buff"] = [{"switch_channel_id": op.number("gi_cid", 0), "index": op.number("srcoff"), "size": size}]
        new["dst_buff"] = [{"switch_channel_id": op.number("go_cid", 0), "index": op.number("dstoff"), "size": size}]
        return new
    local = [{"type": op.text("srcbuff"), "index": op.number("srcoff"), "size": size}] if op.has("srcbuff") else []
    local += [{"type": s.text("buff"), "index": s.number("off"), "size": size} for s in op.items("srcs", [])]
    results = [{"type": op.text("dstbuff"), "index": op.number("dstoff"), "size": size}] if op.has("dstbuff") else []
    moves = name not in ("signal", "wait", "flush", "rsignal", "rwait")
    for side, ids, place in (("i_buff", "i_cids", local), ("o_buff", "o_cids", results)):
        if not op.has(ids):
            continue
        pair = op.get(side)
        base = first.get((kind, pair.text("src"), pair.text("dst")))
        if base is None:
            raise op.fail(f"uses a {kind} channel from {pair.text('src')} to {pair.text('dst')}",
                          "one that its threadblock declares")  # fmt: skip
        numbers = [(c.number("id"), c.number("off")) for c in op.items(ids)]
        if moves:
            place += [{"buffer_id": base[1] + i, "index": off, "size": size} for i, off in numbers]
        if not moves or kind == "port":
            new["channel_ids"] = [base[0] + i for i, _ in numbers]
    if moves and local:
        many = name in ("put", "pws", "pwsf", "ppkt", "get") and len(local) == 1 and len(results) > 1
        new["src_buff"] = local * len(results) if many else local
    if moves and results:
        new["dst_buff"] = results
    return new
