"""Colour profiles (ICC): what the numbers of a picture mean, and their conversion to sRGB.

Nearly all pictures are of sRGB, and loaders read numbers as they are. Photos of some cameras and phones are of wider
spaces (Adobe RGB, Display P3): their numbers, read as sRGB, are paler than the picture.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL import ImageCms

from loaders.errors import CodecError

Array = npt.NDArray[Any]

CONVERTED = "converted to sRGB"


def converted(pixels: Array, profile: bytes, changes: list[str]) -> Array:
    """Return pixels as sRGB, which ``changes`` gets; as they were, if they are of sRGB or no 8-bit RGB.

    Raises:
        CodecError: The profile cannot be read.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] < 3 or "cmyk" in changes:
        return pixels
    try:
        transform = _transform(profile)
        if transform is None:
            return pixels
        colours = PIL.Image.fromarray(np.ascontiguousarray(pixels[:, :, :3]))
        done = np.asarray(ImageCms.applyTransform(colours, transform))
    except (ImageCms.PyCMSError, OSError) as error:
        raise CodecError(f"its colour profile cannot be read ({error})") from error
    changes.append(CONVERTED)
    return np.concatenate([done, pixels[:, :, 3:]], axis=2)


@lru_cache(maxsize=16)  # a camera has one
def _transform(profile: bytes) -> Any:
    """Return what converts from a profile to sRGB; None if that is nothing, or not from RGB."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    is_rgb = source.profile.xcolor_space.strip() == "RGB"
    if not is_rgb or "sRGB" in ImageCms.getProfileDescription(source):
        return None
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), "RGB", "RGB")
