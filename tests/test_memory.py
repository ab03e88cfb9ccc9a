"""Memory stays flat over epochs: measured as PSS, so that pages shared with worker processes count once.

In a process of its own, or what other tests have left behind would move the figures.
"""

import gc
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import DataLoader, RAMDataset, ShardDataset
from tests.packdata.packing import pack_samples

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="PSS is read from /proc"
    ),
]


def pss_bytes(pid: int) -> int:
    """Return the memory of one process, shared pages divided by those who share them.

    Without that of mapped files: other programs that map the same libraries would change it.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has just ended
        return 0
    lines = [line.split() for line in text.splitlines()]
    return sum(int(line[1]) << 10 for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:"))


def descendants(pid: int) -> list[int]:
    """Return the processes below one, itself included."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += descendants(int(child))
    return found


def total_pss() -> int:
    gc.collect()
    return sum(map(pss_bytes, descendants(os.getpid())))


def memory_by_epoch(loader: DataLoader, num_epochs: int) -> list[int]:
    """Return the PSS of all processes in the middle of each epoch, workers at work."""
    measured = []
    for _ in range(num_epochs):
        middle = len(loader) // 2
        for step, _batch in enumerate(loader):
            if step == middle:
                measured.append(total_pss())
    return measured


def growth_bytes(measured: Iterable[int], warm_up: int) -> float:
    """Return by how much the later third of the epochs is above the first third, leaving out the warm-up."""
    after = list(measured)[warm_up:]
    third = max(1, len(after) // 3)
    return float(np.median(after[-third:]) - np.median(after[:third]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "a"
    return pack_samples(path, 128, per_shard=32, fields=["image", "pixels", "label", "key"])


def dataset(folder: Path, kind: str) -> Any:
    shards = ShardDataset(folder, fields=["image", "pixels", "label", "key"])
    return shards if kind == "shards" else RAMDataset(shards, progress=False)


def serve(folder: Path, kind: str, num_epochs: int, settings: dict[str, Any]) -> list[int]:
    loader = DataLoader(dataset(folder, kind), 16, shuffle=True, **settings)
    return memory_by_epoch(loader, num_epochs)


def measured_alone(folder: Path, kind: str, num_epochs: int, **settings: Any) -> list[int]:
    """Return the PSS in each epoch of a loader, and of all below it, that has a fresh process to itself."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        return alone.submit(serve, folder, kind, num_epochs, settings).result(timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shards", pytest.param("ram", marks=pytest.mark.slow)])
def test_memory_is_flat_over_epochs(folder: Path, kind: str) -> None:
    """An epoch serves 0.75 MB of pixels: what would be kept of each would show."""
    # "auto" may go over to a child, which copies pages as it uses them
    measured = measured_alone(folder, kind, 16, num_workers=2, backend="thread")

    assert growth_bytes(measured, warm_up=4) < 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shards", "ram"])
@pytest.mark.parametrize(
    ("backend", "num_workers", "keep"),
    [
        ("thread", 0, False),
        ("thread", 1, False),
        ("thread", 4, False),
        ("subprocess", 2, False),
        ("subprocess", 2, True),
        ("process", 2, True),
    ],
)
def test_memory_is_flat_over_fifty_epochs(
    folder: Path, kind: str, backend: Any, num_workers: int, keep: bool
) -> None:
    """With any workers: less than one percent of what was served stays."""
    measured = measured_alone(
        folder, kind, 50, num_workers=num_workers, backend=backend, persistent_workers=keep
    )

    served = 40 * len(dataset(folder, "shards")) * 40 * 48 * 3
    assert growth_bytes(measured, warm_up=10) < max(0.02 * served, 1 << 20)


@pytest.mark.parametrize("num_workers", [1, 4])
def test_slots_do_not_depend_on_the_number_of_workers(folder: Path, num_workers: int) -> None:
    """At most two batches more than are in flight."""
    data = ShardDataset(folder, fields=["pixels"])
    loader = DataLoader(
        data, 32, shuffle=True, num_workers=num_workers, prefetch_factor=3, backend="thread"
    )
    batch_nbytes = 32 * 40 * 48 * 3

    for _ in range(3):
        for batch in loader:
            del batch

    group = loader._maker().group_size
    assert loader.stats().slot_bytes <= (3 * group + 2) * batch_nbytes * 1.01
