"""What on this machine costs speed or will break: looks at files of the kernel, and measures what cannot be read there.

Every check runs with a time limit, and one that fails or hangs costs its own line only. The roots of /proc
and /sys are arguments, so that any machine can be described to it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loaders.bench import machine, probes
from loaders.system import limits
from loaders.text import describe_size, in_seconds, number, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Level = Literal["ok", "cost", "risk", "unknown"]
TIMEOUT_S = 15.0
_SHM_BYTES = 1 << 30
_NUM_FILES = 4096
_SLOW_READ = 200e6  # bytes/s
_SIMD_GAIN, _ALLOCATOR_GAIN = 1.2, 1.1
_SLOW_GOVERNORS = {"powersave", "conservative", "ondemand"}
_NETWORK = (
    "nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "beegfs", "ceph", "9p", "glusterfs", "virtiofs",
)  # fmt: skip


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
        for label, text in (("cost", self.cost), ("do", self.remedy)):
            if text:
                line += f"\n        {label}: {text}"
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
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)  # environment variables


def examine(
    path: Path = Path(),
    *,
    place: Surroundings | None = None,
    checks: Sequence[Callable[[Surroundings], Finding]] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Finding]:
    """Run every check; the findings come in the order of the checks."""
    where = place or Surroundings(path)
    return [_bounded(check, where, timeout_s) for check in (CHECKS if checks is None else checks)]


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
    stat = os.statvfs(place.shm)
    free = stat.f_frsize * stat.f_bavail
    size = describe_size(stat.f_frsize * stat.f_blocks)
    risk = "worker processes (backend='process') die with a bus error when it is full"
    return finding(
        "shared memory",
        f"{size} at {place.shm}, {describe_size(free)} free",
        risk=risk if free < _SHM_BYTES else "",
        do="docker run --shm-size=8g, or threads, which do not need it",
    )


def open_files(place: Surroundings) -> Finding:
    """Look at the limit of open files: a shard, and a batch between processes, take one each."""
    soft = machine.soft_limit(place.proc, "Max open files")
    found = "no limit seen" if soft is None else number(soft)
    is_low = soft is not None and soft < _NUM_FILES
    risk = "'too many open files' with many shards or workers" if is_low else ""
    return finding("open files", found, risk=risk, do=f"ulimit -n {_NUM_FILES} or more")


def file_system(place: Surroundings) -> Finding:
    """Look at what lies under the data."""
    name, mount = "file system", machine.mount_of(place.path, place.proc)
    if mount is None:
        return Finding(name, "unknown", f"{place.path} is on no mount that {place.proc} lists")
    rotational = machine.is_rotational(mount.device, place.sys)
    kind = {True: ", rotational", False: ", solid state", None: ""}[rotational]
    cost = do = ""
    if mount.kind.startswith(_NETWORK):
        cost = "each first read crosses the network; small files are worst"
        do = "pack into shards; copy them to a local disk, or RAMDataset"
    elif mount.kind == "overlay":
        cost = "a container's own layers: slow to write, gone with the container"
        do = "mount a volume for the data"
    elif rotational:
        cost = "about 10 ms per random read, if it is a disk: virtual ones often only say so"
        do = "shuffle='block', or RAMDataset; 'read rate' below has what it really gives"
    return finding(name, f"{mount.kind} at {mount.point}{kind}", cost=cost, do=do)


def read_rate(place: Surroundings) -> Finding:
    """Read a file with the page cache bypassed."""
    name, rates = "read rate", probes.direct_reads(place.path)
    if rates is None:
        found = f"no file under {printable(str(place.path))} can be read past the page cache"
        do = "name a folder of the same disk that has larger files"
        if place.path == Path():
            do = "name the folder of your data: python -m loaders.bench doctor FOLDER"
        return Finding(name, "unknown", found, remedy=do)
    rate, latency_s = rates
    if rate is None:
        late = f"{in_seconds(latency_s)} for the first 4 KiB of a file"
        found = f"{late}, page cache bypassed; no file has 1 MB, so MB/s are not known"
        return Finding(name, "unknown", found, remedy="name a folder that has larger files")
    late = f"{in_seconds(latency_s)} for 4 KiB at a random place"
    cost = f"at most {number(rate / 20e3)} JPEGs of 20 kB a second in the first epoch"
    return finding(
        name,
        f"{describe_size(rate)}/s, {late}, page cache bypassed",
        cost=cost if rate < _SLOW_READ else "",
        do="RAMDataset if it fits, else a faster disk",
    )


def thread_pools(place: Surroundings) -> Finding:
    """Count the threads that OpenCV, torch and OpenMP would start in all workers together."""
    opencv, torch_threads = probes.pool_sizes()
    usable = limits.usable_cores(place.proc, place.sys)
    omp = place.environ.get("OMP_NUM_THREADS", "")
    openmp = int(omp) if omp.isdigit() else usable
    sizes = {"OpenCV": opencv, "torch": torch_threads, "OpenMP": openmp}
    listed = ", ".join(f"{name} {usable * size}" for name, size in sizes.items())
    found = f"{usable} worker processes would start, in threads: {listed}; OMP_NUM_THREADS={omp or 'unset'}"
    do = "cv2.setNumThreads(1) in a Dataset that runs in worker processes"
    is_ok = usable == 1 or max(sizes.values()) == 1
    if omp == "1" and not is_ok and opencv > 1:  # which OpenCV does not heed
        return Finding("thread pools", "ok", found, remedy=do)
    cost = "in worker processes they take turns on the cores; this loader's threads are held to one each"
    cost = "" if is_ok or omp == "1" else cost
    return finding("thread pools", found, cost=cost, do=f"OMP_NUM_THREADS=1, and {do}")


def frequency_governor(place: Surroundings) -> Finding:
    """Look at how the kernel chooses the cores' frequency."""
    governors = machine.governors(place.sys)
    found = ", ".join(sorted(governors)) or "not visible here: a virtual machine or a container"
    cost = "cores may run below their frequency, most where work comes in bursts"
    return finding(
        "frequency governor",
        found,
        cost=cost if governors & _SLOW_GOVERNORS else "",
        do="cpupower frequency-set -g performance",
    )


