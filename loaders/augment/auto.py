"""RandAugment, TrivialAugmentWide and AugMix: ops and strengths drawn per sample, from a list of fourteen.

They are pixel ops, though some of them move pixels: as in torchvision, masks, boxes and keypoints do not follow, so
datasets with such fields are refused.

Source: Cubuk et al., "RandAugment", 2019; Müller and Hutter, "TrivialAugment", 2021; Hendrycks et al., "AugMix", 2019;
the lists of ops and their strengths are those of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loaders.augment.colour import PixelOp
from loaders.augment.edits import NUM_VALUES, Edits, Kind
from loaders.augment.geometry import pick
from loaders.augment.resampling import Fill, check_shared
from loaders.augment.warps import affine_matrices, as_values
from loaders.checks import real_number, whole_number

if TYPE_CHECKING:
    from loaders.augment.geometry import Floats, Ints

# Name, kernel, strengths from the first bin to the last, and whether the sign is drawn.
_Space = tuple[tuple[str, Kind, tuple[float, float], bool], ...]

_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
_FACTOR_KINDS = (Kind.BRIGHTNESS, Kind.SATURATION, Kind.CONTRAST, Kind.SHARPNESS)


def _space(shear: float, turn: float, strength: float) -> _Space:
    factors = tuple(
        (name, kind, (0.0, strength), True)
        for name, kind in zip(_FACTORS, _FACTOR_KINDS, strict=True)
    )
    return (
        ("Identity", Kind.NONE, (0.0, 0.0), False),
        ("ShearX", Kind.WARP, (0.0, shear), True),
        ("ShearY", Kind.WARP, (0.0, shear), True),
        ("TranslateX", Kind.WARP, (0.0, 1.0), True),
        ("TranslateY", Kind.WARP, (0.0, 1.0), True),
        ("Rotate", Kind.WARP, (0.0, turn), True),
        *factors,
        ("Posterize", Kind.POSTERIZE, (0.0, 1.0), False),
        ("Solarize", Kind.SOLARIZE, (255.0, 0.0), False),
        ("AutoContrast", Kind.AUTOCONTRAST, (0.0, 0.0), False),
        ("Equalize", Kind.EQUALIZE, (0.0, 0.0), False),
    )


_RAND = _space(0.3, 30.0, 0.9)
_WIDE = _space(0.99, 135.0, 0.99)


@dataclass(frozen=True, slots=True)
class _Strengths:
    """Turns ops of a list and their bins of strength into edits."""

    space: _Space  # the list
    num_bins: int  # of strengths
    bits: tuple[int, int]  # that Posterize leaves at the first and at the last bin
    # Of the last bin of the translations: a share of the side, and pixels.
    shift: tuple[float, float]

    def edits(self, op: Any, draws: Floats, bins: Ints, signs: Floats, sizes: Ints) -> Edits:
        """Return one edit per sample for ``op``: draws choose it from the list, and its sign; bins are its strength."""
        which, signs = pick(draws, len(self.space)), np.where(signs <= 0.5, -1.0, 1.0)
        kinds = np.array([kind for _, kind, _, _ in self.space])[which]
        edits = Edits(kinds[:, None].astype(np.int64), np.zeros((len(which), 1, NUM_VALUES)))
        share = bins / max(self.num_bins - 1, 1)
        for number, (name, kind, (low, high), is_signed) in enumerate(self.space):
            rows = np.flatnonzero(which == number)
            if not len(rows) or kind == Kind.NONE:
                continue
            strength = low + (high - low) * share[rows]
            strength = strength * signs[rows] if is_signed else strength
            if kind == Kind.WARP:
                matrices = self._matrices(name, strength, sizes[rows])
                edits.values[rows, 0] = as_values(matrices, op.interpolation, op.fill or 0)
            elif name == "Posterize":
                edits.values[rows, 0, 0] = np.rint(
                    self.bits[0] + (self.bits[1] - self.bits[0]) * share[rows]
                )
            else:
                edits.values[rows, 0, 0] = strength + (1 if is_signed else 0)
        return edits

    def _matrices(self, name: str, strength: Floats, sizes: Ints) -> Floats:
        height, width = sizes.T.astype(np.float64)
        zero = np.zeros(len(strength))
        if name == "Rotate":
            return affine_matrices(-strength, centre=(width / 2, height / 2))
        if name.startswith("Shear"):
            angle = np.degrees(np.arctan(strength))
            shear = (angle, zero) if name == "ShearX" else (zero, angle)
            return affine_matrices(zero, shear=shear)
        side = width if name == "TranslateX" else height
        pixels = np.trunc(strength * (self.shift[0] * side + self.shift[1]))
        shift = (pixels, zero) if name == "TranslateX" else (zero, pixels)
        return affine_matrices(zero, translate=shift)


@dataclass(frozen=True, slots=True)
class RandAugment(PixelOp):
    """Apply ``num_ops`` random ops of a list of fourteen, drawn per sample, all at the same strength.

    Args:
        num_ops: How many ops, one after the other; an op may be drawn twice.
        magnitude: Strength: a bin, ``0 <= magnitude < num_magnitude_bins``.
        num_magnitude_bins: Number of bins.
        interpolation: For shears, translations and rotations: ``"nearest"`` or ``"bilinear"``.
        fill: Pixel value that these leave outside the image: one number, or one per channel; None is 0.

    Raises:
        ValueError: At construction, a number is out of range.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill | None = None
    num_draws: int = field(init=False, repr=False, compare=False, default=0)  # type: ignore[misc]

    edits_places = True

    def __post_init__(self) -> None:
        whole_number("num_ops", self.num_ops, at_least=0)
        whole_number("num_magnitude_bins", self.num_magnitude_bins, at_least=1)
        whole_number("magnitude", self.magnitude, at_least=0, below=self.num_magnitude_bins)
        check_shared(self)
        object.__setattr__(self, "num_draws", 2 * self.num_ops)

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        strengths = _Strengths(_RAND, self.num_magnitude_bins, (8, 4), (150 / 331, 0.0))
        bins = np.full(len(draws), self.magnitude)
        pairs = zip(draws.T[::2], draws.T[1::2], strict=True)
        parts = [strengths.edits(self, which, bins, sign, sizes) for which, sign in pairs]
        return Edits.joined(parts or [Edits.of(np.zeros(len(draws), np.int64))])


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(PixelOp):
    """Apply one random op of a list of fourteen at a random strength, both drawn per sample.

    Args:
        num_magnitude_bins: Number of strengths to draw from.
        interpolation: As in ``RandAugment``.
        fill: As in ``RandAugment``.

    Raises:
        ValueError: At construction, ``num_magnitude_bins`` is below 1.
    """

    num_magnitude_bins: int = 31
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill | None = None

    num_draws = 3
    edits_places = True

    def __post_init__(self) -> None:
        whole_number("num_magnitude_bins", self.num_magnitude_bins, at_least=1)
        check_shared(self)

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        bins = pick(draws[:, 1], self.num_magnitude_bins)
        strengths = _Strengths(_WIDE, self.num_magnitude_bins, (8, 2), (0.0, 32.0))
        return strengths.edits(self, draws[:, 0], bins, draws[:, 2], sizes)


