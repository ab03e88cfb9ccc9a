"""What the first bytes of an encoded picture say: JPEG, PNG or WebP, told apart by them."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import simplejpeg

from loaders.errors import CodecError

MAX_PIXELS = 1 << 28
SIDES = struct.Struct(">HH")  # height and width in a JPEG's frame header
APP9 = 0xE9
_HEAD_BYTES = 1 << 17  # two segments of 64 KiB before the frame; a longer header is decoded whole
_NO_BASELINE = frozenset(
    {0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xDB), 0xFF}
)  # other frames, what has no business before a frame, and fill bytes


class PictureHead(NamedTuple):
    """What the header of an encoded picture says.

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
    """Read the frame header of a sequential Huffman JPEG; None for any other.

    Source: ITU-T T.81, annex B.
    """
    at, index_at = 2, None
    while at + 9 < len(start) and start[at] == 0xFF:
        marker = start[at + 1]
        if marker in (0xC0, 0xC1):
            height, width = SIDES.unpack_from(start, at + 5)
            return PictureHead(height, width, at + 5, index_at)
        if marker in _NO_BASELINE:
            return None
        if marker == APP9:
            index_at = at
        at += 2 + (start[at + 2] << 8 | start[at + 3])
    return None


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
