"""Memory files (memfd) in huge pages, where copying looks up one page in 2 MB, and not one in 4 KB.

The kernel gives such files huge pages of itself only where an administrator said so (``shmem_enabled``), but puts small
ones together when it is asked to (``MADV_COLLAPSE``, Linux 6.1): a file that is empty but for one page in each then
takes less time than by having every page brought in by its first write. A map shows huge pages as such from a multiple
of their size on. Python cannot say where a map is to be: the file is laid over a part of one that Python has made.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import numpy.typing as npt

from loaders.system.libc import libc

UInt8Array = npt.NDArray[np.uint8]
# Of x86-64, and of arm64 with pages of 4 KB; elsewhere the kernel refuses, and nothing is lost.
HUGE = 2 << 20
# On all processors that have such pages.
_MAP_FIXED, _MAP_NORESERVE, _MADV_COLLAPSE = 0x10, 0x4000, 25


def lay(fd: int, nbytes: int, *, is_writable: bool = True) -> tuple[mmap.mmap, int]:
    """Map a memory file; for reading alone, privately: so a kernel before 6.7 maps one that is sealed, too.

    Return a map, and where in it the file begins. It keeps no descriptor; the file stays mapped until it is closed.
    """
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    spare = HUGE if nbytes >= HUGE else 0
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE  # it is only a place
    room = mmap.mmap(-1, nbytes + spare, kind, prot)
    address = int(np.frombuffer(room, np.uint8).ctypes.data)
    start = -address % HUGE if spare else 0
    flags = _MAP_FIXED | (mmap.MAP_SHARED if is_writable else mmap.MAP_PRIVATE)
    library = libc()
    assert library is not None  # it made the memory file
    if library.mmap(address + start, nbytes, prot, flags, fd, 0) != address + start:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return room, start


def collapse(array: UInt8Array) -> bool:
    """Have huge pages in part of a file, from a multiple of ``HUGE``, before it is filled; False if there are none."""
    whole = len(array) // HUGE * HUGE
    if not whole:
        return False
    array[:whole:HUGE].max()  # by a look: what has no page at all is left out
    library = libc()
    assert library is not None
    return bool(library.madvise(array.ctypes.data, whole, _MADV_COLLAPSE) == 0)
