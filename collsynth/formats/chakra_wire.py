"""Chakra execution traces on the wire: length-prefixed protobuf messages, one file a rank.

The message types of the published schema (package ChakraProtoMsg) are built here at run time, so that no
generated code has to match the installed protobuf.  Field numbers: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

from ..errors import InputError, require

_MAX_MESSAGE = 1 << 30


class NodeType(IntEnum):
    """Kinds of trace nodes."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a rank's trace.

    Attributes:
        id: unique in the file.
        name, type: what it is.
        depends: ids of nodes that must be done before (data dependencies).
        control: ids of control dependencies.
        duration_us: whole microseconds.
        attributes: name -> value; an int is written as int32, int64 or bool as `KINDS` says, and read from
            any integer kind.
        offset: byte of the file at which the node begins (0 when it was not read from one).
    """

    id: int
    name: str
    type: NodeType
    depends: tuple[int, ...] = ()
    control: tuple[int, ...] = ()
    duration_us: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    offset: int = field(default=0, compare=False)

    def integer(self, name: str) -> int | None:
        """An integer attribute of whatever width; None when it is absent or no integer (ASTRA-sim aborts then)."""
        value = self.attributes.get(name)
        return value if type(value) is int else None


#: Integer kind of each attribute that we write: exactly what the old C++ feeder reads.
KINDS = {
    "is_cpu_op": "bool", "comm_size": "int64", "comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32",
    "num_ops": "int64", "tensor_size": "uint64", "msg_chunk_cnt": "int32", "msg_chunk_idx": "int32",
    "total_chunk_cnt": "int32", "schema": "string", "collective": "string", "comm_type": "int64",
    "pg_name": "string", "tb_id": "int32", "local_time_step": "int32", "instruction": "string",
    "collsynth_program": "string",
}  # fmt: skip

_NODE_TYPES = frozenset(int(kind) for kind in NodeType if kind is not NodeType.INVALID)
_SCALARS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
            "sfixed32", "sfixed64", "bool", "string", "bytes")  # fmt: skip


@cache
def _messages() -> dict[str, Any]:
    """Message classes by name.

    Raises:
        MissingDependencyError: protobuf is not installed.
    """
    require("google.protobuf", "chakra", "reading and writing Chakra traces")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="collsynth_chakra.proto", package="ChakraProtoMsg", syntax="proto3"
    )  # fmt: skip
    optional, repeated = 1, 3  # labels of FieldDescriptorProto

    def add(message: Any, name: str, number: int, type_: str, label: int = optional, **extra: Any) -> None:
        new = message.field.add(name=name, number=number, label=label, **extra)
        if type_.startswith("."):
            new.type, new.type_name = 11, type_
        else:
            new.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{type_.upper()}")

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for index, scalar in enumerate(_SCALARS):
        values = file.message_type.add(name=f"{scalar.capitalize()}List")
        add(values, "values", 1, scalar, repeated)
        add(attribute, f"{scalar}_val", 3 + 2 * index, scalar, oneof_index=0)
        add(attribute, f"{scalar}_list", 4 + 2 * index, f".ChakraProtoMsg.{values.name}", oneof_index=0)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, "string")
    add(metadata, "attr", 2, ".ChakraProtoMsg.AttributeProto", repeated)
    tensors = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), start=1):
        add(tensors, name, number, "string")
    node = file.message_type.add(name="Node")
    add(node, "id", 1, "uint64")
    add(node, "name", 2, "string")
    add(node, "type", 3, "int32")  # an open enum has the same wire form
    add(node, "ctrl_deps", 4, "uint64", repeated)
    add(node, "data_deps", 5, "uint64", repeated)
    add(node, "start_time_micros", 6, "uint64")
    add(node, "duration_micros", 7, "uint64")
    add(node, "inputs", 8, ".ChakraProtoMsg.IOInfo")
    add(node, "outputs", 9, ".ChakraProtoMsg.IOInfo")
    add(node, "attr", 10, ".ChakraProtoMsg.AttributeProto", repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in ("GlobalMetadata", "Node")
    }


def _fill(attributes: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        new = attributes.add(name=name)
        setattr(new, f"{KINDS[name]}_val", value)


def _framed(message: Any) -> bytes:
    body = message.SerializeToString(deterministic=True)
    length, prefix = len(body), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + body


def encode(nodes: Sequence[Node], version: str, metadata: dict[str, Any]) -> bytes:
    """The bytes of one rank's file: metadata, then the nodes in the given order."""
    types = _messages()
    head = types["GlobalMetadata"](version=version)
    _fill(head.attr, metadata)
    parts = [_framed(head)]
    for node in nodes:
        message = types["Node"](
            id=node.id, name=node.name, type=int(node.type), ctrl_deps=node.control, data_deps=node.depends,
            duration_micros=node.duration_us,
        )  # fmt: skip
        _fill(message.attr, node.attributes)
        parts.append(_framed(message))
    return b"".join(parts)


