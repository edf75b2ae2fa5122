"""The benchmark's options, text and data, without MPI."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collsynth.backends.data import expected_output
from collsynth.backends.executor import Arrays
from collsynth.bench import synthesis, table
from collsynth.bench.measure import Buffers, Case, ProgramContender
from collsynth.bench.options import Options, parse
from collsynth.bench.table import Row, Side, Totals
from handmade import pipelined_broadcast, ring_allreduce

from collsynth.errors import InputError

# What nccl-tests 2.18 prints, as published logs have it.
TITLE = "#" + " " * 62 + "out-of-place" + " " * 23 + "in-place" + " " * 10
NAMES = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong"
)
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
ROWS = (
    "     1048576        262144     float     sum      -1"
    "   339.61    3.09    3.09       0   335.85    3.12    3.12       0",
    " 10737418240    2684354560     float     sum      -1"
    "    90330  118.87  222.88       0    91945  116.78  218.96       0",
)


def options(*extra: str) -> Options:
    return parse(["allreduce", *extra])


def test_defaults_are_those_of_nccl_tests() -> None:
    o = options()
    assert (o.min_bytes, o.max_bytes, o.step_bytes, o.step_factor) == (32 << 20, 32 << 20, 1 << 20, 1)
    assert (o.iters, o.warmup, o.aggregate, o.cycles, o.check, o.average) == (20, 1, 1, 1, 1, 1)
    assert (o.ops, o.datatypes, o.roots) == (("sum",), ("float",), (0,))
    assert o.sizes() == [32 << 20] and not o.notes


def test_sizes_step_and_multiply() -> None:
    assert options("-b", "8", "-e", "128", "-f", "2").sizes() == [8, 16, 32, 64, 128]
    assert options("-b", "8", "-e", "100", "-f", "3").sizes() == [8, 24, 72]
    assert options("-b", "1K", "-e", "3KB", "-i", "1k").sizes() == [1024, 2048, 3072]
    assert options("-b", "1.5M", "-e", "1.5MiB", "-i", "0").sizes() == [3 << 19]
    assert options("-b", "0", "-e", "2M", "-f", "2").sizes() == [0, 1 << 20, 2 << 20]
    assert options("-b", "64M").sizes() == [64 << 20]


def test_letters_and_long_names_say_the_same() -> None:
    short = options("-b", "1K", "-e", "2K", "-f", "2", "-n", "3", "-w", "4", "-m", "2", "-N", "0", "-c", "0", "-o",
                    "max", "-d", "half", "-r", "1", "-a", "3", "-S", "-C", "-J", "x.json", "-T", "9")  # fmt: skip
    long = options("--minbytes", "1K", "--maxbytes", "2K", "--stepfactor", "2", "--iters", "3", "--warmup_iters", "4",
                   "--agg_iters", "2", "--run_cycles", "0", "--check", "0", "--op", "max", "--datatype", "half",
                   "--root", "1", "--average", "3", "--report_timestamps", "1", "--report_cputime", "1",
                   "--output_file", "x.json", "--timeout", "9")  # fmt: skip
    assert short == long
    assert short.timeout == 9 and short.timestamps and short.cpu_time


def test_letters_without_effect_are_accepted_with_a_line() -> None:
    o = options("-G", "20", "-z", "0", "-p", "1", "-R", "1", "-g", "8", "-t", "1", "-u", "--blocking", "2")
    assert [note.split(" ")[0] for note in o.notes] == ["-G", "-z", "-p", "-R", "-u", "-g"]
    assert all("has no effect" in note for note in o.notes)


def test_all_means_every_one() -> None:
    o = options("-o", "all", "-d", "all", "-r", "all")
    assert o.ops == ("sum", "prod", "max", "min") and o.roots is None
    assert "float" in o.datatypes and "int8" in o.datatypes


@pytest.mark.parametrize("name", ["all_reduce", "AllReduce", "allreduce"])
def test_collective_spellings(name: str) -> None:
    assert parse([name]).collective == "allreduce"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b", "2M", "-e", "1M"], "larger than -e"),
        (["-b", "x"], "-b: 'x' is not a size"),
        (["-n", "0"], "-n: 0 is out of range"),
        (["-n", "many"], "-n: 'many' is not a whole number"),
        (["-a", "4"], "expected 0..3"),
        (["-o", "avg"], "-o: avg is not run here"),
        (["-o", "xor"], "expected one of sum"),
        (["-d", "complex"], "-d: 'complex' is not known"),
        (["-r", "-1"], "-r"),
        (["-b", "8", "-e", "16", "-i", "0"], "never reach -e"),
        (["--backend", "numpy"], "collsynth run --backend numpy"),
        (["--backend", "cupy"], "no collective of its own"),
        (["--compare", "other"], "expected native"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_options_are_one_clear_error(arguments: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        options(*arguments)


def test_usage_errors_exit_with_2_and_help_with_0() -> None:
    command = [sys.executable, "-m", "collsynth.bench"]
    done = subprocess.run([*command, "nonsense"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("collsynth.bench: unknown collective 'nonsense'")
    assert "Traceback" not in done.stderr
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "-b SIZE, --minbytes SIZE" in done.stdout


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 7, "   0.00"), (5.6, 7, "   5.60"), (105.9, 7, " 105.90"), (9999.99, 7, "9999.99"),
        (12345.6, 7, "12345.6"), (123456.0, 7, " 123456"), (1234567.0, 7, "1234567"), (12345678.0, 7, "1.2e+07"),
        (99.99, 6, " 99.99"), (999.99, 6, "999.99"), (1234.56, 6, "1234.6"), (12345.6, 6, " 12346"),
        (1234567.0, 6, " 1e+06"),
    ],
)  # fmt: skip
def test_numbers_shrink_as_they_grow(value: float, width: int, text: str) -> None:
    assert table.number(value, width) == text
    assert len(text) == width


def test_column_headers_are_those_of_nccl_tests() -> None:
    title, names, units = table.columns(options()).split("\n")
    assert title == TITLE
    assert names.startswith(NAMES) and names[len(NAMES) :] == "  algorithm"
    assert units.rstrip() == UNITS


def _row(size: int, count: int, *sides: Side, **more: Any) -> Row:
    return Row(size, count, "float", "sum", -1, "native", sides[0], sides[1], **more)


def test_rows_are_those_of_nccl_tests() -> None:
    first = _row(1048576, 262144, Side(339.61e-6, 3.09, 3.09, 0), Side(335.85e-6, 3.12, 3.12, 0))
    assert table.row_text(first, options()) == ROWS[0] + "  native"
    # nccl-tests of that age printed 90330 us without decimals at width 7; so many digits get one decimal.
    second = _row(10737418240, 2684354560, Side(90330e-6, 118.87, 222.88, 0), Side(91945e-6, 116.78, 218.96, 0))
    assert (
        table.row_text(second, options())
        == ROWS[1].replace("  90330", "90330.0").replace("  91945", "91945.0") + "  native"
    )


def test_unsupported_and_unchecked_are_not_applicable() -> None:
    row = replace(_row(8, 2, Side(1e-6, 0.01, 0.01, None), Side(1e-6, 0.01, 0.01, 0)), in_place=None)
    text = table.row_text(row, options())
    assert text.split()[5:] == ["1.00", "0.01", "0.01", "N/A", "N/A", "N/A", "N/A", "N/A", "native"]
    assert len(text) == len(ROWS[0]) + len("  native")


def test_our_columns_stand_to_the_right() -> None:
    o = options("--topology", "ring:4", "--compare", "native", "-S")
    row = _row(8, 2, Side(1e-6, 1, 1, 0), Side(1e-6, 1, 1, 0), percent_of_bound=87.25, speedup=(1.5, None),
               reason="below", timestamp="2026-01-02 03:04:05")  # fmt: skip
    assert table.row_text(row, o)[len(ROWS[0]) :] == ("    87.2     1.50        -  2026-01-02 03:04:05  native (below)")
    names = table.columns(o).split("\n")[1]
    assert names[len(NAMES) :] == "  %bound  speedup  speedup            timestamp  algorithm"


def test_header_line_of_options() -> None:
    o = options("-b", "8", "-e", "128M", "-f", "2", "-w", "5")
    lines = table.header(o, [table.device_line(0, 5092, "GENOA-06", 0, "0x21", "card")], ["remark"]).split("\n")
    assert lines[0] == (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0"
    )
    assert lines[1:] == [
        "#", "# Using devices", "#  Rank  0 Group  0 Pid   5092 on   GENOA-06 device  0 [0x21] card", "# remark", "#",
    ]  # fmt: skip


def test_footer_and_verdict() -> None:
    totals = Totals()
    totals.add(_row(8, 2, Side(1e-6, 1, 2.0, 0), Side(1e-6, 1, 4.0, 1)))
    totals.add(_row(8, 2, Side(1e-6, 1, 100.0, 0), Side(1e-6, 1, 100.0, 0)), baseline=True)
    assert table.footer(totals, None) == "# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 3\n#"
    assert table.verdict(totals, None) == (False, None)
    assert table.verdict(totals, 3.3) == (False, True)
    assert table.footer(totals, 4.0).split("\n")[1] == "# Avg bus bandwidth    : 3 FAILED"


def test_json_has_the_keys_of_nccl_tests_and_ours() -> None:
    row = _row(8, 2, Side(1e-6, 1, 2.0, 0), Side(1e-6, 1, 4.0, None), percent_of_bound=50.0)
    totals = Totals()
    totals.add(row)
    document = table.document(options(), [row], totals, None, {"nranks": 4})
    (result,) = document["results"]
    assert set(result) >= {"size", "count", "type", "redop", "root", "out_of_place", "in_place", "percent_of_bound",
                           "algorithm", "backend"}  # fmt: skip
    assert result["out_of_place"] == {"time": 1.0, "alg_bw": 1, "bus_bw": 2.0, "nwrong": "0"}
    assert result["in_place"]["nwrong"] == "N/A"
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    assert document["average_bus_bandwidth"]["bandwidth"] == 3.0


@pytest.mark.parametrize(
    ("collective", "size", "count", "payload"),
    [
        ("allreduce", 1000, 250, 1000), ("allreduce", 1003, 250, 1000), ("broadcast", 100, 25, 100),
        ("allgather", 1024, 84, 1008), ("reducescatter", 100, 8, 96), ("alltoall", 1 << 20, 87380, 1048560),
        ("allgather", 8, 0, 0),
    ],
)  # fmt: skip
def test_counts_round_down_as_in_nccl_tests(collective: str, size: int, count: int, payload: int) -> None:
    case = Case.of(collective, 3, size, np.dtype(np.float32), "float", "sum", 0)
    assert (case.count, case.size) == (count, payload)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce",
                                        "gather", "scatter"])  # fmt: skip
@pytest.mark.parametrize("in_place", [False, True])
def test_buffers_overlap_in_place_and_check(collective: str, in_place: bool) -> None:
    for rank in range(3):
        case = Case(collective, 3, 4, np.dtype(np.int32), "int32", "sum", 1)
        buffers = Buffers(case, rank, in_place, Arrays(np))
        send, recv = buffers.send, buffers.recv
        if send is not None and recv is not None:
            assert np.shares_memory(send, recv) == in_place
            inner, outer = sorted((send, recv), key=len)
            if in_place and len(inner) < len(outer):
                assert inner.ctypes.data == outer.ctypes.data + rank * 4 * 4
        expected = expected_output(collective, rank, 3, 4, case.dtype, "sum", root=1, seed=0)
        if expected is not None:
            assert recv is not None
            recv[...] = expected
            assert buffers.wrong(0) == 0
            recv[-1] += 1
            assert buffers.wrong(0) == 1


def test_fresh_buffers_hold_no_right_answer() -> None:
    case = Case("allgather", 3, 4, np.dtype(np.float32), "float", "sum", 0)
    assert Buffers(case, 0, False, Arrays(np)).wrong(0) == 12


def test_a_program_runs_inside_its_window_only() -> None:
    program = replace(ring_allreduce(4), min_bytes=1024, max_bytes=4096, in_place=False)
    contender = ProgramContender(program, None)

    def at(size: int) -> str | None:
        return contender.unselected(Case.of("allreduce", 4, size, np.dtype(np.float32), "float", "sum", 0))

    assert at(1024) is None and at(4096) is None and at(2052) is None
    assert "minBytes 1024" in str(at(1020)) and "maxBytes 4096" in str(at(4100))
    assert contender.supports(np.dtype(np.float32), False) is None
    assert contender.supports(np.dtype(np.float32), True) == "the program runs out of place only"


def test_a_program_has_its_own_root() -> None:
    contender = ProgramContender(pipelined_broadcast(3, 2), None)
    cases = [Case.of("broadcast", 3, 64, np.dtype(np.float32), "float", "sum", root) for root in (0, 2)]
    assert contender.unselected(cases[0]) is None
    assert contender.unselected(cases[1]) == "the program's root is 0"


def test_the_watchdog_ends_a_stuck_process() -> None:
    code = (
        "import time; from collsynth.bench.main import _Watchdog\n"
        "dog = _Watchdog(-9.5, 3); dog.beat('allreduce of 8 bytes'); time.sleep(30)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25)
    assert done.returncode == 3
    assert "rank 3 has not moved for 0.5 s in allreduce of 8 bytes" in done.stderr


def test_synthesis_rows() -> None:
    entry = synthesis.Entry("dgx-v100", "allgather", "optimal", "forest", 171.43, "1", "13/12", "6", 3, 3, 12, 0.25,
                            0.3, "SCCL 28 s")  # fmt: skip
    text = synthesis.line(entry)
    assert text.split()[:10] == ["dgx-v100", "allgather", "171.43", "1", "1.0833", "6", "3", "3", "12", "0.25"]
    assert text.endswith("forest optimal  [SCCL 28 s]")


def test_synthesis_reports_an_unknown_machine_as_a_row() -> None:
    entry = synthesis.measure("no-such-machine", "allgather")
    assert entry.bandwidth_ratio is None and entry.status.startswith("error: ")


def test_synthesis_takes_a_subset_of_ranks() -> None:
    assert synthesis.machine("dgx-v100@0,1,2,3,7").nranks == 5
