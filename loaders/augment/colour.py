"""Pixel ops: colour, blur and erasing, with parameters drawn per sample.

They act on the result of all crops, resizes and flips, in list order among themselves, wherever they stand in the
list. Masks, boxes and keypoints stay as they are. Images are uint8 with 1 or 3 channels.

Names, arguments, defaults and distributions are those of ``torchvision.transforms.v2``; the random numbers are a
function of the sample.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.augment.edits import Edits, Kind
from loaders.augment.geometry import Op, between
from loaders.augment.ops import each_of
from loaders.checks import as_list, real_number, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment.geometry import Floats, Ints

    Range = float | tuple[float, float] | None

_NUM_TRIES = 10


class PixelOp(Op):
    """An op that edits pixels.

    Attributes:
        edits_places: True if it may also move pixels (RandAugment rotates), without masks and boxes following.
    """

    __slots__ = ()

    edits_places: ClassVar[bool] = False

    @abstractmethod
    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        """Return the edits of N samples.

        Args:
            draws: ``(N, num_draws)`` uniform in [0, 1).
            sizes: ``(N, 2)``: height and width of the results.
        """


def as_range(
    name: str, value: Any, *, centre: float = 1.0, low: float = 0.0, high: float = math.inf
) -> tuple[float, float] | None:
    """Return (low, high): the value itself, or ``centre`` -+ a number; None if the op would change nothing."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"{name} must be a number or (low, high), got {value!r}")
        first, last = (float(real_number(f"{name}[{i}]", each)) for i, each in enumerate(value))
    else:
        number = float(real_number(name, value, at_least=0))
        first, last = max(centre - number, low if centre else -math.inf), centre + number
    if not low <= first <= last <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], in order, got {value!r}")
    return None if first == last == centre else (first, last)


@dataclass(frozen=True, slots=True)
class ColorJitter(PixelOp):
    """Change brightness, contrast, saturation and hue at random, in a random order per sample.

    Args:
        brightness: The factor is drawn from ``[max(0, 1 - brightness), 1 + brightness]``, or from (low, high); None:
            unchanged.
        contrast: The same, for the blend with the mean of the grayscale image.
        saturation: The same, for the blend with the grayscale image.
        hue: The shift is drawn from ``[-hue, hue]``, 0 <= hue <= 0.5, in turns, or from (low, high).

    Raises:
        ValueError: At construction, a range is not ``low <= high`` or exceeds its bounds.
    """

    brightness: Range = None
    contrast: Range = None
    saturation: Range = None
    hue: Range = None

    num_draws: ClassVar[int] = 8

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, as_range(name, getattr(self, name)))
        hue = as_range("hue", self.hue, centre=0.0, low=-0.5, high=0.5)
        object.__setattr__(self, "hue", hue)

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        parts: tuple[Any, ...] = (self.brightness, self.contrast, self.saturation, self.hue)
        kinds = (Kind.BRIGHTNESS, Kind.CONTRAST, Kind.SATURATION, Kind.HUE)
        ordered = [
            Edits.of(np.full(len(draws), kind if part else Kind.NONE), between(part, draws[:, i]))
            if part
            else Edits.of(np.zeros(len(draws), np.int64))
            for i, (kind, part) in enumerate(zip(kinds, parts, strict=True))
        ]
        edits, order = Edits.joined(ordered), draws[:, 4:].argsort(axis=1)
        return Edits(
            np.take_along_axis(edits.kinds, order, 1),
            np.take_along_axis(edits.values, order[:, :, None], 1),
        )


