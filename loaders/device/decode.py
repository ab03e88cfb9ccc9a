"""The device half of ``dct`` and ``yuv420``: coefficients or planes to uint8 images, by the batch.

Plain tensor operations, the same on every device and of the same values as the codecs' own
``decode``: on the CPU to the bit (there the transform is exact), elsewhere within one step of uint8.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from loaders.codecs.coefficients import INVERSE_UNITS, SIDES, Component, Grid, inverse
from loaders.codecs.yuv import CB_TO_BLUE, CB_TO_GREEN, CR_TO_GREEN, CR_TO_RED, half
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.codecs.yuv import Size
    from loaders.device.normalize import Normalize
    from loaders.schema import Image

    Matrix = tuple[torch.Tensor, ...]  # parts that add up to it
_HOST_IMAGES = 4  # at a time on the CPU: what is between the steps then stays in its caches
_DEVICE_VALUES = (
    1 << 26
)  # at a time elsewhere: bounds the memory that is taken meanwhile, in all about 1 GB


class Coefficients(NamedTuple):
    """A batch of ``dct`` images as the host hands it over.

    Attributes:
        planes: uint8 ``(N, n * n * blocks)``: int8 coefficients, coefficient-major.
        positions: int64 ``(M,)``: which of all of them are beyond int8.
        adds: float32 ``(M,)``: what these lack.
    """

    planes: torch.Tensor
    positions: torch.Tensor
    adds: torch.Tensor


class Yuv420Finish(nn.Module):
    """Turn planes into RGB.

    Args:
        size: (height, width) of the images.
        normalize: Applied to the same pixels, without storing them in between.

    Shape:
        uint8 ``(N, H * W + 2 * ceil(H / 2) * ceil(W / 2))`` in, uint8 (or the dtype of
        ``normalize``) ``(N, 3, H, W)`` out.

    Raises:
        BatchError: At call, the input is something else.

    Example:
        >>> Yuv420Finish((1, 2))(torch.tensor([[76, 150, 85, 255]], dtype=torch.uint8)).tolist()
        [[[[254, 255]], [[0, 74]], [[0, 74]]]]
    """

    def __init__(self, size: Size, *, normalize: Normalize | None = None) -> None:
        super().__init__()
        self.size, self.normalize = size, normalize

    @torch.no_grad()
    def forward(self, planes: torch.Tensor) -> torch.Tensor:
        """Return the images."""
        height, width = self.size
        luma, chroma = height * width, half(height) * half(width)
        _check(planes, luma + 2 * chroma)
        out = _Pixels(planes, 3, self.size, self.normalize)
        for part in _parts(planes):
            out.put_rgb(part, *self._planes(planes[part], luma, chroma))
        return out.images

    def _planes(
        self, planes: torch.Tensor, luma: int, chroma: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        height, width = self.size
        small = (-1, half(height), half(width))
        blue, red = (
            _double(planes[:, first : first + chroma].reshape(small).float().sub_(128), self.size)
            for first in (luma, luma + chroma)
        )
        return planes[:, :luma].reshape(-1, height, width).float(), blue, red

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"size={self.size}"


class DctFinish(nn.Module):
    """Turn coefficients into RGB or gray: dequantize, transform back, double chroma, convert.

    Args:
        grid: Where the blocks of the images lie.
        quality: Of their quantization.
        scale: 1, 1/2, 1/4 or 1/8: sides are rounded up. The coefficients are those of this scale.
        normalize: Applied to the same pixels, without storing them in between.

    Shape:
        ``Coefficients`` of N images in, uint8 (or the dtype of ``normalize``) ``(N, C, H, W)`` out.

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

    def __init__(
        self, grid: Grid, quality: int, scale: float = 1, *, normalize: Normalize | None = None
    ) -> None:
        super().__init__()
        self.grid, self.quality, self.scale, self.normalize = grid, quality, scale, normalize
        self.side = side_of(scale)
        self._weights: dict[torch.device, list[Matrix]] = {}

    @classmethod
    def of(
        cls, field: Image, scale: float = 1, *, normalize: Normalize | None = None
    ) -> DctFinish:
        """Return the module for the images of a field."""
        assert field.size is not None
        assert field.quality is not None
        grid = Grid(field.size, field.channels, field.subsampling or "420")
        return cls(grid, field.quality, scale, normalize=normalize)

    @property
    def size(self) -> Size:
        """Height and width of the images."""
        return self.grid.components[0].at(self.side)

    @torch.no_grad()
    def forward(self, batch: Coefficients) -> torch.Tensor:
        """Return the images."""
        planes, positions, adds = batch
        nbytes = self.side**2 * self.grid.num_blocks
        _check(planes, nbytes)
        weights = self._weights_on(planes.device)
        out = _Pixels(planes, self.grid.channels, self.size, self.normalize)
        # Under autocast the products would have 8 bits, and the images stripes.
        with torch.autocast(planes.device.type, enabled=False):
            parts = _parts(planes)
            for part, inside in zip(parts, _inside(parts, nbytes, positions), strict=True):
                values = planes[part].view(torch.int8).to(weights[0][0].dtype)
                at = positions[inside] - part.start * nbytes
                values.view(-1).index_add_(0, at, adds[inside].to(values.dtype))
                self._finish(
                    values.view(len(values), -1, self.grid.num_blocks), weights, out, part
                )
        return out.images

    def _finish(
        self, values: torch.Tensor, weights: Sequence[Matrix], out: _Pixels, part: slice
    ) -> None:
        luma, *chroma = (
            self._plane(values[:, :, blocks], component, weights[number > 0])
            for number, (blocks, component) in enumerate(
                zip(self.grid.split(), self.grid.components, strict=True)
            )
        )
        luma = luma.add_(128).clamp_(0, 255)
        if not chroma:
            out.put(part, 0, luma)
            return
        blue, red = (plane.clamp_(-128, 127) for plane in chroma)
        if self.grid.is_halved:
            blue, red = _double(blue, self.size), _double(red, self.size)
        out.put_rgb(part, luma, blue, red)

    def _plane(self, values: torch.Tensor, component: Component, weights: Matrix) -> torch.Tensor:
        """Return one plane of each image, around 0."""
        rows, columns, side = component.rows, component.columns, self.side
        means = values[:, 0].view(-1, rows, columns)  # as differences, so far
        means[:, :, 0] = means[:, :, 0].cumsum(1)
        means.copy_(means.cumsum(2))
        products = weights[0] @ values
        for finer in weights[1:]:
            products += finer @ values
        pixels = products.float().view(-1, side, side, rows, columns)
        height, width = component.at(side)
        plane = pixels.permute(0, 3, 1, 4, 2).reshape(-1, rows * side, columns * side)
        if products.dtype == torch.float64:  # of whole numbers, so far
            plane *= 1 / INVERSE_UNITS
        return plane[:, :height, :width]

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

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"size={self.size}, quality={self.quality}, scale={self.scale}"


