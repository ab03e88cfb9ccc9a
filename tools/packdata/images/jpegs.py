"""JPEG files: to pixels, strictly; encoded again as they were; and divided into segments.

libjpeg fills what is missing with gray, and only warns. Three oddities of many photos cost no pixel: padding before the
end, no end marker, and the scan header of some phones. They are mended in a copy of the file, and the copy has to
decode without a warning: libjpeg names its first only, and another may be behind.

What cannot be kept as it is (turned, CMYK) is encoded with the source's quantization tables and sampling, so that
little is lost but what was lost before: values come back to the steps on which they were.

The program ``jpegtran`` divides files into segments that decode alone (``loaders.codecs.jpeg``): coefficients stay as
they are. Its bytes depend on its version, so that is among the options of a packing.
"""

from __future__ import annotations

import io
import re
import subprocess
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import simplejpeg
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from loaders.codecs.dct import DctCodec
from loaders.codecs.heads import jpeg_head
from loaders.codecs.jpeg import num_segments, restart_interval, with_index
from loaders.codecs.markers import SOS, frame_of, markers, with_end
from loaders.codecs.yuv import Yuv420Codec, half
from loaders.errors import CodecError, SchemaError

UInt8Array = npt.NDArray[np.uint8]
Planes = tuple[UInt8Array, UInt8Array, UInt8Array]

JPEGTRAN = "jpegtran"
_TIMEOUT_S = 600
_PADDING = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_MAX_ODDITIES = 8
_HALVED = 2  # Pillow's number of 4:2:0
_TRANSPOSED = 5  # from this orientation of Exif on, rows become columns


def decode_strictly(data: bytes, **options: Any) -> tuple[UInt8Array, bytes | None]:
    """Return the pixels of a JPEG as ``simplejpeg`` decodes them by these options, and of an odd file what was decoded.

    Raises:
        CodecError: It is cut or damaged: not all pixels are there, or not all bytes were used; or of a
            kind that is not read.
    """
    mended, reason = None, ""
    for _ in range(_MAX_ODDITIES):
        try:
            return simplejpeg.decode_jpeg(mended or data, **options), mended
        except ValueError as error:
            reason = str(error)
        plain = _without_oddity(mended or bytes(data), reason)
        if plain is None:
            break
        mended = plain
    raise CodecError(f"the JPEG is cut, damaged or of a rare kind ({reason}): save it again")


def _without_oddity(data: bytes, warning: str) -> bytes | None:
    """Return the file without what libjpeg warns of; None if that may have cost pixels."""
    if padding := _PADDING.search(warning):
        return _without_padding(data, int(padding[1]), int(padding[2], 16))
    if "Premature end of JPEG file" in warning:
        return with_end(data)
    return _with_plain_scan(data) if "Invalid SOS" in warning else None


def _without_padding(data: bytes, num: int, before: int) -> bytes | None:
    """Cut out the bytes before a marker, if they are zeros or fill bytes.

    A scan with a flipped bit may give all of its blocks too early, and leaves bytes there too: these
    were pixels.
    """
    for at, mark in markers(data):
        start = max(2, at - num)
        if mark == before and start < at and not data[start:at].strip(b"\0\xff"):
            return data[:start] + data[at:]
    return None


def _with_plain_scan(data: bytes) -> bytes | None:
    """Give the scans of a sequential file the header that libjpeg goes on with."""
    plain = bytearray(data)
    for at, mark in markers(data):
        if mark == SOS:
            behind = at + 5 + 2 * data[at + 4]
            plain[behind : behind + 3] = b"\0\x3f\0"
    return None if plain == data else bytes(plain)


