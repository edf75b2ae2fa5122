"""Reading and writing files as every format does it: bounded, in one move, never over another file."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError

#: Larger files are refused before they are read.
MAX_FILE_BYTES = 1 << 30


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, or of standard input for `-`.

    Raises:
        InputError: it does not exist, is no file, is not readable, or is larger than `MAX_FILE_BYTES`.
    """
    if not str(path):
        raise InputError("the file name is empty", expected="a file, or - for standard input")
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("is closed", where="standard input", expected="a text on standard input, or a file name")
        return _bounded(sys.stdin.buffer, "standard input")
    try:
        if Path(path).is_dir():
            raise InputError("is a directory", where=str(path), expected="a file")
        with open(path, "rb") as stream:
            return _bounded(stream, str(path))
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path), expected="a file that can be read") from error
    except ValueError as error:  # a NUL byte in the name
        raise InputError(str(error), where=repr(str(path)), expected="a file name") from error


def _bounded(stream: BinaryIO, where: str) -> bytes:
    """Everything in the stream; it is the stream that tells its length: a device or pipe has no size."""
    data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"has more than {MAX_FILE_BYTES} bytes", where=where, expected="a smaller file")
    return data


def check_writable(path: str | Path, *, force: bool) -> Path:
    """The path, if a file may be written there.

    Devices and pipes (`/dev/null`) hold nothing that could be lost, so that they need no `force`.

    Raises:
        InputError: it exists and `force` is not given, is a directory, or its folder does not exist.
    """
    if not str(path) or "\0" in str(path):
        raise InputError(f"{str(path)!r} is no file name", where="output", expected="a file name")
    target = Path(path)
    try:
        if target.is_dir():
            raise InputError("is a directory", where=str(target), expected="a file name")
        if target.exists() and not _is_device(target) and not force:
            raise InputError("the file exists", where=str(target), hint="-f to overwrite it")
        if not target.parent.is_dir():
            raise InputError(f"folder {target.parent} does not exist", where=str(target), expected="an existing folder")
    except OSError as error:  # a name that is too long
        raise InputError(
            error.strerror or str(error), where=f"{str(target)[:80]}...", expected="a file name"
        ) from error
    return target


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def write_bytes_atomically(path: str | Path, data: bytes, *, force: bool) -> None:
    """Write a file in one move: nobody ever sees half of it.

    A device or pipe is written to, never replaced; of a symbolic link what it points to is replaced.

    Raises:
        InputError: it exists and `force` is not given, or it cannot be written there.
    """
    target = check_writable(path, force=force)
    try:
        if _is_device(target):
            target.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", where=str(target), expected="a folder where you may write"
        ) from error


def _replace(target: Path, data: bytes) -> None:
    """Put a file with `data` in the place of `target`."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:60]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text_atomically(path: str | Path, text: str, *, force: bool) -> None:
    """`write_bytes_atomically` for text: UTF-8, LF."""
    write_bytes_atomically(path, text.encode("utf-8"), force=force)
