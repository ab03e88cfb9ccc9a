"""Warps (rotation, shear, perspective) as matrices from pixels of the result to pixels of the source; elastic ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from loaders.augment.colour import as_range
from loaders.augment.edits import NUM_VALUES
from loaders.augment.geometry import Op, between, enclosing
from loaders.augment.ops import check_range, each_of
from loaders.augment.resampling import Fill, check_shared
from loaders.checks import real_number

if TYPE_CHECKING:
    import numpy.typing as npt

    from loaders.augment.geometry import Floats, Ints, Window


def affine_matrices(
    angle: Floats,
    translate: Any = (0.0, 0.0),
    scale: Any = 1.0,
    shear: Any = (0.0, 0.0),
    centre: Any = (0.0, 0.0),
) -> Floats:
    """Return the inverses of rotation, shear, scale and translation around a centre, ``(N, 3, 3)``.

    Coordinates are x, y in pixels from the top left corner of the first pixel. ``angle`` is ``(N,)``, clockwise, in
    degrees, and so is shear; the others are numbers or ``(N,)``. Only ``translate`` moves the centre.

    Source:
        ``_get_inverse_affine_matrix`` of torchvision, for the order in which they act.
    """
    turn, across, down = np.radians(angle), np.radians(shear[0]), np.radians(shear[1])
    a = np.cos(turn - down) / np.cos(down)
    b = -np.cos(turn - down) * np.tan(across) / np.cos(down) - np.sin(turn)
    c = np.sin(turn - down) / np.cos(down)
    d = -np.sin(turn - down) * np.tan(across) / np.cos(down) + np.cos(turn)
    matrices = np.zeros((len(turn), 3, 3))
    matrices[:, 0, 0], matrices[:, 0, 1] = d / scale, -b / scale
    matrices[:, 1, 0], matrices[:, 1, 1] = -c / scale, a / scale
    matrices[:, 2, 2] = 1
    x, y = centre
    from_x, from_y = x + translate[0], y + translate[1]
    matrices[:, 0, 2] = x - matrices[:, 0, 0] * from_x - matrices[:, 0, 1] * from_y
    matrices[:, 1, 2] = y - matrices[:, 1, 0] * from_x - matrices[:, 1, 1] * from_y
    return matrices


def as_values(matrices: Floats, interpolation: str, fill: Fill) -> Floats:
    """Return the values of ``Kind.WARP`` edits, ``(N, NUM_VALUES)``."""
    values = np.zeros((len(matrices), NUM_VALUES))
    values[:, :6] = matrices[:, :2].reshape(-1, 6)
    values[:, 6] = interpolation == "bilinear"
    values[:, 7:10] = fill
    return values


def _around_0(name: str, value: Any) -> tuple[float, float]:
    if value is None:  # as_range takes None for "unchanged"
        raise TypeError(f"{name} must be a number or (low, high), got None")
    return as_range(name, value, centre=0.0, low=-math.inf) or (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class RandomAffine(Op):
    """Rotate, shift, scale and shear at random: images, masks, boxes and keypoints together.

    A box becomes the one that encloses its warped corners. After a ``RandomResizedCrop`` or other crops and resizes it
    is still one, bilinear resampling, and the corners show the image's own pixels around the crop.

    Args:
        degrees: Rotation, clockwise: (low, high), or a number for (-number, number).
        translate: Largest shift along x and y, as fractions of width and height; None: no shift.
        scale: (low, high) of the scale; None: 1.
        shear: Shear in degrees: a number or (low, high) along x; or four numbers, (low, high) along x and along y.
        interpolation: ``"nearest"`` or ``"bilinear"``; masks always use ``"nearest"``.
        fill: Pixel value outside the image: one number, or one per channel; None: that of other ops, or 0.
        center: The fixed point (x, y) in pixels; None: the centre of the image.
        fill_mask: Value of masks outside the image; None: that of other ops, or 0.

    Raises:
        TypeError: At construction, an argument of the wrong type.
        ValueError: At construction, a number or range is out of bounds.
        BatchError: When samples are read, they are not images.

    Source:
        ``RandomAffine`` of torchvision.
    """

    degrees: float | tuple[float, float]
    translate: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    shear: float | tuple[float, ...] | None = None
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill | None = None
    center: tuple[float, float] | None = None
    fill_mask: int | None = field(default=None, kw_only=True)

    num_draws: ClassVar[int] = 6

    def __post_init__(self) -> None:
        check_shared(self)
        object.__setattr__(self, "degrees", _around_0("degrees", self.degrees))
        for share in self.translate or ():
            real_number("translate", share, at_least=0, at_most=1)
        if self.scale is not None:
            check_range("scale", self.scale)
        x: Any = (0.0, 0.0) if self.shear is None else self.shear
        y: Any = (0.0, 0.0)
        if isinstance(x, (tuple, list)) and len(x) == 4:
            x, y = x[:2], x[2:]
        object.__setattr__(self, "shear", (*_around_0("shear", x), *_around_0("shear", y)))

    def move(self, window: Window, draws: Floats) -> None:
        height, width = window.size.T.astype(np.float64)
        shares: Any = self.translate or (0.0, 0.0)
        shift = [
            np.rint(between((-1.0, 1.0), draws[:, 1 + i]) * share * side)
            for i, (share, side) in enumerate(zip(shares, (width, height), strict=True))
        ]
        shear: Any = self.shear
        degrees: Any = self.degrees
        matrices = affine_matrices(
            between(degrees, draws[:, 0]),
            shift,
            between(self.scale or (1.0, 1.0), draws[:, 3]),
            (between(shear[:2], draws[:, 4]), between(shear[2:], draws[:, 5])),
            self.center or (width / 2, height / 2),
        )
        window.warp(matrices, np.ones(len(draws), bool))


@dataclass(frozen=True, slots=True)
class RandomRotation(Op):
    """Rotate at random; otherwise as ``RandomAffine``.

    Args:
        degrees: Rotation, counter-clockwise: (low, high), or a number for (-number, number).
        interpolation: ``"nearest"`` or ``"bilinear"``; masks always use ``"nearest"``.
        expand: Enlarge the frame to hold the whole rotated image: its size then depends on the sample. Without it,
            corners are cut off.
        center: The fixed point (x, y) in pixels; None: the centre of the image.
        fill: Pixel value outside the image: one number, or one per channel; None: that of other ops, or 0.
        fill_mask: Value of masks outside the image; None: that of other ops, or 0.

    Raises:
        TypeError: At construction, an argument of the wrong type.
        ValueError: At construction, a number or range is out of bounds.
        BatchError: When samples are read, they are not images.

    Source:
        ``RandomRotation`` of torchvision.
    """

    degrees: float | tuple[float, float]
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    expand: bool = False
    center: tuple[float, float] | None = None
    fill: Fill | None = None
    fill_mask: int | None = field(default=None, kw_only=True)

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_shared(self)
        object.__setattr__(self, "degrees", _around_0("degrees", self.degrees))

    def move(self, window: Window, draws: Floats) -> None:
        height, width = window.size.T.astype(np.float64)
        degrees: Any = self.degrees
        centre = self.center or (width / 2, height / 2)
        matrices = affine_matrices(-between(degrees, draws[:, 0]), centre=centre)
        size = None
        if self.expand:
            size = _expanded(matrices, width, height)
            shift = np.tile(np.eye(3), (len(draws), 1, 1))
            shift[:, :2, 2] = (window.size - size)[:, ::-1] / 2
            matrices = matrices @ shift
        window.warp(matrices, np.ones(len(draws), bool), size)

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if self.expand else size


def _expanded(matrices: Floats, width: Floats, height: Floats) -> Ints:
    """Return the sizes of frames that hold the rotated images, ``(N, 2)``, rounded as torchvision does."""
    zero = np.zeros_like(width)
    found = enclosing(matrices, np.stack([zero, zero, width, height], axis=1))
    found = np.rint(found * 1e4) / 1e4  # removes float64 errors
    exact = found[:, 2:] - found[:, :2]
    sides = np.ceil(found[:, 2:]) - np.floor(found[:, :2])
    is_exact = (exact == np.rint(exact)).all(axis=1, keepdims=True)  # multiples of 90 degrees
    return np.where(is_exact, exact, sides)[:, ::-1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class RandomPerspective(Op):
    """Change the perspective at random, with probability ``p``; otherwise as ``RandomAffine``.

    Args:
        distortion_scale: How far corners move at most, as a fraction of half the side, from 0 to 1.
        p: Probability, from 0 to 1; images of one pixel a side, and corners drawn in a line, are left as they are.
        interpolation: ``"nearest"`` or ``"bilinear"``; masks always use ``"nearest"``.
        fill: Pixel value outside the image: one number, or one per channel; None: that of other ops, or 0.
        fill_mask: Value of masks outside the image; None: that of other ops, or 0.

    Raises:
        TypeError: At construction, an argument of the wrong type.
        ValueError: At construction, a number or range is out of bounds.
        BatchError: When samples are read, they are not images.

    Source:
        ``RandomPerspective`` of torchvision.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    fill: Fill | None = None
    fill_mask: int | None = field(default=None, kw_only=True)

    num_draws: ClassVar[int] = 9

    def __post_init__(self) -> None:
        check_shared(self)
        real_number("distortion_scale", self.distortion_scale, at_least=0, at_most=1)

    def move(self, window: Window, draws: Floats) -> None:
        sides = window.size[:, ::-1].astype(np.float64)  # x, y
        most = np.floor(self.distortion_scale * (sides // 2)) + 1
        inward = np.floor(draws[:, :8].reshape(-1, 4, 2) * most[:, None])
        right, below = np.array([[0, 1, 1, 0], [0, 0, 1, 1]])
        is_far = np.stack([right, below], axis=1)
        starts = is_far * (sides[:, None] - 1)
        ends = np.where(is_far, sides[:, None] - most[:, None] + inward, inward)
        drawn = np.flatnonzero((draws[:, 8] < self.p) & (sides > 1).all(axis=1))
        matrices = np.broadcast_to(np.eye(3), (len(draws), 3, 3)).copy()
        rows = np.zeros(len(draws), np.bool_)
        rows[drawn], matrices[drawn] = _homographies(ends[drawn], starts[drawn])
        window.warp(matrices, rows)


@dataclass(frozen=True, slots=True)
class ElasticTransform(Op):
    """Displace pixels by smooth random noise, as if seen through water; otherwise as ``RandomAffine``.

    Boxes and keypoints move by minus the displacement at their position: a good approximation for small
    displacements, as in torchvision.

    Args:
        alpha: Strength: twice the largest displacement in pixels, before smoothing; one number, or (x, y).
        sigma: Standard deviation of the Gaussian that smooths the noise, in pixels; one number, or (x, y).
        interpolation: ``"nearest"`` or ``"bilinear"``; masks always use ``"nearest"``.
        fill: Pixel value outside the image: one number, or one per channel; None: that of other ops, or 0.
        fill_mask: Value of masks outside the image; None: that of other ops, or 0.

    Raises:
        ValueError: At construction, a number is negative, or one sigma is 0 and the other not.
        BatchError: When samples are read, the list has two of these ops, or the samples are not images.

    Source:
        ``ElasticTransform`` of torchvision; its noise has 256 levels here.
    """

    alpha: float | tuple[float, float] = 50.0
    sigma: float | tuple[float, float] = 5.0
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    fill: Fill | None = None
    fill_mask: int | None = field(default=None, kw_only=True)

    num_draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_shared(self)
        for name in ("alpha", "sigma"):
            pair = each_of(getattr(self, name))
            if len(pair) != 2:
                raise ValueError(f"{name} must be a number or (x, y), got {getattr(self, name)!r}")
            numbers = tuple(float(real_number(name, each, at_least=0)) for each in pair)
            object.__setattr__(self, name, numbers)
        sigma: Any = self.sigma
        if any(sigma) != all(sigma):
            raise ValueError(
                f"sigma must be above 0 along both axes, or 0 along both, got {sigma}"
            )

    def move(self, window: Window, draws: Floats) -> None:
        alpha: Any = self.alpha
        sigma: Any = self.sigma
        window.displace((draws[:, 0] * 2**24).astype(np.int64), alpha, sigma)


def _homographies(points: Floats, images: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Return the homographies ``(N, 3, 3)`` that map four points to four others, both ``(N, 4, 2)``.

    Points that meet or lie in a line have none: the first array, ``(N,)``, is False there, the matrix arbitrary.
    """
    num, (x, y), (u, v) = len(points), np.moveaxis(points, 2, 0), np.moveaxis(images, 2, 0)
    zero, one = np.zeros_like(x), np.ones_like(x)
    rows = [
        np.stack([x, y, one, zero, zero, zero, -u * x, -u * y], axis=2),
        np.stack([zero, zero, zero, x, y, one, -v * x, -v * y], axis=2),
    ]
    matrix, target = np.concatenate(rows, axis=1), np.concatenate([u, v], axis=1)[..., None]
    right, down = np.moveaxis(np.roll(points, -1, axis=1) - points, 2, 0)  # to the next point
    turns = right * np.roll(down, -1, axis=1) - down * np.roll(right, -1, axis=1)
    has_one = (turns != 0).all(axis=1) & (np.linalg.det(matrix) != 0)
    found = np.linalg.solve(np.where(has_one[:, None, None], matrix, np.eye(8)), target)[..., 0]
    return has_one, np.concatenate([found, np.ones((num, 1))], axis=1).reshape(num, 3, 3)
