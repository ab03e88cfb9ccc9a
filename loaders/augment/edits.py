"""Pixel ops as data: which kernels run on each sample, with which numbers, and the CPU kernels themselves.

Every pixel op becomes *edits*: per sample S kernel numbers, each with ``NUM_VALUES`` parameters (``Edits``). They are
drawn for a whole batch at once, and carried out here sample by sample (``edit``, in place, on worker threads), or
batched on a device (``loaders.device.edits``).

Kernels that map each value of a channel on its own are tables of 256 entries.

Source: values are those of ``torchvision.transforms.v2.functional`` on uint8 tensors, its truncations included.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np

from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Floats = npt.NDArray[np.float64]
    Table = npt.NDArray[np.uint8]
    Values = Sequence[float]

NUM_VALUES = 12  # of an edit: what a warp needs
# Torchvision's: they sum to 0.9999, so that gray becomes darker by one.
GRAY = (0.2989, 0.587, 0.114)
_LEVELS = np.arange(256)
# Added before rounding, it truncates, as torch does, but for results just below a whole number (float32 errors).
_CUT = -0.5 + 2.0**-10
_SHARPEN = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_FLAGS = {0: cv2.INTER_NEAREST, 1: cv2.INTER_LINEAR}


class Kind(IntEnum):
    """The kernels; the comments say what the values of an edit are."""

    NONE = 0
    BRIGHTNESS = 1  # factor
    CONTRAST = 2  # factor
    SATURATION = 3  # factor
    HUE = 4  # shift, in turns
    GRAYSCALE = 5
    BLUR = 6  # sigma; width and height of the kernel
    SOLARIZE = 7  # threshold
    POSTERIZE = 8  # bits
    INVERT = 9
    AUTOCONTRAST = 10
    EQUALIZE = 11
    SHARPNESS = 12  # factor
    ERASE = 13  # y, x, height, width; 1 for noise; the seed of it, or the value of each channel
    # 2 x 3 of the matrix from result to source; 1 for bilinear; the fill of each channel
    WARP = 14
    KEEP = 15  # weight of the original image, from which several chains of edits start
    MIX = 16  # weight of the chain that ends here; 1 if it is the last one


class Edits(NamedTuple):
    """The edits of N samples, in order."""

    kinds: npt.NDArray[np.int64]  # ``(N, S)``, of ``Kind``
    values: Floats  # ``(N, S, NUM_VALUES)``

    @staticmethod
    def of(kind: Any, *values: Any) -> Edits:
        """Return one edit per sample, from arrays ``(N,)``, or numbers that hold for all."""
        columns = np.broadcast_arrays(kind, *values) if values else [np.atleast_1d(kind)]
        found = np.zeros((len(columns[0]), 1, NUM_VALUES))
        for i, column in enumerate(columns[1:]):
            found[:, 0, i] = column
        return Edits(np.asarray(columns[0], np.int64)[:, None].copy(), found)

    def where(self, is_done: npt.NDArray[np.bool_]) -> Edits:
        """Return the edits of the samples where ``is_done`` ``(N,)``, and none for the rest."""
        return self._replace(kinds=self.kinds * is_done[:, None])

    @staticmethod
    def joined(parts: Sequence[Edits]) -> Edits:
        """Concatenate edits of the same samples, in order."""
        return Edits(
            np.concatenate([part.kinds for part in parts], axis=1),
            np.concatenate([part.values for part in parts], axis=1),
        )


def edit(image: Array, kinds: Sequence[int], values: Sequence[Values]) -> None:
    """Carry out the edits of a sample, rows of ``Edits`` as plain numbers, on uint8 ``(H, W, 1 or 3)``, in place."""
    if image.ndim != 3 or image.shape[2] not in (1, 3) or image.dtype != np.uint8:
        raise BatchError(
            f"pixel ops take uint8 images (H, W, 1 or 3), got {image.dtype} {image.shape}"
        )
    kept = total = image
    for kind, value in zip(kinds, values, strict=True):
        if kind == Kind.NONE:
            continue
        if kind == Kind.KEEP:
            kept, total = image.copy(), image * np.float32(value[0])
        elif kind == Kind.MIX:
            total += image * np.float32(value[0])
            image[...] = total if value[1] else kept  # cut off, not rounded
        elif kind in _TABLES:  # (256,), or (C, 256) with one row per channel
            table, flat = _TABLES[kind](image, value), _flat(image)
            if table.ndim == 2:
                table = table[0] if len(table) == 1 else np.ascontiguousarray(table.T)[None]
            cv2.LUT(flat, table, flat)
        else:
            _KERNELS[kind](image, value)


def _flat(image: Array) -> Array:
    """Return an image of one channel as ``(H, W)``, as OpenCV takes it."""
    return image[..., 0] if image.shape[2] == 1 else image


def _cut(values: Array) -> Table:
    """Clip to 0..255 and truncate to uint8."""
    return np.clip(values, 0, 255).astype(np.uint8)


# -- tables ----------------------------------------------------------------------------------------


def _brightness(image: Array, value: Values) -> Table:
    return _cut(_LEVELS.astype(np.float32) * np.float32(value[0]))


def _solarize(image: Array, value: Values) -> Table:
    return np.where(value[0] <= _LEVELS, 255 - _LEVELS, _LEVELS).astype(np.uint8)


def _posterize(image: Array, value: Values) -> Table:
    bits = int(value[0])
    return (_LEVELS & (((1 << bits) - 1) << (8 - bits))).astype(np.uint8)


def _invert(image: Array, value: Values) -> Table:
    return (255 - _LEVELS).astype(np.uint8)


def _contrast(image: Array, value: Values) -> Table:
    """Blend with the mean of the grayscale image, one number."""
    factor = np.float32(value[0])
    mean = np.float32(cv2.mean(_gray(image))[0])
    return _cut(_LEVELS.astype(np.float32) * factor + mean * (np.float32(1) - factor))


def _autocontrast(image: Array, value: Values) -> Table:
    """Stretch each channel to the full range; a constant channel stays."""
    is_there = _histograms(image) > 0
    low, high = is_there.argmax(axis=1), 255 - is_there[:, ::-1].argmax(axis=1)
    is_flat = low == high
    low = np.where(is_flat, 0, low).astype(np.float32)[:, None]
    scale = np.where(is_flat, np.float32(1), (high - low[:, 0]) * np.float32(1 / 255))
    return _cut((_LEVELS.astype(np.float32) - low) / scale[:, None].astype(np.float32))


def _equalize(image: Array, value: Values) -> Table:
    """Equalize the histogram of each channel; a constant channel stays."""
    counts = _histograms(image).astype(np.int64)
    last = 255 - (counts[:, ::-1] > 0).argmax(axis=1)
    rest = counts.sum(axis=1) - counts[np.arange(len(counts)), last]
    step = (rest // 255)[:, None]
    below = np.concatenate([np.zeros_like(step), counts.cumsum(axis=1)[:, :-1]], axis=1)
    table = np.clip((below + step // 2) // np.maximum(step, 1), 0, 255)
    return np.where(step > 0, table, _LEVELS).astype(np.uint8)


def _histograms(image: Array) -> Array:
    """Return the histogram of each channel, ``(C, 256)``."""
    channels = range(image.shape[2])
    return np.stack([cv2.calcHist([image], [c], None, [256], [0, 256]).ravel() for c in channels])


# -- kernels ---------------------------------------------------------------------------------------


def _gray(image: Array) -> Array:
    """Return the grayscale image ``(H, W)``, truncated to uint8."""
    if image.shape[2] == 1:
        return image[..., 0]
    return cv2.transform(image, np.array([[*GRAY, _CUT]], np.float32)).reshape(image.shape[:2])


def _grayscale(image: Array, value: Values) -> None:
    if image.shape[2] == 3:
        cv2.cvtColor(_gray(image), cv2.COLOR_GRAY2RGB, image)


def _saturation(image: Array, value: Values) -> None:
    if image.shape[2] == 3:
        gray = cv2.cvtColor(_gray(image), cv2.COLOR_GRAY2RGB)
        cv2.addWeighted(image, value[0], gray, 1 - value[0], _CUT, image)


def _hue(image: Array, value: Values) -> None:
    if image.shape[2] == 1:
        return
    colours = np.multiply(image, np.float32(1 / 255), dtype=np.float32)
    cv2.cvtColor(colours, cv2.COLOR_RGB2HSV, colours)
    colours[..., 0] += np.float32(360 * (value[0] % 1))
    cv2.cvtColor(colours, cv2.COLOR_HSV2RGB, colours)
    cv2.convertScaleAbs(colours, image, 255.999, _CUT)


def _blur(image: Array, value: Values) -> None:
    sigma, width, height = value[:3]
    flat = _flat(image)
    across, down = (cv2.getGaussianKernel(int(n), sigma, cv2.CV_32F) for n in (width, height))
    # In float32: OpenCV's own kernels for bytes have 8 bits.
    blurred = cv2.sepFilter2D(flat, cv2.CV_32F, across, down, borderType=cv2.BORDER_REFLECT_101)
    cv2.convertScaleAbs(blurred, flat)


def _sharpness(image: Array, value: Values) -> None:
    if min(image.shape[:2]) <= 2:
        return
    flat = _flat(image)
    smooth = cv2.filter2D(flat, -1, _SHARPEN)[1:-1, 1:-1]
    inner = flat[1:-1, 1:-1]
    inner[...] = cv2.addWeighted(inner, value[0], smooth, 1 - value[0], _CUT)


def _erase(image: Array, value: Values) -> None:
    y, x, height, width, is_noise = map(int, value[:5])
    part = image[y : y + height, x : x + width]
    part[...] = noise(int(value[5]), part.shape) if is_noise else value[5 : 5 + image.shape[2]]


def noise(seed: int, shape: Sequence[int]) -> Table:
    """Return uniform noise ``(H, W, C)`` uint8: a hash of position and seed; the seed is below 2**24 to fit float32."""
    height, width, channels = shape
    at = np.arange(height * width * channels, dtype=np.int64).reshape(height, width, channels)
    found: Table = hashed(at, seed).astype(np.uint8)
    return found


def hashed(at: Any, seed: Any) -> Any:
    """Hash int64 numbers below 2**31, an array or a tensor, to 8 bits; numpy and torch give the same.

    Source: the multipliers of "lowbias32" (Wellons, "Prospecting for Hash Functions", 2018).
    """
    x = (at * 0x9E3779B1 + seed) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return (x ^ (x >> 15)) & 0xFF


def _warp(image: Array, value: Values) -> None:
    """Resample by the matrix from pixels of the result to those of the image; outside is the fill value."""
    height, width, channels = image.shape
    matrix = np.array(value[:6]).reshape(2, 3)
    # Our coordinates count from pixel corners, those of OpenCV from pixel centres.
    matrix[:, 2] += matrix[:, :2].sum(axis=1) / 2 - 0.5
    flags = _FLAGS[int(value[6])] | cv2.WARP_INVERSE_MAP
    fill = value[7 : 7 + channels]
    flat, target, border = _flat(image.copy()), _flat(image), cv2.BORDER_CONSTANT
    cv2.warpAffine(flat, matrix, (width, height), target, flags, border, tuple(fill))


_TABLES: dict[int, Callable[[Array, Values], Table]] = {
    Kind.BRIGHTNESS: _brightness,
    Kind.SOLARIZE: _solarize,
    Kind.POSTERIZE: _posterize,
    Kind.INVERT: _invert,
    Kind.CONTRAST: _contrast,
    Kind.AUTOCONTRAST: _autocontrast,
    Kind.EQUALIZE: _equalize,
}
_KERNELS: dict[int, Callable[[Array, Values], None]] = {
    Kind.SATURATION: _saturation,
    Kind.HUE: _hue,
    Kind.GRAYSCALE: _grayscale,
    Kind.BLUR: _blur,
    Kind.SHARPNESS: _sharpness,
    Kind.ERASE: _erase,
    Kind.WARP: _warp,
}
