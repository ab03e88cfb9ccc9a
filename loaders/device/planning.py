"""What happens to each sample of a batch, as tensors: drawn on the host, a few numbers for each, used on a device.

``draw_moves`` is ``loaders.augment.planning.draw_geometry`` for samples of one size; ``Moves`` are its ``Geometry``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from loaders.augment.planning import draw_geometry, fill_mask_of, fill_of
from loaders.augment.resampling import FAST, Fill, Resampling
from loaders.device.edits import EditRound, group_edits
from loaders.device.resampling import num_taps
from loaders.device.warps import Warps, warps_of
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.augment import Op
    from loaders.augment.geometry import Known


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


def draw_moves(
    ops: Sequence[Op],
    size: Sequence[int],
    indices: npt.NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    draws: npt.NDArray[np.int64] | None = None,
    view: int = 0,
    known: Known | None = None,
) -> Moves:
    """Draw what happens to a batch of samples of one size; the arguments are those of ``draw_geometry``."""
    if known is None and any(getattr(op, "foreground", None) for op in ops):
        raise BatchError(
            "RandomCrop(foreground=...) needs the labels: use it in augment= of the dataset, not in BatchAugment"
        )
    sizes = np.broadcast_to(np.asarray(size, np.int64), (len(indices), len(size)))
    drawn = draw_geometry(
        ops, sizes, seed=seed, epoch=epoch, indices=indices, draws=draws, view=view, known=known
    )
    target = drawn.sizes[0] if len(indices) else np.asarray(size, np.int64)
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
