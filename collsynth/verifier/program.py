"""Proof of a program: shape, then data, then races, then the target's limits.

The data can only be followed when the shape is sound (every message has its counterpart, every wait an
end, no circle); otherwise the findings about the shape are all there is to say about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collective import Collective
from ..errors import InputError
from ..program import READING, WRITING, Buffer, Program, Target
from .blame import Blame
from .expressions import moves_of
from .flow import flow_of
from .limits import check_limits
from .memory import Goal, Layout, collective_of, fits, goal_of, layout_of
from .onesided import check_one_sided
from .order import free_of_races
from .quick import Drift, prove
from .races import find_races, vector_clocks
from .report import Finding, Report, Severity, error, make_report, warning
from .structure import Structure, Table, build_structure
from .symbolic import Execution

_READING = frozenset(int(o) for o in READING)
_WRITING = frozenset(int(o) for o in WRITING)


def verify_program(
    program: Program, target: Target, collective: Collective | str | None, source: Any, content_hash: str,
    deterministic: bool = False,
) -> Report:  # fmt: skip
    """The verdict on a program (arguments as `collsynth.verifier.verify`)."""
    flags = None if source is None or source.flags is None else np.asarray(source.flags, dtype=bool)
    judged, asked, problem = _judged(program, collective)
    if program.one_sided or target.one_sided:
        judgeable = problem is None or problem.code == "E-NOT-JUDGED"
        goal = goal_of(judged, asked) if judgeable else None
        found = check_one_sided(judged, goal, target, [] if problem is None else [problem])
        if source is not None:
            found = [_located(finding, source) for finding in (*found, *_syntax(source, target))]
        name = asked.name if asked is not None else judged.collective
        return make_report(_distinct(found), content_hash, name, program.nranks)
    proof = None if asked is None or problem is not None else prove(judged, asked, flags, _modes(judged))
    table = None
    if proof is not None:
        findings = [_drifting(drift, len(_modes(judged)), deterministic) for drift in proof.drift]
    else:
        structure = build_structure(program, None if flags is None else flags.tolist())
        table = structure.table
        findings = list(structure.findings)
        ranges = list(_check_ranges(table, judged))
        findings += ranges
        if problem is not None:
            findings.append(problem)
        if structure.sound and not ranges and (problem is None or problem.code == "E-NOT-JUDGED"):
            findings += _check_data(structure, judged, asked, flags)
    findings += check_limits(program, table, target)
    if source is not None:
        findings += _syntax(source, target)
        findings = [_located(finding, source) for finding in findings]
    name = asked.name if asked is not None else judged.collective
    depth = None if proof is None else proof.depth
    return make_report(_distinct(findings), content_hash, name, program.nranks, depth)


def _drifting(drift: Drift, nmodes: int, deterministic: bool) -> Finding:
    label = f"{'in place' if drift.in_place else 'out of place'}: " if nmodes > 1 else ""
    message = (
        f"{label}ranks {drift.one} and {drift.two} add the terms of unit {drift.place} in different trees, and so "
        f"for {drift.places} of {drift.total} units: replicas may differ in the last bits"
    )
    return (error if deterministic else warning)("W-REPLICA-DRIFT", message, rank=drift.two)


def _modes(program: Program) -> list[bool]:
    """In place (True), out of place (False): the modes to judge."""
    return [mode for mode, wanted in ((True, program.in_place), (False, program.out_of_place)) if wanted] or [False]


def _judged(program: Program, collective: Collective | str | None) -> tuple[Program, Collective | None, Finding | None]:
    """The program as the collective that is to be judged, that collective, and what does not fit."""
    if isinstance(collective, Collective):
        reason = fits(program, collective)
        if reason is not None:
            return program, None, error("E-COLLECTIVE", reason)
        return replace(program, collective=collective.name, root=collective.root), collective, None
    named = program
    if collective is not None and collective != program.collective:
        rooted = collective in ("broadcast", "reduce", "gather", "scatter")
        named = replace(program, collective=collective, root=(program.root or 0) if rooted else None)
    try:
        asked = collective_of(named)
    except InputError as misfit:
        return named, None, error("E-SIZE", misfit.what)
    if asked is None:
        message = (
            "the file does not say which collective it is (custom), so the result cannot be judged; give it with -c"
        )
        return named, None, error("E-NOT-JUDGED", message)
    if named is not program:
        # a custom program's buffers are as large as it says; the collective's are what a call brings
        named = replace(named, input_units=asked.input_units, output_units=asked.output_units)
    reason = fits(named, asked)
    return named, asked, None if reason is None else error("E-SIZE", reason)


def _check_ranges(table: Table, program: Program) -> Iterator[Finding]:
    """Operands that leave their buffer, whose sizes are those of the program as it is judged."""
    sizes = [
        column.tolist() for column in (program.input_units, program.output_units, program.scratch_units)
    ]  # fmt: skip
    for row, op in enumerate(table.op):
        rank, count = table.rank(row), table.count[row]
        for used, label, buffer, index in (
            (op in _READING, "source", table.src_buffer[row], table.src_index[row]),
            (op in _WRITING, "destination", table.dst_buffer[row], table.dst_index[row]),
        ):
            if not used:
                continue
            if buffer < 0:
                yield error("E-RANGE", f"{table.name(row)} has no {label} operand", **table.at(row))
            elif index < 0 or index + count > sizes[buffer][rank]:
                name = Buffer(buffer).name.lower()
                message = f"{table.name(row)}: its {label} is {name}[{index}..{index + count - 1}]"
                yield error("E-RANGE", f"{message}, and {name} has {sizes[buffer][rank]} units", **table.at(row))


def _check_data(
    structure: Structure, program: Program, collective: Collective | None, flags: NDArray[np.bool_] | None
) -> list[Finding]:
    """Races, undefined reads, result and input, in every mode that the program declares."""
    modes, goal, flow = _modes(program), goal_of(program, collective), flow_of(program, flags)
    clocks: list[list[int]] | None = None
    findings: list[Finding] = []
    for in_place in modes:
        layout = layout_of(program, in_place=in_place)
        found: list[Finding] = []
        racing: set[int] = set()
        if flow is None or not free_of_races(flow, moves_of(flow, layout)):
            clocks = vector_clocks(structure) if clocks is None else clocks
            found, racing = find_races(structure, layout, clocks)
        found += _check_result(structure, layout, goal, racing)
        label = "in place" if in_place else "out of place"
        findings += [replace(f, message=f"{label}: {f.message}") for f in found] if len(modes) > 1 else found
    return findings


def _check_result(structure: Structure, layout: Layout, goal: Goal, racing: set[int]) -> list[Finding]:
    """Undefined reads, wrong results and lost input, as far as no race has a say in them.

    Data that a race touches is what one interleaving made of it: there the race is the finding.
    """
    execution = Execution(structure, layout, goal, trace=bool(racing)).run()
    lucky = execution.touched_by(racing) if racing else set()
    findings = list(execution.undefined)
    wrong = _wrong_outputs(execution)
    if lucky:
        assert execution.trace is not None
        writer, stride = execution.trace.writer, execution.trace.stride
        first = [bases[Buffer.OUTPUT] for bases in layout.base]
        wrong = [(rank, unit) for rank, unit in wrong if writer[rank][first[rank] + unit] // stride not in lucky]
    if wrong:
        traced = execution if racing else Execution(structure, layout, goal, trace=True).run()
        findings += traced.odd_sums
        findings += Blame(traced).findings(wrong)
    for rank, keeps in enumerate(layout.keeps_input):
        if keeps:
            findings += _check_input(execution, rank)
    places = {tuple(execution.table.at(row).values()) for row in lucky}
    return [f for f in findings if (f.rank, f.threadblock, f.step) not in places]


def _wrong_outputs(execution: Execution) -> list[tuple[int, int]]:
    """(rank, unit) of every output that does not hold what is wanted."""
    goal, wrong = execution.goal, []
    for rank, wanted in enumerate(goal.want):
        first = execution.layout.base[rank][Buffer.OUTPUT]
        held = execution.cells[rank][first : first + len(wanted)]
        if held == wanted:
            continue
        for unit, (value, want) in enumerate(zip(held, wanted, strict=True)):
            if want is not None and value != want and value not in goal.others.get((rank, unit), ()):
                wrong.append((rank, unit))
    return wrong


def _check_input(execution: Execution, rank: int) -> list[Finding]:
    """Input units that changed, each with the last step that wrote there."""
    start = execution.goal.start[rank]
    first = execution.layout.base[rank][Buffer.INPUT]
    held = execution.cells[rank][first : first + len(start)]
    changed = {
        u for u, (now, before) in enumerate(zip(held, start, strict=True)) if before is not None and now != before
    }
    findings, table = [], execution.table
    for row in reversed(execution.structure.order) if changed else ():
        if table.rank(row) == rank and table.op[row] in _WRITING and table.dst_buffer[row] == Buffer.INPUT:
            begin = table.dst_index[row]
            hit = changed & set(range(begin, begin + table.count[row]))
            if hit:
                changed -= hit
                message = f"{table.name(row)} writes input[{min(hit)}], which must stay as it is out of place"
                findings.append(error("E-CLOBBER", message, **table.at(row)))
    return findings


def _syntax(source: Any, target: Target) -> Iterator[Finding]:
    """What the target's parser objects to in the text (notes without a target hold for every reader)."""
    for note in source.syntax:
        if not note.targets or target.name in note.targets:
            where = f"{source.path}:{note.line}"
            severity = Severity.ERROR if note.severity == "error" else Severity.WARNING
            yield Finding(note.code, severity, note.message, note.rank, note.threadblock, note.step, where)


def _located(finding: Finding, source: Any) -> Finding:
    if finding.where is not None:
        return finding
    return replace(finding, where=source.where(finding.rank, finding.threadblock, finding.step))


def _distinct(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))
