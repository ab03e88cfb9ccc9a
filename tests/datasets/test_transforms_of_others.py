"""Transforms of torchvision and albumentations draw what belongs to the sample, on threads too."""

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
            v2.GaussianNoise(),
        ]
    )

    assert_repeats(chain)
    assert_repeats(lambda image: chain(image))


def drawn_by_trainer() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_generators_of_the_trainer_are_left_alone(num_workers: int) -> None:
    def seed() -> None:
        np.random.seed(5)  # noqa: NPY002
        random.seed(5)

    def noisy(image: torch.Tensor) -> torch.Tensor:
        seed()  # of the sample's own, here
        return image + int(sum(drawn_by_trainer()))

    torch.manual_seed(5)
    seed()
    want = [drawn_by_trainer() for _ in range(2)]

    torch.manual_seed(5)
    seed()
    found = [drawn_by_trainer()]
    served(noisy, 4, num_workers=num_workers)
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


def test_functions_of_numpy_and_python_stay_what_they_were() -> None:
    served(lambda image: image, 8, num_workers=0)

    for function in (np.random.rand, np.random.choice, np.random.sample, random.choice):
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__doc__
    with ThreadPoolExecutor(2) as pool:  # threads of others have the process's
        random.seed(1)
        one = list(pool.map(lambda _: random.random(), range(4)))
    random.seed(1)
    assert sorted(one) == sorted(random.random() for _ in range(4))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(()),
        lambda x: torch.empty(1).uniform_(0, 1),
        lambda x: torch.randn(2),
        lambda x: torch.rand_like(x, dtype=torch.float32),
        lambda x: torch.randn_like(x.double()),
        lambda x: torch.randint_like(x, 200),
        lambda x: torch.randint_like(x, low=100, high=200, dtype=torch.int32),
        lambda x: torch.randperm(50),
        lambda x: torch.normal(0.0, 1.0, (2,)),
        lambda x: torch.distributions.Beta(1.0, 2.0).sample(),
        lambda x: torch.nn.functional.dropout(x.float()),
        lambda x: torch.nn.Dropout(0.25)(x.float()),
        lambda x: torch.multinomial(torch.ones(500), 2),
        lambda x: torch.tensor(np.random.rand()),  # noqa: NPY002
        lambda x: torch.tensor(np.random.sample()),  # noqa: NPY002
        lambda x: torch.from_numpy(np.random.permutation(50)),  # noqa: NPY002
        lambda x: torch.tensor(random.random()),
        lambda x: torch.tensor(random.gauss(0, 1)),
        lambda x: torch.tensor(random.sample(range(50), 5)),
    ],
    ids=[
        *(
            "rand",
            "uniform_",
            "randn",
            "rand_like",
            "randn_like",
            "randint_like",
            "low",
            "randperm",
            "normal",
            "beta",
            "dropout",
            "Dropout",
            "multinomial",
        ),
        *("numpy.rand", "numpy.sample", "numpy.permutation"),
        *("random", "gauss", "sample"),
    ],
)
def test_functions_that_draw_repeat(draw: Callable[[Any], torch.Tensor]) -> None:
    one = served(lambda x: draw(x).double().flatten(), 8, num_workers=2)
    other = served(lambda x: draw(x).double().flatten(), 5, num_workers=0)

    assert all(torch.equal(one[n], other[n]) for n in one)
    assert len({value.numpy().tobytes() for value in one.values()}) > 12


@pytest.fixture
def albumentations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    return pytest.importorskip("albumentations")


def albumented(albumentations: Any) -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
    """Return a transform, and a function that calls it."""
    transform = albumentations.Compose(
        [
            albumentations.RandomCrop(16, 16),
            albumentations.OneOf([albumentations.HorizontalFlip(), albumentations.Transpose()]),
            albumentations.RandomBrightnessContrast(p=1.0),
        ]
    )

    def inside(image: torch.Tensor) -> torch.Tensor:
        made = transform(image=image.permute(1, 2, 0).numpy().copy())["image"]
        return torch.from_numpy(made.copy()).permute(2, 0, 1)

    return transform, inside


def test_albumentations_repeat_on_threads(albumentations: Any) -> None:
    transform, inside = albumented(albumentations)
    before = transform.py_random

    assert_repeats(transform)
    assert_repeats(inside)

    assert transform.py_random is before  # beside a loader it draws as ever
    assert len({transform.py_random.random() for _ in range(9)}) == 9
    assert pickle.loads(pickle.dumps(transform)).random_generator is not None


def everything(image: torch.Tensor) -> torch.Tensor:
    drawn = [*torch.rand(2).tolist(), np.random.rand(), random.random(), random.gauss(0, 1)]  # noqa: NPY002
    return torch.tensor(drawn)


@pytest.mark.slow
def test_processes_of_torch_draw_what_threads_do(albumentations: Any) -> None:
    for transform in (everything, *albumented(albumentations)):
        one = served(transform, 8, num_workers=2)
        how: Any = {"backend": "process", "multiprocessing_context": "fork"}
        other = served(transform, 5, num_workers=2, **how)

        assert all(torch.equal(one[n], other[n]) for n in one)


def of_torchs_loader(transform: Any, num_workers: int) -> list[torch.Tensor]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 22, 3), np.uint8)
    dataset: Any = RAMDataset.from_arrays(image=pixels, transform={"image": transform})
    how: Any = "fork" if num_workers else None  # a lambda cannot be pickled
    loader: Any = torch.utils.data.DataLoader(
        dataset, 8, num_workers=num_workers, multiprocessing_context=how
    )
    return [torch.cat([batch.image for batch in loader]) for _ in range(3)]


def test_albumentations_change_by_epoch_under_torchs_own_loader(albumentations: Any) -> None:
    crop = albumentations.Compose([albumentations.RandomCrop(16, 16)])

    with pytest.warns(UserWarning, match="epoch"):
        of_torchs_loader(crop, 0)  # here all epochs are the same
    for transform in (crop, lambda image: _cropped(crop, image)):
        first, second, third = of_torchs_loader(transform, 2)

        assert not torch.equal(first, second)
        assert not torch.equal(second, third)


class Cropped(torch.utils.data.Dataset[int]):
    """Of nobody's but the user: each sample is cropped by numbers of a seed."""

    def __init__(self, albumentations: Any) -> None:
        self.crop = albumentations.Compose([albumentations.RandomCrop(4, 4)], seed=42)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        image = np.arange(900).reshape(30, 30).astype(np.float32)
        return int(self.crop(image=image)["image"].sum())


def test_albumentations_of_a_dataset_beside_draw_by_their_own_seed(albumentations: Any) -> None:
    served(lambda image: image, 8, num_workers=0)
    loader: Any = torch.utils.data.DataLoader(Cropped(albumentations), 8, num_workers=1)
    dataset = Cropped(albumentations)

    (batch,) = loader

    assert batch.tolist() == [dataset[i] for i in range(8)]


def _cropped(crop: Any, image: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(crop(image=image.permute(1, 2, 0).numpy().copy())["image"].copy())
