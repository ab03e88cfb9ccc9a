"""Planes on their way to pixels: chroma doubled, colours, uint8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loaders.codecs.yuv import CB_TO_BLUE, CB_TO_GREEN, CR_TO_GREEN, CR_TO_RED
from loaders.device.blocks import take_rows

if TYPE_CHECKING:
    from loaders.codecs.yuv import Size
    from loaders.device.blocks import Patch


class Pixels:
    """Where images go, channel by channel."""

    def __init__(self, planes: torch.Tensor, channels: int, size: Size) -> None:
        shape = (len(planes), channels, *size)
        self.images = torch.empty(shape, dtype=torch.uint8, device=planes.device)

    def put(self, part: slice, channel: int, values: torch.Tensor) -> None:
        """Round float32 values to 0 to 255, and write them for some images; they are overwritten."""
        self.images[part, channel].copy_(values.round_().clamp_(0, 255))

    def put_planes(self, part: slice, luma: torch.Tensor, *chroma: torch.Tensor) -> None:
        """Write what Y of 0 to 255, and Cb and Cr around 0, make: rounded as the codec rounds."""
        if not chroma:
            self.put(part, 0, luma)
            return
        blue, red = chroma
        self.put(part, 0, red * CR_TO_RED + luma)
        green = luma - blue * CB_TO_GREEN
        self.put(part, 1, green - red * CR_TO_GREEN)
        self.put(part, 2, blue * CB_TO_BLUE + luma)


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


def double_part(
    plane: torch.Tensor, part: Patch, wide: Patch, side: int, size: Size
) -> torch.Tensor:
    """Double the sides of a part of each plane, to what ``double`` makes of whole ones there.

    ``plane`` is ``(N, rows, columns)``: the part and what lies around it, in blocks of ``side`` pixels; ``size`` is of
    the whole plane, in pixels.
    """
    first, begin, num = part.row * side, wide.row * side, part.num_rows * side
    tall = _double_rows(take_rows(plane, first, num, size[0], begin)).transpose(1, 2)
    first, begin, num = part.column * side, wide.column * side, part.num_columns * side
    return _double_rows(take_rows(tall, first, num, size[1], begin)).transpose(1, 2)
