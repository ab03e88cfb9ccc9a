"""``LOADERS_SAMPLE``: every order of ours gives its first samples alone, and states know it."""

from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from torch.utils.data import SequentialSampler

from loaders import DataLoader, Mixture, RAMDataset
from loaders.errors import StateError
from loaders.sampling import ByLength, EpochSampler, Lanes, Weighted

NUM = 60


def numbers() -> RAMDataset:
    return RAMDataset.from_arrays(label=np.arange(NUM))


def labels(loader: Any) -> list[int]:
    return list(chain.from_iterable(batch.label.tolist() for batch in loader))


CASES: dict[str, Any] = {
    "plain": lambda: DataLoader(numbers(), 4, num_workers=0),
    "shuffled": lambda: DataLoader(numbers(), 4, shuffle=True, num_workers=1),
    "lanes": lambda: DataLoader(numbers(), 4, sampler=Lanes([10] * 6, num_lanes=2)),
    "weighted": lambda: DataLoader(numbers(), 4, sampler=Weighted(np.ones(NUM), 80)),
    "lengths": lambda: DataLoader(
        numbers(), sampler=ByLength(np.arange(NUM) % 7, max_tokens=20), num_workers=0
    ),
    "mixture": lambda: DataLoader(Mixture([numbers(), numbers()], [1, 2]), 4),
    "torch": lambda: DataLoader(numbers(), 4, sampler=SequentialSampler(range(NUM))),
    "child": lambda: DataLoader(numbers(), 4, shuffle=True, num_workers=1, backend="subprocess"),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "child"])
def test_the_first_samples_of_each_epoch_are_served(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CASES[name]()
    epochs = [labels(whole) for _ in range(2)]
    monkeypatch.setenv("LOADERS_SAMPLE", "12")
    loader = CASES[name]()

    assert [labels(loader) for _ in range(2)] == [epoch[:12] for epoch in epochs]


@pytest.mark.slow
def test_a_child_serves_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADERS_SAMPLE", "10")
    loader = CASES["child"]()

    assert labels(loader) == labels(CASES["shuffled"]())
    assert len(loader) == 3


@pytest.mark.parametrize("name", ["plain", "shuffled", "lanes", "lengths", "mixture", "torch"])
def test_states_go_on_among_themselves_and_are_refused_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CASES[name]().state_dict()
    monkeypatch.setenv("LOADERS_SAMPLE", "12")
    first, second, other = (CASES[name]() for _ in range(3))
    batches = iter(first)
    taken = list(islice(batches, 2))
    second.load_state_dict(first.state_dict())

    assert [t.label.tolist() for t in taken] + [b.label.tolist() for b in second] == [
        b.label.tolist() for b in CASES[name]()
    ]
    with pytest.raises(StateError):
        other.load_state_dict(whole)
    monkeypatch.setenv("LOADERS_SAMPLE", "11")
    with pytest.raises(StateError):
        CASES[name]().load_state_dict(first.state_dict())
    monkeypatch.delenv("LOADERS_SAMPLE")
    with pytest.raises(StateError):
        CASES[name]().load_state_dict(first.state_dict())


def test_ranks_divide_the_first_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADERS_SAMPLE", "13")
    parts = [list(EpochSampler(NUM, rank=rank, world_size=2, pad=False)) for rank in range(2)]

    monkeypatch.delenv("LOADERS_SAMPLE")
    assert sorted(chain(*parts)) == sorted(list(EpochSampler(NUM))[:13])


def test_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOADERS_SAMPLE", "17")
    for _ in range(3):
        EpochSampler(NUM)

    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5"])
def test_what_is_no_number_of_samples_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    EpochSampler(NUM)
    monkeypatch.setenv("LOADERS_SAMPLE", text)
    with pytest.raises(ValueError):
        EpochSampler(NUM)
