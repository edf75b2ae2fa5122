"""MSCCL++ plans: reading, writing, what the loader refuses, and where the threads of a block must meet."""

from __future__ import annotations

import copy
import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from one_sided import (
    RIGHT,
    SWITCH,
    I,
    O,
    S,
    allgather_puts,
    allreduce_packets,
    at,
    barrier,
    local,
    program,
    put,
    sync,
)  # fmt: skip

import collsynth as cs
from collsynth.cli import cli
from collsynth.errors import CollsynthError, InputError, RefusedError
from collsynth.formats import mscclpp
from collsynth.formats.mscclpp_json import load
from collsynth.formats.mscclpp_rules import violations
from collsynth.program import TARGETS, Instruction, Op, Program, Protocol, Space
from collsynth.verifier import verify

#: How the manifest words what our codes say.
WORDING = {
    "pre-2025-08 schema": "E-PLAN-V1", "name is null": "E-PLAN-NAME", "zero input/output chunks": "E-PLAN-ZERO-CHUNKS",
    "operation ": "E-PLAN-OP", "KeyError": "E-PLAN-KEY",
}  # fmt: skip


def plan(name: str) -> dict[str, Any]:
    return json.loads(mscclpp.render(RIGHT[name]()))


def parsed(value: dict[str, Any]) -> mscclpp.PlanSource:
    return mscclpp.parse(json.dumps(value, indent=1).encode(), "p.json")


def ops(value: dict[str, Any], gpu: int = 0, block: int = 0) -> list[dict[str, Any]]:
    return value["gpus"][gpu]["threadblocks"][block]["ops"]


def names(value: dict[str, Any], gpu: int = 0, block: int = 0) -> list[str]:
    return [op["name"] for op in ops(value, gpu, block)]


# --- round trip ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_a_plan_gives_its_program_back(name: str) -> None:
    base = RIGHT[name]()
    text = mscclpp.render(base)
    source = mscclpp.parse(text.encode())
    assert source.program.content_hash() == base.content_hash() and source.program.name == base.name
    assert not source.syntax and not source.losses and not mscclpp.losses(base)
    assert mscclpp.render(source.program) == text
    assert verify(source.program, source=source, target=TARGETS["mscclpp"]).ok
    used = {op["name"] for gpu in json.loads(text)["gpus"] for b in gpu["threadblocks"] for op in b["ops"]}
    assert used <= mscclpp.OPERATIONS


@pytest.mark.parametrize("name", RIGHT)
def test_prog_files_keep_one_sided_programs(tmp_path: Path, name: str) -> None:
    base = RIGHT[name]()
    cs.write(base, tmp_path / "a.prog")
    again = cs.read(tmp_path / "a.prog")
    assert isinstance(again, Program) and again.content_hash() == base.content_hash()
    assert again.groups == base.groups and again.semaphore_init == base.semaphore_init


def test_rows_become_the_operations_that_do_them_together() -> None:
    assert names(plan("allgather-memory")) == [
        "copy", "nop", "rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait",
    ]  # fmt: skip
    put_op = next(op for op in ops(plan("allgather-memory")) if op["name"] == "put")
    assert [len(put_op["src_buff"]), len(put_op["dst_buff"])] == [2, 2]
    assert "pws" in names(plan("allgather-port")) and "signal" not in names(plan("allgather-port"))
    reduce_send = ops(plan("allreduce-packets"), 0, 1)[0]
    assert (reduce_send["name"], len(reduce_send["src_buff"]), len(reduce_send["dst_buff"])) == ("respkt", 4, 4)
    assert names(plan("allreduce-packets"), 0, 2) == ["upkt"] * 3
    assert "rre" in names(plan("reducescatter-reads")) and "glres" in names(plan("allreduce-switch"))


def test_more_operands_than_one_operation_holds_are_several() -> None:
    text = mscclpp.render(allgather_puts(12))
    source = mscclpp.parse(text.encode())
    assert not source.violations and source.program.content_hash() == allgather_puts(12).content_hash()
    assert names(json.loads(text)).count("put") == 2 and names(json.loads(text)).count("signal") == 2
    big = allreduce_packets(12)
    assert mscclpp.parse(mscclpp.render(big).encode()).program.content_hash() == big.content_hash()


