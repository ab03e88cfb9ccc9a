"""Augmentation as parameters drawn per sample: crops, resizes and flips become one box, resampled once.

A dataset takes a list of ops, ``augment=[RandomResizedCrop(224), RandomHorizontalFlip()]``. Per sample it comes down
to one crop box in source pixels, one output size and one pair of flips (``planning.draw_geometry``, for a whole batch,
from seed, epoch, index, draw and view), which are carried out straight into the batch (``pixels.apply``). Pixel ops
(``colour``) act on the result. Crops and flips work on any number of axes.

An op of your own subclasses ``Op`` and moves a ``Window``, or subclasses ``PixelOp``.
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
from loaders.augment.geometry import Op, Window
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
from loaders.augment.planning import Views
from loaders.augment.warps import (
    ElasticTransform,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
)
from loaders.checks import did_you_mean
from loaders.gone import gone

__all__ = [
    "AugMix",
    "CenterCrop",
    "ColorJitter",
    "ElasticTransform",
    "GaussianBlur",
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
    "Resize",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "TrivialAugmentWide",
    "Views",
    "Window",
    "presets",
]


def __getattr__(name: str) -> Any:
    hint = did_you_mean(name, __all__) or ": functions of your own go to transform="
    hint = gone(f"loaders.augment.{name}", hint)
    raise AttributeError(f"module 'loaders.augment' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
