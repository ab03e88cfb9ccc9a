"""Crops, resizes and flips: how each moves a ``Window``, and how many random numbers it takes.

Names, arguments and distributions are those of torchvision (``torchvision/transforms/transforms.py``). The random
numbers are not: here they are a function of the sample, not of a process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from loaders.augment.geometry import Op, SizedBySample, between, pick
from loaders.augment.resampling import PADDING_MODES, Fill, check_shared
from loaders.checks import one_of, real_number, shown, whole_number
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Floats, Ints, Window

Size = int | tuple[int, int]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Interpolation = Literal["bilinear", "bicubic", "area", "nearest"]
Lengths = int | tuple[int, ...]  # of a crop: one for all axes, or one for each


def _is_length(value: Any) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and int(value) > 0


def each_of(value: Any) -> tuple[Any, ...]:
    """Return the values of a list or tuple; of one value, that twice: for both axes, or both ends of a range."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _pair(size: Size) -> tuple[int, int]:
    """Read a size as (height, width); one int is a square."""
    pair = each_of(size)
    if len(pair) != 2 or not all(_is_length(side) for side in pair):
        raise ValueError(f"size must be a positive int or (height, width), got {size!r}")
    return int(pair[0]), int(pair[1])


class Crop(Op):
    """A crop to a size; one int stands for all axes."""

    __slots__ = ()

    size: Lengths
    _fits_all: bool

    def _set_size(self) -> None:
        size: Any = self.size
        lengths = each_of(size)
        if not lengths or not all(_is_length(length) for length in lengths):
            raise ValueError(
                f"size must be a positive int or one for each axis (height, width), got {size!r}"
            )
        object.__setattr__(self, "size", tuple(int(length) for length in lengths))
        object.__setattr__(self, "_fits_all", not isinstance(size, (tuple, list)))

    def lengths(self, num_axes: int) -> tuple[int, ...]:
        """Return the size for samples of so many axes; BatchError if it was given for another number of them."""
        assert isinstance(self.size, tuple)
        if len(self.size) != num_axes and not self._fits_all:
            raise BatchError(
                f"{self} crops {len(self.size)} axes, the samples have {num_axes} (Array(spatial=...) says how many)"
            )
        return self.size if len(self.size) == num_axes else self.size[:1] * num_axes

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int]:
        height, width = self.lengths(2)
        return height, width


def check_range(name: str, values: Any, *, at_least: float = 0) -> tuple[float, float]:
    """Check a pair (low, high) of numbers above 0, and return it."""
    what = (
        f"{name} must be (low, high) with {f'{at_least:g} <=' if at_least else '0 <'} low <= high"
    )
    if not isinstance(values, (tuple, list)) or len(values) != 2:
        raise ValueError(f"{what}, got {values!r}")
    low, high = (real_number(f"{name}[{i}]", value) for i, value in enumerate(values))
    if not (0 < low <= high < math.inf and low >= at_least):
        raise ValueError(f"{what}, got {values!r}")
    return low, high


