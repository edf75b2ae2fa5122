"""The reference backend, layouts of any count, exact inputs, and their tie to the prover."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collsynth.backends import data, numpy_backend
from collsynth.backends.layout import Layout, is_in_place
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import (
    INPUT,
    OUTPUT,
    SCRATCH,
    direct_reduce_scatter,
    exchange,
    relay_broadcast,
    ring_allreduce,
    small_programs,
    step,
)  # fmt: skip

from collsynth.errors import InputError, RefusedError, RunError
from collsynth.formats import load_topology, msccl_xml
from collsynth.lowering import lower
from collsynth.program import Op, Program, Protocol, Threadblock
from collsynth.synth import synthesize
from collsynth.verifier import verify

PRIME = 100_003


def wrong_elements(
    program: Program, count: int, dtype: str, op: str, *, in_place: bool, seed: int | None = None
) -> int:
    """Run once in one mode; wrong elements over all ranks, and changed input elements out of place."""
    kind, nranks, root = data.dtype_of(dtype), program.nranks, program.root or 0
    layout = Layout.of(program, count)
    sends: list[Any] = []
    receives: list[Any] = []
    originals = []
    for rank in range(nranks):
        elements = data.input_elements(program.collective, rank, nranks, count, root=root)
        source = data.make_input(rank, elements, kind, op, nranks)
        originals.append(source.copy())
        if in_place:
            whole = np.zeros(max(layout.input_elements(rank), layout.output_elements(rank)), kind)
            send, receive = layout.in_place_views(rank, whole)
            send[:elements] = source
        else:
            send, receive = source if elements else None, np.zeros(layout.output_elements(rank), kind)
        sends.append(send)
        receives.append(receive)
    executable = numpy_backend.load(program, seed=seed)
    executable(sends, receives, op, count=count)
    executable.close()
    wrong = 0
    for rank in range(nranks):
        expected = data.expected_output(program.collective, rank, nranks, count, kind, op, root=root)
        if expected is not None:
            wrong += data.count_wrong(receives[rank], expected)
        if not in_place and sends[rank] is not None:
            wrong += data.count_wrong(sends[rank], originals[rank])
    return wrong


@pytest.mark.parametrize("program", small_programs(), ids=lambda p: f"{p.name}-{p.nranks}-{p.nunits}")
@pytest.mark.parametrize("in_place", [True, False])
def test_right_at_every_count_type_and_operation(program: Program, in_place: bool) -> None:
    units = Layout.of(program, 1).shard_units
    for count in sorted({0, 1, units - 1, units, units + 1, 4 * units, 1009}):
        assert wrong_elements(program, count, "float32", "sum", in_place=in_place) == 0
    for dtype in data.DTYPE_NAMES[:-1]:
        for op in data.OPS:
            assert wrong_elements(program, 37, dtype, op, in_place=in_place, seed=1) == 0, (dtype, op)
    assert wrong_elements(program, PRIME, "float32", "sum", in_place=in_place) == 0


def test_stuck_runs_name_steps_and_peers() -> None:
    program = exchange(3)
    buffers = [np.zeros(3, np.float32) for _ in range(2)], [np.zeros(6, np.float32) for _ in range(2)]
    with pytest.raises(RunError, match=r"rank 0 tb 0 step 3 \(SEND\) waits until rank 1 takes a message"):
        numpy_backend.load(program)(*buffers)
    numpy_backend.load(program, fifo_depth=3)(*buffers)
    numpy_backend.load(replace(program, protocol=Protocol.LL))(*buffers)


def test_starved_and_surplus_messages_are_reported() -> None:
    program = relay_broadcast(2, 1)
    blocks = program.threadblocks()
    silent = [replace(b, instructions=b.instructions[1:]) if b.rank == 0 else b for b in blocks]
    talking = [replace(b, instructions=b.instructions[:1] * 2) if b.rank == 0 else b for b in blocks]
    for changed, text in ((silent, "waits for a message from rank 0"), (talking, "never taken")):
        broken = Program.build(
            changed, name="b", collective="broadcast", nranks=2, root=0, nunits=1, nchannels=1, input_units=[1, 1],
            output_units=[1, 1], scratch_units=[0, 1],
        )  # fmt: skip
        with pytest.raises(RunError, match=text):
            numpy_backend.load(broken)([np.zeros(4)] * 2, [np.zeros(4), np.zeros(4)])


def test_reading_unwritten_memory_shows() -> None:
    blocks = [Threadblock(0, 0, None, None, 0, (step(Op.COPY, (SCRATCH, 0), (OUTPUT, 0)),))]
    program = Program.build(
        blocks, name="p", collective="allreduce", nranks=1, nunits=1, nchannels=1, input_units=[1], output_units=[1],
        scratch_units=[1],
    )  # fmt: skip
    out = [np.zeros(4, np.float32)]
    numpy_backend.load(program)([np.ones(4, np.float32)], out)
    assert np.isnan(out[0]).all()
    assert data.count_wrong(out[0], out[0]) == 4


def test_modes_and_buffers_are_checked() -> None:
    program = replace(ring_allreduce(2), out_of_place=False)
    apart = [np.zeros(4)] * 2, [np.zeros(4), np.zeros(4)]
    with pytest.raises(RefusedError, match="in place only"):
        numpy_backend.load(program)(*apart)
    executable = numpy_backend.load(ring_allreduce(2))
    with pytest.raises(InputError, match="2 of each"):
        executable([np.zeros(4)], [np.zeros(4)])
    with pytest.raises(InputError, match=r"expected \(4,\)"):
        executable([np.zeros(4), np.zeros(5)], [np.zeros(4), np.zeros(4)])
    with pytest.raises(InputError, match="unknown operation"):
        executable(*apart, "xor")
    executable.close()
    with pytest.raises(InputError, match="closed"):
        executable(*apart)
    assert numpy_backend.unavailable() is None and numpy_backend.limits.max_steps is None


def test_exact_counts_are_views() -> None:
    program = ring_allreduce(4)
    send, receive = np.arange(8.0), np.zeros(8)
    buffers = Layout.of(program, 8).pack(0, send, receive, in_place=False)
    assert buffers[INPUT] is send and buffers[OUTPUT] is receive
    padded = Layout.of(program, 7).pack(0, send[:7], receive[:7], in_place=False)
    assert len(padded.input) == 8 and not np.shares_memory(padded.input, send)
    together = Layout.of(program, 7).pack(0, send[:7], send[:7], in_place=True)
    assert np.shares_memory(together.input, together.output)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 40), st.integers(0, 3))
def test_layouts_pack_and_unpack(nranks: int, units: int, count: int, rank: int) -> None:
    """Every element of a shard lies in that shard's units, in place and out of place alike."""
    rank %= nranks
    gather = Program.build(
        [], name="g", collective="allgather", nranks=nranks, nunits=nranks * units, nchannels=1,
        input_units=[units] * nranks, output_units=[nranks * units] * nranks, scratch_units=[0] * nranks,
        in_place=True,
    )  # fmt: skip
    layout = Layout.of(gather, count)
    whole = np.arange(nranks * count, dtype=np.int64)
    send, receive = layout.in_place_views(rank, whole)
    assert np.array_equal(send, np.arange(rank * count, (rank + 1) * count))
    assert count == 0 or is_in_place(send, receive, layout, rank)
    assert not is_in_place(send.copy(), receive, layout, rank)
    buffers = layout.pack(rank, send, receive, in_place=True)
    shard = units * layout.unit
    assert len(buffers.output) == nranks * shard
    assert np.array_equal(buffers.output.reshape(nranks, shard)[:, :count].reshape(-1), whole)
    assert np.array_equal(buffers.input[:count], send)
    if count:
        assert np.shares_memory(buffers.input, buffers.output)
    buffers.output[...] = -buffers.output
    layout.unpack(rank, buffers, send, receive, in_place=True)
    assert np.array_equal(receive, -np.arange(nranks * count))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([d for d in data.DTYPE_NAMES if d != "bfloat16"]), st.sampled_from(data.OPS), st.integers(1, 40),
    st.integers(0, 10**6), st.randoms(use_true_random=False),
)  # fmt: skip
def test_results_are_exact_in_any_order(
    dtype: str, op: str, nranks: int, seed: int, rng: random.Random
) -> None:  # fmt: skip
    kind = np.dtype(dtype)
    terms = [data.make_input(r, 5, kind, op, nranks, seed=seed) for r in range(nranks)]
    expected = data.expected_output("allreduce", 0, nranks, 5, kind, op, seed=seed)
    with np.errstate(over="ignore"):
        while len(terms) > 1:
            one, two = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
            terms.append(data.combine(op)(one, two))
    assert expected is not None
    assert data.count_wrong(data.finish(op, terms[0], nranks), expected) == 0


