"""A numpy stand-in for the few CuPy calls that the backends make.

Two habits of the real library are kept because they catch mistakes.  Host and device arrays do not
mix: a numpy array in a device operation, or a device array given to numpy, is a TypeError.  Device work
is queued on a stream and happens at the next synchronisation, so that reading or reusing memory too
early gives wrong data.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as _np

__version__ = "0.stand-in"

_queue: list[Callable[[], Any]] = []


def _flush() -> None:
    while _queue:
        _queue.pop(0)()


class ndarray:
    """A device array: host memory behind a wall."""

    __array_priority__ = 100

    def __init__(self, memory: _np.ndarray) -> None:
        self._memory = memory

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    size = property(lambda self: self._memory.size)
    ndim = property(lambda self: self._memory.ndim)
    nbytes = property(lambda self: self._memory.nbytes)
    flags = property(lambda self: self._memory.flags)
    itemsize = property(lambda self: self._memory.itemsize)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self._memory.__array_interface__["data"][0])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self._memory.__array_interface__)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, key: Any) -> ndarray:
        return ndarray(self._memory[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self._memory[key] if not isinstance(key, int) else self._memory[key : key + 1]
        source = _device(value)
        _queue.append(lambda: _np.copyto(target, source))

    def reshape(self, *shape: Any) -> ndarray:
        if not self._memory.flags.c_contiguous:
            return self.copy().reshape(*shape)
        return ndarray(self._memory.reshape(*shape))

    def ravel(self) -> ndarray:
        return self.reshape(-1)

    def view(self, dtype: Any = None) -> ndarray:
        return ndarray(self._memory if dtype is None else self._memory.view(dtype))

    def copy(self) -> ndarray:
        result = empty(self.shape, self.dtype)
        result[...] = self
        return result

    def fill(self, value: Any) -> None:
        self[...] = value

    def get(self, out: _np.ndarray | None = None) -> _np.ndarray:
        return asnumpy(self, out=out)

    def set(self, host: _np.ndarray) -> None:
        self[...] = asarray(host)


def _device(value: Any) -> Any:
    if isinstance(value, ndarray):
        return value._memory
    if isinstance(value, _np.ndarray) and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def _binary(name: str) -> Callable[..., ndarray]:
    function = getattr(_np, name)

    def call(left: Any, right: Any, out: ndarray | None = None) -> ndarray:
        a, b = _device(left), _device(right)
        result = empty(_np.broadcast_shapes(_np.shape(a), _np.shape(b)), a.dtype) if out is None else out
        if not isinstance(result, ndarray):
            raise TypeError(f"out must be a device array, not {type(out)}")
        memory = result._memory
        _queue.append(lambda: function(a, b, out=memory))
        return result

    return call


add, multiply, maximum, minimum = (_binary(name) for name in ("add", "multiply", "maximum", "minimum"))


def empty(shape: Any, dtype: Any = _np.float64) -> ndarray:
    return ndarray(_np.empty(shape, dtype))


def zeros(shape: Any, dtype: Any = _np.float64) -> ndarray:
    return ndarray(_np.zeros(shape, dtype))


def full(shape: Any, value: Any, dtype: Any = None) -> ndarray:
    return ndarray(_np.full(shape, value, dtype))


def asarray(array: Any, dtype: Any = None) -> ndarray:
    if isinstance(array, ndarray):
        return array
    host = _np.asarray(array, dtype)
    result = empty(host.shape, host.dtype)
    _queue.append(lambda: _np.copyto(result._memory, host))
    return result


def ascontiguousarray(array: ndarray) -> ndarray:
    return array if array._memory.flags.c_contiguous else array.copy()


def asnumpy(array: Any, out: _np.ndarray | None = None) -> _np.ndarray:
    if not isinstance(array, ndarray):
        return _np.asarray(array)
    _flush()
    if out is None:
        return array._memory.copy()
    if out.shape != array.shape or out.dtype != array.dtype or not out.flags.c_contiguous:
        raise ValueError("out has another shape, type or order")
    out[...] = array._memory
    return out


class _Stream:
    null: _Stream

    @property
    def ptr(self) -> int:
        """The handle is read to give the stream to another library, whose stand-in works at once: what
        was queued before must have happened by then."""
        _flush()
        return 0

    @property
    def done(self) -> bool:
        _flush()
        return True

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def synchronize(self) -> None:
        _flush()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: object) -> None: ...


_Stream.null = _Stream()


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    @property
    def done(self) -> bool:
        _flush()
        return True

    def synchronize(self) -> None:
        _flush()


class _Device:
    used: int | None = None

    def __init__(self, device: int = 0) -> None:
        self.id = device

    def use(self) -> None:
        _Device.used = self.id

    def synchronize(self) -> None:
        _flush()

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *args: object) -> None: ...


cuda = SimpleNamespace(
    Stream=_Stream,
    Event=_Event,
    Device=_Device,
    get_current_stream=lambda: _Stream.null,
    runtime=SimpleNamespace(getDeviceCount=lambda: 2, CUDARuntimeError=RuntimeError),
)
