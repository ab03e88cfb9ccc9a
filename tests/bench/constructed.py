"""Datasets and steps whose limit is known, because they were made to have it."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from loaders import RAMDataset
from loaders.bench.measure import Config, Result, TimedPass
from loaders.bench.sweep import Sweep

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


@contextmanager
def contended_core() -> Iterator[None]:
    """Keep this thread on one core, which a process that never rests wants, too."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    spin = (
        f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(1, flush=True)\nwhile True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        os.sched_setaffinity(0, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()


def slow_step(batch: Any) -> None:
    """Take 2 ms per sample, as a large model would."""
    time.sleep(0.002 * len(batch))


def quick_step(batch: Any) -> None:
    """Take next to no time."""


instant = Instant()


def slow_step_of_batch(batch: Any) -> None:
    """Take 30 ms per batch, whatever its form."""
    time.sleep(0.03)


class Interrupts(Made):
    """As somebody who presses Ctrl-C."""

    def work(self) -> None:
        raise KeyboardInterrupt


class Fails(Made):
    """No sample can be had."""

    def work(self) -> None:
        raise OSError("the disk is gone")


class Empty(Made):
    """A folder that was not filled."""

    def __len__(self) -> int:
        return 0


class Stream(torch.utils.data.IterableDataset[Any]):
    """Samples that come one after another, and end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(4096, dtype=torch.int32))


small_rows = RAMDataset.from_arrays(x=np.zeros((4096, 16), np.uint8))
transformed = small_rows.replace(transform=lambda sample: sample)
failing = small_rows.replace(transform=lambda sample: Fails().work())


def a_result(config: Config, repeats: int = 3) -> Result:
    """Each worker adds 1000 samples/s and 100 MB."""
    num = config.num_workers + 1
    return Result(
        config,
        [TimedPass(1000.0 * num + r, 0.1, [0.01], 64, num * 10**8) for r in range(repeats)],
    )


def a_sweep(repeats: int = 3) -> Sweep:
    """Threads and processes alike."""
    configs = [Config(w, 64, kind) for kind in ("thread", "process") for w in (0, 1, 2)]
    return Sweep("some/dataset", [a_result(config, repeats) for config in configs])
