"""What torch's own iterator serves: as torch serves it, and counted."""

import itertools
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader, RAMDataset
from loaders.errors import BatchError

NUM, LATE, BROKEN = 10, 2, 5


class SometimesLate(Dataset[int]):
    """One sample comes late once, another one never."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken, self.is_late = is_broken, True

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, i: int) -> int:
        if i == LATE and self.is_late:
            self.is_late = False
            time.sleep(0.8)
        if i == BROKEN and self.is_broken:
            raise ValueError(f"sample {i} is broken")
        return i


def _without_room(worker: int) -> None:
    """Files of 4 kB at most, those of shared memory included."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def test_a_batch_for_which_shared_memory_has_no_room_is_an_error() -> None:
    """Torch would find it later, on a thread of the worker that only prints: the trainer would wait for ever."""
    dataset = RAMDataset.from_arrays(values=np.zeros((8, 4096), np.uint8))
    loader = DataLoader(
        dataset, 4, num_workers=1, backend="process", worker_init_fn=_without_room, timeout=60
    )

    with pytest.raises(BatchError):
        next(iter(loader))


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_batch_that_is_late_is_had_later_with_its_own_marks(backend: Any) -> None:
    how: Any = "fork" if backend == "process" else None  # which begins within the time
    loader = DataLoader(
        SometimesLate(), 4, num_workers=1, backend=backend, multiprocessing_context=how, timeout=0.3,
        rank=0, world_size=1, pad="mark", collate_fn=lambda items: {"i": torch.tensor(items)},
    )  # fmt: skip
    iterator: Any = iter(loader)
    with pytest.raises(RuntimeError):
        next(iterator)
    time.sleep(1)
    batches = list(itertools.islice(iterator, len(loader)))

    state = loader.state_dict()["sampler"]  # of the next epoch's beginning
    assert (state["epoch"], state["delivered"]) == (1, 0)
    assert [b["i"].tolist()[:2] for b in batches] == [[0, 1], [4, 5], [8, 9]]
    assert [b["valid"].sum().item() for b in batches] == [4, 4, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_dataset_costs_its_batch_alone(num_workers: int) -> None:
    loader = DataLoader(
        SometimesLate(is_broken=True), 2, num_workers=num_workers, backend="process"
    )
    iterator: Any = iter(loader)

    batches = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(ValueError, match="sample 5 is broken"):
        next(iterator)
    assert loader.state_dict()["sampler"]["delivered"] == 4
    batches += [batch.tolist() for batch in iterator]

    assert batches == [[0, 1], [2, 3], [6, 7], [8, 9]]
    assert loader.state_dict()["sampler"] == loader.state_dict()["sampler"] | {
        "epoch": 1,
        "delivered": 0,
    }


@pytest.mark.parametrize("sampler", [None, [*range(NUM)]])
def test_a_worker_that_ended_ends_the_iteration_where_it_was(sampler: list[int] | None) -> None:
    """Torch would go on without its batches: later ones would be counted as these."""
    script = f"""
import os
import time
from loaders import DataLoader

class Ends(list):
    def __getitem__(self, i):
        if i == 3 and os.environ.get("ENDS"):
            time.sleep(0.5)  # the batch before is there
            os._exit(9)
        return i

if __name__ == "__main__":
    os.environ["ENDS"] = "1"
    sampler = {sampler}
    loader = DataLoader(Ends(range({NUM})), 1, sampler=sampler, num_workers=2, timeout=60)
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(next(iterator).item())
        except RuntimeError:
            print("ended")
        except StopIteration:
            break
    del os.environ["ENDS"]
    again = DataLoader(Ends(range({NUM})), 1, sampler=sampler, num_workers=2)
    again.load_state_dict(loader.state_dict())
    print(found + [batch.item() for batch in again])
"""
    # Torch's handler of the signal may raise anywhere in a process.
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )

    assert done.stdout == f"ended\n{[*range(NUM)]}\n", done.stderr


def test_workers_end_with_the_loop_that_an_error_ends() -> None:
    """Not when the garbage collector finds torch's iterator, and then ten seconds late."""

    def train() -> None:
        for _ in DataLoader(SometimesLate(is_broken=True), 2, num_workers=2, backend="process"):
            pass

    before = set(multiprocessing.active_children())
    try:
        train()
        what = ""
    except ValueError as error:  # not kept: its traceback holds the loop
        what = str(error)

    assert "sample 5 is broken" in what
    assert set(multiprocessing.active_children()) <= before


def test_a_closed_iterator_has_ended_its_workers() -> None:
    before = set(multiprocessing.active_children())
    iterator = iter(DataLoader(SometimesLate(), 2, num_workers=2, backend="process"))
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2

    iterator.close()

    assert not any(worker.is_alive() for worker in workers)


def test_persistent_workers_are_the_same_from_epoch_to_epoch() -> None:
    before = set(multiprocessing.active_children())
    loader: Any = DataLoader([*range(8)], 2, num_workers=2, persistent_workers=True)
    workers = []
    for _ in range(2):
        assert sorted(i for batch in loader for i in batch.tolist()) == [*range(8)]
        workers.append(set(multiprocessing.active_children()) - before)

    assert len(workers[0]) == 2
    assert workers[0] == workers[1]


def test_a_fork_goes_on_where_there_are_no_workers() -> None:
    iterator: Any = iter(DataLoader(SometimesLate(), 2, num_workers=0, backend="process"))
    next(iterator)
    ours, theirs = os.pipe()

    pid = os.fork()
    if pid == 0:
        try:
            os.write(theirs, bytes(next(iterator).tolist()))
        finally:
            os._exit(0)
    os.close(theirs)
    told = os.read(ours, 9)
    os.waitpid(pid, 0)
    os.close(ours)

    assert told == b"\2\3"


def test_more_workers_than_cores_are_warned_of_when_they_begin_as_by_torch() -> None:
    num_workers = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match="suggested max"):
        loader = DataLoader([*range(8)], 2, num_workers=num_workers, backend="process")

    with pytest.warns(UserWarning, match="suggested max"):
        assert len([*loader]) == 4
