"""Parts of JPEG files: how little of one a crop needs.

A file is decoded from the top, and may end below a crop. Where it has restart markers, it is a grid of
segments that decode alone: those of a crop, put together, are a JPEG of the same pixels. An index of the
segments, which our own files have, spares looking for them.

Source: ITU-T T.81, annex B; F.2.1.3.1 for what a restart marker resets.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs.heads import APP9, EOI, INDEX, SIDES, SOS, PictureHead, jpeg_head

if TYPE_CHECKING:
    from collections.abc import Sequence

UInt8Array = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bounds = npt.NDArray[np.integer[Any]]

# Chroma is interpolated from what is beside it: up to 4 pixels, found by trying every subsampling
# and reduction.
_MARGIN = 8
# libjpeg does not interpolate rows of 1 or 2 pixels of chroma (``jinit_upsampler`` in ``jdsample.c``): at
# most so many pixels wide is what has no more, at 4:2:2 and a quarter of its size.
_NARROW = 16
# Putting a file together takes about 30 us with the GIL held, in which each thread
# would else decode this many pixels.
_PIXELS_PER_THREAD = 6_000
_SEGMENT_PIXELS = 64  # half costs 1 % more bytes and gains no time; twice loses 5 to 10 % of time
_RST0 = 0xD0
_NUMBERS = (_RST0 + np.arange(1 << 10) % 8).astype(np.uint8)  # of markers, one after the other
_MIN_SEGMENT_AREA = 512  # pixels: a segment costs 5 to 7 bytes, and these have 100 to 200
_SHORT, _LONG = np.dtype("<u2"), np.dtype("<u4")  # of an index
_MAX_APP_BYTES = 65_535


def parts_of(heads: Ints, boxes: Ints, num_threads: int = 1) -> Ints:
    """Return which part is enough of each picture, ``(N, 11)``, as ``cut_out`` takes it; zeros: all of it.

    First row of segments, the one behind the last, the same of columns; height and width of all of them in pixels;
    where they begin in the picture, y and x; the number of its segments, and of those side by side: zeros where too few
    pixels would be saved. Then how many rows are enough of a file whose segments are not cut out.

    Heads are ``(N, 7)`` as of ``picture_heads``, boxes ``(N, 4)``: y, x, height, width, which may reach outside. The
    more threads share the interpreter, the more must be saved.
    """
    parts = np.zeros((len(heads), 11), np.int64)
    ends = (boxes[:, 0] + boxes[:, 2]).clip(0) + _MARGIN
    # Less saves too little to be worth a copy of the file.
    parts[:, 10] = np.where((heads[:, 2] > 0) & (ends * 16 <= heads[:, 0] * 15), ends, 0)
    numbers = np.flatnonzero(heads[:, 4])
    if not len(numbers):
        return parts
    counts, sides = _grids(heads[numbers])
    numbers, counts, sides = (each[counts[:, 0] > 0] for each in (numbers, counts, sides))
    sizes, starts, extents = heads[numbers, :2], boxes[numbers, :2], boxes[numbers, 2:]
    firsts = np.minimum((starts - _MARGIN).clip(0) // sides, counts - 1)
    lasts = np.minimum(-(-(starts + extents + _MARGIN) // sides), counts)
    lasts = np.maximum(lasts, firsts + 1)
    corners = firsts * sides
    shapes = np.minimum(lasts * sides, sizes) - corners
    saved = sizes.prod(axis=1) - shapes.prod(axis=1)
    is_worth = (saved >= _PIXELS_PER_THREAD * num_threads) & (shapes[:, 1] > _NARROW)
    rows, columns = np.stack([firsts, lasts], axis=2).transpose(1, 0, 2)
    found = np.hstack(
        [rows, columns, shapes, corners, counts.prod(1, keepdims=True), counts[:, 1:]]
    )
    parts[numbers[is_worth], :10] = found[is_worth]
    return parts


def num_segments(head: PictureHead) -> int:
    """Return how many segments a picture is made of; 0 if it is not divided into a grid of them."""
    return int(_grids(np.array([head]))[0].prod()) if head.interval else 0


def _grids(heads: Ints) -> tuple[Ints, Ints]:
    """Return how many segments of each picture lie below and beside each other, and their sides, ``(N, 2)`` each.

    0 where segments are neither parts of rows of units nor rows of them.
    """
    sizes, (interval, unit_height, unit_width) = heads[:, :2], heads[:, 4:].T
    units = -(-sizes[:, 1] // unit_width)  # side by side
    is_part, are_rows = units % interval == 0, interval % units == 0
    rows = np.where(is_part, 1, interval // units)
    sides = np.stack([rows * unit_height, np.where(is_part, interval, units) * unit_width], axis=1)
    counts = -(-sizes // np.maximum(sides, 1)) * (is_part | are_rows)[:, None]
    return counts, sides


@lru_cache  # most pictures of a dataset have few sizes
def restart_interval(height: int, width: int, unit_width: int) -> int:
    """Return how many units (MCUs) apart restart markers make a grid: segments of about 64 pixels, or whole rows.

    0 for a picture of which no part is worth making.
    """
    if height * width <= _PIXELS_PER_THREAD:
        return 0
    units, wanted = -(-width // unit_width), _SEGMENT_PIXELS // unit_width
    least = max(1, _MIN_SEGMENT_AREA // unit_width**2)
    divisors = [n for n in range(least, units + 1) if units % n == 0] or [units]
    return min(divisors, key=lambda n: max(n / wanted, wanted / n))


def with_index(record: UInt8Array) -> UInt8Array:
    """Write into a JPEG where its segments are, which else takes looking at all of its bytes.

    An APP9 segment, which decoders skip: a name, 0, and where each segment ends behind the scan's header,
    little-endian, in 2 bytes if the scan has less than 65,536 and in 4 if it has more. A file without
    restart markers, or with too many, stays as it is.
    """
    head = jpeg_head(record.data)
    count = 0 if head is None else num_segments(head)
    if head is None or not count or record[head.tables_end + 1] == APP9:
        return record
    start = _scan_start(record.data, head, head.tables_end)
    data = record[start:]
    bounds = _found_bounds(data).astype(_index_dtype(data))
    body = INDEX + bounds.tobytes()
    if not start or len(bounds) != count + 1 or len(body) + 2 > _MAX_APP_BYTES:
        return record
    index = struct.pack(">HH", 0xFF00 | APP9, len(body) + 2) + body
    tables, scan = record[: head.tables_end], record[head.tables_end :]
    return np.frombuffer(b"".join([tables.data, index, scan.data]), np.uint8)


def cut_out(
    record: UInt8Array, head: Sequence[int], part: Sequence[int]
) -> tuple[UInt8Array, int, int, int, int, bool]:
    """Return a file of the part of a JPEG that is enough, by ``parts_of``: its pixels are those of the whole.

    Also return its height and width, where it begins in the whole picture (top, left), and whether more data follow
    than its header tells of, which a decoder must not mind. Damage in what is left out goes unnoticed. A file without
    an end is returned whole, as only then the decoder notices what is missing.
    """
    is_divided, rows = part[1] > 0, part[10]
    is_cut = (is_divided or rows) and record.item(-1) == EOI and record.item(-2) == 0xFF
    if is_cut and is_divided:
        file = _joined(record, PictureHead._make(head), part)
        if file is not None:
            height, width, top, left = part[4:8]
            return file, height, width, top, left, False
    if is_cut and rows:
        record = record.copy()
        SIDES.pack_into(record.data, head[2], rows, head[1])
        return record, rows, head[1], 0, 0, True
    return record, head[0], head[1], 0, 0, False


@lru_cache(maxsize=1024)
def _places(rows: int, columns: int, stride: int) -> Ints:
    """Return where the bounds of a block's segments are behind its first one, ``(rows, columns + 1)``."""
    return np.arange(rows)[:, None] * stride + np.arange(columns + 1)


