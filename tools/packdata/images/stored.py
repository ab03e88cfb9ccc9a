"""Picture files that were given to ``Writer``, as records: kept verbatim where that serves right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.codecs.heads import MAX_PICTURE_MB, pixels_within
from loaders.codecs.picture import PictureCodec
from loaders.errors import CodecError
from loaders.schema import Image, Mask
from packdata.images.jpegs import encode_alike
from packdata.images.pictures import (
    KEPT,
    bits_of,
    decode_mask,
    decode_picture,
    open_picture,
    orientation_of,
    turned,
)

Array = npt.NDArray[Any]
_OF_FILES = {f"{dtype} {n}" for dtype in ("uint8", "uint16") for n in (1, 3, 4)}


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
    channels = field.channels if isinstance(field, Image) else 1
    max_pixels = pixels_within(max_picture_mb, channels * np.dtype(field.dtype).itemsize)
    if isinstance(field, Mask):
        array, kept = _mask(data, field, max_pixels)
    elif channels == 4:
        array, kept = _with_alpha(data, field, max_picture_mb)
    else:
        picture = decode_picture(data, channels=channels, dtype=field.dtype, max_pixels=max_pixels)
        array, kept = picture.pixels, picture.kept
        if kept is None and field.codec == "jpeg" and picture.format == "jpeg":
            return encode_alike(picture.head, picture.orientation, array), picture.size
    size = (int(array.shape[0]), int(array.shape[1]))
    if kept is not None and field.codec in KEPT:
        return kept, size
    codec = codec_for(field)
    if isinstance(codec, PictureCodec):
        return codec.encode(array, quality), size
    return codec.encode(array), size


def check_takes_files(field: Image | Mask) -> None:
    """Raise CodecError if files have no pixels such as the field's: they hold 8 or 16 bits."""
    if isinstance(field, Image) and f"{field.dtype} {field.channels}" not in _OF_FILES:
        what = f"{field.dtype} of H x W x {field.channels}"
        raise CodecError(
            f"takes arrays ({what}), not files: those hold uint8 or uint16 of 1, 3 or 4 channels; "
            "read the file yourself and give what should be stored"
        )


def _with_alpha(data: bytes, field: Image, max_picture_mb: int) -> tuple[Array, bytes | None]:
    """Return RGBA as the file has it, upright, and the file if readers would see that in it."""
    codec = PictureCodec(replace(field, codec="png"), max_picture_mb)
    orientation = orientation_of(open_picture(data, codec.max_pixels))
    pixels = turned(codec.decode(np.frombuffer(data, np.uint8)), orientation)
    return pixels, data if orientation == 1 else None


def _mask(data: bytes, field: Mask, max_pixels: int) -> tuple[Array, bytes | None]:
    """Return the values of a mask, and the file if readers would see them in it: no palette, no few bits."""
    mask, head = decode_mask(data, max_pixels), open_picture(data)
    cast = mask.astype(field.dtype)
    if not np.array_equal(cast, mask):
        raise CodecError(f"the mask has values up to {mask.max()}, the field holds {field.dtype}")
    form = (head.format, head.mode, bits_of(head, data), field.dtype, orientation_of(head))
    is_plain = form in (("PNG", "L", 8, "uint8", 1), ("PNG", "I;16", 16, "uint16", 1))
    return cast, data if is_plain else None
