"""What this process and its children use: memory shared fairly (PSS), CPU time, bytes read from storage."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from loaders.system.limits import text

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


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
    fields = [_fields(PROC / str(pid) / "smaps_rollup") for pid in pids]
    pss = sum(each.get("Pss", 0) for each in fields)
    return MemoryUse(pss << 10, (pss - sum(each.get("Pss_File", 0) for each in fields)) << 10)


def _fields(path: Path) -> dict[str, int]:
    """Read lines of ``name: number [unit]``."""
    pairs = (line.partition(":") for line in (text(path) or "").splitlines())
    words = {name: value.split() for name, _, value in pairs}
    return {name: int(found[0]) for name, found in words.items() if found and found[0].isdigit()}


def bytes_read(pids: list[int]) -> int | None:
    """Return what some processes made the storage read so far, or None where the system does not say."""
    fields = [_fields(PROC / str(pid) / "io") for pid in pids]
    known = [each["read_bytes"] for each in fields if "read_bytes" in each]
    return sum(known) if known else None


def children_cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of some processes so far, and of their children that ended; in steps of 10 ms."""
    total = 0
    for pid in pids:
        stat = text(PROC / str(pid) / "stat") or ""
        words = stat.rpartition(")")[2].split()  # the name may hold anything, brackets too
        total += sum(map(int, words[11:15]))
    return total / _TICKS_PER_S


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of this process and some children; those that ended stay counted."""
    others = children_cpu_s([pid for pid in pids if pid != os.getpid()])
    return time.process_time() + sum(os.times()[2:4]) + others
