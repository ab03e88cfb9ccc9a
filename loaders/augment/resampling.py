"""Filtered resampling: what Pillow gives for a box of any position, so what torchvision's weights were trained on.

A ``Resampling`` says how a list of ops resamples. *Filtered*: each pixel is a weighted mean of all that lies below
it, the filter's support growing with the shrink; the box is where the ops put it, not rounded to whole pixels. Else
the fast way of ``loaders.augment.pixels``.

Source: the filters and their weights are those of Pillow (``src/libImaging/Resample.c``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from loaders.checks import real_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Floats = npt.NDArray[np.float64]

Fill = float | tuple[float, ...]  # of pixels: one number, or one for each channel
INTERPOLATIONS = ("bilinear", "bicubic", "area", "nearest")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
SUPPORT = {"bilinear": 1.0, "bicubic": 2.0, "area": 0.5}  # of each filter, in pixels of the result
_PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.BOX,
}
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # not RGBA, whose colours Pillow weighs with its alpha
_CUBIC = -0.5
_EDGE = 1e-6  # pixels: what float64 may be off


@dataclass(frozen=True, slots=True)
class Resampling:
    """How pictures are resampled.

    Attributes:
        interpolation: One of ``INTERPOLATIONS``.
        is_filtered: Whether Pillow's filters are used, at sub-pixel boxes.
        warp: How what is turned, sheared and the like is: ``"bilinear"``, or ``"nearest"`` if nothing else resizes.
        padding_mode: What lies outside of a picture: ``"constant"`` is ``fill``, the others are as in ``RandomCrop``.
    """

    interpolation: str = "bilinear"
    is_filtered: bool = False
    padding_mode: str = "constant"
    warp: str = "bilinear"


FAST = Resampling()


def as_fill(value: Any) -> Fill:
    """Return what pixels are filled with, as numbers: one, or one for each channel."""
    if isinstance(value, (tuple, list)):
        return tuple(real_number(f"fill[{i}]", each) for i, each in enumerate(value))
    number: float = real_number("fill", value)
    return number


def source_positions(positions: Any, length: int, mode: str) -> Any:
    """Return which pixel of an axis stands at each position, which may be outside; of an array or a tensor of integers.

    Source: ``pad`` of torchvision: ``"reflect"`` does not repeat the edge, ``"symmetric"`` does.
    """
    if mode == "edge" or length == 1:
        return positions.clip(0, length - 1)
    if mode == "symmetric":
        at = positions % (2 * length)
        return at - (at >= length) * (2 * (at - length) + 1)
    at = positions % (2 * length - 2)
    return at - (at >= length) * 2 * (at - length + 1)


def inner_span(start: float, extent: float, size: int, length: int) -> tuple[int, int]:
    """Return the pixels of a result whose box lies on the image, of an axis: first, and behind the last."""
    first, last = (
        min(max(round((at - start) * size / extent), 0), size) for at in (0.0, float(length))
    )
    return first, max(first, last)


def is_between_pixels(start: Any, extent: Any, size: int, length: int) -> Any:
    """Tell whether an image ends within a pixel of the result: it was padded first, and then resized.

    An image that was resized first ends between two of them, and neither has anything of what lies outside. Numbers,
    or arrays or tensors of them.
    """
    first, last = -start * size / extent, (length - start) * size / extent
    return ((start < 0) & (abs(first - (first + 0.5) // 1) > _EDGE)) | (
        (start + extent > length + _EDGE) & (abs(last - (last + 0.5) // 1) > _EDGE)
    )


def resample(
    image: Array,  # ``(H, W, C)`` or ``(H, W)``, of integers or floats
    region: Sequence[float],  # y, x, height, width of the box in pixels; it may reach outside
    flip: Sequence[bool],  # vertical, horizontal
    out: Array,  # array of the result's shape and dtype; it must not overlap the image
    *,
    interpolation: str,  # ``"bilinear"``, ``"bicubic"`` or ``"area"``
    fill: Any = 0,  # what the result has where the box lies outside the image
) -> Array:
    """Resample a box of an image with one of Pillow's filters, straight into its place; return that."""
    target = out[:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]
    spans = [inner_span(region[i], region[i + 2], out.shape[i], image.shape[i]) for i in (0, 1)]
    (top, bottom), (left, right) = spans
    if (top, left, bottom, right) != (0, 0, *out.shape[:2]):
        target[...] = fill
        if top == bottom or left == right:
            return out
    lines = [
        _line(region[i], region[i + 2], out.shape[i], spans[i], image.shape[i]) for i in (0, 1)
    ]
    (y, height, rows), (x, width, columns) = (
        _needed(*line, image.shape[i], interpolation) for i, line in enumerate(lines)
    )
    part, box = image[rows, columns], (x, y, x + width, y + height)
    inner = target[top:bottom, left:right]
    mode = _MODES.get(part.shape[2] if part.ndim == 3 else 1)
    if part.dtype == np.uint8 and mode is not None:
        inner[...] = _by_pillow(part, mode, box, inner.shape[1::-1], interpolation).reshape(
            inner.shape
        )
    else:
        inner[...] = _by_matrices(part, box, inner.shape, interpolation)
    return out


