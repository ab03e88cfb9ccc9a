"""Planes on their way to pixels: chroma doubled, colours, uint8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loaders.codecs.yuv import CB_TO_BLUE, CB_TO_GREEN, CR_TO_GREEN, CR_TO_RED

if TYPE_CHECKING:
    from loaders.codecs.yuv import Size


def write_images(images: torch.Tensor, luma: torch.Tensor, *chroma: torch.Tensor) -> None:
    """Write uint8 images ``(N, C, H, W)`` of Y from 0 to 255, and Cb and Cr around 0, rounded as the codec rounds."""
    if not chroma:
        _write(images, 0, luma)
        return
    blue, red = chroma
    _write(images, 0, red * CR_TO_RED + luma)
    _write(images, 1, luma - blue * CB_TO_GREEN - red * CR_TO_GREEN)
    _write(images, 2, blue * CB_TO_BLUE + luma)


def _write(images: torch.Tensor, channel: int, values: torch.Tensor) -> None:
    images[:, channel].copy_(values.round_().clamp_(0, 255))


def double(planes: torch.Tensor, size: Size) -> torch.Tensor:
    """Double the sides of planes by the triangle filter of JPEG decoders, and cut them."""
    tall = _double_rows(_continued(planes))[:, : size[0]]
    return _double_rows(_continued(tall.transpose(1, 2)))[:, : size[1]].transpose(1, 2)


def _continued(planes: torch.Tensor) -> torch.Tensor:
    """Return planes with their first and last row once more: beyond the edge it goes on."""
    return torch.cat([planes[:, :1], planes, planes[:, -1:]], 1)


def _double_rows(planes: torch.Tensor) -> torch.Tensor:
    """Double rows that have one more before and behind them."""
    near, quarter = planes[:, 1:-1] * 0.75, planes * 0.25
    up, down = quarter[:, :-2] + near, quarter[:, 2:] + near
    return torch.stack([up, down], 2).flatten(1, 2)
