"""Pass 6: the fewest waits that order all conflicting accesses of a rank.

Two steps of a rank conflict when they touch the same memory (in place: input and output overlap) and
one writes it.  Conflicting steps of one threadblock are ordered by it; those of two need a wait of the
later for the earlier one.  A wait is dropped when program order and the other waits imply it (vector
clocks).  Order that runs through other ranks' messages is never relied on: every conflict is ordered
within its rank.
"""

from __future__ import annotations

from .ir import Aliases, Block, Plan, Step


def order_steps(blocks: list[Block]) -> list[Step]:
    """The steps of a rank in linear order, with `threadblock` and `index` set."""
    for number, block in enumerate(blocks):
        for index, step in enumerate(block.steps):
            step.threadblock, step.index = number, index
    return sorted((step for block in blocks for step in block.steps), key=lambda step: step.order)


def conflicts(steps: list[Step], aliases: Aliases) -> list[list[Step]]:
    """For each step (in linear order) the earlier steps that it conflicts with, last ones only."""
    writer: dict[tuple[int, int], Step] = {}
    readers: dict[tuple[int, int], list[Step]] = {}
    result: list[list[Step]] = []
    for step in steps:
        found: dict[Step, None] = {}
        if step.src is not None:
            memory, unit = aliases.address(step.rank, step.src)
            for cell in range(unit, unit + step.count):
                before = writer.get((memory, cell))
                if before is not None:
                    found[before] = None
                readers.setdefault((memory, cell), []).append(step)
        if step.dst is not None:
            memory, unit = aliases.address(step.rank, step.dst)
            for cell in range(unit, unit + step.count):
                key = (memory, cell)
                before = writer.get(key)
                if before is not None:
                    found[before] = None
                for reader in readers.pop(key, ()):
                    found[reader] = None
                writer[key] = step
        found.pop(step, None)
        result.append(list(found))
    return result


def assign_dependencies(plan: Plan) -> None:
    """Set `Step.depends` of every step, minimal (`Step.threadblock` and `index` too)."""
    aliases = Aliases(plan.collective, plan.instances, plan.in_place)
    for blocks in plan.blocks:
        steps = order_steps(blocks)
        clocks: list[list[int]] = [[-1] * len(blocks) for _ in blocks]  # of each block's latest step
        clock_of: dict[Step, list[int]] = {}
        for step, earlier in zip(steps, conflicts(steps, aliases), strict=True):
            clock = clocks[step.threadblock]
            step.depends = []
            # latest first: it may imply the others
            for other in sorted(earlier, key=lambda s: -s.order):
                if other.threadblock == step.threadblock or clock[other.threadblock] >= other.index:
                    continue
                step.depends.append(other)
                clock = [max(a, b) for a, b in zip(clock, clock_of[other], strict=True)]
            if clock is clocks[step.threadblock]:
                clock = clock.copy()
            clock[step.threadblock] = step.index
            clocks[step.threadblock] = clock_of[step] = clock
            step.depends.sort(key=lambda s: (s.threadblock, s.index))
