"""Pixels from anywhere, for whole batches: by a matrix for each sample, and displaced by noise of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from loaders.augment.edits import hashed
from loaders.augment.geometry import Ripple, as_noise, kernel_size
from loaders.augment.resampling import source_positions
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

# As what indexing and gathering move numbers that they do not know.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Ripples(NamedTuple):
    """``augment.Ripple`` of n samples."""

    seeds: torch.Tensor  # int64 ``(n,)``
    frames: torch.Tensor  # ``(n, 3, 3)`` float64
    size: tuple[int, int]  # of all frames
    alpha: tuple[float, float]  # of all
    sigma: tuple[float, float]  # of all

    def displacements(self) -> torch.Tensor:
        """Return by how much each pixel of the frames moves: x and y, float32 ``(n, 2, height, width)``."""
        num, (height, width) = len(self.seeds), self.size
        at = torch.arange(2 * height * width, device=self.seeds.device).view(2, height, width)
        planes = as_noise(hashed(at, self.seeds.view(-1, 1, 1, 1)).float()).flatten(0, 1)[:, None]
        if any(self.sigma):
            sizes = [kernel_size(sigma) for sigma in self.sigma]
            tall = row_of(sizes, planes).repeat(num)
            for axis, sigma in ((3, self.sigma[0]), (2, self.sigma[1])):
                wide = torch.full_like(tall, sigma)
                planes = blurred(planes, axis, wide, tall, max(sizes) // 2)
        most = row_of(self.alpha, planes).view(2, 1, 1) / 2
        found: torch.Tensor = planes.view(num, 2, height, width) * most
        return found


def row_of(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return a few numbers on the device, without a copy from the host that would wait for it."""
    return torch.stack(
        [torch.full((), float(value), dtype=torch.float32, device=like.device) for value in values]
    )


def ripples_of(ripples: Sequence[Ripple]) -> Ripples:
    """Return those of several samples together; BatchError if their frames are of different sizes."""
    one = ripples[0]
    if any(each.size != one.size for each in ripples):
        raise BatchError(
            "images of different sizes cannot be displaced on a device: run ElasticTransform on the host"
        )
    seeds, frames = (np.stack([each[i] for each in ripples]) for i in (0, 4))
    return Ripples(torch.from_numpy(seeds), torch.from_numpy(frames), *one[1:4])


def sources(
    matrices: torch.Tensor, size: Sequence[int], ripples: Ripples | None = None
) -> torch.Tensor:
    """Return where the pixels of results come from: x, y in pixels from the corner, float32 ``(n, H, W, 2)``.

    Matrices are ``(n, 2, 3)`` or ``(n, 3, 3)``: from x, y of a result, or of the frames of ripples, to its source's.
    """
    y, x = (
        torch.arange(n, device=matrices.device, dtype=torch.float32) + 0.5
        for n in (size[0], size[1])
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).expand(len(matrices), *size, 2)
    if ripples is not None:
        grid = _moved(ripples.frames, grid)
        shift = _sampled(ripples.displacements(), grid, "bilinear", "border")
        grid = grid + shift.movedim(1, -1)
    return _moved(matrices, grid)


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
    images: torch.Tensor, points: torch.Tensor, mode: str, fill: torch.Tensor
) -> torch.Tensor:
    """Return images whose pixels come from points.

    Args:
        images: uint8 ``(n, C, H, W)``.
        points: As ``sources`` returns them.
        mode: ``"nearest"`` or ``"bilinear"``.
        fill: ``(n, C)``, or of one for all: what lies outside.
    """
    values = _sampled(images.float(), points, mode, "zeros")
    ones = torch.ones_like(images[:, :1], dtype=torch.float32)
    share = _sampled(ones, points, mode, "zeros")
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
