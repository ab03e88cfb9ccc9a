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
    made = missing_folders(folder)
    try:
        make_folder(folder)
        lock = TargetLock(folder / PACKING_NAME / LOCK_NAME)
        try:
            yield
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()
    finally:
        with suppress(OSError):  # something lies there
            for path in (folder / PACKING_NAME, *made):
                path.rmdir()


class TargetLock:
    """The right to pack into one folder; the kernel takes it back when the process ends.

    Raises:
        PackError: Another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        while self._fd < 0:
            try:
                path.parent.mkdir(exist_ok=True)  # its last owner may have removed it just now
            except FileExistsError:  # or does so between two looks of this call
                if os.path.lexists(path.parent) and not path.parent.is_dir():
                    raise
            is_new = not path.exists()
            try:
                self._acquire(os.open(path, os.O_RDWR | os.O_CREAT | CLOEXEC, 0o644))
            except FileNotFoundError:
                continue
            except OSError:
                # No locks on this file system: no other process can hold one on the new file.
                if is_new:
                    path.unlink(missing_ok=True)
                raise

    def _acquire(self, fd: int) -> None:
        try:
            _lock(fd)
            if _is_same_file(fd, self.path):  # else its last owner finished, and removed it
                # A full disk: the number is for people, the lock holds without it.
                with suppress(OSError):
                    os.ftruncate(fd, 0)
                    os.write(fd, b"%d\n" % os.getpid())
                self._fd = fd
        except BlockingIOError:
            what = f"{_owner(fd)} is packing into it"
            raise PackError(what, self.path.parent.parent, "Wait for it, or stop it") from None
        finally:
            if self._fd < 0:
                os.close(fd)

    def release(self) -> None:
        """Give the lock back; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
