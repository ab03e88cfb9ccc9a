"""The arithmetic of JPEG: quantization tables, the 8 x 8 cosine transform, and where blocks lie.

Coefficients are kept coefficient-major: ``(64, num_blocks)``, the blocks of Y row by row, then
those of Cb and Cr. Rows are ordered by ``max(u, v)``, so the first 1, 4, 16 or 64 of them make the
image at 1/8, 1/4, 1/2 or full scale. The transforms are matrix products of whole numbers in
float64: exact, so the same on every machine and in any order of summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loaders.codecs.yuv import double, half, join_rgb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.codecs.yuv import FloatArray, Plane, Size, UInt8Array

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SIDES = (1, 2, 4, 8)  # of what a block becomes at 1/8, 1/4, 1/2 and full scale
BAND_ROWS = (1, 3, 12, 48)  # coefficients of max(u, v) = 0; 1; 2 and 3; 4 to 7
# (u, v) of each row: down and across.
ORDER = sorted(((u, v) for u in range(8) for v in range(8)), key=lambda p: (max(p), sum(p), p))
_FORWARD_UNITS = 1 << 20
_TILE = 64
INVERSE_UNITS = float(1 << 24)

# Source: ITU-T T.81, annex K.1, tables K.1 and K.2.
_LUMA = """
16 11 10 16  24  40  51  61   12 12 14 19  26  58  60  55   14 13 16 24  40  57  69  56   14 17 22 29  51  87  80  62
18 22 37 56  68 109 103  77   24 35 55 64  81 104 113  92   49 64 78 87 103 121 120 101   72 92 95 98 112 100 103  99"""
_CHROMA = """
17 18 24 47  99  99  99  99   18 21 26 66  99  99  99  99   24 26 56 99  99  99  99  99   47 66 99 99  99  99  99  99
99 99 99 99  99  99  99  99   99 99 99 99  99  99  99  99   99 99 99 99  99  99  99  99   99 99 99 99  99  99  99  99"""


def quantization(quality: int) -> tuple[Ints, Ints]:
    """Return the divisors of luma and of chroma, (8, 8) each, at a quality of 1 to 100.

    Source: ``jpeg_quality_scaling`` and ``jpeg_add_quant_table`` of libjpeg, baseline.
    """
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return _scaled(_LUMA, percent), _scaled(_CHROMA, percent)


def _scaled(table: str, percent: int) -> Ints:
    divisors = np.array(table.split(), np.int64).reshape(8, 8)
    scaled: Ints = np.clip((divisors * percent + 50) // 100, 1, 255)
    return scaled


def cosines(num: int) -> Floats:
    """Return the orthonormal DCT-II of ``num`` points: frequency by position."""
    at = np.arange(num)
    matrix: Floats = np.cos((2 * at[None, :] + 1) * at[:, None] * np.pi / (2 * num)) * np.sqrt(
        2 / num
    )
    matrix[0] /= np.sqrt(2)
    return matrix


@cache
def _forward() -> Floats:
    """(64, 64): from the pixels of a block to its coefficients, times ``_FORWARD_UNITS``."""
    both = np.kron(cosines(8), cosines(8)) * _FORWARD_UNITS
    rows: Floats = np.rint(both)[[8 * u + v for u, v in ORDER]]
    return rows


@lru_cache(maxsize=64)
def inverse(quality: int, side: int, *, chroma: bool) -> Floats:
    """Return what turns stored coefficients into pixels, blocks of ``side`` pixels: ``(side * side, side * side)``.

    Entries are whole numbers, ``INVERSE_UNITS`` times those meant; dequantizing is part of them.
    """
    basis = cosines(side) * np.sqrt(side / 8)
    both = np.kron(basis, basis).T.reshape(side * side, side, side)
    divisors = quantization(quality)[chroma]
    columns = [both[:, u, v] * divisors[u, v] for u, v in ORDER[: side * side]]
    return np.rint(np.stack(columns, axis=1) * INVERSE_UNITS)


def product(matrix: Floats, columns: Floats) -> Floats:
    """Return ``matrix @ columns``, on this thread alone.

    OpenBLAS shares a product of more than 2^18 multiplications among all cores, which are busy with
    other images: so no more than 64 columns at a time.
    """
    num = columns.shape[1]
    tiles = -(-num // _TILE)
    padded = np.zeros((len(columns), tiles * _TILE))
    padded[:, :num] = columns
    parts = matrix @ padded.reshape(-1, tiles, _TILE).transpose(1, 0, 2)
    return parts.transpose(1, 0, 2).reshape(len(matrix), -1)[:, :num]


def blocks_of(size: Size) -> Size:
    """Return how many blocks a plane has, down and across."""
    return -(-size[0] // 8), -(-size[1] // 8)


def scaled(size: Size, side: int) -> Size:
    """Return (height, width) of a plane where a block has ``side`` pixels a side."""
    return -(-size[0] * side // 8), -(-size[1] * side // 8)


@dataclass(frozen=True, slots=True)
class Grid:
    """The blocks of every image of a field."""

    size: Size  # (height, width) of the image in pixels
    channels: int  # 1 or 3
    subsampling: str  # ``"420"`` or ``"444"``; of no meaning with one channel

    @property
    def is_halved(self) -> bool:
        """True if chroma has half the height and width."""
        return self.channels == 3 and self.subsampling == "420"

    @property
    def planes(self) -> list[tuple[Size, slice]]:
        """Of Y, or Y, Cb and Cr: the size in pixels, and where its blocks stand among all."""
        chroma = (half(self.size[0]), half(self.size[1])) if self.is_halved else self.size
        sizes = [self.size, chroma, chroma][: self.channels]
        ends = np.cumsum([math.prod(blocks_of(size)) for size in sizes]).tolist()
        slices = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        return list(zip(sizes, slices, strict=True))

    @property
    def num_blocks(self) -> int:
        """Blocks of all planes."""
        return int(self.planes[-1][1].stop)


def transform(planes: Sequence[Plane], grid: Grid, quality: int) -> Ints:
    """Return the quantized coefficients of planes around 0, ``(64, num_blocks)``; row 0 as differences."""
    tables = quantization(quality)
    parts = []
    for number, (plane, (size, _)) in enumerate(zip(planes, grid.planes, strict=True)):
        sums = product(_forward(), _blocks(plane.numbers, size).astype(np.float64))
        table = tables[number > 0]
        divisors = np.array([table[u, v] for u, v in ORDER], np.float64)[:, None]
        coefficients = np.rint(sums / (divisors * (_FORWARD_UNITS * plane.units)))
        coefficients[0] = _differences(coefficients[0].reshape(blocks_of(size))).reshape(-1)
        parts.append(coefficients.astype(np.int64))
    return np.concatenate(parts, axis=1)


def _blocks(numbers: Ints, size: Size) -> Ints:
    """Return the pixels of each block as a column, the edges continued to whole blocks."""
    rows, columns = blocks_of(size)
    below, beside = 8 * rows - size[0], 8 * columns - size[1]
    padded = np.pad(numbers, ((0, below), (0, beside)), mode="edge")
    return padded.reshape(rows, 8, columns, 8).transpose(1, 3, 0, 2).reshape(64, -1)


def _differences(means: Floats) -> Floats:
    """Return each block's mean minus that of the block before it; the first of a row looks up."""
    result = means.copy()
    result[:, 1:] -= means[:, :-1]
    result[1:, 0] -= means[:-1, 0]
    return result


