"""The ops: what each one does to a window, and which random numbers it takes for that.

Names, arguments and distributions are torchvision's (``torchvision/transforms/transforms.py``);
the random numbers are not, since here they belong to the sample and not to a process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from loaders.augment.geometry import Op, SizedBySample, between, pick
from loaders.augment.resampling import INTERPOLATIONS, PADDING_MODES, Fill, as_fill
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


def _pair(size: Size) -> tuple[int, int]:
    """Read a size as (height, width); one int is a square."""
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(_is_length(side) for side in pair):
        raise ValueError(f"size must be a positive int or (height, width), got {size!r}")
    return int(pair[0]), int(pair[1])


def _array(size: Size) -> Ints:
    return np.array(_pair(size), np.int64)


def _set_lengths(op: RandomCrop | CenterCrop) -> None:
    """Read a crop's size: one int is a square, or a cube, or a line."""
    size: Any = op.size
    is_one = not isinstance(size, (tuple, list))
    lengths = (size, size) if is_one else tuple(size)
    if not lengths or not all(_is_length(length) for length in lengths):
        raise ValueError(
            f"size must be a positive int or one for each axis (height, width), got {size!r}"
        )
    object.__setattr__(op, "size", tuple(int(length) for length in lengths))
    object.__setattr__(op, "_fits_all", is_one)


_IF_CHANNELS = "; if the first axis is of channels, say so: Array(dtype=..., dims=..., spatial=2) in the schema"


def crop_lengths(op: RandomCrop | CenterCrop, num_axes: int) -> tuple[int, ...]:
    """Return the lengths of a crop of so many axes; BatchError if it is one of other axes."""
    assert isinstance(op.size, tuple)
    if len(op.size) == num_axes:
        return op.size
    if not op._fits_all:
        hint = _IF_CHANNELS if len(op.size) < num_axes else ""
        raise BatchError(f"{op} crops {len(op.size)} axes, the samples have {num_axes}{hint}")
    return op.size[:1] * num_axes


def _check_resampling(op: Any) -> None:
    one_of("interpolation", op.interpolation, INTERPOLATIONS)
    if not isinstance(op.antialias, bool | None):
        raise TypeError(f"antialias must be True, False or None, got {shown(op.antialias)}")


def _check_plane(op: object, window: Window) -> None:
    if window.size.shape[1] != 2:
        raise BatchError(
            f"{op} is for pictures; arrays of {window.size.shape[1]} axes are cropped and flipped"
        )


