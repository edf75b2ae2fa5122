"""All pairs: everybody sends to everybody in one step."""

from __future__ import annotations

import collsynth as cs
from collsynth.frontend import Recording


def allgather(nranks: int) -> Recording:
    """AllGather in one step."""
    with cs.record("allgather", nranks) as p:
        for rank in range(nranks):
            own = p.chunk(rank, "input", 0)
            for peer in range(nranks):
                own.copy(peer, "output", rank)
    return p


def reduce_scatter(nranks: int) -> Recording:
    """ReduceScatter in one step: the terms arrive one after the other and are added on arrival."""
    with cs.record("reduce_scatter", nranks) as p:
        for owner in range(nranks):
            total = p.chunk(owner, "input", owner)
            for step in range(1, nranks):
                total = total.reduce(p.chunk((owner + step) % nranks, "input", owner), "output", 0)
    return p


def allreduce(nranks: int) -> Recording:
    """AllReduce in two steps: all terms of a shard to its owner's scratch, which adds them and sends the sum."""
    with cs.record("allreduce", nranks, nranks) as p:
        for owner in range(nranks):
            peers = [(owner + step) % nranks for step in range(1, nranks)]
            terms = [p.chunk(peer, "input", owner).copy(owner, "scratch", i) for i, peer in enumerate(peers)]
            total = p.chunk(owner, "input", owner)
            for term in terms:
                total = total.reduce(term, "output", owner)
            for peer in peers:
                total.copy(peer, "output", owner)
    return p


def alltoall(nranks: int) -> Recording:
    """AllToAll in one step.  In place it would overwrite what is still to be sent."""
    with cs.record("alltoall", nranks, in_place=False) as p:
        for step in range(nranks):
            for rank in range(nranks):
                peer = (rank + step) % nranks
                p.chunk(rank, "input", peer).copy(peer, "output", rank)
    return p


def alltoall_in_place(nranks: int) -> Recording:
    """AllToAll in place: what arrives waits in scratch until the slice under it has been sent."""
    with cs.record("alltoall", nranks, out_of_place=False) as p:
        arrived = [
            p.chunk(rank, "input", peer).copy(peer, "scratch", rank)
            for rank in range(nranks) for peer in range(nranks) if peer != rank
        ]  # fmt: skip
        for chunk in arrived:
            chunk.copy(chunk.rank, "output", chunk.index)
    return p
