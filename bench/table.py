"""The benchmark's text and JSON, column for column as nccl-tests prints it; ours only to the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .options import Options


@dataclass(frozen=True, slots=True)
class Side:
    """One of a row's two measurements.

    Attributes:
        seconds: time of one launch.
        algbw, busbw: GB/s (10^9).
        wrong: elements that differ from the expected ones, or None when not checked.
    """

    seconds: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a size, what ran, and its out-of-place and in-place figures (None: not supported).

    Attributes:
        size, count: bytes and elements as nccl-tests counts them.
        datatype, op, root: as printed (`none` and -1 where they mean nothing).
        algorithm: `program:NAME` or `native`.
        percent_of_bound: bound's time over the better of the two times, or None without a machine.
        speedup: native time over this row's, out of place and in place; None where there is no pair.
        reason: why a program's row shows the native library, or "".
    """

    size: int
    count: int
    datatype: str
    op: str
    root: int
    algorithm: str
    out_of_place: Side | None
    in_place: Side | None
    percent_of_bound: float | None = None
    speedup: tuple[float | None, float | None] = (None, None)
    reason: str = ""
    timestamp: str = ""


@dataclass(slots=True)
class Totals:
    """What the footer needs."""

    wrong: int = 0
    busbw: list[float] = field(default_factory=list)

    def add(self, row: Row, *, baseline: bool = False) -> None:
        """Count a row's two sides; a baseline's wrong elements count, its bandwidth does not."""
        for side in (row.out_of_place, row.in_place):
            if side is not None:
                self.wrong += side.wrong or 0
                if not baseline:
                    self.busbw.append(side.busbw)

    @property
    def average(self) -> float:
        """Mean of all busbw values of both groups, 0 when there are none."""
        return sum(self.busbw) / len(self.busbw) if self.busbw else 0.0


def number(value: float, width: int) -> str:
    """A number in `width` columns: 2 decimals, then 1, then none, then an exponent as it grows."""
    digits = 0
    limit = 1
    while value >= limit:
        digits += 1
        limit *= 10
    if digits < width - 2:
        return f"{value:{width}.2f}"
    if digits < width - 1:
        return f"{value:{width}.1f}"
    if digits < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def header(options: Options, devices: Sequence[str], remarks: Sequence[str]) -> str:
    """The lines before the columns: the run's options, one line a rank, and what a reader must know."""
    factor = options.step_factor > 1
    lines = [
        f"# nThread 1 nGpus 1 minBytes {options.min_bytes} maxBytes {options.max_bytes} "
        f"step: {options.step_factor if factor else options.step_bytes}({'factor' if factor else 'bytes'}) "
        f"warmup iters: {options.warmup} iters: {options.iters} agg iters: {options.aggregate} "
        f"validation: {options.check} graph: 0",
        "#",
        "# Using devices",
        *devices,
        *(f"# {remark}" for remark in remarks),
        "#",
    ]
    return "\n".join(lines)


def device_line(rank: int, pid: int, host: str, device: int, bus: str, name: str) -> str:
    """One rank's line under `# Using devices`."""
    return f"#  Rank {rank:2d} Group  0 Pid {pid:6d} on {host[:10]:>10s} device {device:2d} [{bus}] {name}"


def columns(options: Options) -> str:
    """The three comment lines over the rows."""
    time = "cputime" if options.cpu_time else "time"
    pad = f"# {'':>10s}  {'':>12s}  {'':>8s}  {'':>6s}  {'':>6s}"
    names = "".join(f"  {n:>7s}  {a:>6s}  {b:>6s}  {w:>6s}" for n, a, b, w in [(time, "algbw", "busbw", "#wrong")] * 2)
    units = "".join(f"  {n:>7s}  {a:>6s}  {b:>6s}  {'':>6s}" for n, a, b in [("(us)", "(GB/s)", "(GB/s)")] * 2)
    # Ours, to the right of everything that nccl-tests prints.
    right: list[tuple[int, str, str]] = []
    if options.topology is not None:
        right.append((6, "%bound", "(%)"))
    if options.compare is not None:
        right += [(7, "speedup", "(out)"), (7, "speedup", "(in)")]
    if options.timestamps:
        right.append((19, "timestamp", ""))
    right_names = "".join(f"  {name:>{width}s}" for width, name, _ in right)
    right_units = "".join(f"  {unit:>{width}s}" for width, _, unit in right)
    return "\n".join(
        (
            f"{pad}           out-of-place                       in-place          ",
            f"# {'size':>10s}  {'count':>12s}  {'type':>8s}  {'redop':>6s}  {'root':>6s}"
            f"{names}{right_names}  algorithm",
            f"# {'(B)':>10s}  {'(elements)':>12s}  {'':>8s}  {'':>6s}  {'':>6s}{units}{right_units}",
        )
    )


