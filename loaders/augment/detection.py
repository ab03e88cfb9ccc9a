"""Ops for pictures with boxes: crops that keep some of them, frames around pictures, and boxes that are dropped.

Source: the ops of the same names of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.augment.geometry import Op, SizedBySample, between, pick
from loaders.augment.ops import check_range
from loaders.augment.resampling import Fill, as_fill
from loaders.checks import as_list, real_number, whole_number
from loaders.errors import BatchError
from loaders.rng import key64, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Floats, Ints, Window

    Bools = npt.NDArray[np.bool_]

_PURPOSE = int.from_bytes(b"iou", "big")
_MOST_ROUNDS = 100  # an overlap that is left as it is comes up before, of the default ones, but for 2 in 10 million


@dataclass(frozen=True, slots=True)
class RandomZoomOut(SizedBySample):
    """Put the picture at a random place of a larger frame, with probability ``p``.

    Args:
        fill: What pixels have around it: one number, or one for each channel.
        side_range: How many times as long the sides become: (low, high), from 1 on.
        p: Probability, from 0 to 1.
        fill_mask: What masks have around it.

    Raises:
        ValueError: At construction, an argument is out of range.
    """

    fill: Fill = 0
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5
    fill_mask: int = field(default=0, kw_only=True)

    num_draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill", as_fill(self.fill))
        check_range("side_range", self.side_range, at_least=1)
        real_number("p", self.p, at_least=0, at_most=1)
        whole_number("fill_mask", self.fill_mask)

    def move(self, window: Window, draws: Floats) -> None:
        scale = np.where(draws[:, 3] < self.p, between(self.side_range, draws[:, 0]), 1.0)
        size = (window.size * scale[:, None]).astype(np.int64)
        corner = ((size - window.size) * draws[:, 1:3]).astype(np.int64)
        window.crop(-corner, size)


@dataclass(frozen=True, slots=True)
class RandomIoUCrop(SizedBySample):
    """Crop so that some box overlaps the crop enough: SSD's way. A ``Resize`` to one size follows.

    An overlap is drawn of ``sampler_options``; of so many random crops the first counts that has the centre of a box,
    and whose overlap with one of these (intersection over union) is at least as large. If there is none, another
    overlap is drawn; one of 1 or more leaves the picture as it is. Without boxes it stays, too.

    Boxes are those of the first field of ``Boxes``, served or not. Those whose centre lies outside the crop become
    0, 0, 0, 0: ``SanitizeBoundingBoxes`` drops them, and what belongs to them.

    Args:
        min_scale: Smallest share of the sides.
        max_scale: Largest.
        min_aspect_ratio: Smallest ratio, width by height.
        max_aspect_ratio: Largest.
        sampler_options: Overlaps; None: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: How many crops are tried for each.

    Raises:
        ValueError: At construction, an argument is out of range.
        BatchError: In ``plan``, boxes are not known.
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40

    num_draws: ClassVar[int] = 1
    needs_boxes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("scale", (self.min_scale, self.max_scale))
        real_number("max_scale", self.max_scale, at_most=1)
        check_range("aspect_ratio", (self.min_aspect_ratio, self.max_aspect_ratio))
        whole_number("trials", self.trials, at_least=1)
        options = self.sampler_options
        options = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if options is None else options
        listed = as_list("sampler_options", options, "overlaps, such as [0.1, 0.5, 1.0]")
        numbers = tuple(real_number("sampler_options", each, at_least=0) for each in listed)
        if not numbers:
            raise ValueError("sampler_options names no overlap")
        object.__setattr__(self, "sampler_options", numbers)

    def move(self, window: Window, draws: Floats) -> None:
        if window.boxes is None:
            raise BatchError(f"{self} needs boxes: it is for augment= of a dataset that has some")
        boxes, counts = window.frame_boxes()
        crops = np.concatenate([np.zeros_like(window.size), window.size], axis=1)
        owners, left = np.repeat(np.arange(len(counts)), counts), np.flatnonzero(counts)
        words = (draws[:, 0] * 2.0**53).astype(np.int64)
        for turn in range(_MOST_ROUNDS):
            if not len(left):
                break
            drawn = uniform(key64(_PURPOSE, turn), words[left], num=1 + 4 * self.trials)
            mine = np.isin(owners, left)
            found, is_done = self._tried(drawn, window.size[left], boxes[mine], counts[left])
            rows = left[is_done & (found[:, 2] > 0)]
            crops[rows] = found[is_done & (found[:, 2] > 0)]
            left = left[~is_done]
        is_whole = (crops[:, 2:] == window.size).all(axis=1)[owners]
        kept = _hold_centres(crops[owners], boxes) | is_whole
        window.kept = kept if window.kept is None else window.kept & kept
        window.crop(crops[:, :2], crops[:, 2:])

    def _tried(
        self, draws: Floats, sizes: Ints, boxes: Floats, counts: Ints
    ) -> tuple[Ints, Bools]:
        """Try crops of one overlap for each of N samples, all of which have boxes.

        Returns:
            ``(N, 4)``, y, x, height and width of the crop, zeros to leave it as it is; and ``(N,)``, whether there is
            an answer.
        """
        options = np.array(self.sampler_options)
        overlap = options[pick(draws[:, 0], len(options))]
        # torchvision draws width and height, then left and top: here axis 1 is y, x.
        shares, places = np.split(draws[:, 1:].reshape(len(sizes), -1, 4), 2, axis=2)
        scale = between((self.min_scale, self.max_scale), shares)
        extents = (sizes[:, None] * scale).astype(np.int64)
        corners = ((sizes[:, None] - extents) * places).astype(np.int64)
        ratio = extents[..., 1] / np.maximum(extents[..., 0], 1)
        fits = (extents > 0).all(axis=2)
        fits &= (ratio >= self.min_aspect_ratio) & (ratio <= self.max_aspect_ratio)
        crops = np.concatenate([corners, extents], axis=2)
        # Of all crops and boxes those where the one has the centre of the other.
        owners = np.repeat(np.arange(len(counts)), counts)
        box, trial = np.nonzero(_hold_centres(crops[owners], boxes[:, None]) & fits[owners])
        shared = _overlaps(crops[owners[box], trial], boxes[box])
        is_enough = shared >= overlap[owners[box]]
        fits[...] = False
        fits[owners[box[is_enough]], trial[is_enough]] = True
        rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
        found = np.where((overlap >= 1)[:, None], 0, crops[rows, first])
        return found, (overlap >= 1) | fits[rows, first]


