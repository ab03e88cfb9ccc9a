"""Other libraries' RandAugment(2, 9) and RandomErasing on a GPU, as their pages show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gpu_cases import has
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


def peers_of_edits(images: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return other libraries' ways, as their pages show them."""
    peers: dict[str, Callable[[], Any]] = {}
    if has("torchvision"):
        from torchvision.transforms import v2

        both = v2.Compose([v2.RandAugment(2, 9), v2.RandomErasing(0.25)])
        peers["torchvision v2, one draw for the batch"] = lambda: both(images)
        peers["torchvision v2, image by image"] = lambda: torch.stack([both(i) for i in images])
    if has("kornia"):
        from kornia import augmentation

        many = nn.Sequential(
            augmentation.auto.RandAugment(2, 9), augmentation.RandomErasing(p=0.25)
        )
        peers["kornia"] = lambda: many(images.float() / 255)
        one = nn.Sequential(
            augmentation.auto.RandAugment(2, 9), augmentation.RandomErasing(p=0.25)
        )
        peers["kornia, image by image"] = lambda: [one(i[None].float() / 255) for i in images]
    if has("nvidia-dali-cuda130"):
        peers["DALI"] = dali(images)
    return peers


def dali(images: torch.Tensor) -> Callable[[], Any]:
    """Return a pipeline of DALI's own RandAugment, drawn for each image, and its erasing."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment

    rows = images.permute(0, 2, 3, 1).contiguous()

    @pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator, unused-ignore]
    def both() -> Any:
        x = fn.external_source(source=lambda: rows, device="gpu", layout="HWC", no_copy=True)
        x = rand_augment.rand_augment(x, n=2, m=9, shape=tuple(rows.shape[1:3]))
        if fn.random.coin_flip(probability=0.25, dtype=types.BOOL):
            corner = fn.random.uniform(range=(0.0, 0.7), shape=2)
            size = fn.random.uniform(range=(0.1, 0.5), shape=2)
            x = fn.erase(
                x, anchor=corner, shape=size, normalized=True, axis_names="HW", fill_value=0
            )
        return x

    pipe = both(batch_size=len(rows), num_threads=4, device_id=rows.device.index or 0)
    pipe.build()
    return pipe.run  # type: ignore[no-any-return, unused-ignore]
