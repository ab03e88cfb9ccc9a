"""States of third-party samplers and iterable datasets: their own where they have one, by counting where not."""

import copy
import itertools
import json
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from loaders import DataLoader, RAMDataset
from loaders.errors import StateError

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


class Stream(IterableDataset[int]):
    """Each worker's share of the numbers, one of which has more than the others."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, num = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(worker, 12 * num - 3, num))


class Stateful(Stream):
    def __init__(self) -> None:
        self.num_given = 0

    def __iter__(self) -> Iterator[int]:
        for number in islice(super().__iter__(), self.num_given, None):
            self.num_given += 1
            yield number
        self.num_given = 0

    def state_dict(self) -> dict[str, int]:
        return {"num_given": self.num_given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_given = state["num_given"]


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
    }
    settings: dict[str, Any] = made[name]()
    return settings | ({} if name == "batches" else {"batch_size": 3})


SAMPLERS = [
    "generator",
    "random",
    "random with generator",
    "weighted",
    "subset",
    "list",
    "batches",
    "stateful",
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


@pytest.mark.parametrize(
    ("kind", "num_workers", "batch_size", "num_taken"),
    [
        *itertools.product([Stream, Stateful], [0], [2, None], [0, 1, 4]),
        (Stream, 2, None, 4),
        (Stateful, 2, 2, 1),
        *(  # processes take long to start
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((Stream, 2, 2, 1), (Stateful, 2, None, 4))
        ),
    ],
)
def test_a_stream_goes_on_where_the_state_was_taken(
    kind: Any, num_workers: int, batch_size: int | None, num_taken: int
) -> None:
    def loader() -> DataLoader:
        return DataLoader(kind(), batch_size, num_workers=num_workers)

    first = loader()
    iterator = iter(first)
    for _ in range(num_taken):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [torch.as_tensor(batch).tolist() for batch in iterator]
    resumed = loader()
    resumed.load_state_dict(state)

    assert [torch.as_tensor(batch).tolist() for batch in resumed] == rest
    again = [torch.as_tensor(batch).tolist() for batch in loader()]
    assert [torch.as_tensor(batch).tolist() for batch in resumed] == again
    end = resumed.state_dict()["sampler"]
    assert (end["epoch"], end["delivered"]) == (2, 0)


def test_what_would_be_counted_otherwise_is_refused() -> None:
    state = DataLoader(Stream(), 2, num_workers=0).state_dict()
    for settings in ({"batch_size": 3, "num_workers": 0}, {"batch_size": 2, "num_workers": 1}):
        with pytest.raises(StateError):
            DataLoader(Stream(), **settings).load_state_dict(state)  # type: ignore[call-overload]
    with pytest.raises(StateError):
        DataLoader(Plain(), 2).load_state_dict(state)
    with pytest.raises(StateError):
        DataLoader(Stream(), 2, num_workers=0).load_state_dict(DataLoader(Plain(), 2).state_dict())


def test_pending_batches_come_again() -> None:
    first = DataLoader(Plain(), 3, sampler=list(range(NUM)), num_workers=0)
    batches = iter(first)
    last = [next(batches) for _ in range(3)][-1]
    resumed = DataLoader(Plain(), 3, sampler=list(range(NUM)), num_workers=0)
    resumed.load_state_dict(first.state_dict(pending=1))

    assert next(iter(resumed)).tolist() == last.tolist()
    with pytest.raises(StateError):
        first.state_dict(pending=4)


@pytest.mark.parametrize(
    "make_loader",
    [
        lambda: DataLoader(Plain(), 3, sampler=Remembering(), num_workers=0),
        lambda: DataLoader(Stateful(), 2, num_workers=0),
        lambda: DataLoader(Stateful(), 2, num_workers=2),
    ],
    ids=["sampler", "stream", "stream in processes"],
)
def test_a_state_stays_as_it_was_taken(make_loader: Any) -> None:
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


class Drawing(Stream):
    """Numbers that a worker draws by its seed."""

    def __iter__(self) -> Iterator[int]:
        for _ in super().__iter__():
            yield int(torch.randint(1 << 40, ()))


@pytest.mark.parametrize(
    ("seeded", "num_done"),
    [
        (False, 5),
        (True, 100),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((False, 0), (False, 100), (True, 0), (True, 5))
        ),
    ],
)
def test_a_stream_that_draws_in_its_workers_goes_on_with_the_same_numbers(
    seeded: bool, num_done: int
) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3) if seeded else None
        return DataLoader(Drawing(), batch_size=2, num_workers=2, generator=generator)

    torch.manual_seed(1)
    first = loader()
    batches = iter(first)
    done = batches_of(islice(batches, num_done))
    state = json.loads(json.dumps(first.state_dict()))
    rest = batches_of(first if num_done == 100 and seeded else batches)
    torch.manual_seed(2)
    second = loader()
    second.load_state_dict(state)

    if num_done == 100 and not seeded:  # the next epoch's seed is the trainer's to restore
        assert batches_of(second) != done
    else:
        assert batches_of(second) == rest
    assert int(torch.initial_seed()) == 2


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_stream_whose_workers_cannot_start_leaves_the_trainers_generator_alone() -> None:
    first = DataLoader(Drawing(), batch_size=2, num_workers=1)
    next(iter(first))
    second = DataLoader(
        Drawing(),
        batch_size=2,
        num_workers=1,
        multiprocessing_context="spawn",
        worker_init_fn=lambda _: None,  # which does not pickle
    )
    second.load_state_dict(first.state_dict())
    torch.manual_seed(2)
    before = torch.get_rng_state()

    with pytest.raises((AttributeError, pickle.PicklingError)):
        iter(second)

    assert torch.equal(torch.get_rng_state(), before)
