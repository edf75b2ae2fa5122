"""Schedule to Program: the passes in their order.

1. `instances`: chunks to atoms; parallel copies.
2. `buffers`: where every value lives; messages and steps in one linear order.
3. `channels`: connections.
4. `threadblocks`: who runs what.
5. `fusion`: receive and send in one instruction, where that cannot hang.
6. `buffers` again: scratch slots with reuse; `dependencies`: waits, as few as needed.
7. `collsynth.limits`: the target's.

The fused program is made beside the plain one and kept unless the simulator finds the plain one faster.
The schedule is verified before, the program after, by the one prover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from ..collective import COLLECTIVES, Collective
from ..errors import InputError, RefusedError
from ..limits import check_limits, longest_threadblock
from ..nops import single_waits
from ..program import TARGETS, Op, Program, Protocol, Target
from ..schedule import Schedule
from ..simulator import simulate
from ..topology import Topology
from ..verifier import require_verified
from .buffers import allocate_scratch, place, restore_scratch
from .channels import assign_channels
from .dependencies import assign_dependencies, order_steps
from .fusion import deadlock
from .fusion import fuse as fuse_steps
from .instances import atoms
from .ir import Place, Plan
from .onesided import lower_onesided
from .threadblocks import assign_threadblocks

#: Largest payload of a program for which no size was asked: 4 GiB.
DEFAULT_MAX_BYTES = 1 << 32
#: How much slower than the plain program the fused one may be in the simulator.
FUSION_MAY_COST = Fraction(101, 100)
#: Payload at which the two are compared when no size was asked.
_USUAL_BYTES = 64 << 20
_FORWARDING = [int(op) for op in (Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)]


def lower(
    schedule: Schedule,
    *,
    target: Target = TARGETS["any"],
    in_place: bool = True,
    out_of_place: bool = True,
    instances: int = 1,
    protocol: Protocol = Protocol.SIMPLE,
    size: int | None = None,
    name: str | None = None,
    max_threadblocks: int | None = None,
    max_channels: int | None = None,
    fuse: bool = True,
) -> Program:
    """The program that runs a schedule on a target.

    Args:
        schedule: explicit or in orbit form (it is written out).
        target: whose limits and instruction set to keep.
        in_place, out_of_place: modes in which the program must be right; both by default.
        instances: parallel copies, each on an n-th of every chunk, on channels of its own.
        protocol: wire protocol; its FIFO depth decides what may be fused.
        size: payload in bytes that the program is meant for; it is to be selected from 0 to twice that
            (None: to `DEFAULT_MAX_BYTES`).
        name: label; default: the collective and the schedule's method.
        max_threadblocks, max_channels: the user's own limits for one rank.
        fuse: whether to use fused instructions where they cost no time (False: never).

    For a one-sided target (MSCCL++) see `onesided.lower_onesided`: one mode, protocol Simple.

    Returns:
        A verified program.

    Raises:
        RefusedError: a limit would be broken; the message has the figure.
        VerificationError: the schedule is wrong.
        InputError: an argument is out of range.
    """
    if instances < 1:
        raise InputError(f"{instances} instances", where="--instances", expected="1 or more")
    if not (in_place or out_of_place):
        raise InputError("neither in place nor out of place", expected="at least one mode")
    check_request(schedule.collective, target, max_threadblocks, max_channels)
    if target.one_sided:
        if protocol is not Protocol.SIMPLE:
            raise RefusedError(f"target {target.name}: puts and signals are of protocol Simple, not {protocol.value}")
        if in_place and out_of_place:
            raise RefusedError(f"target {target.name}: a program serves one mode, in place or out of place")
        return lower_onesided(
            schedule, target=target, in_place=in_place, instances=instances, name=name, size=size,
            max_threadblocks=max_threadblocks, max_channels=max_channels,
        )  # fmt: skip
    require_verified(schedule)
    explicit = schedule.expand()

    def build() -> Plan:
        return place(
            explicit, atoms(explicit.collective, instances, target.max_count), instances, in_place=in_place,
            out_of_place=out_of_place, fused_receive=target.fused_receive, max_count=target.max_count,
        )  # fmt: skip

    return lower_plan(
        build, target=target, protocol=protocol, size=size,
        name=name or f"{explicit.collective.name} {schedule.method}".strip(),
        max_threadblocks=max_threadblocks, max_channels=max_channels, fuse=fuse, topology=explicit.topology,
    )  # fmt: skip


def check_request(
    collective: Collective, target: Target, max_threadblocks: int | None = None, max_channels: int | None = None
) -> None:
    """Do nothing if the limits make sense and the target knows such a collective.

    Raises:
        InputError: a limit is below 1.
        RefusedError: the target cannot express the root.
    """
    for label, limit in (("--max-threadblocks", max_threadblocks), ("--max-channels", max_channels)):
        if limit is not None and limit < 1:
            raise InputError(f"{limit} is too few", where=label, expected="1 or more")
    if target.root_is_zero and collective.root not in (None, 0):
        raise RefusedError(f"target {target.name} can only mean root 0, not {collective.root}")


def lower_plan(
    build: Callable[[], Plan], *, target: Target, protocol: Protocol = Protocol.SIMPLE, size: int | None = None,
    name: str = "", max_threadblocks: int | None = None, max_channels: int | None = None, fuse: bool = True,
    topology: Topology | None = None,
) -> Program:  # fmt: skip
    """Passes 3 to 7, from messages and steps in linear order to a verified program.

    Args:
        build: makes the plan, a new one at each call (passes write into it).
        target, protocol, size, max_threadblocks, max_channels, fuse: as `lower`.
        name: label.
        topology: machine to compare the fused and the plain program on; None: fused wins.

    Raises:
        RefusedError: a limit would be broken; the message has the figure.
        VerificationError: the plan is wrong.
    """
    collective: Collective | None = None

    def variant(fused: bool) -> Program:
        nonlocal collective
        most = target.max_steps
        while True:
            plan = build()
            collective = plan.collective
            nchannels = assign_channels(plan, target, max_messages=most, max_channels=max_channels)
            assign_threadblocks(
                plan, target, max_messages=most, max_threadblocks=max_threadblocks, fuse=fused
            )  # fmt: skip
            program = _finish(plan, target, protocol, fused, name, nchannels, size)
            steps = longest_threadblock(program)[0]
            if target.max_steps is None or most is None or steps <= target.max_steps:
                break
            # nops and local steps came on top of the messages: fewer messages a threadblock
            most = min(most - 1, most * target.max_steps // steps)
            if most < 1:
                break  # `check_limits` says by how much
        if not target.multiple_dependencies:
            program = single_waits(program)
        check_limits(program, target)
        return program

    program = _choose(variant, topology, size) if fuse and target.fused_receive else variant(False)
    # what a program without a name for its collective must do is only known here
    require_verified(program, target=target, collective=None if program.collective else collective)
    return program


def _choose(variant: Callable[[bool], Program], topology: Topology | None, size: int | None) -> Program:
    """The fused program, or the plain one where that is faster by more than `FUSION_MAY_COST`.

    Fused steps save a trip through memory, which the simulator does not charge; but a threadblock that
    receives and sends cannot do both at once, which it does.
    """
    try:
        fused = variant(True)
    except RefusedError:
        return variant(False)
    if not (np.isin(fused.op, _FORWARDING)).any():
        # threadblocks that share for fusion and then fuse nothing only wait for each other
        return variant(False)
    if topology is None or topology.unknown_speeds():
        return fused
    try:
        plain = variant(False)
    except RefusedError:
        return fused
    payload = size or _USUAL_BYTES
    times = [simulate(program, topology, size=payload).time for program in (fused, plain)]
    return fused if times[0] <= times[1] * FUSION_MAY_COST else plain


def _finish(
    plan: Plan, target: Target, protocol: Protocol, fused: bool, name: str, nchannels: int, size: int | None
) -> Program:
    """Fusion, scratch and dependencies; the Program with several waits a step."""
    depth = protocol.fifo_depth
    plan.steps = [order_steps(blocks) for blocks in plan.blocks]
    if fused:
        fuse_steps(plan, depth)
    virtual = allocate_scratch(plan)
    assign_dependencies(plan)
    if fused and deadlock(plan, depth):
        restore_scratch(plan, virtual)
        allocate_scratch(plan, reuse=False)
        assign_dependencies(plan)
    window = DEFAULT_MAX_BYTES if size is None else max(2 * size, 1)
    return replace(_program(plan, name, nchannels, protocol), max_bytes=window)


def _program(plan: Plan, name: str, nchannels: int, protocol: Protocol) -> Program:
    """The columns of the plan's threadblocks."""
    blocks = [block for of_rank in plan.blocks for block in of_rank]
    steps = [step for block in blocks for step in block.steps]
    depends = [(other.threadblock, other.index) for step in steps for other in step.depends]

    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def buffers(places: list[Place | None]) -> np.ndarray:
        return column([-1 if p is None else int(p[0]) for p in places])

    def units(places: list[Place | None]) -> np.ndarray:
        return column([-1 if p is None else p[1] for p in places])

    def peers(values: list[int | None]) -> np.ndarray:
        return column([-1 if v is None else v for v in values])

    sources, targets = [step.src for step in steps], [step.dst for step in steps]
    zeros, none = np.zeros(len(steps), dtype=np.int64), np.full(len(steps), -1, dtype=np.int64)
    collective = plan.collective
    return Program(
        name=name, collective=collective.name if collective.name in COLLECTIVES else "",
        nranks=collective.nranks, root=collective.root,
        nunits=collective.payload_units * plan.instances, nchannels=nchannels, protocol=protocol,
        in_place=plan.in_place, out_of_place=plan.out_of_place, min_bytes=None, max_bytes=None,
        input_units=collective.input_units * plan.instances, output_units=collective.output_units * plan.instances,
        scratch_units=column(plan.scratch_units),
        tb_rank=column([b.rank for b in blocks]),
        tb_id=column([number for of_rank in plan.blocks for number in range(len(of_rank))]),
        tb_send=peers([b.send for b in blocks]), tb_recv=peers([b.recv for b in blocks]),
        tb_channel=column([b.channel for b in blocks]),
        tb_ptr=column([0, *accumulate(len(b.steps) for b in blocks)]),
        op=column([int(step.op) for step in steps]),
        src_space=zeros, src_buffer=buffers(sources), src_index=units(sources),
        dst_space=zeros.copy(), dst_buffer=buffers(targets), dst_index=units(targets),
        count=column([step.count for step in steps]), peer=none, sync=none.copy(),
        dep_ptr=column([0, *accumulate(len(step.depends) for step in steps)]),
        dep_tb=column([tb for tb, _ in depends]), dep_step=column([index for _, index in depends]),
    )  # fmt: skip
