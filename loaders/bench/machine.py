"""What a run takes of the machine: memory of its processes, what they read, and what the page cache has of files."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.system.limits import numbers, text

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def bytes_read(pids: list[int]) -> int:
    """Return what some processes made the storage read so far; 0 where the system does not say."""
    return sum(numbers(PROC / str(pid) / "io").get("read_bytes", 0) for pid in pids)


def drop_pages(files: Iterable[Path]) -> bool:
    """Ask the kernel to forget files; what a process has mapped and touched stays. False where that cannot be asked.

    What was just written is synced first, or it would stay too; of some file systems nothing can be.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    is_asked = True
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            with suppress(OSError):  # as of squashfs
                os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            is_asked = False
        finally:
            os.close(fd)
    return is_asked
