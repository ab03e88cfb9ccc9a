"""What on this machine costs speed or will break: looks at files of the kernel, and measures what cannot be read there.

Every check runs with a time limit, and one that fails or hangs costs its own line only. The roots of /proc
and /sys are arguments, so that any machine can be described to it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loaders import limits
from loaders.bench import machine, probes
from loaders.bench.report import in_bytes, in_seconds, number
from loaders.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Level = Literal["ok", "cost", "risk", "unknown"]
TIMEOUT_S = 15.0
_SHM_BYTES = 1 << 30
_NUM_FILES = 4096
_SLOW_READ = 200e6  # bytes/s
_SIMD_GAIN = 1.2
_NAME_IT = "name the folder of your data: python -m loaders.bench doctor FOLDER"
_NAME_ANOTHER = "name a folder of the same disk that has larger files"
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "9p",
    "glusterfs",
    "virtiofs",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's.

    Attributes:
        name: What was looked at.
        level: ``cost``: it makes things slower; ``risk``: it may break; ``unknown``: it could not be seen.
        found: What there is.
        cost: What it costs, where it costs.
        remedy: What to do.
    """

    name: str
    level: Level
    found: str
    cost: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.level:7} {self.name}: {self.found}"
        for label, text in (("cost", self.cost), ("do", self.remedy)):
            if text:
                line += f"\n        {label}: {text}"
        return line


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look.

    Attributes:
        path: A folder on the disk that the data is on.
        proc: The root of /proc.
        sys: The root of /sys.
        shm: Shared memory.
        environ: Environment variables.
    """

    path: Path = field(default_factory=Path)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    shm: Path = Path("/dev/shm")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def examine(
    path: Path = Path(),
    *,
    place: Place | None = None,
    checks: Sequence[Callable[[Place], Finding]] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Finding]:
    """Run every check; the findings come in the order of the checks."""
    where = place or Place(path)
    return [_bounded(check, where, timeout_s) for check in (CHECKS if checks is None else checks)]


def _bounded(check: Callable[[Place], Finding], place: Place, timeout_s: float) -> Finding:
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


def cores(place: Place) -> Finding:
    """Compare the cores that the process may use with those that libraries count."""
    counted, usable = os.cpu_count() or 1, machine.affinity_cores(place.proc)
    quota = limits.cpu_quota(place.proc, place.sys)
    really = min([usable, *([quota] if quota is not None else [])])
    found = f"{number(really)} of {counted} (affinity {usable}, quota {'none' if quota is None else number(quota)})"
    if quota is not None and quota < usable:
        return Finding(
            "cores", "cost", found,
            "thread pools sized by os.cpu_count() are throttled together when the quota is used up",
            f"num_workers={ceil(quota)} (as num_workers='auto' has it), OMP_NUM_THREADS={ceil(quota)}",
        )  # fmt: skip
    if usable < counted:
        return Finding(
            "cores", "cost", found,
            f"thread pools sized by os.cpu_count() start {counted} threads for {usable} cores",
            f"num_workers={usable} (as num_workers='auto' has it), OMP_NUM_THREADS={usable}",
        )  # fmt: skip
    return Finding("cores", "ok", found)


def memory(place: Place) -> Finding:
    """Look at what memory is left: of the machine, and below the limit of the container."""
    meminfo = limits.meminfo(place.proc)
    if "MemAvailable" not in meminfo:
        return Finding("memory", "unknown", f"{place.proc / 'meminfo'} does not say")
    of_machine = meminfo["MemAvailable"]
    total, limit = meminfo.get("MemTotal", of_machine), limits.memory_limit(place.proc, place.sys)
    found = f"{in_bytes(of_machine)} of {in_bytes(total)} available"
    most, available = total, limits.available_memory(place.proc, place.sys)
    if limit is not None and limit < total:
        most = limit
        found += f"; {in_bytes(available)} of the {in_bytes(limit)} that this container may use"
    if available < 0.05 * most:
        return Finding(
            "memory", "risk", found, "the kernel may end the training process", "free memory first"
        )
    swapped = meminfo.get("SwapTotal", 0) - meminfo.get("SwapFree", 0)
    if swapped > 0.02 * total:
        return Finding(
            "memory", "cost", f"{found}; {in_bytes(swapped)} are swapped out",
            "a page that comes back from swap takes 0.1 to 10 ms", "free memory, or keep less in RAM",
        )  # fmt: skip
    return Finding("memory", "ok", found)


def shared_memory(place: Place) -> Finding:
    """Look at the size of /dev/shm, which worker processes hand batches over in."""
    stat = os.statvfs(place.shm)
    size, free = stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
    found = f"{in_bytes(size)} at {place.shm}, {in_bytes(free)} free"
    if free < _SHM_BYTES:
        return Finding(
            "shared memory", "risk", found,
            "worker processes (backend='process') die with a bus error when it is full",
            "docker run --shm-size=8g, or threads, which do not need it",
        )  # fmt: skip
    return Finding("shared memory", "ok", found)


def open_files(place: Place) -> Finding:
    """Look at the limit of open files: a shard, and a batch between processes, take one each."""
    soft, hard = machine.limit(place.proc, "Max open files")
    if soft is None:
        return Finding("open files", "unknown", "no limits to read")
    found = f"{number(soft)} (at most {'unlimited' if hard is None else number(hard)})"
    if soft < _NUM_FILES:
        return Finding(
            "open files",
            "risk",
            found,
            "'too many open files' with many shards or workers",
            f"ulimit -n {_NUM_FILES} or more",
        )
    return Finding("open files", "ok", found)


def locked_memory(place: Place) -> Finding:
    """Look at the limit of locked memory."""
    soft, _ = machine.limit(place.proc, "Max locked memory")
    if soft is None or soft >= 1 << 30:
        return Finding("locked memory", "ok", "unlimited" if soft is None else in_bytes(soft))
    return Finding(
        "locked memory", "ok", f"{in_bytes(soft)}; CUDA's pinned memory does not count against it, RDMA's does",
        remedy="ulimit -l unlimited, if RDMA or GPUDirect Storage is used",
    )  # fmt: skip


def file_system(place: Place) -> Finding:
    """Look at what lies under the data."""
    mount = machine.mount_of(place.path, place.proc)
    if mount is None:
        return Finding(
            "file system", "unknown", f"{place.path} is on no mount that {place.proc} lists"
        )
    rotational = machine.is_rotational(mount.device, place.sys)
    kind = {True: ", rotational", False: ", solid state", None: ""}[rotational]
    found = f"{mount.kind} at {mount.point}{kind}"
    if mount.kind.startswith(_NETWORK):
        return Finding(
            "file system",
            "cost",
            found,
            "each first read crosses the network; small files are worst",
            "pack into shards; copy them to a local disk, or RAMDataset",
        )
    if mount.kind == "overlay":
        return Finding(
            "file system",
            "cost",
            found,
            "a container's own layers: slow to write, gone with the container",
            "mount a volume for the data",
        )
    if rotational:
        return Finding(
            "file system", "cost", found,
            "about 10 ms per random read, 100 samples/s, if it is a disk: virtual ones often only say so",
            "shuffle='block', or RAMDataset; 'read rate' below has what it really gives",
        )  # fmt: skip
    return Finding("file system", "ok", found)


def read_rate(place: Place) -> Finding:
    """Read a file with the page cache bypassed."""
    rate = probes.direct_read_bytes_per_s(place.path)
    if rate is None:
        return Finding(
            "read rate",
            "unknown",
            f"no file of 1 MB or more under {printable(str(place.path))} can be read past the page cache",
            remedy=_NAME_IT if place.path == Path() else _NAME_ANOTHER,
        )
    latency_s = probes.direct_read_latency_s(place.path)
    late = "" if latency_s is None else f", {in_seconds(latency_s)} for 4 KiB at a random place"
    found = f"{in_bytes(rate)}/s{late}, page cache bypassed"
    if rate < _SLOW_READ:
        return Finding(
            "read rate",
            "cost",
            found,
            f"at most {number(rate / 20e3)} JPEGs of 20 kB a second in the first epoch",
            "RAMDataset if it fits, else a faster disk",
        )
    return Finding("read rate", "ok", found)


def _usable_cores(place: Place) -> int:
    return limits.usable_cores(place.proc, place.sys, machine.affinity_cores(place.proc))


def thread_pools(place: Place) -> Finding:
    """Count the threads that OpenCV, torch and OpenMP would start in all workers together."""
    opencv, torch_threads = probes.pool_sizes()
    usable = _usable_cores(place)
    omp = place.environ.get("OMP_NUM_THREADS", "")
    sizes = {
        "OpenCV": opencv,
        "torch": torch_threads,
        "OpenMP": int(omp) if omp.isdigit() else usable,
    }
    listed = ", ".join(f"{name} {usable} x {n} = {usable * n}" for name, n in sizes.items())
    found = (
        f"a worker process for each of {usable} core{'s' * (usable > 1)} would start, in threads: {listed}; "
        f"OMP_NUM_THREADS={omp or 'unset'}"
    )
    if usable == 1 or max(sizes.values()) == 1:
        return Finding("thread pools", "ok", found)
    of_opencv = "cv2.setNumThreads(1) in a Dataset that runs in worker processes"
    if omp == "1":  # which OpenCV does not heed
        of_opencv = of_opencv if opencv > 1 else ""
        return Finding("thread pools", "ok", found, remedy=of_opencv)
    return Finding(
        "thread pools", "cost", found,
        "in worker processes they take turns on the cores; none in this loader's threads, which are held to one each",
        f"OMP_NUM_THREADS=1, and {of_opencv}",
    )  # fmt: skip


def frequency_governor(place: Place) -> Finding:
    """Look at how the kernel chooses the cores' frequency."""
    governors = machine.governors(place.sys)
    if not governors:
        return Finding(
            "frequency governor", "ok", "not visible here: a virtual machine or a container"
        )
    found = ", ".join(sorted(governors))
    if governors & {"powersave", "conservative", "ondemand"}:
        return Finding(
            "frequency governor",
            "cost",
            found,
            "cores may run below their frequency, most where work comes in bursts",
            "cpupower frequency-set -g performance",
        )
    return Finding("frequency governor", "ok", found)