def check_range(name: str, values: Any, *, at_least: float = 0) -> tuple[float, float]:
    """Read (low, high) of numbers above 0."""
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
    """Return the sizes whose shorter side has a length, or whose longer one has ``max_size``."""
    short, long = sizes.min(axis=1, keepdims=True), sizes.max(axis=1, keepdims=True)
    found: Ints = sizes * length // short
    if max_size is None:
        return found
    is_long = found.max(axis=1, keepdims=True) > max_size
    return np.where(is_long, np.maximum(sizes * max_size // long, 1), found)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Op):
    """Crop a random area of a random aspect ratio and resize it: the usual training crop.

    The area is uniform in ``scale`` (a fraction of the image), the ratio (width by height)
    log-uniform in ``ratio``. Of ten tries the first that fits is placed uniformly; if none fits,
    the largest central crop whose ratio is in range is taken.

    Args:
        size: Of the result: a square's side, or (height, width).
        scale: Smallest and largest fraction of the image's area.
        ratio: Smallest and largest aspect ratio.
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, a size or range is not positive or not in order.

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
        _check_resampling(self)

    def move(self, window: Window, draws: Floats) -> None:
        _check_plane(self, window)
        extent, found = self._try(window.size, draws[:, :-2])
        missed = np.flatnonzero(~found)
        if len(missed):  # rare, and each of these calls takes microseconds, however few the rows
            extent[missed] = self._fallback(window.size[missed])
        room = window.size - extent
        corner = pick(draws[:, -2:], room + 1)
        if len(missed):
            corner[missed] = room[missed] // 2
        window.crop(corner, extent)
        window.resize(_array(self.size))

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
class RandomCrop(Op):
    """Crop at a random place, optionally from an image with a border of zeros.

    ``RandomCrop(32, padding=4)`` is the usual recipe for CIFAR, ``RandomCrop((32, 64, 64))`` or
    ``RandomCrop(64)`` one for volumes.

    Args:
        size: Of the crop: a square's (or cube's) side, (height, width), or one length for each
            spatial axis.
        padding: Pixels of zeros added on every side.
        pad_if_needed: Add zeros on both sides of an axis that is still shorter than the crop, by
            what is missing; otherwise such an image is an error.
        fill_mask: What ``Mask`` fields have there instead: the number that the loss ignores, often 255.
            Masks of volumes are arrays, and have zeros.
        foreground: A ``Mask`` or ``Array`` of labels, served or not: the crop is placed around one of its points
            that are not 0, each as probable as any other, and as far inside as a crop at random.
        p: The probability of that; other crops, and those of samples without such points, are placed at random.
        fill: What pixels have outside instead of zeros: one number, or one for each channel.
        padding_mode: What lies outside: ``"constant"`` is ``fill``; ``"edge"``, ``"reflect"`` and ``"symmetric"``
            repeat the image (and its masks), as in torchvision.

    Raises:
        ValueError: At construction, a size or padding that is none, or ``p`` is not a probability.
        TypeError: At construction, a ``fill_mask`` that is no whole number, or a ``foreground`` that is no name.
        BatchError: In ``plan``, an image is smaller than the crop.

    Source:
        ``RandomCrop`` of torchvision.
    """

    size: Lengths
    padding: int = 0
    pad_if_needed: bool = False
    fill_mask: int = 0
    foreground: str | None = None
    p: float = 0.5
    fill: Fill = field(default=0, kw_only=True)
    padding_mode: PaddingMode = field(default="constant", kw_only=True)
    _fits_all: bool = field(default=False, init=False, repr=False, compare=False)

    num_draws: ClassVar[int] = 2
    per_axis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _set_lengths(self)
        if self.padding != 0 and not _is_length(self.padding):
            raise ValueError(f"padding must be an int of at least 0, got {self.padding!r}")
        whole_number("fill_mask", self.fill_mask)
        object.__setattr__(self, "fill", as_fill(self.fill))
        one_of("padding_mode", self.padding_mode, PADDING_MODES)
        if not isinstance(self.foreground, str | None):
            raise TypeError(
                f"foreground must be the name of a field, got {shown(self.foreground)}"
            )
        real_number("p", self.p, at_least=0, at_most=1)

    def move(self, window: Window, draws: Floats) -> None:
        size = np.array(crop_lengths(self, window.size.shape[1]), np.int64)
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

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int]:
        height, width = crop_lengths(self, 2)
        return height, width

    def _check(self, window: Window, room: Ints) -> None:
        rows = np.flatnonzero((room < 0).any(axis=1))
        if len(rows):
            lengths = window.size[rows[0]].tolist()
            crop = crop_lengths(self, len(lengths))
            is_picture = len(lengths) == 2
            raise BatchError(
                f"sample {window.indices[rows[0]]} is {' x '.join(map(str, lengths))} pixels when "
                f"it reaches {self}, smaller than the crop of {' x '.join(map(str, crop))}; "
                f"pass pad_if_needed=True"
                f"{' or put a Resize before it' if is_picture else _IF_CHANNELS}"
            )


@dataclass(frozen=True, slots=True)
class CenterCrop(Op):
    """Crop the middle; where the image is smaller, zeros fill the sides.

    Args:
        size: Of the crop: a square's (or cube's) side, (height, width), or one length for each
            spatial axis.
        fill_mask: What ``Mask`` fields have there instead: the number that the loss ignores, often 255.

    Raises:
        ValueError: At construction, a size that is none.
        TypeError: At construction, a ``fill_mask`` that is no whole number.

    Source:
        ``center_crop`` of torchvision, whose rounding this is: half to even inside, and of an odd
        number of missing pixels the larger part behind.
    """

    size: Lengths
    fill_mask: int = 0
    _fits_all: bool = field(default=False, init=False, repr=False, compare=False)

    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _set_lengths(self)
        whole_number("fill_mask", self.fill_mask)

    def move(self, window: Window, draws: Floats) -> None:
        size = np.array(crop_lengths(self, window.size.shape[1]), np.int64)
        room = window.size - size
        corner = np.where(room >= 0, np.rint(room / 2), -(-room // 2))
        window.crop(corner.astype(np.int64), size)

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int]:
        height, width = crop_lengths(self, 2)
        return height, width


@dataclass(frozen=True, slots=True)
class Resize(Op):
    """Resize the shorter side to a length, keeping the aspect ratio, or both sides exactly.

    Args:
        size: The shorter side's length; or (height, width).
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"area"`` (means of what lies below) or ``"nearest"``. Masks are
            always ``"nearest"``.
        max_size: Of the longer side, where ``size`` is a length: pictures become smaller until it fits.
        antialias: True: filtered as Pillow does, at boxes that need not be whole pixels; about a millisecond for
            a picture of 224 pixels a side. False: the fast way, at boxes of whole pixels: between pixels, or, where
            both sides shrink by more than 2 and it is ``"bilinear"``, means of areas. None: True if nothing in the
            list of ops is drawn at random.
        pad: Fit the whole picture into ``size``, a pair, and keep its aspect ratio: the rest is filled (a letterbox).
        fill: What pixels have there: one number, or one for each channel.
        fill_mask: What ``Mask`` fields have there.

    Raises:
        ValueError: At construction, a size that is none, or an unknown interpolation.
        TypeError: At construction, an argument of the wrong type.

    Source:
        ``resize`` of torchvision: the longer side is rounded down. Of a letterbox the side that is shorter than
        ``size`` is rounded to the nearest, and padded on both sides, behind by the odd pixel.
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool | None = None
    pad: bool = field(default=False, kw_only=True)
    fill: Fill = field(default=0, kw_only=True)
    fill_mask: int = field(default=0, kw_only=True)

    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        pair = _pair(self.size)
        keeps_ratio = not isinstance(self.size, (tuple, list)) and not self.pad
        object.__setattr__(self, "size", pair[0] if keeps_ratio else pair)
        _check_resampling(self)
        whole_number("fill_mask", self.fill_mask)
        object.__setattr__(self, "fill", as_fill(self.fill))
        if self.max_size is not None:
            whole_number("max_size", self.max_size, at_least=1)
            if not keeps_ratio or self.max_size <= pair[0]:
                raise ValueError(
                    f"max_size must be larger than size, one length, got {self.max_size} and {self.size!r}"
                )

    def move(self, window: Window, draws: Floats) -> None:
        _check_plane(self, window)
        if isinstance(self.size, int):
            window.resize(fitted(window.size, self.size, self.max_size))
        elif self.pad:
            whole = np.array(self.size)
            scale = (whole / window.size).min(axis=1, keepdims=True)
            inner = np.clip(np.rint(window.size * scale), 1, whole).astype(np.int64)
            window.resize(inner)
            window.crop(-((whole - inner) // 2), whole)
        else:
            window.resize(_array(self.size))

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if not isinstance(self.size, int):
            return self.size
        if size is None:
            return None
        height, width = fitted(np.array([size]), self.size, self.max_size)[0].tolist()
        return height, width


@dataclass(frozen=True, slots=True)
class RandomResize(SizedBySample):
    """Resize the shorter side to a length drawn at random, keeping the aspect ratio: scale jitter before a crop.

    Args:
        min_size: Smallest length of the shorter side.
        max_size: One more than the largest.
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, the lengths are not in order.

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
        _check_resampling(self)

    def move(self, window: Window, draws: Floats) -> None:
        _check_plane(self, window)
        length = self.min_size + pick(draws, self.max_size - self.min_size)
        window.resize(fitted(window.size, length, None))


@dataclass(frozen=True, slots=True)
class RandomShortestSize(SizedBySample):
    """Resize the shorter side to one of some lengths, but the longer one to at most ``max_size``: for detection.

    Args:
        min_size: Lengths of the shorter side, or one.
        max_size: Most that the longer side may have; None: anything.
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, a length is none.

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
            raise ValueError("min_size names no length")
        object.__setattr__(self, "min_size", lengths)
        _check_resampling(self)

    def move(self, window: Window, draws: Floats) -> None:
        _check_plane(self, window)
        lengths = np.array(self.min_size)
        chosen = lengths[pick(draws, len(lengths))]
        window.resize(fitted(window.size, chosen, self.max_size))


@dataclass(frozen=True, slots=True)
class ScaleJitter(SizedBySample):
    """Fit the picture into ``target_size`` times a random number, keeping the aspect ratio. A crop or pad follows.

    Args:
        target_size: (height, width) at scale 1.
        scale_range: (low, high).
        interpolation: As in ``Resize``.
        antialias: As in ``Resize``.

    Raises:
        ValueError: At construction, a size or range is none.

    Source:
        ``ScaleJitter`` of torchvision, which takes the first of ``target_size`` for the width, though its recipes use
        squares.
    """

    target_size: tuple[int, int]
    scale_range: tuple[float, float] = (0.1, 2.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_size", _pair(self.target_size))
        object.__setattr__(self, "scale_range", check_range("scale_range", self.scale_range))
        _check_resampling(self)

    def move(self, window: Window, draws: Floats) -> None:
        _check_plane(self, window)
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
        real_number("p", self.p, at_least=0, at_most=1)

    def move(self, window: Window, draws: Floats) -> None:
        if window.size.shape[1] < -self.axis:
            raise BatchError(f"{self} needs {-self.axis} axes, the samples have one")
        window.mirror(self.axis, draws[:, 0] < self.p)


class RandomHorizontalFlip(_RandomMirror):
    """Swap left and right (mirror the last axis) with probability ``p``, a number from 0 to 1."""

    __slots__ = ()
    axis = -1


class RandomVerticalFlip(_RandomMirror):
    """Turn upside down (mirror the last axis but one) with probability ``p``, from 0 to 1."""

    __slots__ = ()
    axis = -2


@dataclass(frozen=True, slots=True)
class RandomFlip(Op):
    """Mirror each spatial axis with probability ``p``, each by a draw of its own.

    Args:
        p: Probability, from 0 to 1.
        axes: The axes that may be mirrored: 0 is the first spatial one, -1 the last; None for all.

    Raises:
        ValueError: At construction, ``p`` is not a probability or an axis not a whole number.
        BatchError: In ``plan``, the samples do not have such an axis.
    """

    p: float = 0.5
    axes: tuple[int, ...] | None = None

    num_draws: ClassVar[int] = 2
    per_axis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        real_number("p", self.p, at_least=0, at_most=1)
        axes: Any = self.axes
        if axes is None:
            return
        if not isinstance(axes, (tuple, list)) or not all(type(axis) is int for axis in axes):
            raise ValueError(f"axes must be whole numbers, got {axes!r}")
        object.__setattr__(self, "axes", tuple(axes))

    def move(self, window: Window, draws: Floats) -> None:
        num_axes = window.size.shape[1]
        axes = range(num_axes) if self.axes is None else self.axes
        if any(not -num_axes <= axis < num_axes for axis in axes):
            raise BatchError(f"{self} is for more axes, the samples have {num_axes}")
        for axis in dict.fromkeys(axis % num_axes for axis in axes):
            window.mirror(axis, draws[:, axis] < self.p)