def simd(place: Surroundings) -> Finding:
    """Decode with and without SIMD."""
    gain = probes.jpeg_simd_gain(timeout_s=TIMEOUT_S)
    found = f"OpenCV: {probes.opencv_simd()}"
    if gain is None:
        return Finding("SIMD", "unknown", f"{found}; the JPEG decoder could not be tried")
    found += f"; JPEG decoder: {number(gain)}x with SIMD"
    cost = "JPEG decodes at a third of what it could" if gain < _SIMD_GAIN else ""
    return finding("SIMD", found, cost=cost, do="reinstall simplejpeg from a wheel")


def allocator(place: Surroundings) -> Finding:
    """Name the memory allocator; try another one where one can be preloaded."""
    name, library = machine.allocator(place.proc), machine.other_allocator()
    if name != "glibc" or library is None:
        none = "" if name != "glibc" else "; no jemalloc or tcmalloc is installed to try"
        return finding("allocator", name + none)
    gain = probes.allocator_gain(library, timeout_s=TIMEOUT_S)
    if gain is None:
        return Finding("allocator", "unknown", f"{name}; {library} could not be tried")
    found = f"{name}; with {library.name} fresh batches take {number(1 / gain)} of the time"
    cost = "batches that are allocated anew (any loader but this one)"
    is_slow = gain > _ALLOCATOR_GAIN
    return finding("allocator", found, cost=cost if is_slow else "", do=f"LD_PRELOAD={library}")


def gpu(place: Surroundings) -> Finding:
    """Compare the width of each GPU's link with what it could be; measure copies to it."""
    links, rate = machine.gpu_links(place.sys), probes.gpu_copy_bytes_per_s()
    said = ", ".join(f"link of x{now} of x{most}" for now, most in links)
    copies = "no GPU that torch can use"
    if rate is not None:
        copies = f"{describe_size(rate)}/s from pinned memory"
    is_narrow = any(now != most for now, most in links)
    return finding(
        "GPU",
        f"{said or 'no PCI link to be seen'}; {copies}",
        cost="copies to the GPU at a fraction of their rate" if is_narrow else "",
        do="another slot or riser; some links widen only under load: look again while training",
    )


CHECKS: tuple[Callable[[Surroundings], Finding], ...] = (
    cores, memory, shared_memory, open_files, file_system, read_rate, thread_pools, frequency_governor,
    simd, allocator, gpu,
)  # fmt: skip
