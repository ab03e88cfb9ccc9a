"""What this process may use of the machine: cores and memory, by its affinity and by the container that it runs in.

A container is a control group, of either version; the groups above it limit it, too. Sources: the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, and the CFS bandwidth text of its scheduler.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PROC, _SYS = Path("/proc"), Path("/sys")
_FEW_FILES = 1024  # that any system lets be mapped
_NO_LIMIT = 1 << 60  # version 1 writes its largest number


def usable_cores(proc: Path = _PROC, sys: Path = _SYS, affinity: int | None = None) -> int:
    """Return how many cores to use: those of the affinity, or as many as the quota of time keeps busy, rounded up."""
    cores = _affinity_cores() if affinity is None else affinity
    quota = cpu_quota(proc, sys)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _affinity_cores() -> int:
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def local_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks this machine has, as launchers say it."""
    ranks = environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


def cores_of_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many cores to use beside the other ranks of this machine: a share, unless it has some for itself."""
    cores, ranks = usable_cores(), local_ranks(environ)
    return cores if ranks == 1 or has_own_cores() else max(1, cores // ranks)


def has_own_cores() -> bool:
    """Tell whether this process may use fewer cores than the one that started it, as where ranks are bound to some."""
    try:
        return os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    except (AttributeError, OSError):  # not Linux; or the parent has ended, or cannot be asked
        return False


def cpu_quota(proc: Path = _PROC, sys: Path = _SYS) -> float | None:
    """Return the cores' worth of time that a container may use, or None."""
    quotas = (_quota(group) for group in _groups("cpu", proc, sys))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Path) -> float | None:
    words = (text(group / "cpu.max") or "").split()
    if not words:
        words = [text(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None  # "max", or -1
    return int(words[0]) / int(words[1])


def memory_limit(proc: Path = _PROC, sys: Path = _SYS) -> int | None:
    """Return the bytes that a container may use, or None."""
    limits = (_limit(group) for group in _groups("memory", proc, sys))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(group: Path) -> int | None:
    words = [text(group / name) or "" for name in ("memory.max", "memory.limit_in_bytes")]
    found = [int(word) for word in words if word.isdigit()]
    return found[0] if found and found[0] < _NO_LIMIT else None


def memory_bytes(proc: Path = _PROC, sys: Path = _SYS) -> int:
    """Return the memory of this machine, or of the container if that is less; 0 if it is not known."""
    total, limit = meminfo(proc).get("MemTotal") or _physical_bytes(), memory_limit(proc, sys)
    return total if limit is None else min(total or limit, limit)


def _physical_bytes() -> int:
    """Ask the C library, where there is no /proc."""
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not all(name in getattr(os, "sysconf_names", ()) for name in names):
        return 0
    return os.sysconf(names[0]) * os.sysconf(names[1])


def available_memory(proc: Path = _PROC, sys: Path = _SYS) -> int:
    """Return the bytes that can still be taken: what is used for files only can be had back."""
    limits = ((group, _limit(group)) for group in _groups("memory", proc, sys))
    left = [limit - _used(group) for group, limit in limits if limit is not None]
    return max(0, min([meminfo(proc).get("MemAvailable") or _physical_bytes(), *left]))


def _used(group: Path) -> int:
    words = [text(group / name) or "" for name in ("memory.current", "memory.usage_in_bytes")]
    used = next((int(word) for word in words if word.isdigit()), 0)
    lines = (line.split() for line in (text(group / "memory.stat") or "").splitlines())
    stat = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    # Version 1 has both: of the group alone, and with those below it ("total"), as its usage counts.
    prefix = "total_" if "total_inactive_file" in stat else ""
    return used - sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))


def most_maps(num_files: int, proc: Path = _PROC) -> int | None:
    """Return how many of some files one reader may have mapped: a quarter of what the kernel allows; None: all."""
    if num_files < _FEW_FILES:
        return None
    most = text(proc / "sys/vm/max_map_count") or ""
    return int(most) // 4 if most.isdecimal() and int(most) // 4 < num_files else None


def meminfo(proc: Path = _PROC) -> dict[str, int]:
    """Return the machine's memory, in bytes by name."""
    return {name: value << 10 for name, value in numbers(proc / "meminfo").items()}


def numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines are ``name: number [unit]``."""
    pairs = (line.partition(":") for line in (text(path) or "").splitlines())
    words = {name: value.split() for name, _, value in pairs}
    return {name: int(found[0]) for name, found in words.items() if found and found[0].isdigit()}


def _groups(controller: str, proc: Path, sys: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those above it, in both versions."""
    root = sys / "fs/cgroup"
    # Of version 1 a controller is mounted alone, or with others: cpu,cpuacct.
    mounts = {root / controller, *root.glob(f"{controller},*"), *root.glob(f"*,{controller}")}
    paths = dict.fromkeys([root, *sorted(mounts)], "/")
    for line in (text(proc / "self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            paths[root] = path
        elif controller in controllers.split(","):
            paths |= dict.fromkeys(mounts, path)
    for base, path in paths.items():
        # In a container the path may be the host's: what is not there says nothing, and the base is its own.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def text(path: Path) -> str | None:
    """Return a file's text, or None."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
