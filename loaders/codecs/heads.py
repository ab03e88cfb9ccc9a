"""What the first bytes of an encoded picture say: JPEG, PNG or WebP, told apart by them."""

from __future__ import annotations

import struct
from functools import lru_cache
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


class _Tables(NamedTuple):
    """What stands behind the sides in a JPEG's header, by its distance from the height.

    Attributes:
        components: Number, sampling and tables of the frame's components, as written.
        interval_at: The segment of the restart interval; 0 if there is none.
        interval: That segment, as written.
        end: The scan's header, or an index before it.
        next: The marker there, as written.
    """

    components: bytes
    interval_at: int
    interval: bytes
    end: int
    next: bytes

    def are_in(self, start: memoryview, height_at: int) -> bool:
        """Tell whether a file has the same, as far as it matters: looking at little of it."""
        end = height_at + self.end
        if start[end : end + 2] != self.next:
            return False
        if not self.interval_at:
            return True
        first, at = height_at + SIDES.size, height_at + self.interval_at
        return (
            start[first : first + len(self.components)] == self.components
            and start[at : at + len(self.interval)] == self.interval
        )


_last_tables = _Tables(b"", 0, b"", 0, b"?")  # most files of a dataset have the same


def picture_head(record: Any) -> PictureHead:
    """Read the header of an encoded picture.

    Raises:
        CodecError: The bytes are not JPEG, PNG or WebP, or cut within the header.
    """
    start = memoryview(record)[:_HEAD_BYTES]  # not bytes: few of them are looked at
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
    if not 0 < head.height * head.width <= MAX_PIXELS:
        check_pixels(head.height, head.width)
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
    """Say what a header tells behind its sides."""
    global _last_tables
    tables = _last_tables
    if not tables.are_in(start, height_at):
        found = _read_tables(start[height_at:], at - height_at)
        if found is None:
            return JpegLayout(height_at)
        tables = _last_tables = found
    segments = tables.interval_at and _segments(size, tables.components, tables.interval)
    return JpegLayout(height_at, height_at + tables.end, segments or None)


def _read_tables(header: memoryview, at: int) -> _Tables | None:
    """Read on behind the frame header, up to the scan or the index before it."""
    interval_at = 0
    while at + 5 < len(header) and header[at] == 0xFF:
        marker = header[at + 1]
        if marker == SOS or (marker == APP9 and header[at + 4 : at + 12] == INDEX):
            components = header[SIDES.size :][: 1 + 3 * header[SIDES.size]].tobytes()
            interval = header[interval_at:][: 6 if interval_at else 0].tobytes()
            return _Tables(components, interval_at, interval, at, header[at : at + 2].tobytes())
        if marker == _DRI:
            interval_at = at
        at += 2 + (header[at + 2] << 8 | header[at + 3])
    return None


def _unit_sides(components: bytes) -> tuple[int, int]:
    """Return height and width of a unit (MCU): what the components' blocks cover; of a single one, a block."""
    sampling = components[2::3]
    if len(sampling) < 2:
        return 8, 8
    return 8 * max(both & 15 for both in sampling), 8 * max(both >> 4 for both in sampling)


@lru_cache(maxsize=1024)
def _segments(
    size: tuple[int, int], components: bytes, interval_segment: bytes
) -> Segments | None:
    """Lay segments out; None if they are neither parts of rows of units nor rows of them."""
    (height, width), (unit_height, unit_width) = size, _unit_sides(components)
    interval = int.from_bytes(interval_segment[4:], "big")
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
