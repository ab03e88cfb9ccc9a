"""Folders of this machine for data on the way to or from a store: found again by a killed command, and never shared."""

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

_OTHER = "Set TMPDIR to a folder of yours"
_MOST = 256  # folders of one purpose, among which those that were left are looked for


def staging_folder(what: str) -> Path:
    """Return the folder for a purpose on this machine: always the same one.

    Raises:
        PackError: The folder for temporary files is of no use for that.
    """
    above = Path(tempfile.gettempdir()) / f"packdata-{os.getuid()}"
    try:
        above.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PackError(f"it cannot be used ({error.strerror})", above, _OTHER) from error
    if above.is_symlink() or above.stat().st_uid != os.getuid():
        raise PackError("it belongs to another user", above, _OTHER)
    return above / xxhash.xxh3_64_hexdigest(what.encode())


@contextmanager
def on_the_way(folder: Path, url: Path) -> Iterator[None]:
    """Add to errors about a folder for which URL it is: the user has not named that folder."""
    try:
        yield
    except LoadersError as error:
        if str(folder) in str(error):
            error.add_note(f"what goes to {url} is made there first: TMPDIR chooses another disk")
        raise


@contextmanager
def claimed_folder(what: str) -> Iterator[Path]:
    """Yield a folder for a purpose: always the same one, unless another process is using it.

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
            with suppress(OSError):  # what was made stays
                (above / "made").rmdir()
            if not (above / "made").exists():
                shutil.rmtree(above, ignore_errors=True)
            os.close(fd)
        return


def drop_unclaimed(what: str) -> None:
    """Remove the folders of a purpose that killed processes have left."""
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
