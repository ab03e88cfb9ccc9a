"""Files that one process has at a time; folders of this machine for data on the way to or from a store."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import PackError

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHER = "Set TMPDIR to a folder of yours"


@contextmanager
def claimed_folder(what: str) -> Iterator[Path]:
    """Yield a folder for a purpose: always the same one, unless another process is using it.

    The kernel takes the lock back when its process ends, so a killed command finds its folder again.

    Raises:
        PackError: The folder for temporary files is of no use for that.
    """
    for number in count():
        above = _folder(f"{what} {number}")
        if (fd := lock_if_free(above / "lock")) is None:
            continue
        try:
            yield above / "made"
        finally:
            with suppress(OSError):  # what was made stays
                (above / "made").rmdir()
            if not (above / "made").exists():
                shutil.rmtree(above, ignore_errors=True)
            os.close(fd)
        return


def _folder(what: str) -> Path:
    above = Path(tempfile.gettempdir()) / f"packdata-{os.getuid()}"
    folder = above / xxhash.xxh3_64_hexdigest(what.encode())
    try:
        above.mkdir(mode=0o700, exist_ok=True)
        if above.is_symlink() or above.stat().st_uid != os.getuid():
            raise PackError("owned by another user", above, _OTHER)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise PackError(f"cannot be used ({error.strerror})", above, _OTHER) from error
    return folder


def lock_if_free(path: Path) -> int | None:
    """Lock a file, which is made, until the descriptor that is returned is closed.

    None if another process has it, or is just giving it up.
    """
    fd = -1
    try:
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _lock(fd)
        if os.path.samestat(os.fstat(fd), os.stat(path)):  # else its last owner removed it
            locked, fd = fd, -1
            return locked
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if fd >= 0:
            os.close(fd)
    return None


def _lock(fd: int) -> None:
    """Lock a file until it is closed; BlockingIOError if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        windows: Any = msvcrt
        windows.locking(fd, windows.LK_NBLCK, 1)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
