"""Reading and writing files as every format does it: bounded, in one move, never over another file."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ..errors import InputError

#: Larger files are refused before they are read.
MAX_FILE_BYTES = 1 << 30


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, or of standard input for `-`.

    Raises:
        InputError: it does not exist, is no file, is not readable, or is larger than `MAX_FILE_BYTES`.
    """
    if str(path) == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError(f"more than {MAX_FILE_BYTES} bytes", where="standard input")
        return data
    file = Path(path)
    try:
        if file.is_dir():
            raise InputError("is a directory", where=str(path), expected="a file")
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InputError(f"has {size} bytes", where=str(path), expected=f"at most {MAX_FILE_BYTES}")
        return file.read_bytes()
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path)) from error
    except ValueError as error:  # a NUL byte in the name
        raise InputError(str(error), where=repr(str(path))) from error


def check_writable(path: str | Path, *, force: bool) -> Path:
    """The path, if a file may be written there.

    Raises:
        InputError: it exists and `force` is not given, is a directory, or its folder does not exist.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError("is a directory", where=str(target), expected="a file name")
    if target.exists() and not force:
        raise InputError("the file exists", where=str(target), hint="-f to overwrite it")
    if not target.parent.is_dir():
        raise InputError(f"folder {target.parent} does not exist", where=str(target))
    return target


def write_bytes_atomically(path: str | Path, data: bytes, *, force: bool) -> None:
    """Write a file in one move: nobody ever sees half of it.

    Raises:
        InputError: it exists and `force` is not given, or its folder does not exist.
    """
    target = check_writable(path, force=force)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
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
