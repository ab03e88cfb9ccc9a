"""RandAugment and TrivialAugmentWide: for each sample ops and strengths of its own, from a list of fourteen.

They are ops of pixels, though some of them move these: as in torchvision, masks, boxes and keypoints have no part in
them, and datasets that have such fields are refused.

Source: Cubuk et al., "RandAugment", 2019; Müller and Hutter, "TrivialAugment", 2021; the lists of ops and their
strengths are those of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loaders.augment.colour import PixelOp
from loaders.augment.edits import NUM_VALUES, Edits, Kind
from loaders.augment.resampling import Fill, as_fill
from loaders.augment.warps import affine_matrices, as_values
from loaders.checks import one_of, whole_number

if TYPE_CHECKING:
    from loaders.augment.geometry import Floats, Ints

# Name, kernel, strengths from the first bin to the last, and whether the sign is drawn.
_Space = tuple[tuple[str, Kind, tuple[float, float], bool], ...]


def _space(shear: float, turn: float, strength: float) -> _Space:
    factors = tuple(
        (name, kind, (0.0, strength), True)
        for name, kind in (
            ("Brightness", Kind.BRIGHTNESS),
            ("Color", Kind.SATURATION),
            ("Contrast", Kind.CONTRAST),
            ("Sharpness", Kind.SHARPNESS),
        )
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
    """What an op of a list does at a bin, for samples of given sizes.

    Attributes:
        space: The list.
        num_bins: Of strengths.
        bits: That the last bin of Posterize takes away.
        shift: Of the last bin of the translations, in pixels; None: 150/331 of the side.
    """

    space: _Space
    num_bins: int
    bits: int
    shift: float | None

    def edits(
        self, which: Ints, bins: Ints, signs: Floats, sizes: Ints, interpolation: str, fill: Any
    ) -> Edits:
        """Return one edit for each sample: ``which`` op of the list at which bin, with which sign."""
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
                edits.values[rows, 0] = as_values(matrices, interpolation, fill)
            elif name == "Posterize":
                edits.values[rows, 0, 0] = np.rint(8 - self.bits * share[rows])
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
        pixels = np.trunc(strength * (150 / 331 * side if self.shift is None else self.shift))
        shift = (pixels, zero) if name == "TranslateX" else (zero, pixels)
        return affine_matrices(zero, translate=shift)


def _pick(draws: Floats, count: int) -> Ints:
    return np.floor(draws * count).astype(np.int64)


def _sign(draws: Floats) -> Floats:
    return np.where(draws <= 0.5, -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class RandAugment(PixelOp):
    """Some ops of a list of fourteen, each sample its own, all of one strength.

    Args:
        num_ops: How many, one after the other; an op may come again.
        magnitude: Which of the bins of strengths.
        num_magnitude_bins: How many there are.
        interpolation: Of shears, translations and rotations: ``"nearest"`` or ``"bilinear"``.
        fill: What lies outside behind them: one number, or one for each channel; None is 0.

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
        one_of("interpolation", self.interpolation, ("nearest", "bilinear"))
        object.__setattr__(self, "fill", as_fill(self.fill or 0))
        object.__setattr__(self, "num_draws", 2 * self.num_ops)

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        """Return the edits of N samples, as every op of pixels does."""
        strengths = _Strengths(_RAND, self.num_magnitude_bins, 4, None)
        bins = np.full(len(draws), self.magnitude)
        how = (sizes, self.interpolation, self.fill)
        parts = [
            strengths.edits(_pick(pick, len(_RAND)), bins, _sign(sign), *how)
            for pick, sign in zip(draws.T[::2], draws.T[1::2], strict=True)
        ]
        return Edits.joined(parts or [Edits.of(np.zeros(len(draws), np.int64))])


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(PixelOp):
    """One op of a list of fourteen at a strength, both drawn for each sample.

    Args:
        num_magnitude_bins: How many strengths there are.
        interpolation: As in ``RandAugment``.
        fill: As in ``RandAugment``.
    """

    num_magnitude_bins: int = 31
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill | None = None

    num_draws = 3
    edits_places = True

    def __post_init__(self) -> None:
        whole_number("num_magnitude_bins", self.num_magnitude_bins, at_least=1)
        one_of("interpolation", self.interpolation, ("nearest", "bilinear"))
        object.__setattr__(self, "fill", as_fill(self.fill or 0))

    def edit(self, draws: Floats, sizes: Ints) -> Edits:
        """Return the edits of N samples, as every op of pixels does."""
        bins = _pick(draws[:, 1], self.num_magnitude_bins)
        strengths = _Strengths(_WIDE, self.num_magnitude_bins, 6, 32.0)
        which, signs = _pick(draws[:, 0], len(_WIDE)), _sign(draws[:, 2])
        return strengths.edits(which, bins, signs, sizes, self.interpolation, self.fill)
