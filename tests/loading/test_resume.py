"""States of third-party samplers: their own where they have one, by counting where not; streams have none."""

import copy
import itertools
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loaders import DataLoader, RAMDataset
from loaders.errors import StateError
from loaders.sampling.sampler import EpochSampler

NUM = 23


class Plain(Dataset[int]):
    num_read = 0

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> int:
        self.num_read += 1
        return int(index)


class Remembering:
    """A sampler with a state: a walk through the samples that goes on where the one before it ended."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return NUM

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM - self.place % NUM):
            self.place += 1
            yield (self.place * 5 + self.place // NUM) % NUM

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Living(Remembering):
    """One whose state is what it keeps itself, and goes on changing."""

    def state_dict(self) -> dict[str, int]:
        return vars(self)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def batches_of(batches: Any) -> list[list[int]]:
    return [getattr(batch, "x", batch).tolist() for batch in batches]


def make(name: str) -> dict[str, Any]:
    weights = torch.arange(NUM) + 1.0
    made: dict[str, Any] = {
        "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        "random": lambda: {"sampler": RandomSampler(range(NUM))},
        "random with generator": lambda: {
            "sampler": RandomSampler(range(NUM), generator=torch.Generator())
        },
        "weighted": lambda: {"sampler": WeightedRandomSampler(weights.tolist(), NUM)},
        "subset": lambda: {"sampler": SubsetRandomSampler(range(5, 20))},
        "list": lambda: {"sampler": list(range(NUM))[::-1]},
        "batches": lambda: {
            "batch_size": 1,
            "batch_sampler": [[i, i + 1, i + 2] for i in range(18)],
        },
        "stateful": lambda: {"sampler": Remembering()},
        "ours in batches": lambda: {
            "batch_sampler": BatchSampler(EpochSampler(NUM, seed=3), 3, drop_last=False)
        },
    }
    settings: dict[str, Any] = made[name]()
    return settings | ({} if "batch_sampler" in settings else {"batch_size": 3})


SAMPLERS = [
    "generator",
    "random",
    "random with generator",
    "weighted",
    "subset",
    "list",
    "batches",
    "stateful",
    "ours in batches",
]


PLAIN, OWN = Plain(), RAMDataset.from_arrays(x=np.arange(NUM))
GOING_ON = [
    *itertools.product(SAMPLERS, [PLAIN], [0], [0, 3, 5]),
    *itertools.product(SAMPLERS, [OWN], [0, 2], [0, 3, 5]),
    ("random", PLAIN, 2, 3),  # in processes, which take long to start
    ("stateful", PLAIN, 2, 3),
]


@pytest.mark.parametrize(("name", "dataset", "num_workers", "num_taken"), GOING_ON)
def test_a_sampler_goes_on_where_the_state_was_taken(
    name: str, dataset: Any, num_workers: int, num_taken: int
) -> None:
    """In the second pass, with another state of torch's generator."""
    first = DataLoader(dataset, num_workers=num_workers, **make(name))
    batches_of(first)
    iterator = iter(first)
    for _ in range(num_taken):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    torch.manual_seed(7)
    rest = batches_of(iterator)
    resumed = DataLoader(dataset, num_workers=num_workers, **make(name))
    resumed.load_state_dict(state)
    assert json.loads(json.dumps(resumed.state_dict())) == state
    torch.manual_seed(8)
    if num_taken in (0, 5) and name in ("random", "weighted", "subset"):
        return  # what the script has is drawn from, later

    assert batches_of(resumed) == rest
    if name not in ("random", "weighted", "subset"):  # drawn from what the script has
        assert batches_of(resumed) == batches_of(first)


@pytest.mark.parametrize("name", ["random", "random with generator", "list"])
def test_a_fresh_loader_names_all_that_the_state_of_a_sampler_has(name: str) -> None:
    """``torch.distributed.checkpoint`` restores the names that the state of the loader to resume has."""
    first = DataLoader(Plain(), num_workers=0, **make(name))
    iterator = iter(first)
    next(iterator)
    state, rest = first.state_dict(), batches_of(iterator)
    resumed = DataLoader(Plain(), num_workers=0, **make(name))
    torch.manual_seed(8)
    names = resumed.state_dict()["sampler"].keys()

    resumed.load_state_dict({**state, "sampler": {name: state["sampler"][name] for name in names}})

    assert batches_of(resumed) == rest


