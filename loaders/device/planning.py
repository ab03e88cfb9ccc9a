"""What ops drew for a batch, as tensors: a few numbers for each sample, by which a device moves the pixels.

The ops draw on the host (``loaders.augment.planning``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from loaders.augment.pixels import is_half
from loaders.augment.planning import fill_mask_of, fill_of
from loaders.augment.resampling import FAST, Fill, Resampling, margin_of
from loaders.device.edits import EditRound, group_edits
from loaders.device.warps import Warps, warps_of
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment import Op
    from loaders.augment.geometry import Geometry


class Moves(NamedTuple):
    """What happens to each sample of a batch, K being its spatial axes."""

    # ``(N, 3, K)``: corner and lengths of the box, and which axes are mirrored: int64; of exact boxes, where images
    # are filtered, float64.
    table: torch.Tensor
    size: tuple[int, ...]  # the K lengths of every result
    num_taps: tuple[int, ...]  # per axis, of how many source rows a result is made at most
    fill_mask: int = 0  # what lies outside of masks
    fill: Fill = 0  # what lies outside of images
    resampling: Resampling = FAST  # how, as ``augment.Geometry`` says
    edits: tuple[EditRound, ...] = ()  # what happens to the pixels of images then
    warps: Warps | None = None  # the samples that are turned, sheared and the like


def moves_of(ops: Sequence[Op], drawn: Geometry, size: Sequence[int]) -> Moves:
    """Return what ops drew for samples of one size as ``Moves``; BatchError if results would differ in size."""
    target = drawn.sizes[0] if len(drawn) else np.asarray(size, np.int64)
    if (drawn.sizes != target).any():
        raise BatchError(f"results would differ in size: end {list(ops)} with a crop or Resize")
    corners, lengths = np.split(drawn.places, 2, axis=1)
    return Moves(
        torch.from_numpy(np.stack([corners, lengths, drawn.flips], axis=1)),
        tuple(target.tolist()),
        _num_taps(drawn),
        fill_mask_of(ops),
        fill_of(ops),
        drawn.resampling,
        group_edits(drawn.edits),
        warps_of(drawn),
    )


def _num_taps(drawn: Geometry) -> tuple[int, ...]:
    """Return of how many source rows, and columns, a result is made at most; 1 where pixels are copied or picked."""
    sizes, how = drawn.sizes, drawn.resampling
    extents = drawn.places[:, sizes.shape[1] :]
    if drawn.regions is not None:
        taps = 2 * margin_of(how.interpolation, extents / sizes).astype(np.int64)
    elif how.interpolation == "nearest" or (extents == sizes).all():
        taps = np.ones_like(extents)
    elif how.interpolation == "bicubic":
        taps = np.full_like(extents, 4)
    else:
        is_area = is_half(*extents.T, *sizes.T)[:, None]
        taps = np.where(is_area, -(-extents // sizes) + 1, 2)
    return tuple(taps.max(axis=0, initial=1).tolist())