def simd(place: Place) -> Finding:
    """Decode with and without SIMD."""
    flags = machine.cpu_flags(place.proc)
    wide = [name for name in ("avx512f", "avx2", "sse4_2", "asimd") if name in flags]
    gain = probes.jpeg_simd_gain(timeout_s=TIMEOUT_S)
    found = f"processor: {', '.join(wide) or 'unknown'}; OpenCV: {probes.opencv_simd()}"
    if gain is None:
        return Finding("SIMD", "unknown", f"{found}; the JPEG decoder could not be tried")
    found += f"; JPEG decoder: {number(gain)}x with SIMD"
    if gain < _SIMD_GAIN:
        return Finding(
            "SIMD",
            "cost",
            found,
            "JPEG decodes at a third of what it could",
            "reinstall simplejpeg from a wheel",
        )
    return Finding("SIMD", "ok", found)


def allocator(place: Place) -> Finding:
    """Name the memory allocator; try another one where one can be preloaded."""
    name = machine.allocator(place.proc)
    library = machine.other_allocator()
    if name != "glibc" or library is None:
        return Finding(
            "allocator",
            "ok",
            name + ("" if name != "glibc" else "; no jemalloc or tcmalloc is installed to try"),
        )
    gain = probes.allocator_gain(library, timeout_s=TIMEOUT_S)
    if gain is None:
        return Finding("allocator", "unknown", f"{name}; {library} could not be tried")
    found = f"{name}; with {library.name} fresh batches take {number(1 / gain)} of the time"
    if gain > 1.1:
        return Finding(
            "allocator",
            "cost",
            found,
            "batches that are allocated anew (any loader but this one)",
            f"LD_PRELOAD={library}",
        )
    return Finding("allocator", "ok", found)


