"""Augmentation as parameters drawn per sample: crops, resizes and flips become one box, resampled once.

A list of crops, resizes and flips comes down to one crop box in source pixels, one output size and one pair
of flips per sample. ``plan`` computes them for a whole batch from ``(seed, epoch, index, draw, view)``;
``apply`` carries out one sample's, straight into the batch:

    >>> import numpy as np
    >>> image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    >>> ops = [RandomResizedCrop(4), RandomHorizontalFlip()]
    >>> geometry = plan(ops, np.array([[5, 6]]), seed=0, epoch=0, indices=np.array([7]))
    >>> box, size, flip = (rows.tolist()[0] for rows in geometry)
    >>> batch = np.empty((1, 4, 4, 3), np.uint8)
    >>> apply(image, box, size, flip, out=batch[0]).shape
    (4, 4, 3)

Pixel ops (``loaders.augment.colour``) act on the result: the plan has them as ``edits``.

Crops and flips work on any number of axes: for volumes, whose ``sizes`` are ``(N, 3)``, ``cut`` carries
them out.
"""

from typing import Any

from loaders.augment import presets
from loaders.augment.auto import AugMix, RandAugment, TrivialAugmentWide
from loaders.augment.colour import (
    ColorJitter,
    GaussianBlur,
    PixelOp,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from loaders.augment.detection import RandomIoUCrop, RandomZoomOut, SanitizeBoundingBoxes
from loaders.augment.edits import Edits, edit
from loaders.augment.geometry import Geometry, Known, Move, Op, Window
from loaders.augment.nd import check_ops, cut, output_lengths
from loaders.augment.ops import (
    CenterCrop,
    RandomCrop,
    RandomFlip,
    RandomHorizontalFlip,
    RandomResize,
    RandomResizedCrop,
    RandomShortestSize,
    RandomVerticalFlip,
    Resize,
    ScaleJitter,
)
from loaders.augment.pixels import (
    apply,
    move_boxes,
    move_keypoints,
    moved_steps,
    reductions,
    steps_of,
    take_steps,
)
from loaders.augment.planning import fill_mask_of, fill_of, output_size, plan
from loaders.augment.resampling import Resampling
from loaders.augment.views import Views, as_augment, has_draws
from loaders.augment.warps import (
    ElasticTransform,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
    carry_out,
    warp,
)
from loaders.checks import did_you_mean

__all__ = [
    "AugMix",
    "CenterCrop",
    "ColorJitter",
    "Edits",
    "ElasticTransform",
    "GaussianBlur",
    "Geometry",
    "Known",
    "Move",
    "Op",
    "PixelOp",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomFlip",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resampling",
    "Resize",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "TrivialAugmentWide",
    "Views",
    "Window",
    "apply",
    "as_augment",
    "carry_out",
    "check_ops",
    "cut",
    "edit",
    "fill_mask_of",
    "fill_of",
    "has_draws",
    "move_boxes",
    "move_keypoints",
    "moved_steps",
    "output_lengths",
    "output_size",
    "plan",
    "presets",
    "reductions",
    "steps_of",
    "take_steps",
    "warp",
]


_NO_OPS = ("Edits", "Geometry", "Known", "Move", "Op", "PixelOp", "Resampling", "Window")


def __getattr__(name: str) -> Any:
    ops = [each for each in __all__ if each[0].isupper() and each not in _NO_OPS]
    hint = did_you_mean(name, ops) or (
        f": the ops are {', '.join(ops)}; functions of your own go to transform=, "
        "or run on batches, on the device"
    )
    raise AttributeError(f"module 'loaders.augment' has no attribute {name!r}{hint}")
