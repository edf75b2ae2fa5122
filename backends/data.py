"""Inputs whose results are exact in every dtype, so that checking is equality and not a tolerance.

Floating-point sums are of small whole numbers that stay within the mantissa in any order; products are of
powers of two; integers wrap around in any order alike.  Rank r's data depend on (seed, r) only, so every
process can make every rank's input and know what it must receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collsynth.collective import canonical_name
from collsynth.errors import InputError

DTYPE_NAMES = (
    "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
#: nccl-tests' names for the same.
_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
OPS = ("sum", "prod", "max", "min", "avg")
#: Collectives that an operation applies to (the others only move data).
COMBINING = frozenset({"allreduce", "reduce", "reducescatter"})
_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "avg": np.add}
#: Bits that a whole number may have to be exact.
_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}

#: Elements after which a rank's input repeats.
PERIOD = 1_048_583

Array = NDArray[Any]


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name (numpy's or nccl-tests').

    Raises:
        InputError: unknown name, or bfloat16 without the package ml_dtypes.
    """
    key = _ALIASES.get(name, name)
    if key not in DTYPE_NAMES:
        raise InputError(f"unknown data type {name!r}", where="--dtype", expected="one of " + ", ".join(DTYPE_NAMES))
    if key == "bfloat16":
        try:
            return np.dtype(import_module("ml_dtypes").bfloat16)
        except ImportError as error:
            raise InputError(
                "bfloat16 needs the package ml_dtypes, which is not installed", where="--dtype",
                hint="pip install ml_dtypes",
            ) from error  # fmt: skip
    return np.dtype(key)


def check_op(op: str) -> str:
    """The operation's name, if there is such an operation.

    Raises:
        InputError: there is none.
    """
    if op not in OPS:
        raise InputError(f"unknown operation {op!r}", where="--op", expected="one of " + ", ".join(OPS))
    return op


def combine(op: str, xp: Any = np) -> Any:
    """The elementwise function that combines two terms (`avg`: the sum, divided at the end)."""
    return getattr(xp, _UFUNCS[check_op(op)].__name__)


def finish(op: str, values: Any, nranks: int) -> Any:
    """What is left to do with a complete sum: `avg` divides (whole numbers towards zero), others nothing."""
    if op != "avg":
        return values
    if values.dtype.kind in "iu":
        quotient = abs(values) // nranks
        return (quotient * ((values > 0) * 1 - (values < 0) * 1)).astype(values.dtype)
    return (values / values.dtype.type(nranks)).astype(values.dtype)


def make_input(rank: int, elements: int, dtype: np.dtype[Any], op: str, nranks: int, *, seed: int = 0) -> Array:
    """Rank `rank`'s input: deterministic in (seed, rank), exact under `op` over `nranks` ranks in any order.

    Beyond `PERIOD` elements, a prime so that no unit or shard is as long, the data repeat: drawing every
    rank's numbers on every rank would take longer than the run that they check.
    """
    drawn = _draw(rank, min(elements, PERIOD), dtype, op, nranks, seed)
    return drawn if len(drawn) == elements else np.resize(drawn, elements)


