"""JPEG files as bytes: what their headers say, and how little of a file a crop needs.

A file is decoded from the top, and may end below a crop. Where it has restart markers, it is a grid of
segments that decode alone: those of a crop, put together, are a JPEG of the same pixels.

Source: ITU-T T.81, annex B; F.2.1.3.1 for what a restart marker resets.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

UInt8Array = npt.NDArray[np.uint8]

# Chroma is interpolated from what is beside it: up to 4 pixels, found by trying every subsampling
# and reduction.
_MARGIN = 8
_MIN_PIXELS_SAVED = 8192  # decoding them takes as long as putting a file together
_SIDES = struct.Struct(">HH")
_NO_BASELINE = frozenset(
    {0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xDB), 0xFF}
)  # other frames, what has no business before a frame, and fill bytes
_SOS, _DRI, _RST0, _EOI, _APP9 = 0xDA, 0xDD, 0xD0, 0xD9, 0xE9
_INDEX = b"SEGMENTS"
_MAX_SEEN = 64
_SEGMENT_PIXELS = 64  # half costs 1 % more bytes and gains no time; twice loses 5 to 10 % of time
_MAX_INDEXED = (65_535 - 2 - len(_INDEX)) // 2
_NUMBERS = (_RST0 + np.arange(1 << 10) % 8).astype(
    np.uint8
)  # of restart markers, one after the other


class PictureHead(NamedTuple):
    """What the first bytes of an encoded picture say.

    Attributes:
        height: In pixels.
        width: In pixels.
        height_at: Where the height stands in the frame header of a sequential Huffman JPEG.
        index_at: Where such a one may have an index of its segments.
    """

    height: int
    width: int
    height_at: int | None = None
    index_at: int | None = None


class PicturePart(NamedTuple):
    """An encoded picture that is part of another, or all of it.

    Attributes:
        record: The file.
        head: Its header.
        top: Where it begins in the whole picture, in pixels.
        left: The same.
        ends_early: Data follow that the header does not tell of: a decoder must not mind.
    """

    record: UInt8Array
    head: PictureHead
    top: int = 0
    left: int = 0
    ends_early: bool = False


class _Scan(NamedTuple):
    """How the only scan of a JPEG is divided: sides of a unit (MCU) in pixels, units between restart markers."""

    starts_after: int  # the sides in the frame header
    unit_height: int
    unit_width: int
    interval: int  # 0: no markers


class _Grid(NamedTuple):
    """Segments that decode alone, rows by columns, and the sides of each in pixels."""

    rows: int
    columns: int
    height: int
    width: int


def jpeg_head(start: memoryview) -> PictureHead | None:
    """Read the frame header of a sequential Huffman JPEG; None for any other."""
    at, index_at = 2, None
    while at + 9 < len(start) and start[at] == 0xFF:
        marker = start[at + 1]
        if marker in (0xC0, 0xC1):
            height, width = _SIDES.unpack_from(start, at + 5)
            return PictureHead(height, width, at + 5, index_at)
        if marker in _NO_BASELINE:
            return None
        if marker == _APP9:
            index_at = at
        at += 2 + (start[at + 2] << 8 | start[at + 3])
    return None


def restart_interval(width: int, unit_width: int) -> int:
    """Return how many units (MCUs) apart restart markers make a grid: segments of about 64 pixels, at most 128."""
    units, wanted = -(-width // unit_width), _SEGMENT_PIXELS // unit_width
    divisors = [n for n in range(1, 2 * wanted + 1) if units % n == 0]
    return min(divisors, key=lambda n: max(n / wanted, wanted / n))


def with_index(record: UInt8Array) -> UInt8Array:
    """Write into a JPEG how long its segments are, which else takes looking at all of its bytes.

    An APP9 segment, which decoders skip: a name, and the length of each in 2 bytes, little-endian, with the
    restart marker behind it. A file that has no segments, or too long or too many, stays as it is.
    """
    head = jpeg_head(record.data)
    found = None if head is None or head.index_at is not None else _segmented(record, head)
    if found is None:
        return record
    start, grid = found
    bounds = _bounds(record, None, start, grid.rows * grid.columns)
    lengths = None if bounds is None else np.diff(bounds)
    if lengths is None or lengths.max() >= 1 << 16 or len(lengths) > _MAX_INDEXED:
        return record
    body = _INDEX + lengths.astype("<u2").tobytes()
    segment = struct.pack(">HH", 0xFF00 | _APP9, len(body) + 2) + body
    at = 4 + (int(record[4]) << 8 | int(record[5]))  # behind the JFIF segment
    return np.concatenate([record[:at], np.frombuffer(segment, np.uint8), record[at:]])


def part_of(record: UInt8Array, head: PictureHead, box: Sequence[int]) -> PicturePart:
    """Make a JPEG of what a crop needs: its pixels are those of the whole, at any reduction.

    A progressive or cut file, and what is not worth it, stays as it is. Damage in what is left out goes
    unnoticed.

    Args:
        record: The file.
        head: Its header.
        box: y, x, height, width in pixels; it may reach outside.
    """
    # A file without an end is decoded whole: only then does the decoder notice what is missing.
    if head.height_at is None or record[-2] != 0xFF or record[-1] != _EOI:
        return PicturePart(record, head)
    return _segments_of(record, head, box) or _rows_of(record, head, box[0] + box[2])


def _rows_of(record: UInt8Array, head: PictureHead, rows: int) -> PicturePart:
    """Let the picture end below its first rows."""
    rows = max(0, rows) + _MARGIN
    if rows * 16 > head.height * 15:
        return PicturePart(record, head)
    record, head = record.copy(), head._replace(height=rows)
    _write_sides(record, head)
    return PicturePart(record, head, ends_early=True)


def _write_sides(record: UInt8Array, head: PictureHead) -> None:
    assert head.height_at is not None
    _SIDES.pack_into(record.data, head.height_at, head.height, head.width)


def _segments_of(record: UInt8Array, head: PictureHead, box: Sequence[int]) -> PicturePart | None:
    """Put the segments below a box together; None if there are none, or too little is gained."""
    found = _segmented(record, head)
    if found is None:
        return None
    start, grid = found
    top, bottom = _span(box[0], box[2], grid.height, grid.rows)
    left, right = _span(box[1], box[3], grid.width, grid.columns)
    height = min(bottom * grid.height, head.height) - top * grid.height
    width = min(right * grid.width, head.width) - left * grid.width
    if head.height * head.width - height * width < _MIN_PIXELS_SAVED:
        return None
    bounds = _bounds(record, head.index_at, start, grid.rows * grid.columns)
    if bounds is None:
        return None
    part = _joined(record, bounds, grid.columns, (slice(top, bottom), slice(left, right)))
    inner = PictureHead(height, width, head.height_at)
    _write_sides(part, inner)
    return PicturePart(part, inner, top * grid.height, left * grid.width)


def _segmented(record: UInt8Array, head: PictureHead) -> tuple[int, _Grid] | None:
    """Return where the scan's data begin and how they are divided; None if they are not."""
    assert head.height_at is not None
    scan = _scans.find(record, head.height_at)
    grid = scan and scan.interval and _grid(scan, head)
    return (head.height_at + scan.starts_after, grid) if scan and grid else None


