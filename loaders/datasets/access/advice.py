"""Two words to the kernel about pages of a map: bring them, and say when they are there.

Both let the interpreter's lock go. Where a system knows neither, nothing is said, and pages come when they are touched.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
from typing import Any

# No more is read of one question: the usual read-ahead (``force_page_cache_readahead`` in mm/readahead.c).
READ_BYTES = 128 << 10
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_POPULATE_READ = 22 if sys.platform == "linux" else None  # since 5.14; mmap has no name for it


def ask_for(address: int, nbytes: int) -> None:
    """Have the kernel read some bytes into memory, without waiting for them."""
    for start in range(address, address + nbytes, READ_BYTES):
        _advise(start, min(READ_BYTES, address + nbytes - start), _WILLNEED)


def wait_for(address: int, nbytes: int) -> bool:
    """Wait until some bytes are in memory; False if they cannot be read, and touching them would end the process."""
    return _advise(address, nbytes, _POPULATE_READ) != errno.EFAULT


def _advise(address: int, nbytes: int, advice: int | None) -> int:
    """Return the error's number, or 0."""
    if advice is None or _madvise is None:
        return 0
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    return ctypes.get_errno() if _madvise(first, address + nbytes - first, advice) else 0


def _find_madvise() -> Any:
    """Return the C function, which needs no map object; None where there is none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None) if _WILLNEED else None
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


_madvise = _find_madvise()
