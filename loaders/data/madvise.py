"""Two requests to the kernel for pages of maps: read them ahead, and wait until they are in memory.

Where a system does not have these calls, nothing is requested, and pages are read when they are touched.
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
    from collections.abc import Iterable, Sequence

# No more is read of one question: the usual read-ahead (``force_page_cache_readahead`` in mm/readahead.c).
READ_BYTES = 128 << 10
_COPY_BYTES = 64 << 10  # stays in a core's cache
_MAX_PLACES = 1024  # of one call (UIO_MAXIOV)
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)

Span = tuple[int, int]  # an address, and how many bytes


def ask_for(spans: Iterable[Span]) -> None:
    """Have the kernel read some spans of memory, without waiting for them."""
    if _libc is None:
        return
    for start, nbytes in spans:
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        for at in range(first, start + nbytes, READ_BYTES):
            size = min(READ_BYTES, start + nbytes - at)
            _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), _WILLNEED)


def wait_for(records: Sequence[npt.NDArray[Any]]) -> int | None:
    """Wait until some records are in memory, by having the kernel copy them to a buffer that is thrown away.

    One call waits for many records without the GIL. With a call for each, a thread that is busy in Python would keep
    the GIL for a switch interval after each call, 5 ms a record.

    Returns:
        The number of the first one that cannot be read: touching it would end the process. None if all can, and where
        the system does not tell.
    """
    if not records or not hasattr(_libc, "process_vm_readv"):
        return None
    starts, sizes = np.array([span_of(record) for record in records], np.int64).T
    counts = -(-sizes // _COPY_BYTES)
    owners = np.repeat(np.arange(len(records)), counts)
    before = (np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]) * _COPY_BYTES
    pieces = np.stack(
        [starts[owners] + before, np.minimum(sizes[owners] - before, _COPY_BYTES)], 1
    )
    buffer, targets = np.empty(_COPY_BYTES, np.uint8), pieces.copy()
    targets[:, 0] = span_of(buffer)[0]
    for first in range(0, len(pieces), _MAX_PLACES):
        some, there = pieces[first : first + _MAX_PLACES], targets[first : first + _MAX_PLACES]
        args = os.getpid(), span_of(there)[0], len(there), span_of(some)[0], len(some), 0
        copied = _libc.process_vm_readv(*map(ctypes.c_long, args))
        if copied < 0 and ctypes.get_errno() != errno.EFAULT:
            return None
        ends = np.cumsum(some[:, 1])
        if copied < ends[-1]:
            return int(owners[first + np.searchsorted(ends, max(copied, 0), "right")])
    return None


def span_of(array: npt.NDArray[Any]) -> Span:
    """Return the address of an array, and its size in bytes."""
    return array.__array_interface__["data"][0], array.nbytes


_libc: Any = None if _WILLNEED is None else libc()
