"""What happens to each sample of a batch, as tensors: a ``Geometry`` of samples of one size, for use on a device.

It is drawn on the host (``loaders.augment.planning``), a few numbers for each sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from loaders.augment.planning import fill_mask_of, fill_of
from loaders.augment.resampling import FAST, Fill, Resampling
from loaders.device.edits import EditRound, group_edits
from loaders.device.resampling import num_taps
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
        num_taps(drawn),
        fill_mask_of(ops),
        fill_of(ops),
        drawn.resampling,
        group_edits(drawn.edits),
        warps_of(drawn),
    )