def fitted(sizes: Ints, length: Any, max_size: int | None) -> Ints:
    """Scale sizes to a shorter side of ``length``, or to a longer side of ``max_size`` where that is smaller."""
    short, long = sizes.min(axis=1, keepdims=True), sizes.max(axis=1, keepdims=True)
    found: Ints = sizes * length // short
    if max_size is None:
        return found
    is_long = found.max(axis=1, keepdims=True) > max_size
    return np.where(is_long, np.maximum(sizes * max_size // long, 1), found)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Op):
    """Crop a random area with a random aspect ratio and resize it: the usual training crop.

    The area is uniform in ``scale``, the aspect ratio (width / height) log-uniform in ``ratio``. Ten pairs are drawn;
    the first crop that fits is placed at random. If none fits, the largest central crop in range is taken.

    Args:
        size: Output size in pixels: an int for a square, or (height, width).
        scale: (low, high): the crop's area as a fraction of the image's.
        ratio: (low, high): the crop's aspect ratio, width / height.
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, a size is not positive, or a range is not ``0 < low <= high``.

    Source:
        ``RandomResizedCrop.get_params`` of torchvision; Szegedy et al., "Going deeper with
        convolutions", CVPR 2015.

    Example:
        >>> RandomResizedCrop(224, scale=(0, 1))
        Traceback (most recent call last):
        ValueError: scale must be (low, high) with 0 < low <= high, got (0, 1)
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    num_tries: ClassVar[int] = 10
    num_draws: ClassVar[int] = 2 * num_tries + 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size))
        object.__setattr__(self, "scale", check_range("scale", self.scale))
        object.__setattr__(self, "ratio", check_range("ratio", self.ratio))
        check_shared(self)

    def move(self, window: Window, draws: Floats) -> None:
        extent, found = self._try(window.size, draws[:, :-2])
        missed = np.flatnonzero(~found)
        if len(missed):  # rare, and each of these calls takes microseconds, however few the rows
            extent[missed] = self._fallback(window.size[missed])
        room = window.size - extent
        corner = pick(draws[:, -2:], room + 1)
        if len(missed):
            corner[missed] = room[missed] // 2
        window.crop(corner, extent)
        window.resize(np.array(self.size))

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return _pair(self.size)

    def _try(self, size: Ints, draws: Floats) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Find the first try that fits: its extent (N, 2), and whether there is one (N,)."""
        areas, ratios = draws[:, : self.num_tries], draws[:, self.num_tries :]
        area = between(self.scale, areas) * size.prod(axis=1, keepdims=True)
        ratio = np.exp(between([math.log(each) for each in self.ratio], ratios))
        height, width = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
        fits = (height > 0) & (height <= size[:, :1]) & (width > 0) & (width <= size[:, 1:])
        rows, first = np.arange(len(size)), fits.argmax(axis=1)
        extent = np.stack([height[rows, first], width[rows, first]], axis=1)
        return extent.astype(np.int64), fits[rows, first]

    def _fallback(self, size: Ints) -> Ints:
        """Find the largest extent whose ratio is in range."""
        height, width = size[:, 0], size[:, 1]
        low, high = self.ratio
        tall, wide = width / height < low, width / height > high
        height, width = (
            np.where(tall, np.rint(width / low), height),
            np.where(wide, np.rint(height * high), width),
        )
        # At least a pixel, for ratios that no whole number of pixels meets.
        return np.maximum(np.stack([height, width], axis=1).astype(np.int64), 1)


@dataclass(frozen=True, slots=True)
class RandomCrop(Crop):
    """Crop at a random position, optionally after padding.

    ``RandomCrop(32, padding=4)`` is the usual recipe for CIFAR; ``RandomCrop((32, 64, 64))`` and ``RandomCrop(64)``
    crop volumes.

    Args:
        size: Crop size in pixels: an int (a square or a cube), (height, width), or one length per spatial axis.
        padding: Pixels to pad on every side.
        pad_if_needed: Pad both sides of an axis that is still shorter than the crop, by what is missing. Without it
            such an image is an error.
        fill_mask: Padding value of ``Mask`` fields, for example the 255 that the loss ignores; None: that of other
            ops, or 0. Masks of volumes are ``Array`` fields, which are padded with zeros.
        foreground: Name of a ``Mask`` or ``Array`` field of labels, which need not be served: with probability ``p``
            the crop is centred on a random nonzero point of it, as far as the image's borders allow.
        p: Probability of that; all other crops, and those of samples without nonzero points, are placed at random.
        fill: Padding value of pixels: one number, or one per channel; None: that of other ops, or 0.
        padding_mode: ``"constant"`` pads with ``fill``; ``"edge"``, ``"reflect"`` and ``"symmetric"`` continue the
            image (and its masks), as in torchvision.

    Raises:
        ValueError: At construction, an invalid size or padding, or ``p`` outside [0, 1].
        TypeError: At construction, ``fill_mask`` is not an int, or ``foreground`` not a str.
        BatchError: When samples are read, an image is smaller than the crop.

    Source:
        ``RandomCrop`` of torchvision.
    """

    size: Lengths
    padding: int = 0
    pad_if_needed: bool = False
    fill_mask: int | None = None
    foreground: str | None = None
    p: float = 0.5
    fill: Fill | None = field(default=None, kw_only=True)
    padding_mode: PaddingMode = field(default="constant", kw_only=True)
    _fits_all: bool = field(default=False, init=False, repr=False, compare=False)

    num_draws: ClassVar[int] = 2
    per_axis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._set_size()
        if self.padding != 0 and not _is_length(self.padding):
            raise ValueError(f"padding must be an int of at least 0, got {self.padding!r}")
        check_shared(self)
        one_of("padding_mode", self.padding_mode, PADDING_MODES)
        if not isinstance(self.foreground, str | None):
            raise TypeError(
                f"foreground must be the name of a field, got {shown(self.foreground)}"
            )

    def move(self, window: Window, draws: Floats) -> None:
        size = np.array(self.lengths(window.size.shape[1]), np.int64)
        padding = np.full(window.size.shape, int(self.padding))
        if self.pad_if_needed:
            padding += np.maximum(size - window.size - 2 * padding, 0)
        room = window.size + 2 * padding - size
        self._check(window, room)
        corner = pick(draws, room + 1) - padding
        if window.points is not None:
            at, is_inside = window.frame_points()
            around = np.clip(at - size // 2, -padding, room - padding)
            corner = np.where(is_inside[:, None], around, corner)
        window.crop(corner, size)

    def _check(self, window: Window, room: Ints) -> None:
        rows = np.flatnonzero((room < 0).any(axis=1))
        if len(rows):
            lengths = window.size[rows[0]].tolist()
            raise BatchError(
                f"sample {window.indices[rows[0]]} is {' x '.join(map(str, lengths))} pixels when it reaches {self}, "
                "which is larger: pass pad_if_needed=True, or put a Resize before it"
            )


@dataclass(frozen=True, slots=True)
class CenterCrop(Crop):
    """Crop the centre; an image smaller than the crop is padded with zeros.

    Args:
        size: Crop size in pixels: an int (a square or a cube), (height, width), or one length per spatial axis.
        fill_mask: Padding value of ``Mask`` fields, for example the 255 that the loss ignores; None: that of other
            ops, or 0.

    Raises:
        ValueError: At construction, an invalid size.
        TypeError: At construction, ``fill_mask`` is not an int.

    Source:
        ``center_crop`` of torchvision, with its rounding: half to even for the corner, and an odd missing pixel is
        padded at the end.
    """

    size: Lengths
    fill_mask: int | None = None
    _fits_all: bool = field(default=False, init=False, repr=False, compare=False)

    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._set_size()
        check_shared(self)

    def move(self, window: Window, draws: Floats) -> None:
        size = np.array(self.lengths(window.size.shape[1]), np.int64)
        room = window.size - size
        corner = np.where(room >= 0, np.rint(room / 2), -(-room // 2))
        window.crop(corner.astype(np.int64), size)


@dataclass(frozen=True, slots=True)
class Resize(Op):
    """Resize the shorter side to a length, keeping the aspect ratio, or both sides to given lengths.

    Args:
        size: Length of the shorter side in pixels; or (height, width).
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"area"`` (mean of the pixels covered) or ``"nearest"``. Masks
            always use ``"nearest"``.
        max_size: Upper limit of the longer side, if ``size`` is one length: larger results are scaled down to it.
        antialias: True: Pillow's filters on sub-pixel boxes; about a millisecond per image of 224 x 224. False: fast,
            on boxes of whole pixels: interpolated without a filter, or averaged over areas where both sides shrink
            by more than 2 and ``interpolation`` is ``"bilinear"``. None: True if no op of the list draws at random.
        pad: Letterbox: fit the whole image into ``size``, a pair, keeping its aspect ratio, and pad the rest.
        fill: Padding value of pixels: one number, or one per channel; None: that of other ops, or 0.
        fill_mask: Padding value of ``Mask`` fields; None: that of other ops, or 0.

    Raises:
        ValueError: At construction, an invalid size, or an unknown interpolation.
        TypeError: At construction, an argument of the wrong type.

    Source:
        ``resize`` of torchvision: the longer side is rounded down. In a letterbox the padded side is rounded to the
        nearest pixel, and an odd pixel of padding goes to the end.
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool | None = None
    pad: bool = field(default=False, kw_only=True)
    fill: Fill | None = field(default=None, kw_only=True)
    fill_mask: int | None = field(default=None, kw_only=True)

    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        pair = _pair(self.size)
        keeps_ratio = not isinstance(self.size, (tuple, list)) and not self.pad
        object.__setattr__(self, "size", pair[0] if keeps_ratio else pair)
        check_shared(self)
        if self.max_size is not None:
            whole_number("max_size", self.max_size, at_least=1)
            if not keeps_ratio or self.max_size <= pair[0]:
                raise ValueError(
                    f"max_size must be larger than size, one length, got {self.max_size} and {self.size!r}"
                )

    def move(self, window: Window, draws: Floats) -> None:
        if isinstance(self.size, int):
            window.resize(fitted(window.size, self.size, self.max_size))
        elif self.pad:
            whole = np.array(self.size)
            scale = (whole / window.size).min(axis=1, keepdims=True)
            inner = np.clip(np.rint(window.size * scale), 1, whole).astype(np.int64)
            window.resize(inner)
            window.crop(-((whole - inner) // 2), whole)
        else:
            window.resize(np.array(self.size))

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if not isinstance(self.size, int):
            return self.size
        if size is None:
            return None
        height, width = fitted(np.array([size]), self.size, self.max_size)[0].tolist()
        return height, width


@dataclass(frozen=True, slots=True)
class RandomResize(SizedBySample):
    """Resize the shorter side to a random length, keeping the aspect ratio: scale jitter before a crop.

    Args:
        min_size: Smallest length of the shorter side, in pixels.
        max_size: Largest length plus one (exclusive).
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, not ``1 <= min_size < max_size``.

    Source:
        ``RandomResize`` of torchvision.
    """

    min_size: int
    max_size: int
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        low = whole_number("min_size", self.min_size, at_least=1)
        whole_number("max_size", self.max_size, at_least=low + 1)
        check_shared(self)

    def move(self, window: Window, draws: Floats) -> None:
        length = self.min_size + pick(draws, self.max_size - self.min_size)
        window.resize(fitted(window.size, length, None))


@dataclass(frozen=True, slots=True)
class RandomShortestSize(SizedBySample):
    """Resize the shorter side to one of several lengths, the longer side at most to ``max_size``: for detection.

    Args:
        min_size: Lengths of the shorter side in pixels to choose from, or one length.
        max_size: Upper limit of the longer side; None: no limit.
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, a length is below 1, or there is none.

    Source:
        ``RandomShortestSize`` of torchvision.
    """

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        given: Any = self.min_size
        lengths = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        for length in (*lengths, 1 if self.max_size is None else self.max_size):
            whole_number("min_size and max_size", length, at_least=1)
        if not lengths:
            raise ValueError("min_size must have at least one length, got none")
        object.__setattr__(self, "min_size", lengths)
        check_shared(self)

    def move(self, window: Window, draws: Floats) -> None:
        lengths = np.array(self.min_size)
        chosen = lengths[pick(draws, len(lengths))]
        window.resize(fitted(window.size, chosen, self.max_size))


@dataclass(frozen=True, slots=True)
class ScaleJitter(SizedBySample):
    """Fit the image into ``target_size`` times a random scale, keeping the aspect ratio; follow it by a crop or pad.

    Args:
        target_size: (height, width) in pixels at scale 1.
        scale_range: (low, high) of the scale.
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, an invalid size or range.

    Source:
        ``ScaleJitter`` of torchvision, which takes ``target_size`` as (width, height); its recipes use squares.
    """

    target_size: tuple[int, int]
    scale_range: tuple[float, float] = (0.1, 2.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_size", _pair(self.target_size))
        object.__setattr__(self, "scale_range", check_range("scale_range", self.scale_range))
        check_shared(self)

    def move(self, window: Window, draws: Floats) -> None:
        fit = (np.array(self.target_size) / window.size).min(axis=1, keepdims=True)
        sides = window.size * fit * between(self.scale_range, draws)
        window.resize(np.maximum(sides.astype(np.int64), 1))


@dataclass(frozen=True, slots=True)
class _RandomMirror(Op):
    """Mirror with probability ``p``."""

    p: float = 0.5

    num_draws: ClassVar[int] = 1
    axis: ClassVar[int]

    def __post_init__(self) -> None:
        check_shared(self)

    def move(self, window: Window, draws: Floats) -> None:
        if window.size.shape[1] < -self.axis:
            raise BatchError(f"{self} needs {-self.axis} spatial axes, the samples have one")
        window.mirror(self.axis, draws[:, 0] < self.p)


class RandomHorizontalFlip(_RandomMirror):
    """Flip left and right (the last axis) with probability ``p``, from 0 to 1."""

    __slots__ = ()
    axis = -1


class RandomVerticalFlip(_RandomMirror):
    """Flip upside down (the second-to-last axis) with probability ``p``, from 0 to 1."""

    __slots__ = ()
    axis = -2


@dataclass(frozen=True, slots=True)
class RandomFlip(Op):
    """Flip each spatial axis independently with probability ``p``.

    Args:
        p: Probability, from 0 to 1.
        axes: Axes that may be flipped: 0 is the first spatial axis, -1 the last; None for all.

    Raises:
        ValueError: At construction, ``p`` is outside [0, 1] or an axis is not an int.
        BatchError: When samples are read, the samples have no such axis.
    """

    p: float = 0.5
    axes: tuple[int, ...] | None = None

    num_draws: ClassVar[int] = 2
    per_axis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shared(self)
        axes: Any = self.axes
        if axes is None:
            return
        if not isinstance(axes, (tuple, list)) or not all(type(axis) is int for axis in axes):
            raise ValueError(f"axes must be a list of ints, got {axes!r}")
        object.__setattr__(self, "axes", tuple(axes))

    def move(self, window: Window, draws: Floats) -> None:
        num_axes = window.size.shape[1]
        axes = range(num_axes) if self.axes is None else self.axes
        if any(not -num_axes <= axis < num_axes for axis in axes):
            raise BatchError(
                f"{self} names an axis that samples with {num_axes} spatial axes do not have"
            )
        for axis in dict.fromkeys(axis % num_axes for axis in axes):
            window.mirror(axis, draws[:, axis] < self.p)
