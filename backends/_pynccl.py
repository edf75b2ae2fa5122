"""A binding of NCCL by ctypes: any libnccl from 2.7 on (also RCCL, also a fake one), chosen at run time.

Why ctypes: nothing is compiled or linked, so one installation works with whatever library a machine
has, and the tests run a fake library of the same ABI where there is no GPU.  Three layers: the table
of C functions (`_FUNCTIONS`), the library (`Nccl`), and the communicator (`Communicator`).

Three things can go wrong and each has its own exception: our caller's mistake (`NcclUsageError`),
a function that the loaded library is too old for (`NcclUnsupportedError`), and a failure that NCCL
reports (`NcclError`).  Functions that newer versions brought are optional: `Nccl.has("CommSplit")`.

Pointers are integers (device addresses; with the fake library host addresses), counts are elements,
streams are integers and keyword-only (0: the default stream).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from importlib import util
from pathlib import Path
from typing import Any

from collsynth.errors import CollsynthError, InputError, RunError

#: Environment variable that names the library file.
LIBRARY_VARIABLE = "COLLSYNTH_NCCL_LIBRARY"

#: The oldest library that can run programs: it brought ncclSend and ncclRecv.
MINIMUM_VERSION = 20700


class NcclUsageError(InputError):
    """The call is wrong (closed communicator, peer out of range, unknown datatype): our side's mistake."""


class NcclUnsupportedError(CollsynthError, NotImplementedError):
    """The loaded library does not have the function or type; the message names the version that does."""


class NcclError(RunError):
    """NCCL reported a failure.

    Attributes:
        function: the C function.
        code: its ncclResult_t.
    """

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function} failed: {text} (code {code})")
        self.function, self.code = function, code


class Result(IntEnum):
    """ncclResult_t."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


class RedOp(IntEnum):
    """ncclRedOp_t, the built-in ones."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


@dataclass(frozen=True, slots=True)
class DataType:
    """An ncclDataType_t: its code, bytes of an element, and the version code that brought it."""

    code: int
    itemsize: int
    since: int = 20000


#: numpy's name of a datatype -> NCCL's.
DATATYPES: dict[str, DataType] = {
    "int8": DataType(0, 1),
    "uint8": DataType(1, 1),
    "int32": DataType(2, 4),
    "uint32": DataType(3, 4),
    "int64": DataType(4, 8),
    "uint64": DataType(5, 8),
    "float16": DataType(6, 2),
    "float32": DataType(7, 4),
    "float64": DataType(8, 8),
    "bfloat16": DataType(9, 2, 21000),
    "float8_e4m3fn": DataType(10, 1, 22400),
    "float8_e5m2": DataType(11, 1, 22400),
}


class UniqueId(ctypes.Structure):
    """ncclUniqueId: 128 bytes that one rank makes and all ranks of a communicator share."""

    _fields_ = (("internal", c_ubyte * 128),)


@dataclass(frozen=True, slots=True)
class _Function:
    """One C function: name without `nccl`, version code that brought it, argument types, result type."""

    name: str
    since: int
    arguments: tuple[Any, ...]
    result: Any = c_int


_COMM = c_void_p
_STREAM = c_void_p
_BUFFER = c_void_p

