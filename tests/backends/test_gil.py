import hashlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from loaders import DataLoader, RAMDataset
from loaders.backends import gil
from loaders.backends.gil import GilWatch
from tests.device.copies import ManualCopies

POOL: Any = None  # where the kernel's counts are set


def watched(
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[float, ...],
    loader: tuple[float, ...] = (0.0, 0.0, 0.0, 0),
    **begin: Any,
) -> GilWatch:
    """Return a watch over 20 steps, between which the loader works."""
    now = [0.0, 0.0, 0.0, 0.0]
    monkeypatch.setattr(gil, "_usage", lambda _: tuple(now))
    watch = GilWatch()
    watch.begin(**begin)
    for _ in range(20):
        watch.leave(POOL)
        now[:] = [a + b for a, b in zip(now, step, strict=True)]
        watch.enter(POOL)
        now[:] = [a + b for a, b in zip(now, loader, strict=True)]
    return watch


@pytest.mark.parametrize(
    ("what", "cpu_s", "workers_s", "num_waits", "lost"),
    [
        ("tiny operations beside a busy thread", 0.06, 0.05, 26, 0.4),
        ("a few long operations", 0.099, 0.09, 1, 0),
        ("waiting for a GPU", 0.002, 0.09, 3, 0),
        ("tiny operations that nobody disturbs", 0.099, 0.09, 40, 0),
        ("waiting often, while no thread works", 0.01, 0.01, 40, 0),
    ],
)
def test_many_short_waits_beside_busy_threads_are_for_the_gil(
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    cpu_s: float,
    workers_s: float,
    num_waits: int,
    lost: float,
) -> None:
    watch = watched(monkeypatch, (0.1, cpu_s, workers_s, num_waits))

    assert watch.lost_share == pytest.approx(lost), what


def test_the_time_of_the_loader_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch, (0.1, 0.05, 0.05, 5), loader=(9, 0, 9, 10_000))

    assert watch.lost_share == 0


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_step_whose_device_has_work_left_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    accelerator = ManualCopies()
    monkeypatch.setattr(accelerator, "is_busy", lambda: is_busy)

    watch = watched(monkeypatch, (0.1, 0.05, 0.05, 50), accelerator=accelerator)

    assert watch.lost_share == (0 if is_busy else pytest.approx(0.5))


def test_a_loader_tells_the_share_of_all_epochs_without_what_is_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0, 0.0, 0.0, 0]
    monkeypatch.setattr(gil, "_usage", lambda _: tuple(now))
    data = RAMDataset.from_arrays(x=torch.zeros(48, 200_000))  # handed over one by one
    loader = DataLoader(data, 16, num_workers=1)

    for _epoch in range(5):
        for _batch in loader:
            now = [now[0] + 0.1, now[1] + 0.05, now[2] + 0.05, now[3] + 50]
        now = [now[0] + 60, now[1], now[2] + 60, now[3]]

    assert loader.stats().gil_share == pytest.approx(0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not count by thread")
def test_the_kernel_counts_the_waits_of_this_thread() -> None:
    wall_s, cpu_s, _, num_waits = gil._usage(POOL)

    for _ in range(20):
        time.sleep(1e-3)

    after = gil._usage(POOL)
    assert after[3] - num_waits >= 20
    assert after[0] - wall_s > after[1] - cpu_s


@pytest.mark.slow
def test_a_step_that_waits_for_threads_of_its_own_loses_nothing() -> None:
    """Autograd's thread of a GPU, say, works while the trainer's waits for it, and needs no interpreter."""
    loader = DataLoader(RAMDataset.from_arrays(x=torch.zeros(4096, 4096)), 512, num_workers=1)
    data = bytes(1 << 20)

    with ThreadPoolExecutor(1) as others:
        ends = time.monotonic() + 1.5
        while time.monotonic() < ends:
            for _ in loader:
                for _ in range(4):
                    others.submit(hashlib.sha256, data).result()

    assert loader.stats().gil_share == 0