def copying(place: Place) -> Finding:
    """Measure what memory gives: plain copies, and random rows as a batch gathers them."""
    available = limits.available_memory(place.proc, place.sys)
    rates = probes.copy_and_gather_bytes_per_s(_usable_cores(place), available)
    if rates is None:
        return Finding(
            "memory bandwidth",
            "unknown",
            f"{in_bytes(available)} available: too little to measure it",
        )
    copied, gathered = rates
    return Finding(
        "memory bandwidth",
        "ok",
        f"copy {in_bytes(copied)}/s, gather of 150 kB rows {in_bytes(gathered)}/s, all cores",
    )


def gpu_copy(place: Place) -> Finding:
    """Measure copies to the GPU."""
    rates = probes.gpu_copy_bytes_per_s()
    if rates is None:
        return Finding("GPU copies", "ok", "no GPU that torch can use")
    pinned, pageable = rates
    return Finding(
        "GPU copies",
        "ok",
        f"{in_bytes(pinned)}/s pinned, {in_bytes(pageable)}/s not",
        remedy="device='cuda' copies from pinned memory",
    )


def gpu_link(place: Place) -> Finding:
    """Compare the width of each GPU's link with what it could be."""
    links = machine.gpu_links(place.sys)
    if not links:
        return Finding("GPU link", "ok", "no GPU on a PCI bus that is visible here")
    found = ", ".join(f"x{link.width} of x{link.most}" for link in links)
    if any(link.width < link.most for link in links):
        return Finding(
            "GPU link",
            "cost",
            found,
            "copies to the GPU at a fraction of their rate",
            "another slot or riser; some links widen only under load: look again while training",
        )
    return Finding("GPU link", "ok", found)


CHECKS: tuple[Callable[[Place], Finding], ...] = (
    cores, memory, shared_memory, open_files, locked_memory, file_system, read_rate, thread_pools,
    frequency_governor, simd, allocator, copying, gpu_copy, gpu_link,
)  # fmt: skip