_MIX = _RAND[1:]
_MIX_BINS = 10
_NUM_TRIES = 6  # of a number of the Gamma distribution: each fails 1 time in 20 at most
_GAMMA_DRAWS = 1 + 3 * _NUM_TRIES
_LONGEST = 3  # chain of a random length


@dataclass(frozen=True, slots=True)
class AugMix(PixelOp):
    """Blend the image with several chains of random ops, each applied to the original image.

    Args:
        severity: Strengths are drawn from the weakest ``severity`` of ten.
        mixture_width: Number of chains.
        chain_depth: Ops per chain; below 1: one to three, drawn at random.
        alpha: Parameter of the Dirichlet and Beta distributions of the weights.
        all_ops: Include brightness, color, contrast and sharpness.
        interpolation: As in ``RandAugment``.
        fill: As in ``RandAugment``.

    Raises:
        ValueError: At construction, a number is out of range.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    fill: Fill | None = None
    num_draws: int = field(init=False, repr=False, compare=False, default=0)  # type: ignore[misc]

    edits_places = True

    def __post_init__(self) -> None:
        whole_number("severity", self.severity, at_least=1, below=_MIX_BINS + 1)
        whole_number("mixture_width", self.mixture_width, at_least=1)
        whole_number("chain_depth", self.chain_depth)
        real_number("alpha", self.alpha, at_least=1e-3)
        check_shared(self)
        chains = self.mixture_width * (1 + 3 * self._depth)
        num = (2 + self.mixture_width) * _GAMMA_DRAWS + chains
        object.__setattr__(self, "num_draws", num)

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else _LONGEST

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        num, width = len(draws), self.mixture_width
        first, last = np.split(draws, [(2 + width) * _GAMMA_DRAWS], axis=1)
        logs = _log_gammas(self.alpha, first.reshape(num, 2 + width, -1))
        own = _shares(logs[:, :2])[:, :1]
        others = _shares(logs[:, 2:]) * (1 - own)
        parts = [Edits.of(np.full(num, Kind.KEEP), own[:, 0])]
        for i, chain in enumerate(np.split(last, width, axis=1)):
            depth = 1 + pick(chain[:, 0], _LONGEST) if self.chain_depth < 1 else self._depth
            for k, numbers in enumerate(np.split(chain[:, 1:], self._depth, axis=1)):
                parts.append(self._one(numbers, sizes).where(np.broadcast_to(k < depth, num)))
            is_last = float(i == width - 1)
            parts.append(Edits.of(np.full(num, Kind.MIX), others[:, i], is_last))
        return Edits.joined(parts)

    def _one(self, draws: Floats, sizes: Ints) -> Edits:
        """Return one edit per sample from its three draws."""
        space = tuple(one for one in _MIX if self.all_ops or one[0] not in _FACTORS)
        strengths = _Strengths(space, _MIX_BINS, (4, 0), (1 / 3, 0.0))
        bins = pick(draws[:, 1], self.severity)
        return strengths.edits(self, draws[:, 0], bins, draws[:, 2], sizes)


def _shares(logs: Floats) -> Floats:
    """Return a softmax over axis 1."""
    numbers = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(numbers / numbers.sum(axis=1, keepdims=True))


def _log_gammas(alpha: float, draws: Floats) -> Floats:
    """Return logs of Gamma(alpha) variates, ``(N, k)``, from uniform ones ``(N, k, _GAMMA_DRAWS)``.

    Logs, since a small alpha makes most variates underflow float64.

    Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
    """
    shape = alpha if alpha >= 1 else alpha + 1
    d = shape - 1 / 3
    one, two, three = np.split(draws[..., 1:], 3, axis=2)
    normal = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * two)
    cubes = np.maximum(1 + normal / np.sqrt(9 * d), 1e-9) ** 3
    is_taken = np.log1p(-three) < normal**2 / 2 + d * (1 - cubes + np.log(cubes))
    found = np.take_along_axis(cubes, is_taken.argmax(axis=2)[..., None], axis=2)[..., 0] * d
    return np.log(found) + (0 if alpha >= 1 else np.log(np.maximum(draws[..., 0], 1e-16)) / alpha)
