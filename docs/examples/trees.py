"""Trees, and HiCCL's two primitives, multicast and reduction, written as functions."""

from __future__ import annotations

from collections.abc import Sequence

import collsynth as cs
from collsynth.frontend import Chunk, Recording


def binomial_allreduce(nranks: int) -> Recording:
    """AllReduce up and down a binomial tree (any number of ranks)."""
    with cs.record("allreduce", nranks, out_of_place=False) as p:
        steps = range((nranks - 1).bit_length())
        for k in steps:
            for rank in range(0, nranks - 2**k, 2 ** (k + 1)):
                p.chunk(rank, "input", 0).reduce(p.chunk(rank + 2**k, "input", 0))
        for k in reversed(steps):
            for rank in range(0, nranks - 2**k, 2 ** (k + 1)):
                p.chunk(rank, "output", 0).copy(rank + 2**k, "output", 0)
    return p


def multicast(chunk: Chunk, ranks: Sequence[int], fanout: int) -> None:
    """The chunk to the same place of `ranks`, by a tree in which each holder serves `fanout` groups."""
    size = -(-len(ranks) // fanout)
    for start in range(0, len(ranks), max(size, 1)):
        head, *rest = ranks[start : start + size]
        multicast(chunk.copy(head, chunk.buffer, chunk.index), rest, fanout)


def reduction(p: Recording, ranks: Sequence[int], index: int, fanout: int) -> Chunk:
    """The sum of the input units `index` of `ranks`, on the first of them, by a tree."""
    total = p.chunk(ranks[0], "input", index)
    size = max(1, -(-(len(ranks) - 1) // fanout))
    for start in range(1, len(ranks), size):
        total = total.reduce(reduction(p, ranks[start : start + size], index, fanout))
    return total


def composed_allreduce(nranks: int, stripes: int, fanout: int = 2) -> Recording:
    """AllReduce as HiCCL composes it: stripes with roots of their own, each a reduction and a multicast."""
    with cs.record("allreduce", nranks, stripes, out_of_place=False) as p:
        for stripe in range(stripes):
            ranks = [(stripe + i) % nranks for i in range(nranks)]
            multicast(reduction(p, ranks, stripe, fanout), ranks[1:], fanout)
    return p
