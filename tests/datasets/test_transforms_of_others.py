"""Transforms of torchvision and albumentations: which ones draw what belongs to the sample, and what they leave."""

import inspect
import logging
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset
from tests.torchvision_v2 import torchvision_v2


def served(transform: Callable[..., Any], batch_size: int, **options: Any) -> dict[int, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 22, 3), np.uint8)
    dataset = RAMDataset.from_arrays(
        image=pixels, number=np.arange(24), transform={"image": transform}
    )
    loader = DataLoader(dataset, batch_size, shuffle=True, seed=1, **options)
    return {int(n): image for batch in loader for image, n in zip(*batch, strict=True)}


def assert_repeats(transform: Callable[..., Any], *runs: dict[str, Any]) -> None:
    one, *others = (
        served(transform, size, **how) for size, how in zip((8, 3, 5), runs, strict=False)
    )

    for other in others:
        assert one.keys() == other.keys()
        assert all(torch.equal(one[n], other[n]) for n in one)
    assert len({image.numpy().tobytes() for image in one.values()}) == 24


def chain_of_torchvision() -> Any:
    v2 = torchvision_v2()
    return v2.Compose(
        [
            v2.RandomResizedCrop(12),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.RandAugment(),
            v2.RandomErasing(),
            v2.GaussianNoise(),
        ]
    )


def everything(image: torch.Tensor) -> torch.Tensor:
    drawn = [*torch.rand(2).tolist(), np.random.rand(), random.random(), random.gauss(0, 1)]  # noqa: NPY002
    return torch.tensor(drawn)


# -- the generators of the process -----------------------------------------------------------------

PROCESS: dict[str, Any] = {"backend": "process", "multiprocessing_context": "fork"}


@pytest.mark.parametrize("make", [chain_of_torchvision, lambda: everything], ids=["v2", "all"])
def test_without_workers_and_in_worker_processes_they_are_seeded_by_sample(make: Any) -> None:
    assert_repeats(make(), {"num_workers": 0}, {"num_workers": 2, **PROCESS}, {"num_workers": 0})


def drawn_by_trainer() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002


def test_without_workers_the_numbers_of_the_trainer_go_on() -> None:
    def seed() -> None:
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        random.seed(5)

    seed()
    want = [drawn_by_trainer() for _ in range(2)]

    seed()
    found = [drawn_by_trainer()]
    served(everything, 4, num_workers=0)
    found.append(drawn_by_trainer())

    assert found == want


def test_a_transform_within_a_transform_draws_its_own() -> None:
    pixels = np.zeros((3, 4, 4, 3), np.uint8)
    inner: Any = RAMDataset.from_arrays(
        image=pixels,
        transform={"image": lambda x: torch.tensor(np.random.rand())},  # noqa: NPY002
    )

    def outer(image: torch.Tensor) -> torch.Tensor:
        first, between = np.random.rand(), float(inner[1].image)  # noqa: NPY002
        return torch.tensor([first, between, np.random.rand()])  # noqa: NPY002

    def plain(image: torch.Tensor) -> torch.Tensor:
        first, last = np.random.rand(2).tolist()  # noqa: NPY002
        return torch.tensor([first, float(inner[1].image), last])

    lists = ({"image": outer}, {"image": plain})
    made: list[Any] = [RAMDataset.from_arrays(image=pixels, transform=f)[2] for f in lists]

    assert torch.equal(made[0].image, made[1].image)
    assert len(set(made[0].image.tolist())) == 3


def with_generator(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(3, generator=generator)


def with_numpys(image: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(generator.random(3))


@pytest.mark.parametrize(
    ("draw", "is_told"),
    [
        (lambda image: torch.rand(3), True),
        (lambda image: torch.from_numpy(np.random.rand(3)), True),  # noqa: NPY002
        (lambda image: torch.tensor(random.random()), True),
        (lambda image: image, False),
        (with_generator, False),
        (with_numpys, False),
    ],
    ids=["torch", "numpy", "random", "nothing", "generator", "numpy's generator"],
)
def test_on_threads_a_line_says_once_what_does_not_repeat(
    draw: Any, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "loaders"):
        served(draw, 4, num_workers=2)

    assert len(caplog.records) == is_told


@pytest.mark.parametrize("draw", [with_generator, with_numpys])
def test_a_generator_of_torch_or_numpy_is_the_samples_own_on_any_thread(draw: Any) -> None:
    assert_repeats(draw, {"num_workers": 0}, {"num_workers": 3}, {"num_workers": 1, **PROCESS})


# -- albumentations --------------------------------------------------------------------------------


@pytest.fixture
def albumentations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    return pytest.importorskip("albumentations")


def albumented(albumentations: Any) -> Any:
    return albumentations.Compose(
        [
            albumentations.RandomCrop(16, 16),
            albumentations.OneOf([albumentations.HorizontalFlip(), albumentations.Transpose()]),
            albumentations.RandomBrightnessContrast(p=1.0),
        ]
    )


def test_albumentations_repeat_on_threads_and_in_processes(albumentations: Any) -> None:
    transform = albumented(albumentations)
    before = transform.py_random, transform.random_generator

    assert_repeats(
        transform, {"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, **PROCESS}
    )

    assert (transform.py_random, transform.random_generator) == before
    assert pickle.loads(pickle.dumps(transform)).random_generator is not None


def test_albumentations_change_by_epoch_under_torchs_own_loader(albumentations: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 22, 3), np.uint8)
    crop = albumentations.Compose([albumentations.RandomCrop(16, 16)])
    dataset: Any = RAMDataset.from_arrays(image=pixels, transform={"image": crop})

    def epochs(**options: Any) -> list[torch.Tensor]:
        loader: Any = torch.utils.data.DataLoader(dataset, 8, **options)
        return [torch.cat([batch.image for batch in loader]) for _ in range(3)]

    first, second, third = epochs(num_workers=2, multiprocessing_context="fork")
    with pytest.warns(UserWarning, match="epoch"):
        epochs()  # here all are the same

    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


# -- nothing of others is patched ------------------------------------------------------------------


def members(*owners: Any) -> list[Any]:
    """Return what the names of modules and classes stand for."""
    return [(owner, name, member) for owner in owners for name, member in vars(owner).items()]


def test_modules_and_classes_of_others_are_what_they_were(albumentations: Any) -> None:
    kinds = [kind for kind in vars(albumentations).values() if inspect.isclass(kind)]
    owners = (random, np.random, torch.nn.functional, albumentations, *kinds)
    before = members(*owners)

    for transform in (chain_of_torchvision(), albumented(albumentations), everything):
        for num_workers in (0, 2):
            served(transform, 8, num_workers=num_workers)

    after = members(*owners)
    assert len(after) == len(before)
    assert all(one[2] is other[2] for one, other in zip(before, after, strict=True))
