"""Transforms of torchvision and albumentations draw what belongs to the sample, on threads too."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset
from tests.torchvision_v2 import torchvision_v2

if TYPE_CHECKING:
    from collections.abc import Callable


def served(transform: Callable[..., Any], batch_size: int, **options: Any) -> dict[int, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 22, 3), np.uint8)
    dataset = RAMDataset.from_arrays(
        image=pixels, number=np.arange(24), transform={"image": transform}
    )
    loader = DataLoader(dataset, batch_size, shuffle=True, seed=1, **options)
    return {int(n): image for batch in loader for image, n in zip(*batch, strict=True)}


def assert_repeats(transform: Callable[..., Any]) -> None:
    one = served(transform, 8, num_workers=1)
    torch.rand(7)  # whatever the trainer draws
    other = served(transform, 3, num_workers=3)

    assert one.keys() == other.keys()
    assert all(torch.equal(one[n], other[n]) for n in one)
    assert len({image.numpy().tobytes() for image in one.values()}) == 24


def test_torchvision_repeats_on_threads() -> None:
    v2 = torchvision_v2()
    chain = v2.Compose(
        [
            v2.RandomResizedCrop(12),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.RandAugment(),
            v2.AugMix(),
            v2.RandomErasing(),
        ]
    )

    assert_repeats(chain)
    assert_repeats(lambda image: chain(image))


def test_the_generator_of_the_trainer_is_left_alone() -> None:
    torch.manual_seed(5)
    want = torch.rand(3)

    torch.manual_seed(5)
    served(
        lambda image: image + torch.randint(0, 9, image.shape).to(torch.uint8), 4, num_workers=0
    )

    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(()),
        lambda x: torch.empty(1).uniform_(0, 1),
        lambda x: torch.randn(2),
        lambda x: torch.randperm(50),
        lambda x: torch.normal(0.0, 1.0, (2,)),
        lambda x: torch.distributions.Beta(1.0, 2.0).sample(),
        lambda x: torch.multinomial(torch.ones(500), 2),
    ],
    ids=["rand", "uniform_", "randn", "randperm", "normal", "beta", "multinomial"],
)
def test_functions_that_draw_from_torch_repeat(draw: Callable[[Any], torch.Tensor]) -> None:
    one = served(lambda x: draw(x).double().flatten(), 8, num_workers=2)
    other = served(lambda x: draw(x).double().flatten(), 5, num_workers=0)

    assert all(torch.equal(one[n], other[n]) for n in one)
    assert len({value.numpy().tobytes() for value in one.values()}) > 12


@pytest.mark.skipif(
    importlib.util.find_spec("albumentations") is None, reason="albumentations is not installed"
)
def test_albumentations_repeat_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    albumentations: Any = __import__("albumentations")

    assert_repeats(
        albumentations.Compose(
            [
                albumentations.RandomCrop(16, 16),
                albumentations.HorizontalFlip(),
                albumentations.RandomBrightnessContrast(p=1.0),
            ]
        )
    )