def _hold_centres(crops: Ints, boxes: Floats) -> Bools:
    """Tell which crops ``(..., 4)`` have the centres of boxes ``(..., 4)`` inside."""
    is_inside: Any = True
    for axis in (0, 1):  # y, x
        first, centre = crops[..., axis], (boxes[..., 1 - axis] + boxes[..., 3 - axis]) / 2
        is_inside = is_inside & (first < centre) & (centre < first + crops[..., 2 + axis])
    return np.asarray(is_inside)


def _overlaps(crops: Ints, boxes: Floats) -> Floats:
    """Return intersection over union of each crop ``(n, 4)`` and its box."""
    low, high = boxes[:, 1::-1], boxes[:, :1:-1]  # y, x
    sides = np.minimum(crops[:, :2] + crops[:, 2:], high) - np.maximum(crops[:, :2], low)
    shared = np.maximum(sides, 0).prod(axis=1)
    whole = crops[:, 2:].prod(axis=1) + (high - low).prod(axis=1) - shared
    return np.asarray(shared / np.maximum(whole, 1e-9))


@dataclass(frozen=True, slots=True)
class SanitizeBoundingBoxes(Op):
    """Drop boxes that have become too small, or lost their place, and the rows of other fields that belong to them.

    It acts behind all other ops, wherever it stands; of several the last one alone does. Boxes are those of the first
    field of ``Boxes``, served or not.

    Args:
        min_size: Width and height that a box must have, in pixels.
        min_area: Area that it must have.
        fields: Names of other fields that have a row for each box; None: all ``Boxes`` and ``Keypoints``, and each
            ``Array`` whose first axis alone is free, such as class numbers.

    Raises:
        ValueError: At construction, a number is below 1.
        BatchError: When samples are read, one of the fields has not as many rows as there are boxes.
    """

    min_size: float = 1.0
    min_area: float = 1.0
    fields: Sequence[str] | None = None

    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        real_number("min_size", self.min_size, at_least=1)
        real_number("min_area", self.min_area, at_least=1)
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(as_list("fields", self.fields, "names")))

    def keeps(self, boxes: npt.NDArray[np.float32]) -> Bools:
        """Tell which boxes stay, ``(n,)``, of boxes ``(n, 4)`` that were moved and clipped."""
        sides = boxes[:, 2:] - boxes[:, :2]
        return np.asarray(
            (sides >= self.min_size).all(axis=1) & (sides.prod(axis=1) >= self.min_area)
        )
