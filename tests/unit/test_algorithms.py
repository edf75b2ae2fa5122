"""Closed forms: right on every machine of the bank, and of the steps and bytes that they promise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import cases
import pytest
from collsynth.algorithms import binomial, direct, halving_doubling, ring

from collsynth import collective as collectives
from collsynth.errors import RefusedError
from collsynth.registry import load, names
from collsynth.simulator import makespan, rate, steps
from collsynth.topology import Topology
from collsynth.verifier import verify

FORMS: dict[str, Any] = {
    "ring": ring, "direct": direct, "halving_doubling": halving_doubling, "binomial": binomial,
}  # fmt: skip


def _id(value: object) -> str:
    return value.name if isinstance(value, Topology) else str(value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("machine", "name"), list(cases.cases()), ids=_id)
def test_accepted_cases_verify(form: str, machine: Topology, name: str) -> None:
    module = FORMS[form]
    if module.accepts(machine, name) is not None:
        with pytest.raises(RefusedError):
            getattr(module, form)(machine, collectives.make(name, machine.nranks))
        return
    for pieces in (1, 3):
        schedule = getattr(module, form)(machine, collectives.make(name, machine.nranks, pieces))
        assert verify(schedule).ok, verify(schedule).findings[:3]


@pytest.mark.parametrize("options", [{"both": True}, {"channels": 2}, {"channels": 3, "both": True}])
@pytest.mark.parametrize("name", ring.COLLECTIVES)
def test_ring_variants_verify(options: dict[str, Any], name: str) -> None:
    machine = cases.boxes(2, 3)
    schedule = ring.ring(machine, collectives.make(name, 6, 4), **options)
    assert verify(schedule).ok, verify(schedule).findings[:3]


def test_every_registered_form_loads() -> None:
    assert names("algorithms") == ["direct", "ring", "halving-doubling", "binomial"]
    assert all(callable(load("algorithms", name)) for name in names("algorithms"))


def test_ring_is_optimal_on_a_ring_both_ways() -> None:
    machine = cases.direct("ring6", 6, cases.both_ways({(i, (i + 1) % 6): 50 for i in range(6)}))
    one = ring.ring(machine, collectives.allgather(6, 2))
    two = ring.ring(machine, collectives.allgather(6, 2), both=True)
    assert steps(one) == 5
    assert makespan(one) == Fraction(5, 6 * 50 * 10**9)
    assert makespan(two) == Fraction(5, 12 * 50 * 10**9)


def test_ring_finds_the_wires() -> None:
    """Ranks sit on the ring in a scrambled order; only the wires tell."""
    order = [0, 3, 1, 5, 2, 4]
    machine = cases.direct(
        "scrambled", 6, {(order[i], order[(i + 1) % 6]): 50 for i in range(6)} | {(0, 1): 1, (1, 2): 1, (2, 3): 1}
    )
    schedule = ring.ring(machine, collectives.allgather(6))
    assert rate(schedule) == Fraction(5, 6 * 50 * 10**9)


def test_ring_channels_spread_over_rails() -> None:
    machine = cases.boxes(2, 3)
    one = ring.ring(machine, collectives.allreduce(6, 3))
    three = ring.ring(machine, collectives.allreduce(6, 3), channels=3)
    assert rate(three) * 3 == rate(one)


def test_direct_is_optimal_on_a_switch() -> None:
    for name, factor in (("allgather", 1), ("reducescatter", 1), ("alltoall", 1), ("allreduce", 2)):
        schedule = direct.direct(cases.switch(4), collectives.make(name, 4))
        assert makespan(schedule) == Fraction(3 * factor, 4 * 100 * 10**9)
        assert steps(schedule) == 3 * factor


def test_halving_doubling_steps() -> None:
    machine = next(m for m in cases.machines() if m.name == "cube8")
    assert steps(halving_doubling.halving_doubling(machine, collectives.allgather(8))) == 3
    assert steps(halving_doubling.halving_doubling(machine, collectives.allreduce(8))) == 6


def test_binomial_steps() -> None:
    schedule = binomial.binomial(cases.switch(5, capacity=60), collectives.broadcast(5, 1, root=3))
    assert steps(schedule) == 3
    assert verify(schedule).ok