class _Scans:
    """The scans that were read, by the tables before them: most files of a dataset have the same."""

    def __init__(self) -> None:
        self._tables_nbytes = 0
        self._found: dict[bytes, _Scan] = {}

    def find(self, record: UInt8Array, height_at: int) -> _Scan | None:
        """Return the only scan of a file; None if there is none, or more than one."""
        tables = record[height_at + _SIDES.size :]
        scan = self._found.get(tables[: self._tables_nbytes].tobytes())
        if scan is None:
            scan = _read_scan(record.data, height_at)
            if scan is not None:
                self._keep(tables[: scan.starts_after - _SIDES.size].tobytes(), scan)
        return scan

    def _keep(self, tables: bytes, scan: _Scan) -> None:
        self._tables_nbytes = len(tables)
        self._found = {**(self._found if len(self._found) < _MAX_SEEN else {}), tables: scan}


_scans = _Scans()


def _read_scan(data: memoryview, height_at: int) -> _Scan | None:
    """Read the tables behind a frame header, up to the scan's data; None if it is not all of the picture's."""
    num_components = data[height_at + 4]
    at, interval = height_at + 5 + 3 * num_components, 0
    while at + 5 < len(data) and data[at] == 0xFF:
        marker, end = data[at + 1], at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker == _SOS:
            sides = _unit_sides([data[height_at + 6 + 3 * i] for i in range(num_components)])
            is_all = data[at + 4] == num_components
            return _Scan(end - height_at, *sides, interval) if is_all and all(sides) else None
        if marker == _DRI:
            interval = data[at + 4] << 8 | data[at + 5]
        at = end
    return None