def test_data_names_are_checked() -> None:
    assert data.dtype_of("half") == np.float16
    with pytest.raises(InputError, match="unknown data type"):
        data.dtype_of("float8")
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="ml_dtypes"):
            data.dtype_of("bfloat16")
    else:
        assert wrong_elements(ring_allreduce(4), 37, "bfloat16", "sum", in_place=False) == 0


def mutated(program: Program, choose: Any) -> Program:
    """One or two columns changed at random rows."""
    for _ in range(choose(1, 2)):
        row = choose(0, program.nrows - 1)
        kind = ("src_index", "dst_index", "src_buffer", "dst_buffer", "op", "drop", "dep_step")[choose(0, 6)]
        column = None
        if kind == "drop" and len(program.dep_tb):
            dep = choose(0, len(program.dep_tb) - 1)
            pointers = program.dep_ptr - (program.dep_ptr > dep)
            program = replace(
                program, dep_tb=np.delete(program.dep_tb, dep), dep_step=np.delete(program.dep_step, dep),
                dep_ptr=pointers,
            )  # fmt: skip
        elif kind == "dep_step" and len(program.dep_tb):
            column = program.dep_step.copy()
            column[choose(0, len(column) - 1)] += (-1, 1)[choose(0, 1)]
        elif kind == "op":
            column = program.op.copy()
            column[row] = choose(0, 8)
        elif kind.endswith("buffer") and getattr(program, kind)[row] >= 0:
            column = getattr(program, kind).copy()
            column[row] = choose(0, 2)
        elif kind.endswith("index") and getattr(program, kind)[row] >= 0:
            column = getattr(program, kind).copy()
            column[row] = choose(0, 3)
        if column is not None:
            program = replace(program, **{kind: column})  # type: ignore[arg-type]
    return program


