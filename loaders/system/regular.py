"""Opening files that are files: a pipe may be waited for in vain, and a device has no end.

All that is opened by a name that a user, a manifest or a folder gave is opened here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from pathlib import Path

_AT_ONCE = 1 << 20
_MOST = 1 << 31  # bytes: no record is larger
# A pipe, too, is opened at once; on Windows, which has no such flag, bytes are read as they are.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def regular(path: str, flags: int) -> int:
    """Open a regular file: an opener, as in ``open(path, "rb", opener=regular)``.

    Raises:
        OSError: It is something else, or cannot be opened.
    """
    descriptor = os.open(path, flags | _READ, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path | str, at_most: int = _MOST) -> bytes:
    """Return the bytes of a file by as few calls into the kernel as there are.

    Each lets other threads have the GIL, and may wait to get it back.

    Raises:
        OSError: What ``regular`` raises, or there are more bytes than ``at_most``.
        ValueError: There is a NUL in the name.
    """
    descriptor = regular(os.fspath(path), 0)
    try:
        size = os.fstat(descriptor).st_size
        data = b"" if size > at_most else os.read(descriptor, size + 1)
        if len(data) == size > 0:
            return data
        pieces, num = [data], len(data)  # its size was not known, it grows, or a read was cut
        while num <= at_most >= size and (piece := os.read(descriptor, _AT_ONCE)):
            pieces.append(piece)
            num += len(piece)
        if max(num, size) > at_most:
            raise OSError(errno.EFBIG, f"more than {at_most:,} bytes", os.fspath(path))
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def hash_file(path: Path) -> str:
    """Return the xxh3-128 of a file's bytes, hexadecimal."""
    with open(path, "rb", opener=regular) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
