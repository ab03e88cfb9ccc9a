"""What datasets, samplers and frameworks of others may expect of the loader, as they would of torch's."""

import json
from collections import OrderedDict, UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler

from loaders import DataLoader, Mixture, RAMDataset, audit, augment
from loaders.backends.maker import Group, Raised
from loaders.errors import BatchError, StateError
from loaders.sampling import Balanced
from loaders.sampling.audit import audit_plans
from loaders.sampling.sampler import EpochBatches
from loaders.workers import Late

TorchLoader = torch.utils.data.DataLoader
NUM = 12
WAYS: list[dict[str, Any]] = [
    {"backend": "thread", "num_workers": 0},
    {"backend": "thread", "num_workers": 1},
    {"backend": "subprocess", "num_workers": 1},
    {"backend": "process", "num_workers": 0},
    {"backend": "process", "num_workers": 1},
]
every_way = pytest.mark.parametrize(
    "way",
    # A child process takes seconds to begin.
    [pytest.param(w, marks=pytest.mark.slow) if w["backend"] == "subprocess" else w for w in WAYS],
    ids=lambda way: f"{way['backend']}-{way['num_workers']}",
)


def numbers(num: int = NUM) -> RAMDataset:
    return RAMDataset.from_arrays(x=torch.arange(num))


def listed(loader: Any) -> list[list[int]]:
    return [torch.as_tensor(batch).tolist() for batch in loader]


# -- datasets --------------------------------------------------------------------------------------


class WantsLists(Dataset[Any]):
    """As a table that takes rows by a list of numbers, and by nothing else."""

    def __len__(self) -> int:
        return NUM

    def __getitems__(self, indices: Any) -> list[int]:
        if not isinstance(indices, list):
            raise TypeError(f"got {type(indices).__name__}")
        return list(json.loads(json.dumps(indices)))


@every_way
def test_getitems_of_others_is_given_a_list(way: dict[str, Any]) -> None:
    batches = listed(DataLoader(WantsLists(), 5, **way))

    assert batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


class Wrapper(WantsLists):
    """The same over a dataset of ours."""

    def __init__(self, dataset: RAMDataset) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: Any) -> Any:
        assert isinstance(indices, list)
        return [int(sample.x) for sample in self.dataset.__getitems__(indices)]


@every_way
def test_so_is_what_wraps_a_dataset_of_ours(way: dict[str, Any]) -> None:
    assert listed(DataLoader(Wrapper(numbers()), 6, **way)) == [[*range(6)], [*range(6, 12)]]


@every_way
@pytest.mark.parametrize("num", [3, 9])
def test_a_dataset_whose_length_changed_is_refused(way: dict[str, Any], num: int) -> None:
    samples = list(range(6))
    loader = DataLoader(samples, 2, **way)
    first = listed(loader)

    samples[:] = range(num)

    assert first == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError):
        listed(loader)


def test_streams_say_why_they_cannot_be_divided() -> None:
    with pytest.raises(ValueError):
        DataLoader(Stream(), 2, rank=0, world_size=2)


def test_a_loader_is_generic_as_torchs_is() -> None:
    def train(loader: DataLoader[torch.Tensor]) -> None: ...

    assert DataLoader[torch.Tensor].__args__ == (torch.Tensor,)  # type: ignore[attr-defined]


class NamesItself(Dataset[int]):
    """A method that happens to have a name that is ours."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        return i

    def fingerprint(self) -> str:
        return "mine"


def test_a_method_of_others_is_no_part_of_a_state() -> None:
    state = DataLoader(NamesItself(), 2).state_dict()

    assert json.loads(json.dumps(state))["dataset"] is None


# -- samplers --------------------------------------------------------------------------------------


@every_way
def test_a_sampler_of_torch_draws_what_it_draws_under_torch(way: dict[str, Any]) -> None:
    def epochs(kind: Any, **settings: Any) -> list[list[list[int]]]:
        torch.manual_seed(7)
        loader = kind(range(NUM), 4, sampler=RandomSampler(range(NUM)), **settings)
        return [listed(loader) for _ in range(3)]

    assert epochs(DataLoader, **way) == epochs(TorchLoader)


@every_way
@pytest.mark.parametrize("persistent", [False, True])
def test_a_generator_is_drawn_from_as_by_torch(way: dict[str, Any], persistent: bool) -> None:
    workers = way["num_workers"]

    def epochs(kind: Any, **settings: Any) -> list[list[list[int]]]:
        loader = kind(
            range(NUM), 4, shuffle=True, generator=torch.Generator().manual_seed(3),
            persistent_workers=persistent and workers > 0, **settings,
        )  # fmt: skip
        return [listed(loader) for _ in range(3)]

    assert epochs(DataLoader, **way) == epochs(TorchLoader, num_workers=workers)


@every_way
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["generator", "sampler", "batch_sampler"])
@pytest.mark.parametrize("batch_size", [4, 5])  # of 12 samples: whole batches, or not
def test_a_state_of_any_batch_goes_on_as_if_nothing_had_been(
    way: dict[str, Any], persistent: bool, kind: str, batch_size: int
) -> None:
    """What workers draw before an order, and torch's sampler at its end, is drawn again."""

    def make() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3)
        order: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "generator": generator}
        if kind != "generator":
            sampler = RandomSampler(range(NUM), generator=generator)
            order = {"batch_size": batch_size, "sampler": sampler}
            if kind == "batch_sampler":
                order = {"batch_sampler": BatchSampler(sampler, batch_size, drop_last=False)}
        is_kept = persistent and way["num_workers"] > 0
        return DataLoader(numbers(), persistent_workers=is_kept, **order, **way)

    loader = make()
    batches, states, seen = loader.forever(), [loader.state_dict()], list[list[int]]()
    for _ in range(7):
        seen.append(next(batches).x.tolist())
        states.append(loader.state_dict())

    for number in (0, 3, 5):  # an epoch has three
        again = make()
        again.load_state_dict(json.loads(json.dumps(states[number])))
        resumed = again.forever()
        assert [next(resumed).x.tolist() for _ in seen[number:]] == seen[number:]


