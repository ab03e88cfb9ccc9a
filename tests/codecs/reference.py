"""JPEG's arithmetic once more, slowly and in float64, sample by sample as the standard writes it.

Nothing of ``loaders`` is used here: what the fast paths give is compared with this.
"""

import struct
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Floats = npt.NDArray[np.float64]

LUMA = [
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
]  # fmt: skip
CHROMA = [
    [17, 18, 24, 47, 99, 99, 99, 99], [18, 21, 26, 66, 99, 99, 99, 99], [24, 26, 56, 99, 99, 99, 99, 99],
    [47, 66, 99, 99, 99, 99, 99, 99], *[[99] * 8] * 4,
]  # fmt: skip


def divisor(table: list[list[int]], u: int, v: int, quality: int) -> int:
    """Scale one entry of a table as ``jpeg_quality_scaling`` does."""
    percent = 5000 // quality if quality < 50 else 200 - quality * 2
    return min(max((table[u][v] * percent + 50) // 100, 1), 255)


def idct(block: Floats, side: int) -> Floats:
    """Return ``side`` x ``side`` pixels of an 8 x 8 block of dequantized coefficients: T.81, A.3.3."""
    pixels = np.zeros((side, side))
    for y in range(side):
        for x in range(side):
            total = 0.0
            for u in range(side):
                for v in range(side):
                    scale = (0.5**0.5 if u == 0 else 1) * (0.5**0.5 if v == 0 else 1)
                    down = np.cos((2 * y + 1) * u * np.pi / (2 * side))
                    across = np.cos((2 * x + 1) * v * np.pi / (2 * side))
                    total += scale * block[u, v] * down * across
            pixels[y, x] = total / 4  # of 8 x 8: the mean of fewer pixels is the same
    return pixels


@cache
def basis_of(side: int) -> Floats:
    """Return the pixels of each of the 64 coefficients alone."""
    return np.stack([idct(np.eye(64)[i].reshape(8, 8), side) for i in range(64)])


def plane(
    blocks: Floats, table: list[list[int]], quality: int, size: tuple[int, int], side: int
) -> Floats:
    """Return a plane of (rows, columns, 8, 8) quantized coefficients, cut to size."""
    rows, columns = blocks.shape[:2]
    table_now = np.array([[divisor(table, u, v, quality) for v in range(8)] for u in range(8)])
    basis = basis_of(side)
    result = np.zeros((rows * side, columns * side))
    for row in range(rows):
        for column in range(columns):
            block = (blocks[row, column] * table_now).reshape(64)
            at = slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)
            result[at] = np.tensordot(block, basis, 1)
    height, width = (-(-n * side // 8) for n in size)
    return result[:height, :width]


def doubled(values: Floats, size: tuple[int, int]) -> Floats:
    """Give each pixel 3/4 of the nearest sample and 1/4 of the next, along both axes, the edges continued."""
    result = np.zeros(size)
    for y in range(size[0]):
        for x in range(size[1]):
            total = 0.0
            for row, down in ((y // 2, 0.75), (y // 2 + (1 if y % 2 else -1), 0.25)):
                for column, across in ((x // 2, 0.75), (x // 2 + (1 if x % 2 else -1), 0.25)):
                    row_in = min(max(row, 0), values.shape[0] - 1)
                    column_in = min(max(column, 0), values.shape[1] - 1)
                    total += down * across * values[row_in, column_in]
            result[y, x] = total
    return result


def rgb(luma: Floats, blue: Floats, red: Floats) -> Floats:
    """Return R, G and B of Y of 0 to 255 and chroma around 0: T.871, section 7; neither rounded nor cut."""
    green = luma - 0.114 * 1.772 / 0.587 * blue - 0.299 * 1.402 / 0.587 * red
    return np.stack([luma + 1.402 * red, green, luma + 1.772 * blue], axis=2)


def images_of(planes: list[Floats], *, halved: bool) -> Floats:
    """Return pixels of Y, Cb and Cr, all around 0; or of Y alone."""
    luma = np.clip(planes[0] + 128, 0, 255)
    if len(planes) == 1:
        return luma[:, :, None]
    chroma = [np.clip(plane, -128, 127) for plane in planes[1:]]
    if halved:
        chroma = [doubled(plane, luma.shape) for plane in chroma]
    return np.clip(rgb(luma, *chroma), 0, 255)


def read_record(
    record: bytes, sizes: list[tuple[int, int]], bands: int = 4
) -> tuple[list[Floats], int]:
    """Read a ``dct`` record as FORMAT.md describes it; return blocks by component, and the quality."""
    magic, layout, mode, quality, *size, num_escapes = struct.unpack_from("<BBBBHHI", record)
    assert (magic, layout, tuple(size)) == (0xDC, 1, sizes[0])
    nbytes, checks = struct.unpack_from("<4I", record, 12), struct.unpack_from("<4I", record, 28)
    escapes = record[48 : 48 + 3 * num_escapes]
    assert (
        xxhash.xxh3_64_intdigest(record[:44] + escapes) & 0xFFFFFFFF
        == struct.unpack_from("<I", record, 44)[0]
    )
    shapes = [(-(-height // 8), -(-width // 8)) for height, width in sizes]
    num_blocks = sum(rows * columns for rows, columns in shapes)
    values, at = [], 48 + 3 * num_escapes
    for band, num_rows in enumerate((1, 3, 12, 48)[:bands]):
        data = record[at : at + nbytes[band]]
        assert xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF == checks[band]
        codec = pa.Codec("zstd" if mode & 16 else "lz4_raw")
        plain = codec.decompress(data, num_rows * num_blocks, asbytes=True)
        values += np.frombuffer(plain, np.int8).astype(int).tolist()
        at += nbytes[band]
    place = 0
    for gap, add in struct.iter_unpack("<Hb", escapes):
        place += gap
        if add and place < len(values):
            values[place] += 256 * add
    assert place == 64 * num_blocks
    order = sorted(
        ((u, v) for u in range(8) for v in range(8)), key=lambda p: (max(p), p[0] + p[1], p[0])
    )
    return _blocks(np.array(values).reshape(-1, num_blocks), shapes, order), quality


def _blocks(
    rows: npt.NDArray[np.int64], shapes: list[tuple[int, int]], order: list[tuple[int, int]]
) -> list[Floats]:
    components, first = [], 0
    for height, width in shapes:
        blocks = np.zeros((height, width, 8, 8))
        for (u, v), row in zip(order, rows, strict=False):
            blocks[:, :, u, v] = row[first : first + height * width].reshape(height, width)
        for y in range(height):
            for x in range(width):
                if x or y:
                    blocks[y, x, 0, 0] += blocks[y, x - 1, 0, 0] if x else blocks[y - 1, x, 0, 0]
        components.append(blocks)
        first += height * width
    return components


def decode(
    record: bytes, size: tuple[int, int], channels: int, *, halved: bool, side: int = 8
) -> Floats:
    """Return the pixels of a record, neither rounded nor in whole numbers."""
    chroma = (-(-size[0] // 2), -(-size[1] // 2)) if halved else size
    sizes = [size] if channels == 1 else [size, chroma, chroma]
    blocks, quality = read_record(record, sizes, {1: 1, 2: 2, 4: 3, 8: 4}[side])
    planes = [
        plane(part, CHROMA if number else LUMA, quality, part_size, side)
        for number, (part, part_size) in enumerate(zip(blocks, sizes, strict=True))
    ]
    return images_of(planes, halved=halved)
