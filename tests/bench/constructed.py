"""Datasets and steps whose limit is known, because they were made to have it."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

_NOISE = bytes(torch.randint(256, (1 << 20,), generator=torch.Generator().manual_seed(0)).tolist())


class Made(torch.utils.data.Dataset[Any]):
    """A sample is a small tensor, and the time that ``work`` takes."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, i: int) -> torch.Tensor:
        self.work()
        return torch.full((64,), i)

    def work(self) -> None:
        """Take time."""


class Sleeps(Made):
    """As one that waits for a slow disk."""

    def work(self) -> None:
        time.sleep(0.004)


class Hashes(Made):
    """As a decoder: CPU work that releases the GIL."""

    def work(self) -> None:
        hashlib.sha256(_NOISE).digest()


class Counts(Made):
    """Pure Python, which holds the GIL."""

    def work(self) -> None:
        total = 0
        for k in range(40_000):
            total += k


class Instant(torch.utils.data.Dataset[Any]):
    """Samples that cost nothing to have, in one call for a batch."""

    def __init__(self) -> None:
        self.rows = torch.zeros(512, 256, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.rows[i]


def slow_copy(batch: Any) -> None:
    """Take 2 ms per sample, as a narrow link would."""
    time.sleep(0.002 * len(batch))


def slow_step(batch: Any) -> None:
    """Take 2 ms per sample, as a large model would."""
    time.sleep(0.002 * len(batch))


def quick_step(batch: Any) -> None:
    """Take next to no time."""


instant = Instant()


def slow_step_of_batch(batch: Any) -> None:
    """Take 30 ms per batch, whatever its form."""
    time.sleep(0.03)
