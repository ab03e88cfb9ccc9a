"""A child process that does not answer, and messages larger than its socket: every wait has an end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from loaders import RAMDataset
from loaders.backends import subprocess as backend
from tests.backends.test_subprocess import ROOT, child_loader, children

TIMEOUT_S = 0.5
PATIENCE_S = 6.0  # of the tests, which wait for a minute without what they are about


@pytest.fixture(autouse=True)
def nothing_remains(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever hangs goes on after a minute, to fail."""
    monkeypatch.setattr(backend, "_END_TIMEOUT_S", 0.2)
    monkeypatch.setattr(backend, "STUCK_S", 1)

    def go_on() -> None:
        for pid in children():
            os.kill(pid, signal.SIGCONT)

    wake = threading.Timer(60, go_on)
    wake.start()
    yield
    wake.cancel()
    wake.join()
    assert not children()


class Texts(Dataset[str]):
    def __getitem__(self, index: int) -> str:
        return "x" * 100_000

    def __len__(self) -> int:
        return 4000


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 200_000


def longest_wait_s(batches: Any) -> float:
    """Take batches until one is late; return how long was waited for one."""
    longest, error = 0.0, None
    while error is None:
        began = time.monotonic()
        try:
            next(batches)
        except RuntimeError as late:
            error = late
        longest = max(longest, time.monotonic() - began)
    said = str(error)
    assert "timed out after 0.5 seconds" in said or "in the middle of a message" in said
    return longest


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [16, 256, 20_000])
def test_requests_that_a_stopped_child_does_not_read_are_not_waited_for(batch_size: int) -> None:
    """Groups of 128 KiB, and single batches of 160 kB: more than the socket holds."""
    data = RAMDataset.from_arrays(x=torch.arange(8_000_000))
    loader = child_loader(data, batch_size, shuffle=True, num_workers=1, timeout=TIMEOUT_S)
    batches = iter(loader)
    next(batches)
    os.kill(children()[0], signal.SIGSTOP)

    assert longest_wait_s(batches) < PATIENCE_S
    batches.close()


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.03])
def test_a_child_that_stops_in_the_middle_of_an_answer_is_not_waited_for(delay_s: float) -> None:
    batches = iter(child_loader(Texts(), 10, num_workers=1, timeout=TIMEOUT_S))
    next(batches)
    stop = threading.Timer(delay_s, os.kill, (children()[0], signal.SIGSTOP))
    stop.start()

    assert longest_wait_s(batches) < PATIENCE_S
    stop.join()
    batches.close()


@pytest.mark.slow
def test_a_child_that_stays_stopped_is_not_kept_for_another_epoch() -> None:
    data = RAMDataset.from_arrays(x=torch.arange(1000))
    loader = child_loader(data, 10, num_workers=1, timeout=TIMEOUT_S, persistent_workers=True)
    list(loader)
    (pid,) = children()
    os.kill(pid, signal.SIGSTOP)

    with pytest.raises(RuntimeError, match=str(pid)):
        list(loader)

    assert torch.cat([batch.x for batch in loader]).tolist() == [*range(1000)]
    assert children() != [pid]
    del loader


@pytest.mark.slow
def test_large_messages_both_ways_at_the_same_time_come_through() -> None:
    """Requests and batches of 150 kB and more, dozens of them on their way."""
    loader = child_loader(
        Numbers(), 8192, num_workers=2, prefetch_factor=32, collate_fn=list, timeout=20
    )

    found = [i for batch in loader for i in batch]

    assert found == list(range(200_000))


@pytest.mark.slow
def test_large_messages_are_waited_for_whatever_the_default_timeout_of_sockets() -> None:
    """Some downloaders set it: sockets that are made then do not block."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(5)
    try:
        found = list(child_loader(Texts(), 40, num_workers=1, timeout=20))
    finally:
        socket.setdefaulttimeout(before)

    assert [len(batch) for batch in found] == [40] * 100


@pytest.mark.slow
def test_a_child_that_was_stopped_goes_on_with_what_it_was_in() -> None:
    batches = iter(child_loader(Texts(), 10, num_workers=1, timeout=10))
    lengths = []
    for _ in range(20):
        pid = children()[0]
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.02, os.kill, (pid, signal.SIGCONT)).start()
        lengths.append([len(text) for text in next(batches)])
    batches.close()

    assert lengths == [[100_000] * 10] * 20


def told(sample: Any) -> Any:
    print("sample", int(sample.x))  # noqa: T201
    return sample


@pytest.mark.slow
def test_what_a_transform_prints_is_not_lost() -> None:
    code = """
import torch
from loaders import DataLoader, RAMDataset
from tests.backends.test_stopped import told

data = RAMDataset.from_arrays(x=torch.arange(4)).replace(transform=told)
assert len(list(DataLoader(data, 2, num_workers=1, backend="subprocess"))) == 2
"""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=ROOT
    )

    assert sorted(done.stdout.splitlines()) == [f"sample {i}" for i in range(4)]