def _line(
    start: float, extent: float, size: int, span: tuple[int, int], length: int
) -> tuple[float, float, int]:
    """Return start, extent and number of pixels of the part of an axis that lies on the image."""
    scale, (first, last) = extent / size, span
    begin = max(start + first * scale, 0.0)
    return begin, min(start + last * scale, float(length)) - begin, last - first


def _needed(
    start: float, extent: float, size: int, length: int, interpolation: str
) -> tuple[float, float, slice]:
    """Return start and extent as seen from the pixels that the filter reads, and these."""
    margin = margin_of(interpolation, extent / size)
    first = max(math.floor(start - margin), 0)
    last = min(math.ceil(start + extent + margin), length)
    return start - first, extent, slice(first, last)


def margin_of(interpolation: str, scale: Any) -> Any:
    """Return how many pixels beyond a box a filter reads at a shrink; of a number or an array."""
    return np.ceil(SUPPORT[interpolation] * np.maximum(scale, 1)) + 1


def _by_pillow(part: Array, mode: str, box: Any, size: Sequence[int], interpolation: str) -> Array:
    height, width = part.shape[:2]
    picture = Image.frombuffer(
        mode, (width, height), np.ascontiguousarray(part), "raw", mode, 0, 1
    )
    # Within the picture, which Pillow insists on: float64 may miss its edge by a hair.
    box = (box[0], box[1], min(box[2], width), min(box[3], height))
    return np.asarray(picture.resize((size[0], size[1]), _PILLOW[interpolation], box))


def _by_matrices(part: Array, box: Any, shape: Sequence[int], interpolation: str) -> Array:
    """Do what Pillow does, for any dtype and number of channels, in float64 and rounded once."""
    x, y, right, bottom = box
    down = filter_matrix(y, bottom - y, shape[0], part.shape[0], interpolation)
    across = filter_matrix(x, right - x, shape[1], part.shape[1], interpolation)
    found: Array = np.einsum("hy,yx...->hx...", down, np.einsum("wx,yx...->yw...", across, part))
    if part.dtype.kind not in "iu":
        return found.astype(part.dtype)
    limits = np.iinfo(part.dtype)
    rounded: Array = np.rint(found).clip(limits.min, limits.max).astype(part.dtype)
    return rounded


def filter_matrix(
    start: float, extent: float, size: int, length: int, interpolation: str
) -> Floats:
    """Return the weight of each of ``length`` pixels in each of ``size`` results: ``(size, length)``, rows sum to 1."""
    scale = extent / size
    centres = start + (np.arange(size) + 0.5) * scale
    at = (np.arange(length) - centres[:, None] + 0.5) * (1 / max(scale, 1.0))
    weights: Floats = filter_weights(at, interpolation)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def filter_weights(at: Any, interpolation: str, cubic: float = _CUBIC) -> Any:
    """Return a filter's weights, not normalized, at distances from its centre; of an array or a tensor of floats."""
    if interpolation == "area":
        return ((at > -0.5) & (at <= 0.5)) + 0 * at
    x = abs(at)
    if interpolation == "bilinear":
        return (1 - x).clip(min=0)
    near = ((cubic + 2) * x - (cubic + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * cubic
    return near * (x < 1) + far * ((x >= 1) & (x < 2))
