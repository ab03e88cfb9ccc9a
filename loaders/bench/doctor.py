"""What on this machine costs speed or will break: looks at files of the kernel, and measures what cannot be read there.

Every check runs with a time limit, and one that fails or hangs costs its own line only. The roots of /proc
and /sys are arguments, so that any machine can be described to it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import cv2
import numpy as np

from loaders.system import limits
from loaders.system.limits import text
from loaders.system.mounts import mount_of
from loaders.text import describe_size, in_seconds, number, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Level = Literal["ok", "cost", "risk", "unknown"]
TIMEOUT_S = 15.0
_SHM_BYTES = 1 << 30
_SLOW_READ = 200e6  # bytes/s
_SLOW_SEEK_S = 3e-3  # of a disk that turns
_SIMD_GAIN = 1.2


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    name: str  # what was looked at
    # ``cost``: it makes things slower; ``risk``: it may break; ``unknown``: it could not be seen.
    level: Level
    found: str  # what there is
    cost: str = ""  # what it costs, where it costs
    remedy: str = ""  # what to do

    def __str__(self) -> str:
        line = f"{self.level:7} {self.name}: {self.found}"
        for label, said in (("cost", self.cost), ("do", self.remedy)):
            if said:
                line += f"\n        {label}: {said}"
        return line


def finding(name: str, found: str, *, cost: str = "", risk: str = "", do: str = "") -> Finding:
    """Return what was found: with a risk, or a cost, and what to do; without them all is well."""
    level: Level = "risk" if risk else "cost" if cost else "ok"
    return Finding(name, level, found, risk or cost, do if risk or cost else "")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where to look."""

    path: Path = field(default_factory=Path)  # a folder on the disk that the data is on
    proc: Path = Path("/proc")  # the root of /proc
    sys: Path = Path("/sys")  # the root of /sys
    shm: Path = Path("/dev/shm")  # shared memory


