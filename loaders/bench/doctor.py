"""What on this machine costs speed or will break: looks at files of the kernel, and measures what cannot be read there.

The roots of /proc and /sys are arguments, so that any machine can be described to it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import statistics
import subprocess
import sys
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
    from collections.abc import Callable, Iterable, Iterator

Level = Literal["ok", "cost", "risk", "unknown"]
_TIMEOUT_S = 15.0
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
    """Return a finding: a risk or a cost, and the remedy; without these all is well."""
    if not risk and not cost:
        return Finding(name, "ok", found)
    return Finding(name, "risk" if risk else "cost", found, risk or cost, do)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where to look."""

    path: Path = field(default_factory=Path)  # a folder on the disk that the data is on
    proc: Path = Path("/proc")  # the root of /proc
    sys: Path = Path("/sys")  # the root of /sys
    shm: Path = Path("/dev/shm")  # shared memory


def examine(check: Callable[[Surroundings], Finding], place: Surroundings) -> Finding:
    """Run a check; one that fails costs its own line only."""
    try:
        return check(place)
    except Exception as error:  # whatever is odd about this machine
        name = check.__name__.replace("_", " ")
        return Finding(name, "unknown", f"{type(error).__name__}: {error}")


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
    if "MemAvailable" not in limits.meminfo(place.proc):
        return Finding("memory", "unknown", f"{place.proc / 'meminfo'} does not say")
    most = limits.memory_bytes(place.proc, place.sys)
    available = limits.available_memory(place.proc, place.sys)
    found = f"{describe_size(available)} of {describe_size(most)} available"
    risk = "the kernel may end the training process" if available < 0.05 * most else ""
    return finding("memory", found, risk=risk, do="free memory, or keep less in RAM")


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
        found = (
            f"no file of 1 MiB under {printable(str(place.path))} can be read past the page cache"
        )
        do = "name a folder of the data's disk: python -m loaders.bench doctor FOLDER"
        return Finding(name, "unknown", found, remedy=do)
    rate, latency_s = rates
    late = f"{in_seconds(latency_s)} for 4 KiB at a random place, page cache bypassed"
    cost = do = ""
    if latency_s >= _SLOW_SEEK_S:
        cost = f"at most {number(1 / latency_s)} samples a second in random order, for each reader"
        do = "shuffle='block', or RAMDataset"
    elif rate < _SLOW_READ:
        cost = f"at most {number(rate / 20e3)} JPEGs of 20 kB a second in the first epoch"
        do = "RAMDataset if it fits, else a faster disk"
    return finding(name, f"{describe_size(rate)}/s, {late}", cost=cost, do=do)


def direct_reads(path: Path) -> tuple[float, float] | None:
    """Read the largest file of a folder past the page cache, for about two seconds.

    Return bytes/s from its start, and the median seconds of 4 KiB at random places. None if that cannot be done, or the
    file has less than 1 MiB.
    """
    some = itertools.islice(path.rglob("*") if path.is_dir() else [path], _MAX_FILES)
    size, largest = max(
        ((file.stat().st_size, file) for file in some if file.is_file()), default=(0, path)
    )
    if size < _MIN_FILE or not hasattr(os, "O_DIRECT"):
        return None
    places = np.random.default_rng(0).integers(size // _SMALL, size=_MAX_READS) * _SMALL
    late = [seconds for _, seconds in _timed_reads(largest, places.tolist(), _SMALL)]
    took = list(_timed_reads(largest, range(0, size, _BLOCK), _BLOCK))
    if not late or not took:
        return None
    return sum(got for got, _ in took) / sum(s for _, s in took), statistics.median(late)


def _timed_reads(file: Path, places: Iterable[int], nbytes: int) -> Iterator[tuple[int, float]]:
    """Yield what each read gave, and how long it took, for a second; nothing where there are no direct reads."""
    buffer = mmap.mmap(-1, nbytes)  # aligned, as direct reads must be
    deadline = time.perf_counter() + _READ_S
    with suppress(OSError):
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
        try:
            for at in itertools.takewhile(lambda _: time.perf_counter() < deadline, places):
                began = time.perf_counter()
                yield os.preadv(fd, [buffer], at), time.perf_counter() - began
        finally:
            os.close(fd)


# -- libraries -------------------------------------------------------------------------------------

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
    gain = decodes_per_s() / decodes_per_s(JSIMD_FORCENONE="1")
    cost = "JPEG decodes at a third of what it could" if gain < _SIMD_GAIN else ""
    found += f"; JPEG decoder: {number(gain)}x with SIMD"
    return finding("SIMD", found, cost=cost, do="reinstall simplejpeg from a wheel")


def decodes_per_s(**environ: str) -> float:
    """Return how many JPEGs a process of its own decodes in a second, with more environment variables."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _DECODE],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return float(done.stdout)


def allocator(place: Surroundings) -> Finding:
    """Name the memory allocator of this process."""
    maps = text(place.proc / "self/maps") or ""
    names = ("libjemalloc", "libtcmalloc", "libmimalloc", "ld-musl")
    return finding("allocator", next((name for name in names if name in maps), "glibc"))


CHECKS: tuple[Callable[[Surroundings], Finding], ...] = (
    cores, memory, shared_memory, file_system, read_rate, simd, allocator,
)  # fmt: skip