def _damaged(where: str, offset: int, what: str) -> InputError:
    return InputError(what, where=f"{where}: byte {offset}", expected="a Chakra trace as its writer left it")


def _frames(data: bytes, where: str) -> list[tuple[int, bytes]]:
    """(offset of the length prefix, message) of every message."""
    frames, offset = [], 0
    while offset < len(data):
        begin, length, shift = offset, 0, 0
        while True:
            if offset >= len(data):
                raise _damaged(where, begin, "the file ends within a length")
            if shift > 28:
                raise _damaged(where, begin, "this is no length of a message")
            byte = data[offset]
            offset += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        if length > min(_MAX_MESSAGE, len(data) - offset):
            raise _damaged(
                where, begin, f"a message of {length} bytes begins here, but {len(data) - offset} bytes are left"
            )
        frames.append((begin, data[offset : offset + length]))
        offset += length
    return frames


def _attributes(message: Any, where: str, offset: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in message.attr:
        which = attribute.WhichOneof("value")
        if which is None:
            raise _damaged(where, offset, f"attribute {attribute.name[:40]!r} has no value")
        if attribute.name in values:
            raise _damaged(where, offset, f"attribute {attribute.name[:40]!r} comes twice")
        value: Any = getattr(attribute, which)
        values[attribute.name] = list(value.values) if which.endswith("_list") else value
    return values


def _message(type_: Any, frame: bytes, where: str, offset: int, what: str) -> Any:
    """The message in a frame, which must hold nothing that the schema does not know."""
    from google.protobuf.message import DecodeError

    try:
        message = type_.FromString(frame)
    except (DecodeError, ValueError) as error:
        raise _damaged(where, offset, f"this is no {what}") from error
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise _damaged(where, offset, f"this is no {what}: it has fields that the schema does not know")
    return message


def decode(data: bytes, where: str = "<bytes>") -> tuple[str, dict[str, Any], list[Node]]:
    """Version, metadata attributes and nodes of one rank's file.

    Framing is strict: every byte must belong to a message, every message to the schema, and the metadata must
    come first; that no other reader checks this is why damaged traces hang simulators.

    Args:
        data: the whole file.
        where: file name for messages.

    Raises:
        InputError: cut off, damaged, compressed, or without the metadata that comes first; `where` names the
            byte at which the faulty message begins.
    """
    types = _messages()
    if not data:
        raise InputError("is empty", where=where, expected="a Chakra trace")
    if data.startswith(b"\x1f\x8b"):
        raise InputError("is compressed", where=where, expected="a plain Chakra trace", hint="gunzip")
    frames = _frames(data, where)
    head = _message(types["GlobalMetadata"], frames[0][1], where, 0, "GlobalMetadata, which comes first in a trace")
    nodes = []
    for offset, frame in frames[1:]:
        if not frame:
            raise _damaged(where, offset, "a message of no bytes, which readers take for the end of the file")
        m = _message(types["Node"], frame, where, offset, "Node")
        if m.type not in _NODE_TYPES:
            raise _damaged(where, offset, f"node {m.id} has type {m.type}")
        nodes.append(
            Node(m.id, m.name, NodeType(m.type), tuple(m.data_deps), tuple(m.ctrl_deps), m.duration_micros,
                 _attributes(m, where, offset), offset)
        )  # fmt: skip
    return head.version, _attributes(head, where, 0), nodes