def test_window_options_and_modes_are_carried(tmp_path: Path) -> None:
    from dataclasses import replace

    base = replace(allgather_puts(2), min_bytes=1024, max_bytes=1 << 20)
    options = mscclpp.PlanOptions(512, True, True, 32)
    mscclpp.write(base, tmp_path / "a.json", options=options)
    source = mscclpp.read(tmp_path / "a.json")
    assert source.options == options and source.program.content_hash() == base.content_hash()
    assert json.loads(mscclpp.render(allreduce_packets(2)))["use_double_scratch_buffer"] is True
    assert json.loads(mscclpp.render(allgather_puts(2)))["max_message_size"] == (1 << 64) - 1
    both = replace(allreduce_packets(2), in_place=True)
    assert any("out of place" in loss for loss in mscclpp.losses(both))
    with pytest.raises(InputError, match="exists"):
        mscclpp.write(base, tmp_path / "a.json")


# --- what is refused -------------------------------------------------------------------------------


def copies(number: int) -> list[Instruction]:
    return [local(Op.COPY, at(I, 0), at(O, 0))] * number


@pytest.mark.parametrize(
    "base, words",
    [
        (program([[copies(65)]], "", inputs=1, outputs=1), "65 operations .* the limit is 64"),
        (program([[copies(1)]], "", inputs=1, outputs=0), "output of rank 0 has no chunks"),
        (program([[[sync(Op.SIGNAL, 1, c) for c in range(17)]], [[]]], "", inputs=1, outputs=1), "17 memory channels"),
        (program([[copies(1)]], "", inputs=1, outputs=1, semaphores=17), "17 semaphores, the limit is 16"),
        (program([[[barrier(16, 1)]]], "", inputs=1, outputs=1), "barrier 16"),
        (program([[[Instruction(Op.SEND, 1, at(I, 0))]]], "", inputs=1, outputs=1), "FIFOs"),
        (program([[[put(at(I, 0), 0, O, 0)]]], "", inputs=1, outputs=1), "names peer 0"),
        (
            program([[[local(Op.PUT_PACKET, at(I, 0), at(S, 0))]]], "", inputs=1, outputs=1, scratch=1),
            "packets in a program of protocol Simple",
        ),
        (
            program([[[local(Op.PUT_PACKET, at(I, 0), at(S, 0)), local(Op.COPY, at(I, 0), at(S, 1))]]], "", inputs=1,
                    outputs=1, scratch=2, protocol=Protocol.LL),
            r"scratch\[1\] of rank 0 holds data where the packets of scratch\[0\] lie",
        ),
        (
            program([[[Instruction(Op.MULTICAST_REDUCE, 1, at(I, 0, 1, Space.MULTICAST), at(O, 0), sync=0,
                                   kind=SWITCH)]]], "", inputs=1, outputs=1, groups=[[0]]),
            "reduces a multicast group into one rank",
        ),
    ],
)  # fmt: skip
def test_what_the_executor_has_not_is_refused(base: Program, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        mscclpp.render(base)


def test_two_sided_programs_dependencies_and_roots_are_refused() -> None:
    from dataclasses import replace

    waiting = Instruction(Op.COPY, 1, at(I, 0), at(O, 0), depends=((0, 0),))
    with pytest.raises(RefusedError, match="rank 0 tb 1 waits by a dependency"):
        mscclpp.render(program([[copies(1), [waiting]]], "", inputs=1, outputs=1))
    with pytest.raises(RefusedError, match="LL128"):
        mscclpp.render(replace(allgather_puts(2), protocol=Protocol.LL128))
    with pytest.raises(RefusedError, match="root 1"):
        mscclpp.render(replace(allgather_puts(2), root=1))


# --- meeting points --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_every_nop_that_is_written_is_needed(name: str) -> None:
    value = plan(name)
    for gpu, block in [(g, b) for g in range(2) for b in range(len(value["gpus"][g]["threadblocks"]))]:
        for index, op in enumerate(ops(value, gpu, block)):
            if op["name"] == "nop":
                changed = copy.deepcopy(value)
                del ops(changed, gpu, block)[index]
                source = parsed(changed)
                notes = [note for note in source.syntax if note.code == "E-NOSYNC"]
                assert notes and notes[0].message.startswith(f"gpu {gpu} threadblock {block} op {index}: no nop")
                report = verify(source.program, source=source)
                assert not report.ok and {f.code for f in report.errors} == {"E-NOSYNC"}


# --- reading ---------------------------------------------------------------------------------------


def test_places_are_lines_and_words() -> None:
    value = plan("alltoall-two-blocks")
    lines = json.dumps(value, indent=1).splitlines()
    source = parsed(value)
    steps = [op for op in ops(value, 1, 1) if op["name"] != "nop"]
    for step, op in enumerate(steps):
        where = source.where(1, 1, step)
        line = int(where.split(":")[1])
        assert where.endswith(f"gpu 1 threadblock 1 op {ops(value, 1, 1).index(op)}")
        assert f'"name": "{op["name"]}"' in lines[line] and lines[line - 1].strip() == "{"
    assert source.where(1) == "p.json: gpu 1" and source.where() == "p.json"


def test_slices_of_threadblock_groups_are_smaller_units() -> None:
    value = plan("allgather-memory")
    for gpu in value["gpus"]:
        block = gpu["threadblocks"][0]
        whole = next(op for op in block["ops"] if op["name"] == "copy")
        second = copy.deepcopy(block)
        second.update(id=1, ops=[copy.deepcopy(whole)])
        for part, op in enumerate((whole, second["ops"][0])):
            op["tbg_info"] = {"tb_id": part, "tbg_size": 2}
        gpu["threadblocks"].append(second)
    source = parsed(value)
    assert source.program.nunits == 2 * allgather_puts(3).nunits
    assert verify(source.program, source=source).ok


def looped(sizes: tuple[int, int]) -> dict[str, Any]:
    value = plan("alltoall-two-blocks")
    for gpu in value["gpus"]:
        for block, size in zip(gpu["threadblocks"], sizes, strict=True):
            inner = block["ops"]
            block["ops"] = [{"name": "pipeline", "iter_context": {"unit_size": size, "num_chunks": 1}, "ops": inner}]
    return value


def test_pipelines_hold_one_iteration_and_must_loop_alike() -> None:
    source = parsed(looped((1 << 20, 1 << 20)))
    assert source.program.content_hash() == RIGHT["alltoall-two-blocks"]().content_hash()
    assert source.losses == ("pipeline loops: one iteration is held",)
    assert verify(source.program, source=source).ok
    assert source.where(0, 1, 2).endswith("gpu 0 threadblock 1 op 0 op 3")
    unlike = parsed(looped((1 << 20, 1 << 19)))
    assert {note.code for note in unlike.syntax} == {"E-PLAN-LOOP"}
    assert not verify(unlike.program, source=unlike).ok


def test_several_channels_of_a_switch_are_one_group() -> None:
    value = plan("allreduce-switch")
    for gpu in value["gpus"]:
        gpu["channels"].append(copy.deepcopy(gpu["channels"][-1]))
        gpu["threadblocks"][0]["channels"][-1]["channel_ids"] = [1]
    source = parsed(value)
    assert source.program.content_hash() == RIGHT["allreduce-switch"]().content_hash() and source.losses


def test_legacy_names_are_read_and_told() -> None:
    value = plan("allreduce-packets")
    ops(value, 0, 2)[0]["name"] = "ucpkt"
    source = parsed(value)
    assert [note.code for note in source.violations] == ["E-PLAN-OP"]
    assert verify(source.program, source=source).ok
    assert not verify(source.program, source=source, target=TARGETS["mscclpp"]).ok


def test_put_with_signal_on_memory_does_not_signal() -> None:
    value = plan("allgather-memory")
    next(op for op in ops(value) if op["name"] == "put")["name"] = "pws"
    assert "E-PLAN-SIGNAL" in {note.code for note in parsed(value).syntax}


def first_generation() -> dict[str, Any]:
    """A two-rank allreduce by packets as plans looked in 2024."""
    gpus = []
    for rank in range(2):
        mine, other = 2 * rank, 2 - 2 * rank
        send = {"name": "ppkt", "o_buff": {"src": "i", "dst": "s"}, "o_cids": [{"id": 0, "off": 0}],
                "srcs": [{"buff": "i", "off": other}], "ctype": "sm", "cnt": 2}  # fmt: skip
        add = {"name": "rspkt", "o_buff": {"src": "i", "dst": "s"}, "o_cids": [{"id": 0, "off": 2}],
               "srcs": [{"buff": "s", "off": 0}], "srcbuff": "i", "srcoff": mine, "dstbuff": "i", "dstoff": mine,
               "ctype": "sm", "cnt": 2}  # fmt: skip
        unpack = {
            "name": "cpkt",
            "srcbuff": "s",
            "srcoff": 2,
            "dstbuff": "i",
            "dstoff": other,
            "ctype": "none",
            "cnt": 2,
        }
        block = {
            "id": 0,
            "channels": [{"src": "i", "dst": "s", "ctype": "sm", "cids": [0]}],
            "ops": [send, add, unpack],
        }
        channels = [{"srcbuff": "i", "dstbuff": "s", "type": "sm", "connectedTo": [1 - rank]}]
        gpus.append({"id": rank, "inputChunks": 4, "outputChunks": 0, "scratchChunks": 4, "chunkGroups": 1,
                     "threadblocks": [block], "channels": channels})  # fmt: skip
    return {"name": "old", "collective": "allreduce", "protocol": "LL", "inplace": True, "gpus": gpus}


def test_the_first_generation_is_read_and_written_anew() -> None:
    source = parsed(first_generation())
    assert [note.code for note in source.violations] == ["E-PLAN-V1"]
    assert verify(source.program, source=source).ok
    anew = mscclpp.parse(mscclpp.render(source.program).encode())
    assert anew.program.content_hash() == source.program.content_hash() and not anew.syntax


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda p: p["gpus"][1].pop("channels"), "gpu 1: key 'channels' is missing"),
        (lambda p: ops(p)[0].pop("name"), "gpu 0 threadblock 0 op 0: key 'name' is missing"),
        (lambda p: ops(p)[0].update(name="jump"), "operation 'jump'; expected one of"),
        (lambda p: ops(p)[0]["src_buff"][0].update(index=-1), "op 0 src_buff 0 index: is -1"),
        (lambda p: ops(p)[0]["src_buff"][0].update(index=1 << 40), "expected at most"),
        (lambda p: ops(p)[0]["src_buff"][0].update(type="x"), "buffer type 'x'"),
        (lambda p: ops(p)[2].update(channel_ids=[9]), "memory channel 9; expected one of the threadblock's"),
        (lambda p: p["gpus"][0]["channels"][0].update(connected_to=[0]), "connected to rank 0"),
        (lambda p: p["gpus"][0]["remote_buffers"][0].update(rank=7), "is of rank 7"),
        (lambda p: p.update(gpus=[]), "gpus: is empty"),
        (lambda p: p.update(gpus=3), "gpus: is no list"),
        (lambda p: p.update(protocol="LL128"), "protocol: is 'LL128'"),
        (lambda p: p.update(inplace="yes"), "inplace: is 'yes'"),
        (lambda p: p.update(dynamic=True), "template"),
        (lambda p: p["gpus"].reverse(), "has id 2"),
    ],
)
def test_damaged_plans_are_refused_with_their_place(change: Any, words: str) -> None:
    value = plan("allgather-memory")
    change(value)
    with pytest.raises(InputError, match=words):
        parsed(value)


