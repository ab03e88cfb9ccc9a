"""Folders of this machine for what is on its way to a store, or from one: found again, and used by one at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from loaders.errors import LoadersError, PackError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 256  # folders for one thing, of which those that are left are looked for


def staging_folder(what: str) -> Path:
    """Return the folder of something on this machine, the same one for the same.

    Raises:
        PackError: The folder for temporary files is of no use for that.
    """
    above = Path(tempfile.gettempdir()) / f"packdata-{os.getuid()}"
    above.mkdir(mode=0o700, exist_ok=True)
    if above.is_symlink() or above.stat().st_uid != os.getuid():
        raise PackError("it belongs to another user", above, "Set TMPDIR to a folder of yours")
    return above / xxhash.xxh3_64_hexdigest(what.encode())


@contextmanager
def on_the_way(folder: Path, url: Path) -> Iterator[None]:
    """Say in errors of a folder what is made there, and for which place: nobody has named that folder."""
    try:
        yield
    except LoadersError as error:
        if str(folder) in str(error):
            error.add_note(f"what goes to {url} is made there first: TMPDIR chooses another disk")
        raise


@contextmanager
def claimed_folder(what: str) -> Iterator[Path]:
    """Yield a place for something: the same one for the same, unless another process has it.

    The kernel takes the lock back when its process ends, so a killed command finds its folder again.

    Raises:
        PackError: The folder for temporary files is of no use for that.
    """
    for number in count():
        above = staging_folder(f"{what} {number}")
        try:
            fd = _claim(above)
        except OSError as error:
            raise PackError(f"it cannot be used ({error.strerror})", above) from error
        if fd is None:
            continue
        try:
            yield above / "made"
        finally:
            if not (above / "made").exists():
                shutil.rmtree(above, ignore_errors=True)
            os.close(fd)
        return


def drop_unclaimed(what: str) -> None:
    """Remove the folders for something that killed processes have left."""
    for number in range(_MOST):
        folder = staging_folder(f"{what} {number}")
        if folder.exists() and (fd := _claim(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)


def _claim(folder: Path) -> int | None:
    """Return the descriptor that holds the lock on a folder; None if another process has it."""
    import fcntl  # not on Windows, where there are no stores

    while True:
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # its last owner removed it just now
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(folder)):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