def test_batches_of_a_sampler_of_others_are_torchs() -> None:
    """Lightning makes the batch sampler of a loader anew, of a sampler of its own."""
    batches: Any = EpochBatches(range(5), batch_size=2, drop_last=True)

    assert isinstance(batches, BatchSampler)
    assert type(batches) is not BatchSampler  # whose size Lightning looks for at the loader
    assert list(batches) == [[0, 1], [2, 3]]


def test_the_batch_sampler_of_a_loader_goes_from_epoch_to_epoch_under_torch_too() -> None:
    ours = DataLoader(numbers(), 4, shuffle=True)
    batches: Any = DataLoader(numbers(), 4, shuffle=True).batch_sampler
    theirs: Any = TorchLoader(range(NUM), batch_sampler=batches)  # type: ignore[arg-type]

    for _ in range(3):
        assert listed(theirs) == [batch.x.tolist() for batch in ours]


@pytest.mark.parametrize("pad", [False, True])
def test_an_audit_divides_an_order_of_blocks_as_loaders_do(pad: bool) -> None:
    mixture = Mixture([numbers(40), numbers(20)], [0.5, 0.5], stop=44, batch_from="one")
    loaders: list[Any] = [
        DataLoader(mixture, 4, rank=rank, world_size=2, pad=pad) for rank in range(2)
    ]
    order = mixture.order(0, 4)

    report = audit(order.length, order=order, batch_size=4, world_size=2, pad=pad)
    of_loaders = audit_plans([each.batch_sampler.plan() for each in loaders], order=order)

    assert report.ok
    assert of_loaders.ok
    assert report.steps == of_loaders.steps == tuple(len(listed_x(loader)) for loader in loaders)


def listed_x(loader: Any) -> list[list[int]]:
    return [batch.x.tolist() for batch in loader]


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [None, "balanced"])
def test_a_state_belongs_to_the_seed_of_its_crops(sampler: str | None) -> None:
    images = torch.zeros((NUM, 3, 8, 8), dtype=torch.uint8)
    plain = RAMDataset.from_arrays(image=images)
    dataset = RAMDataset(plain, augment=[augment.RandomCrop(4)])

    def loader(of: Any, seed: int) -> DataLoader:
        order = None if sampler is None else Balanced(np.arange(NUM) % 3, NUM)
        return DataLoader(of, 4, seed=seed, sampler=order)

    state = loader(dataset, 1).state_dict()
    loader(dataset, 1).load_state_dict(state)
    with pytest.raises(StateError):
        loader(dataset, 2).load_state_dict(state)
    del state["seed"]  # of an earlier release
    loader(dataset, 2).load_state_dict(state)
    loader(plain, 2).load_state_dict(loader(plain, 1).state_dict())  # nothing is drawn


# -- collate_fn, marks -----------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("persistent", [False, True])
def test_another_collate_fn_may_be_set_later(way: dict[str, Any], persistent: bool) -> None:
    """As sentence-transformers does."""
    persistent = persistent and way["num_workers"] > 0
    loader = DataLoader(numbers(), 4, persistent_workers=persistent, **way)
    before = listed_x(loader)

    loader.collate_fn = sums
    after = list(loader)

    assert [sum(batch) for batch in before] == after


def sums(samples: Any) -> int:
    return sum(int(sample.x) for sample in samples)