def _joined(record: UInt8Array, head: PictureHead, part: Sequence[int]) -> UInt8Array | None:
    """Put header and segments together, row by row, and number the restart markers anew.

    None if the segments are not all there, or an index has made their bounds up.
    """
    row, end_row, column, end_column, height, width, _, _, count, stride, _ = part
    found = _bounds(record, head, count)
    if found is None:
        return None
    start, every = found
    places = _places(end_row - row, end_column - column, stride)
    bounds = every[row * stride + column :].astype(np.int64).take(places)
    head_bytes, data = record.data[:start], record.data[start:]
    rows = zip(bounds[:, 0].tolist(), bounds[:, -1].tolist(), strict=True)
    file = bytearray().join([head_bytes, *[data[first:last] for first, last in rows]])
    lengths = (bounds[:, 1:] - bounds[:, :-1]).ravel()
    numbers = lengths.cumsum()
    numbers += start - 1
    if numbers[-1] != len(file) - 1 or lengths.min() < 0:
        return None
    joined = np.frombuffer(file, np.uint8)
    joined[numbers] = _numbers(len(numbers))
    joined[-1] = EOI
    SIDES.pack_into(file, head.height_at, height, width)
    return joined


def _numbers(count: int) -> UInt8Array:
    """Return the second bytes of restart markers, one after the other."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else np.resize(_NUMBERS, count)


def _bounds(record: UInt8Array, head: PictureHead, count: int) -> tuple[int, Bounds] | None:
    """Return where the scan's data begin, and how far behind that each segment begins and the last one ends.

    By the index that ``with_index`` writes, if it is there and of this file. None if the segments are not ``count``.
    """
    file, at, first = record.data, head.tables_end, 4 + len(INDEX)
    if len(file) < at + 4:
        return None
    index = record[at : _segment_end(file, at)] if file[at + 1] == APP9 else record[:0]
    start = _scan_start(file, head, at + len(index))
    data, dtype = record[start:], _index_dtype(record[start:])
    fits = len(index) == first + (count + 1) * dtype.itemsize and index[4:first].tobytes() == INDEX
    bounds = index[first:].view(dtype) if fits else None
    if bounds is None or bounds[-1] != len(data):
        bounds = _found_bounds(data)
    return (start, bounds) if start and len(bounds) == count + 1 else None


def _found_bounds(data: UInt8Array) -> Bounds:
    """Look for the markers."""
    marks = np.flatnonzero(data[:-1] == 0xFF)
    marks = marks[data[marks + 1] != 0]  # a zero follows where 0xFF is data
    return np.concatenate([[0], marks + 2])


def _scan_start(file: memoryview, head: PictureHead, at: int) -> int:
    """Return where the data of a scan of all components begin; 0 if there is none."""
    if len(file) < at + 5 or file[at + 1] != SOS:
        return 0
    is_all = file[at + 4] == file[head.height_at + SIDES.size]
    return _segment_end(file, at) if is_all else 0


def _segment_end(file: memoryview, at: int) -> int:
    """Return where a segment of the header ends."""
    return at + 2 + (file[at + 2] << 8 | file[at + 3])


def _index_dtype(data: UInt8Array) -> np.dtype[Any]:
    return _SHORT if len(data) < 1 << 16 else _LONG
