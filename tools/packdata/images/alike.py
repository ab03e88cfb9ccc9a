"""JPEGs that cannot be kept as they are (turned, CMYK): encoded again as coarsely, or finely, as they were.

Quantization tables and sampling are the source's, so that little is lost but what was lost before: values come
back to the steps on which they were. Codecs that store planes as JPEGs have them get the source's own: nothing is
resampled or converted.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import simplejpeg
from PIL.JpegImagePlugin import JpegImageFile

from loaders.codecs.dct import DctCodec
from loaders.codecs.jpeg import restart_interval, with_index
from loaders.codecs.yuv import Yuv420Codec, half
from packdata.images.pictures import orientation_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packdata.images.pictures import Picture

    Planes = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

# Pillow's name, by how much finer luma is than chroma, across and down. For other ratios all chroma is stored.
_SUBSAMPLINGS = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0"}
_TRANSPOSED = 5  # from this orientation of Exif on, rows become columns


def encode_alike(picture: Picture) -> bytes:
    """Return upright 8-bit pixels of full size as a JPEG with the tables and sampling of the JPEG that they are of."""
    head, pixels = picture.head, picture.pixels
    assert isinstance(head, JpegImageFile)
    is_transposed, gray = orientation_of(head) >= _TRANSPOSED, pixels.shape[2] == 1
    subsampling = "4:4:4" if gray else _subsampling(head.layer, is_transposed)
    interval = restart_interval(*pixels.shape[:2], 8 if subsampling == "4:4:4" else 16)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels[:, :, 0] if gray else pixels).save(
        file,
        "JPEG",
        qtables=_tables(head, is_transposed)[: 1 if gray else 2],
        subsampling=subsampling,
        restart_marker_blocks=interval,
    )
    return with_index(np.frombuffer(file.getvalue(), np.uint8)).tobytes()


def _tables(source: JpegImageFile, is_transposed: bool) -> list[list[int]]:
    """Return the tables of luma and chroma: of all components alike, twice the same."""
    components = [table for *_, table in source.layer]
    wanted = (components[0], components[min(1, len(components) - 1)])
    tables = (np.reshape(source.quantization[number], (8, 8)) for number in wanted)
    return [(table.T if is_transposed else table).ravel().tolist() for table in tables]


def _subsampling(components: Sequence[Any], is_transposed: bool) -> str:
    """Return the sampling; of gray, which has no chroma, the coarsest."""
    if len(components) == 1:
        return "4:2:0"
    (_, across, down, _), (_, chroma_across, chroma_down, _), *_ = components
    ratio = across // chroma_across, down // chroma_down
    return _SUBSAMPLINGS.get(ratio[::-1] if is_transposed else ratio, "4:4:4")


def encode_jpeg_planes(codec: Any, picture: Picture) -> bytes | None:
    """Return the record of a JPEG's own planes, if the codec stores such and the file (it keeps its size) has them."""
    takes_planes = isinstance(codec, Yuv420Codec) or (
        isinstance(codec, DctCodec) and codec.grid.is_halved
    )
    if not takes_planes or picture.format != "jpeg" or picture.gray or picture.changes:
        return None
    planes = None if picture.kept is None else jpeg_planes(picture.kept)
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
    luma: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0]
    image = JpegImageFile(io.BytesIO(data))
    image.draft("YCbCr", (width // 2, height // 2))
    if image.mode != "YCbCr" or image.size != (half(width), half(height)):
        return None
    small = np.asarray(image)
    return luma, np.ascontiguousarray(small[:, :, 1]), np.ascontiguousarray(small[:, :, 2])
