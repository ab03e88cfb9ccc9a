"""Every recipe of other tests, on a GPU: as on the CPU, where they compare it with the host and torchvision."""

from typing import Any

import numpy as np
import pytest
import torch

from loaders import BatchAugment, CutMix, DataLoader, MixUp, RAMDataset, augment
from loaders.schema import Image, Mask
from tests.augment import test_pixels, test_resampling, test_warps
from tests.device import test_batch_augment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RECIPES: dict[str, list[Any]] = {
    f"{module.__name__.rpartition('_')[2]}: {name}": ops
    for module, recipes in (
        (test_pixels, test_pixels.RECIPES),
        (test_resampling, test_resampling.RECIPES),
        (test_warps, test_warps.RECIPES),
        (test_batch_augment, test_batch_augment.OPS),
    )
    for name, ops in recipes.items()
} | {
    "preset: imagenet_train": augment.presets.imagenet_train(24),
    "preset: imagenet_eval": augment.presets.imagenet_eval(24),
    "preset: deit": augment.presets.deit(24),
}


def scenes(num: int = 24, height: int = 41, width: int = 52) -> tuple[torch.Tensor, torch.Tensor]:
    """Return smooth images with noise, uint8 ``(N, 3, H, W)``, and masks of ten classes."""
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)[..., None] + [0, 40, 90]
    images = (
        ramp
        + rng.integers(0, 40, (num, height, width, 3))
        + 9 * np.arange(num)[:, None, None, None]
    ) % 256
    masks = rng.integers(0, 10, (num, height, width))
    return torch.from_numpy(images.astype(np.uint8)).permute(0, 3, 1, 2), torch.from_numpy(masks)


@pytest.mark.parametrize("name", RECIPES)
def test_a_gpu_gives_what_the_cpu_gives(name: str) -> None:
    images, masks = scenes()
    module = BatchAugment(RECIPES[name], seed=5)

    want, want_masks = module(images, masks, indices=range(24), epoch=2)
    found, found_masks = module(images.cuda(), masks.cuda(), indices=range(24), epoch=2)

    assert found.is_cuda
    apart = (found.cpu().int() - want.int()).abs()
    assert (apart <= 1).float().mean() >= 0.995
    assert apart.float().mean() < 0.5
    assert (found_masks.cpu() == want_masks).float().mean() >= 0.995


@pytest.mark.parametrize("mix", [MixUp, CutMix])
def test_mixes_are_those_of_the_cpu(mix: Any) -> None:
    images, _ = scenes()
    labels, ids = torch.arange(24) % 7, torch.arange(100, 124)
    module = mix(num_classes=7, seed=3)

    want, want_labels = module(images, labels, ids, epoch=1)
    found, found_labels = module(images.cuda(), labels.cuda(), ids.cuda(), epoch=1)

    torch.testing.assert_close(found.cpu().float(), want.float(), atol=1, rtol=0)
    torch.testing.assert_close(found_labels.cpu(), want_labels, atol=1e-5, rtol=0)


@pytest.mark.parametrize("on", ["device", "host"])
def test_a_loader_augments_on_a_gpu_as_on_the_host(on: Any) -> None:
    images, masks = scenes(40)
    dataset = RAMDataset.from_arrays(
        image=images,
        mask=masks.numpy().astype(np.uint8),
        label=torch.arange(40),
        schema={
            "image": Image(size=(41, 52), codec="raw"),
            "mask": Mask(size=(41, 52), codec="raw"),
        },
        augment=[
            augment.RandomResizedCrop(24),
            augment.RandomHorizontalFlip(),
            augment.ColorJitter(0.4, 0.4, 0.2),
        ],
    )
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 2}
    host = DataLoader(dataset, **settings)
    there = DataLoader(dataset, device="cuda", augment_on=on, **settings)

    for _ in range(2):
        for want, found in zip(host, there, strict=True):
            assert found.image.is_cuda
            assert found.label.tolist() == want.label.tolist()
            apart = (found.image.cpu().int() - want.image.int()).abs()
            assert (apart <= 2).float().mean() >= 0.97
            assert (found.mask.cpu() == want.mask).float().mean() >= 0.9