def side_of(scale: float) -> int:
    """Return what a side of 8 pixels becomes; ValueError for a scale that there is not."""
    sides = [side for side in SIDES if side == 8 * scale]
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


def _check(planes: torch.Tensor, nbytes: int) -> None:
    if planes.dtype != torch.uint8 or planes.dim() != 2 or planes.shape[1] != nbytes:
        got = f"{planes.dtype} of {tuple(planes.shape)}"
        raise BatchError(f"takes uint8 of (N, {nbytes}), got {got}")


class _Pixels:
    """Where images go, channel by channel."""

    def __init__(
        self, planes: torch.Tensor, channels: int, size: Size, normalize: Normalize | None
    ) -> None:
        dtype = torch.uint8 if normalize is None else normalize.dtype
        order = None if normalize is None else normalize.memory_format
        self._normalize = normalize
        self.images = torch.empty(
            (len(planes), channels, *size),
            dtype=dtype,
            device=planes.device,
            memory_format=order or torch.contiguous_format,
        )

    def put(self, part: slice, channel: int, values: torch.Tensor) -> None:
        """Round float32 values to 0 to 255, and write them for some images; they are overwritten."""
        values.round_().clamp_(0, 255)
        if self._normalize is not None:
            values.sub_(self._normalize.mean[channel]).div_(self._normalize.std[channel])
        self.images[part, channel].copy_(values)

    def put_rgb(
        self, part: slice, luma: torch.Tensor, blue: torch.Tensor, red: torch.Tensor
    ) -> None:
        """Write the RGB of planes; each operation rounds once, as those of the codec do."""
        self.put(part, 0, red * CR_TO_RED + luma)
        green = luma - blue * CB_TO_GREEN
        self.put(part, 1, green - red * CR_TO_GREEN)
        self.put(part, 2, blue * CB_TO_BLUE + luma)


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


def _double(planes: torch.Tensor, size: Size) -> torch.Tensor:
    """Double the sides of planes by the triangle filter of JPEG decoders, and cut them."""
    tall = _double_rows(planes)[:, : size[0]]
    return _double_rows(tall.transpose(1, 2))[:, : size[1]].transpose(1, 2)


def _double_rows(planes: torch.Tensor) -> torch.Tensor:
    near, quarter = planes * 0.75, planes * 0.25
    up = torch.cat([quarter[:, :1], quarter[:, :-1]], 1).add_(near)
    down = torch.cat([quarter[:, 1:], quarter[:, -1:]], 1).add_(near)
    return torch.stack([up, down], 2).flatten(1, 2)