def test_marks_do_not_take_the_place_of_a_field() -> None:
    loader = DataLoader(
        range(5), 2, pad="mark", rank=0, world_size=1,
        collate_fn=lambda items: {"valid": torch.tensor(items)},
    )  # fmt: skip

    with pytest.raises(BatchError):
        next(iter(loader))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": Stream(), "batch_size": 2},
        {"dataset": range(5), "batch_size": 2, "sampler": [0, 1]},
        {"dataset": range(5), "batch_sampler": [[0, 1]]},
        {"dataset": range(5), "batch_size": 2, "shuffle": True, "generator": torch.Generator()},
    ],
    ids=["stream", "sampler", "batch sampler", "generator"],
)
def test_marks_of_what_is_never_padded_are_refused(settings: dict[str, Any]) -> None:
    DataLoader(**settings)
    with pytest.raises(ValueError):
        DataLoader(**settings, pad="mark")


# -- interrupts, and errors that are none of Exception ---------------------------------------------


class Raises(Dataset[int]):
    """Raises at one sample, the first time that it is read."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, i: int) -> int:
        if i == 5 and self.error is not None:
            error, self.error = self.error, None
            raise error
        return i


def taken(loader: DataLoader) -> tuple[list[list[int]], list[type[BaseException]]]:
    """Return the batches of an epoch of one that goes on after errors, and the errors."""
    iterator: Any = iter(loader)
    batches: list[list[int]] = []
    errors: list[type[BaseException]] = []
    while True:
        try:
            batches.append(next(iterator).tolist())
        except StopIteration:
            return batches, errors
        except BaseException as error:  # whatever it is
            errors.append(type(error))


def test_what_is_no_exception_ends_the_iteration() -> None:
    """The trainer's thread cannot know whose it is: an interrupt of its own, or a worker's."""
    for num_workers in (0, 1):
        iterator = iter(
            DataLoader(Raises(SystemExit(3)), 2, backend="thread", num_workers=num_workers)
        )

        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(SystemExit):
            next(iterator)
        with pytest.raises(RuntimeError):
            next(iterator)


@every_way
@pytest.mark.parametrize("error", [ValueError("mine"), Late("mine")], ids=repr)
def test_whatever_a_dataset_raises_costs_one_batch_and_is_counted(
    way: dict[str, Any], error: Exception
) -> None:
    loader = DataLoader(Raises(error), 2, **way)

    batches, errors = taken(loader)

    assert errors == [type(error)]
    assert batches == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    assert loader.state_dict()["sampler"] == loader_at_epoch_1()


def loader_at_epoch_1() -> dict[str, Any]:
    loader = DataLoader(range(NUM), 2)
    loader.set_epoch(1)
    return dict(loader.state_dict()["sampler"])


class Fails:
    """Makes batches, but for one; a group at once it cannot make."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def make_group(self, batches: Any) -> None:
        raise self.error

    def make(self, batch: int) -> int:
        if batch == 1:
            raise self.error
        return batch


def test_small_batches_of_a_group_fail_alone() -> None:
    work: Any = Fails(ValueError())
    group = Group(work, [0, 1, 2])
    group.run(0)
    first, second, third = group.finish()

    assert (first, third) == (0, 2)
    assert isinstance(second, Raised)
    assert isinstance(second.error, ValueError)
    with pytest.raises(KeyboardInterrupt):  # it is the trainer's, and at once
        Group(Fails(KeyboardInterrupt()), [0, 1, 2]).run(0)  # type: ignore[arg-type]


class Ends(Dataset[int]):
    """Raises two errors in a row, of which the second one means the end to a loop."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        if i in (2, 3):
            raise ValueError if i == 2 else StopIteration
        return i


@every_way
def test_stop_iteration_behind_another_error_is_not_the_end(way: dict[str, Any]) -> None:
    batches, errors = taken(DataLoader(Ends(), 1, **way))

    assert batches == [[0], [1], [4], [5], [6], [7]]
    assert errors == [ValueError, RuntimeError]


def test_marks_of_padding_stay_with_a_batch_that_is_changed_or_moved() -> None:
    settings: dict[str, Any] = {"pad": "mark", "drop_last": False, "rank": 0, "world_size": 2}
    (batch,) = DataLoader(numbers(3), 2, **settings)
    (dictionary,) = DataLoader(numbers(3), 2, as_dict=True, **settings)

    changed = batch._replace(x=batch.x.float())
    moved = torch.utils._pytree.tree_map(torch.clone, dictionary)

    assert changed.valid.tolist() == batch.valid.tolist() == [True, True]
    assert moved["valid"].tolist() == [True, True]


@pytest.mark.parametrize("kind", [dict, UserDict, OrderedDict])
def test_marks_stand_in_a_mapping_of_any_kind(kind: Any) -> None:
    """A tokenizer's batch is none of ``dict``: frameworks move what it holds, and not what stands beside it."""
    loader = DataLoader(
        range(3), 2, pad="mark", rank=1, world_size=2,
        collate_fn=lambda items: kind(x=torch.tensor(items)),
    )  # fmt: skip

    (batch,) = loader

    assert isinstance(batch, kind)
    assert (batch["x"].tolist(), batch["valid"].tolist()) == ([2, 0], [True, False])
