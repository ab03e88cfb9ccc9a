"""Augmentation recipes of papers and libraries, as lists of ops to use or change.

Each returns a list for ``augment=``. Pixel ops act on uint8, before ``Normalize``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.augment.auto import RandAugment, TrivialAugmentWide
from loaders.augment.colour import (
    ColorJitter,
    GaussianBlur,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
)
from loaders.augment.detection import RandomIoUCrop, RandomZoomOut, SanitizeBoundingBoxes
from loaders.augment.ops import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResize,
    RandomResizedCrop,
    Resize,
)
from loaders.augment.planning import Views
from loaders.checks import whole_number

if TYPE_CHECKING:
    from loaders.augment.geometry import Op

IMAGENET_PIXELS = (124, 116, 104)  # ImageNet's mean in pixels; ``Normalize`` makes it 0


def imagenet_train(size: int = 224) -> list[Op]:
    """Return torchvision's recipe for ResNet-50 at 80.9 %: crop, flip, TrivialAugmentWide, erasing; ``size`` in pixels.

    Source: ``references/classification`` of torchvision. Its MixUp and CutMix are modules here: ``loaders.MixUp``.
    """
    return [
        RandomResizedCrop(size),
        RandomHorizontalFlip(),
        TrivialAugmentWide(),
        RandomErasing(0.1, value=IMAGENET_PIXELS),
    ]


def imagenet_eval(size: int = 224, resize: int | None = None) -> list[Op]:
    """Return resize and centre crop, filtered as Pillow does.

    Args:
        size: Crop size in pixels.
        resize: Length of the shorter side before the crop; by default 8/7 of ``size``: 256 for 224.
    """
    return [Resize(round(size * 8 / 7) if resize is None else resize), CenterCrop(size)]


def simclr(size: int = 224, strength: float = 1.0) -> list[Any]:
    """Return SimCLR's recipe: two views of each sample, ``a`` and ``b``; ``strength`` scales the colour jitter.

    Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020, appendix A.
    """
    colours = (0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    view: list[Op] = [
        RandomResizedCrop(size),
        RandomHorizontalFlip(),
        RandomApply([ColorJitter(*colours)], 0.8),
        RandomGrayscale(0.2),
        RandomApply([GaussianBlur(max(size // 20 * 2 + 1, 3))], 0.5),  # a tenth of the image
    ]
    return [Views(a=view, b=view)]


def dino(size: int = 224, crops: int = 8, small: int = 96) -> list[Any]:
    """Return DINO's recipe: two large views, ``global_1`` and ``global_2``, and small ones, ``local_1`` to ``local_8``.

    Args:
        size: Size of the large views in pixels.
        crops: Number of small views.
        small: Size of the small views in pixels.

    Source: Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", 2021, and its code:
        ``DataAugmentationDINO``. Its blur is Pillow's, which has no kernel size; here the kernel is 23 pixels.
    """
    whole_number("crops", crops, at_least=0)
    colours = [RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), RandomGrayscale(0.2)]

    def view(side: int, scale: tuple[float, float], *rest: Op) -> list[Op]:
        crop = RandomResizedCrop(side, scale, interpolation="bicubic")
        return [crop, RandomHorizontalFlip(), *colours, *rest]

    def blur(p: float) -> RandomApply:
        return RandomApply([GaussianBlur(23)], p)

    views = {
        "global_1": view(size, (0.4, 1.0), blur(1.0)),
        "global_2": view(size, (0.4, 1.0), blur(0.1), RandomSolarize(128, 0.2)),
    }
    locals_ = {f"local_{i + 1}": view(small, (0.05, 0.4), blur(0.5)) for i in range(crops)}
    return [Views(**views, **locals_)]


def deit(size: int = 224, magnitude: int = 9) -> list[Op]:
    """Return DeiT's recipe without repeated samples, MixUp and CutMix: two ops of RandAugment, and erasing.

    Args:
        size: Crop size in pixels.
        magnitude: Strength of the two ops on timm's scale, from 0 to 10; each op is applied with probability 0.5.

    Source: Touvron et al., "Training data-efficient image transformers", 2021, table 9: timm's
        ``rand-m9-mstd0.5-inc1``. The ops are torchvision's here: without Invert and SolarizeAdd, Posterize leaves 4
        to 8 bits, and strengths have no noise.
    """
    whole_number("magnitude", magnitude, at_least=0, below=11)
    one = RandomApply([RandAugment(1, 3 * magnitude, fill=IMAGENET_PIXELS)], 0.5)
    return [
        RandomResizedCrop(size, interpolation="bicubic"),
        RandomHorizontalFlip(),
        one,
        one,
        RandomErasing(0.25, (0.02, 1 / 3), value="random"),
    ]


def segmentation(size: int = 480, base: int = 520, fill_mask: int = 255) -> list[Op]:
    """Return torchvision's recipe for segmentation: a scale from 0.5 to 2, a flip, and a crop, padded if needed.

    Args:
        size: Crop size in pixels.
        base: Length of the shorter side at scale 1, in pixels.
        fill_mask: Padding value of masks: the class that the loss ignores.

    Source: ``references/segmentation`` of torchvision.
    """
    return [
        RandomResize(base // 2, base * 2 + 1),
        RandomHorizontalFlip(),
        RandomCrop(size, pad_if_needed=True, fill=IMAGENET_PIXELS, fill_mask=fill_mask),
    ]


def detection(size: int = 640) -> list[Op]:
    """Return SSD's recipe for boxes: colours, zoom out, crop around boxes, flip, letterbox to ``size`` pixels.

    Boxes that are cropped away are dropped, with the rows of other fields that belong to them. Colour changes also
    apply to the padding.

    Source: ``ssd`` in ``references/detection`` of torchvision, whose detectors resize without a letterbox, and whose
        ``RandomPhotometricDistort`` also permutes channels.
    """
    return [
        RandomApply([ColorJitter((0.875, 1.125), (0.5, 1.5), (0.5, 1.5), (-0.05, 0.05))], 0.5),
        RandomZoomOut(IMAGENET_PIXELS),
        RandomIoUCrop(),
        RandomHorizontalFlip(),
        Resize((size, size), pad=True, fill=IMAGENET_PIXELS),
        SanitizeBoundingBoxes(),
    ]
