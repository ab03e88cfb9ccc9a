"""What the first bytes of an encoded picture say: JPEG, PNG or WebP, told apart by them."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from loaders.codecs.markers import JPEG_START, SOS, frame_of, segments
from loaders.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

UInt8Array = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
MAX_PICTURE_MB = 1024  # decoded: one limit for all formats, unless another is given
SIDES = struct.Struct(">HH")  # height and width in a JPEG's frame header
APP9 = 0xE9
INDEX = b"SEGMENTS"  # begins an APP9 segment in files that packdata encoded: see codecs.jpeg
_DRI = 0xDD
_HEAD_BYTES = 1 << 17  # two segments of 64 KiB before the frame; a longer header is decoded whole
_SEQUENTIAL = (0xC0, 0xC1)
# Other frames, and what has no business before a frame.
_NO_BASELINE = frozenset({0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xDB)})
_MAX_COMPONENTS = 4
_FEW = 8  # files: reading them together takes as long as one by one
_WINDOW = 704  # bytes of a file that are looked at together: most headers are shorter
_LOOK = 32  # bytes of a segment that say all: of a frame of 4 components 22
_MAX_SEGMENTS = 64  # of a header that is read together with others
_PLAIN, _FRAME, _INTERVAL, _APP9, _SCAN, _REFUSED, _FILL = range(7)
_KINDS = np.zeros(256, np.uint8)
_KINDS[list(_NO_BASELINE)] = _REFUSED
_KINDS[[*_SEQUENTIAL, _DRI, APP9, SOS, 0xFF]] = _FRAME, _FRAME, _INTERVAL, _APP9, _SCAN, _FILL
_FRAME_BYTES = np.arange(5, 22)
_NAME, _NAME_BYTES = np.frombuffer(INDEX, np.uint8), np.arange(4, 4 + len(INDEX))


def pixels_within(max_picture_mb: int, pixel_nbytes: int = 3) -> int:
    """Return how many pixels take so many MiB; by default those of RGB."""
    return (max_picture_mb << 20) // pixel_nbytes


MAX_PIXELS = pixels_within(MAX_PICTURE_MB)


class Segments(NamedTuple):
    """Parts of a sequential JPEG that decode alone, as restart markers divide its scan."""

    rows: int  # of segments
    columns: int  # of segments
    height: int  # of a segment, in pixels
    width: int  # of a segment, in pixels


class JpegLayout(NamedTuple):
    """Where things are in a sequential Huffman JPEG."""

    # The height in the frame header; the width, and the number of components, come behind it.
    height_at: int
    # The scan's header, or an index of segments before it; 0 if it was not found.
    tables_end: int = 0
    segments: Segments | None = None  # how the scan is divided, if it is


class PictureHead(NamedTuple):
    """What the header of an encoded picture says."""

    height: int  # in pixels
    width: int  # in pixels
    jpeg: JpegLayout | None = None  # of a JPEG that can be cut


class PictureHeads(NamedTuple):
    """What the headers of several pictures say."""

    sizes: npt.NDArray[np.int64]  # ``(N, 2)`` int64: height and width, in pixels
    jpegs: list[JpegLayout | None]  # of each that is a JPEG and can be cut; else None


def picture_heads(records: Sequence[UInt8Array], max_pixels: int = MAX_PIXELS) -> PictureHeads:
    """Read the headers of several pictures, those of sequential JPEGs all at once.

    Raises:
        CodecError: As ``picture_head``, for one of them.
    """
    num = len(records)
    heads = PictureHeads(np.zeros((num, 2), np.int64), [None] * num)
    if num >= _FEW:
        _SegmentWalk(records).tell(heads)
    for height, width in heads.sizes[heads.sizes.prod(axis=1) > max_pixels].tolist():
        check_pixels(height, width, max_pixels)
    for i in np.flatnonzero(heads.sizes.prod(axis=1) < 1).tolist():
        height, width, heads.jpegs[i] = picture_head(records[i], max_pixels)
        heads.sizes[i] = height, width
    return heads


class _SegmentWalk:
    """The headers of sequential JPEGs, gone through segment by segment, all at once.

    Those that take a closer look (fill bytes, an end within the header, 5 components) are left out.

    Source: ITU-T T.81, annex B.
    """

    def __init__(self, records: Sequence[UInt8Array]) -> None:
        num = len(records)
        self._records = records
        self._lengths = np.minimum(np.array(list(map(len, records)), np.int64), _HEAD_BYTES)
        self._at = np.full(num, len(JPEG_START))  # of each the segment that is next
        # Of each the bytes from ``firsts`` on; up to ``lasts`` a segment may begin in them.
        self._windows = _joined([record.data[:_WINDOW] for record in records])
        self._firsts = np.zeros(num, np.int64)
        self._lasts = np.minimum(_WINDOW, self._lengths) - _LOOK
        shape = (self._windows.size - 3,)
        self._words = np.ndarray(shape, ">u4", self._windows, strides=(1,))
        self._heights_at, self._tables_ends, self._intervals = np.zeros((3, num), np.int64)
        self._frames = np.zeros((num, len(_FRAME_BYTES)), np.uint8)  # from the height on

    def tell(self, heads: PictureHeads) -> None:
        """Go through them, and fill in what was found."""
        starts = self._windows[:, :2]
        is_jpeg = (starts[:, 0] == JPEG_START[0]) & (starts[:, 1] == JPEG_START[1])
        rows = self._shown(np.flatnonzero(is_jpeg))
        for _ in range(_MAX_SEGMENTS):
            if not len(rows):
                break
            rows = self._shown(self._next(rows))
        found = np.flatnonzero(self._tables_ends)
        heads.sizes[found] = self._frames[found, :4].view(">u2")
        places = self._heights_at[found].tolist(), self._tables_ends[found].tolist()
        intervals = self._intervals[found].tolist()
        for i, height_at, end, interval in zip(found.tolist(), *places, intervals, strict=True):
            segments = self._segments(i, interval) if interval else None
            heads.jpegs[i] = _layout(height_at, end, segments)

    def _segments(self, i: int, interval: int) -> Segments | None:
        height, width = SIDES.unpack_from(self._frames[i])
        return _segments(height, width, _components(self._frames[i, 4:].tobytes()), interval)

    def _shown(self, rows: Ints) -> Ints:
        """Have windows show the segments that are next; leave out files that end there."""
        at = self._at[rows]
        is_out = at > self._lasts[rows]
        if not is_out.any():
            return rows
        has_more = at + _LOOK <= self._lengths[rows]
        if len(moved := rows[is_out & has_more]):
            self._move(moved)
        shown: Ints = rows[has_more | ~is_out]
        return shown

    def _move(self, rows: Ints) -> None:
        firsts = self._at[rows]
        pairs = zip(rows.tolist(), firsts.tolist(), strict=True)
        parts = [self._records[i].data[first : first + _WINDOW] for i, first in pairs]
        self._windows[rows] = _joined(parts)
        self._firsts[rows] = firsts
        self._lasts[rows] = np.minimum(firsts + _WINDOW, self._lengths[rows]) - _LOOK

    def _next(self, rows: Ints) -> Ints:
        """Read the segment that is next of each; return which go on."""
        at = self._at[rows]
        places = rows * _WINDOW + at - self._firsts[rows]
        starts = self._words[places].astype(np.int64)
        kinds = _KINDS[starts >> 16 & 0xFF]
        kinds[starts < 0xFF << 24] = _FILL
        self._at[rows] = at + 2 + (starts & 0xFFFF)
        if not kinds.any():
            return rows
        has_frame = self._heights_at[rows] > 0
        is_end = has_frame & (kinds == _SCAN)
        is_index = has_frame & (kinds == _APP9)
        if is_index.any():
            is_end[is_index] = (self._bytes(places[is_index], _NAME_BYTES) == _NAME).all(axis=1)
        self._tables_ends[rows[is_end]] = at[is_end]
        if (is_interval := has_frame & (kinds == _INTERVAL)).any():
            self._intervals[rows[is_interval]] = self._words[places[is_interval] + 4] >> 16
        is_left_out = (kinds == _FILL) | (~has_frame & (kinds >= _SCAN))
        if (is_frame := ~has_frame & (kinds == _FRAME)).any():
            framed = rows[is_frame]
            self._heights_at[framed] = at[is_frame] + 5
            self._frames[framed] = self._bytes(places[is_frame], _FRAME_BYTES)
            is_left_out[is_frame] = self._frames[framed, 4] > _MAX_COMPONENTS
        going: Ints = rows[~(is_end | is_left_out)]
        return going

    def _bytes(self, places: Ints, offsets: Ints) -> UInt8Array:
        found: UInt8Array = self._windows.reshape(-1)[places[:, None] + offsets]
        return found


def _joined(parts: list[memoryview]) -> UInt8Array:
    """Return parts of files as rows; what one lacks is undefined."""
    if min(map(len, parts)) < _WINDOW:
        parts = [memoryview(bytes(part).ljust(_WINDOW)) for part in parts]
    return np.frombuffer(bytearray().join(parts), np.uint8).reshape(-1, _WINDOW)


def picture_head(record: Any, max_pixels: int = MAX_PIXELS) -> PictureHead:
    """Read the header of an encoded picture.

    Raises:
        CodecError: The bytes are not JPEG, PNG or WebP, cut within the header, or of more pixels.
    """
    start = memoryview(record)[:_HEAD_BYTES]  # not bytes: few of them are looked at
    try:
        if bytes(start[:2]) == JPEG_START:
            head = jpeg_head(start) or PictureHead(*_jpeg_size(record))
        elif bytes(start[:8]) == b"\x89PNG\r\n\x1a\n":
            width, height = struct.unpack_from(">II", start, 16)
            head = PictureHead(height, width)
        else:
            head = PictureHead(*_webp_size(bytes(start[:32])))
    except struct.error as error:  # it ends before its size does
        kind = "PNG" if start[0] == 0x89 else "WebP"
        raise CodecError(f"the {kind} is cut: it has {len(start)} bytes") from error
    except (ValueError, IndexError) as error:
        what = f"the image header cannot be read ({error})"
        raise CodecError(what if len(start) else "the picture is empty") from error
    if not 0 < head.height * head.width <= max_pixels:
        check_pixels(head.height, head.width, max_pixels)
    return head


def _jpeg_size(record: Any) -> tuple[int, int]:
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(record)
    except KeyError:  # of a sampling that has no name there, such as 4:4:1, which it decodes
        frame = frame_of(memoryview(record))
        if frame is None:
            raise ValueError("no frame header") from None
        return frame.height, frame.width
    return height, width


def picture_size(record: Any, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Read (height, width) from the header of an encoded picture; CodecError as ``picture_head``."""
    return picture_head(record, max_pixels)[:2]