def sums_of(differences: Floats) -> Floats:
    """Undo ``_differences``, for (rows, columns) of one plane."""
    result = differences.copy()
    result[:, 0] = np.cumsum(differences[:, 0])
    return np.cumsum(result, axis=1)


def restore(coefficients: Floats, grid: Grid, quality: int) -> UInt8Array:
    """Return the image of stored coefficients as H x W x C, at the scale of their number.

    They are ``(side * side, num_blocks)`` for a side of 1, 2, 4 or 8, row 0 as differences.
    """
    side = round(len(coefficients) ** 0.5)
    planes = [
        _plane(coefficients[:, part], size, inverse(quality, side, chroma=number > 0), side)
        for number, (size, part) in enumerate(grid.planes)
    ]
    luma = planes[0] + np.float32(128)
    np.clip(luma, 0, 255, out=luma)
    if grid.channels == 1:
        gray: UInt8Array = np.rint(luma).astype(np.uint8)[:, :, None]
        return gray
    size = scaled(grid.size, side)
    blue, red = (np.clip(plane, -128, 127) for plane in planes[1:])
    if grid.is_halved:
        blue, red = double(blue, size), double(red, size)
    return join_rgb(luma, blue, red)


def _plane(coefficients: Floats, size: Size, weights: Floats, side: int) -> FloatArray:
    """Return one plane, around 0."""
    rows, columns = blocks_of(size)
    coefficients = coefficients.copy()
    coefficients[0] = sums_of(coefficients[0].reshape(rows, columns)).reshape(-1)
    pixels = product(weights, coefficients).reshape(side, side, rows, columns)
    plane = np.empty((rows, side, columns, side), np.float32)
    plane[...] = pixels.transpose(2, 0, 3, 1)
    plane *= np.float32(1 / INVERSE_UNITS)
    height, width = scaled(size, side)
    return plane.reshape(rows * side, columns * side)[:height, :width]
