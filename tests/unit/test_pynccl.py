"""The NCCL binding against a library of the same ABI that runs on host memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from collsynth.backends import _pynccl
from collsynth.backends._pynccl import (
    DATATYPES,
    Nccl,
    NcclError,
    NcclUnsupportedError,
    NcclUsageError,
    RedOp,
    Result,
    version_text,
)

from collsynth.errors import CollsynthError, InputError, RunError


def run_ranks(library: Path, nranks: int, body: str, **environment: str) -> list[str]:
    """Fork `nranks` ranks that run `body` with `nccl`, `comm`, `rank`, `n`, `np`; what each printed last."""
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        from collsynth.backends._pynccl import *
        nccl = Nccl(sys.argv[1])
        rank, n, identity = int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
        comm = nccl.init_rank(n, identity, rank)
        """
    ) + textwrap.dedent(body)
    identity = Nccl(str(library)).unique_id().hex()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(library), str(rank), str(nranks), identity],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment},
        )
        for rank in range(nranks)
    ]  # fmt: skip
    return [process.communicate(timeout=60)[0].strip() for process in processes]


def test_version_codes_of_both_ages(fake_nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_text(22304) == "2.23.4" and version_text(2708) == "2.7.8"
    monkeypatch.setenv("FAKE_NCCL_VERSION", "2708")
    library = Nccl(str(fake_nccl))
    assert library.version == 20708
    assert library.has("Send") and not library.has("GetLastError")


def test_a_library_without_send_is_refused(fake_nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_VERSION", "2604")
    with pytest.raises(NcclUnsupportedError, match=r"is NCCL 2\.6\.4.*needs 2\.7\.0") as caught:
        Nccl(str(fake_nccl))
    assert isinstance(caught.value, NotImplementedError) and isinstance(caught.value, CollsynthError)


def test_optional_functions_name_the_version_they_need(fake_nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_VERSION", "22304")
    library = Nccl(str(fake_nccl))
    assert not library.has("AlltoAll")
    with pytest.raises(NcclUnsupportedError, match=r"ncclAlltoAll needs NCCL 2\.28\.0 or later.*is 2\.23\.4"):
        library.require("AlltoAll")
    monkeypatch.setenv("FAKE_NCCL_VERSION", "22801")
    assert Nccl(str(fake_nccl)).has("AlltoAll")
    # Of the right version, but this library was built without it.
    assert not Nccl(str(fake_nccl)).has("Gather")
    with pytest.raises(NcclUsageError, match="no function 'Nonsense'"):
        library.has("Nonsense")


def test_datatypes_are_gated_by_version(fake_nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_VERSION", "2803")
    old = Nccl(str(fake_nccl))
    assert old.datatype("float32").code == 7
    with pytest.raises(NcclUnsupportedError, match=r"bfloat16 needs NCCL 2\.10"):
        old.datatype("bfloat16")
    with pytest.raises(NcclUsageError, match="no datatype 'complex64'"):
        old.datatype("complex64")
    monkeypatch.setenv("FAKE_NCCL_VERSION", "21003")
    assert Nccl(str(fake_nccl)).datatype("bfloat16").code == 9


def test_codes_are_those_of_the_header() -> None:
    assert [t.code for t in DATATYPES.values()] == list(range(12))
    assert [int(op) for op in RedOp] == list(range(5))
    assert Result.INVALID_USAGE == 5 and Result.IN_PROGRESS == 7


def test_no_library_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_pynccl.LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(InputError, match=r"none\.so.*COLLSYNTH_NCCL_LIBRARY"):
        Nccl()


def test_the_environment_chooses_the_library(fake_nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_pynccl.LIBRARY_VARIABLE, str(fake_nccl))
    assert Nccl().path == str(fake_nccl)


def test_another_library_is_not_nccl() -> None:
    with pytest.raises(InputError, match="ncclGetVersion"):
        Nccl("libc.so.6")


def test_misuse_is_ours_and_failure_is_nccls(fake_nccl: Path) -> None:
    library = Nccl(str(fake_nccl))
    with pytest.raises(NcclUsageError, match="rank 2 of 2"):
        library.init_rank(2, library.unique_id(), 2)
    with pytest.raises(NcclUsageError, match="3 bytes"):
        library.init_rank(2, b"abc", 0)
    with pytest.raises(NcclError, match="ncclGroupEnd failed: invalid usage: GroupEnd without GroupStart") as caught:
        library.call("GroupEnd")
    assert caught.value.code == Result.INVALID_USAGE and isinstance(caught.value, RunError)
    assert not isinstance(caught.value, NcclUsageError)


def test_old_versions_have_no_last_error(fake_nccl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_VERSION", "21210")
    library = Nccl(str(fake_nccl))
    with pytest.raises(NcclError, match=r"^ncclGroupEnd failed: invalid usage \(code 5\)$"):
        library.call("GroupEnd")


def test_a_communicator_closes_once(fake_nccl: Path) -> None:
    library = Nccl(str(fake_nccl))
    with library.init_rank(1, library.unique_id(), 0) as comm:
        with pytest.raises(NcclUsageError, match="send: rank 1 is out of range"):
            comm.send(0, 0, "int8", 1)
        comm.check()
    assert comm.closed
    comm.close()
    comm.abort()
    with pytest.raises(NcclUsageError, match="send on a communicator that is closed"):
        comm.send(0, 0, "int8", 0)


def test_an_exception_aborts_and_leaves_no_group_open(fake_nccl: Path) -> None:
    library = Nccl(str(fake_nccl))
    comm = library.init_rank(1, library.unique_id(), 0)
    with pytest.raises(ZeroDivisionError), comm, library.group():
        assert library.group_depth == 1
        raise ZeroDivisionError
    assert comm.closed and library.group_depth == 0


def test_unique_ids_differ(fake_nccl: Path) -> None:
    library = Nccl(str(fake_nccl))
    first, second = library.unique_id(), library.unique_id()
    assert len(first) == 128 and first != second


@pytest.mark.parametrize("count", [1, 1000, 300_000])
def test_grouped_ring_over_processes(fake_nccl: Path, count: int) -> None:
    answers = run_ranks(
        fake_nccl, 4,
        f"""
        x, y = np.full({count}, rank, np.float32), np.empty({count}, np.float32)
        with nccl.group():
            comm.send(x.ctypes.data, x.size, "float32", (rank + 1) % n)
            comm.recv(y.ctypes.data, y.size, "float32", (rank - 1) % n)
        comm.close()
        print((y == (rank - 1) % n).all())
        """,
    )  # fmt: skip
    assert answers == ["True"] * 4


@pytest.mark.parametrize("version", ["22304", "22801"])
def test_collectives_over_processes(fake_nccl: Path, version: str) -> None:
    answers = run_ranks(
        fake_nccl, 3,
        """
        x = (np.arange(6) + 10 * rank).astype(np.int32)
        def out(size): return np.full(size, -1, np.int32)
        def p(a): return a.ctypes.data
        a, b, c, d, e, f, g, h = out(6), out(18), out(2), out(6), out(6), out(6), out(18), out(2)
        comm.all_reduce(p(x), p(a), 6, "int32", RedOp.SUM)
        comm.all_gather(p(x), p(b), 6, "int32")
        comm.reduce_scatter(p(x), p(c), 2, "int32", RedOp.MAX)
        comm.broadcast(p(x), p(d), 6, "int32", 1)
        comm.reduce(p(x), p(e), 6, "int32", RedOp.SUM, 2)
        comm.all_to_all(p(x), p(f), 2, "int32")
        comm.gather(p(x), p(g), 6, "int32", 0)
        comm.scatter(p(x), p(h), 2, "int32", 1)
        comm.close()
        every = np.stack([np.arange(6) + 10 * r for r in range(n)])
        ok = [(a == every.sum(0)).all(), (b == every.ravel()).all(), (c == every.max(0)[2 * rank:2 * rank + 2]).all(),
              (d == every[1]).all(), (e == (every.sum(0) if rank == 2 else -1)).all(),
              (f == every[:, 2 * rank:2 * rank + 2].ravel()).all(),
              (g == (every.ravel() if rank == 0 else -1)).all(), (h == every[1, 2 * rank:2 * rank + 2]).all()]
        print(all(ok), ok)
        """,
        FAKE_NCCL_VERSION=version,
    )  # fmt: skip
    assert all(answer.startswith("True") for answer in answers), answers


def test_a_receive_that_nobody_sends_ends(fake_nccl: Path) -> None:
    answers = run_ranks(
        fake_nccl, 2,
        """
        y = np.empty(4, np.float32)
        try:
            if rank == 0:
                comm.recv(y.ctypes.data, 4, "float32", 1)
            print("done")
        except NcclError as error:
            print(error)
        """,
        FAKE_NCCL_TIMEOUT_MS="300",
    )  # fmt: skip
    assert answers[1] == "done"
    assert "rank 0: receive from rank 1 of 16 bytes never matched (code 2)" in answers[0]


@pytest.mark.parametrize(("count", "dtype"), [(3, "float32"), (4, "int32")])
def test_sides_that_differ_are_found(fake_nccl: Path, count: int, dtype: str) -> None:
    answers = run_ranks(
        fake_nccl, 2,
        f"""
        y = np.zeros(4, np.float32)
        try:
            if rank == 0:
                comm.send(y.ctypes.data, 4, "float32", 1)
            else:
                comm.recv(y.ctypes.data, {count}, "{dtype}", 0)
        except NcclError as error:
            print(error)
        """,
        FAKE_NCCL_TIMEOUT_MS="2000",
    )  # fmt: skip
    assert "invalid usage: rank 1 waits for" in answers[1]


def test_an_abort_is_seen_by_the_others(fake_nccl: Path) -> None:
    answers = run_ranks(
        fake_nccl, 2,
        """
        y = np.empty(4, np.float32)
        try:
            if rank == 0:
                comm.abort()
            else:
                comm.recv(y.ctypes.data, 4, "float32", 0)
        except NcclError as error:
            print(error)
            try:
                comm.check()
            except NcclError as later:
                print(later)
        """,
    )  # fmt: skip
    assert "another rank aborted" in answers[1] and "a queued operation failed" in answers[1]
