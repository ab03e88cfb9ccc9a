"""What the first bytes of an encoded picture say: JPEG, PNG or WebP, recognized by them."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.codecs.markers import JPEG_START, SOS, Frame, frame_of, read_frame, segments
from loaders.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
# What is kept of the head of a picture; ``PictureHead`` says what each is. All zeros: it is not known.
HEAD = np.dtype(
    [
        *(("height", "<u2"), ("width", "<u2"), ("height_at", "<u4"), ("tables_end", "<u4")),
        *(("interval", "<u2"), ("unit_height", "u1"), ("unit_width", "u1")),
    ]
)
_MAX_SIDE = 0xFFFF  # of what is kept
_ANY_PIXELS = 1 << 62  # the limit is the reader's


def pixels_within(max_picture_mb: int, pixel_nbytes: int = 3) -> int:
    """Return how many pixels take so many MiB; by default those of RGB."""
    return (max_picture_mb << 20) // pixel_nbytes


MAX_PIXELS = pixels_within(MAX_PICTURE_MB)


class PictureHead(NamedTuple):
    """What the header of an encoded picture says; zeros behind the width of what is no JPEG that can be cut."""

    height: int  # in pixels
    width: int  # in pixels
    height_at: int = 0  # where the height is in a sequential JPEG; the width, and the components, come behind it
    # Where the scan's header begins, or an index of segments before it; 0: it was not found.
    tables_end: int = 0
    interval: int = 0  # of restart markers, in units; 0: there are none
    unit_height: int = 0  # of a unit (MCU), in pixels; 0 without an interval
    unit_width: int = 0  # the same


def picture_heads(
    records: Sequence[UInt8Array],
    max_pixels: int = MAX_PIXELS,
    known: npt.NDArray[np.void] | None = None,
) -> Ints:
    """Return the heads of several pictures, ``(N, 7)``, each as ``PictureHead``; those that are known are not read.

    Args:
        records: The files.
        max_pixels: Of each.
        known: ``(N,)`` of ``HEAD``: those of earlier calls, to which others are added.

    Raises:
        CodecError: As ``picture_head``, for one of them.
    """
    if known is None:
        known = np.zeros(len(records), HEAD)
    heads = np.stack([known[name] for name in HEAD.names or ()], 1).astype(np.int64)
    for i in np.flatnonzero(heads[:, 0] == 0).tolist():
        head = picture_head(records[i], max_pixels)
        heads[i] = head
        if max(head[:2]) <= _MAX_SIDE:
            known[i] = tuple(head)
    for height, width in heads[heads[:, 0] * heads[:, 1] > max_pixels, :2].tolist():
        check_pixels(height, width, max_pixels)
    return heads


def kept_heads(records: Iterable[Any]) -> npt.NDArray[np.void]:
    """Return what is kept of the heads of encoded pictures, ``(N,)`` of ``HEAD``; zeros where one cannot be read."""
    files = list(records)
    kept = np.zeros(len(files), HEAD)
    for i, file in enumerate(files):
        with suppress(CodecError):
            picture_heads([file], _ANY_PIXELS, kept[i : i + 1])
    return kept


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
    except (struct.error, ValueError, IndexError) as error:
        what = (
            f"these {len(record)} bytes are no JPEG, PNG or WebP, or cut or damaged in the header"
        )
        raise CodecError(what) from error
    check_pixels(head.height, head.width, max_pixels)
    return head


def _jpeg_size(record: Any) -> tuple[int, int]:
    frame = frame_of(memoryview(record))
    if frame is None:
        raise ValueError("no frame header")
    return frame.height, frame.width


def picture_size(record: Any, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Read (height, width) from the header of an encoded picture; CodecError as ``picture_head``."""
    return picture_head(record, max_pixels)[:2]


def check_pixels(height: int, width: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise CodecError for a picture of no pixels, or of too many."""
    if not 0 < height * width <= max_pixels:
        what = f"the picture has {height} x {width} pixels; 1 to {max_pixels} are accepted"
        raise CodecError(f"{what}, which max_picture_mb sets")


def jpeg_head(start: memoryview) -> PictureHead | None:
    """Read the header of a sequential Huffman JPEG; None for any other.

    Source: ITU-T T.81, annex B.
    """
    if bytes(start[:2]) != JPEG_START:
        return None
    frame: Frame | None = None
    height_at, tables_end, interval, end = 0, 0, 0, len(JPEG_START)
    for marker, body, behind in segments(start):
        at = body - 4
        if at != end:  # fill bytes
            break
        if frame:
            if marker == SOS or (marker == APP9 and start[body : body + len(INDEX)] == INDEX):
                tables_end = at
                break
            interval = start[body] << 8 | start[body + 1] if marker == _DRI else interval
        elif marker in _NO_BASELINE:
            return None
        elif marker in _SEQUENTIAL:
            frame, height_at = read_frame(marker, bytes(start[body:behind])), body + 1
            if frame is None:
                return None
        end = behind
    if frame is None:
        return None
    is_grid = interval and tables_end and all(frame.unit)
    grid = (interval, *frame.unit) if is_grid else ()
    return PictureHead(frame.height, frame.width, height_at, tables_end, *grid)


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
