"""Two requests to the kernel for pages of maps: read them ahead, and wait until they are in memory.

Each call is for many places at once and releases the GIL once. With a call for each place, a busy thread would return
the GIL only after the switch interval each time: 5 ms a record. Where a system does not have these calls, nothing is
requested, and pages are read when they are touched.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.system.libc import libc

if TYPE_CHECKING:
    from collections.abc import Sequence

    Indices = npt.NDArray[np.int64]

# No more is read of one question: the usual read-ahead (``force_page_cache_readahead`` in mm/readahead.c).
READ_BYTES = 128 << 10
_COPY_BYTES = 64 << 10  # stays in a core's cache
_MAX_PLACES = 1024  # of one call (UIO_MAXIOV)
_PIECE_BYTES = 64 << 20
_CALL_BYTES = 1 << 30  # of 2 GiB and more the kernel leaves out the rest, as if it were unreadable
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_PROCESS_MADVISE = 440  # the system call's number, on all processors

Span = tuple[int, int]  # an address, and how many bytes


def ask_for(spans: Sequence[Span]) -> None:
    """Have the kernel read some spans of memory, without waiting for them."""
    if not spans or _libc is None:
        return
    starts, sizes = np.array(spans, np.int64).T
    firsts = starts // mmap.PAGESIZE * mmap.PAGESIZE
    pieces, _ = _pieces(firsts, starts + sizes - firsts, READ_BYTES)
    for first in range(0, len(pieces), _MAX_PLACES):
        some = pieces[first : first + _MAX_PLACES]
        if not _ask_at_once(some):
            for start, nbytes in some.tolist():
                _libc.madvise(start, nbytes, _WILLNEED)


def _ask_at_once(pieces: Indices) -> bool:
    """Ask in one call; False where the system refuses: most Linux before 6.13 do, unless it is root who asks."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        process = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        args = (_PROCESS_MADVISE, process, _address(pieces), len(pieces), int(_WILLNEED or 0), 0)
        return bool(_libc.syscall(*map(ctypes.c_long, args)) >= 0)
    finally:
        os.close(process)


def wait_for(spans: Sequence[Span]) -> int | None:
    """Wait until some spans are in memory, by having the kernel copy them to a buffer that is thrown away.

    Returns:
        The number of the first one that cannot be read: touching it would end the process. None if all can, and where
        the system does not tell.
    """
    if not spans:
        return None
    starts, sizes = np.array(spans, np.int64).T
    pieces, owners = _pieces(starts, sizes, _COPY_BYTES)
    unseen = np.empty(_COPY_BYTES, np.uint8)
    targets = pieces.copy()
    targets[:, 0] = _address(unseen)
    copied = _copy(pieces, targets)
    return None if copied is None or copied == len(pieces) else int(owners[copied])


def copy(spans: Sequence[Span], out: npt.NDArray[np.uint8]) -> int | None:
    """Have the kernel copy N spans to the rows of ``(N, nbytes)`` uint8: what cannot be read does not end the process.

    Return how many were copied before one that cannot be read; None where the system copies none.
    """
    starts, sizes = np.array(spans, np.int64).T
    pieces, owners = _pieces(starts, sizes, _PIECE_BYTES)
    rows = _address(out) + np.arange(len(out)) * out.shape[1]
    targets, _ = _pieces(rows, sizes, _PIECE_BYTES)
    copied = _copy(pieces, targets)
    return len(spans) if copied == len(pieces) else copied and int(owners[copied])


def _copy(pieces: Indices, targets: Indices) -> int | None:
    """Copy from addresses to addresses; return how many whole pieces were copied, or None if the system cannot."""
    if _libc is None or not hasattr(_libc, "process_vm_readv"):
        return None
    step = min(_MAX_PLACES, _CALL_BYTES // int(pieces[:, 1].max(initial=1)))
    for first in range(0, len(pieces), step):
        some, there = pieces[first : first + step], targets[first : first + step]
        args = (os.getpid(), _address(there), len(there), _address(some), len(some), 0)
        copied = _libc.process_vm_readv(*map(ctypes.c_long, args))
        if copied < 0 and ctypes.get_errno() != errno.EFAULT:
            return None
        ends = np.cumsum(some[:, 1])
        if copied < ends[-1]:
            return first + int(np.searchsorted(ends, max(copied, 0), "right"))
    return len(pieces)


def _pieces(starts: Indices, sizes: Indices, most: int) -> tuple[Indices, Indices]:
    """Cut spans into pieces; return address and size of each, and which span it is of."""
    counts = -(-sizes // most)
    owners = np.repeat(np.arange(len(counts)), counts)
    begun = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]  # of its span before it
    pieces = np.empty((len(owners), 2), np.int64)
    pieces[:, 0] = starts[owners] + begun * most
    pieces[:, 1] = np.minimum(sizes[owners] - begun * most, most)
    return pieces, owners


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


_libc: Any = None if _WILLNEED is None else libc()