def row_text(row: Row, options: Options) -> str:
    """One line of the table."""
    parts = [f"{row.size:12d}  {row.count:12d}  {row.datatype:>8s}  {row.op:>6s}  {row.root:6d}"]
    for side in (row.out_of_place, row.in_place):
        if side is None:
            parts.append(f"  {'N/A':>7s}  {'N/A':>6s}  {'N/A':>6s}  {'N/A':>6s}")
        else:
            wrong = "N/A" if side.wrong is None else str(side.wrong)
            parts.append(
                f"  {number(side.seconds * 1e6, 7)}  {number(side.algbw, 6)}  {number(side.busbw, 6)}  {wrong:>6s}"
            )
    if options.topology is not None:
        parts.append("     N/A" if row.percent_of_bound is None else f"  {row.percent_of_bound:6.1f}")
    if options.compare is not None:
        parts += ["        -" if ratio is None else f"  {ratio:7.2f}" for ratio in row.speedup]
    if options.timestamps:
        parts.append(f"  {row.timestamp:>19s}")
    parts.append(f"  {row.algorithm}" + (f" ({row.reason})" if row.reason else ""))
    return "".join(parts)


def verdict(totals: Totals, minimum_busbw: float | None) -> tuple[bool, bool | None]:
    """Whether the data was right, and whether the average reached 0.9 x the demanded minimum (None: no demand)."""
    return totals.wrong == 0, None if minimum_busbw is None else totals.average >= 0.9 * minimum_busbw


def footer(totals: Totals, minimum_busbw: float | None) -> str:
    """The lines after the rows."""
    right, fast = verdict(totals, minimum_busbw)
    speed = "" if fast is None else (" OK" if fast else " FAILED")
    return "\n".join(
        (
            f"# Out of bounds values : {totals.wrong} {'OK' if right else 'FAILED'}",
            f"# Avg bus bandwidth    : {totals.average:g}{speed}",
            "#",
        )
    )


def document(
    options: Options, rows: Sequence[Row], totals: Totals, minimum_busbw: float | None, facts: dict[str, Any]
) -> dict[str, Any]:
    """The JSON of `-J`: nccl-tests' keys, plus `algorithm`, `backend` and `percent_of_bound`."""
    right, fast = verdict(totals, minimum_busbw)

    def side(value: Side | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return {
            "time": value.seconds * 1e6,
            "alg_bw": value.algbw,
            "bus_bw": value.busbw,
            "nwrong": "N/A" if value.wrong is None else str(value.wrong),
        }

    return {
        "version": 1,
        "collective": options.collective,
        "backend": options.backend,
        **facts,
        "config": {
            "minBytes": options.min_bytes,
            "maxBytes": options.max_bytes,
            "step": options.step_factor if options.step_factor > 1 else options.step_bytes,
            "step_type": "factor" if options.step_factor > 1 else "bytes",
            "warmup_iters": options.warmup,
            "iters": options.iters,
            "agg_iters": options.aggregate,
            "validation": options.check,
            "graph": 0,
        },
        "results": [
            {
                "size": row.size,
                "count": row.count,
                "type": row.datatype,
                "redop": row.op,
                "root": str(row.root),
                "out_of_place": side(row.out_of_place),
                "in_place": side(row.in_place),
                "percent_of_bound": row.percent_of_bound,
                "speedup": {"out_of_place": row.speedup[0], "in_place": row.speedup[1]},
                "algorithm": row.algorithm,
                "reason": row.reason,
                "backend": options.backend,
            }
            for row in rows
        ],
        "out_of_bounds": {"count": totals.wrong, "okay": right},
        "average_bus_bandwidth": {"bandwidth": totals.average, "okay": fast},
    }
