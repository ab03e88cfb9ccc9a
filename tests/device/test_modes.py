"""Batches are the same whatever mode they are asked for in, and can be trained on in any other."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, Normalize, RAMDataset, ShardDataset, augment
from loaders.schema import Array, Image, Label
from packdata import pack


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Any] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default_dtype": lambda: default_dtype(torch.float16),
    "default_device": lambda: torch.device("meta"),
}
WAYS: dict[str, Any] = {
    "inline": {"num_workers": 0},
    "threads": {"num_workers": 2, "backend": "thread"},
    "child": {"num_workers": 1, "backend": "subprocess"},
    "copied": {"num_workers": 2, "backend": "thread", "device": "cpu", "augment_on": "device"},
}


def small() -> RAMDataset:
    rng = np.random.default_rng(0)
    return RAMDataset.from_arrays(
        image=rng.integers(0, 256, (64, 3, 8, 8), np.uint8),
        x=rng.random((64, 3), np.float32),
        label=np.arange(64),
    ).replace(fields=["image", "x", "label", "sample_id"])


def pictures(folder: Path, codec: str) -> ShardDataset:
    rng = np.random.default_rng(0)
    fields = {"image": Image(codec=codec, size=(32, 32)), "x": Array(dims=(5,)), "label": Label()}
    samples = (
        {
            "image": rng.integers(0, 256, (32, 32, 3), np.uint8),
            "x": np.full(5, i, np.float32),
            "label": i,
        }
        for i in range(24)
    )
    pack(samples, folder, fields)
    ops = [augment.RandomCrop(16), augment.RandomHorizontalFlip()]
    return ShardDataset(folder, augment=ops)


def served(dataset: Any, mode: Any, settings: dict[str, Any]) -> list[Any]:
    """Return the batches of an epoch, of which the first and the third were asked for in a mode."""
    loader = iter(DataLoader(dataset, 4, seed=1, shuffle=True, **settings))
    batches: list[Any] = []
    for number in range(6):
        with ExitStack() as stack:
            if number in (0, 2):
                stack.enter_context(mode())
            batches.append(next(loader))
    return batches


def assert_plain(batches: list[Any], expected: list[Any]) -> None:
    for batch, twin in zip(batches, expected, strict=True):
        for value, other in zip(batch, twin, strict=True):
            assert (value.dtype, value.device) == (other.dtype, other.device)
            assert not value.is_inference()
            assert torch.equal(value, other)
            if value.is_floating_point():
                weight = torch.ones(value.shape[1:], requires_grad=True)
                (value * weight).sum().backward()


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.slow if w == "child" else []) for w in WAYS]
)
@pytest.mark.parametrize("mode", MODES)
def test_the_mode_of_who_asks_is_not_that_of_small_batches(mode: str, way: str) -> None:
    settings = {**WAYS[way]}
    expected = served(small(), ExitStack, settings)

    assert_plain(served(small(), MODES[mode], settings), expected)


@pytest.mark.parametrize("way", ["inline", "threads"])
@pytest.mark.parametrize("codec", ["raw", "png", "dct", "yuv420"])
def test_the_mode_of_who_asks_is_not_that_of_pictures(
    tmp_path: Path, codec: str, way: str
) -> None:
    dataset = pictures(tmp_path / "a", codec)
    expected = served(dataset, ExitStack, WAYS[way])

    for mode in ("inference", "autocast", "default_dtype", "default_device"):
        assert_plain(served(dataset, MODES[mode], WAYS[way]), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize(
    "op",
    [
        augment.RandomAdjustSharpness(2, p=1.0),
        augment.ElasticTransform(),
        augment.RandomRotation(30, fill=7),
        augment.ColorJitter(hue=0.2),
    ],
    ids=lambda op: type(op).__name__,
)
def test_the_default_dtype_is_not_that_of_what_the_device_moves(op: Any, dtype: Any) -> None:
    dataset = small().replace(augment=[op], fields=["image", "label"])
    settings = {"num_workers": 0, "augment_on": "device"}
    expected = served(dataset, ExitStack, settings)

    assert_plain(served(dataset, lambda: default_dtype(dtype), settings), expected)


@pytest.mark.parametrize("mode", MODES)
def test_samples_that_are_read_one_by_one_are_the_same(tmp_path: Path, mode: str) -> None:
    dataset = pictures(tmp_path / "a", "dct")

    with MODES[mode]():
        sample = dataset[3]

    for value, other in zip(sample, dataset[3], strict=True):
        assert torch.equal(value, other)


def test_statistics_are_float32_whatever_the_default_is() -> None:
    images = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)

    with default_dtype(torch.float16):
        module = Normalize.imagenet()

    assert torch.equal(module(images), Normalize.imagenet()(images))
