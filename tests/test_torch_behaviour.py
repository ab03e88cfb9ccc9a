"""What users of torch's own ``DataLoader`` (and torchdata's stateful one) rely on, on every backend that can serve it.

Most tests run beside torch's loader where that is possible, so that the expectation is its, not ours.
"""

import gc
import json
import multiprocessing
import pickle
import time
import warnings
from collections import namedtuple
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

from loaders import DataLoader
from loaders.errors import StateError

TorchLoader = torch.utils.data.DataLoader
WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 0, "backend": "thread"},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 2, "backend": "subprocess"},
]
every_way = pytest.mark.parametrize(
    "way",
    # A child process takes seconds to begin.
    [
        pytest.param(w, marks=pytest.mark.slow) if w.get("backend") == "subprocess" else w
        for w in WAYS
    ],
    ids=lambda w: f"{w.get('backend', 'process')}-{w['num_workers']}",
)

most_ways = pytest.mark.parametrize(
    "way",
    # Where there are many cases, torch's processes are slow, and a child process serves other tests.
    [
        w
        if w.get("backend") == "thread" or not w["num_workers"]
        else pytest.param(w, marks=pytest.mark.slow)
        for w in WAYS[:-1]
    ],
    ids=lambda w: f"{w.get('backend', 'process')}-{w['num_workers']}",
)


class Squares(Dataset[int]):
    """A map-style dataset as anyone writes it."""

    def __init__(self, num: int = 10) -> None:
        self.num = num

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.num:
            raise IndexError(f"no sample {index}")
        return int(index) ** 2

    def __len__(self) -> int:
        return self.num


class Range(IterableDataset[int]):
    """Numbers, divided among workers; its length may be a lie."""

    def __init__(self, num: int, told: int | None = None, divide: bool = True) -> None:
        self.num, self.told, self.divide = num, told, divide

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None or not self.divide:
            return iter(range(self.num))
        return iter(range(info.id, self.num, info.num_workers))

    def __len__(self) -> int:
        if self.told is None:
            raise TypeError("no length")
        return self.told


def tolist(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def served(loader: Any) -> list[Any]:
    return [tolist(batch) for batch in loader]


# -- samplers, batches and collation -----------------------------------------------------------------


@most_ways
@pytest.mark.filterwarnings("ignore:drop_last=True leaves no batch")  # of the one where it does
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": 20, "drop_last": True},
        {"batch_size": None},
        {"batch_size": None, "sampler": [3, 1, 2]},
        {"batch_size": 2, "sampler": [5, 5, 1]},
        {"batch_size": 2, "sampler": SequentialSampler(range(7))},
        {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
        {"batch_sampler": BatchSampler(SequentialSampler(range(7)), 3, True)},
        {"batch_size": 4, "collate_fn": sum},
        {"batch_sampler": [[0, 1], []], "collate_fn": len},
        {"batch_size": 4, "in_order": False, "sampler": [1, 2]},
    ],
    ids=lambda a: ",".join(f"{k}={v if isinstance(v, int | list) else '*'}" for k, v in a.items()),
)
def test_batches_are_torchs(way: dict[str, Any], arguments: dict[str, Any]) -> None:
    expected = TorchLoader(Squares(), **arguments)
    loader = DataLoader(Squares(), **arguments, **way)

    assert served(loader) == served(expected)
    assert served(loader) == served(expected)  # once more
    assert len(loader) == len(expected)


@most_ways
@pytest.mark.parametrize(
    "sampler",
    [
        lambda g: RandomSampler(range(10), generator=g),
        lambda g: RandomSampler(range(10), replacement=True, num_samples=25, generator=g),
        lambda g: SubsetRandomSampler([1, 3, 5], generator=g),
        lambda g: WeightedRandomSampler([0.0, 1.0, 3.0], 12, generator=g),
    ],
    ids=["random", "replacement", "subset", "weighted"],
)
def test_torchs_samplers_draw_what_they_draw_there(way: dict[str, Any], sampler: Any) -> None:
    expected = TorchLoader(
        Squares(), 3, sampler=sampler(torch.Generator().manual_seed(7)), num_workers=0
    )
    loader = DataLoader(Squares(), 3, sampler=sampler(torch.Generator().manual_seed(7)), **way)

    assert served(loader) == served(expected)