@pytest.mark.parametrize(
    "text",
    ["{", '{"gpus"', '{"gpus": [}', '{"gpus": [1], "gpus": []}', '{"gpus": [1]}', "[" * 100000, '{"gpus": null}'],
)  # fmt: skip
def test_what_is_no_plan_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        mscclpp.parse(text.encode())


def scrambled(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The plan with one to three values removed, changed, doubled or exchanged."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        stack: list[Any] = [changed]
        while stack:
            node = stack.pop()
            keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
            places += [(node, key) for key in keys]
            stack += [node[key] for key in keys]
        node, key = rng.choice(places)
        kind = rng.randrange(4)
        if kind == 0:
            del node[key]
        elif kind == 1:
            node[key] = rng.choice([None, -1, 0, 1, 7, 10**30, 1.5, "s", "port", [], {}, True, [1], {"type": "i"}])
        elif kind == 2 and isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        elif isinstance(node[key], int):
            node[key] = int(node[key]) + rng.choice((-1, 1))
    return changed


@pytest.mark.parametrize("name", RIGHT)
def test_scrambled_plans_never_end_in_a_traceback(name: str) -> None:
    value, rng = plan(name), random.Random(name)
    read = 0
    for _ in range(60):
        data = json.dumps(scrambled(value, rng)).encode()
        try:
            source = mscclpp.parse(data)
            verify(source.program, source=source)
            mscclpp.render(source.program)
            read += 1
        except CollsynthError:
            continue
    assert read


# --- rules -----------------------------------------------------------------------------------------


def test_limits_of_the_executor_are_told() -> None:
    value = plan("allgather-memory")
    wide = next(op for op in ops(value) if op["name"] == "put")
    wide["src_buff"], wide["dst_buff"] = wide["src_buff"][:1] * 11, wide["dst_buff"][:1] * 11
    next(op for op in ops(value) if op["name"] == "signal")["channel_ids"] = [0] * 9
    ops(value).extend({"name": "nop"} for _ in range(60))
    value["gpus"][0]["semaphores"] = [{"init_value": 0}] * 17
    value["gpus"][0]["threadblocks"][0]["channels"][0]["channel_ids"] = [0] * 17
    value["name"] = None
    found = {note.code for note in violations(load(json.dumps(value).encode(), "p"))}
    assert found == {
        "E-LIMIT-OP-BUFFERS", "E-LIMIT-OP-CHANNELS", "E-LIMIT-STEPS", "E-LIMIT-SEMAPHORES", "E-LIMIT-TB-CHANNELS",
        "E-PLAN-NAME",
    }  # fmt: skip


@pytest.mark.corpus
def test_violations_agree_with_the_manifest(corpus: Path) -> None:
    folder = corpus / "mscclpp-json"
    rows = list(csv.DictReader((folder / "MANIFEST.csv").open()))
    assert len(rows) > 40
    for row in rows:
        wanted = {
            code for words, code in WORDING.items() for part in row["violations"].split(";") if words in f"{part} "
        }  # fmt: skip
        found = violations(load((folder / row["path"]).read_bytes(), row["path"]))
        assert {note.code for note in found} == wanted, row["path"]


#: Collective plans that are wrong, and what is wrong with them.
WRONG = {
    "history__test__execution-files__pipeline.27d285ad": {"E-NOSYNC", "E-RANGE"},  # rank 1 puts from beyond its input
    "history__python__mscclpp__language__tests__allgather": {"E-NOSYNC"},
    "history__test__execution-files__allreduce_nvls.bf530aed": {"E-SIGNAL"},  # ends without waiting for the peer
    "executor-tests__execution-plans__multi_node_transfer_pkt": {"E-NOSYNC"},  # packs and puts without a meeting
    "history__python__mscclpp__language__tests__test.c420722b": {"E-NOSYNC", "E-PACKET"},  # reads packets as data
    "history__test__execution-files__allreduce_packet.2634453c": {"E-PACKET"},  # cpkt where upkt was meant
    "history__python__mscclpp__language__tests__test2": {"E-NOSYNC", "E-PACKET"},  # likewise
}


@pytest.mark.corpus
def test_plans_of_collectives_are_right_but_for_known_ones(corpus: Path) -> None:
    folder = corpus / "mscclpp-json"
    right = 0
    for row in csv.DictReader((folder / "MANIFEST.csv").open()):
        if row["collective"] not in ("allreduce", "allgather", "alltoall", "reducescatter"):
            continue
        try:
            source = mscclpp.read(folder / row["path"])
        except InputError:
            assert "KeyError" in row["violations"] or "dynamic" in row["path"] or "209f9774" in row["path"]
            continue
        report = verify(source.program, source=source)
        wanted = next((codes for name, codes in WRONG.items() if name in row["path"]), set())
        assert {f.code for f in report.errors} == wanted, row["path"]
        assert row["source"] != "generated_v0.9" or not report.findings, row["path"]
        right += report.ok
    assert right == 17


@pytest.mark.corpus
def test_corpus_plans_are_written_and_read_back_equal(corpus: Path) -> None:
    equal = 0
    for path in sorted((corpus / "mscclpp-json").glob("*.json")):
        try:
            first = mscclpp.read(path).program
            text = mscclpp.render(first)
        except CollsynthError:
            continue
        again = mscclpp.parse(text.encode())
        assert again.program.content_hash() == first.content_hash() and not again.syntax, path.name
        equal += 1
    assert equal == 29


# --- command line ----------------------------------------------------------------------------------


def test_verbs_take_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    cs.write(allreduce_packets(4), path)
    assert isinstance(cs.read(path), Program)
    runner = CliRunner()
    done = runner.invoke(cli, ["verify", "--target", "mscclpp", str(path)])
    assert done.exit_code == 0 and "ok (allreduce, 4 ranks, out of place)" in done.output
    shown = runner.invoke(cli, ["inspect", "--json", str(path)])
    rule = json.loads(shown.output)["selection"]["mscclpp"]
    assert rule["selectable"] and rule["elements_multiple"] == 4 and set(rule["bytes_multiple"].values()) == {64}
    value = json.loads(path.read_text())
    ops(value, 2, 2).pop()
    path.write_text(json.dumps(value))
    wrong = runner.invoke(cli, ["verify", str(path)])
    assert wrong.exit_code == 1 and "E-POST" in wrong.output
    path.write_text('{"gpus": [{}]}')
    broken = runner.invoke(cli, ["verify", str(path)])
    assert broken.exit_code == 2 and "is missing" in broken.output and "Traceback" not in broken.output
