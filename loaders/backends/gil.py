"""How much of the training steps is lost to waiting for the GIL: measured, and only reported.

A step of many small operations releases the GIL at each of them, and beside busy threads waits to get it back:
hundreds of short waits a second, which a step of long operations does not have. The kernel counts them per thread, as
voluntary context switches.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaders.device.accelerator import Accelerator

    # So far: seconds; CPU seconds of the trainer's thread and the workers'; waits.
    Usage = tuple[float, ...]

_MIN_S = 1.0  # of steps
_WAITS_PER_S = 100
_LOST_SHARE = 0.05
_BUSY_SHARE = 0.5  # of the lost time: the thread that holds the GIL meanwhile works


class GilWatch:
    """Sums what the trainer's thread does between taking batches from a pool of threads, over all epochs.

    Steps that a device is still at work on when they ask for the next batch do not count: the trainer waits for the
    device then. Nothing counts where the kernel does not tell threads apart, which only Linux does.
    """

    def __init__(self) -> None:
        self._accelerator: Accelerator | None = None
        self._left: Usage | None = None
        self._sums: Usage = (0.0, 0.0, 0.0, 0.0)

    def begin(self, accelerator: Accelerator | None = None) -> None:
        """Begin an epoch, whose batches go to a device: the time since the last one is no step's."""
        self._left, self._accelerator = None, accelerator

    def leave(self, pool: Any) -> None:
        """Note that a step begins."""
        if sys.platform == "linux":
            self._left = _usage(pool)

    def enter(self, pool: Any) -> None:
        """Note that the step is over."""
        left, self._left = self._left, None
        if left is None or (self._accelerator is not None and self._accelerator.is_busy()):
            return
        times = zip(self._sums, _usage(pool), left, strict=True)
        self._sums = tuple(total + now - before for total, now, before in times)

    @property
    def lost_share(self) -> float:
        """Share of the steps' time that was spent waiting for the GIL; 0 where that is small, or cannot be measured."""
        wall_s, cpu_s, workers_s, num_waits = self._sums
        lost_s = wall_s - cpu_s
        is_often = wall_s >= _MIN_S and num_waits > _WAITS_PER_S * wall_s
        is_lost = lost_s > _LOST_SHARE * wall_s and workers_s > _BUSY_SHARE * lost_s
        return lost_s / wall_s if is_often and is_lost else 0.0


def _usage(pool: Any) -> Usage:
    import resource

    usage = resource.getrusage(resource.RUSAGE_THREAD)
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter(), cpu_s, getattr(pool, "cpu_s", 0.0), usage.ru_nvcsw
