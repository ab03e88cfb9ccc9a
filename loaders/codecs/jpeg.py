"""Parts of JPEG files: how little of one a crop needs.

A file is decoded from the top, and may end below a crop. Where it has restart markers, it is a grid of
segments that decode alone: those of a crop, put together, are a JPEG of the same pixels. An index of the
segments, which our own files have, spares looking for them.

Source: ITU-T T.81, annex B; F.2.1.3.1 for what a restart marker resets.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.codecs.heads import APP9, SIDES, PictureHead, jpeg_head

if TYPE_CHECKING:
    from collections.abc import Sequence

UInt8Array = npt.NDArray[np.uint8]
Bounds = npt.NDArray[np.integer[Any]]

# Chroma is interpolated from what is beside it: up to 4 pixels, found by trying every subsampling
# and reduction.
_MARGIN = 8
# Putting a file together takes about 30 us with the interpreter's lock held, in which each thread
# would else decode this many pixels.
_PIXELS_PER_THREAD = 6_000
_SEGMENT_PIXELS = 64  # half costs 1 % more bytes and gains no time; twice loses 5 to 10 % of time
_SOS, _DRI, _RST0, _EOI = 0xDA, 0xDD, 0xD0, 0xD9
_NUMBERS = (_RST0 + np.arange(1 << 10) % 8).astype(np.uint8)  # of markers, one after the other
_INDEX = b"SEGMENTS"
_MAX_APP_BYTES = 65_535
_MAX_SEEN = 1024


class PicturePart(NamedTuple):
    """An encoded picture that is part of another, or all of it.

    Attributes:
        record: The file.
        height: In pixels.
        width: In pixels.
        top: Where it begins in the whole picture.
        left: The same.
        ends_early: Data follow that the header does not tell of: a decoder must not mind.
    """

    record: UInt8Array
    height: int
    width: int
    top: int = 0
    left: int = 0
    ends_early: bool = False


class _Grid(NamedTuple):
    """Segments that decode alone.

    Attributes:
        start: Of their data, behind the height in the frame header.
        rows: Of segments.
        columns: Of segments.
        height: Of a segment, in pixels.
        width: Of a segment, in pixels.
    """

    start: int
    rows: int
    columns: int
    height: int
    width: int


def part_of(
    record: UInt8Array, head: PictureHead, box: Sequence[int], num_threads: int = 1
) -> PicturePart:
    """Make a JPEG of what a crop needs: its pixels are those of the whole, at any reduction.

    A progressive or cut file, and what is not worth it, stays as it is. Damage in what is left out goes
    unnoticed.

    Args:
        record: The file.
        head: Its header.
        box: y, x, height, width in pixels; it may reach outside.
        num_threads: How many share the interpreter: the more they are, the more must be saved.
    """
    # A file without an end is decoded whole: only then does the decoder notice what is missing.
    if head.height_at is None or record[-2] != 0xFF or record[-1] != _EOI:
        return PicturePart(record, head.height, head.width)
    grid = _grids.find(record, head)
    min_saved = _PIXELS_PER_THREAD * num_threads
    part = grid and _segments_of(record, head, head.height_at, grid, box, min_saved)
    return part or _rows_of(record, head, box[0] + box[2])


def restart_interval(width: int, unit_width: int) -> int:
    """Return how many units (MCUs) apart restart markers make a grid: segments of about 64 pixels, at most 128."""
    units, wanted = -(-width // unit_width), _SEGMENT_PIXELS // unit_width
    divisors = [n for n in range(1, 2 * wanted + 1) if units % n == 0]
    return min(divisors, key=lambda n: max(n / wanted, wanted / n))


def with_index(record: UInt8Array) -> UInt8Array:
    """Write into a JPEG where its segments are, which else takes looking at all of its bytes.

    An APP9 segment, which decoders skip: a name, 0, and where each segment ends behind the scan's header,
    little-endian, in 2 bytes if the scan has less than 65,536 and in 4 if it has more. A file without
    restart markers, or with too many, stays as it is.
    """
    head = jpeg_head(record.data)
    grid = head and head.height_at is not None and _grids.find(record, head)
    if not head or head.height_at is None or not grid:
        return record
    data = record[head.height_at + grid.start :]
    bounds = _found_bounds(data, grid.rows * grid.columns)
    if head.index_at is not None or bounds is None:
        return record
    body = _INDEX + bounds.astype(_index_dtype(data)).tobytes()
    if len(body) + 2 > _MAX_APP_BYTES:
        return record
    segment = struct.pack(">HH", 0xFF00 | APP9, len(body) + 2) + body
    at = 4 + (int(record[4]) << 8 | int(record[5]))  # behind the JFIF segment
    return np.concatenate([record[:at], np.frombuffer(segment, np.uint8), record[at:]])


def _rows_of(record: UInt8Array, head: PictureHead, rows: int) -> PicturePart:
    """Let the picture end below its first rows."""
    rows = max(0, rows) + _MARGIN
    if rows * 16 > head.height * 15:
        return PicturePart(record, head.height, head.width)
    record = record.copy()
    SIDES.pack_into(record.data, head.height_at or 0, rows, head.width)
    return PicturePart(record, rows, head.width, ends_early=True)


def _segments_of(
    record: UInt8Array,
    head: PictureHead,
    height_at: int,
    grid: _Grid,
    box: Sequence[int],
    min_saved: int,
) -> PicturePart | None:
    """Put the segments below a box together; None if they are not all there, or too few pixels are saved."""
    top, bottom = _span(box[0], box[2], grid.height, grid.rows)
    left, right = _span(box[1], box[3], grid.width, grid.columns)
    height = min(bottom * grid.height, head.height) - top * grid.height
    width = min(right * grid.width, head.width) - left * grid.width
    if head.height * head.width - height * width < min_saved:
        return None
    start = height_at + grid.start
    bounds = _bounds(record, head.index_at, start, grid.rows * grid.columns)
    if bounds is None:
        return None
    begins = bounds[:-1].reshape(-1, grid.columns)[top:bottom, left:right]
    ends = bounds[1:].reshape(-1, grid.columns)[top:bottom, left:right]
    part = _joined(record.data, start, begins, ends)
    if part is None:
        return None
    SIDES.pack_into(part, height_at, height, width)
    whole = np.frombuffer(part, np.uint8)
    return PicturePart(whole, height, width, top * grid.height, left * grid.width)


def _span(start: int, extent: int, step: int, count: int) -> tuple[int, int]:
    """Return the first of ``count`` segments that hold a span of pixels and its margin, and the one behind the last."""
    first = min(max(start - _MARGIN, 0) // step, count - 1)
    last = min(-(-(start + extent + _MARGIN) // step), count)
    return first, max(last, first + 1)


def _joined(file: memoryview, start: int, begins: Bounds, ends: Bounds) -> bytearray | None:
    """Put header and segments together, row by row, and number the restart markers anew.

    None if an index has made the bounds up.
    """
    data = file[start:]
    rows = zip(begins[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    part = bytearray().join([file[:start], *[data[first:last] for first, last in rows]])
    numbers = (ends - begins).cumsum()
    numbers += start - 1
    if numbers[-1] != len(part) - 1:
        return None
    np.frombuffer(part, np.uint8)[numbers] = _numbers(len(numbers))
    part[-1] = _EOI
    return part


def _numbers(count: int) -> UInt8Array:
    """Return the second bytes of restart markers, one after the other."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else np.resize(_NUMBERS, count)


