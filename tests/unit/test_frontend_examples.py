"""The documentation's hand-written algorithms: right, race-free and runnable for every target and replication."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from collsynth.backends import data, numpy_backend
from collsynth.backends.layout import Layout
from test_numpy_backend import wrong_elements

from collsynth.errors import InputError
from collsynth.formats import msccl_xml
from collsynth.frontend import Recording
from collsynth.program import TARGETS, Op, Program
from collsynth.verifier import verify

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def load(name: str) -> ModuleType:
    """An example file as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = {path.stem: load(path.stem) for path in sorted(EXAMPLES.glob("*.py"))}

#: (file, function, arguments)
CASES: list[tuple[str, str, tuple[Any, ...]]] = [
    ("rings", "ring_allgather", (5,)),
    ("rings", "ring_reduce_scatter", (4,)),
    ("rings", "ring_allreduce", (6,)),
    ("rings", "ring_allreduce", (4, 3)),
    ("rings", "ring_allreduce_by_hand", (8,)),
    ("rings", "broadcast_pipeline", (4, 6)),
    ("all_pairs", "allgather", (6,)),
    ("all_pairs", "reduce_scatter", (5,)),
    ("all_pairs", "allreduce", (6,)),
    ("all_pairs", "alltoall", (5,)),
    ("all_pairs", "alltoall_in_place", (5,)),
    ("recursive", "doubling_allgather", (8,)),
    ("recursive", "halving_doubling_allreduce", (8,)),
    ("hierarchical", "allreduce", (2, 3)),
    ("hierarchical", "allreduce", (3, 2, 4)),
    ("hierarchical", "two_step_alltoall", (2, 3)),
    ("hierarchical", "two_step_alltoall", (3, 2)),
    ("hierarchical", "three_step_alltoall", (2, 3)),
    ("hierarchical", "three_step_alltoall", (4, 2)),
    ("trees", "binomial_allreduce", (7,)),
    ("trees", "composed_allreduce", (6, 3)),
    ("tables", "allgather", (4, MODULES["tables"].RING4)),
]
NAMES = [f"{name}-{'-'.join(str(a) for a in args if isinstance(a, int))}" for _, name, args in CASES]


def recording(file: str, function: str, arguments: tuple[Any, ...]) -> Recording:
    make: Callable[..., Recording] = getattr(MODULES[file], function)
    return make(*arguments)


def test_every_example_is_tried() -> None:
    """An example that no case names would rot."""
    helpers = {"multicast", "reduction"}
    written = {
        (file, name) for file, module in MODULES.items() for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and name not in helpers
    }  # fmt: skip
    assert written == {(file, name) for file, name, _ in CASES} | {("custom", "alltonext")}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("target", ["any", "msccl-executor", "rccl"])
