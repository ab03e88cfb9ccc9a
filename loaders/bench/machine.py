"""What the kernel's files say about a machine; their roots are arguments, and anything may be missing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from loaders.limits import text

_PRELOADABLE = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_FOLDERS = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "local/lib")


class Mount(NamedTuple):
    """A mounted file system: where, of which kind, and its device as ``major:minor``."""

    point: Path
    kind: str
    device: str


class Link(NamedTuple):
    """Lanes of a PCI link: now, and at most."""

    width: int
    most: int


def affinity_cores(proc: Path = Path("/proc")) -> int:
    """Return how many cores the affinity of this process allows."""
    status = text(proc / "self/status") or ""
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _count(line.split(":", 1)[1])
    return os.cpu_count() or 1


def _count(listed: str) -> int:
    """Count a list like ``0-3,8``."""
    total = 0
    for part in filter(None, (p.strip() for p in listed.split(","))):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return max(1, total)


def limit(proc: Path, name: str) -> tuple[int | None, int | None]:
    """Return the soft and hard limit of this process; None where unlimited, or not listed."""
    for line in (text(proc / "self/limits") or "").splitlines():
        if line.startswith(name):
            soft, hard = line[len(name) :].split()[:2]
            return _limit(soft), _limit(hard)
    return None, None


def _limit(word: str) -> int | None:
    return int(word) if word.isdigit() else None


def mount_of(path: Path, proc: Path = Path("/proc")) -> Mount | None:
    """Return what a path is on: the deepest mount above it, the last one made if there are more."""
    resolved = path.resolve()
    found: Mount | None = None
    for line in (text(proc / "self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after.split():
            continue
        point = Path(re.sub(r"\\([0-7]{3})", _character, words[4]))  # spaces are written as \040
        deeper = found is None or len(point.parts) >= len(found.point.parts)
        if resolved.is_relative_to(point) and deeper:
            found = Mount(point, after.split()[0], words[2])
    return found


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8))


def is_rotational(device: str, sys: Path = Path("/sys")) -> bool | None:
    """Tell whether a device (``major:minor``) has turning disks, or None where that is not known."""
    block = sys / "dev/block" / device
    for folder in (block, block.resolve().parent):  # a partition's queue is its disk's
        found = text(folder / "queue/rotational")
        if found is not None:
            return found == "1"
    return None


def governors(sys: Path = Path("/sys")) -> set[str]:
    """Return the frequency governors of all cores."""
    files = (sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return {found for found in map(text, files) if found}


def cpu_flags(proc: Path = Path("/proc")) -> set[str]:
    """Return what the processor can do, in the kernel's words."""
    for line in (text(proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def allocator(proc: Path = Path("/proc")) -> str:
    """Return the name of the memory allocator in use."""
    maps = text(proc / "self/maps") or ""
    for name in ("jemalloc", "tcmalloc", "mimalloc"):
        if f"lib{name}" in maps:
            return name
    return "musl" if "ld-musl" in maps else "glibc"


def other_allocator(usr: Path = Path("/usr")) -> Path | None:
    """Return an allocator that is installed and could be preloaded, or None."""
    places = (usr / folder / name for name in _PRELOADABLE for folder in _FOLDERS)
    return next((place for place in places if place.exists()), None)


def gpu_links(sys: Path = Path("/sys")) -> list[Link]:
    """Return the link of each display or 3D controller that has one."""
    found = []
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        kind = text(device / "class") or ""
        now, most = (text(device / f"{n}_link_width") or "" for n in ("current", "max"))
        if kind.startswith("0x03") and now.isdigit() and most.isdigit() and 0 < int(most) < 255:
            found.append(Link(int(now), int(most)))
    return found