class _RandomPixelOp(PixelOp):
    """Base of ops done with probability ``p`` and fixed values: each field before ``p`` is a value of the edit."""

    __slots__ = ()

    num_draws: ClassVar[int] = 1
    kind: ClassVar[Kind]
    limits: ClassVar[tuple[float, float]] = (0, 255)

    def __post_init__(self) -> None:
        for name, value in self._values().items():
            real_number(name, value, at_least=self.limits[0], at_most=self.limits[1])
        real_number("p", self.p, at_least=0, at_most=1)  # type: ignore[attr-defined]

    def _values(self) -> dict[str, Any]:
        names: Any = self.__dataclass_fields__  # type: ignore[attr-defined]
        return {name: getattr(self, name) for name in names if name != "p"}

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        edits = Edits.of(np.full(len(draws), self.kind), *self._values().values())
        return edits.where(draws[:, 0] < self.p)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class RandomGrayscale(_RandomPixelOp):
    """Convert to grayscale with probability ``p``; the number of channels stays.

    Args:
        p: Probability, from 0 to 1.
    """

    p: float = 0.1
    kind = Kind.GRAYSCALE


@dataclass(frozen=True, slots=True)
class RandomInvert(_RandomPixelOp):
    """Invert all values with probability ``p``.

    Args:
        p: Probability, from 0 to 1.
    """

    p: float = 0.5
    kind = Kind.INVERT


@dataclass(frozen=True, slots=True)
class RandomEqualize(_RandomPixelOp):
    """Equalize the histogram of each channel with probability ``p``.

    Args:
        p: Probability, from 0 to 1.
    """

    p: float = 0.5
    kind = Kind.EQUALIZE


@dataclass(frozen=True, slots=True)
class RandomAutocontrast(_RandomPixelOp):
    """Stretch each channel to the full range, 0 to 255, with probability ``p``.

    Args:
        p: Probability, from 0 to 1.
    """

    p: float = 0.5
    kind = Kind.AUTOCONTRAST


@dataclass(frozen=True, slots=True)
class RandomSolarize(_RandomPixelOp):
    """Invert high values with probability ``p``.

    Args:
        threshold: The least value that is inverted, 0 to 255.
        p: Probability, from 0 to 1.
    """

    threshold: float
    p: float = 0.5
    kind = Kind.SOLARIZE


@dataclass(frozen=True, slots=True)
class RandomPosterize(_RandomPixelOp):
    """Keep the highest bits of each value with probability ``p``.

    Args:
        bits: How many, 0 to 8.
        p: Probability, from 0 to 1.
    """

    bits: int
    p: float = 0.5
    kind = Kind.POSTERIZE
    limits = (0, 8)


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness(_RandomPixelOp):
    """Change sharpness with probability ``p``.

    Args:
        sharpness_factor: 0 smooths, 1 keeps the image, 2 sharpens.
        p: Probability, from 0 to 1.
    """

    sharpness_factor: float
    p: float = 0.5
    kind = Kind.SHARPNESS
    limits = (0, math.inf)


@dataclass(frozen=True, slots=True)
class GaussianBlur(PixelOp):
    """Gaussian blur with a random sigma; borders are reflected.

    Args:
        kernel_size: Odd kernel size in pixels: an int, or (width, height), as in torchvision.
        sigma: Standard deviation in pixels: a number, or (low, high) to draw from.

    Raises:
        ValueError: At construction, ``kernel_size`` is not odd, or ``sigma`` not above 0.
    """

    kernel_size: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        size, pair = self.kernel_size, each_of(self.kernel_size)
        if len(pair) != 2 or any(
            whole_number("kernel_size", n, at_least=1) % 2 == 0 for n in pair
        ):
            raise ValueError(
                f"kernel_size must be an odd number, or (width, height) of odd numbers, got {size!r}"
            )
        sigma, (low, high) = self.sigma, each_of(self.sigma)
        if not 0 < real_number("sigma", low) <= real_number("sigma", high):
            raise ValueError(
                f"sigma must be a number above 0, or (low, high) with 0 < low <= high, got {sigma!r}"
            )
        object.__setattr__(self, "kernel_size", pair)
        object.__setattr__(self, "sigma", (float(low), float(high)))

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        size: Any = self.kernel_size
        sigma: Any = self.sigma
        return Edits.of(np.full(len(draws), Kind.BLUR), between(sigma, draws[:, 0]), *size)


