"""JPEGs that cannot be kept as they are (turned, CMYK): encoded again as coarsely, or finely, as they were.

Quantization tables and sampling are the source's, so that little is lost but what was lost before: values come
back to the steps on which they were.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import PIL.Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from loaders.codecs.jpeg import restart_interval, with_index
from packdata.images.pictures import orientation_of

if TYPE_CHECKING:
    from packdata.images.pictures import Picture

_TRANSPOSED = 5  # from this orientation of Exif on, rows become columns


def encode_alike(picture: Picture) -> bytes:
    """Return upright 8-bit pixels of full size as a JPEG with the tables and sampling of the JPEG that they are of."""
    head, pixels = picture.head, picture.pixels
    assert isinstance(head, JpegImageFile)
    is_transposed, gray = orientation_of(head) >= _TRANSPOSED, pixels.shape[2] == 1
    subsampling = "4:4:4" if gray else _subsampling(head, is_transposed)
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


def _subsampling(head: JpegImageFile, is_transposed: bool) -> str:
    """Return the sampling; of gray, which has no chroma, the coarsest. Of CMYK and rare ratios all chroma is stored."""
    if len(head.layer) == 1:
        return "4:2:0"
    coarser = {2: "4:2:0"} if is_transposed else {1: "4:2:2", 2: "4:2:0"}
    return coarser.get(get_sampling(head), "4:4:4")
