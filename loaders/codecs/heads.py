"""What the first bytes of an encoded picture say: JPEG, PNG or WebP, told apart by them."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import simplejpeg

from loaders.errors import CodecError

MAX_PIXELS = 1 << 28
SIDES = struct.Struct(">HH")  # height and width in a JPEG's frame header
SOS, APP9 = 0xDA, 0xE9
INDEX = b"SEGMENTS"  # begins an APP9 segment in files of ours: see codecs.jpeg
_DRI = 0xDD
_HEAD_BYTES = 1 << 17  # two segments of 64 KiB before the frame; a longer header is decoded whole
_NO_BASELINE = frozenset(
    {0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xDB), 0xFF}
)  # other frames, what has no business before a frame, and fill bytes
_MAX_SEEN, _MAX_SEEN_BYTES = 4096, 2048


class Segments(NamedTuple):
    """Parts of a sequential JPEG that decode alone, as restart markers divide its scan.

    Attributes:
        rows: Of segments.
        columns: Of segments.
        height: Of a segment, in pixels.
        width: Of a segment, in pixels.
    """

    rows: int
    columns: int
    height: int
    width: int


class JpegLayout(NamedTuple):
    """Where things are in a sequential Huffman JPEG.

    Attributes:
        height_at: The height in the frame header; the width, and the number of components, come behind it.
        tables_end: The scan's header, or an index of segments before it; 0 if it was not found.
        segments: How the scan is divided, if it is.
    """

    height_at: int
    tables_end: int = 0
    segments: Segments | None = None


class PictureHead(NamedTuple):
    """What the header of an encoded picture says.

    Attributes:
        height: In pixels.
        width: In pixels.
        jpeg: Of a JPEG that can be cut.
    """

    height: int
    width: int
    jpeg: JpegLayout | None = None


class _Seen:
    """Headers of JPEG files, by their bytes: those of most datasets differ in the sides only."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._heads: dict[bytes, PictureHead] = {}

    def get(self, start: memoryview) -> PictureHead | None:
        return self._heads.get(start[: self._nbytes].tobytes())

    def keep(self, header: bytes, head: PictureHead) -> None:
        if len(self._heads) >= _MAX_SEEN:
            self._heads = {}
        self._heads[header], self._nbytes = head, len(header)


_seen = _Seen()


def picture_head(record: Any) -> PictureHead:
    """Read the header of an encoded picture.

    Raises:
        CodecError: The bytes are not JPEG, PNG or WebP, or cut within the header.
    """
    start = memoryview(record)[:_HEAD_BYTES]  # not bytes: few of them are looked at
    return _seen.get(start) or _read_head(start, record)


def _read_head(start: memoryview, record: Any) -> PictureHead:
    try:
        if start[0] == 0xFF and start[1] == 0xD8:
            head = jpeg_head(start) or PictureHead(*simplejpeg.decode_jpeg_header(record)[:2])
        elif bytes(start[:8]) == b"\x89PNG\r\n\x1a\n":
            width, height = struct.unpack_from(">II", start, 16)
            head = PictureHead(height, width)
        else:
            head = PictureHead(*_webp_size(bytes(start[:32])))
    except (ValueError, struct.error, IndexError) as error:
        raise CodecError(f"the header of the picture cannot be read ({error})") from error
    check_pixels(head.height, head.width)
    if head.jpeg and 0 < head.jpeg.tables_end <= _MAX_SEEN_BYTES:
        _seen.keep(start[: head.jpeg.tables_end + 2].tobytes(), head)  # and what comes next
    return head


def picture_size(record: Any) -> tuple[int, int]:
    """Read (height, width) from the header of an encoded picture; CodecError as ``picture_head``."""
    return picture_head(record)[:2]


def check_pixels(height: int, width: int) -> None:
    """Raise CodecError for a picture of no pixels, or of too many."""
    if not 0 < height * width <= MAX_PIXELS:
        what = f"the picture has {height} x {width} pixels"
        raise CodecError(f"{what}; 1 to {MAX_PIXELS} are accepted")


def jpeg_head(start: memoryview) -> PictureHead | None:
    """Read the header of a sequential Huffman JPEG; None for any other.

    Source: ITU-T T.81, annex B.
    """
    at = 2
    while at + 9 < len(start) and start[at] == 0xFF:
        marker, end = start[at + 1], at + 2 + (start[at + 2] << 8 | start[at + 3])
        if marker in (0xC0, 0xC1):
            height, width = SIDES.unpack_from(start, at + 5)
            return PictureHead(height, width, _jpeg_layout(start, at + 5, (height, width), end))
        if marker in _NO_BASELINE:
            return None
        at = end
    return None


def _jpeg_layout(start: memoryview, height_at: int, size: tuple[int, int], at: int) -> JpegLayout:
    """Read on behind the frame header, up to the scan or the index before it."""
    interval = 0
    while at + 5 < len(start) and start[at] == 0xFF:
        marker = start[at + 1]
        if marker == SOS or (marker == APP9 and start[at + 4 : at + 12] == INDEX):
            unit = _unit_sides(start, height_at + SIDES.size)
            return JpegLayout(height_at, at, _segments(size, unit, interval))
        if marker == _DRI:
            interval = start[at + 4] << 8 | start[at + 5]
        at += 2 + (start[at + 2] << 8 | start[at + 3])
    return JpegLayout(height_at)


def _unit_sides(start: memoryview, at: int) -> tuple[int, int]:
    """Return height and width of a unit (MCU): what the components' blocks cover; of a single one, a block."""
    sampling = [start[at + 2 + 3 * i] for i in range(start[at])]
    if len(sampling) < 2:
        return 8, 8
    return 8 * max(both & 15 for both in sampling), 8 * max(both >> 4 for both in sampling)


def _segments(size: tuple[int, int], unit: tuple[int, int], interval: int) -> Segments | None:
    """Lay segments out; None if they are neither parts of rows of units nor rows of them."""
    (height, width), (unit_height, unit_width) = size, unit
    if not (interval and unit_height and unit_width):
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
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return height & 0x3FFF, width & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[27:30], "little"), 1 + int.from_bytes(head[24:27], "little")
    raise ValueError(f"WebP chunk {kind!r} is unknown")
