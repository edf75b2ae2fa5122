"""Rings: each rank sends to the next one only."""

from __future__ import annotations

import collsynth as cs
from collsynth.frontend import Recording


def ring_allgather(nranks: int) -> Recording:
    """AllGather: every shard goes once round."""
    with cs.record("allgather", nranks) as p:
        for owner in range(nranks):
            shard = p.chunk(owner, "input", 0).copy(owner, "output", owner)
            for step in range(1, nranks):
                shard = shard.copy((owner + step) % nranks, "output", owner)
    return p


def ring_reduce_scatter(nranks: int) -> Recording:
    """ReduceScatter: the sum of a shard travels round and ends at its owner; partial sums wait in scratch."""
    with cs.record("reduce_scatter", nranks) as p:
        for owner in range(nranks):
            total = p.chunk((owner + 1) % nranks, "input", owner)
            for step in range(2, nranks + 1):
                rank = (owner + step) % nranks
                place = ("output", 0) if rank == owner else ("scratch", owner)
                total = p.chunk(rank, "input", owner).reduce(total, *place)
    return p


def ring_allreduce(nranks: int, channels: int = 1) -> Recording:
    """AllReduce: reduce-scatter round the ring, then allgather; chunk c uses channel c % channels.

    The sum of input and what arrives goes to the output, so the input stays as it is and the algorithm
    serves calls in place and out of place.
    """
    chunks = nranks * channels
    with cs.record("allreduce", nranks, chunks) as p:
        for c in range(chunks):
            channel = c % channels
            total = p.chunk(c // channels, "input", c)
            for step in range(1, nranks):
                rank = (c // channels + step) % nranks
                total = p.chunk(rank, "input", c).reduce(total, "output", c, channel=channel)
            for step in range(nranks, 2 * nranks - 1):
                total = total.copy((c // channels + step) % nranks, "output", c, channel=channel)
    return p


def ring_allreduce_by_hand(nranks: int) -> Recording:
    """The in-place ring of MSCCLang's examples, with the threadblocks chosen by hand.

    One threadblock a rank, number 0, receives from the rank before and sends to the next.
    """
    with cs.record("allreduce", nranks, nranks, out_of_place=False) as p:
        for c in range(nranks):
            total = p.chunk(c, "input", c)
            for step in range(1, nranks):
                total = p.chunk((c + step) % nranks, "input", c).reduce(total, send_tb=0, recv_tb=0)
            for step in range(nranks, 2 * nranks - 1):
                total = total.copy((c + step) % nranks, "input", c, send_tb=0, recv_tb=0)
    return p


def broadcast_pipeline(nranks: int, chunks: int) -> Recording:
    """Broadcast along a line in pieces: every rank passes a piece on while it receives the next."""
    with cs.record("broadcast", nranks, chunks) as p:
        for c in range(chunks):
            piece = p.chunk(0, "input", c).copy(0, "output", c)
            for rank in range(1, nranks):
                piece = piece.copy(rank, "output", c)
    return p
