"""Flattening keeps roots, spans and link loads, and never makes trees deeper on the whole."""

from __future__ import annotations

from collections import Counter

import pytest

from collsynth.formats import load_topology
from collsynth.synth.flatten import flattened
from collsynth.synth.forest import Tree
from collsynth.synth.forests import pack_forest


def _loads(trees: list[Tree]) -> Counter[int]:
    return Counter(link for tree in trees for edge in tree.edges for link in edge.route)


def _depths(tree: Tree) -> dict[int, int]:
    depth = {tree.root: 0}
    for edge in tree.edges:
        depth[edge.child] = depth[edge.parent] + 1
    return depth


@pytest.mark.parametrize("machine", ["mesh:4x4", "dgx-v100", "dgx-a100:nodes=2"])
@pytest.mark.parametrize("side", ["reduce", "broadcast"])
def test_flattening_keeps_loads_and_shortens(machine: str, side: str) -> None:
    topology = load_topology(machine)
    forest = pack_forest(topology, "allreduce", pieces=4 * topology.nranks).forest
    units = [tree for tree in getattr(forest, side) for _ in range(tree.multiplicity)]
    flat = flattened(units, topology.nranks, work=20_000)
    assert [t.root for t in flat] == [t.root for t in units]
    assert _loads(flat) == _loads(units)
    assert all(set(_depths(t)) == set(range(topology.nranks)) and len(t.edges) == topology.nranks - 1 for t in flat)
    squares = [sum(d * d for t in trees for d in _depths(t).values()) for trees in (units, flat)]
    assert squares[1] <= squares[0]
    if machine == "mesh:4x4":
        assert max(t.height() for t in flat) < max(t.height() for t in units)
    ends = topology.link_src.tolist(), topology.link_dst.tolist()
    for tree in flat:
        for edge in tree.edges:
            first, last = (edge.child, edge.parent) if tree.reduce else (edge.parent, edge.child)
            assert ends[0][edge.route[0]] == first and ends[1][edge.route[-1]] == last
