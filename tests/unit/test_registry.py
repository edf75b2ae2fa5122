"""Finding what people add: lazy built-ins, plug-ins by entry points, names that clash."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from collsynth import registry
from collsynth.errors import InputError
from collsynth.formats import load_topology
from collsynth.parameters import Count, arguments, usage
from collsynth.topology import Link, Topology, Vertex


def star(leaves: Count, centre: bool = False) -> Topology:
    """`star:N`: what a plug-in would bring."""
    vertices = [Vertex(f"gpu:{rank}", rank=rank) for rank in range(leaves + 1)]
    both = [pair for leaf in range(1, leaves + 1) for pair in ((0, leaf), (leaf, 0))]
    return Topology.build(f"star:{leaves}", vertices, [Link(a, b, 10**9) for a, b in both])


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs entry points (name, value) of the topologies group."""

    def install(*points: tuple[str, str]) -> None:
        found = [EntryPoint(name, value, "collsynth.topologies") for name, value in points]
        monkeypatch.setattr(registry, "entry_points", lambda group: found if group == "collsynth.topologies" else [])

    return install


@pytest.mark.parametrize("group", ["topologies", "algorithms"])
def test_every_built_in_loads(group: str) -> None:
    for name in registry.names(group):
        assert callable(registry.load(group, name)), name


def test_a_backend_row_is_a_module() -> None:
    assert isinstance(registry.load("backends", "numpy"), ModuleType)
    assert list(registry.BUILT_IN["backends"]) == ["numpy", "mpi", "cupy", "nccl"]


def test_a_plug_in_is_found_by_name_with_parameters(plug_in: Any) -> None:
    plug_in(("star", f"{__name__}:star"))
    assert load_topology("star:3").nranks == 4
    assert registry.names("topologies")[-1] == "star"


def test_two_entries_of_one_name_are_an_error_that_names_both(plug_in: Any) -> None:
    plug_in(("ring", f"{__name__}:star"))
    with pytest.raises(InputError, match=r"collsynth\.topologies\.regular:ring of collsynth and .*:star of"):
        registry.load("topologies", "torus")
    plug_in(("star", f"{__name__}:star"), ("star", "other:star"))
    with pytest.raises(InputError, match=r"two topologies are called 'star'"):
        registry.entries("topologies")


def test_one_entry_seen_twice_is_one(plug_in: Any) -> None:
    plug_in(("star", f"{__name__}:star"), ("star", f"{__name__}:star"))
    assert registry.names("topologies").count("star") == 1


def test_a_broken_plug_in_is_named(plug_in: Any) -> None:
    plug_in(("broken", "no_such_module:thing"))
    with pytest.raises(InputError, match=r"'broken' of .* cannot be loaded from no_such_module:thing"):
        load_topology("broken")
    assert load_topology("ring:3").nranks == 3


def test_an_unknown_name_lists_all_and_the_closest() -> None:
    with pytest.raises(InputError, match=r"'nunpy' is not in backends; expected one of numpy, mpi.*; try numpy"):
        registry.load("backends", "nunpy")


def test_arguments_come_from_the_signature() -> None:
    assert arguments("star:3:centre", star) == {"leaves": 3, "centre": True}
    assert arguments("star:leaves=3", star) == {"leaves": 3}
    assert usage("star", star) == "star:LEAVES[:centre]"
