"""What of a file lies in the page cache, and taking files out of it."""

import mmap
import os
from collections.abc import Iterable
from ctypes import c_size_t, c_void_p
from pathlib import Path

import numpy as np

from loaders.system.libc import libc


def resident_share(files: Iterable[Path]) -> float | None:
    """Return which share of the pages of files is in the page cache; None where that cannot be asked."""
    library, states = libc(), [np.zeros(0, np.uint8)]
    if library is None or not hasattr(library, "mincore"):
        return None
    for file in files:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            view = np.frombuffer(mapped, np.uint8)
            states.append(np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8))
            asked = [c_void_p(view.ctypes.data), c_size_t(len(view))]
            assert not library.mincore(*asked, c_void_p(states[-1].ctypes.data))
            del view  # or the map could not be closed
    pages = np.concatenate(states)
    return float((pages & 1).mean()) if len(pages) else 0.0


def drop_pages(files: Iterable[Path]) -> None:
    """Ask the kernel to forget files that are on disk; what a process has mapped and touched stays."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
