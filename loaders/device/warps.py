"""Warps of batches: pixels taken from anywhere, by a matrix for each sample, and displaced by noise of its own.

What is drawn is ``matrices`` and ``ripples`` of an ``augment.Geometry``; the host carries it out by OpenCV
(``loaders.augment.pixels.carry_out``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from loaders.augment.edits import hashed
from loaders.augment.geometry import Ripple, as_noise, kernel_size
from loaders.augment.resampling import source_positions
from loaders.device.accelerator import row_of
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment.geometry import Geometry


# Displacements of n samples: one of them, whose size and strengths all have; seeds, int64 ``(n,)``; and frames,
# ``(n, 3, 3)`` float64.
Ripples = tuple[Ripple, torch.Tensor, torch.Tensor]


class Warps(NamedTuple):
    """The samples of a batch that are turned, sheared and the like."""

    rows: torch.Tensor  # int64 ``(n,)``: which
    matrices: torch.Tensor  # ``(n, 3, 3)`` float64, as ``augment.Geometry`` says
    ripples: Ripples | None  # how they are displaced; None: not at all


def warps_of(drawn: Geometry) -> Warps | None:
    """Return the warps of samples that a device can carry out, BatchError for others; None where there are none."""
    rows = np.flatnonzero(drawn.is_warped)
    if drawn.matrices is None or not len(rows):
        return None
    if (mode := drawn.resampling.padding_mode) not in ("constant", "edge"):
        raise BatchError(f"padding_mode={mode!r} of rotations and other warps is done on the host")
    ripples = None if drawn.ripples is None else _ripples_of(drawn.ripples)
    return Warps(torch.from_numpy(rows), torch.from_numpy(drawn.matrices[rows]), ripples)


def _ripples_of(ripples: Sequence[Ripple]) -> Ripples:
    one = ripples[0]
    if any(each.size != one.size for each in ripples):
        raise BatchError(
            "images of different sizes cannot be displaced on a device: run ElasticTransform on the host"
        )
    seeds = torch.from_numpy(np.array([each.seed for each in ripples], np.int64))
    frames = torch.from_numpy(np.stack([each.frame for each in ripples]))
    return one, seeds, frames


def points_of(
    matrices: torch.Tensor, size: Sequence[int], ripples: Ripples | None = None
) -> torch.Tensor:
    """Return where the pixels of results come from: x, y in pixels from the corner, float32 ``(n, H, W, 2)``.

    Matrices are ``(n, 2, 3)`` or ``(n, 3, 3)``: from x, y of a result, or of the frames of ripples, to its source's.
    """
    y, x = (torch.arange(n, device=matrices.device, dtype=torch.float32) + 0.5 for n in size)
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).expand(len(matrices), *size, 2)
    if ripples is not None:
        one, seeds, frames = ripples
        grid = _moved(frames, grid)
        shift = _sampled(_displacements(one, seeds), grid, "bilinear", "border")
        grid = grid + shift.movedim(1, -1)
    return _moved(matrices, grid)


def _displacements(one: Ripple, seeds: torch.Tensor) -> torch.Tensor:
    """Return by how much each pixel of n frames moves: x and y, float32 ``(n, 2, height, width)``."""
    num, (height, width) = len(seeds), one.size
    at = torch.arange(2 * height * width, device=seeds.device).view(2, height, width)
    planes = as_noise(hashed(at, seeds.view(-1, 1, 1, 1)).float()).flatten(0, 1)[:, None]
    if any(one.sigma):
        sizes = [kernel_size(sigma) for sigma in one.sigma]
        tall = row_of(sizes, planes).repeat(num)
        for axis, sigma in ((3, one.sigma[0]), (2, one.sigma[1])):
            wide = torch.full_like(tall, sigma)
            planes = blurred(planes, axis, wide, tall, max(sizes) // 2)
    most = row_of(one.alpha, planes).view(2, 1, 1) / 2
    found: torch.Tensor = planes.view(num, 2, height, width) * most
    return found


def _moved(matrices: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return points ``(n, H, W, 2)`` where matrices bring them."""
    wide = functional.pad(points, (0, 1), value=1.0)
    found = torch.einsum("nij,nhwj->nhwi", matrices.float(), wide)
    return found[..., :2] / found[..., 2:] if matrices.shape[1] == 3 else found


def _sampled(values: torch.Tensor, points: torch.Tensor, mode: str, around: str) -> torch.Tensor:
    """Return values ``(n, C, H, W)`` at points x, y in pixels from the corner."""
    shape = row_of(values.shape[:1:-1], points)
    grid = points / shape * 2 - 1
    return functional.grid_sample(values, grid, mode, around, align_corners=False)


def warp(
    images: torch.Tensor, points: torch.Tensor, mode: str, fill: torch.Tensor | None
) -> torch.Tensor:
    """Return images whose pixels come from points.

    Args:
        images: uint8 ``(n, C, H, W)``.
        points: As ``points_of`` returns them.
        mode: ``"nearest"`` or ``"bilinear"``.
        fill: ``(n, C)``, or of one for all: what lies outside; None: the edge goes on.
    """
    values = _sampled(images.float(), points, mode, "border" if fill is None else "zeros")
    if fill is not None:
        ones = torch.ones_like(images[:, :1], dtype=torch.float32)
        share = _sampled(ones, points, mode, "zeros")
        values += (1 - share) * fill.view(len(fill), -1, 1, 1)
    return values.round_().clamp_(0, 255).to(torch.uint8)


def picked(masks: torch.Tensor, points: torch.Tensor, fill: int | None) -> torch.Tensor:
    """Return masks ``(n, height, width)`` whose pixels are those nearest to points.

    What lies outside is ``fill``; None: the edge goes on.
    """
    height, width = masks.shape[1:]
    x, y = points.floor().long().unbind(-1)
    at = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).flatten(1)
    found = masks.flatten(1).gather(1, at).view(x.shape)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return found if fill is None else found.masked_fill(~inside, fill)


def blurred(
    x: torch.Tensor, axis: int, sigma: torch.Tensor, sizes: torch.Tensor, half: int
) -> torch.Tensor:
    """Blur one axis, each image by a Gaussian of its own: ``sizes`` is of its kernel, of at most ``2 * half + 1``."""
    num, channels, length = len(x), x.shape[1], x.shape[axis]
    at = torch.arange(-half, half + 1, device=x.device)
    weights = torch.exp(-((at / sigma.unsqueeze(1)) ** 2) / 2)
    weights = weights * (at.abs() <= sizes.unsqueeze(1) // 2)
    weights = weights / weights.sum(1, keepdim=True)
    places = torch.arange(-half, length + half, device=x.device)
    wide = x.index_select(axis, source_positions(places, length, "reflect"))
    flat = wide.reshape(1, num * channels, *wide.shape[2:])
    shape = (num * channels, 1, 1, -1) if axis == 3 else (num * channels, 1, -1, 1)
    kernels = weights.repeat_interleave(channels, 0).reshape(shape)
    return functional.conv2d(flat, kernels, groups=num * channels).view(x.shape)