def encode_alike(head: Any, orientation: int, pixels: UInt8Array) -> bytes:
    """Return upright pixels (H x W x C) as a JPEG with the tables and sampling of ``head``, the file they are of."""
    assert isinstance(head, JpegImageFile)
    is_transposed, gray = orientation >= _TRANSPOSED, pixels.shape[2] == 1
    subsampling = "4:4:4" if gray else _subsampling(head, is_transposed)
    components = [table for *_, table in head.layer]
    used = [components[0], components[min(1, len(components) - 1)]][: 1 if gray else 2]
    tables = (np.reshape(head.quantization[number], (8, 8)) for number in used)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels[:, :, 0] if gray else pixels).save(
        file,
        "JPEG",
        qtables=[(table.T if is_transposed else table).ravel().tolist() for table in tables],
        subsampling=subsampling,
        restart_marker_blocks=restart_interval(
            *pixels.shape[:2], 8 if subsampling == "4:4:4" else 16
        ),
    )
    return with_index(np.frombuffer(file.getvalue(), np.uint8)).tobytes()


def encode_planes(codec: Any, data: bytes) -> bytes | None:
    """Return the record of a JPEG's own planes, if the codec stores such, and the file has them."""
    takes_planes = isinstance(codec, Yuv420Codec) or (
        isinstance(codec, DctCodec) and codec.grid.is_halved
    )
    planes = jpeg_planes(data) if takes_planes else None
    return None if planes is None else codec.encode_planes(planes)


def jpeg_planes(data: bytes) -> Planes | None:
    """Return Y, Cb and Cr of a JPEG whose chroma has half its height and width; None of any other.

    Luma is what a decoder gives for gray. For chroma the file is decoded at half its size: to come
    there, libjpeg has nothing to do to planes that are of this size already.

    Source: ``jdmaster.c`` of libjpeg-turbo, "scale up the chroma components via IDCT scaling".
    """
    image = JpegImageFile(io.BytesIO(data))
    width, height = image.size
    image.draft("YCbCr", (max(1, width // 2), max(1, height // 2)))
    if get_sampling(image) != _HALVED or image.size != (half(width), half(height)):
        return None
    luma: UInt8Array = simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0]
    small = np.asarray(image)
    return luma, np.ascontiguousarray(small[:, :, 1]), np.ascontiguousarray(small[:, :, 2])


def _subsampling(head: JpegImageFile, is_transposed: bool) -> str:
    """Return the sampling; of gray, which has no chroma, the coarsest. Of CMYK and rare ratios all chroma is stored."""
    if len(head.layer) == 1:
        return "4:2:0"
    coarser = {2: "4:2:0"} if is_transposed else {1: "4:2:2", 2: "4:2:0"}
    return coarser.get(get_sampling(head), "4:4:4")


def jpegtran_version() -> str:
    """Return what ``jpegtran`` says of itself; SchemaError if it is not installed."""
    try:
        done = subprocess.run([JPEGTRAN, "-version"], capture_output=True, timeout=_TIMEOUT_S)
    except FileNotFoundError as error:
        hint = "it comes with libjpeg-turbo (Debian: libjpeg-turbo-progs)"
        raise SchemaError(f"segments= takes the program {JPEGTRAN!r}: {hint}") from error
    return (done.stdout + done.stderr).decode(errors="replace").strip()


def divide_without_loss(data: bytes) -> bytes | None:
    """Return a JPEG in segments, with an index of them: sequential, of the same pixels and metadata.

    Huffman tables are made anew, which saves about what the markers cost. None for other files, where parts of the
    picture are not worth making, and where ``jpegtran`` does not do it without loss.
    """
    frame = frame_of(data)
    interval = frame and restart_interval(frame.height, frame.width, frame.unit[1])
    if not interval:
        return None
    command = [JPEGTRAN, "-copy", "all", "-optimize", "-restart", f"{interval}B"]
    divided = data
    if not _is_divided(data):
        done = subprocess.run(command, input=data, capture_output=True, timeout=_TIMEOUT_S)
        divided = done.stdout
    if not _is_divided(divided):
        return None
    record = with_index(np.frombuffer(divided, np.uint8)).tobytes()
    (before, _), (after, _) = decode_strictly(data), decode_strictly(record)
    return record if np.array_equal(before, after) else None


def _is_divided(data: bytes) -> bool:
    head = jpeg_head(memoryview(data))
    return head is not None and num_segments(head) > 0