def examine(
    checks: Sequence[Callable[[Surroundings], Finding]],
    place: Surroundings,
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[Finding]:
    """Run checks; the findings come in their order."""
    return [_bounded(check, place, timeout_s) for check in checks]


def _bounded(
    check: Callable[[Surroundings], Finding], place: Surroundings, timeout_s: float
) -> Finding:
    """Run a check on a thread of its own: a file system that hangs must not hang us."""
    name = check.__name__.replace("_", " ")
    done: list[Finding] = []

    def run() -> None:
        try:
            done.append(check(place))
        except Exception as error:  # whatever is odd about this machine
            done.append(Finding(name, "unknown", f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=run, name=f"doctor-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return done[0] if done else Finding(name, "unknown", f"no answer within {number(timeout_s)} s")


# -- cores and memory ------------------------------------------------------------------------------


def cores(place: Surroundings) -> Finding:
    """Compare the cores that the process may use with those that libraries count."""
    counted, usable = os.cpu_count() or 1, limits.usable_cores(place.proc, place.sys)
    quota = limits.cpu_quota(place.proc, place.sys)
    cost = f"thread pools sized by os.cpu_count() start {counted} threads for {usable}"
    found = f"{usable} of {counted}"
    if quota is not None:
        found += f", by a quota of {number(quota)}"
        cost += ", and are throttled together when the quota is used up"
    is_less = usable != counted or (quota is not None and quota < counted)
    do = f"num_workers={usable} (as num_workers='auto' has it), OMP_NUM_THREADS={usable}"
    return finding("cores", found, cost=cost if is_less else "", do=do)


def memory(place: Surroundings) -> Finding:
    """Look at what memory is left: of the machine, and below the limit of the container."""
    meminfo = limits.meminfo(place.proc)
    if "MemAvailable" not in meminfo:
        return Finding("memory", "unknown", f"{place.proc / 'meminfo'} does not say")
    most = limits.memory_bytes(place.proc, place.sys)
    available = limits.available_memory(place.proc, place.sys)
    found, cost = f"{describe_size(available)} of {describe_size(most)} available", ""
    if limits.memory_limit(place.proc, place.sys) == most:
        found += ", as this container may use"
    swapped = meminfo.get("SwapTotal", 0) - meminfo.get("SwapFree", 0)
    if swapped > 0.02 * meminfo.get("MemTotal", 0):
        found += f"; {describe_size(swapped)} are swapped out"
        cost = "a page that comes back from swap takes 0.1 to 10 ms"
    risk = "the kernel may end the training process" if available < 0.05 * most else ""
    return finding("memory", found, cost=cost, risk=risk, do="free memory, or keep less in RAM")


def shared_memory(place: Surroundings) -> Finding:
    """Look at the size of /dev/shm, which worker processes hand batches over in."""
    total, _, free = shutil.disk_usage(place.shm)
    risk = "worker processes (backend='process') die with a bus error when it is full"
    return finding(
        "shared memory",
        f"{describe_size(total)} at {place.shm}, {describe_size(free)} free",
        risk=risk if free < _SHM_BYTES else "",
        do="docker run --shm-size=8g, or threads, which do not need it",
    )


# -- files -----------------------------------------------------------------------------------------

_BLOCK, _SMALL = 4 << 20, 4096  # bytes of a read: one after another, and at random
_MIN_FILE = 1 << 20
_READ_S = 1.0
_MAX_READS, _MAX_FILES = 2000, 2000


def file_system(place: Surroundings) -> Finding:
    """Look at what lies under the data."""
    name, mount = "file system", mount_of(place.path, place.proc)
    if mount is None:
        what = f"{printable(str(place.path))} is on no mount that {place.proc} lists"
        return Finding(name, "unknown", what)
    cost = do = ""
    if mount.is_network or mount.kind == "virtiofs":  # the host's files
        cost = "each first read crosses the network; small files are worst"
        do = "pack into shards; copy them to a local disk, or RAMDataset"
    elif mount.kind == "overlay":
        cost = "a container's own layers: slow to write, gone with the container"
        do = "mount a volume for the data"
    return finding(name, f"{mount.kind} at {mount.point}", cost=cost, do=do)


def read_rate(place: Surroundings) -> Finding:
    """Read files with the page cache bypassed."""
    name, rates = "read rate", direct_reads(place.path)
    if rates is None:
        found = f"no file under {printable(str(place.path))} can be read past the page cache"
        do = "name a folder of the same disk that has larger files"
        if place.path == Path():
            do = "name the folder of your data: python -m loaders.bench doctor FOLDER"
        return Finding(name, "unknown", found, remedy=do)
    rate, latency_s = rates
    late = f"{in_seconds(latency_s)} for 4 KiB at a random place, page cache bypassed"
    cost = do = ""
    if latency_s >= _SLOW_SEEK_S:
        cost = f"at most {number(1 / latency_s)} samples a second in random order, for each reader"
        do = "shuffle='block', or RAMDataset"
    elif rate is None:
        found = f"{late}; no file has 1 MiB, so MB/s are not known"
        return Finding(name, "unknown", found, remedy="name a folder that has larger files")
    elif rate < _SLOW_READ:
        cost = f"at most {number(rate / 20e3)} JPEGs of 20 kB a second in the first epoch"
        do = "RAMDataset if it fits, else a faster disk"
    speed = "" if rate is None else f"{describe_size(rate)}/s, "
    return finding(name, f"{speed}{late}", cost=cost, do=do)


def direct_reads(path: Path) -> tuple[float | None, float] | None:
    """Read files of a folder past the page cache, for about two seconds.

    Return bytes/s from the start of the largest (None if that has less than 1 MiB), and the median seconds of 4 KiB at
    random places of random files. None if that cannot be done.
    """
    files = _files(path)
    if not files or not hasattr(os, "O_DIRECT"):
        return None
    rng = np.random.default_rng(0)
    some = [files[i] for i in rng.integers(len(files), size=_MAX_READS)]
    places = ((file, int(rng.integers(-(-size // _SMALL))) * _SMALL) for size, file in some)
    late = [seconds for _, seconds in _timed_reads(places, _SMALL)]
    if not late:
        return None
    size, largest = max(files)
    blocks = ((largest, at) for at in range(0, size if size >= _MIN_FILE else 0, _BLOCK))
    took = list(_timed_reads(blocks, _BLOCK))
    rate = sum(got for got, _ in took) / sum(s for _, s in took) if took else None
    return rate, statistics.median(late)


def _timed_reads(places: Iterable[tuple[Path, int]], nbytes: int) -> Iterator[tuple[int, float]]:
    """Yield what each read gave, and how long it took, for a second; nothing where there are no direct reads."""
    buffer = mmap.mmap(-1, nbytes)  # aligned, as direct reads must be
    deadline = time.perf_counter() + _READ_S
    for file, offset in itertools.takewhile(lambda _: time.perf_counter() < deadline, places):
        with suppress(OSError):
            fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
            try:
                began = time.perf_counter()
                yield os.preadv(fd, [buffer], offset), time.perf_counter() - began
            finally:
                os.close(fd)


def _files(path: Path) -> list[tuple[int, Path]]:
    """Return files with their sizes, but for empty ones."""
    found = []
    for file in itertools.islice(path.rglob("*") if path.is_dir() else [path], _MAX_FILES):
        with suppress(OSError):
            if file.is_file() and (size := file.stat().st_size):
                found.append((size, file))
    return found


# -- libraries -------------------------------------------------------------------------------------

_PRELOADABLE = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_FOLDERS = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "local/lib")
_DECODE = """
import time, numpy, simplejpeg
image = numpy.random.default_rng(0).integers(0, 256, (64, 64, 3), numpy.uint8).repeat(8, 0).repeat(8, 1)
data = simplejpeg.encode_jpeg(image, 90)
for deadline in (time.perf_counter() + 0.1, time.perf_counter() + 0.4):
    count, began = 0, time.perf_counter()
    while time.perf_counter() < deadline:
        simplejpeg.decode_jpeg(data)
        count += 1
print(count / (time.perf_counter() - began))
"""


def simd(place: Surroundings) -> Finding:
    """Decode with and without SIMD."""
    # The widest instructions come last; those that were compiled in and are not there end in a question mark.
    used = [word for word in cv2.getCPUFeaturesLine().split() if not word.endswith("?")]
    found = f"OpenCV: {used[-1].lstrip('*') if used else 'none'}"
    gain = speed_of(_DECODE, JSIMD_FORCENONE="1")
    if gain is None:
        return Finding("SIMD", "unknown", f"{found}; the JPEG decoder could not be tried")
    found += f"; JPEG decoder: {number(1 / gain)}x with SIMD"
    cost = "JPEG decodes at a third of what it could" if 1 / gain < _SIMD_GAIN else ""
    return finding("SIMD", found, cost=cost, do="reinstall simplejpeg from a wheel")


def allocator(place: Surroundings) -> Finding:
    """Name the memory allocator, and another one that could be preloaded."""
    name, library = allocator_in_use(place.proc), other_allocator()
    if name != "glibc" or library is None:
        return finding("allocator", name)
    gain = "loaders that allocate each batch anew (this one does not) may be faster"
    return finding("allocator", f"{name}; with LD_PRELOAD={library} {gain}")


def allocator_in_use(proc: Path) -> str:
    """Return the name of the memory allocator of this process."""
    maps = text(proc / "self/maps") or ""
    for name in ("jemalloc", "tcmalloc", "mimalloc"):
        if f"lib{name}" in maps:
            return name
    return "musl" if "ld-musl" in maps else "glibc"


def other_allocator(usr: Path = Path("/usr")) -> Path | None:
    """Return an allocator that is installed and could be preloaded, or None."""
    places = (usr / folder / name for name in _PRELOADABLE for folder in _FOLDERS)
    return next((place for place in places if place.exists()), None)


def speed_of(code: str, timeout_s: float = TIMEOUT_S, **environ: str) -> float | None:
    """Return how many times as quick Python code is with more environment variables, each time in a process of its own.

    It prints how quick it was; None where one of the processes fails, or takes more than half of the time.
    """
    figures = []
    for more in ({}, environ):
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", code],
                env=os.environ | more,
                capture_output=True,
                text=True,
                timeout=timeout_s / 2,
                check=True,
            )
            figures.append(float(done.stdout))
        except (subprocess.SubprocessError, OSError, ValueError):
            return None
    return figures[1] / figures[0]


CHECKS: tuple[Callable[[Surroundings], Finding], ...] = (
    cores, memory, shared_memory, file_system, read_rate, simd, allocator,
)  # fmt: skip