def _unit_sides(sampling: list[int]) -> tuple[int, int]:
    """Return height and width of a unit: what the components' blocks cover; of a single one, a block."""
    if len(sampling) < 2:
        return 8, 8
    return 8 * max(both & 15 for both in sampling), 8 * max(both >> 4 for both in sampling)


def _grid(scan: _Scan, head: PictureHead) -> _Grid | None:
    """Lay the segments out; None if they are neither parts of rows of units nor rows of them."""
    units = -(-head.width // scan.unit_width)  # side by side
    if units % scan.interval == 0:
        height, width = scan.unit_height, scan.interval * scan.unit_width
    elif scan.interval % units == 0:
        height, width = scan.interval // units * scan.unit_height, units * scan.unit_width
    else:
        return None
    return _Grid(-(-head.height // height), -(-head.width // width), height, width)


def _span(start: int, extent: int, step: int, count: int) -> tuple[int, int]:
    """Return the first of ``count`` segments that hold a span of pixels and its margin, and the one behind the last."""
    first = min(max(start - _MARGIN, 0) // step, count - 1)
    last = min(-(-(start + extent + _MARGIN) // step), count)
    return first, max(last, first + 1)


def _bounds(
    record: UInt8Array, index_at: int | None, start: int, count: int
) -> npt.NDArray[np.int64] | None:
    """Return where the segments begin and the last one ends; None if they are not ``count``."""
    lengths = None if index_at is None else _indexed(record, index_at, count)
    if lengths is not None:
        bounds = np.empty(count + 1, np.int64)
        bounds[0], bounds[1:] = start, lengths
        bounds = bounds.cumsum()
        if bounds[-1] == len(record):
            return bounds
    data = record[start:]
    marks = np.flatnonzero(data[:-1] == 0xFF)
    marks = marks[data[marks + 1] != 0]  # a zero follows where 0xFF is data
    return np.concatenate([[start], marks + (start + 2)]) if len(marks) == count else None


def _indexed(record: UInt8Array, at: int, count: int) -> npt.NDArray[np.uint16] | None:
    """Read the lengths from an index that ``with_index`` has written."""
    name = at + 4
    lengths = record[name + len(_INDEX) : name + len(_INDEX) + 2 * count]
    is_ours = record[name : name + len(_INDEX)].tobytes() == _INDEX
    return lengths.view("<u2") if is_ours and len(lengths) == 2 * count else None


def _joined(
    record: UInt8Array, bounds: npt.NDArray[np.int64], columns: int, span: tuple[slice, slice]
) -> UInt8Array:
    """Put header and segments together, and number the restart markers anew."""
    begins = bounds[:-1].reshape(-1, columns)[span]
    ends = bounds[1:].reshape(-1, columns)[span]
    rows = zip(begins[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    start = bounds[0]
    part = np.concatenate([record[:start], *[record[first:last] for first, last in rows]])
    numbers = (ends - begins).cumsum() + (start - 1)
    part[numbers] = _numbers(len(numbers))
    part[-1] = _EOI
    return part


def _numbers(count: int) -> UInt8Array:
    """Return the second bytes of restart markers, one after the other."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else np.resize(_NUMBERS, count)
