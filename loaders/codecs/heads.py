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
MAX_PICTURE_MB = 1024  # decoded: one limit for all formats, unless another is given
SIDES = struct.Struct(">HH")  # height and width in a JPEG's frame header
APP9 = 0xE9
INDEX = b"SEGMENTS"  # begins an APP9 segment in files that packdata encoded: see codecs.jpeg
_DRI = 0xDD
_HEAD_BYTES = 1 << 17  # two segments of 64 KiB before the frame; a longer header is decoded whole
_SEQUENTIAL = (0xC0, 0xC1)
_NO_BASELINE = frozenset(
    {0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xDB)}
)  # other frames, and what has no business before a frame
_START_BYTES = 640  # of files that are compared with another: most headers are shorter
_MIN_SEGMENT = 6  # bytes of the shortest one of a scan's
_FEW = 8  # files: comparing takes as long as reading so many headers
_MAX_FORMS = 4  # that are looked for among the files of a batch


def pixels_within(max_picture_mb: int, pixel_nbytes: int = 3) -> int:
    """Return how many pixels take so many MiB; by default those of RGB."""
    return (max_picture_mb << 20) // pixel_nbytes


MAX_PIXELS = pixels_within(MAX_PICTURE_MB)


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


class PictureHeads(NamedTuple):
    """What the headers of several pictures say.

    Attributes:
        sizes: ``(N, 2)`` int64: height and width, in pixels.
        jpegs: Of each that is a JPEG and can be cut; else None.
    """

    sizes: npt.NDArray[np.int64]
    jpegs: list[JpegLayout | None]


class _Form(NamedTuple):
    """How the header of a sequential Huffman JPEG is laid out: as that of other files of the same writer.

    Attributes:
        segments_at: Where its segments begin, the last one being the scan's header or the index before it.
        height_at: The height in the frame header.
        tables_end: The last of these segments; 0 if it was not found.
        components: Number, sampling and tables of the frame's components, as written.
        interval_at: The restart interval, if there is one; else 0.
    """

    segments_at: list[int]
    height_at: int
    tables_end: int
    components: bytes
    interval_at: int

    def layout(self, size: list[int], interval: int) -> JpegLayout:
        """Return what this says of a picture of a size, with so many units (MCUs) between restart markers."""
        segments = _segments(*size, self.components, interval) if interval else None
        return _layout(self.height_at, self.tables_end, segments)

    def marks(self, start: memoryview) -> list[int]:
        """Return where a header says all this: another one with the same bytes there is of this form."""
        behind = self.height_at + SIDES.size
        found = [0, 1, *range(behind, behind + len(self.components))]
        for at in self.segments_at:
            found += at, at + 1
            if at != self.tables_end:  # whose length says nothing of what is before it
                found += at + 2, at + 3
            if start[at + 1] == APP9:
                found += range(at + 4, at + 4 + len(INDEX))
        return found


def picture_heads(records: Sequence[UInt8Array], max_pixels: int = MAX_PIXELS) -> PictureHeads:
    """Read the headers of several pictures; where many are of one form, theirs all at once.

    Raises:
        CodecError: As ``picture_head``, for one of them.
    """
    heads = PictureHeads(np.empty((len(records), 2), np.int64), [None] * len(records))
    left = np.arange(len(records))
    if len(left) >= _FEW:
        nbytes = min(_START_BYTES, *map(len, records))
        joined = b"".join([record.data[:nbytes] for record in records])
        starts = np.frombuffer(joined, np.uint8).reshape(len(records), nbytes)
        for _ in range(_MAX_FORMS):
            left = _read_alike(records, starts, left, heads, max_pixels)
            if len(left) < _FEW:
                break
    for i in left.tolist():
        _read_alone(records, i, heads, max_pixels)
    return heads


def _read_alike(
    records: Sequence[UInt8Array],
    starts: UInt8Array,
    left: npt.NDArray[np.int64],
    heads: PictureHeads,
    max_pixels: int,
) -> npt.NDArray[np.int64]:
    """Read the headers of those that have the form of the first one that is left; return the others."""
    first = int(left[0])
    start = records[first].data[:_HEAD_BYTES]
    form, nbytes = _jpeg_form(start), starts.shape[1]
    marks = form.marks(start) if form is not None and form.tables_end else [nbytes]
    if form is None or max(marks) >= nbytes or form.tables_end + _MIN_SEGMENT > nbytes:
        _read_alone(records, first, heads, max_pixels)
        return left[1:]
    values = starts.take(marks, axis=1)[left]
    is_alike = (values == values[0]).all(axis=1)
    alike = left[is_alike]
    sizes = _shorts(starts, form.height_at, 2)[alike]
    areas = sizes.prod(axis=1)
    for height, width in sizes[(areas < 1) | (areas > max_pixels)].tolist():
        check_pixels(height, width, max_pixels)
    heads.sizes[alike] = sizes
    layouts = [JpegLayout(form.height_at, form.tables_end)] * len(alike)
    if form.interval_at:
        intervals = _shorts(starts, form.interval_at, 1)[alike, 0]
        layouts = list(map(form.layout, sizes.tolist(), intervals.tolist()))
    for i, layout in zip(alike.tolist(), layouts, strict=True):
        heads.jpegs[i] = layout
    others: npt.NDArray[np.int64] = left[~is_alike]
    return others


def _read_alone(
    records: Sequence[UInt8Array], i: int, heads: PictureHeads, max_pixels: int
) -> None:
    height, width, heads.jpegs[i] = picture_head(records[i], max_pixels)
    heads.sizes[i] = height, width


def _shorts(starts: UInt8Array, at: int, count: int) -> npt.NDArray[np.int64]:
    """Read so many numbers of 2 bytes from each start of a file."""
    return np.ascontiguousarray(starts[:, at : at + 2 * count]).view(">u2").astype(np.int64)


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
        what = f"the header of the picture cannot be read ({error})"
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
    """Read the header of a sequential Huffman JPEG; None for any other."""
    form = _jpeg_form(start)
    if form is None:
        return None
    height, width = SIDES.unpack_from(start, form.height_at)
    at = form.interval_at
    interval = start[at] << 8 | start[at + 1] if at else 0
    return PictureHead(height, width, form.layout([height, width], interval))


def _jpeg_form(start: memoryview) -> _Form | None:
    """Read how the header of a sequential Huffman JPEG is laid out; None for any other.

    Source: ITU-T T.81, annex B.
    """
    if bytes(start[:2]) != JPEG_START:
        return None
    segments_at: list[int] = []
    height_at, interval_at, components, end = 0, 0, b"", len(JPEG_START)
    for marker, body, behind in segments(start):
        at = body - 4
        if at != end:  # fill bytes
            break
        segments_at.append(at)
        if height_at:
            if marker == SOS or (marker == APP9 and start[body : body + len(INDEX)] == INDEX):
                return _Form(segments_at, height_at, at, components, interval_at)
            interval_at = body if marker == _DRI else interval_at
        elif marker in _NO_BASELINE or body + 5 >= len(start):
            return None
        elif marker in _SEQUENTIAL:
            height_at, count = body + 1, start[body + 5]
            components = start[body + 5 :][: 1 + 3 * count].tobytes()
        end = behind
    return _Form(segments_at, height_at, 0, components, 0) if height_at else None


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
