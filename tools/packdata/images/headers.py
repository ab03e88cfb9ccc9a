"""What a JPEG, PNG or WebP file says of itself: enough to tell whether it can be kept as it is.

Pixels are not touched here. Sources of the rules: ITU T.81 B.1 (JPEG markers), W3C PNG 3rd edition
section 11, RFC 9649 (WebP). Pillow reads the Exif block that all three may carry.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import PIL.ExifTags
import PIL.Image
import simplejpeg

from loaders.codecs.heads import picture_size
from loaders.codecs.markers import EXIF, JPEG_START, frame_of, segments
from loaders.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

PNG_START = b"\x89PNG\r\n\x1a\n"
_ANY_SIZE = 1 << 62  # pixels: the decoder has a limit
_PNG_COLORS = {0: "gray", 2: "color", 3: "palette", 4: "gray", 6: "color"}


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of an encoded picture before decoding it."""

    format: str  # ``jpeg``, ``png`` or ``webp``
    size: tuple[int, int]  # (height, width) in pixels, as stored
    color: str = "color"  # ``gray``, ``color``, ``palette`` or ``cmyk``
    depth: int = 8  # bits per channel as stored
    alpha: bool = False  # True if pixels may be transparent
    animated: bool = False  # True if it holds more than one picture
    orientation: int = 1  # exif's, 1 to 8; 1 is upright


def read_header(data: bytes) -> Header | None:
    """Return what the bytes say of themselves; None if they are neither JPEG nor PNG nor WebP.

    Raises:
        CodecError: They are one of the three, and damaged or cut.
    """
    if data[:2] == JPEG_START:
        return _jpeg_header(data)
    if data[:8] == PNG_START:
        return _png_header(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp_header(data)
    return None


def _jpeg_header(data: bytes) -> Header:
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        size = (height, width)
    except (ValueError, KeyError):  # KeyError: simplejpeg on a header without colors
        size, space = _frame_size(data)
    color = {"Gray": "gray", "CMYK": "cmyk", "YCCK": "cmyk"}.get(space, "color")
    return Header("jpeg", size, color, orientation=exif_orientation(_jpeg_exif(data)))


def _jpeg_exif(data: bytes) -> bytes:
    """Return the Exif block, b"" if there is none; this runs for every picture and copies no other."""
    for mark, start, end in segments(data):
        if mark == EXIF and data[start : start + 6] == b"Exif\0\0":
            return data[start + 6 : end]
    return b""


def _frame_size(data: bytes) -> tuple[tuple[int, int], str]:
    """Read the frame header: libjpeg-turbo stops at some harmless oddities before it."""
    frame = frame_of(data)
    if frame is None or not (frame.height and frame.width):
        raise CodecError("the JPEG has no frame header: it is cut or damaged")
    check_jpeg_kind(data)
    space = {1: "Gray", 4: "CMYK"}.get(len(frame.components), "YCbCr")
    return (frame.height, frame.width), space


def check_jpeg_kind(data: bytes) -> None:
    """Raise CodecError for a JPEG of a kind that no decoder here reads."""
    frame = frame_of(data)
    if frame is not None and frame.unusual:
        raise CodecError(f"it is {frame.unusual}, which cannot be read: convert it to a PNG")


def _png_header(data: bytes) -> Header:
    height, width = picture_size(data, _ANY_SIZE)
    depth, code = data[24:26].ljust(2, b"\0")
    chunks = {kind: start for kind, start, _ in _png_chunks(data)}
    orientation = exif_orientation(data[chunks[b"eXIf"] :]) if b"eXIf" in chunks else 1
    if b"IEND" not in chunks:
        raise CodecError("the PNG is cut: its last chunk is missing")
    color = _PNG_COLORS.get(code)
    if color is None:
        raise CodecError(f"the header of the PNG has color type {code}: it is damaged")
    alpha = code in (4, 6) or b"tRNS" in chunks
    return Header("png", (height, width), color, depth, alpha, b"acTL" in chunks, orientation)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, start and length of each chunk that is whole."""
    at = 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if at + 12 + length > len(data):
            return
        yield data[at + 4 : at + 8], at + 8, length
        at += 12 + length


def _webp_header(data: bytes) -> Header:
    size = picture_size(data, _ANY_SIZE)
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise CodecError(f"the WebP is cut: it has {len(data)} of {length + 8} bytes")
    if data[12:16] == b"VP8L":
        has_alpha = bool(struct.unpack_from("<I", data, 21)[0] >> 28 & 1)
        return Header("webp", size, alpha=has_alpha)
    if data[12:16] != b"VP8X":
        return Header("webp", size)
    flags, exif = data[20], _webp_chunk(data, b"EXIF")
    orientation = exif_orientation(exif.removeprefix(b"Exif\0\0"))
    animated, alpha = bool(flags & 0x02), bool(flags & 0x10)
    return Header("webp", size, alpha=alpha, animated=animated, orientation=orientation)


def is_lossless_webp(data: bytes) -> bool:
    """Tell whether a file is one WebP picture that was stored without loss."""
    return data[:4] == b"RIFF" and bool(_webp_chunk(data, b"VP8L"))


def _webp_chunk(data: bytes, wanted: bytes) -> bytes:
    at = 12
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 4)
        if data[at : at + 4] == wanted:
            return data[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
    return b""


def exif_orientation(block: bytes) -> int:
    """Return the orientation in an Exif block (a small TIFF file), 1 if it says none."""
    if not block:
        return 1
    exif = PIL.Image.Exif()
    try:
        exif.load(b"Exif\0\0" + block)
        value = exif.get(PIL.ExifTags.Base.Orientation)
    except Exception:  # cut: viewers ignore such a block, too; Pillow raises anything
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
