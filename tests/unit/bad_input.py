"""Running the command line in this process, as the tests of bad input do."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import pytest

from collsynth.cli import main

#: Seconds after which a command hangs.
LIMIT_S = 30


@dataclass(frozen=True)
class Outcome:
    """What a command gave."""

    code: int
    out: str
    err: str

    def refused(self, *words: str) -> Outcome:
        """Assert: bad usage or input, one message that has these words, and nothing on stdout."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert self.out == ""
        self.clean()
        assert self.err.strip()
        for word in words:
            assert word in self.err, (word, self.err)
        return self

    def clean(self) -> Outcome:
        """Assert: an exit code of the contract and no traceback or internal error."""
        assert self.code in (0, 1, 2, 3), (self.code, self.err)
        assert "Traceback" not in self.err and "internal error" not in self.err, self.err
        return self


Run = Callable[..., Outcome]


@contextmanager
def no_hang() -> Iterator[None]:
    """Fail what takes longer than `LIMIT_S`."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"no answer within {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(*arguments, stdin=b"")`."""

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with no_hang(), pytest.raises(SystemExit) as end:
            main(list(arguments))
        shown = capsys.readouterr()
        code = end.value.code
        return Outcome(code if isinstance(code, int) else 0, shown.out, shown.err)

    return run
