"""Files in and out of the page cache."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from loaders.system.libc import libc

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterable
    from pathlib import Path

_PAGE = mmap.PAGESIZE


def drop(files: Iterable[Path]) -> bool:
    """Ask the kernel to forget files; what a process has mapped and touched stays. False where that cannot be asked.

    What was just written is synced first, or it would stay too; of some file systems nothing can be.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    is_asked = True
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            with suppress(OSError):  # as of squashfs; what stays by that, `resident_share` shows
                os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            is_asked = False
        finally:
            os.close(fd)
    return is_asked


def resident_share(files: Iterable[Path], max_files: int = 200) -> float | None:
    """Return which share of the files' bytes lies in the page cache, or None where that cannot be asked.

    Of many files, some that are spread evenly are looked at. Since Linux 5.2 it can be asked of those that
    belong to the user, or that the user may write: of any other the kernel says that all of it is there.

    Source: ``can_do_mincore`` in the kernel's mm/mincore.c.
    """
    library = libc()
    if library is None or not hasattr(library, "mincore"):
        return None
    chosen = list(files)
    pages = cached = 0
    for file in chosen[:: max(1, len(chosen) // max_files)]:
        states = _page_states(library, file) if _may_be_asked(file) else None
        if states is None:
            return None
        pages, cached = pages + len(states), cached + int((states & 1).sum())
    return cached / pages if pages else 0.0


def _may_be_asked(file: Path) -> bool:
    return os.geteuid() in (0, file.stat().st_uid) or os.access(file, os.W_OK)


def _page_states(
    library: ctypes.CDLL, file: Path
) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
    size = file.stat().st_size
    states = np.zeros(-(-size // _PAGE), np.uint8)
    if not size:
        return states
    with file.open("rb") as opened:
        try:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:  # as of FUSE with direct_io
            return None
    with mapped:
        view = np.frombuffer(mapped, np.uint8)
        failed = library.mincore(view.ctypes.data, size, states.ctypes.data)
        del view  # or the map could not be closed
    return None if failed else states