def _bounds(record: UInt8Array, index_at: int | None, start: int, count: int) -> Bounds | None:
    """Return where the segments begin behind ``start``, and where the last one ends; None if they are not ``count``."""
    data = record[start:]
    if index_at is not None:
        bounds = _indexed_bounds(record, data, index_at, count)
        if bounds is not None:
            return bounds
    return _found_bounds(data, count)


def _indexed_bounds(record: UInt8Array, data: UInt8Array, at: int, count: int) -> Bounds | None:
    """Read an index that ``with_index`` has written; None if there is none, or that of another file."""
    dtype, first = _index_dtype(data), at + 4 + len(_INDEX)
    body = record[first : first + (count + 1) * dtype.itemsize]
    if record[at + 4 : first].tobytes() != _INDEX or len(body) != (count + 1) * dtype.itemsize:
        return None
    bounds = body.view(dtype)
    return bounds if bounds[-1] == len(data) else None


def _index_dtype(data: UInt8Array) -> np.dtype[Any]:
    return np.dtype("<u2" if len(data) < 1 << 16 else "<u4")


def _found_bounds(data: UInt8Array, count: int) -> Bounds | None:
    """Look for the markers."""
    marks = np.flatnonzero(data[:-1] == 0xFF)
    marks = marks[data[marks + 1] != 0]  # a zero follows where 0xFF is data
    return np.concatenate([[0], marks + 2]) if len(marks) == count else None


class _Grids:
    """The grids that were laid out, by the header from the frame's sides on: most files of a dataset share it."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._found: dict[bytes, _Grid | None] = {}

    def find(self, record: UInt8Array, head: PictureHead) -> _Grid | None:
        """Return how the only scan of a file is divided; None if it is not."""
        header = record[head.height_at :]
        try:
            return self._found[header[: self._nbytes].tobytes()]
        except KeyError:
            scan, grid = _read_grid(header.data, head)
            self._keep(header[:scan].tobytes(), grid)
            return grid

    def _keep(self, header: bytes, grid: _Grid | None) -> None:
        if header:
            self._nbytes = len(header)
            self._found = {**(self._found if len(self._found) < _MAX_SEEN else {}), header: grid}


_grids = _Grids()


def _read_grid(header: memoryview, head: PictureHead) -> tuple[int, _Grid | None]:
    """Read the tables from the frame's sides on; return where the scan's data begin, and the grid.

    0 where no scan is found; no grid where there are no restart markers or several scans.
    """
    num_components = header[4]
    at, interval = 5 + 3 * num_components, 0
    while at + 5 < len(header) and header[at] == 0xFF:
        marker, end = header[at + 1], at + 2 + (header[at + 2] << 8 | header[at + 3])
        if marker == _SOS:
            sampling = [header[6 + 3 * i] for i in range(num_components)]
            is_all = header[at + 4] == num_components
            return end, _grid(end, head, _unit_sides(sampling), interval) if is_all else None
        if marker == _DRI:
            interval = header[at + 4] << 8 | header[at + 5]
        at = end
    return 0, None


def _unit_sides(sampling: list[int]) -> tuple[int, int]:
    """Return height and width of a unit: what the components' blocks cover; of a single one, a block."""
    if len(sampling) < 2:
        return 8, 8
    return 8 * max(both & 15 for both in sampling), 8 * max(both >> 4 for both in sampling)


def _grid(start: int, head: PictureHead, unit: tuple[int, int], interval: int) -> _Grid | None:
    """Lay the segments out; None if they are neither parts of rows of units nor rows of them."""
    if not all(unit) or not interval:
        return None
    units = -(-head.width // unit[1])  # side by side
    if units % interval == 0:
        height, width = unit[0], interval * unit[1]
    elif interval % units == 0:
        height, width = interval // units * unit[0], units * unit[1]
    else:
        return None
    return _Grid(start, -(-head.height // height), -(-head.width // width), height, width)