@dataclass(frozen=True, slots=True)
class RandomErasing(PixelOp):
    """Erase a rectangle with probability ``p``.

    It acts on uint8 pixels. Where torchvision's recipes erase to 0 after ``Normalize``, set ``value`` to the mean:
    (124, 116, 104) for ImageNet.

    Args:
        p: Probability, from 0 to 1.
        scale: (low, high): the erased area as a fraction of the image.
        ratio: (low, high): height / width of the rectangle.
        value: Fill value, 0 to 255: one number, three (one per channel), or ``"random"`` for uniform noise.

    Raises:
        ValueError: At construction, a range is not ``low <= high``, or ``value`` is invalid.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] | str = 0

    num_draws: ClassVar[int] = 2 * _NUM_TRIES + 4

    def __post_init__(self) -> None:
        real_number("p", self.p, at_least=0, at_most=1)
        for name, top in (("scale", 1.0), ("ratio", math.inf)):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= top:
                raise ValueError(
                    f"{name} must be (low, high) with 0 <= low <= high, got {(low, high)}"
                )
        value: Any = self.value
        if isinstance(value, str) and value != "random":
            raise ValueError(f"value must be 'random' or numbers, got {value!r}")
        values = () if isinstance(value, str) else np.ravel(value).tolist()
        if len(values) not in (0, 1, 3):
            raise ValueError(f"value must be one number, or three, got {value!r}")
        for number in values:
            real_number("value", number, at_least=0, at_most=255)

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        area = between(self.scale, draws[:, :_NUM_TRIES]) * sizes.prod(axis=1, keepdims=True)
        logs = [math.log(max(ratio, 1e-9)) for ratio in self.ratio]
        ratio = np.exp(between(logs, draws[:, _NUM_TRIES : 2 * _NUM_TRIES]))
        height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (height < sizes[:, :1]) & (width < sizes[:, 1:])
        rows, first = np.arange(len(draws)), fits.argmax(axis=1)
        extent = np.stack([height[rows, first], width[rows, first]], axis=1)
        corner = np.floor(draws[:, -4:-2] * (sizes - extent + 1))
        is_noise = isinstance(self.value, str)
        value: Any = self.value
        values = (
            [np.floor(draws[:, -1] * 2**24)] if is_noise else np.broadcast_to(value, 3).tolist()
        )
        edits = Edits.of(
            np.full(len(draws), Kind.ERASE), *corner.T, *extent.T, float(is_noise), *values
        )
        return edits.where((draws[:, -2] < self.p) & fits[rows, first])


@dataclass(frozen=True, slots=True)
class RandomApply(PixelOp):
    """Apply a list of pixel ops with probability ``p``, all of them or none.

    Args:
        transforms: Pixel ops, such as ``[ColorJitter(0.4)]``.
        p: Probability, from 0 to 1.

    Raises:
        TypeError: At construction, one of them is not a pixel op.
    """

    transforms: Sequence[PixelOp]
    p: float = 0.5
    num_draws: int = field(init=False, repr=False, compare=False, default=0)  # type: ignore[misc]

    def __post_init__(self) -> None:
        ops = tuple(as_list("transforms", self.transforms, "ops, such as [ColorJitter(0.4)]"))
        for op in ops:
            if not isinstance(op, PixelOp):
                raise TypeError(
                    f"RandomApply takes pixel ops such as ColorJitter(0.4), got {op!r}"
                )
        real_number("p", self.p, at_least=0, at_most=1)
        object.__setattr__(self, "transforms", ops)
        object.__setattr__(self, "num_draws", 1 + sum(op.num_draws for op in ops))

    @property
    def edits_places(self) -> bool:  # type: ignore[override]
        """True if one of the ops may move pixels."""
        return any(op.edits_places for op in self.transforms)

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        parts, at = [], 1
        for op in self.transforms:
            parts.append(op.edit(draws[:, at : at + op.num_draws], sizes))
            at += op.num_draws
        return Edits.joined(parts).where(draws[:, 0] < self.p)
