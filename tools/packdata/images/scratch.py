"""Memory that a thread fills again and again: fresh pages cost as much as a tenth of decoding."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_MAX_BYTES = 32 << 20  # what is larger is rare, and not kept


class Scratch(threading.local):
    """A block of memory per name, of each thread its own.

    What lies in it is gone with the thread's next call for that name.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, npt.NDArray[np.uint8]] = {}

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        """Be empty where it is sent to."""
        return Scratch, ()

    def block(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return so many bytes, or more, with anything in them."""
        block = self._blocks.get(name)
        if block is None or len(block) < nbytes:
            block = np.empty(nbytes, np.uint8)
            if nbytes <= _MAX_BYTES:
                self._blocks[name] = block
        return block

    def take(
        self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8
    ) -> npt.NDArray[Any]:
        """Return an array with anything in it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self.block(name, nbytes)[:nbytes].view(dtype).reshape(shape)
