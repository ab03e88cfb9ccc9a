"""Torch's worker processes, met as every other backend is."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader
from tests.backends.test_subprocess import ROOT

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


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_batch_that_is_late_is_had_later_with_its_own_marks(backend: Any) -> None:
    loader = DataLoader(
        SometimesLate(), 4, num_workers=1, backend=backend, timeout=0.3,
        rank=0, world_size=1, pad="mark", collate_fn=lambda items: {"i": torch.tensor(items)},
    )  # fmt: skip
    iterator: Any = iter(loader)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        next(iterator)
    time.sleep(1)
    batches = list(itertools.islice(iterator, len(loader)))

    assert loader.state_dict()["sampler"]["delivered"] == NUM
    assert [b["i"].tolist()[:2] for b in batches] == [[0, 1], [4, 5], [8, 9]]
    assert [b["valid"].sum().item() for b in batches] == [4, 4, 2]


def test_workers_end_with_the_loop_that_an_error_ends() -> None:
    """Not when the garbage collector finds torch's iterator, and then ten seconds late."""

    def train() -> None:
        for _ in DataLoader(SometimesLate(is_broken=True), 2, num_workers=2, backend="process"):
            pass

    before = set(multiprocessing.active_children())
    told = ""
    try:
        train()
    except ValueError as error:
        told = str(error)

    assert "sample 5 is broken" in told
    assert set(multiprocessing.active_children()) <= before


def test_what_worker_processes_do_is_told() -> None:
    iterator: Any = iter(DataLoader(SometimesLate(), 2, num_workers=2, backend="process"))

    assert iterator.describe().count("runs") == 2
    iterator.close()
    assert iterator.describe().count("ended") == 2


# -- workers that die ----------------------------------------------------------------------------------------


class Ends(Dataset[torch.Tensor]):
    """One sample ends its worker, or is missing."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 2 and self.code is None:
            raise FileNotFoundError(2, "no such file", "2.jpg")
        if i == 2:
            os._exit(self.code or 0)
        return torch.zeros(9)


def cut_off(iterator: Any, error: Exception) -> Any:
    """Let fetching fail as it does while a worker dies; return the worker."""

    def fail(timeout: float) -> Any:
        raise error

    batches = iterator._batches._batches
    batches._data_queue.get = fail
    return batches._workers[0]


def test_a_worker_that_ended_is_told_with_its_code() -> None:
    iterator: Any = iter(DataLoader(Ends(3), 1, num_workers=1, backend="process"))
    worker = iterator._batches._workers[0]

    with pytest.raises(RuntimeError, match=r"exited unexpectedly") as caught:
        list(iterator)

    assert f"pid {worker.pid}" in str(caught.value)
    # Torch's handler of the signal may raise in whatever runs then: also in this loop.
    assert re.search(r"it ended \(3\), and may have printed why|exit code 3", str(caught.value))


@pytest.mark.parametrize(
    "error", [EOFError(), ConnectionResetError(104, "reset"), FileNotFoundError(2, "no such file")]
)
def test_an_error_of_fetching_from_a_worker_that_dies_says_so(error: Exception) -> None:
    """Also where the connection ends before the process does."""
    iterator: Any = iter(DataLoader(Ends(3), 1, num_workers=1, backend="process", sampler=[0]))
    worker = cut_off(iterator, error)
    threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL)).start()

    with pytest.raises(RuntimeError, match=rf"pid {worker.pid}\).* killed by signal 9") as caught:
        next(iterator)

    assert caught.value.__cause__ is error


def test_a_worker_that_is_stopped_does_not_outlive_its_iterator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGTERM, which torch sends in the end, reaches it when it goes on."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    iterator: Any = iter(DataLoader(SometimesLate(), 2, num_workers=2, backend="process"))
    worker = iterator._batches._workers[1]
    os.kill(worker.pid, signal.SIGSTOP)

    iterator.close()

    assert not worker.is_alive()


def test_a_worker_that_is_stopped_does_not_hold_up_the_end_of_the_program() -> None:
    code = """
import os, signal
from loaders import DataLoader

batches = iter(DataLoader([*range(8)], 2, num_workers=2, backend="process"))
next(batches)
pid = batches._batches._workers[1].pid
os.kill(pid, signal.SIGSTOP)
print(pid)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_an_error_of_fetching_from_workers_that_live_is_passed_on() -> None:
    iterator: Any = iter(DataLoader(Ends(3), 1, num_workers=1, backend="process", sampler=[0]))
    worker = cut_off(iterator, ConnectionResetError(104, "reset"))

    with pytest.raises(ConnectionResetError, match="reset"):
        next(iterator)

    assert worker.is_alive()
    iterator.close()


def test_an_error_of_the_dataset_is_passed_on() -> None:
    iterator: Any = iter(
        DataLoader(Ends(None), 1, num_workers=2, backend="process", sampler=[2, 0])
    )

    with pytest.raises(FileNotFoundError, match=r"Caught FileNotFoundError(.|\n)*2\.jpg"):
        next(iterator)
    iterator.close()


# -- forks, and the end of the program -----------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_a_fork_leaves_the_workers_to_its_parent(persistent: bool) -> None:
    loader = DataLoader(
        SometimesLate(), 2, num_workers=2, backend="process", persistent_workers=persistent
    )
    iterator: Any = iter(loader)
    batches = [next(iterator).tolist()]
    ours, theirs = os.pipe()

    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os.write(theirs, str(error).encode())
        finally:
            iterator._batches._batches.__del__()  # as if it was dropped
            os._exit(0)
    os.close(theirs)
    told = os.read(ours, 1000).decode()
    os.waitpid(pid, 0)
    os.close(ours)

    assert told == "these worker processes belong to the parent of this forked process"
    batches += [batch.tolist() for batch in iterator]
    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


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


_INTERRUPTED = """
from loaders import DataLoader
from tests.backends.test_process import Ends
loader = DataLoader(Ends(0), 1, num_workers=2, backend="process", sampler=[0] * 100)
for batch in loader:
    raise KeyboardInterrupt
"""


def test_an_interrupted_program_leaves_no_folder_of_its_workers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip

    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert not list(tmp_path.iterdir())


def unsendable(items: list[int]) -> Any:
    return lambda: items


class RaisesUnsendable(SometimesLate):
    def __getitem__(self, i: int) -> int:
        class LocalError(Exception):
            pass

        raise LocalError(str(i))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("what", ["batch", "error"])
def test_what_cannot_be_sent_ends_the_wait_for_it(
    what: str, persistent: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch's own loader waits for it for ever."""
    dataset = SometimesLate() if what == "batch" else RaisesUnsendable()
    loader = DataLoader(
        dataset, 2, num_workers=1, backend="process", persistent_workers=persistent,
        collate_fn=unsendable,
    )  # fmt: skip

    with pytest.raises(RuntimeError, match=r"worker .*exited unexpectedly"):
        next(iter(loader))

    assert "cannot be sent to the trainer" in capfd.readouterr().err
    assert loader.worker_init_fn is None


def test_more_workers_than_cores_are_warned_of_when_they_begin_as_by_torch() -> None:
    num_workers = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match="suggested max"):
        loader = DataLoader([*range(8)], 2, num_workers=num_workers, backend="process")

    with pytest.warns(UserWarning, match="suggested max"):
        assert len([*loader]) == 4