@pytest.mark.parametrize(("taken", "given"), [("list", "stateful"), ("stateful", "list")])
def test_a_state_of_a_sampler_with_states_is_of_no_other(taken: str, given: str) -> None:
    state = DataLoader(Plain(), num_workers=0, **make(taken)).state_dict()

    with pytest.raises(StateError):
        DataLoader(Plain(), num_workers=0, **make(given)).load_state_dict(state)


@pytest.mark.parametrize("num_taken", [1, 2])
@pytest.mark.parametrize("name", ["random", "random with generator", "stateful", "list"])
def test_an_iterator_that_nothing_was_taken_from_does_not_use_a_state_up(
    name: str, num_taken: int
) -> None:
    """Lightning begins twice where a checkpoint is of the end of an epoch."""
    first, resumed, twice = (DataLoader(Plain(), num_workers=0, **make(name)) for _ in range(3))
    batches_of(itertools.islice(iter(first), num_taken))
    state = first.state_dict()
    resumed.load_state_dict(state)
    twice.load_state_dict(state)

    torch.manual_seed(8)
    rest = batches_of(resumed)
    torch.manual_seed(8)
    iter(twice)
    assert batches_of(twice) == rest


def test_what_was_done_is_not_read_again() -> None:
    first = DataLoader(Plain(), 3, sampler=list(range(NUM)), num_workers=0)
    batches = iter(first)
    for _ in range(5):
        next(batches)
    dataset = Plain()
    resumed = DataLoader(dataset, 3, sampler=list(range(NUM)), num_workers=0)
    resumed.load_state_dict(first.state_dict())

    assert [i for batch in batches_of(resumed) for i in batch] == list(range(15, NUM))
    assert dataset.num_read == NUM - 15


def test_what_torch_draws_otherwise_stays_the_same() -> None:
    first = DataLoader(Plain(), 3, sampler=RandomSampler(range(NUM)), num_workers=0)
    batches = iter(first)
    next(batches)
    resumed = DataLoader(Plain(), 3, sampler=RandomSampler(range(NUM)), num_workers=0)
    resumed.load_state_dict(first.state_dict())
    following = iter(resumed)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    next(following)

    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_of_a_stream_is_noted_once_and_refused(num_workers: int) -> None:
    loader = DataLoader(Stream(), 2, num_workers=num_workers)
    next(iter(loader))

    with pytest.warns(UserWarning, match="StatefulDataLoader"):
        state = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()

    with pytest.raises(StateError, match="StatefulDataLoader"):
        loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_what_would_be_counted_otherwise_is_refused() -> None:
    settings: dict[str, Any] = {"sampler": list(range(NUM)), "num_workers": 0}
    state = DataLoader(Plain(), 2, **settings).state_dict()

    with pytest.raises(StateError):
        DataLoader(Plain(), 3, **settings).load_state_dict(state)
    with pytest.raises(StateError):
        DataLoader(Plain(), 2, num_workers=0).load_state_dict(state)


def test_pending_batches_come_again() -> None:
    first = DataLoader(Plain(), 3, sampler=list(range(NUM)), num_workers=0)
    batches = iter(first)
    last = [next(batches) for _ in range(3)][-1]
    resumed = DataLoader(Plain(), 3, sampler=list(range(NUM)), num_workers=0)
    resumed.load_state_dict(first.state_dict(pending=1))

    assert next(iter(resumed)).tolist() == last.tolist()
    with pytest.raises(StateError):
        first.state_dict(pending=4)


@pytest.mark.parametrize("sampler", [Remembering, Living])
@pytest.mark.parametrize(("dataset", "num_workers"), [(PLAIN, 0), (OWN, 2)])
def test_a_state_stays_as_it_was_taken(sampler: Any, dataset: Any, num_workers: int) -> None:
    def make_loader() -> DataLoader:
        return DataLoader(dataset, 3, sampler=sampler(), num_workers=num_workers)

    loader = make_loader()
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    before = copy.deepcopy(state)

    rest = batches_of(iterator)

    assert state == before
    resumed = make_loader()
    resumed.load_state_dict(state)
    assert batches_of(resumed) == rest
    assert state == before
