"""`collsynth verify`: prove programs and schedules."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

from ..errors import CollsynthError, InputError
from ..program import TARGETS
from .common import json_option, print_json

#: Findings of one file that the text output shows.
_SHOWN = 20


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-c", "--collective", metavar="COLL", help="Judge programs against this collective.")
@click.option(
    "--target", type=click.Choice(list(TARGETS)), default="any", show_default=True,
    help="Also check the limits and the parser's rules of this runtime.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that verify.")
@click.option("-a", "--all", "show_all", is_flag=True, help=f"Print every finding, not the first {_SHOWN} of a file.")
@json_option
def verify(
    files: tuple[str, ...], collective: str | None, target: str, jobs: int, show_all: bool, as_json: bool
) -> None:
    """Prove programs (MSCCL XML, MSCCL++ plans, .prog) and schedules (.sched): data, races, deadlock, limits.

    A FILE may be a directory (all files in it) or - for standard input.  Exit code 0: every file is
    right; 1: some file is wrong, or cannot be judged because its collective is unknown and -c is not
    given; 2: some file cannot be read.
    """
    if collective is not None:
        from ..collective import canonical_name

        collective = canonical_name(collective)
    paths = [path for name in files for path in _expand(name)]
    tasks = [(path, collective, target) for path in paths]
    if jobs > 1 and len(tasks) > 1:
        with ProcessPoolExecutor(min(jobs, len(tasks))) as pool:
            results = list(pool.map(_verify_file, tasks, chunksize=max(1, len(tasks) // (4 * jobs))))
    else:
        results = [_verify_file(task) for task in tasks]
    if as_json:
        print_json([{k: v for k, v in result.items() if not k.startswith("_")} for result in results])
    else:
        for result in results:
            _print(result, show_all)
    code = max((result["_code"] for result in results), default=0)
    click.get_current_context().exit(code)


def _expand(name: str) -> list[str]:
    """The files that an argument means."""
    path = Path(name)
    if name in ("-", "") or not path.is_dir():  # an empty name would mean this folder
        return [name]
    inside = sorted(str(p) for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not inside:
        raise InputError("the directory has no files", where=name, expected="MSCCL XML, .sched or .prog files")
    return inside


def _verify_file(task: tuple[str, str | None, str]) -> dict[str, Any]:
    """One file's entry in the list; keys that begin with _ are for this module."""
    path, collective, target = task
    try:
        return _judge(path, collective, target)
    except (CollsynthError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{path}: {error.strerror or error}"
        finding = _entry("E-READ", "error", text)
        return {"file": path, "format": None, "ok": False, "collective": None, "nranks": None, "in_place": None,
                "findings": [finding], "_code": 2, "_lines": [text]}  # fmt: skip


def _judge(path: str, collective: str | None, target: str) -> dict[str, Any]:
    from ..program import Program
    from ..schedule import Schedule
    from ..verifier import verify as prove

    kind, obj, source = _read(path)
    report = prove(obj, target=TARGETS[target], collective=collective, source=source)
    program = obj if isinstance(obj, Program) else None
    assert program is not None or isinstance(obj, Schedule)
    findings = [
        _entry(f.code, f.severity.value, f.message, f.rank, f.threadblock, f.step, f.where) for f in report.findings
    ]
    return {
        "file": path, "format": kind, "ok": report.ok, "collective": report.collective or "custom",
        "nranks": report.nranks,
        "in_place": None if program is None else program.in_place,
        "out_of_place": None if program is None else program.out_of_place,
        "target": target, "stamp": report.stamp, "findings": findings,
        "_code": 0 if report.ok else 1, "_lines": [str(f) for f in report.findings],
    }  # fmt: skip


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
    verdict = "ok" if result["ok"] else f"WRONG, {errors} error{'s' if errors != 1 else ''}"
    click.echo(f"{result['file']}: {verdict} ({what})")
