"""What the first bytes of an encoded picture say: JPEG, PNG or WebP, recognized by them.

Source: ITU-T T.81, annex B, for JPEG; G.1.1.1 for what the scans of a progressive one send.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UInt8Array = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Heads = npt.NDArray[np.void]  # of ``HEADS``, or as they are kept, of ``HEAD``
MAX_PICTURE_MB = 1024  # decoded: one limit for all formats, unless another is given
SIDES = struct.Struct(">HH")  # height and width in a JPEG's frame header
JPEG_START = b"\xff\xd8"
SOS, EOI, APP9 = 0xDA, 0xD9, 0xE9
INDEX = b"SEGMENTS"  # begins an APP9 segment in files that packdata encoded: see codecs.jpeg
_DRI = 0xDD
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_NO_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xD9), 0xFF})  # what no segment follows
_NUM_COEFFICIENTS = 64
_HEAD_BYTES = 1 << 17  # two segments of 64 KiB before the frame; a longer header is decoded whole
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


# Many heads: as they are kept, all zeros where one is not known; and wide enough for products.
_KEPT = ("<u2", "<u2", "<u4", "<u4", "<u2", "u1", "u1")
HEAD = np.dtype([*zip(PictureHead._fields, _KEPT, strict=True)])
HEADS = np.dtype([(name, np.int64) for name in PictureHead._fields])


def rows_of(heads: Heads) -> Iterator[PictureHead]:
    """Return the heads of pictures one by one."""
    return map(PictureHead._make, heads.tolist())


def sizes_of(heads: Heads) -> Ints:
    """Return height and width of each picture, ``(N, 2)``."""
    return np.array([heads["height"], heads["width"]]).T


def picture_heads(
    records: Sequence[UInt8Array],
    max_pixels: int = MAX_PIXELS,
    known: Heads | None = None,
) -> Heads:
    """Return the heads of several pictures, ``(N,)`` of ``HEADS``; those that are known are not read.

    Args:
        records: The files.
        max_pixels: Of each.
        known: ``(N,)`` of ``HEAD``: those of earlier calls, to which others are added.

    Raises:
        CodecError: As ``picture_head``, for one of them.
    """
    if known is None:
        known = np.zeros(len(records), HEAD)
    heads = known.astype(HEADS)
    for i in np.flatnonzero(heads["height"] == 0).tolist():
        heads[i] = head = picture_head(records[i], max_pixels)
        if max(head.height, head.width) <= _MAX_SIDE:
            known[i] = head
    for head in rows_of(heads[heads["height"] * heads["width"] > max_pixels]):
        check_pixels(head.height, head.width, max_pixels)
    return heads


def kept_heads(records: Iterable[Any]) -> Heads:
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
    file = memoryview(record)  # not bytes: few of them are looked at
    try:
        if bytes(file[:2]) == JPEG_START:
            head = jpeg_head(file)
            if head is None:
                raise ValueError("no frame header")
        elif bytes(file[:8]) == b"\x89PNG\r\n\x1a\n":
            width, height = struct.unpack_from(">II", file, 16)
            head = PictureHead(height, width)
        else:
            head = PictureHead(*_webp_size(bytes(file[:32])))
    except (struct.error, ValueError, IndexError) as error:
        what = (
            f"these {len(record)} bytes are no JPEG, PNG or WebP, or cut or damaged in the header"
        )
        raise CodecError(what) from error
    check_pixels(head.height, head.width, max_pixels)
    return head


def picture_size(record: Any, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Read (height, width) from the header of an encoded picture; CodecError as ``picture_head``."""
    return picture_head(record, max_pixels)[:2]


