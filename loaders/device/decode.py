"""The device half of ``dct`` and ``yuv420``: coefficients or planes to uint8 images, by the batch.

Plain tensor operations, the same on every device and of the same values as the codecs' own
``decode``: on the CPU to the bit (there the transform is exact), elsewhere within one step of uint8.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from loaders.codecs.coefficients import INVERSE_UNITS, SIDES, Grid, blocks_of, inverse, scaled
from loaders.codecs.yuv import CB_TO_BLUE, CB_TO_GREEN, CR_TO_GREEN, CR_TO_RED, half
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.codecs.yuv import Size
    from loaders.schema import Image

    Matrix = tuple[torch.Tensor, ...]  # parts that add up to it
_HOST_IMAGES = 4  # at a time on the CPU: what is between the steps then stays in its caches
# At a time elsewhere: bounds the memory that is taken meanwhile, in all about 1 GB.
_DEVICE_VALUES = 1 << 26


class Coefficients(NamedTuple):
    """A batch of ``dct`` images as the host hands it over."""

    planes: torch.Tensor  # uint8 ``(N, n * n * blocks)``: int8 coefficients, coefficient-major
    positions: torch.Tensor  # int64 ``(M,)``: which of all of them are beyond int8
    adds: torch.Tensor  # float32 ``(M,)``: what these lack


class Yuv420Finish(nn.Module):
    """Turn planes into RGB.

    Args:
        size: (height, width) of the images.

    Shape:
        uint8 ``(N, H * W + 2 * ceil(H / 2) * ceil(W / 2))`` in, uint8 ``(N, 3, H, W)`` out.

    Raises:
        BatchError: At call, the input is something else.

    Example:
        >>> Yuv420Finish((1, 2))(torch.tensor([[76, 150, 85, 255]], dtype=torch.uint8)).tolist()
        [[[[254, 255]], [[0, 74]], [[0, 74]]]]
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    @torch.no_grad()
    def forward(self, planes: torch.Tensor) -> torch.Tensor:
        """Return the images."""
        height, width = self.size
        luma, chroma = height * width, half(height) * half(width)
        _check(planes, luma + 2 * chroma)
        images = _empty(planes, 3, self.size)
        for part in _parts(planes):
            write_images(images[part], *self._planes(planes[part], luma, chroma))
        return images

    def _planes(self, planes: torch.Tensor, luma: int, chroma: int) -> list[torch.Tensor]:
        height, width = self.size
        small = (-1, half(height), half(width))
        doubled = [
            double(planes[:, first : first + chroma].reshape(small).float().sub_(128), self.size)
            for first in (luma, luma + chroma)
        ]
        return [planes[:, :luma].reshape(-1, height, width).float(), *doubled]


