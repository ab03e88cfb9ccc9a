"""Torch's worker processes, met as every other backend is."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader

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
