"""Pictures as JPEG's own planes: luma Y and chroma Cb, Cr, full range, BT.601.

``yuv420`` stores the three planes as they are, chroma at half the height and width: half the bytes
of RGB, and RGB again by a few multiplications. The same planes are what ``dct`` transforms.

Both directions are the same on every machine: forward in whole numbers, backward in float32
operations of one rounding each, in this order (``loaders.device.decode`` has the same for tensors).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from loaders.codecs.raw import as_array
from loaders.errors import CodecError
from loaders.schema import Field, Image

UInt8Array = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
Size = tuple[int, int]

# Source: ITU-T T.871 (JFIF), section 7: Y' = 0.299 R + 0.587 G + 0.114 B, and back.
CR_TO_RED, CB_TO_BLUE = 1.402, 1.772
CB_TO_GREEN, CR_TO_GREEN = 0.344136, 0.714136
_LUMA = (299, 587, 114)  # of 1,000


class Plane(NamedTuple):
    """Whole numbers that are ``units`` times the values meant: exact, whatever is done with them next."""

    numbers: npt.NDArray[np.int64]
    units: int


def half(side: int) -> int:
    """Return the side of a chroma plane."""
    return -(-side // 2)


def as_pixels(value: Any, channels: int, size: Size) -> UInt8Array:
    """Return a value as H x W x C of this size; CodecError if it is not."""
    array = as_array(value)
    if array.ndim == 2 and channels == 1:
        array = array[:, :, None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != channels:
        got = f"{array.dtype} of {array.shape}"
        raise CodecError(f"takes uint8 of H x W x {channels}, got {got}")
    check_size(array.shape[:2], size)
    return array


def check_size(got: tuple[int, ...], size: Size) -> None:
    """Raise CodecError if a picture is not as large as all others of its field."""
    if tuple(got) != size:
        what = f"the images of this field share a size of {size[0]} x {size[1]} (H x W)"
        hint = "pack with a size and a fit of cover, contain or stretch"
        raise CodecError(f"{what}, got {got[0]} x {got[1]}: {hint}")


def split_rgb(pixels: UInt8Array, *, halve: bool) -> list[Plane]:
    """Return the planes of H x W x 3 pixels, chroma around 0; halved, chroma is the mean of each 2 x 2."""
    red, green, blue = (pixels[:, :, c].astype(np.int64) for c in range(3))
    luma = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    planes = [Plane(luma, 1000)]
    for colour, units in ((1000 * blue - luma, 1772), (1000 * red - luma, 1402)):
        planes.append(Plane(_sum_2x2(colour), 4 * units) if halve else Plane(colour, units))
    return planes


def _sum_2x2(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    height, width = numbers.shape
    even = np.pad(numbers, ((0, height % 2), (0, width % 2)), mode="edge")
    rows = even[0::2] + even[1::2]
    total: npt.NDArray[np.int64] = rows[:, 0::2] + rows[:, 1::2]
    return total


def as_bytes(plane: Plane, centre: int) -> UInt8Array:
    """Round a plane to uint8; ``centre`` is what 0 is stored as."""
    rounded = (2 * plane.numbers + plane.units) // (2 * plane.units) + centre
    return np.clip(rounded, 0, 255).astype(np.uint8)


def double(plane: FloatArray, size: Size) -> FloatArray:
    """Double a plane's sides by the triangle filter, 3 parts of the nearer sample and 1 of the other, and cut it.

    Source: "fancy upsampling" of libjpeg, ``jdsample.c``.
    """
    tall = np.ascontiguousarray(_double_rows(plane).T)
    return np.ascontiguousarray(_double_rows(tall)[: size[1], : size[0]].T)


def _double_rows(plane: FloatArray) -> FloatArray:
    near, quarter = plane * np.float32(0.75), plane * np.float32(0.25)
    result = np.empty((2 * len(plane), plane.shape[1]), np.float32)
    np.add(near[1:], quarter[:-1], out=result[2::2])
    np.add(near[:-1], quarter[1:], out=result[1:-1:2])
    np.add(near[0], quarter[0], out=result[0])  # beyond the edge it goes on
    np.add(near[-1], quarter[-1], out=result[-1])
    return result


def join_rgb(luma: FloatArray, blue: FloatArray, red: FloatArray) -> UInt8Array:
    """Return H x W x 3 pixels from Y of 0 to 255, and Cb and Cr around 0, all of one size.

    OpenCV adds, then rounds to the nearest of 0 to 255, halves to even, in one pass.
    """
    part = red * np.float32(CR_TO_RED)
    rounded = [cv2.add(luma, part, dtype=cv2.CV_8U)]
    green = luma - np.multiply(blue, np.float32(CB_TO_GREEN), out=part)
    np.multiply(red, np.float32(CR_TO_GREEN), out=part)
    rounded.append(cv2.subtract(green, part, dtype=cv2.CV_8U))
    np.multiply(blue, np.float32(CB_TO_BLUE), out=part)
    rounded.append(cv2.add(luma, part, dtype=cv2.CV_8U))
    merged: Any = cv2.merge(rounded)
    return merged.reshape(*luma.shape, 3)  # type: ignore[no-any-return]


class Yuv420Codec:
    """RGB images of one size as planes.

    A record is Y, H x W, then Cb and Cr, each of half the height and width (rounded up): uint8, as
    in a JPEG.
    """

    def __init__(self, field: Field) -> None:
        if not isinstance(field, Image) or field.channels != 3 or field.dtype != "uint8":
            raise CodecError("codec 'yuv420' stores images of 3 channels of uint8: take 'raw'")
        if field.size is None:
            raise CodecError("codec 'yuv420' needs images of one size: pass size= to the field")
        self.size = field.size  # height and width of every image

    def encode(self, value: Any) -> bytes:
        """Return the record of H x W x 3 uint8; CodecError if it is something else."""
        luma, blue, red = split_rgb(as_pixels(value, 3, self.size), halve=True)
        parts = (as_bytes(luma, 0), as_bytes(blue, 128), as_bytes(red, 128))
        return b"".join(part.tobytes() for part in parts)

    def encode_planes(self, planes: tuple[UInt8Array, UInt8Array, UInt8Array]) -> bytes:
        """Return the record of the planes of a JPEG, not resampled and not rounded again."""
        check_planes(planes, self.size)
        return b"".join(plane.tobytes() for plane in planes)

    def decode(self, record: UInt8Array) -> UInt8Array:
        """Return H x W x 3 pixels; CodecError if the record has another size."""
        luma, *chroma = (plane.astype(np.float32) for plane in self.planes(record))
        blue, red = (double(plane - np.float32(128), self.size) for plane in chroma)
        return join_rgb(luma, blue, red)

    def planes(self, record: UInt8Array) -> tuple[UInt8Array, UInt8Array, UInt8Array]:
        """Return views of the three planes."""
        height, width = self.size
        luma, chroma = height * width, half(height) * half(width)
        if len(record) != luma + 2 * chroma:
            what = f"a record of {len(record)} bytes is not {luma + 2 * chroma}"
            raise CodecError(f"{what}, as planes of {height} x {width} are")
        shape = (half(height), half(width))
        return (
            record[:luma].reshape(height, width),
            record[luma : luma + chroma].reshape(shape),
            record[luma + chroma :].reshape(shape),
        )


def check_planes(planes: tuple[UInt8Array, UInt8Array, UInt8Array], size: Size) -> None:
    """Raise CodecError unless these are Y, and Cb and Cr of half its sides."""
    check_size(planes[0].shape, size)
    wanted = (half(size[0]), half(size[1]))
    if any(plane.shape != wanted or plane.dtype != np.uint8 for plane in planes[1:]):
        raise CodecError(f"chroma planes must be uint8 of {wanted}")