class DctFinish(nn.Module):
    """Turn coefficients into RGB or gray: dequantize, transform back, double chroma, convert.

    Args:
        grid: Where the blocks of the images lie.
        quality: Of their quantization.
        scale: 1, 1/2, 1/4 or 1/8: sides are rounded up. The coefficients are those of this scale.

    Shape:
        ``Coefficients`` of N images in, uint8 ``(N, C, H, W)`` out.

    Raises:
        BatchError: At call, the input is something else.

    Example:
        >>> finish = DctFinish(Grid((8, 8), 1, "420"), quality=50)
        >>> planes = torch.zeros(1, 64, dtype=torch.uint8)
        >>> planes[0, 0] = 10  # the mean: 10 * 16 / 8 above 128
        >>> none = torch.zeros(0)
        >>> finish(Coefficients(planes, none.long(), none)).unique().tolist()
        [148]
    """

    def __init__(self, grid: Grid, quality: int, scale: float = 1) -> None:
        super().__init__()
        self.grid, self.quality, self.scale = grid, quality, scale
        self.side = side_of(scale)
        self._weights: dict[torch.device, list[Matrix]] = {}

    @classmethod
    def of(cls, field: Image, scale: float = 1) -> DctFinish:
        """Return the module for the images of a field."""
        assert field.size is not None
        assert field.quality is not None
        grid = Grid(field.size, field.channels, field.subsampling or "420")
        return cls(grid, field.quality, scale)

    @property
    def size(self) -> Size:
        """Height and width of the images."""
        return scaled(self.grid.size, self.side)

    @torch.no_grad()
    def forward(self, batch: Coefficients) -> torch.Tensor:
        """Return the images."""
        planes, positions, adds = batch
        nbytes = self.side**2 * self.grid.num_blocks
        _check(planes, nbytes)
        weights = self._weights_on(planes.device)
        images = _empty(planes, self.grid.channels, self.size)
        # Under autocast the products would have 8 bits, and the images stripes.
        with torch.autocast(planes.device.type, enabled=False):
            parts = _parts(planes)
            for part, inside in zip(parts, _inside(parts, nbytes, positions), strict=True):
                at = positions[inside] - part.start * nbytes
                some = Coefficients(planes[part], at, adds[inside])
                luma, *chroma = self._planes(some, weights)
                write_images(images[part], luma.add_(128), *chroma)
        return images

    def _planes(self, batch: Coefficients, weights: Sequence[Matrix]) -> list[torch.Tensor]:
        """Return the planes of images, around 0; chroma doubled."""
        values = batch.planes.view(torch.int8).to(weights[0][0].dtype)
        values.view(-1).index_add_(0, batch.positions, batch.adds.to(values.dtype))
        values = values.view(len(values), -1, self.grid.num_blocks)
        self._sum_means(values[:, 0])
        luma, *chroma = (
            self._pixels(values[:, :, blocks], size, weights[number > 0])
            for number, (size, blocks) in enumerate(self.grid.planes)
        )
        return [luma, *(double(p, self.size) if self.grid.is_halved else p for p in chroma)]

    def _sum_means(self, means: torch.Tensor) -> None:
        """Turn differences, ``(N, blocks)``, into the means themselves.

        As integers: on CUDA, sums of floats are refused under ``torch.use_deterministic_algorithms``.
        """
        for size, blocks in self.grid.planes:
            plane = means[:, blocks].view(-1, *blocks_of(size))
            steps = plane.long()
            steps[:, :, 0] = steps[:, :, 0].cumsum(1)
            plane.copy_(steps.cumsum(2))

    def _pixels(self, values: torch.Tensor, size: Size, weights: Matrix) -> torch.Tensor:
        """Return the pixels of a plane, around 0."""
        side, (rows, columns) = self.side, blocks_of(size)
        products = weights[0] @ values
        for finer in weights[1:]:
            products += finer @ values
        pixels = products.float().view(-1, side, side, rows, columns)
        plane = pixels.permute(0, 3, 1, 4, 2).reshape(-1, rows * side, columns * side)
        if products.dtype == torch.float64:  # of whole numbers, so far
            plane *= 1 / INVERSE_UNITS
        height, width = scaled(size, side)
        return plane.clamp_(-128, 127)[:, :height, :width]

    def _weights_on(self, device: torch.device) -> list[Matrix]:
        """Return the matrices of luma and chroma: exact on the CPU, float32 where that is fast."""
        if device not in self._weights:
            exact = [
                torch.from_numpy(inverse(self.quality, self.side, chroma=chroma))
                for chroma in (False, True)
            ]
            self._weights[device] = [
                (matrix,) if device.type == "cpu" else _in_two(matrix / INVERSE_UNITS, device)
                for matrix in exact
            ]
        return self._weights[device]


def side_of(scale: object) -> int:
    """Return what a side of 8 pixels becomes; ValueError for a scale that there is not."""
    sides = [side for side in SIDES if isinstance(scale, int | float) and side == 8 * scale]
    if not sides:
        raise ValueError(f"scale must be 1, 1/2, 1/4 or 1/8, got {scale!r}")
    return sides[0]


def _in_two(matrix: torch.Tensor, device: torch.device) -> Matrix:
    """Return two float32 matrices whose sum it is, each exact in the 11 bits of TF32.

    A trainer may have allowed TF32 for all products; coefficients fit its 11 bits as they are.
    """
    whole = matrix.float()
    coarse = (whole.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return coarse.to(device), (matrix - coarse).float().to(device)


def _empty(like: torch.Tensor, channels: int, size: Size) -> torch.Tensor:
    return torch.empty((len(like), channels, *size), dtype=torch.uint8, device=like.device)


def _check(planes: torch.Tensor, nbytes: int) -> None:
    if planes.dtype != torch.uint8 or planes.dim() != 2 or planes.shape[1] != nbytes:
        got = f"{planes.dtype} of {tuple(planes.shape)}"
        raise BatchError(f"takes uint8 of (N, {nbytes}), got {got}")


def _parts(planes: torch.Tensor) -> list[slice]:
    """Return which images to take at a time."""
    num, on_host = len(planes), planes.device.type == "cpu"
    step = _HOST_IMAGES if on_host else max(1, _DEVICE_VALUES // planes.shape[1])
    return [slice(first, min(first + step, num)) for first in range(0, num, step)]


def _inside(parts: Sequence[slice], nbytes: int, positions: torch.Tensor) -> list[slice]:
    """Return which positions, sorted as they are, lie in the rows of each part."""
    if len(parts) <= 1:  # without waiting for a device
        return [slice(None) for _ in parts]
    rows = [0, *(part.stop for part in parts)]
    bounds = torch.tensor(rows, device=positions.device) * nbytes
    found = torch.searchsorted(positions, bounds).tolist()
    return [slice(*pair) for pair in itertools.pairwise(found)]


# -- planes to pixels ------------------------------------------------------------------------------


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
