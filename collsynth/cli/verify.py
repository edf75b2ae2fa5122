"""`collsynth verify`: prove programs and schedules."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

from ..errors import CollsynthError, InputError
from ..formats.files import check_writable, write_text_atomically
from ..program import TARGETS
from .common import force_option, json_option, print_json
from .verify_reports import junit_text, sarif_text

#: Findings of one file that the text output shows.
_SHOWN = 20
_TRACE = re.compile(r"(.+)\.[0-9]+\.et")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-c", "--collective", metavar="COLL", help="Judge programs against this collective.")
@click.option(
    "--target", type=click.Choice(list(TARGETS)), default="any", show_default=True,
    help="Also check the limits and the parser's rules of this runtime.",
)  # fmt: skip
@click.option("--deterministic", is_flag=True, help="Replicas of a sum that may differ in the last bits are an error.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that verify.")
@click.option("-a", "--all", "show_all", is_flag=True, help=f"Print every finding, not the first {_SHOWN} of a file.")
@click.option("--junit", metavar="OUT", help="Also write the verdicts as JUnit XML.")
@click.option("--sarif", metavar="OUT", help="Also write the findings as SARIF 2.1.0.")
@force_option
@json_option
def verify(
    files: tuple[str, ...], collective: str | None, target: str, deterministic: bool, jobs: int, show_all: bool,
    junit: str | None, sarif: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Prove programs (MSCCL XML, MSCCL++ plans, .prog), schedules (.sched) and Chakra traces (PREFIX.0.et).

    What is proven: data, reductions, races, deadlock, limits.  A FILE may be a directory (all files in it,
    traces of one prefix as one) or - for standard input.  Exit code 0: every file is right; 1: some file is
    wrong, or cannot be judged because its collective is unknown and -c is not given; 2: some file cannot
    be read.
    """
    if collective is not None:
        from ..collective import canonical_name

        collective = canonical_name(collective)
    for out in (junit, sarif):
        if out is not None and out != "-":
            check_writable(out, force=force)
    if [junit, sarif].count("-") + as_json > 1:
        raise InputError("standard output can take one document", where="--junit, --sarif, --json", expected="a file")
    paths = [path for name in files for path in _expand(name)]
    tasks = [(path, collective, target, deterministic) for path in paths]
    if jobs > 1 and len(tasks) > 1:
        with ProcessPoolExecutor(min(jobs, len(tasks))) as pool:
            results = list(pool.map(_verify_file, tasks, chunksize=max(1, len(tasks) // (8 * jobs))))
    else:
        results = [_verify_file(task) for task in tasks]
    if as_json:
        print_json([{k: v for k, v in result.items() if not k.startswith("_")} for result in results])
    elif "-" not in (junit, sarif):
        for result in results:
            _print(result, show_all)
    for out, text_of in ((junit, junit_text), (sarif, sarif_text)):
        if out == "-":
            click.echo(text_of(results), nl=False)
        elif out is not None:
            write_text_atomically(out, text_of(results), force=force)
    code = max((result["_code"] for result in results), default=0)
    click.get_current_context().exit(code)


def _expand(name: str) -> list[str]:
    """The files that an argument means; traces of one prefix are named by their first file."""
    path = Path(name)
    if name in ("-", "") or not path.is_dir():  # an empty name would mean this folder
        return [name]
    inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not inside:
        raise InputError("the directory has no files", where=name, expected="MSCCL XML, .et, .sched or .prog files")
    first: dict[str, str] = {}  # prefix of traces -> the file that stands for them
    for file in inside:
        match = _TRACE.fullmatch(str(file))
        if match:
            first.setdefault(match[1], str(file))
    beside = {f"{prefix}.system.json" for prefix in first}  # ASTRA-sim's switch that uses the traces
    named = set(first.values())
    return [str(p) for p in inside if str(p) in named or not (_TRACE.fullmatch(str(p)) or str(p) in beside)]


def _verify_file(task: tuple[str, str | None, str, bool]) -> dict[str, Any]:
    """One file's entry in the list; keys that begin with _ are for this module."""
    path, collective, target, deterministic = task
    try:
        if _TRACE.fullmatch(path):
            return _judge_trace(path, collective, target, deterministic)
        kind, obj, source = _read(path)
        return _entry_of(path, kind, obj, _prove(obj, collective, target, deterministic, source), target, source)
    except (CollsynthError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{path}: {error.strerror or error}"
        finding = _entry("E-READ", "error", text)
        return {"file": path, "format": None, "ok": False, "verdict": "UNREADABLE", "race": False, "collective": None,
                "nranks": None, "in_place": None, "findings": [finding], "_code": 2, "_lines": [text]}  # fmt: skip


def _prove(obj: Any, collective: str | None, target: str, deterministic: bool, source: Any = None) -> Any:
    from ..verifier import verify as prove

    return prove(obj, target=TARGETS[target], collective=collective, source=source, deterministic=deterministic)


def _entry_of(path: str, kind: str, obj: Any, report: Any, target: str, source: Any = None) -> dict[str, Any]:
    from ..program import Program

    program = obj if isinstance(obj, Program) else None
    findings = [
        _entry(f.code, f.severity.value, f.message, f.rank, f.threadblock, f.step, f.where) for f in report.findings
    ]
    entry = {
        "file": path, "format": kind, "ok": report.ok, "verdict": report.verdict, "race": report.race,
        "collective": report.collective or "custom", "nranks": report.nranks,
        "in_place": None if program is None else program.in_place,
        "out_of_place": None if program is None else program.out_of_place,
        "target": target, "stamp": report.stamp, "reduction_depth": report.reduction_depth, "findings": findings,
        "_code": 0 if report.ok else 1, "_lines": [str(f) for f in report.findings],
    }  # fmt: skip
    if kind == "msccl-xml":
        from ..verifier import accepted_by

        entry["accepted_by"] = list(accepted_by(obj, source))
    return entry


def _judge_trace(path: str, collective: str | None, target: str, deterministic: bool) -> dict[str, Any]:
    """Chakra traces: what carries messages first; then, where the trace holds it, the program that it came from."""
    from dataclasses import replace

    from ..formats import chakra_trace
    from ..verifier import Finding, Severity
    from ..verifier.report import make_report

    trace = chakra_trace.read(path)
    nodes = [{node.id: node for node in rank} for rank in trace.ranks]
    found: list[Finding] = []
    for fault in chakra_trace.faults(trace.ranks):
        severity = Severity.ERROR if fault.is_error else Severity.WARNING
        where = f"{trace.prefix}.{fault.rank}.et"
        if fault.node is not None:
            where = trace.where(fault.rank, nodes[fault.rank][fault.node])
        found.append(Finding(fault.code, severity, fault.message, rank=fault.rank, where=where))
    program, reason = None, "the trace does not carry the program that it was made from"
    if not any(f.severity is Severity.ERROR for f in found):
        try:
            kept = chakra_trace.recovered(trace)
            program = None if kept is None else kept.program
        except CollsynthError as error:
            reason = str(error)
    first = f"{trace.prefix}.0.et"
    if program is not None:
        report = _prove(program, collective, target, deterministic)
        located = [
            replace(f, where=first if f.rank is None else f"{trace.prefix}.{f.rank}.et") for f in report.findings
        ]
        report = replace(report, findings=(*located, *found))
        return _entry_of(path, "chakra", program, report, target)
    if not any(f.severity is Severity.ERROR for f in found):
        found.append(
            Finding("W-TRANSPORT-ONLY", Severity.WARNING, f"only the transport is proven: {reason}", where=first)
        )
        if collective is not None:
            message = f"it cannot be told whether this is {collective}: {reason}"
            found.append(Finding("E-NOT-JUDGED", Severity.ERROR, message, where=first))
    report = make_report(found, "", collective or "", trace.nranks)
    return _entry_of(path, "chakra", trace, replace(report, stamp=None), target)


def _entry(
    code: str, severity: str, message: str, rank: int | None = None, threadblock: int | None = None,
    step: int | None = None, where: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "code": code, "severity": severity, "rank": rank, "threadblock": threadblock, "step": step,
        "message": message, "where": where,
    }  # fmt: skip


def _read(path: str) -> tuple[str, Any, Any]:
    """(format, schedule or program, source text of a program)."""
    from ..formats import msccl_xml, mscclpp, parse_topology
    from ..formats.files import read_bytes
    from ..program import Program

    data = read_bytes(path)
    label = "<stdin>" if path == "-" else path
    if msccl_xml.looks_like(data):
        source = msccl_xml.parse(data, label)
        return "msccl-xml", source.program, source
    if mscclpp.looks_like(data):
        plan = mscclpp.parse(data, label)
        return "mscclpp", plan.program, plan
    from ..formats import sched

    if sched.looks_like(data):
        value = sched.parse(data, label)
        return "prog" if isinstance(value, Program) else "sched", value, None
    expected = "MSCCL XML, an MSCCL++ plan, .sched or .prog"
    try:
        parse_topology(data.decode("utf-8", errors="replace"), label)
    except InputError:
        begin = data[:40].decode("utf-8", errors="replace").split("\n", 1)[0]
        seen = f"it begins with {begin!r}" if data.strip() else "it is empty"
        raise InputError(f"this is no program: {seen}", where=label, expected=expected) from None
    raise InputError("this is a machine, not a program", where=label, expected=expected, hint="collsynth topo show")


def _print(result: dict[str, Any], show_all: bool) -> None:
    lines, code = result["_lines"], result["_code"]
    if code == 2:
        click.echo(f"collsynth: {lines[0]}", err=True)
        return
    shown = lines if show_all else lines[:_SHOWN]
    for line in shown:
        click.echo(line)
    if len(shown) < len(lines):
        click.echo(f"{result['file']}: and {len(lines) - len(shown)} more findings (--all prints them)")
    modes = [name for key, name in (("in_place", "in place"), ("out_of_place", "out of place")) if result[key]]
    what = ", ".join([result["collective"], f"{result['nranks']} ranks", *([" and ".join(modes)] if modes else [])])
    errors = sum(f["severity"] == "error" for f in result["findings"])
    verdict = "ok" if result["ok"] else f"{result['verdict']}, {errors} error{'s' if errors != 1 else ''}"
    click.echo(f"{result['file']}: {verdict} ({what})")
