"""What this process and its children use: memory shared fairly (PSS), CPU time, bytes read from storage."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MIN_INTERVAL_S = 0.1
_SHARE = 0.01  # of the time may go into watching


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of some processes together; what they share counts once.

    Attributes:
        pss_bytes: All of it, mapped files included: what the machine would get back.
        own_bytes: Without mapped files, which the kernel drops when it needs room.
    """

    pss_bytes: int = 0
    own_bytes: int = 0


def family(pid: int | None = None, proc: Path = PROC) -> list[int]:
    """Return a process and all its descendants."""
    found, waiting = [], [os.getpid() if pid is None else pid]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        for children in (proc / str(parent) / "task").glob("*/children"):
            waiting += _numbers(children)
    return found


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except OSError:  # it has just ended
        return []


def memory(pids: list[int], proc: Path = PROC) -> Memory:
    """Return the memory of some processes; those that have ended count nothing."""
    total = [0, 0]
    for pid in pids:
        fields = _fields(proc / str(pid) / "smaps_rollup")
        pss = fields.get("Pss", 0)
        total[0] += pss
        total[1] += pss - fields.get("Pss_File", 0)
    return Memory(total[0] << 10, total[1] << 10)


def _fields(path: Path) -> dict[str, int]:
    """Read lines of ``name: number [unit]``."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {
        name: int(value.split()[0])
        for name, value in pairs
        if value.split() and value.split()[0].isdigit()
    }


def bytes_read(pids: list[int], proc: Path = PROC) -> int | None:
    """Return what some processes made the storage read so far, or None where the system does not say."""
    fields = [_fields(proc / str(pid) / "io") for pid in pids]
    known = [f["read_bytes"] for f in fields if "read_bytes" in f]
    return sum(known) if known else None


def children_cpu_s(pids: list[int], proc: Path = PROC) -> float:
    """Return the CPU seconds of some processes so far, and of their children that ended; in steps of 10 ms."""
    total = 0.0
    for pid in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        words = stat.rsplit(")", 1)[1].split()  # the name may hold anything, brackets too
        total += sum(map(int, words[11:15])) / _TICKS_PER_S
    return total


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of this process and some children; those that ended stay counted."""
    ended = sum(os.times()[2:4])  # of children, once they were waited for
    others = children_cpu_s([pid for pid in pids if pid != os.getpid()])
    return time.process_time() + ended + others


class MemoryWatch:
    """Looks at the memory of this process and its children now and then, and keeps the peak.

    Reading it stops for a moment what is being read, so the pause between two looks grows with
    the time that a look takes: at most 1 % goes into it.

    Attributes:
        peak: The largest sum seen; of each figure by itself.
        looks: How often it looked.
        spent_s: Time spent looking while others worked: without the look before, and those by ``look``.
    """

    def __init__(self) -> None:
        self.peak = Memory()
        self.looks, self.spent_s, self._took = 0, 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-memory", daemon=True)

    def __enter__(self) -> Self:
        self._took = self.look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> float:
        """Look once; return the seconds it took."""
        began = time.perf_counter()
        now = memory(family())
        self.peak = Memory(
            max(self.peak.pss_bytes, now.pss_bytes), max(self.peak.own_bytes, now.own_bytes)
        )
        took = time.perf_counter() - began
        self.looks += 1
        return took

    def _watch(self) -> None:
        while not self._stop.wait(max(_MIN_INTERVAL_S, self._took / _SHARE)):
            self._took = self.look()
            self.spent_s += self._took
