"""Crops and flips of arrays with any number of axes: one strided copy of the part that is needed.

The parameters come from ``draw_geometry``, as for images: arrays with the same spatial axes get the same crop, whatever
their dtype and other axes. Nothing is resampled here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.augment.colour import PixelOp
from loaders.augment.ops import Crop, RandomFlip, RandomHorizontalFlip, RandomVerticalFlip
from loaders.augment.planning import draw_geometry
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Op

    Array = npt.NDArray[Any]

_FLIPS = RandomFlip | RandomHorizontalFlip | RandomVerticalFlip


def output_lengths(ops: Sequence[Op], lengths: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the spatial lengths of every result; None if they depend on the array (of lengths that vary)."""
    known = [length for length in lengths if length is not None]
    if len(known) == len(lengths):
        one = np.zeros(1, np.int64)
        planned = draw_geometry(ops, np.array([known]), seed=0, epoch=0, indices=one)
        return tuple(planned.sizes[0].tolist())
    for op in reversed(ops):
        if isinstance(op, Crop):
            return op.lengths(len(lengths))
        if not isinstance(op, _FLIPS | PixelOp):
            break
    return None


def cut(
    array: Array,
    box: Sequence[int],
    flip: Sequence[bool],
    *,
    out: Array | None = None,
) -> Array:
    """Copy a box out of an array ``(..., *spatial)``, flipped along given axes, into ``out`` or a new one.

    Box and flips are a row of a ``Geometry`` as plain numbers, for the last ``len(flip)`` axes; outside the array the
    result is zero. Only the box is read: of a mapped file, only its pages. The copy releases the GIL.
    """
    num_axes = len(flip)
    corner, lengths = box[:num_axes], box[num_axes:]
    shape = (*array.shape[: array.ndim - num_axes], *lengths)
    if out is None:
        out = np.empty(shape, array.dtype)
    elif out.shape != shape or out.dtype != array.dtype:
        raise BatchError(f"out must be {array.dtype} {shape}, got {out.dtype} {out.shape}")
    source: list[Any] = [...]
    target: list[Any] = [...]
    is_inside = True
    for start, length, size in zip(corner, lengths, array.shape[-num_axes:], strict=True):
        first, last = max(start, 0), max(min(start + length, size), 0)
        source.append(slice(first, last))
        target.append(slice(first - start, max(last, first) - start))
        is_inside &= last - first == length
    turned: list[Any] = [..., *(slice(None, None, -1 if on else 1) for on in flip)]
    mirrored = out[tuple(turned)]
    if not is_inside:
        out[...] = 0
    np.copyto(mirrored[tuple(target)], array[tuple(source)])
    return out