@every_way
def test_third_party_datasets_are_served(way: dict[str, Any]) -> None:
    tensors = TensorDataset(torch.arange(6), torch.arange(6) * 2)
    first, second = random_split(Squares(), [7, 3], generator=torch.Generator().manual_seed(0))
    datasets: list[Any] = [
        tensors, Subset(Squares(), [1, 4]), ConcatDataset([Squares(3), Squares(2)]),
        first, second, [1, 2, 3], range(4), np.arange(5), torch.arange(3), {0: 5, 1: 6},
    ]  # fmt: skip

    for dataset in datasets[:: 4 if way.get("backend") == "subprocess" else 1]:
        expected = [[tolist(x) for x in b] for b in TorchLoader(dataset, 2)]
        assert [[tolist(x) for x in b] for b in DataLoader(dataset, 2, **way)] == expected


Point = namedtuple("Point", ["x", "name"])


class Forms(Dataset[Any]):
    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return {
            "dict": {"x": torch.full((2,), i), "name": f"n{i}", "inner": {"y": float(i)}},
            "named": Point(np.float32(i), f"n{i}"),
            "list": [i, (str(i), np.arange(2) + i)],
            "str": f"s{i}",
            "bytes": bytes([i]),
            "bool": i > 1,
        }[self.form]


@most_ways
@pytest.mark.parametrize("form", ["dict", "named", "list", "str", "bytes", "bool"])
@pytest.mark.parametrize("batch_size", [2, None])
def test_samples_of_every_form_are_joined_as_torch_does(
    way: dict[str, Any], form: str, batch_size: int | None
) -> None:
    expected = list(TorchLoader(Forms(form), batch_size))
    got = list(DataLoader(Forms(form), batch_size, **way))

    for one, other in zip(expected, got, strict=True):
        assert_alike(one, other)


