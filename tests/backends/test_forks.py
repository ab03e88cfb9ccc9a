"""Forks: the child process of a loader, and what a trainer forks beside it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from loaders import RAMDataset
from loaders.backends import subprocess as backend
from loaders.backends.maker import Chunk, Maker
from tests.backends.test_subprocess import (
    ROOT,
    Squares,
    child_loader,
    children,
    dataset,
    kept_loader,
    pool_of,
)
from tests.packdata.packing import pack_samples
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", 23, format="parquet")


@pytest.mark.slow
def test_a_kept_child_is_not_used_by_a_fork_of_its_parent(folder: Path) -> None:
    loader = kept_loader(dataset(folder), 5)
    expected = [batch.sample_id.tolist() for batch in loader]
    kept = children()
    ours, theirs = os.pipe()

    pid = os.fork()
    if pid == 0:
        try:
            same = [batch.sample_id.tolist() for batch in loader] == expected
            os.write(theirs, b"1" if same else b"0")
        finally:
            os._exit(0)
    os.close(theirs)

    assert os.read(ours, 1) == b"1"
    os.waitpid(pid, 0)
    os.close(ours)
    assert children() == kept
    assert [batch.sample_id.tolist() for batch in loader] == expected
    assert children() == kept


_ENDLESS = """
import sys
from loaders import DataLoader, ShardDataset
loader = DataLoader(ShardDataset(sys.argv[1], fields=["label"]), 2, num_workers=2, backend="subprocess")
while True:
    batches = iter(loader)
    for batch in batches:
        print(batches._batches._pool.child.pid, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_child_ends_with_its_parent(folder: Path, end: signal.Signals) -> None:
    """Whatever ends the parent; Ctrl-C reaches both, and only the parent tells of it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())

    if end == signal.SIGINT:
        os.killpg(parent.pid, end)
    else:
        parent.send_signal(end)
    output, errors = parent.communicate(timeout=100)
    pids = {pid, *(int(line) for line in output.split("\n")[:-1] if line.isdigit())}

    wait_until(lambda: not any(Path(f"/proc/{p}").exists() for p in pids))
    # Not its "Traceback": one that comes while an epoch ends is told with the StopIteration that it came upon.
    assert errors.splitlines().count("KeyboardInterrupt") == (end == signal.SIGINT)
    assert end == signal.SIGINT or not errors
    assert not [name for name in os.listdir("/dev/shm") if "loaders" in name]


def test_a_child_ends_with_its_parent_though_another_process_holds_the_socket_open() -> None:
    ours, theirs = os.pipe()
    parent = os.fork()
    if parent == 0:
        pool = pool_of(Maker(Squares(), list, 2, True, 1))
        pool.put(Chunk([[1, 2]]), 0)
        pool.take(30)
        holder = os.fork()
        if holder == 0:
            time.sleep(60)
            os._exit(0)
        os.write(theirs, f"{pool.child.pid} {holder}".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    child, holder = map(int, os.read(ours, 100).split())
    os.waitpid(parent, 0)

    try:
        wait_until(lambda: not Path(f"/proc/{child}").exists())
        assert Path(f"/proc/{holder}").exists()  # it was not that which ended the child
    finally:
        os.kill(holder, signal.SIGKILL)
        os.close(ours)
        os.close(theirs)


def test_a_child_has_no_descriptor_of_its_parent_and_ignores_what_launchers_send() -> None:
    """It could not tell that the parent's end of the socket was closed, nor let the parent save its state."""
    ignored = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2
    pipe, file = os.pipe(), os.open("/dev/zero", os.O_RDONLY)
    for fd in (*pipe, file):
        os.set_inheritable(fd, True)
    pool = pool_of(Maker(Squares(), list, 2, True, 1))
    for number in ignored:  # while it begins, too
        os.kill(pool.child.pid, number)
    pool.put(Chunk([[1, 2]]), 0)
    assert pool.take(30) == [[1, 4]]
    for number in ignored:
        os.kill(pool.child.pid, number)
    proc = Path(f"/proc/{pool.child.pid}")
    theirs = {os.readlink(fd) for fd in (proc / "fd").iterdir() if int(fd.name) > 2}
    ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in (*pipe, file)}
    end = os.readlink(f"/proc/self/fd/{pool.child._connection.fileno()}")
    pool.put(Chunk([[3]]), 0)
    assert pool.take(30) == [[9]]
    pool.close()
    for fd in (*pipe, file):
        os.close(fd)

    assert not theirs & ({end} | ours)
    assert sum("socket" in link for link in theirs) == 1


