"""Filtered resampling, as Pillow does it for sub-pixel boxes: what torchvision's weights were trained on.

A ``Resampling`` says how a list of ops resamples. *Filtered*: each output pixel is a weighted mean of the source
pixels that it covers, the filter growing with the shrink factor, and the box is not rounded to whole pixels.
Otherwise the fast way of ``loaders.augment.pixels``.

Source: the filters and their weights are those of Pillow (``src/libImaging/Resample.c``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from loaders.checks import one_of, real_number, whole_number

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
_EDGE = 1e-6  # pixels: tolerance for float64 errors


@dataclass(frozen=True, slots=True)
class Resampling:
    """How images are resampled."""

    interpolation: str = "bilinear"  # one of ``INTERPOLATIONS``
    is_filtered: bool = False  # by Pillow's filters, on sub-pixel boxes
    padding_mode: str = "constant"  # as in ``RandomCrop``
    warp: str = "bilinear"  # of rotated, sheared, ... images: ``"nearest"`` if all ops that resample say so


FAST = Resampling()


def check_shared(op: Any) -> None:
    """Check the arguments that many ops have, by their names; a fill value becomes a number or a tuple."""
    if hasattr(op, "interpolation"):
        choices = INTERPOLATIONS if hasattr(op, "antialias") else ("nearest", "bilinear")
        one_of("interpolation", op.interpolation, choices)
    one_of("antialias", getattr(op, "antialias", None), (True, False, None))
    fill: Any = getattr(op, "fill", None)
    if isinstance(fill, (tuple, list)):
        numbers = tuple(real_number(f"fill[{i}]", each) for i, each in enumerate(fill))
        object.__setattr__(op, "fill", numbers)
    elif fill is not None:
        real_number("fill", fill)
    if getattr(op, "fill_mask", None) is not None:
        whole_number("fill_mask", op.fill_mask)
    if hasattr(op, "p"):
        real_number("p", op.p, at_least=0, at_most=1)


def source_positions(positions: Any, length: int, mode: str) -> Any:
    """Map positions on an axis that may be outside the image to pixels of it; an array or tensor of integers.

    Source: ``pad`` of torchvision: ``"reflect"`` does not repeat the edge, ``"symmetric"`` does.
    """
    if mode == "edge" or length == 1:
        return positions.clip(0, length - 1)
    if mode == "symmetric":
        at = positions % (2 * length)
        return at - (at >= length) * (2 * (at - length) + 1)
    at = positions % (2 * length - 2)
    return at - (at >= length) * 2 * (at - length + 1)


def image_span(start: Any, extent: Any, size: int, length: int) -> tuple[Any, Any]:
    """Return where the image begins and ends on an axis, in pixels of the result; of numbers, arrays or tensors."""
    return -start * size / extent, (length - start) * size / extent


def inner_span(start: float, extent: float, size: int, length: int) -> tuple[int, int]:
    """Return the range [first, last) of output pixels of an axis that lie on the image."""
    first, last = (min(max(round(at), 0), size) for at in image_span(start, extent, size, length))
    return first, max(first, last)


def is_between_pixels(start: Any, extent: Any, size: int, length: int) -> Any:
    """Return whether an edge of the image falls inside an output pixel, which then mixes image and padding.

    That is so if it was padded first and then resized; if it was resized first, its edges fall between output pixels.
    Takes numbers, arrays or tensors.
    """
    first, last = image_span(start, extent, size, length)
    return ((start < 0) & (abs(first - (first + 0.5) // 1) > _EDGE)) | (
        (start + extent > length + _EDGE) & (abs(last - (last + 0.5) // 1) > _EDGE)
    )


def resample(
    image: Array,  # ``(H, W, C)`` or ``(H, W)``, of integers or floats
    region: Sequence[float],  # y, x, height, width of the box in pixels; it may reach outside
    flip: Sequence[bool],  # vertical, horizontal
    out: Array,  # of the result's shape and dtype; must not overlap the image
    *,
    interpolation: str,  # ``"bilinear"``, ``"bicubic"`` or ``"area"``
    fill: Fill = 0,  # value outside the image
) -> Array:
    """Resample a box of an image with one of Pillow's filters into ``out``, and return it."""
    target = out[:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]
    spans = [inner_span(region[i], region[i + 2], out.shape[i], image.shape[i]) for i in (0, 1)]
    (top, bottom), (left, right) = spans
    if (top, left, bottom, right) != (0, 0, *out.shape[:2]):
        target[...] = fill
        if top == bottom or left == right:
            return out
    (y, height, rows), (x, width, columns) = (
        _needed(region[i], region[i + 2] / out.shape[i], spans[i], image.shape[i], interpolation)
        for i in (0, 1)
    )
    part, box = image[rows, columns], (x, y, x + width, y + height)
    inner = target[top:bottom, left:right]
    mode = _MODES.get(part.shape[2] if part.ndim == 3 else 1)
    if part.dtype == np.uint8 and mode is not None:
        done = _by_pillow(part, mode, box, inner.shape[1::-1], interpolation)
        inner[...] = done.reshape(inner.shape)
    else:
        inner[...] = _by_matrices(part, box, inner.shape, interpolation)
    return out


def _needed(
    start: float, scale: float, span: tuple[int, int], length: int, interpolation: str
) -> tuple[float, float, slice]:
    """Return start and extent in source pixels of the part of an axis that lies on the image, and what a filter reads.

    That is a slice of the source, from which start counts.
    """
    first, last = span
    begin = max(start + first * scale, 0.0)
    extent = min(start + last * scale, float(length)) - begin
    margin = margin_of(interpolation, extent / (last - first))
    read = max(math.floor(begin - margin), 0)
    return begin - read, extent, slice(read, min(math.ceil(begin + extent + margin), length))


def margin_of(interpolation: str, scale: Any) -> Any:
    """Return how many pixels beyond a box a filter reads at a shrink factor, a number or an array."""
    return np.ceil(SUPPORT[interpolation] * np.maximum(scale, 1)) + 1


def _by_pillow(part: Array, mode: str, box: Any, size: Sequence[int], interpolation: str) -> Array:
    height, width = part.shape[:2]
    picture = Image.frombuffer(
        mode, (width, height), np.ascontiguousarray(part), "raw", mode, 0, 1
    )
    # Pillow rejects boxes outside the image, and float64 errors may put an edge just outside.
    box = (box[0], box[1], min(box[2], width), min(box[3], height))
    return np.asarray(picture.resize((size[0], size[1]), _PILLOW[interpolation], box))


def _by_matrices(part: Array, box: Any, shape: Sequence[int], interpolation: str) -> Array:
    """Resample as Pillow does, for any dtype and number of channels, in float64 and rounded once."""
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
    """Return the weights of ``length`` source pixels in ``size`` output pixels: ``(size, length)``, rows sum to 1."""
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