#: The C functions used here, each under its prototype.
_FUNCTIONS: tuple[_Function, ...] = (
    # ncclResult_t ncclGetVersion(int* version);
    _Function("GetVersion", 20000, (POINTER(c_int),)),
    # ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
    _Function("GetUniqueId", 20000, (POINTER(UniqueId),)),
    # ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
    _Function("CommInitRank", 20000, (POINTER(_COMM), c_int, UniqueId, c_int)),
    # ncclResult_t ncclCommDestroy(ncclComm_t comm);
    _Function("CommDestroy", 20000, (_COMM,)),
    # ncclResult_t ncclCommAbort(ncclComm_t comm);
    _Function("CommAbort", 20400, (_COMM,)),
    # ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
    _Function("CommGetAsyncError", 20400, (_COMM, POINTER(c_int))),
    # const char* ncclGetErrorString(ncclResult_t result);
    _Function("GetErrorString", 20000, (c_int,), c_char_p),
    # const char* ncclGetLastError(ncclComm_t comm);
    _Function("GetLastError", 21300, (_COMM,), c_char_p),
    # ncclResult_t ncclGroupStart(void);
    _Function("GroupStart", 20000, ()),
    # ncclResult_t ncclGroupEnd(void);
    _Function("GroupEnd", 20000, ()),
    # ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
    #                       ncclComm_t comm, cudaStream_t stream);
    _Function("Send", 20700, (_BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
    #                       ncclComm_t comm, cudaStream_t stream);
    _Function("Recv", 20700, (_BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
    #                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
    _Function("AllReduce", 20000, (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
    #                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
    _Function("Reduce", 20000, (_BUFFER, _BUFFER, c_size_t, c_int, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
    #                            int root, ncclComm_t comm, cudaStream_t stream);
    _Function("Broadcast", 20200, (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
    #                            ncclComm_t comm, cudaStream_t stream);
    _Function("AllGather", 20000, (_BUFFER, _BUFFER, c_size_t, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
    #                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
    _Function("ReduceScatter", 20000, (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
    #                           ncclComm_t comm, cudaStream_t stream);
    _Function("AlltoAll", 22800, (_BUFFER, _BUFFER, c_size_t, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
    #                         int root, ncclComm_t comm, cudaStream_t stream);
    _Function("Gather", 22800, (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
    # ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
    #                          int root, ncclComm_t comm, cudaStream_t stream);
    _Function("Scatter", 22800, (_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM)),
)


def version_text(code: int) -> str:
    """`2.20.5` of a version code (NCCL changed the code's base from 100 to 10000 a major with 2.9)."""
    major = code // 10000 if code >= 10000 else code // 1000
    rest = code % 10000 if code >= 10000 else code % 1000
    return f"{major}.{rest // 100}.{rest % 100}"


def _normalised(code: int) -> int:
    """A version code of any age on the newer base, so that codes can be compared."""
    return code if code >= 10000 else code // 1000 * 10000 + code % 1000


def library_candidates() -> list[str]:
    """Where the library is looked for, best first: the environment, NVIDIA's wheel, the system."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return [named]
    found: list[str] = []
    try:
        spec = util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found += [str(path) for path in sorted(Path(folder, "lib").glob("libnccl.so*"))]
    return [*found, "libnccl.so.2", "libnccl.so"]


class Nccl:
    """One loaded library.

    Args:
        path: library file; None looks in `library_candidates()`.

    Raises:
        InputError: no library could be loaded, or it is not NCCL.
        NcclUnsupportedError: the library is older than 2.7.
    """

    def __init__(self, path: str | None = None) -> None:
        tried: list[str] = []
        library: ctypes.CDLL | None = None
        for candidate in [path] if path else library_candidates():
            try:
                library = ctypes.CDLL(candidate)
            except OSError as error:
                tried.append(f"{candidate} ({error})")
                continue
            self.path = candidate
            break
        if library is None:
            raise InputError(
                "no NCCL library could be loaded: " + "; ".join(tried),
                hint=f"pip install nvidia-nccl-cu12 (or -cu13), or set {LIBRARY_VARIABLE} to the libnccl.so file",
            )
        self._functions: dict[str, Any] = {}
        for entry in _FUNCTIONS:
            function = getattr(library, f"nccl{entry.name}", None)
            if function is not None:
                function.argtypes, function.restype = list(entry.arguments), entry.result
                self._functions[entry.name] = function
        if "GetVersion" not in self._functions:
            raise InputError("has no ncclGetVersion", where=self.path, expected="an NCCL library")
        #: Version code on the base of NCCL 2.9 and later: 2.20.5 is 22005.
        self.version = 0
        code = c_int(0)
        self.call("GetVersion", byref(code))
        self.version = _normalised(code.value)
        self._groups = threading.local()
        if self.version < MINIMUM_VERSION:
            raise NcclUnsupportedError(
                f"{self.path} is NCCL {version_text(code.value)}; running programs needs "
                f"{version_text(MINIMUM_VERSION)} or later (ncclSend, ncclRecv)"
            )

    def has(self, name: str) -> bool:
        """Whether the library has function `nccl<name>` and is of a version that documents it.

        Raises:
            NcclUsageError: the binding does not know a function of that name.
        """
        since = self._entry(name).since
        return name in self._functions and self.version >= since

    def require(self, name: str) -> None:
        """Say which version is needed if the library lacks `nccl<name>`.

        Raises:
            NcclUnsupportedError: it does.
        """
        if not self.has(name):
            raise NcclUnsupportedError(
                f"nccl{name} needs NCCL {version_text(self._entry(name).since)} or later; "
                f"{self.path} is {version_text(self.version)}"
            )

    @staticmethod
    def _entry(name: str) -> _Function:
        for entry in _FUNCTIONS:
            if entry.name == name:
                return entry
        raise NcclUsageError(f"the binding has no function {name!r}")

    def call(self, name: str, *arguments: Any) -> None:
        """Call `nccl<name>` and check its result.

        Raises:
            NcclUnsupportedError: the library lacks it.
            NcclError: it failed.
        """
        if name != "GetVersion":
            self.require(name)
        code = self._functions[name](*arguments)
        if code not in (Result.SUCCESS, Result.IN_PROGRESS):
            raise NcclError(f"nccl{name}", code, self.error_text(code))

    def error_text(self, code: int) -> str:
        """NCCL's words for a result code, with its last error where the version keeps one (2.13)."""
        function = self._functions.get("GetErrorString")
        raw = function(code) if function else None
        text = raw.decode(errors="replace") if raw else f"result {code}"
        last = self._functions["GetLastError"] if self.has("GetLastError") else None
        detail = (last(None) or b"").decode(errors="replace").strip() if last else ""
        return f"{text}: {detail}" if detail else text

    def datatype(self, name: str) -> DataType:
        """NCCL's datatype of numpy's name.

        Raises:
            NcclUsageError: NCCL has no such type.
            NcclUnsupportedError: the library is too old for it.
        """
        found = DATATYPES.get(name)
        if found is None:
            raise NcclUsageError(f"NCCL has no datatype {name!r}", expected="one of " + ", ".join(DATATYPES))
        if self.version < found.since:
            raise NcclUnsupportedError(
                f"datatype {name} needs NCCL {version_text(found.since)} or later; "
                f"{self.path} is {version_text(self.version)}"
            )
        return found

    def unique_id(self) -> bytes:
        """128 bytes that name a new communicator; one rank makes them and hands them to the others."""
        identity = UniqueId()
        self.call("GetUniqueId", byref(identity))
        return bytes(identity.internal)

    def init_rank(self, nranks: int, identity: bytes, rank: int) -> Communicator:
        """Join a communicator; returns when all ranks have.

        Args:
            nranks: its size.
            identity: what `unique_id` gave to one of its ranks.
            rank: this process's rank.

        Raises:
            NcclUsageError: a number is out of range or the identity is not 128 bytes.
            NcclError: NCCL could not set it up.
        """
        if nranks < 1 or not 0 <= rank < nranks:
            raise NcclUsageError(f"rank {rank} of {nranks} is out of range")
        if len(identity) != 128:
            raise NcclUsageError(f"the unique id has {len(identity)} bytes", expected="128")
        handle = _COMM()
        self.call("CommInitRank", byref(handle), nranks, UniqueId.from_buffer_copy(identity), rank)
        return Communicator(self, handle, nranks, rank)

    @property
    def group_depth(self) -> int:
        """Open groups of this thread."""
        return getattr(self._groups, "depth", 0)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Calls inside start together when the outermost group closes (ncclGroupStart/End).

        The group is closed also when the body raises, so that the library's counter stays right; the
        body's own exception is the one that is seen.
        """
        self.call("GroupStart")
        self._groups.depth = self.group_depth + 1
        try:
            yield
        except BaseException:
            self._groups.depth -= 1
            self._functions["GroupEnd"]()
            raise
        self._groups.depth -= 1
        self.call("GroupEnd")


class Communicator:
    """A rank's handle on a communicator; close it once, by `close` or `abort` or `with`.

    Attributes:
        library: the library it belongs to.
        nranks, rank: its size and this process's place.
    """

    def __init__(self, library: Nccl, handle: c_void_p, nranks: int, rank: int) -> None:
        self.library, self.nranks, self.rank = library, nranks, rank
        self._handle: c_void_p | None = handle

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            # Peers may be stuck: destroy would wait for them, abort does not.
            self.abort()

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted."""
        return self._handle is None

    def _open(self, operation: str) -> c_void_p:
        if self._handle is None:
            raise NcclUsageError(f"{operation} on a communicator that is closed (rank {self.rank} of {self.nranks})")
        return self._handle

    def close(self) -> None:
        """Free it (ncclCommDestroy); work that is still queued is finished first.  A second call does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self.library.call("CommDestroy", handle)

    def abort(self) -> None:
        """Free it without waiting for peers (ncclCommAbort).  A second call does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self.library.call("CommAbort", handle)

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did.

        Raises:
            NcclError: a queued operation failed (a peer died, a network error).
        """
        code = c_int(0)
        self.library.call("CommGetAsyncError", self._open("check"), byref(code))
        if code.value not in (Result.SUCCESS, Result.IN_PROGRESS):
            raise NcclError("a queued operation", code.value, self.library.error_text(code.value))

    def _peer(self, peer: int, operation: str) -> int:
        if not 0 <= peer < self.nranks:
            raise NcclUsageError(f"{operation}: rank {peer} is out of range", expected=f"0..{self.nranks - 1}")
        return peer

    def send(self, pointer: int, count: int, dtype: str, peer: int, *, stream: int = 0) -> None:
        """Queue `count` elements at `pointer` for `peer`; sends to one peer arrive in order."""
        handle, code = self._open("send"), self.library.datatype(dtype).code
        self.library.call("Send", pointer, count, code, self._peer(peer, "send"), handle, stream)

    def recv(self, pointer: int, count: int, dtype: str, peer: int, *, stream: int = 0) -> None:
        """Queue the receipt of `count` elements from `peer` into `pointer`."""
        handle, code = self._open("recv"), self.library.datatype(dtype).code
        self.library.call("Recv", pointer, count, code, self._peer(peer, "recv"), handle, stream)

    def all_reduce(self, source: int, target: int, count: int, dtype: str, op: RedOp, *, stream: int = 0) -> None:
        """NCCL's own AllReduce of `count` elements; in place when `source == target`."""
        handle, code = self._open("all_reduce"), self.library.datatype(dtype).code
        self.library.call("AllReduce", source, target, count, code, int(op), handle, stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: RedOp, root: int, *, stream: int = 0
    ) -> None:
        """NCCL's own Reduce; `target` is written on rank `root` only."""
        handle, code = self._open("reduce"), self.library.datatype(dtype).code
        self.library.call("Reduce", source, target, count, code, int(op), self._peer(root, "reduce"), handle, stream)

    def broadcast(self, source: int, target: int, count: int, dtype: str, root: int, *, stream: int = 0) -> None:
        """NCCL's own Broadcast; `source` is read on rank `root` only."""
        handle, code = self._open("broadcast"), self.library.datatype(dtype).code
        self.library.call("Broadcast", source, target, count, code, self._peer(root, "broadcast"), handle, stream)

    def all_gather(self, source: int, target: int, count: int, dtype: str, *, stream: int = 0) -> None:
        """NCCL's own AllGather; `count` elements from each rank, in place when source is the rank's slice of target."""
        handle, code = self._open("all_gather"), self.library.datatype(dtype).code
        self.library.call("AllGather", source, target, count, code, handle, stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: str, op: RedOp, *, stream: int = 0) -> None:
        """NCCL's own ReduceScatter; `count` elements to each rank, in place when target is the slice of source."""
        handle, code = self._open("reduce_scatter"), self.library.datatype(dtype).code
        self.library.call("ReduceScatter", source, target, count, code, int(op), handle, stream)

    def all_to_all(self, source: int, target: int, count: int, dtype: str, *, stream: int = 0) -> None:
        """NCCL's own AllToAll (2.28), `count` elements a pair; not in place (older: one group of send and recv)."""
        handle, kind = self._open("all_to_all"), self.library.datatype(dtype)
        if self.library.has("AlltoAll"):
            self.library.call("AlltoAll", source, target, count, kind.code, handle, stream)
            return
        step = count * kind.itemsize
        with self.library.group():
            for peer in range(self.nranks):
                self.send(source + peer * step, count, dtype, peer, stream=stream)
                self.recv(target + peer * step, count, dtype, peer, stream=stream)

    def gather(self, source: int, target: int, count: int, dtype: str, root: int, *, stream: int = 0) -> None:
        """NCCL's own Gather (2.28) of `count` elements a rank.  Older: one group of sends and receives."""
        handle, kind = self._open("gather"), self.library.datatype(dtype)
        if self.library.has("Gather"):
            self.library.call("Gather", source, target, count, kind.code, self._peer(root, "gather"), handle, stream)
            return
        step = count * kind.itemsize
        with self.library.group():
            self.send(source, count, dtype, root, stream=stream)
            for peer in range(self.nranks if self.rank == root else 0):
                self.recv(target + peer * step, count, dtype, peer, stream=stream)

    def scatter(self, source: int, target: int, count: int, dtype: str, root: int, *, stream: int = 0) -> None:
        """NCCL's own Scatter (2.28) of `count` elements a rank.  Older: one group of sends and receives."""
        handle, kind = self._open("scatter"), self.library.datatype(dtype)
        if self.library.has("Scatter"):
            self.library.call("Scatter", source, target, count, kind.code, self._peer(root, "scatter"), handle, stream)
            return
        step = count * kind.itemsize
        with self.library.group():
            self.recv(target, count, dtype, root, stream=stream)
            for peer in range(self.nranks if self.rank == root else 0):
                self.send(source + peer * step, count, dtype, peer, stream=stream)
