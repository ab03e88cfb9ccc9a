"""What a loader chooses; what comes of it is tested with the loader."""

import inspect
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, augment
from loaders.datasets.base import SamplesOf
from loaders.loading.options import LoaderOptions
from loaders.sampling import BlockShuffled
from loaders.sampling.order import Sequential, Shuffled
from loaders.schema import Image
from loaders.system.limits import usable_cores
from tests.packdata.packing import pack

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
CROP = [augment.RandomCrop(8)]


@pytest.fixture(scope="module")
def coefficients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {"image": Image(size=(16, 16), codec="dct")}
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    folder: Path = tmp_path_factory.mktemp("packed") / "out"
    return pack(folder, fields, [{"image": one} for one in pixels])


def pixels(**options: Any) -> RAMDataset:
    return RAMDataset.from_arrays(image=np.zeros((5, 3, 16, 16), np.uint8), **options)


def options(dataset: Any, **given: Any) -> LoaderOptions:
    """Return what a loader of these arguments has."""
    defaults = inspect.signature(DataLoader).parameters.items()
    rest = {name: each.default for name, each in defaults if name != "dataset"}
    return LoaderOptions(dataset=dataset, **rest | {"seed": 7} | given)


def halves(dataset: Any, device: torch.device | None, augment_on: str) -> Any:
    return options(dataset, device=device, augment_on=augment_on).halves()


@pytest.mark.parametrize("ops", [[], CROP])
def test_coefficients_are_finished_where_the_batch_goes(coefficients: Path, ops: Any) -> None:
    dataset = ShardDataset(coefficients, augment=ops)

    for device in (None, CPU):
        assert halves(dataset, device, "auto") == (dataset, None)
    half, finisher = halves(dataset, ELSEWHERE, "auto")

    assert half is not dataset
    assert finisher is not None


def test_whoever_says_host_gets_images_that_were_made_there(coefficients: Path) -> None:
    dataset = ShardDataset(coefficients, augment=CROP)

    assert halves(dataset, ELSEWHERE, "host") == (dataset, None)


@pytest.mark.parametrize("device", [CPU, ELSEWHERE])
def test_pixels_are_cropped_on_a_device_only_when_told_so(device: torch.device) -> None:
    dataset = pixels(augment=CROP)

    assert halves(dataset, device, "auto") == (dataset, None)
    assert isinstance(halves(dataset, device, "device")[0], SamplesOf)
    assert halves(pixels(), device, "device")[1] is None  # there is nothing to do


@pytest.mark.parametrize(
    ("given", "is_ours"),
    [
        ({}, True),
        ({"sampler": Shuffled(5, seed=1)}, True),
        ({"sampler": Shuffled(5, seed=1), "generator": torch.Generator()}, True),
        ({"sampler": [0, 1]}, False),
        ({"generator": torch.Generator()}, True),  # nothing is drawn from it
        ({"generator": torch.Generator(), "shuffle": True}, False),
        ({"batch_sampler": [[0, 1]]}, False),
    ],
)
def test_an_order_is_ours_unless_something_says_another(
    given: dict[str, Any], is_ours: bool
) -> None:
    assert options(pixels(), **given).has_own_order == is_ours


def test_the_order_is_what_shuffle_says_and_a_given_one_stays() -> None:
    given = Sequential(3)

    assert options(pixels()).order() == Sequential(5)
    assert options(pixels(), shuffle=True).order() == Shuffled(5, 7)
    assert options(pixels(), shuffle="block").order() == BlockShuffled(5, 7)
    assert options(pixels(), sampler=given).order() is given


def test_workers_are_as_many_as_the_samples_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = pixels(), RAMDataset.from_arrays(image=np.zeros((2, 3, 99, 99), np.uint8))
    tiny = RAMDataset.from_arrays(label=np.zeros(2))

    def workers(dataset: Any, num_workers: Any = "auto") -> int:
        return options(dataset, num_workers=num_workers).chosen_workers

    assert workers(small, 3) == 3
    assert workers(tiny) == 1  # copied in no time
    assert workers(small) == min(2, usable_cores())
    assert workers(large) == usable_cores()
    assert workers([1, 2, 3]) == 0  # torch's own default
    assert workers(RAMDataset(small, device="cpu")) == 0  # gathered by the device
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(usable_cores()))
    assert workers(large) == 1  # a rank's share of the cores
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    large.max_workers = small.max_workers = 1
    assert workers(small) == 1
    assert workers(large) == 1  # says that more would only compete
    assert workers(large, 3) == 3


def test_options_are_frozen_and_each_change_is_checked_like_the_first() -> None:
    first = options(pixels(), batch_size=2)

    changed = replace(first, num_workers=3, device_prefetch=0)

    assert (first.chosen_workers, changed.chosen_workers) == (min(2, usable_cores()), 3)
    with pytest.raises(FrozenInstanceError):
        first.batch_size = 3  # type: ignore[misc]
    wrong: Any
    for wrong in ({"num_workers": -1}, {"device_prefetch": -1}, {"timeout": -1}):
        with pytest.raises(ValueError):
            replace(first, **wrong)


@pytest.mark.parametrize("given", ["host", "device"])
def test_where_a_mixture_is_augmented_is_as_was_said(given: Any) -> None:
    device = torch.device("meta")
    source = pixels().replace(augment=[augment.RandomCrop(2)])

    alone = halves(source, device, given)
    mixed = halves(Mixture([source, source]), device, given)

    assert (mixed[1] is None) == (alone[1] is None) == (given == "host")
    apart = Mixture([source, source.replace(on_error="replace")])
    if given == "device":
        with pytest.raises(ValueError):
            halves(apart, device, given)
