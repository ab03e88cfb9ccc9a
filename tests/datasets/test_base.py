import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, Mixture, RAMDataset, augment, concat
from loaders.datasets.base import BatchDataset, SamplesOf
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.halves import moving_halves
from loaders.datasets.reading.request import Request
from loaders.errors import BatchError


class AsTheyAre(SamplesOf[PackedDataset]):
    """The least that a dataset over another one says."""

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        return self.dataset.request(indices, num_workers)


def dataset(num_samples: int = 10, **options: Any) -> RAMDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (num_samples, 3, 8, 8), np.uint8)
    return RAMDataset.from_arrays(image=pixels, label=np.arange(num_samples), **options)


@pytest.mark.parametrize("missing", ["__len__", "fingerprint", "request"])
def test_what_a_loader_needs_cannot_be_left_out(missing: str) -> None:
    parts = {name: getattr(AsTheyAre, name) for name in ("__len__", "fingerprint", "request")}
    whole: Any = type("Whole", (BatchDataset,), dict(parts))
    del parts[missing]
    unfinished: Any = type("Unfinished", (BatchDataset,), parts)

    whole()
    with pytest.raises(TypeError):
        unfinished()


def test_the_rest_follows_from_the_request() -> None:
    whole = dataset()
    same = AsTheyAre(whole)

    assert (len(same), same.fingerprint) == (10, whole.fingerprint)
    assert same.sample_nbytes == whole.sample_nbytes == 3 * 8 * 8 + 8
    assert torch.equal(same[-1].image, whole[9].image)
    assert [int(sample.label) for sample in same] == list(range(10))
    assert same.__getitems__([3, 1]).batch.label.tolist() == [3, 1]
    assert torch.equal(pickle.loads(pickle.dumps(same))[4].image, whole[4].image)
    with pytest.raises(TypeError):
        same["label"]


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_loader_serves_it_as_any_other(backend: Any) -> None:
    whole = dataset()
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "backend": backend}

    batches = list(DataLoader(AsTheyAre(whole), 4, **options))

    assert len(batches) == 3
    for batch, expected in zip(batches, DataLoader(whole, 4, shuffle=True), strict=True):
        assert torch.equal(batch.image, expected.image)


def test_it_augments_for_the_epoch_that_it_is_told() -> None:
    """A foreign sampler's epoch: what is read knows it, too."""
    whole = dataset(augment=[augment.RandomCrop(4)])
    (half, finish), plain = (
        moving_halves(dataset(augment=[augment.RandomCrop(4)])),
        AsTheyAre(whole),
    )
    drawn = []

    for epoch in (0, 1, 0):
        half.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert whole.epoch == epoch
        batch = half.__getitems__(range(10)).batch
        assert torch.equal(finish(batch).image, plain.__getitems__(range(10)).batch.image)
        drawn.append(finish(batch).image)

    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_it_lies_where_the_dataset_lies() -> None:
    assert AsTheyAre(dataset()).device is None
    assert AsTheyAre(RAMDataset(dataset(), device="cpu")).device == torch.device("cpu")


def test_it_tells_how_many_samples_were_replaced() -> None:
    whole = dataset()
    for index in range(3):
        whole.plan.bad.note(whole.plan.samples.sample_error(index, "bad"), range(100))

    assert AsTheyAre(whole).num_replaced == 3


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["array", "tensor"])
def test_one_number_is_a_sample_in_any_form_and_several_are_none(make: Any) -> None:
    dataset = RAMDataset.from_arrays(label=np.arange(10))

    for index in (make(3), make([3]), make([[3]])):
        assert dataset[index].label == 3
    for indices in (make([5, 2, 3]), make([1, 2])):
        with pytest.raises(TypeError):
            dataset[indices]


def test_numbers_beyond_int64_are_no_samples_from_the_end() -> None:
    dataset = RAMDataset.from_arrays(label=np.arange(10))

    for call in (dataset.__getitem__, lambda i: dataset.select(np.array([i], np.uint64))):
        with pytest.raises(IndexError):
            call(2**64 - 1)


def test_threads_that_replace_samples_lose_no_count() -> None:
    samples = dataset()
    error = samples.plan.samples.sample_error(3, "bad")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def replace() -> None:
        for _ in range(5000):
            samples.plan.bad.note(error, range(100))

    threads = [threading.Thread(target=replace) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)

    assert samples.num_replaced == 20_000


def test_a_half_counts_what_it_replaced_as_its_dataset_does() -> None:
    samples = dataset(augment=[augment.RandomCrop(4)])
    error = samples.plan.samples.sample_error(3, "bad")

    half, _ = moving_halves(samples)
    half.plan.bad.note(error, range(100))

    assert half.num_replaced == samples.num_replaced == 1
    assert samples.select([0, 1]).num_replaced == samples.replace(augment=[]).num_replaced == 0


@pytest.mark.parametrize("kind", ["packed", "view", "joined", "mixture", "as it is"])
def test_a_batch_may_be_a_tensor_of_indices(kind: str) -> None:
    """A tensor has an attribute ``indices`` of its own."""
    whole = dataset()
    kinds: dict[str, BatchDataset] = {
        "packed": whole,
        "view": whole.select(np.arange(9, -1, -1)),
        "joined": concat([whole, dataset()]),
        "mixture": Mixture([whole, dataset()]),
        "as it is": AsTheyAre(whole),
    }
    samples = kinds[kind]

    for batch in (torch.tensor([3, 1]), np.array([3, 1])):
        found = samples.__getitems__(batch).batch.label  # type: ignore[arg-type]
        assert found.tolist() == samples.__getitems__([3, 1]).batch.label.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_no_samples_has_nothing_to_transform(num_workers: int) -> None:
    """What a transform makes of samples is not known then: an error, not a batch of another form."""
    dataset = RAMDataset.from_arrays(x=np.arange(4.0))
    loader: dict[str, Any] = {"batch_sampler": [[0], [], [1]], "num_workers": num_workers}

    assert [len(batch.x) for batch in DataLoader(dataset, **loader)] == [1, 0, 1]
    with pytest.raises(BatchError):
        list(DataLoader(dataset.replace(transform=lambda sample: sample), **loader))
