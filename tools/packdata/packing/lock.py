"""The lock on a folder that is packed into; the kernel takes it back when its process ends."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from loaders.errors import PackError
from packdata.packing.target import PACKING_NAME, make_folder, missing_folders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "lock"
CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # each where there is such
# Windows locks bytes, which then cannot be read: none of those that the file has.
_LOCK_AT = 1 << 30


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other commands out of a folder, which is made; it goes again if nothing came into it.

    Raises:
        PackError: Another process is packing into it.
    """
    made, path = missing_folders(folder), folder / PACKING_NAME / LOCK_NAME
    try:
        make_folder(folder)
        fd = lock(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)
    finally:
        with suppress(OSError):  # something lies there
            for each in (path.parent, *made):
                each.rmdir()


def lock(path: Path) -> int:
    """Lock a file, which is made, until the descriptor that is returned is closed.

    Raises:
        PackError: Another process has locked it.
    """
    while True:
        try:
            path.parent.mkdir(exist_ok=True)  # its last owner may have removed it just now
        except FileExistsError:  # or does so between two looks of this call
            if os.path.lexists(path.parent) and not path.parent.is_dir():
                raise
        is_new, fd, is_ours = not path.exists(), -1, False
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | CLOEXEC, 0o644)
            _lock(fd)
            if _is_same_file(fd, path):  # else its last owner finished, and removed it
                with suppress(OSError):  # a full disk: the number is for people
                    os.ftruncate(fd, 0)
                    os.write(fd, b"%d\n" % os.getpid())
                is_ours = True
                return fd
        except FileNotFoundError:
            continue
        except BlockingIOError:
            what = f"{_owner(fd)} is packing into it"
            raise PackError(what, path.parent.parent, "Wait for it, or stop it") from None
        except OSError:
            # No locks on this file system: no other process can hold one on the new file.
            if is_new:
                path.unlink(missing_ok=True)
            raise
        finally:
            if fd >= 0 and not is_ours:
                os.close(fd)


def _lock(fd: int) -> None:
    """Lock a file until it is closed; BlockingIOError if another process has it."""
    try:
        import fcntl
    except ImportError:
        _lock_on_windows(fd)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_on_windows(fd: int) -> None:
    import msvcrt

    windows: Any = msvcrt
    os.lseek(fd, _LOCK_AT, os.SEEK_SET)
    try:
        windows.locking(fd, windows.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(errno.EWOULDBLOCK, "another process has the lock") from error
    finally:
        os.lseek(fd, 0, os.SEEK_SET)


def _owner(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    pid = os.read(fd, 32).decode(errors="replace").strip()
    return f"process {pid}" if pid.isdigit() else "another process"


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
