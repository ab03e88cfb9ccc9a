"""Whether a file can be read again and again: a pipe gives its bytes once, and may be waited for in vain."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from loaders.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

_AT_ONCE = 1 << 20


def check_regular(path: Path | str, where: Path | str) -> None:
    """Raise SourceError, which names ``where``, for a pipe, socket or device.

    What is not there, or a folder, is left to whoever opens it.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return
    check_mode(mode, where)


def check_mode(mode: int, where: Path | str) -> None:
    """Raise SourceError as ``check_regular`` does, for who has asked for the file's mode already."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceError("it is not a regular file", where)


# A pipe, too, is opened at once; on Windows, which has no such flag, bytes are read as they are.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_regular(path: Path | str, where: Path | str) -> bytes:
    """Return the bytes of a file by as few calls into the kernel as there are.

    Each lets other threads have Python's lock, and may wait to get it back.

    Raises:
        SourceError: As ``check_regular`` does.
        OSError, ValueError: It cannot be read; there is a NUL in the name.
    """
    descriptor = os.open(path, _READ)
    try:
        about = os.fstat(descriptor)
        check_mode(about.st_mode, where)
        data = os.read(descriptor, about.st_size + 1)
        if len(data) == about.st_size > 0:
            return data
        return data + b"".join(iter(lambda: os.read(descriptor, _AT_ONCE), b""))
    finally:
        os.close(descriptor)