BASES = [ring_allreduce(2), ring_allreduce(3), direct_reduce_scatter(3), exchange(2), relay_broadcast(3, 2)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_proven_programs_are_right_in_every_interleaving(draw: st.DataObject) -> None:
    """Verify OK (so race-free) implies 100 random interleavings correct, in every mode declared."""
    program = mutated(draw.draw(st.sampled_from(BASES)), lambda a, b: draw.draw(st.integers(a, b)))
    if not verify(program).ok:
        return
    for seed in range(50):
        for in_place in (True, False):
            assert wrong_elements(program, 5, "int32", "sum", in_place=in_place, seed=seed) == 0


def test_refused_programs_do_go_wrong() -> None:
    """The other direction, by sampling: most refused mutants really fail in some interleaving (a race may
    need luck; a wait for nothing or a result that is wrong does not)."""
    rng = random.Random(3)
    refused = failed = 0
    for _ in range(300):
        program = mutated(rng.choice(BASES), rng.randint)
        report = verify(program)
        if report.ok or {f.code for f in report.errors} <= {"E-RACE"}:
            continue
        refused += 1
        try:
            bad = any(
                wrong_elements(program, 5, "float32", "sum", in_place=mode, seed=seed)
                for mode in (True, False)
                for seed in range(5)
            )
        except (RunError, AttributeError):
            bad = True
        failed += bad
    assert refused > 60
    assert failed == refused


@pytest.mark.corpus
def test_real_files_run_right(corpus: Path) -> None:
    """Every right G2 file of up to 8 ranks, at counts around its number of units."""
    ran = 0
    with open(corpus / "msccl-xml" / "MANIFEST.csv", newline="") as stream:
        rows = [r for r in csv.DictReader(stream) if r["outofplace"] and r["verdict"] == "OK" and int(r["ngpus"]) <= 8]
    for row in rows:
        program = msccl_xml.read(corpus / "msccl-xml" / row["file"])
        for in_place in [mode for mode, on in ((True, program.in_place), (False, program.out_of_place)) if on]:
            for count in (1, program.nunits - 1, program.nunits + 1):
                assert wrong_elements(program, count, "int32", "max", in_place=in_place, seed=count) == 0, row["file"]
            assert wrong_elements(program, PRIME, "float32", "sum", in_place=in_place) == 0, row["file"]
        ran += 1
    assert ran > 25


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allreduce", "allgather", "reducescatter", "alltoall"])
@pytest.mark.parametrize("count", [8, 64, 7])
def test_no_send_buffer_is_written_out_of_place(collective: str, count: int) -> None:
    """Also where no padding is needed, so that the program works on the caller's own arrays."""
    machine = load_topology("ring:4")
    schedule = synthesize(machine, collective, chunks=2).schedule
    assert schedule is not None
    program = lower(schedule)
    sends = [np.arange(n, dtype=np.int32) + 100 * r for r, n in enumerate(_elements(program, count, "input"))]
    before = [send.copy() for send in sends]
    receives = [np.zeros(n, dtype=np.int32) for n in _elements(program, count, "output")]
    numpy_backend.load(program)(sends, receives, count=count)
    for mine, kept in zip(before, sends, strict=True):
        assert np.array_equal(mine, kept)


def _elements(program: Program, count: int, side: str) -> list[int]:
    layout = Layout.of(program, count)
    return [getattr(layout, f"{side}_elements")(rank) for rank in range(program.nranks)]
