import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader, RAMDataset
from loaders.backends.maker import Chunk, Maker
from loaders.backends.ordered import OrderedBatches
from loaders.backends.subprocess import ChildPool
from loaders.backends.subprocess import child_pool as pool_of_child
from loaders.backends.threads import thread_pool
from loaders.datasets.reading.request import Request
from loaders.datasets.reading.samples import collate

NUM = 400


class Counted:
    """Indices, one a batch, that know how many of them were asked for."""

    def __init__(self, num: int = NUM) -> None:
        self.num, self.asked = num, 0

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(self.num):
            self.asked += 1
            yield [i]


def maker(dataset: Any, num_workers: int = 2) -> Maker:
    return Maker(dataset, collate, 1, True, num_workers)


def numbers() -> RAMDataset:
    """Samples so small that batches of them are handed over in groups."""
    return RAMDataset.from_arrays(x=torch.arange(NUM).reshape(NUM, 1))


class Alone(Dataset[int]):
    """Its batches are handed over one by one; sample 1 waits until sample 2 was begun."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> int:
        if index == 2:
            self.begun.set()
        if index == 1:
            assert self.begun.wait(60)
        return index


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_as_many_batches_are_under_way_as_asked_for_and_no_more(num_ahead: int) -> None:
    dataset, indices = Alone(), Counted()
    dataset.begun.set()
    batches = OrderedBatches(
        thread_pool(maker(dataset)), iter(indices), prefetch_batches=num_ahead
    )

    asked = [(next(batches), indices.asked)[1] for _ in range(5)]
    batches.close()

    assert asked == [num_ahead + taken for taken in range(1, 6)]


def test_a_batch_that_takes_longer_keeps_its_place() -> None:
    pool = thread_pool(maker(Alone(), num_workers=2))
    batches = OrderedBatches(pool, iter(Counted(12)), prefetch_batches=4)

    assert [batch.item() for batch in batches] == list(range(12))


def child_pool(work: Maker) -> ChildPool:
    return pool_of_child(None, work, None)


KINDS = [thread_pool, pytest.param(child_pool, marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", KINDS)
def test_small_batches_come_in_order_in_groups_that_grow_up_to_a_limit(kind: Any) -> None:
    """The first groups are small: the first batch shall not wait for many others."""
    work, indices = maker(numbers()), Counted()
    assert work.group_size > 16
    batches = OrderedBatches(
        kind(work), iter(indices), prefetch_batches=2, chunk_size=16, is_together=True
    )

    asked = [(next(batches).x.item(), indices.asked) for _ in range(NUM)]

    assert [index for index, _ in asked] == list(range(NUM))
    assert asked[0] == (0, 4 + 8 + 16)  # the first group, and two that are under way
    assert asked[3] == (3, 28)
    assert asked[4] == (4, 28 + 16)
    steps = {b - a for (_, a), (_, b) in itertools.pairwise(asked)}
    assert steps == {0, 16, NUM - 4 - 8 - 24 * 16}


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_end_the_pool_is_closed(kind: Any) -> None:
    pool = kind(maker(numbers()))
    batches = OrderedBatches(
        pool, iter(Counted(9)), prefetch_batches=2, chunk_size=4, is_together=True
    )

    assert [batch.x.item() for batch in batches] == list(range(9))

    assert next(batches, None) is None
    with pytest.raises(RuntimeError):
        pool.put(Chunk([[0]]), 0)


class Gated(RAMDataset):
    """Gives the first four samples at once, the others when ``gate`` is open."""

    gate: threading.Event

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        assert max(indices) < 4 or self.gate.wait(60)
        return super().request(indices, num_workers)


class Watching(RAMDataset):
    """Notes how many batches were asked for while the first of them are made."""

    indices: Counted
    asked: int

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        if 0 in indices:
            deadline = time.monotonic() + 0.5
            while self.indices.asked == len(indices) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.asked = self.indices.asked
        return super().request(indices, num_workers)


def test_the_first_batch_is_made_before_other_small_ones_are_begun() -> None:
    """They would hold the GIL when it is done."""
    dataset = Watching.from_arrays(x=torch.arange(NUM).reshape(NUM, 1))
    indices = dataset.indices = Counted()
    batches = OrderedBatches(
        thread_pool(maker(dataset)),
        iter(indices),
        prefetch_batches=2,
        chunk_size=16,
        is_together=True,
    )

    next(batches)
    batches.close()

    assert dataset.asked == 4


def test_a_batch_is_ready_when_it_would_not_be_waited_for() -> None:
    dataset = Gated.from_arrays(x=torch.arange(16).reshape(16, 1))
    dataset.gate = threading.Event()
    batches = OrderedBatches(
        thread_pool(maker(dataset)),
        iter(Counted(16)),
        prefetch_batches=2,
        chunk_size=8,
        is_together=True,
    )

    ready = [(next(batches), batches.is_ready)[1] for _ in range(4)]
    dataset.gate.set()
    rest = [batch.x.item() for batch in batches]

    assert ready == [True] * 3 + [False]  # the group's other batches lie there already
    assert rest == list(range(4, 16))


@pytest.mark.parametrize("kind", [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2}])
@pytest.mark.parametrize("bad", [0, 4, 11])
def test_a_time_limit_that_a_sample_ran_into_is_its_own_error(
    kind: dict[str, Any], bad: int
) -> None:
    """Not the pool's word for a batch that is late: the batch would be lost."""

    def slow(sample: Any) -> Any:
        if int(sample.x) == bad:
            raise TimeoutError("the server did not answer")
        return sample

    dataset = RAMDataset.from_arrays(x=torch.arange(12)).replace(transform=slow)
    loader = iter(DataLoader(dataset, 2, backend="thread", timeout=20, **kind))
    found: list[Any] = []
    for _ in range(6):
        try:
            found.append(next(loader).x.tolist())
        except TimeoutError as error:
            found.append(str(error))

    expected: list[Any] = [[i, i + 1] for i in range(0, 12, 2)]
    expected[bad // 2] = "the server did not answer"
    assert found == expected
    assert next(loader, None) is None


class Bad(Alone):
    """Sample 1 is an error."""

    def __getitem__(self, index: int) -> int:
        return index if index != 1 else [][index]


def test_a_batch_whose_error_was_raised_was_taken() -> None:
    with closing(thread_pool(maker(Bad()))) as pool:
        batches = OrderedBatches(pool, iter(Counted(3)), prefetch_batches=2)

        assert next(batches).tolist() == [0]
        with pytest.raises(IndexError):
            next(batches)
        assert batches.num_taken == 2
        assert next(batches).tolist() == [2]


def spent(sample: Any) -> Any:
    """A transform whose iterator has ended."""
    return next(iter(())) if int(sample.x[0]) == 9 else sample


@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [
        ("thread", 0),
        ("thread", 2),
        ("process", 1),
        pytest.param("subprocess", 1, marks=pytest.mark.slow),
    ],
)
def test_a_stop_iteration_of_the_users_is_not_the_end(backend: Any, num_workers: int) -> None:
    loader = DataLoader(
        numbers().replace(transform=spent), 4, num_workers=num_workers, backend=backend
    )
    got: list[Any] = []

    with pytest.raises(RuntimeError):
        got.extend(batch.x[0].item() for batch in loader)

    assert got == [0, 4]
    assert loader.state_dict()["sampler"]["epoch"] == 0


@pytest.mark.slow
def test_indices_that_a_child_cannot_be_sent_are_an_error_behind_the_batches_before() -> None:
    indices: list[Any] = [[0], [1], [2], [threading.Lock()], [4]]
    batches = OrderedBatches(child_pool(maker(numbers())), iter(indices), prefetch_batches=2)
    taken: list[int] = []

    with pytest.raises(TypeError, match="pickle"):
        taken.extend(batch.x.item() for batch in batches)

    assert taken == [0, 1, 2]
    assert next(batches, None) is None  # a loop that goes on after errors ends
