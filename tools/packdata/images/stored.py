"""Picture files that were given to ``Writer``, as records: kept verbatim where that serves right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.codecs.heads import MAX_PICTURE_MB, pixels_within
from loaders.codecs.markers import JPEG_START
from loaders.codecs.picture import PictureCodec
from loaders.errors import CodecError
from loaders.schema import Image, Mask
from packdata.images.alike import encode_alike
from packdata.images.headers import read_header
from packdata.images.pictures import decode_mask, decode_picture, turned

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[Any]
_KEPT = ("jpeg", "png", "webp")  # what every picture field serves, whichever it encodes to


def stored_picture(
    data: bytes, field: Image | Mask, quality: int, max_picture_mb: int = MAX_PICTURE_MB
) -> tuple[bytes, tuple[int, int]]:
    """Return the record of an encoded file, and the (height, width) of its picture.

    A JPEG, PNG or WebP that needs no change is kept verbatim. Everything else is turned upright,
    converted to the field's channels and encoded with its codec, JPEG as JPEG with its own tables; see
    ``packdata.images.pictures``.

    Raises:
        CodecError: The file is damaged, or is not a picture that the field can hold.
    """
    if isinstance(field, Mask):
        array, kept = _mask(data, field, max_picture_mb)
    else:
        array, kept = _image(data, field, max_picture_mb)
    size = (int(array.shape[0]), int(array.shape[1]))
    if kept is not None and field.codec in _KEPT:
        return kept, size
    if field.codec == "jpeg" and data[:2] == JPEG_START:
        return encode_alike(array, data), size
    return _encoder(field, quality)(array), size


def check_takes_files(field: Image | Mask) -> None:
    """Raise CodecError if files have no pixels such as the field's: they hold 8 or 16 bits."""
    if isinstance(field, Mask):
        return
    if field.dtype not in ("uint8", "uint16") or field.channels not in (1, 3, 4):
        what = f"{field.dtype} of H x W x {field.channels}"
        raise CodecError(
            f"takes arrays ({what}), not files: those hold uint8 or uint16 of 1, 3 or 4 channels; "
            "read the file yourself and give what should be stored"
        )


def _image(data: bytes, field: Image, max_picture_mb: int) -> tuple[Array, bytes | None]:
    """Return the pixels, and the file if that can be the record."""
    if field.channels == 4:
        return _with_alpha(data, field, max_picture_mb)
    max_pixels = pixels_within(max_picture_mb, field.channels * np.dtype(field.dtype).itemsize)
    picture = decode_picture(
        data, channels=field.channels, dtype=field.dtype, max_pixels=max_pixels
    )
    return picture.pixels, picture.kept(data) if picture.format in _KEPT else None


def _with_alpha(data: bytes, field: Image, max_picture_mb: int) -> tuple[Array, bytes | None]:
    """Return RGBA as the file has it, upright, and the file if readers would see that in it."""
    header = read_header(data)
    codec = PictureCodec(replace(field, codec="png"), max_picture_mb)
    pixels = codec.decode(np.frombuffer(data, np.uint8))
    if header is None or header.orientation == 1:
        return pixels, data
    return turned(pixels, header.orientation), None


def _mask(data: bytes, field: Mask, max_picture_mb: int) -> tuple[Array, bytes | None]:
    mask = decode_mask(data, pixels_within(max_picture_mb, np.dtype(field.dtype).itemsize))
    cast = mask.astype(field.dtype)
    if not np.array_equal(cast, mask):
        raise CodecError(f"the mask has values up to {mask.max()}, the field holds {field.dtype}")
    return cast, data if _serves(data, field, cast) else None


def _serves(data: bytes, field: Mask, expected: Array) -> bool:
    """Tell whether readers would see these numbers in the file (palettes come out as colors)."""
    if field.dtype not in ("uint8", "uint16"):
        return False
    try:
        served = PictureCodec(field).decode(np.frombuffer(data, np.uint8))
    except CodecError:
        return False
    return np.array_equal(served, expected)


def _encoder(field: Image | Mask, quality: int) -> Callable[[Array], bytes]:
    codec = codec_for(field)
    if not isinstance(codec, PictureCodec):
        return codec.encode
    return lambda array: codec.encode(array, quality)
