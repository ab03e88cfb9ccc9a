"""Page-locked host memory: what a device can copy from, or read, in the background."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from loaders.errors import LoadersError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    UInt8Array = npt.NDArray[np.uint8]

_READ_ONLY = 8  # cudaHostRegisterReadOnly: without it, memory that is mapped read-only is refused
_locked: dict[int, weakref.ref[Any]] = {}


def pinned_buffer(nbytes: int) -> UInt8Array:
    """Return new page-locked memory, undefined: a batch slot.

    It is torch's, which rounds the size up to a power of two and keeps freed memory for its own use.

    Raises:
        RuntimeError: There is no accelerator, or it gets no such memory.
    """
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()


def _runtime(what: str) -> Any:
    try:
        return torch.cuda.cudart()
    except (AssertionError, RuntimeError) as error:  # a build without CUDA, or a broken one
        raise LoadersError(f"{what} cannot be page-locked without CUDA: {error}") from error


def page_lock(array: UInt8Array, what: str, runtime: Any = None) -> None:
    """Page-lock memory that exists already, until the array dies (views keep it); once, however often it is called.

    LoadersError if the runtime (``torch.cuda.cudart()``) refuses: it has ``what`` it is, size and code.
    """
    if not array.nbytes:
        return
    runtime = _runtime(what) if runtime is None else runtime
    address = array.ctypes.data
    if address in _locked and _locked[address]() is array:  # a shared copy is one for all datasets
        return
    flags = 0 if array.flags.writeable else _READ_ONLY
    code = int(runtime.cudaHostRegister(address, array.nbytes, flags))
    if code:
        # Launch a kernel: torch looks for errors behind each, and would raise this one behind the trainer's next.
        with suppress(AssertionError, RuntimeError):  # the error; or a build without CUDA
            torch.ones(1, device="cuda")
        raise LoadersError(
            f"{what}: {array.nbytes / 1e9:.3g} GB could not be page-locked (CUDA error {code}). Page-locked memory is "
            "bounded by the machine's RAM and by 'ulimit -l', and not every GPU reads a shared copy"
        )
    _locked[address] = weakref.ref(array)
    weakref.finalize(array, _unlock, runtime, address)


def _unlock(runtime: Any, address: int) -> None:
    _locked.pop(address, None)
    runtime.cudaHostUnregister(address)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in torch's page-locked memory, or as it is where it lies in such, or on a device."""
    return tensor if tensor.is_pinned() or tensor.device.type != "cpu" else tensor.pin_memory()
