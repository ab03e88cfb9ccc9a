"""What is stored of a picture: its file where that serves right, else upright pixels, re-encoded.

JPEGs that cannot be kept as they are (turned, CMYK) are encoded with the source's quantization tables and sampling, so
that little is lost but what was lost before: values come back to the steps on which they were.

The program ``jpegtran`` divides files into segments that decode alone (``loaders.codecs.jpeg``): coefficients stay as
they are. Its bytes depend on its version, so that is among the options of a packing.
"""

from __future__ import annotations

import io
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import PIL.Image
import simplejpeg
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from loaders.codecs.dct import DctCodec
from loaders.codecs.heads import MAX_PICTURE_MB, frame_of, jpeg_head, pixels_within
from loaders.codecs.jpeg import grid_of, restart_interval, with_index
from loaders.codecs.picture import PictureCodec
from loaders.codecs.yuv import Yuv420Codec, half
from loaders.errors import CodecError, SchemaError
from loaders.schema import Image, Mask
from packdata.images.masks import decode_mask
from packdata.images.pictures import (
    KEPT,
    Picture,
    PictureFile,
    decode_picture,
    decode_strictly,
    oriented,
)

if TYPE_CHECKING:
    from loaders.codecs import Codec
    from packdata.images.fit import Size

UInt8Array = npt.NDArray[np.uint8]
Planes = tuple[UInt8Array, UInt8Array, UInt8Array]
JPEGTRAN = "jpegtran"
_TIMEOUT_S = 600
_HALVED = 2  # Pillow's number of 4:2:0
_TRANSPOSED = 5  # from this orientation of Exif on, rows become columns


def encode_alike(picture: Picture) -> bytes:
    """Return upright pixels of a JPEG as one with its tables and sampling."""
    assert picture.file is not None
    assert isinstance(picture.file.head, JpegImageFile)
    head, pixels = picture.file.head, picture.pixels
    is_transposed, gray = picture.file.orientation >= _TRANSPOSED, pixels.shape[2] == 1
    # Of gray shown as colours, which has no chroma, the coarsest; all chroma of CMYK and rare ratios.
    sampling = _HALVED if len(head.layer) == 1 else get_sampling(head)
    if gray or sampling not in ((_HALVED,) if is_transposed else (1, _HALVED)):
        sampling = 0
    components = [table for *_, table in head.layer]
    used = [components[0], components[min(1, len(components) - 1)]][: 1 if gray else 2]
    tables = (np.reshape(head.quantization[number], (8, 8)) for number in used)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels[:, :, 0] if gray else pixels).save(
        file,
        "JPEG",
        qtables=[(table.T if is_transposed else table).ravel().tolist() for table in tables],
        subsampling=sampling,
        restart_marker_blocks=restart_interval(*pixels.shape[:2], 16 if sampling else 8),
    )
    return with_index(np.frombuffer(file.getvalue(), np.uint8)).tobytes()


def encode_planes(codec: Codec, data: bytes) -> bytes | None:
    """Return the record of a JPEG's own planes, if the codec stores such, and the file has them."""
    if isinstance(codec, Yuv420Codec) or (isinstance(codec, DctCodec) and codec.grid.is_halved):
        planes = jpeg_planes(data)
        return None if planes is None else codec.encode_planes(planes)
    return None


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

    New Huffman tables are made, which saves about what the markers cost. None for other files, where parts of the
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
    return head is not None and grid_of(head).total > 0


# -- files that a Writer is given --------------------------------------------------------------------


def check_takes_files(field: Image | Mask) -> None:
    """Raise CodecError if files have no pixels such as the field's: they hold 8 or 16 bits."""
    is_usual = field.dtype in ("uint8", "uint16")
    if isinstance(field, Image) and not (is_usual and field.channels in (1, 3, 4)):
        what = f"takes arrays ({field.dtype} of H x W x {field.channels}), not files"
        hint = "read the file yourself and give what should be stored"
        raise CodecError(f"{what}: those hold uint8 or uint16 of 1, 3 or 4 channels; {hint}")


def stored_picture(
    data: bytes, field: Image | Mask, codec: Codec, max_picture_mb: int = MAX_PICTURE_MB
) -> tuple[bytes, Size]:
    """Return the record of a file that ``Writer`` is given, and the (height, width) of its picture.

    A JPEG, PNG or WebP that needs no change is kept verbatim. Everything else is turned upright, converted to the
    field's channels and encoded with its codec, JPEG as JPEG; see ``packdata.images.pictures``.

    Raises:
        CodecError: The file is damaged, or is not a picture that the field can hold.
    """
    channels = field.channels if isinstance(field, Image) else 1
    max_pixels = pixels_within(max_picture_mb, channels * np.dtype(field.dtype).itemsize)
    if isinstance(field, Mask):
        picture = _mask(data, field, max_pixels)
    elif channels == 4:
        picture = _with_alpha(data, field, max_picture_mb)
    else:
        picture = decode_picture(data, channels=channels, dtype=field.dtype, max_pixels=max_pixels)
    if picture.kept is not None and field.codec in KEPT:
        return picture.kept, picture.size
    if "16-bit" in picture.changes:
        hint = "Image(dtype='uint16', codec='png') stores them; or give the array that should be stored"
        raise CodecError(f"the file has 16 bits, the field 8: {hint}")
    is_alike = picture.format == field.codec == "jpeg"
    return encode_alike(picture) if is_alike else codec.encode(picture.pixels), picture.size


def _with_alpha(data: bytes, field: Image, max_picture_mb: int) -> Picture:
    """Return RGBA as the file has it, upright; the file is kept if readers would see that in it."""
    codec = PictureCodec(replace(field, codec="png"), max_picture_mb)
    orientation = PictureFile(data, codec.max_pixels).orientation
    pixels = oriented(codec.decode(np.frombuffer(data, np.uint8)), orientation)
    return Picture(pixels, pixels.shape[:2], kept=data if orientation == 1 else None)


def _mask(data: bytes, field: Mask, max_pixels: int) -> Picture:
    """Return a mask; its file is kept if readers would see its values in it: no palette, no few bits."""
    mask, file = decode_mask(data, max_pixels), PictureFile(data, max_pixels)
    cast = mask.astype(field.dtype)
    if not np.array_equal(cast, mask):
        raise CodecError(f"the mask has values up to {mask.max()}, the field holds {field.dtype}")
    form = (file.format, file.head.mode, file.bits, field.dtype, file.orientation)
    is_plain = form in (("png", "L", 8, "uint8", 1), ("png", "I;16", 16, "uint16", 1))
    return Picture(cast, mask.shape, kept=data if is_plain else None)
