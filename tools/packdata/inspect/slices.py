"""Arrays as pictures: the middle slice of a volume, for a contact sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.schema import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from loaders.schema import Field


def is_plane(kind: Field) -> bool:
    """Tell whether a field holds arrays that have a slice to look at."""
    return isinstance(kind, Array) and (kind.spatial or 0) >= 2


def is_array_mask(kind: Field, fields: Mapping[str, Field]) -> bool:
    """Tell whether a field holds one whole number for each place of another field's arrays."""
    if not isinstance(kind, Array) or np.dtype(kind.dtype).kind not in "ui":
        return False
    return kind.spatial == len(kind.dims) and any(
        isinstance(other, Array) and other.dims[1:] == kind.dims and other.spatial == kind.spatial
        for other in fields.values()
    )


def middle_slice(array: npt.NDArray[Any], spatial: int) -> npt.NDArray[Any]:
    """Return the middle slice along all spatial axes but the last two.

    Args:
        array: ``(H, W)``, ``(C, H, W)``, ``(C, D, H, W)``, ...; no axis of length 0.
        spatial: How many axes are spatial, at least 2.

    Returns:
        ``(H, W, 3)`` of three 8-bit channels, else ``(H, W, 1)`` of the first one. What is not
        finite is shown as the lowest number.
    """
    split = array.ndim - spatial
    middle = tuple(length // 2 for length in array.shape[split:-2])
    planes = array[(slice(None),) * split + middle].reshape(-1, *array.shape[-2:])
    num = 3 if split and len(planes) == 3 and array.dtype == np.uint8 else 1
    picture = np.moveaxis(planes[:num], 0, -1)
    if picture.dtype == np.bool_:
        return picture.astype(np.uint8) * np.uint8(255)
    if picture.dtype.kind == "f":
        finite = np.isfinite(picture)
        lowest = picture[finite].min() if finite.any() else 0
        return np.where(finite, picture, lowest).astype(np.float64)
    return picture