def _draw(rank: int, elements: int, dtype: np.dtype[Any], op: str, nranks: int, seed: int) -> Array:
    rng = np.random.Generator(np.random.PCG64([seed, rank]))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if op == "avg":  # a wrapped sum has no meaningful mean
            top = min(int(limits.max), 1 << 62) // max(1, nranks)
            return rng.integers(-top if limits.min < 0 else 0, top, elements, dtype=np.int64, endpoint=True).astype(
                dtype
            )
        return rng.integers(limits.min, limits.max, elements, dtype=dtype, endpoint=True)
    if op == "prod":
        # few ranks bring a power of two, so that no partial product leaves the exponent's range
        powers = rng.integers(-1, 1, elements, endpoint=True) if rank < 12 else np.zeros(elements, dtype=np.int64)
        return (np.ldexp(1.0, powers) * rng.choice((-1.0, 1.0), elements)).astype(dtype)
    exact = 1 << _MANTISSA[dtype.name]  # whole numbers up to here are exact
    top = min(exact, 1 << 20)
    if op in ("sum", "avg"):
        if rank >= exact:  # more ranks than the type can count: the rest bring nothing
            return np.zeros(elements, dtype=dtype)
        top = min(top, max(1, exact // nranks))
    return rng.integers(-top, top, elements, endpoint=True).astype(dtype)


def input_elements(collective: str, rank: int, nranks: int, count: int, *, root: int = 0) -> int:
    """Elements of a rank's send buffer (`count` as nccl-tests counts; 0: not significant)."""
    name = canonical_name(collective)
    if name in ("reducescatter", "alltoall"):
        return nranks * count
    if name == "scatter":
        return nranks * count if rank == root else 0
    if name == "broadcast":
        return count if rank == root else 0
    return count


def output_elements(collective: str, rank: int, nranks: int, count: int, *, root: int = 0) -> int:
    """Elements of a rank's receive buffer (0: not significant)."""
    name = canonical_name(collective)
    if name in ("allgather", "alltoall"):
        return nranks * count
    if name == "gather":
        return nranks * count if rank == root else 0
    if name == "reduce":
        return count if rank == root else 0
    return count


def expected_output(
    collective: str, rank: int, nranks: int, count: int, dtype: np.dtype[Any], op: str, *, root: int = 0, seed: int = 0
) -> Array | None:
    """What rank `rank` must hold in the end when every rank's input is `make_input`; None: nothing."""
    name = canonical_name(collective)
    elements = output_elements(name, rank, nranks, count, root=root)
    if output_elements(name, rank, nranks, 1, root=root) == 0:
        return None

    def source(other: int) -> Array:
        size = input_elements(name, other, nranks, count, root=root)
        return make_input(other, size, dtype, op, nranks, seed=seed)

    own = slice(rank * count, (rank + 1) * count)
    if name in COMBINING:
        part = own if name == "reducescatter" else slice(0, elements)
        total = source(0)[part].copy()
        function = combine(op)
        with np.errstate(over="ignore"):
            for other in range(1, nranks):
                function(total, source(other)[part], out=total)
        result: Array = finish(op, total, nranks)
        return result
    if name in ("allgather", "gather"):
        return np.concatenate([source(other) for other in range(nranks)])
    if name == "alltoall":
        return np.concatenate([source(other)[own] for other in range(nranks)])
    return source(root)[own] if name == "scatter" else source(root)


def count_wrong(actual: Array, expected: Array) -> int:
    """Elements that differ (any NaN differs: right data hold none)."""
    if actual.shape != expected.shape:
        raise InputError(f"shapes {actual.shape} and {expected.shape} differ")
    return int(np.count_nonzero(~(actual == expected)))


def first_wrong(actual: Array, expected: Array) -> int | None:
    """Index of the first element that differs, None when all agree."""
    wrong = np.flatnonzero(~(actual == expected))
    return int(wrong[0]) if len(wrong) else None


def poison(array: Any) -> Any:
    """Fill an array with what no right result holds (NaN; for whole numbers a bit pattern), and return it."""
    if array.dtype.kind in "iu":
        pattern = np.frombuffer(b"\xa5" * array.dtype.itemsize, dtype=array.dtype)[0]
        array[...] = pattern
    else:
        array[...] = float("nan")
    return array


def inputs_of(
    collective: str, nranks: int, count: int, dtype: np.dtype[Any], op: str, *, root: int = 0, seed: int = 0
) -> Sequence[Array]:
    """Every rank's input."""
    return [
        make_input(r, input_elements(collective, r, nranks, count, root=root), dtype, op, nranks, seed=seed)
        for r in range(nranks)
    ]
