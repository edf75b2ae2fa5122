"""The exceptions of collsynth, named after what went wrong.

Every exception that a user can cause is a `CollsynthError`.  The command line turns each into one
message and an exit code (`exit_code`): 2 for bad usage or input, 1 when the honest answer is "no",
3 when a time limit passed with nothing to give.
"""

from __future__ import annotations


class CollsynthError(Exception):
    """Base of all errors that collsynth raises on purpose."""

    exit_code = 2


class InputError(CollsynthError):
    """The user's input is wrong or unreadable.

    Args:
        what: what is wrong, in one clause.
        where: file:line, option name, or rank/threadblock/step; None when there is no better place.
        expected: what would have been right.
        hint: how to mend it.
    """

    def __init__(
        self, what: str, *, where: str | None = None, expected: str | None = None, hint: str | None = None
    ) -> None:
        self.what, self.where, self.expected, self.hint = what, where, expected, hint
        text = f"{where}: {what}" if where else what
        if expected:
            text += f"; expected {expected}"
        if hint:
            text += f"; try {hint}"
        super().__init__(text)


class UnknownSpeedError(InputError):
    """A bandwidth is needed that the topology does not know."""


class DisconnectedError(InputError):
    """Some rank cannot reach, or be reached by, another one that the collective needs."""

    def __init__(
        self, what: str, *, where: str | None = None, expected: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(
            what, where=where, expected=expected or "a path of links between them",
            hint=hint or "`collsynth topo show`, and --relay where --ranks leaves GPUs out",
        )  # fmt: skip


class MissingDependencyError(CollsynthError):
    """An optional package is not installed; the message names the extra that holds it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed; try pip install 'collsynth[{extra}]'")
        self.package, self.extra = package, extra


class RefusedError(CollsynthError):
    """The request is understood and the answer is no (a limit, a window, a divisibility rule)."""

    exit_code = 1


class InfeasibleError(RefusedError):
    """Proven: nothing satisfies the constraints that the user gave."""


class VerificationError(RefusedError):
    """A schedule or program is wrong.  `findings` holds every finding."""

    def __init__(self, message: str, findings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class TimeLimitError(CollsynthError):
    """The time limit passed before there was anything to give."""

    exit_code = 3


class RunError(CollsynthError):
    """A run gave wrong data or could not go on (a peer was waited for in vain)."""

    exit_code = 1


def require(module: str, extra: str, purpose: str) -> object:
    """Import `module` or say which extra of collsynth brings it.

    Raises:
        MissingDependencyError: the module is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(module, extra, purpose) from error
