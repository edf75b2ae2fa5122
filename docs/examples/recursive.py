"""Recursive doubling and halving: log2 of the ranks steps, each with more (or fewer) chunks at once."""

from __future__ import annotations

import collsynth as cs
from collsynth.frontend import Recording


def doubling_allgather(nranks: int) -> Recording:
    """AllGather by recursive doubling: step k exchanges 2^k shards in one message.

    MSCCLang's version of this races when replicated: its copies of a message over several shards read
    shards that other copies wrote.
    """
    with cs.record("allgather", nranks) as p:
        for rank in range(nranks):
            p.chunk(rank, "input", 0).copy(rank, "output", rank)
        size = 1
        while size < nranks:
            held = [p.chunk(rank, "output", rank // size * size, size) for rank in range(nranks)]
            for rank in range(nranks):
                held[rank].copy(rank ^ size, "output", held[rank].index)
            size *= 2
    return p


def halving_doubling_allreduce(nranks: int) -> Recording:
    """AllReduce: reduce-scatter by recursive halving, then allgather by recursive doubling."""
    with cs.record("allreduce", nranks, nranks, out_of_place=False) as p:
        size = nranks // 2
        while size:
            sent = []
            for rank in range(nranks):  # both partners send before either is changed
                peer = rank ^ size
                sent.append(p.chunk(rank, "input", peer // size * size, size).copy(peer, "scratch", size))
            for term in sent:
                p.chunk(term.rank, "input", term.rank // size * size, size).reduce(term)
            size //= 2
        size = 1
        while size < nranks:
            held = [p.chunk(rank, "output", rank // size * size, size) for rank in range(nranks)]
            for rank in range(nranks):
                held[rank].copy(rank ^ size, "output", held[rank].index)
            size *= 2
    return p
