"""The installed package: its list of packages, and how light it starts."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_package_list_matches_the_folders() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = set(settings["packages"])
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "collsynth").rglob("__init__.py")}
    for folder in ("topologies", "algorithms", "backends", "bench"):
        for path in (ROOT / folder).rglob("__init__.py"):
            found.add("collsynth." + ".".join(path.parent.relative_to(ROOT).parts))
    assert listed == found


@pytest.mark.parametrize(
    "statement",
    [
        "import collsynth",
        "import collsynth.cli, collsynth.verifier, collsynth.formats",
        "import collsynth.backends.numpy_backend",
    ],
)
def test_a_training_node_needs_no_solver(statement: str) -> None:
    heavy = ("scipy", "numba", "ortools", "highspy", "z3", "torch", "matplotlib", "pandas", "mpi4py", "cupy")
    code = f"import sys; {statement}; print(*[m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_public_names_resolve() -> None:
    import collsynth

    for name in collsynth.__all__:
        assert getattr(collsynth, name) is not None
    with pytest.raises(AttributeError):
        collsynth.nonsense  # noqa: B018