def test_right_for_each_target_and_instances(case: tuple[str, str, tuple[Any, ...]], target: str) -> None:
    p = recording(*case)
    for instances in (1, 2):
        program = p.lower(target=TARGETS[target], instances=instances)
        report = verify(program, target=TARGETS[target], collective=p.collective)
        assert report.ok, [str(f) for f in report.findings]
        assert program.nunits % (p.collective.payload_units * instances) == 0
        assert (program.in_place, program.out_of_place) == (p.in_place, p.out_of_place)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_runs_on_data(case: tuple[str, str, tuple[Any, ...]]) -> None:
    """Any count, in every mode that it says it serves, in several orders of the threadblocks."""
    p = recording(*case)
    for instances, count, seed in ((1, 1, None), (1, 37, 1), (2, 97, 2), (2, 48, 3)):
        program = p.lower(target=TARGETS["msccl-executor"], instances=instances)
        for in_place in [True] * program.in_place + [False] * program.out_of_place:
            assert wrong_elements(program, count, "int32", "sum", in_place=in_place, seed=seed) == 0


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_unfused_programs_need_one_slot_a_connection(case: tuple[str, str, tuple[Any, ...]]) -> None:
    """The linear order's promise, with two instances and everything that shares a threadblock."""
    program = recording(*case).lower(instances=2, fuse=False)
    name, n, count = program.collective, program.nranks, 5
    inputs = [x if len(x) else None for x in data.inputs_of(name, n, count, np.dtype("int32"), "sum")]
    outputs = [np.zeros(data.output_elements(name, rank, n, count), np.int32) for rank in range(n)]
    if not program.out_of_place:
        outputs = [np.resize(x, len(y)) for x, y in zip(inputs, outputs, strict=True) if x is not None]
        inputs = list(outputs)
    numpy_backend.load(program, fifo_depth=1, seed=1)(inputs, outputs, count=count)


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (3, 3)])
@pytest.mark.parametrize("instances", [1, 2])
def test_a_collective_of_ones_own(nodes: int, gpus: int, instances: int) -> None:
    p = MODULES["custom"].alltonext(nodes, gpus)
    for target in ("any", "msccl-executor", "rccl"):
        program = p.lower(target=TARGETS[target], instances=instances)
        assert program.collective == ""
        assert verify(program, target=TARGETS[target], collective=p.collective).ok
    n, count = nodes * gpus, 29
    inputs = [np.arange(count, dtype=np.int64) + 1000 * rank for rank in range(n)]
    outputs = [data.poison(np.zeros(count, np.int64)) for _ in range(n)]
    assert Layout.of(program, count).output_elements(0) == count
    numpy_backend.load(program, seed=5)(inputs, outputs, count=count)
    for rank in range(1, n):
        assert (outputs[rank] == inputs[rank - 1]).all()


def test_a_wrong_custom_result_is_found() -> None:
    p = MODULES["custom"].alltonext(2, 2)
    program = p.lower()
    swapped = MODULES["custom"].cs.custom(4, {(rank + 1, u): (rank, 1 - u) for rank in range(3) for u in range(2)})
    assert {f.code for f in verify(program, collective=swapped).errors} == {"E-POST"}


def test_multi_chunk_messages_replicate_without_races() -> None:
    """MSCCLang's recursive-doubling AllGather with 2 instances is wrong on 8 ranks."""
    p = MODULES["recursive"].doubling_allgather(8)
    one, two = p.lower(), p.lower(instances=2)
    assert one.count.max() == 4, "four shards in one message"
    assert two.nchannels == 2 and verify(two).ok
    for seed in range(4):
        assert wrong_elements(two, 64, "int32", "sum", in_place=False, seed=seed) == 0


def test_a_ring_is_fused_and_pipelined() -> None:
    """The ring's order is that of time, although it is written chunk by chunk."""
    program: Program = MODULES["rings"].ring_allreduce(4).lower()
    assert program.ntbs == 4
    for block in program.threadblocks():
        assert [row.op for row in block.instructions] == [
            Op.SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.RECV_COPY_SEND,
            Op.RECV_COPY_SEND, Op.RECV,
        ]  # fmt: skip


def test_named_threadblocks_are_kept() -> None:
    program = MODULES["rings"].ring_allreduce_by_hand(5).lower(fuse=False)
    assert program.ntbs == 5
    assert (program.tb_send == [1, 2, 3, 4, 0]).all() and (program.tb_recv == [4, 0, 1, 2, 3]).all()


def test_xml_written_and_read_back_is_the_same_program(tmp_path: Path) -> None:
    program = MODULES["rings"].ring_allreduce(4, 2).lower(target=TARGETS["msccl-executor"])
    path = tmp_path / "ring.xml"
    msccl_xml.write(program, path, target=TARGETS["msccl-executor"])
    assert msccl_xml.read(path).content_hash() == program.content_hash()


def test_the_pages_scripts_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/frontend.md: the ring is written as shown, the wrong script fails with the message shown."""
    page = (EXAMPLES.parent / "frontend.md").read_text()
    ring, wrong = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(ring, "ring.py", "exec"), {})
    program = msccl_xml.read(tmp_path / "ring.xml")
    counted = Counter(Op(op).name.lower() for op in program.op.tolist())
    assert ", ".join(f"{counted[name]} {name}" for name in sorted(counted)) in page
    with pytest.raises(InputError) as caught:
        exec(compile(wrong, "wrong.py", "exec"), {})
    assert str(caught.value) in page.replace("\n", " ")