def assert_alike(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_alike(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    else:
        assert one == other


# -- arguments and attributes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 0, "prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": -1},
        {"num_workers": 0, "persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": -3},
        {"batch_size": 2.5},
        {"batch_size": True},
        {"drop_last": 3},
        {"num_workers": 0, "multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "swim"},
        {"num_workers": 1, "multiprocessing_context": Ellipsis},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["auto", "process"])
def test_wrong_arguments_are_refused_as_torch_refuses_them(
    arguments: dict[str, Any], backend: Any
) -> None:
    with pytest.raises((ValueError, TypeError)) as theirs:
        TorchLoader(Squares(), **arguments)
    with pytest.raises(theirs.type):
        DataLoader(Squares(), backend=backend, **arguments)


@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}], ids=str
)
def test_an_iterable_dataset_takes_no_order(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DataLoader(Range(3), **arguments)


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_what_makes_the_batches_cannot_be_changed_later(name: str) -> None:
    loader = DataLoader(Squares(), 2)

    with pytest.raises(ValueError):
        setattr(loader, name, 1)


def test_arguments_are_attributes() -> None:
    generator = torch.Generator()
    arguments: dict[str, Any] = {
        "batch_size": 2, "num_workers": 1, "pin_memory": False, "drop_last": True, "timeout": 3,
        "worker_init_fn": print, "generator": generator, "prefetch_factor": 4,
        "persistent_workers": True, "in_order": False, "pin_memory_device": "",
    }  # fmt: skip
    loader = DataLoader(Squares(), shuffle=True, **arguments)

    assert {name: getattr(loader, name) for name in arguments} == arguments
    assert isinstance(loader.sampler, RandomSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert loader.multiprocessing_context is None
    assert DataLoader(Squares(), 2).num_workers == 0
    assert DataLoader(Squares(), 2).prefetch_factor is None


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_way_to_start_processes_becomes_a_context(method: str) -> None:
    loader = DataLoader(Squares(), 4, num_workers=1, multiprocessing_context=method)

    assert loader.multiprocessing_context.get_start_method() == method
    if method == "fork":
        assert served(loader) == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]


@every_way
def test_pinning_without_a_gpu_is_no_obstacle(way: dict[str, Any]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU to pin for")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = served(DataLoader(Squares(4), 2, pin_memory=True, **way))
        told = [str(w.message) for w in caught if "pin_memory" in str(w.message)]
        caught.clear()
        list(torch.utils.data.DataLoader(Squares(4), 2, pin_memory=True))

    assert batches == [[0, 1], [4, 9]]
    if way.get("backend") is None:
        assert bool(told) == bool(caught)  # torch 2.6 says nothing


# -- iterable datasets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(None, False), (2, False), (2, True)])
def test_an_iterable_dataset_comes_as_from_torch(
    num_workers: int, batch_size: int | None, drop_last: bool
) -> None:
    arguments: dict[str, Any] = {
        "batch_size": batch_size, "num_workers": num_workers, "drop_last": drop_last,
    }  # fmt: skip

    assert served(DataLoader(Range(7), **arguments)) == served(TorchLoader(Range(7), **arguments))
    chained = ChainDataset([Range(2), Range(3)])
    assert sorted(flat(served(DataLoader(chained, 1, num_workers=num_workers)))) == [0, 0, 1, 1, 2]


def flat(parts: list[Any]) -> list[Any]:
    return [item for part in parts for item in part]


def test_the_length_of_an_iterable_dataset_is_its_own_word() -> None:
    assert len(DataLoader(Range(7, told=7), 2)) == 4
    assert len(DataLoader(Range(7, told=7), 2, drop_last=True)) == 3
    assert len(DataLoader(Range(7, told=7), None)) == 7
    with pytest.raises(TypeError):
        len(DataLoader(Range(7), 2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_more_samples_than_told_are_warned_of(num_workers: int) -> None:
    loader = DataLoader(Range(5, told=2, divide=False), None, num_workers=num_workers)
    assert len(loader) == 2

    with pytest.warns(UserWarning, match="Length of IterableDataset .* was reported to be 2"):
        list(loader)


# -- worker processes ----------------------------------------------------------------------------------


class WhoAmI(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, WhoAmI)
        return info.id, info.num_workers, info.seed - info.id, getattr(info.dataset, "mark", -1)


def mark(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker_id
    info.dataset.mark = worker_id + 100  # type: ignore[attr-defined]


def test_workers_know_who_they_are() -> None:
    """Numbered from 0, with a seed each, their own copy of the dataset, and prepared as asked."""
    assert get_worker_info() is None
    loader = DataLoader(WhoAmI(), 2, num_workers=2, worker_init_fn=mark)

    batches = [[x.tolist() for x in batch] for batch in loader]

    assert [batch[0] for batch in batches] == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert {tuple(batch[1]) for batch in batches} == {(2, 2)}
    assert len({seed for batch in batches for seed in batch[2]}) == 1
    assert [batch[3][0] for batch in batches] == [100, 101, 100, 101]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_the_last_name_of_their_iterator(persistent: bool) -> None:
    gc.disable()  # no cycle may keep them until it comes
    try:
        before = set(multiprocessing.active_children())
        batches = iter(DataLoader(Squares(), num_workers=1, persistent_workers=persistent))
        next(batches)
        workers = set(multiprocessing.active_children()) - before
        assert workers
        del batches
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
    finally:
        gc.enable()


# -- errors in workers -----------------------------------------------------------------------------------


class OddError(Exception):
    """Takes more than a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


class Fails(Dataset[Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise self.error
        return index


@most_ways
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("some text"), ValueError),
        (KeyError("some text"), KeyError),
        (OddError(3, "some text"), (OddError, RuntimeError)),
        (AssertionError("some text"), AssertionError),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_error_arrives_with_type_and_text_after_what_came_before(
    way: dict[str, Any], error: Exception, kind: Any
) -> None:
    iterator: Any = iter(DataLoader(Fails(error), 2, sampler=range(6), **way))

    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(kind, match="some text"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    iterator.close()


def raise_at_start(worker_id: int) -> None:
    raise ZeroDivisionError("at the start")


def test_an_error_while_a_worker_is_prepared_arrives() -> None:
    iterator: Any = iter(DataLoader(Squares(), 2, num_workers=1, worker_init_fn=raise_at_start))

    with pytest.raises(ZeroDivisionError):
        next(iterator)
    iterator.close()


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(i + 1)


@every_way
def test_a_collate_function_that_fails_says_so(way: dict[str, Any]) -> None:
    iterator: Any = iter(DataLoader(Ragged(), 2, **way))

    with pytest.raises(RuntimeError):
        next(iterator)
    iterator.close()


class Sleeps(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.6)
        return i


@every_way
def test_a_timeout_is_a_runtime_error(way: dict[str, Any]) -> None:
    if not way["num_workers"]:
        return
    iterator: Any = iter(DataLoader(Sleeps(), 1, timeout=0.1, **way))

    with pytest.raises(RuntimeError):
        next(iterator)
    iterator.close()


# -- iterating -------------------------------------------------------------------------------------------


@every_way
def test_an_iterator_at_its_end_stays_there(way: dict[str, Any]) -> None:
    loader = DataLoader(Squares(), 4, **way)
    iterator = iter(loader)
    everything = served(iterator)

    assert everything == served(loader)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert iter(iterator) is iterator
    assert len(iterator) == len(loader)


@every_way
def test_it_can_be_left_and_begun_again(way: dict[str, Any]) -> None:
    loader = DataLoader(Squares(), 4, **way)

    for _ in range(3):
        for batch in loader:
            assert batch.tolist() == [0, 1, 4, 9]
            break

    assert len(served(loader)) == 3


class Nested(Dataset[Any]):
    """Iterates a loader of its own in each sample."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> int:
        numbers: list[int] = flat(
            served(DataLoader(Squares(3), 2, num_workers=1, backend="thread"))
        )
        return sum(numbers) + i


@every_way
def test_a_loader_inside_a_loader(way: dict[str, Any]) -> None:
    assert served(DataLoader(Nested(), 2, **way)) == [[5, 6]]


class Grows(list[int]):
    """Whose length is asked for when an epoch begins."""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_growing_dataset_under_a_foreign_sampler(num_workers: int) -> None:
    """Torch's samplers ask for the length anew; an order of ours is fixed, which a fingerprint needs."""
    data = Grows(range(4))
    loader = DataLoader(data, 2, sampler=SequentialSampler(data), num_workers=num_workers)
    assert len(loader) == 2
    data.extend(range(4, 8))

    assert len(loader) == 4
    assert served(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@every_way
def test_a_loader_pickles(way: dict[str, Any]) -> None:
    loader = DataLoader(Squares(), 4, shuffle=True, seed=2, **way)
    expected = served(loader)
    copy = pickle.loads(pickle.dumps(loader))
    loader.set_epoch(0)
    copy.set_epoch(0)

    assert served(copy) == served(loader) == expected


# -- the state of a run, as torchdata's stateful loader tells it ---------------------------------------


def stateful(way: dict[str, Any], **settings: Any) -> DataLoader:
    return DataLoader(
        Squares(20), **({"batch_size": 3, "shuffle": True, "seed": 4} | settings | way)
    )


@most_ways
@pytest.mark.parametrize("num_taken", [0, 1, 6, 7])
def test_a_state_leads_to_the_rest(way: dict[str, Any], num_taken: int) -> None:
    """Before the first batch, in the middle, after the last one; through JSON, into a new loader.

    (After the last one, torchdata has an iteration of nothing first: frameworks would count it as an epoch.)
    """
    loader = stateful(way)
    iterator = iter(loader)
    for _ in range(num_taken):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = served(iterator)
    following = served(loader)

    other = stateful({"num_workers": 0})
    other.load_state_dict(state)

    assert num_taken == 7 or served(other) == rest
    assert served(other) == following


@every_way
def test_a_state_can_be_loaded_again_and_again_into_the_same_loader(way: dict[str, Any]) -> None:
    loader = stateful(way)
    iterator = iter(loader)
    at_start = loader.state_dict()
    everything = [next(iterator).tolist() for _ in range(4)]
    in_middle = loader.state_dict()
    everything += served(iterator)

    for state, expected in product([in_middle, at_start, in_middle], [everything]):
        loader.load_state_dict(state)
        loader.load_state_dict(state)
        begin = 4 if state is in_middle else 0
        assert served(loader) == expected[begin:]


@every_way
def test_asking_for_the_state_changes_nothing(way: dict[str, Any]) -> None:
    plain, asked = stateful(way), stateful(way)
    got = []
    asked.state_dict()
    for batch in asked:
        got.append(batch.tolist())
        asked.state_dict()

    assert got == served(plain)


@every_way
def test_an_iterator_that_nothing_was_taken_from_does_not_use_a_state_up(
    way: dict[str, Any],
) -> None:
    """Frameworks call ``iter`` ahead, and again."""
    loader = stateful(way)
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), served(iterator)
    other = stateful(way)
    other.load_state_dict(state)

    iter(other).close()
    assert other.state_dict() == state

    assert served(other) == rest


def test_states_of_other_orders_are_refused_in_words() -> None:
    foreign: list[dict[str, Any]] = [
        {"batch_sampler": [[1, 2]]}, {"sampler": [1, 2]},
        {"shuffle": True, "generator": torch.Generator()},
    ]  # fmt: skip
    for settings in foreign:
        with pytest.raises(StateError):
            DataLoader(Squares(), **settings).load_state_dict(DataLoader(Squares()).state_dict())
    with pytest.raises(StateError):
        DataLoader(Range(3)).load_state_dict({"version": 1, "dataset": None})
    with pytest.raises(StateError):
        DataLoader(Squares(), num_workers=2, in_order=False).state_dict()