@pytest.mark.slow
def test_a_forked_child_says_that_the_iterator_is_not_its_own(folder: Path) -> None:
    iterator: Any = iter(child_loader(dataset(folder), 2))
    next(iterator)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def use() -> None:
        try:
            for _ in range(20):
                next(iterator)
        except RuntimeError as error:
            queue.put(str(error))
        iterator.close()  # leaves the parent's child alone

    process = context.Process(target=use)
    process.start()
    process.join(60)

    assert process.exitcode == 0
    assert "parent of this forked process" in queue.get()
    assert len(list(iterator)) == 11


FORKING = """
import os, signal, sys
import cv2, numpy
from loaders import DataLoader, ShardDataset
signal.alarm(40)
for _ in range(6):
    cv2.setNumThreads(2)
    cv2.resize(numpy.zeros((2000, 2000, 3), "uint8"), (1500, 1500))
    pid = os.fork()
    signal.alarm(40)
    if not pid:
        os._exit(len(list(DataLoader(ShardDataset(sys.argv[1]), 4, num_workers=2))))
    print(os.waitpid(pid, 0)[1] >> 8, cv2.getNumThreads())
"""


@pytest.mark.slow
@pytest.mark.skipif(cv2.getNumberOfCPUs() < 2, reason="OpenCV has no threads of its own")
def test_a_process_that_somebody_forks_after_using_opencv_loads(folder: Path) -> None:
    num = -(-len(dataset(folder)) // 4)

    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(folder)], capture_output=True, text=True, timeout=120
    )

    assert done.stdout == f"{num} 2\n" * 6, done.stderr


class Rows(Dataset[torch.Tensor]):
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


@pytest.mark.slow
def test_data_that_lie_in_a_batch_are_there_in_the_child_of_another_loader() -> None:
    large = RAMDataset.from_arrays(x=torch.arange(800_000).view(8, 100_000))
    batches = iter(child_loader(large, 4))
    first = next(batches)

    found = torch.cat(list(child_loader(Rows(first.x), 2, timeout=20)))

    assert torch.equal(found, torch.arange(400_000).view(4, 100_000))


@pytest.mark.slow
def test_a_batch_that_a_fork_reads_is_not_overwritten_when_it_is_gone_here() -> None:
    data = RAMDataset.from_arrays(x=torch.arange(6_400_000).view(64, 100_000))
    loader = kept_loader(data, 4)
    batches = iter(loader)
    batch = next(batches)
    told, tell = os.pipe()
    if not (pid := os.fork()):
        os.read(told, 1)
        is_whole = np.array_equal(batch.x.numpy(), np.arange(400_000).reshape(4, -1))
        os._exit(0 if is_whole else 1)

    del batch
    rest = [int(other.x[0, 0]) for other in batches]
    assert rest == list(range(400_000, 6_400_000, 400_000))
    assert [int(other.x[0, 0]) for other in loader] == [0, *rest]
    os.write(tell, b"!")

    assert os.waitpid(pid, 0)[1] == 0
    for end in (told, tell):
        os.close(end)


class ForksOnce(Dataset[int]):
    """Its first sample is the number of a process that goes on when the child is dead."""

    def __getitem__(self, index: int) -> int:
        if index:
            time.sleep(60)
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        return pid

    def __len__(self) -> int:
        return 2


@pytest.mark.slow
def test_a_death_is_noticed_though_another_process_holds_the_childs_end_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "_LOOK_S", 0.1)
    batches = iter(child_loader(ForksOnce(), None, num_workers=1))
    holder = next(batches)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()

    try:
        with pytest.raises(RuntimeError):
            next(batches)
        assert time.monotonic() - began < 10
        assert Path(f"/proc/{holder}").exists()  # it was not that which told
    finally:
        os.kill(holder, signal.SIGKILL)
