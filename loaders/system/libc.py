"""The C library, by ctypes: its calls release the GIL."""

from __future__ import annotations

import ctypes
from functools import cache

_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
# Calls with their arguments (None: each call says) and results; a system may lack some.
_CALLS = {
    "mmap": ([_ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_long], _ADDRESS),
    "munmap": ([_ADDRESS, _SIZE], _INT),
    "madvise": ([_ADDRESS, _SIZE, _INT], _INT),
    "process_vm_readv": (None, ctypes.c_ssize_t),
}


@cache
def libc() -> ctypes.CDLL | None:
    """Return the C library of this process; None where there is none, as on Windows."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None
    for name, (arguments, result) in _CALLS.items():
        if hasattr(library, name):
            call = getattr(library, name)
            call.argtypes, call.restype = arguments, result
    return library
