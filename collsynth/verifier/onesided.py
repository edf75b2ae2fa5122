"""Proof of one-sided programs (MSCCL++): shape, then data and races in every mode, then the target's limits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..program import ChannelKind, Op, Program, Space, Target
from .memory import Goal, layout_of
from .onesided_graph import Graph, build_graph
from .onesided_run import Run
from .report import Finding, Severity, error


def check_one_sided(program: Program, goal: Goal | None, target: Target, first: list[Finding]) -> list[Finding]:
    """Everything that is wrong with a one-sided program.

    Args:
        program: what to prove, named as the collective that it is judged against.
        goal: what it must do (`collsynth.verifier.memory.goal_of`); None: only its shape can be looked at.
        target: whose limits to check.
        first: findings that come first.
    """
    graph = build_graph(program)
    findings = first + graph.findings
    if graph.sound and goal is not None:
        modes = [mode for mode, wanted in ((True, program.in_place), (False, program.out_of_place)) if wanted]
        for in_place in modes or [False]:
            found = _check_mode(graph, goal, in_place=in_place)
            label = "in place" if in_place else "out of place"
            findings += [replace(f, message=f"{label}: {f.message}") for f in found] if len(modes) > 1 else found
    return findings + _check_limits(graph, target)


def _check_mode(graph: Graph, goal: Goal, *, in_place: bool) -> list[Finding]:
    run = Run(graph, layout_of(graph.table.program, in_place=in_place), goal).run()
    findings = list(run.findings)
    wrong = run.wrong_outputs()
    if wrong:
        findings += run.odd_sums + wrong
    return findings + run.changed_inputs() + run.ends()


def _check_limits(graph: Graph, target: Target) -> list[Finding]:
    """Limits that can be told from the program (operations are counted where a plan is written or read)."""
    program, table, found = graph.table.program, graph.table, []
    if target.one_sided is False:
        return [error("E-LIMIT-OP", f"{target.name} runs two-sided programs only")]
    if target.root_is_zero and program.root:
        found.append(error("E-LIMIT-ROOT", f"root {program.root}; {target.name} knows root 0 only", rank=program.root))
    used: dict[tuple[int, ChannelKind], set[tuple[int, int]]] = defaultdict(set)
    for row, code in enumerate(table.op):
        op, kind = Op(code), ChannelKind(graph.kind[row])
        if kind in (ChannelKind.MEMORY, ChannelKind.PORT) and graph.sync[row] >= 0:
            used[table.tb_of[row], kind].add((graph.peer[row], graph.sync[row]))
        for what, limit, ops in (
            ("semaphore", target.max_semaphores, (Op.ACQUIRE, Op.RELEASE)),
            ("barrier", target.max_barriers, (Op.BARRIER,)),
        ):
            if limit is not None and op in ops and graph.sync[row] >= limit:
                message = f"{table.name(row)} uses {what} {graph.sync[row]}; {target.name} has {limit}"
                found.append(error(f"E-LIMIT-{what.upper()}S", message, **table.at(row)))
        if target.one_sided and op is Op.MULTICAST_REDUCE and graph.dst_space[row] == Space.LOCAL:
            message = f"{table.name(row)} reduces a group into one rank, which {target.name} does not run"
            found.append(error("E-LIMIT-OP", message, **table.at(row)))
    for (tb, kind), channels in sorted(used.items()):
        if target.max_tb_channels is not None and len(channels) > target.max_tb_channels:
            message = f"{len(channels)} {kind.name.lower()} channels; {target.name} has {target.max_tb_channels}"
            found.append(error("E-LIMIT-TB-CHANNELS", message, rank=table.tb_rank[tb], threadblock=table.tb_id[tb]))
    if target.one_sided and len(program.dep_tb):
        found.append(error("E-LIMIT-DEPS", f"dependencies between threadblocks, which {target.name} has not"))
    return [finding for finding in found if finding.severity is Severity.ERROR]
