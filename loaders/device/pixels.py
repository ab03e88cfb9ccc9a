"""Carry out the geometry of a batch on whichever device holds it: pixels and masks, all samples at once.

What ``loaders.augment.pixels`` does to one sample on the host. The geometry is drawn there, a few numbers for each
sample, and made tensors (``Moves``). Pixels move axis by axis: each output row (or column) is a weighted sum of a few
source rows (or columns), by ``loaders.device.resampling``; it is rounded once, so that interpolated pixels differ from
the host's by at most one step of uint8, and copied ones not at all.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import torch

from loaders.device.accelerator import row_of
from loaders.device.edits import edit_images
from loaders.device.nested import holds
from loaders.device.resampling import nearest, weights_of
from loaders.device.warps import picked, points_of, warp
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment.resampling import Fill
    from loaders.device.planning import Moves


# As what indexing and gathering move numbers that they do not know.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_MAX_VALUES = {torch.uint8: 255, torch.uint16: 65535}


def check_fit(images: torch.Tensor, masks: Sequence[torch.Tensor], moves: Moves) -> None:
    """Raise BatchError for images or masks that these moves are not for."""
    num_axes = len(moves.size)
    if images.dim() != num_axes + 2 or len(images) != len(moves.table):
        raise BatchError(
            f"{len(moves.table)} samples of {num_axes} spatial axes do not fit images {tuple(images.shape)}"
        )
    if max(moves.num_taps) > 1 and (images.dtype not in _MAX_VALUES or num_axes != 2):
        raise BatchError(
            f"only uint8 and uint16 images (N, C, H, W) can be resampled, got {images.dtype} {tuple(images.shape)}"
        )
    if np.size(moves.fill) not in (1, images.shape[1]):
        what = f"has {np.size(moves.fill)} values, the images have {images.shape[1]} channels"
        raise BatchError(f"fill={moves.fill} {what}")
    for mask in masks:
        fits = mask.shape == (len(images), *images.shape[2:])
        if not fits or not holds(mask.dtype, moves.fill_mask):
            what = f"a mask {mask.dtype} {tuple(mask.shape)} does not fit images {tuple(images.shape)}"
            raise BatchError(f"{what}, or fill_mask={moves.fill_mask}")


def move_images(images: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Return images ``(N, C, *spatial)`` moved and edited; ``moves`` is on their device."""
    lines = images.movedim(1, -1)
    is_summed = max(moves.num_taps) > 1
    lines = _summed(lines, moves) if is_summed else _picked(lines, moves, moves.fill)
    moved = lines.movedim(-1, 1)
    if moves.warps is not None:
        rows, matrices, ripples = moves.warps
        if images.dtype != torch.uint8:
            raise BatchError(
                f"only uint8 images can be rotated, sheared or warped on a device, got {images.dtype}"
            )
        fill = None
        if moves.resampling.padding_mode != "edge":
            fill = row_of(np.broadcast_to(moves.fill, images.shape[1]).tolist(), images)[None]
        points = points_of(matrices, moves.size, ripples)
        warped = warp(images.index_select(0, rows), points, moves.resampling.warp, fill)
        moved.index_copy_(0, rows, warped)
    return edit_images(moved, moves.edits)


def move_masks(masks: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Return masks ``(N, *spatial)`` moved, by the nearest pixel; ``moves`` is on their device."""
    moved = _picked(masks.unsqueeze(-1), moves, moves.fill_mask).squeeze(-1)
    if moves.warps is not None:
        rows, matrices, ripples = moves.warps
        kind = _SIGNED.get(masks.dtype, masks.dtype)
        points = points_of(matrices, moves.size, ripples)
        fill = None if moves.resampling.padding_mode == "edge" else moves.fill_mask
        warped = picked(masks.view(kind).index_select(0, rows), points, fill)
        moved.view(kind).index_copy_(0, rows, warped)
    return moved


def _picked(lines: torch.Tensor, moves: Moves, fill: Fill) -> torch.Tensor:
    """Take of ``(N, *spatial, C)`` the pixel nearest to each centre, or ``fill`` outside; exact, for any dtype."""
    dtype, kind = lines.dtype, _SIGNED.get(lines.dtype, lines.dtype)
    outside = torch.from_numpy(np.atleast_1d(fill)).to(dtype).view(kind).tolist()
    lines, around = lines.view(kind), row_of(outside, lines, kind)
    inside = torch.ones((), dtype=torch.bool, device=lines.device)
    for axis in range(1, len(moves.size) + 1):
        positions, is_inside = nearest(moves, axis - 1, lines.shape[axis])
        lines = _take(lines, axis, positions)
        inside = inside & _along(axis, is_inside, lines)
    return torch.where(inside, lines, around).view(dtype)


def _summed(lines: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Resample ``(N, H, W, C)`` of unsigned numbers: weighted sums of rows, then of columns, and ``fill`` outside."""
    dtype, most = lines.dtype, _MAX_VALUES[lines.dtype]
    # In order once: each tap gathers whole rows. Gathering knows no unsigned 16 bits.
    lines = lines.contiguous().view(_SIGNED.get(dtype, dtype))
    rows, weights = weights_of(moves, 0, lines.shape[1])
    lines, down = _weighted(lines, 1, rows, weights, most), weights.sum(-1)
    columns, weights = weights_of(moves, 1, lines.shape[2])
    lines, across = _weighted(lines, 2, columns, weights, most), weights.sum(-1)
    if moves.fill:
        outside = 1 - down.unsqueeze(2) * across.unsqueeze(1)
        lines += outside.unsqueeze(-1) * row_of(np.atleast_1d(moves.fill).tolist(), lines)
    return lines.round_().clamp_(0, most).to(dtype)


def _weighted(
    lines: torch.Tensor, axis: int, positions: torch.Tensor, weights: torch.Tensor, most: int
) -> torch.Tensor:
    """Sum what lies at ``positions``, ``(N, size, taps)``, along an axis, weighted."""

    def tap(position: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        part = _take(lines, axis, position)
        if part.dtype == torch.int16:
            part = part.to(torch.int32).bitwise_and_(most)
        return part.to(torch.float32).mul_(_along(axis, weight, lines))

    return reduce(torch.Tensor.add_, map(tap, positions.unbind(-1), weights.unbind(-1)))


def _take(lines: torch.Tensor, axis: int, positions: torch.Tensor) -> torch.Tensor:
    """Gather along an axis, at positions ``(N, size)`` of each sample's own."""
    shape = *lines.shape[:axis], positions.shape[1], *lines.shape[axis + 1 :]
    if axis > 1:
        return lines.gather(axis, _along(axis, positions, lines).expand(shape))
    starts = torch.arange(len(lines), device=lines.device).unsqueeze(1) * lines.shape[1]
    rows = lines.flatten(0, 1).flatten(1)  # one gather of contiguous bytes
    return rows.index_select(0, (starts + positions).flatten()).view(shape)


def _along(axis: int, values: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Return values ``(N, size)`` in the shape that broadcasts along an axis of lines."""
    shape = [len(lines), *(1,) * (lines.dim() - 1)]
    shape[axis] = values.shape[1]
    return values.reshape(shape)
