"""The planes of a JPEG as they are, for codecs that store the same: nothing is resampled or converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.JpegImagePlugin
import simplejpeg

from loaders.codecs.dct import DctCodec
from loaders.codecs.yuv import Yuv420Codec, half
from packdata.images.pictures import open_pil

if TYPE_CHECKING:
    import numpy.typing as npt

    from packdata.images.pictures import Picture

    UInt8Array = npt.NDArray[np.uint8]
    Planes = tuple[UInt8Array, UInt8Array, UInt8Array]


def encode_jpeg_planes(codec: Any, picture: Picture, data: bytes) -> bytes | None:
    """Return the record of a JPEG's own planes, if the codec stores such and the file (it keeps its size) has them."""
    takes_planes = isinstance(codec, Yuv420Codec) or (
        isinstance(codec, DctCodec) and codec.grid.is_halved
    )
    if not takes_planes or picture.format != "jpeg" or picture.gray or picture.changes:
        return None
    planes = jpeg_planes(data)
    return None if planes is None else codec.encode_planes(planes)


def jpeg_planes(data: bytes) -> Planes | None:
    """Return Y, Cb and Cr of a JPEG whose chroma has half its height and width; None of any other.

    Luma is what a decoder gives for gray. For chroma the file is decoded at half its size: to come
    there, libjpeg has nothing to do to planes that are of this size already.

    Source: ``jdmaster.c`` of libjpeg-turbo, "scale up the chroma components via IDCT scaling".
    """
    try:
        height, width, space, subsampling = simplejpeg.decode_jpeg_header(data)
    except KeyError:  # of a sampling that has no name there
        return None
    if (space, subsampling) != ("YCbCr", "420") or min(height, width) < 2:
        return None
    luma: UInt8Array = simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0]
    image = open_pil(data)
    assert isinstance(image, PIL.JpegImagePlugin.JpegImageFile)
    image.draft("YCbCr", (width // 2, height // 2))
    if image.mode != "YCbCr" or image.size != (half(width), half(height)):
        return None
    small = np.asarray(image)
    return luma, np.ascontiguousarray(small[:, :, 1]), np.ascontiguousarray(small[:, :, 2])
