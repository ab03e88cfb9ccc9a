"""Memory of a run's processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from loaders.system.limits import numbers, text

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of some processes together; what they share counts once."""

    pss_bytes: int = 0  # all of it, mapped files included: what the machine would get back
    own_bytes: int = 0  # without mapped files, which the kernel drops when it needs room


def family(pid: int | None = None) -> list[int]:
    """Return a process and all its descendants."""
    found, waiting = [], [os.getpid() if pid is None else pid]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        for children in (PROC / str(parent) / "task").glob("*/children"):
            waiting += map(int, (text(children) or "").split())
    return found


def memory(pids: list[int]) -> MemoryUse:
    """Return the memory of some processes; those that have ended count nothing."""
    fields = [numbers(PROC / str(pid) / "smaps_rollup") for pid in pids]
    pss = sum(each.get("Pss", 0) for each in fields)
    return MemoryUse(pss << 10, (pss - sum(each.get("Pss_File", 0) for each in fields)) << 10)