def check_pixels(height: int, width: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise CodecError for a picture of no pixels, or of too many."""
    if not 0 < height * width <= max_pixels:
        what = f"the picture has {height} x {width} pixels; 1 to {max_pixels} are accepted"
        hint = "" if height * width < 1 else ", which max_picture_mb sets"
        raise CodecError(f"{what}{hint}")


def jpeg_head(start: memoryview) -> PictureHead | None:
    """Read the header of a sequential Huffman JPEG; None for any other.

    Source: ITU-T T.81, annex B.
    """
    if bytes(start[:2]) != JPEG_START:
        return None
    height_at, tables_end, interval, components, end = 0, 0, 0, b"", len(JPEG_START)
    for marker, body, behind in segments(start):
        at = body - 4
        if at != end:  # fill bytes
            break
        if height_at:
            if marker == SOS or (marker == APP9 and start[body : body + len(INDEX)] == INDEX):
                tables_end = at
                break
            interval = start[body] << 8 | start[body + 1] if marker == _DRI else interval
        elif marker in _NO_BASELINE or body + 5 >= len(start):
            return None
        elif marker in _SEQUENTIAL:
            height_at, components = body + 1, _components(start[body + 5 :])
        end = behind
    if not height_at:
        return None
    height, width = SIDES.unpack_from(start, height_at)
    grid = _segments(height, width, components, interval) if interval and tables_end else None
    return PictureHead(height, width, _layout(height_at, tables_end, grid))


def _components(data: Any) -> bytes:
    """Return number, sampling and tables of a frame's components, as they are written."""
    return bytes(data[: 1 + 3 * data[0]])


def _unit_sides(components: bytes) -> tuple[int, int]:
    """Return height and width of a unit (MCU): what the components' blocks cover; of a single one, a block."""
    sampling = components[2::3]
    if len(sampling) < 2:
        return 8, 8
    return 8 * max(both & 15 for both in sampling), 8 * max(both >> 4 for both in sampling)


@lru_cache(maxsize=1024)
def _layout(*values: Any) -> JpegLayout:
    """Return one object for all files that are laid out so."""
    return JpegLayout(*values)


@lru_cache(maxsize=1024)
def _segments(height: int, width: int, components: bytes, interval: int) -> Segments | None:
    """Lay segments out; None if they are neither parts of rows of units nor rows of them."""
    unit_height, unit_width = _unit_sides(components)
    if not (unit_height and unit_width):
        return None
    units = -(-width // unit_width)  # side by side
    if units % interval == 0:
        rows, columns = unit_height, interval * unit_width
    elif interval % units == 0:
        rows, columns = interval // units * unit_height, units * unit_width
    else:
        return None
    return Segments(-(-height // rows), -(-width // columns), rows, columns)


def _webp_size(head: bytes) -> tuple[int, int]:
    """Source: RFC 9649, sections 2.5 to 2.7."""
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        raise ValueError(f"starts with {head[:12]!r}: not JPEG, PNG or WebP")
    (kind,) = struct.unpack_from("4s", head, 12)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return height & 0x3FFF, width & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if kind == b"VP8X":
        width, width_high, height, height_high = struct.unpack_from("<HBHB", head, 24)
        return 1 + (height_high << 16 | height), 1 + (width_high << 16 | width)
    raise ValueError(f"WebP chunk {kind!r} is unknown")
