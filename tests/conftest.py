"""Fixtures that all tests share."""

from __future__ import annotations

import os
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
