"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The shared corpus of real files: COLLSYNTH_CORPUS, else ../shared/corpus beside the checkout."""
    named = os.environ.get("COLLSYNTH_CORPUS")
    path = Path(named) if named else Path(__file__).resolve().parents[1] / ".." / "shared" / "corpus"
    if not path.is_dir():
        pytest.skip(f"no corpus at {path.resolve()}: set COLLSYNTH_CORPUS to the folder that holds it")
    return path.resolve()


@pytest.fixture(scope="session")
def fake_nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnccl that runs on host memory, compiled from tests/fake_nccl."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the fake NCCL library cannot be built")
    source = Path(__file__).parent / "fake_nccl" / "fake_nccl.c"
    library = tmp_path_factory.mktemp("fake_nccl") / "libnccl.so.2"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library
