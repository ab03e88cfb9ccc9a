"""A child process that is kept from epoch to epoch, and what may come between."""

import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, SequentialSampler

from loaders import DataLoader, RAMDataset, augment
from tests.backends.test_subprocess import child_loader, children, kept_loader
from tests.waiting import wait_until

WHOLE = [[i, i + 1] for i in range(0, 12, 2)]
_SOURCES = ("backends/subprocess.py", "backends/slots.py")
_NOT_THERE = (
    "__init__",
    "_end",
    "_death",
    "close",
    "_set_free",
)


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 12


def texts(samples: list[int]) -> list[str]:
    return [str(sample) * 400 for sample in samples]


class ManyNumbers(Numbers):
    def __len__(self) -> int:
        return 40_000


def test_an_epoch_of_large_messages_that_is_left_early_holds_up_nobody() -> None:
    """Workers of the child wait to send more than a socket holds; the trainer drops it before it asks for more."""
    loader = child_loader(ManyNumbers(), batch_size=2048, num_workers=2, prefetch_factor=16)
    loader.collate_fn = texts
    began = time.monotonic()
    for _ in range(3):
        assert next(iter(loader)) == texts([*range(2048)])
        time.sleep(0.3)
    assert time.monotonic() - began < 30
    loader.close()


def test_of_a_dead_child_nothing_comes_any_more() -> None:
    """A loop that goes on after errors ends."""
    loader = kept_loader(Numbers(), num_workers=1)
    batches = iter(loader)
    next(batches)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)

    ended = object()

    def next_or_error() -> Any:
        try:
            return next(batches, ended)
        except RuntimeError as error:
            return error

    found = [next_or_error() for _ in range(20)]
    assert any(isinstance(each, RuntimeError) for each in found)
    assert found[-1] is ended


# -- interruptions ----------------------------------------------------------------------------------


def interrupted(work: Callable[[], Any], number: int) -> bool:
    """Raise at one of the lines that talk to the child; False if there are fewer."""
    seen = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        code = frame.f_code
        if not code.co_filename.endswith(_SOURCES) or code.co_name in _NOT_THERE:
            return None
        if event == "line":
            seen += 1
            if seen == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 20, 39])
def test_after_ctrl_c_at_any_line_the_next_epochs_are_right(
    alarm: Callable[[], None], first: int
) -> None:
    """At one line in 57 from three of them on: what ends the child costs seconds for the next."""
    num = 0
    loader = kept_loader(Numbers(), 2, num_workers=1)
    for number in itertools.count(first, 57):
        alarm()
        loader.set_epoch(0)
        assert [batch.tolist() for batch in loader] == WHOLE
        loader.set_epoch(0)
        if not interrupted(partial(list, loader), number):
            break
        num += 1
        for _ in range(2):
            loader.set_epoch(0)
            assert [batch.tolist() for batch in loader] == WHOLE, number
    assert num >= 3


# -- errors -----------------------------------------------------------------------------------------


class Box:
    """A batch that can be sent, and, of samples 4 and 5, not be received, unless ``is_fine``."""

    home, is_fine = os.getpid(), False

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples

    def __setstate__(self, state: dict[str, Any]) -> None:
        if os.getpid() == Box.home and state["samples"] == [4, 5] and not Box.is_fine:
            raise ValueError("cannot be received")
        self.__dict__.update(state)


@pytest.mark.slow
def test_a_batch_that_cannot_be_received_is_an_error_and_the_next_epoch_is_whole(
    alarm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Box, "home", os.getpid())
    loader = child_loader(Numbers(), 2, num_workers=1, collate_fn=Box)

    iterator = iter(loader)
    assert [next(iterator).samples for _ in range(2)] == WHOLE[:2]
    with pytest.raises(ValueError):
        next(iterator)
    with pytest.raises(RuntimeError):
        next(iterator)

    monkeypatch.setattr(Box, "is_fine", True)
    loader.set_epoch(0)
    assert [batch.samples for batch in loader] == WHOLE


