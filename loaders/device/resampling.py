"""Where the pixels along an axis come from, and with which weights: each sample of a batch has positions of its own.

The rules are those of the host (``loaders.augment.pixels.apply``, ``loaders.augment.resampling``): bilinear or bicubic
between pixel centres, or averages over areas where both sides of a sample's box shrink by more than 2; the box's edge
pixels continue beyond its edges; or one of Pillow's filters. OpenCV and Pillow weigh with few bits where this uses
float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loaders.augment.pixels import is_half
from loaders.augment.resampling import (
    SUPPORT,
    filter_weights,
    image_span,
    is_between_pixels,
    source_positions,
)

if TYPE_CHECKING:
    from loaders.device.planning import Moves

    Pair = tuple[torch.Tensor, torch.Tensor]

_CUBIC = -0.75  # of OpenCV's cubic interpolation, which is not filtered


def nearest(moves: Moves, axis: int, length: int) -> Pair:
    """Return which pixel of an axis is nearest to each centre, and whether it is one of the image: ``(N, size)`` each.

    Where a centre lies exactly between two pixels of a box of whole pixels, it is the later one.
    """
    start, extent, at = _box(moves, axis)
    size, how = moves.size[axis], moves.resampling
    if not how.is_filtered:
        return _readable(start + (2 * at + 1) * extent // (2 * size), length, how.padding_mode)
    scale = extent / torch.full_like(extent, size)  # as the host: see ``_filtered``
    found = (start + (at + 0.5) * scale).floor().long()
    positions, inside = _readable(found, length, how.padding_mode)
    if how.padding_mode == "constant":
        is_mixed = is_between_pixels(start, extent, size, length)
        inside &= is_mixed | _on_image(at, start, extent, size, length)
    return positions, inside


def weights_of(moves: Moves, axis: int, length: int) -> Pair:
    """Return of which pixels of an axis each one of a result is made, and their weights: ``(N, size, taps)`` each."""
    if moves.resampling.is_filtered:
        return _filtered(moves, axis, length)
    start, extent, at = (each.unsqueeze(-1) for each in _box(moves, axis))
    size, num, how = moves.size[axis], moves.num_taps[axis], moves.resampling
    scale, tap = extent.to(torch.float32) / size, torch.arange(num, device=at.device)
    centre = (at + 0.5) * scale - 0.5
    taps = centre.floor().long() + 1 - int(SUPPORT[how.interpolation]) + tap
    weights = filter_weights(taps.to(torch.float32) - centre, how.interpolation, _CUBIC)
    if how.interpolation == "bilinear" and num > 2:  # some samples are averaged over areas
        is_area = is_half(*moves.table[:, 1].unbind(1), *moves.size).view(-1, 1, 1)
        taps = torch.where(is_area, at * extent // size + tap, taps)
        left = taps.to(torch.float32)
        share = torch.minimum(left + 1, (at + 1) * scale) - torch.maximum(left, at * scale)
        weights = torch.where(is_area, share.clamp_(min=0) / scale, weights)
    # Beyond the edges of the box their pixels go on.
    taps = torch.minimum(taps.clamp_(min=0), extent - 1)
    positions, inside = _readable(start + taps, length, how.padding_mode)
    return positions, weights * inside


def _filtered(moves: Moves, axis: int, length: int) -> Pair:
    """As ``weights_of``, of one of Pillow's filters on a sub-pixel box."""
    start, extent, at = _box(moves, axis)
    size, num, how = moves.size[axis], moves.num_taps[axis], moves.resampling
    sizes = torch.full_like(extent, size)  # divided by a number, CUDA multiplies by its reciprocal
    # Calculated as Pillow does, and from the same pixel on, as the host hands it the pixels below a box alone: whether
    # a pixel lies on the edge of an area hangs on the last bit.
    margin = (SUPPORT[how.interpolation] * (extent / sizes).clamp(min=1)).ceil() + 1
    begin = (start - margin).floor().clamp_(min=0)
    low, high = ((edge - begin).float().double() for edge in (start, start + extent))
    scale = (high - low) / sizes
    centre, wide = low + (at + 0.5) * scale, scale.clamp(min=1)
    reach = SUPPORT[how.interpolation] * wide
    first, last = ((edge + 0.5).floor().long() for edge in (centre - reach, centre + reach))
    taps = first.unsqueeze(-1) + torch.arange(num, device=at.device)
    x = (taps - centre.unsqueeze(-1) + 0.5) * (1 / wide).unsqueeze(-1)
    weights = filter_weights(x, how.interpolation) * (taps < last.unsqueeze(-1))
    weights = weights / weights.sum(-1, keepdim=True)
    taps += begin.long().unsqueeze(-1)
    # Where a box reaches outside, image and padding are mixed; else the image ends where it does.
    positions, is_known = _readable(taps, length, how.padding_mode)
    inner = weights * ((taps >= 0) & (taps < length))
    whole = inner / inner.sum(-1, keepdim=True).clamp_(min=1e-9)
    whole = whole * _on_image(at, start, extent, size, length).unsqueeze(-1)
    is_mixed = is_between_pixels(start, extent, size, length)
    if how.padding_mode != "constant":
        is_mixed = (start < 0) | (start + extent > length)
    weights = torch.where(is_mixed.unsqueeze(-1), weights * is_known, whole)
    return positions, weights.to(torch.float32)


def _box(moves: Moves, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return along an axis start and extent of boxes, ``(N, 1)``, and the positions of a result in them, ``(N, size)``.

    These run backwards where the axis is mirrored.
    """
    start, extent, flip = moves.table[:, :, axis].unsqueeze(-1).unbind(1)
    size = moves.size[axis]
    at = torch.arange(size, device=flip.device).expand(len(flip), size)
    return start, extent, torch.where(flip > 0, size - 1 - at, at)


def _readable(positions: torch.Tensor, length: int, mode: str) -> Pair:
    """Return positions that can be read, and which of them are those that were meant."""
    if mode != "constant":
        found = source_positions(positions, length, mode)
        return found, torch.ones_like(found, dtype=torch.bool)
    return positions.clamp(0, length - 1), (positions >= 0) & (positions < length)


def _on_image(
    at: torch.Tensor, start: torch.Tensor, extent: torch.Tensor, size: int, length: int
) -> torch.Tensor:
    """Tell which pixels of a result lie on the image, which ends between two of them."""
    first, last = (edge.round() for edge in image_span(start, extent, size, length))
    inside: torch.Tensor = (at >= first) & (at < last)
    return inside
