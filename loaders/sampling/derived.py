"""The arrays that orders choose by (weights, labels, lengths): checked, frozen, and told by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.checks import shown

if TYPE_CHECKING:
    import numpy.typing as npt


def frozen_copy(values: npt.ArrayLike, name: str, like: str = "[1, 2, ...]") -> npt.NDArray[Any]:
    """Return a read-only copy, with one axis.

    Raises:
        TypeError: The values are a dataset, a name, or one value; ``like`` says what would be right.
        ValueError: They have more axes.
    """
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not is_list and not hasattr(values, "__array__"):
        what = f"{name} must have one value for each sample or source, such as {like}"
        raise TypeError(f"{what}, got {shown(values)}")
    array = np.array(np.asarray(values))  # of a tensor, np.array alone warns
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    # Of a table: texts as objects, which have no bytes to tell them by.
    if array.dtype.kind in "OT":
        listed = array.tolist()
        array = np.array(listed)
        if array.dtype.kind not in "biufU" or len({isinstance(v, str) for v in listed}) > 1:
            raise TypeError(f"{name} must be numbers, or all texts, got {shown(values)}")
    array.flags.writeable = False
    return array


def as_floats(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.float64]:
    """Return the numbers as float64; TypeError if they are none."""
    if array.dtype.kind not in "biuf" and array.size:
        raise TypeError(f"{name} must be numbers, got {shown(array.tolist())}")
    return array.astype(np.float64, copy=False)


def digest(array: npt.NDArray[Any]) -> str:
    """Return 32 hexadecimal digits that identify dtype, shape and content."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.blake2b(header + array.tobytes(), digest_size=16).hexdigest()
