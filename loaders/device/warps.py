"""Pixels from anywhere, for whole batches, by a matrix for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from loaders.augment.resampling import source_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

# As what indexing and gathering move numbers that they do not know.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def row_of(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return a few numbers on the device, without a copy from the host that would wait for it."""
    return torch.stack(
        [torch.full((), float(value), dtype=torch.float32, device=like.device) for value in values]
    )


def sources(matrices: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return where the pixels of results come from: x, y in pixels from the corner, float32 ``(n, H, W, 2)``.

    Matrices are ``(n, 2, 3)`` or ``(n, 3, 3)``: from x, y of a result to its source's.
    """
    y, x = (
        torch.arange(n, device=matrices.device, dtype=torch.float32) + 0.5
        for n in (size[0], size[1])
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).expand(len(matrices), *size, 2)
    wide = functional.pad(grid, (0, 1), value=1.0)
    found = torch.einsum("nij,nhwj->nhwi", matrices.float(), wide)
    return found[..., :2] / found[..., 2:] if matrices.shape[1] == 3 else found


def _sampled(values: torch.Tensor, points: torch.Tensor, mode: str) -> torch.Tensor:
    """Return values ``(n, C, H, W)`` at points x, y in pixels from the corner."""
    shape = row_of(values.shape[:1:-1], points)
    grid = points / shape * 2 - 1
    return functional.grid_sample(values, grid, mode, "zeros", align_corners=False)


def warp(
    images: torch.Tensor, points: torch.Tensor, mode: str, fill: torch.Tensor
) -> torch.Tensor:
    """Return images whose pixels come from points.

    Args:
        images: uint8 ``(n, C, H, W)``.
        points: As ``sources`` returns them.
        mode: ``"nearest"`` or ``"bilinear"``.
        fill: ``(n, C)``, or of one for all: what lies outside.
    """
    values = _sampled(images.float(), points, mode)
    ones = torch.ones_like(images[:, :1], dtype=torch.float32)
    share = _sampled(ones, points, mode)
    values += (1 - share) * fill.view(len(fill), -1, 1, 1)
    return values.round_().clamp_(0, 255).to(torch.uint8)


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
