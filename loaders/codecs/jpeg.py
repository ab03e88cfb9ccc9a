"""Parts of JPEG files: how little of one a crop needs.

A file is decoded from the top, and may end below a crop. Where it has restart markers, it is a grid of
segments that decode alone: those of a crop, put together, are a JPEG of the same pixels. An index of the
segments, which our own files have, spares looking for them.

Source: ITU-T T.81, annex B; F.2.1.3.1 for what a restart marker resets.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.codecs.heads import (
    APP9,
    EOI,
    INDEX,
    SIDES,
    SOS,
    PictureHead,
    jpeg_head,
    rows_of,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.codecs.heads import Heads

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


class SegmentGrid(NamedTuple):
    """The segments of a picture, each a part of a row of units, or whole rows of them."""

    rows: int  # 0 where segments are neither
    columns: int
    height: int  # of a segment, in pixels
    width: int  # the same

    @property
    def total(self) -> int:
        """How many there are; 0 where a picture is not divided into a grid of them."""
        return self.rows * self.columns


def parts_of(heads: Heads, boxes: Ints, num_threads: int = 1) -> Ints:
    """Return which part of each picture is enough for a box of it, as ``cut_out`` takes it; zeros: all of it.

    Parts and boxes are ``(N, 4)``: y, x, height, width. Boxes may reach outside. A part is some of the picture's
    segments, or its first rows, behind which the file can end. The more threads share the interpreter, the more must be
    saved.
    """
    parts = np.zeros((len(heads), 4), np.int64)
    ends = (boxes[:, 0] + boxes[:, 2]).clip(0) + _MARGIN
    # Less saves too little to be worth a copy of the file.
    can_end = (heads["height_at"] > 0) & (ends * 16 <= heads["height"] * 15)
    parts[:, 2], parts[:, 3] = ends * can_end, heads["width"] * can_end
    numbers = np.flatnonzero(heads["interval"])
    if not len(numbers):
        return parts
    grids = np.array([grid_of(head) for head in rows_of(heads[numbers])])
    counts, sides = grids[:, :2], grids[:, 2:]
    sizes, starts, extents = sizes_of(heads[numbers]), boxes[numbers, :2], boxes[numbers, 2:]
    firsts = np.minimum((starts - _MARGIN).clip(0) // sides, counts - 1)
    lasts = np.minimum(-(-(starts + extents + _MARGIN) // sides), counts)
    lasts = np.maximum(lasts, firsts + 1)
    corners = firsts * sides
    shapes = np.minimum(lasts * sides, sizes) - corners
    saved = sizes.prod(axis=1) - shapes.prod(axis=1)
    is_worth = (saved >= _PIXELS_PER_THREAD * num_threads) & (shapes[:, 1] > _NARROW)
    is_worth &= counts[:, 0] > 0
    parts[numbers[is_worth]] = np.hstack([corners, shapes])[is_worth]
    return parts


def grid_of(head: PictureHead) -> SegmentGrid:
    """Return the segments of a picture."""
    return _grid(head.height, head.width, head.interval, head.unit_height, head.unit_width)


@lru_cache(maxsize=1024)
def _grid(
    height: int, width: int, interval: int, unit_height: int, unit_width: int
) -> SegmentGrid:
    if not interval:
        return SegmentGrid(0, 0, 1, 1)
    units = -(-width // unit_width)  # side by side
    across, down = min(interval, units), max(interval // units, 1)  # of a segment
    if units % across or interval % across:
        return SegmentGrid(0, 0, 1, 1)
    segment_height, segment_width = down * unit_height, across * unit_width
    rows, columns = -(-height // segment_height), -(-width // segment_width)
    return SegmentGrid(rows, columns, segment_height, segment_width)


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
    count = 0 if head is None else grid_of(head).total
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
    record: UInt8Array, head: PictureHead, part: Sequence[int]
) -> tuple[UInt8Array, Sequence[int], bool]:
    """Return a file of the part of a JPEG that is enough, by ``parts_of``: its pixels are those of the whole.

    Also return which part that is: y, x, height, width; and whether more data follow than its header tells of, which a
    decoder must not mind. Damage in what is left out goes unnoticed. A file without an end is returned whole, as only
    then the decoder notices what is missing.
    """
    top, _, height, width = part
    end = top + height
    is_cut = end > 0 and record.item(-1) == EOI and record.item(-2) == 0xFF
    if is_cut and (top or width < head.width):
        file = _joined(record, head, part)
        if file is not None:
            return file, part, False
    if is_cut and end < head.height:
        record = record.copy()
        SIDES.pack_into(record.data, head.height_at, end, head.width)
        return record, (0, 0, end, head.width), True
    return record, (0, 0, head.height, head.width), False


@lru_cache(maxsize=1024)
def _places(rows: int, columns: int, stride: int) -> Ints:
    """Return where the bounds of a block's segments are behind its first one, ``(rows, columns + 1)``."""
    return np.arange(rows)[:, None] * stride + np.arange(columns + 1)


def _joined(record: UInt8Array, head: PictureHead, part: Sequence[int]) -> UInt8Array | None:
    """Put header and segments together, row by row, and number the restart markers anew.

    None if the segments are not all there, or an index has made their bounds up.
    """
    grid, (top, left, height, width) = grid_of(head), part
    found = _bounds(record, head, grid.total)
    if found is None:
        return None
    start, every = found
    first = top // grid.height * grid.columns + left // grid.width
    places = _places(-(-height // grid.height), -(-width // grid.width), grid.columns)
    bounds = every[first:].astype(np.int64).take(places)
    head_bytes, data = record.data[:start], record.data[start:]
    rows = zip(bounds[:, 0].tolist(), bounds[:, -1].tolist(), strict=True)
    file = bytearray().join([head_bytes, *[data[begin:end] for begin, end in rows]])
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
