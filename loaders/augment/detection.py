"""Ops for images with boxes: crops around boxes, zooming out, and dropping boxes that became too small.

Source: the ops of the same names of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.augment.geometry import Op, SizedBySample, between, pick
from loaders.augment.ops import check_range
from loaders.augment.resampling import Fill, check_shared
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
    """Place the image at a random position of a larger canvas, with probability ``p``.

    Args:
        fill: Pixel value of the canvas: one number, or one per channel; None: that of other ops, or 0.
        side_range: (low, high): the canvas is so many times as high and wide, at least 1.
        p: Probability, from 0 to 1.
        fill_mask: Value of masks on the canvas; None: that of other ops, or 0.

    Raises:
        ValueError: At construction, an argument is out of range.
    """

    fill: Fill | None = None
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5
    fill_mask: int | None = field(default=None, kw_only=True)

    num_draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_shared(self)
        check_range("side_range", self.side_range, at_least=1)

    def move(self, window: Window, draws: Floats) -> None:
        scale = np.where(draws[:, 3] < self.p, between(self.side_range, draws[:, 0]), 1.0)
        size = (window.size * scale[:, None]).astype(np.int64)
        corner = ((size - window.size) * draws[:, 1:3]).astype(np.int64)
        window.crop(-corner, size)


@dataclass(frozen=True, slots=True)
class RandomIoUCrop(SizedBySample):
    """Crop so that some box overlaps the crop enough, as SSD does; follow it by a ``Resize`` to one size.

    A minimum overlap (intersection over union) is drawn from ``sampler_options``, and up to ``trials`` random crops.
    The first crop that contains the centre of a box, and overlaps such a box by the minimum, is taken. If there is
    none, another minimum is drawn. A minimum of 1 or more keeps the whole image, and so does an image without boxes.

    Boxes are those of the first ``Boxes`` field, which need not be served. Boxes whose centre is outside the crop
    become 0, 0, 0, 0; ``SanitizeBoundingBoxes`` drops them, and the rows of other fields that belong to them.

    Args:
        min_scale: Smallest crop, as a fraction of each side.
        max_scale: Largest crop, as a fraction of each side; at most 1.
        min_aspect_ratio: Smallest width / height.
        max_aspect_ratio: Largest width / height.
        sampler_options: Minimum overlaps to draw from; None: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: Crops to try for each minimum.

    Raises:
        ValueError: At construction, an argument is out of range.
        BatchError: When samples are read, no boxes were passed.
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
            raise ValueError("sampler_options must have at least one overlap, got none")
        object.__setattr__(self, "sampler_options", numbers)

    def move(self, window: Window, draws: Floats) -> None:
        if window.boxes is None:
            raise BatchError(
                f"{self} needs boxes: use it in augment= of a dataset with a Boxes field"
            )
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
        """Try crops of one minimum overlap for each of N samples, all of which have boxes.

        Return ``(N, 4)``: y, x, height and width, zeros for the whole image; and ``(N,)``: whether one was found.
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
    """Return which crops ``(..., 4)`` contain the centres of boxes ``(..., 4)``."""
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
    """Drop boxes that became too small or were cropped away, and the rows of other fields that belong to them.

    It acts after all other ops, wherever it stands in the list; if there are several, only the last one acts. Boxes
    are those of the first ``Boxes`` field, which need not be served.

    Args:
        min_size: Smallest width and height of a box to keep, in pixels.
        min_area: Smallest area of a box to keep, in square pixels.
        fields: Names of the other fields with one row per box; None: all ``Boxes`` and ``Keypoints``, and each
            ``Array`` of which only the first axis varies, such as class numbers.

    Raises:
        ValueError: At construction, a number is below 1.
        BatchError: When samples are read, one of the fields does not have one row per box.
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
        """Return which boxes to keep, ``(n,)`` bool, of moved and clipped boxes ``(n, 4)``."""
        sides = boxes[:, 2:] - boxes[:, :2]
        return np.asarray(
            (sides >= self.min_size).all(axis=1) & (sides.prod(axis=1) >= self.min_area)
        )
