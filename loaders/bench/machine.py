"""What the kernel says about a machine and its processes; anything may be missing, and roots of files are arguments."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loaders.system.limits import text

if TYPE_CHECKING:
    from collections.abc import Iterable

PROC = Path("/proc")
_PRELOADABLE = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_FOLDERS = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "local/lib")


class Mount(NamedTuple):
    """A mounted file system: where, of which kind, and its device as ``major:minor``."""

    point: Path
    kind: str
    device: str


def soft_limit(proc: Path, name: str) -> int | None:
    """Return the soft limit of this process; None where unlimited, or not listed."""
    for line in (text(proc / "self/limits") or "").splitlines():
        if line.startswith(name):
            word = line[len(name) :].split()[0]
            return int(word) if word.isdigit() else None
    return None


def mount_of(path: Path, proc: Path) -> Mount | None:
    """Return what a path is on: the deepest mount above it, the last one made if there are more."""
    resolved, found = path.resolve(), None
    for line in (text(proc / "self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after.split():
            continue
        # Spaces are written as \040.
        point = Path(re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), words[4]))
        deeper = found is None or len(point.parts) >= len(found.point.parts)
        if resolved.is_relative_to(point) and deeper:
            found = Mount(point, after.split()[0], words[2])
    return found


def is_rotational(device: str, sys: Path) -> bool | None:
    """Tell whether a device (``major:minor``) has turning disks, or None where that is not known."""
    block = sys / "dev/block" / device
    for folder in (block, block.resolve().parent):  # a partition's queue is its disk's
        found = text(folder / "queue/rotational")
        if found is not None:
            return found == "1"
    return None


def governors(sys: Path) -> set[str]:
    """Return the frequency governors of all cores."""
    files = (sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return {found for found in map(text, files) if found}


def allocator(proc: Path) -> str:
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


def gpu_links(sys: Path) -> list[tuple[int, int]]:
    """Return, of each display or 3D controller on a PCI link, its lanes: now, and at most."""
    found = []
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        now, most = (text(device / f"{n}_link_width") or "" for n in ("current", "max"))
        is_gpu = (text(device / "class") or "").startswith("0x03")
        if is_gpu and now.isdigit() and most.isdigit() and 0 < int(most) < 255:
            found.append((int(now), int(most)))
    return found


# -- processes, and the page cache ------------------------------------------------------------------


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
