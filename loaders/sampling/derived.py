"""What orders over arrays (weights, labels) have in common."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class Derived:
    """Pickles its arguments only: what it derived from them (``_names``) is derived again."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name[0] != "_"}


def frozen_copy(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Return a read-only copy, with one axis."""
    array = np.array(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    array.flags.writeable = False
    return array


def digest(array: npt.NDArray[Any]) -> str:
    """Return 32 hexadecimal digits that identify dtype, shape and content."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.blake2b(header + array.tobytes(), digest_size=16).hexdigest()
