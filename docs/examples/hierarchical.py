"""Two levels: `nodes` machines with `gpus` ranks each; rank = node * gpus + gpu."""

from __future__ import annotations

import collsynth as cs
from collsynth.frontend import Recording


def allreduce(nodes: int, gpus: int, ways: int = 1) -> Recording:
    """AllReduce: reduce-scatter inside each node, AllReduce of each share across nodes, allgather inside.

    Args:
        nodes, gpus: the machine.
        ways: parallel parts of what crosses the network.
    """
    n = nodes * gpus
    with cs.record("allreduce", n, n, out_of_place=False) as p:
        for node in range(nodes):  # GPU g of each node sums its share, `nodes` chunks, of its neighbours' data
            for g in range(gpus):
                share = p.chunk(node * gpus + g, "input", g * nodes, nodes)
                for step in range(1, gpus):
                    peer = node * gpus + (g + step) % gpus
                    share = share.reduce(p.chunk(peer, "input", g * nodes, nodes))
        with p.parallel(ways):
            for g in range(gpus):  # a ring across the nodes for each share
                for c in range(nodes):
                    total = p.chunk(c * gpus + g, "input", g * nodes + c)
                    for step in range(1, nodes):
                        total = p.chunk((c + step) % nodes * gpus + g, "input", total.index).reduce(total)
                    for step in range(nodes, 2 * nodes - 1):
                        total = total.copy((c + step) % nodes * gpus + g, "input", total.index)
        for node in range(nodes):
            for g in range(gpus):
                share = p.chunk(node * gpus + g, "input", g * nodes, nodes)
                for step in range(1, gpus):
                    share.copy(node * gpus + (g + step) % gpus, "output", share.index)
    return p


def two_step_alltoall(nodes: int, gpus: int) -> Recording:
    """AllToAll in two steps: first to the right GPU of the own node, then one message to each other node.

    The second message carries what all GPUs of the node have for that rank, `gpus` chunks at once.
    """
    n = nodes * gpus
    with cs.record("alltoall", n, in_place=False) as p:
        for src in range(n):
            for dst in range(n):
                chunk, relay = p.chunk(src, "input", dst), src // gpus * gpus + dst % gpus
                if src // gpus == dst // gpus:
                    chunk.copy(dst, "output", src)
                else:
                    chunk.copy(relay, "scratch", dst // gpus * gpus + src % gpus)
        for relay in range(n):
            for node in range(nodes):
                if node != relay // gpus:
                    batch = p.chunk(relay, "scratch", node * gpus, gpus)
                    batch.copy(node * gpus + relay % gpus, "output", relay // gpus * gpus)
    return p


def three_step_alltoall(nodes: int, gpus: int) -> Recording:
    """AllToAll in three steps: all data for node m gather on GPU m % gpus, cross once, and spread there."""
    n = nodes * gpus
    block = gpus * gpus  # what one node has for another
    with cs.record("alltoall", n, in_place=False) as p:
        for src in range(n):
            node, g = divmod(src, gpus)
            for other in range(nodes):
                batch = p.chunk(src, "input", other * gpus, gpus)
                if other == node:
                    for chunk in batch.split(gpus):
                        chunk.copy(chunk.index, "output", src)
                else:
                    batch.copy(node * gpus + other % gpus, "scratch", other * block + g * gpus)
        for node in range(nodes):
            for other in range(nodes):
                if other != node:
                    batch = p.chunk(node * gpus + other % gpus, "scratch", other * block, block)
                    gate = other * gpus + node % gpus
                    arrived = batch.copy(gate, "scratch", (nodes + node) * block)
                    for i, chunk in enumerate(arrived.split(block)):
                        g, target = divmod(i, gpus)  # from GPU g of `node`, for GPU `target` of `other`
                        chunk.copy(other * gpus + target, "output", node * gpus + g)
    return p