def check_pixels(height: int, width: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise CodecError for a picture of no pixels, or of too many."""
    if not 0 < height * width <= max_pixels:
        what = f"the picture has {height} x {width} pixels; 1 to {max_pixels} are accepted"
        raise CodecError(f"{what}, which max_picture_mb sets")


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


# -- JPEG ------------------------------------------------------------------------------------------


def jpeg_head(file: memoryview) -> PictureHead | None:
    """Read the header of a JPEG, height and width alone if it is not sequential Huffman; None if there is no frame."""
    frame, height_at, tables_end, interval = None, 0, 0, 0
    end, is_plain = len(JPEG_START), True
    for mark, body, behind in segments(file):
        is_plain = is_plain and body - 4 == end and body <= _HEAD_BYTES  # without fill bytes
        end = behind
        if frame is None and mark in _FRAMES:
            frame = _read_frame(mark, bytes(file[body:behind]))
            if frame is None or not is_plain or mark not in _SEQUENTIAL:
                break
            height_at = body + 1
        elif height_at and not is_plain:
            break
        elif height_at:
            if mark == SOS or (mark == APP9 and file[body : body + len(INDEX)] == INDEX):
                tables_end = body - 4
                break
            interval = file[body] << 8 | file[body + 1] if mark == _DRI else interval
    if frame is None:
        return None
    is_grid = interval and tables_end and all(frame.unit)
    grid = (interval, *frame.unit) if is_grid else ()
    return PictureHead(frame.height, frame.width, height_at, tables_end, *grid)


class Frame(NamedTuple):
    """What the frame header says."""

    mark: int  # its marker, which says how the picture is encoded
    depth: int  # bits a channel
    height: int  # in pixels
    width: int  # in pixels
    components: tuple[int, ...]  # the number of each channel
    # Of each how finely it is sampled, across in the upper and down in the lower 4 bits.
    sampling: bytes

    @property
    def unit(self) -> tuple[int, int]:
        """Height and width of a unit (MCU): what the components' blocks cover; of a single one, a block."""
        if len(self.sampling) < 2:
            return 8, 8
        across, down = zip(*((both >> 4, both & 15) for both in self.sampling), strict=True)
        return 8 * max(down), 8 * max(across)


def segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of what each segment holds, up to the header of the first scan."""
    at, last = len(JPEG_START), len(data) - 4
    while at <= last and data[at] == 0xFF:
        mark = data[at + 1]
        if mark == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        yield mark, at + 4, end
        if mark == SOS:
            return
        at = end


def frame_of(data: bytes | memoryview) -> Frame | None:
    """Return what the frame header says; None if there is none."""
    for mark, start, end in segments(data):
        if mark in _FRAMES:
            return _read_frame(mark, bytes(data[start:end]))
    return None


def _read_frame(mark: int, body: bytes) -> Frame | None:
    """Return what the segment of a frame header says; None if the segment is cut."""
    if len(body) < 6:
        return None
    depth, height, width, _ = struct.unpack_from(">BHHB", body)
    return Frame(mark, depth, height, width, tuple(body[6::3]), body[7::3])


def markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each marker stands, and which it is, to the end of the picture.

    Bytes between segments are passed over as libjpeg does; those of scans cannot be taken for a
    marker.
    """
    at = data.find(0xFF, 2)
    while 0 <= at < len(data) - 1:
        mark = data[at + 1]
        if mark not in _NO_LENGTH:
            yield at, mark
            if mark == EOI:
                return
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        else:
            at += 1 if mark == 0xFF else 2
        at = data.find(0xFF, at)


def with_end(data: bytes) -> bytes | None:
    """Return a file with the end marker that it lacks; None if it has one, or more may be missing.

    All scans have begun. Whether the last is whole, the decoder says: only Huffman's warns.
    """
    frame = frame_of(data)
    if frame is None or frame.mark not in (*_SEQUENTIAL, _PROGRESSIVE) or unsent(data, frame):
        return None
    if any(mark == EOI for _, mark in markers(data)):
        return None
    return data + (b"\xd9" if data.endswith(b"\xff") else b"\xff\xd9")


def unsent(data: bytes, frame: Frame) -> set[tuple[int, int]]:
    """Return the coefficients that no scan sends to the last bit, as (component, number)."""
    every = range(_NUM_COEFFICIENTS)
    left = {(component, k) for component in frame.components for k in every}
    for at, mark in markers(data):
        if mark != SOS:
            continue
        count = int.from_bytes(data[at + 4 : at + 5], "big")
        behind = at + 5 + 2 * count
        first, last, bits = data[behind : behind + 3].ljust(3, b"\0")
        sent = range(first, last + 1) if frame.mark == _PROGRESSIVE else every
        if not (frame.mark == _PROGRESSIVE and bits & 15):
            left -= {(each, k) for each in data[at + 5 : behind : 2] for k in sent}
    return left