class Third(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 6:
            raise ValueError("six")
        return index


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu"])
def test_after_an_error_nothing_waits_for_the_garbage_collector(device: str | None) -> None:
    loader = child_loader(Third(), 2, num_workers=1, device=device)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(ValueError):
                list(loader)
            loader.set_epoch(0)
            assert len(children()) == 1
    finally:
        gc.enable()


# -- one epoch after another -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_chosen_epoch_reaches_a_kept_child_under_a_foreign_sampler() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (12, 3, 40, 40), np.uint8)
    data = RAMDataset.from_arrays(image=images).replace(augment=[augment.RandomResizedCrop(12)])

    def epochs(loader: DataLoader) -> list[torch.Tensor]:
        served = []
        for epoch in (0, 1, 5):
            loader.set_epoch(epoch)
            served.append(torch.cat([batch.image.clone() for batch in loader]))
        return served

    sampler = SequentialSampler(range(12))
    kept = epochs(kept_loader(data, 4, sampler=sampler))
    plain = epochs(DataLoader(data, 4, sampler=sampler, num_workers=0))

    assert all(torch.equal(a, b) for a, b in zip(kept, plain, strict=True))
    assert not torch.equal(kept[0], kept[1])


class Replaces(Numbers):
    num_replaced = 0

    def __getitem__(self, index: int) -> int:
        self.num_replaced += 1
        return self.num_replaced


@pytest.mark.slow
def test_what_was_replaced_for_an_epoch_that_was_left_is_counted() -> None:
    loader = kept_loader(Replaces(), 1, num_workers=1, prefetch_factor=4)
    left = iter(loader)
    next(left)
    wait_until(lambda: loader.stats().num_ready >= 0)
    time.sleep(0.3)
    del left

    last = max(int(number) for number in loader)

    assert loader.stats().num_replaced == last


@pytest.mark.slow
def test_the_slots_of_a_child_that_waits_are_counted() -> None:
    loader = kept_loader(RAMDataset.from_arrays(x=torch.zeros(8, 100_000)), 4)

    for _ in loader:
        pass
    between = loader.stats().slot_bytes
    iterator = iter(loader)

    assert between >= 1_600_000
    assert loader.stats().slot_bytes == between
    del iterator


@pytest.mark.slow
def test_who_ended_does_not_ask_the_child_of_another_epoch() -> None:
    loader = kept_loader(Numbers(), 2)
    ended: Any = iter(loader)
    list(ended)
    running: Any = iter(loader)
    next(running)

    assert ended._batches.describe() == "this epoch has ended"
    assert "child process" in running._batches.describe()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"timeout": 1e7}, {"stall_warning_s": 1e7}])
def test_a_wait_may_be_long(settings: dict[str, Any]) -> None:
    assert [b.tolist() for b in kept_loader(Numbers(), 2, **settings)] == WHOLE


@pytest.mark.slow
def test_an_epoch_that_is_refused_does_not_reach_the_child(alarm: None) -> None:
    loader = kept_loader(RAMDataset.from_arrays(label=np.arange(12)), 2, num_workers=1)
    assert [batch.label.tolist() for batch in loader] == WHOLE

    with pytest.raises(ValueError):
        loader.set_epoch(-1)

    assert [batch.label.tolist() for batch in loader] == WHOLE


@pytest.mark.slow
def test_counters_can_be_read_by_any_thread_while_the_trainer_waits(alarm: None) -> None:
    loader = kept_loader(Sleepy(), 1, num_workers=1)
    batches = iter(loader)
    next(batches)
    seen = list[int]()

    def read() -> None:
        while len(seen) < 2000:
            seen.append(loader.stats().num_ready)

    reader = threading.Thread(target=read)
    reader.start()
    assert [int(batch) for batch in batches] == [*range(1, 12)]
    reader.join()

    assert len(seen) == 2000


class Sleepy(Numbers):
    turn = 0

    def __getitem__(self, index: int) -> int:
        time.sleep(0.1)
        return index + self.turn


@pytest.mark.slow
def test_a_dataset_that_changes_while_its_batches_are_under_way_is_followed(alarm: None) -> None:
    data = Sleepy()
    loader = kept_loader(data, 1, num_workers=2, prefetch_factor=6)
    pids = set()

    for turn in range(4):
        data.turn = turn
        for _ in loader:
            break
        data.turn += 10
        assert [int(batch) for batch in loader] == [i + turn + 10 for i in range(12)]
        pids |= {*children()}

    assert len(pids) == 1
