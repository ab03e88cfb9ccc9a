"""Short measurements of a machine for the doctor."""

from __future__ import annotations

import itertools
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch

from loaders.bench.stages import ROOM_SHARE, copy_bytes_per_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_BLOCK = 4 << 20
_MIN_FILE = 1 << 20
_READ_S = 1.0
_SMALL, _MAX_READS = 4096, 2000
_MAX_LOOKED_AT = 2000
_ROW_BYTES = 150 * 1024
_ROWS, _GATHERED = 512, 64

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
_ALLOCATE = """
import time, numpy
from concurrent.futures import ThreadPoolExecutor
def work(_):
    for size in (150_528, 600_000, 2_000_000) * 30:
        numpy.empty(size, numpy.uint8).fill(1)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(work, range(2)))
    began = time.perf_counter()
    list(pool.map(work, range(16)))
print(1 / (time.perf_counter() - began))
"""


def direct_read_bytes_per_s(path: Path) -> float | None:
    """Read the largest file found in a folder past the page cache, for about a second; None if that cannot be done."""
    began, total = time.perf_counter(), 0
    for got in _direct_reads(path, itertools.count(0, _BLOCK), _BLOCK):
        total += got
        if got % mmap.PAGESIZE:  # the end of the file
            break
    return total / (time.perf_counter() - began) if total else None


def direct_read_latency_s(path: Path) -> float | None:
    """Return the median seconds of a read of 4 KiB at random places of the same file; None if that cannot be done."""
    file = _largest(path)
    if file is None:
        return None
    places = np.random.default_rng(0).integers(0, file.stat().st_size // _SMALL, _MAX_READS)
    took, began = [], time.perf_counter()
    for _ in _direct_reads(path, (int(place) * _SMALL for place in places), _SMALL):
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
    return statistics.median(took) if took else None


def _direct_reads(path: Path, offsets: Iterable[int], nbytes: int) -> Iterator[int]:
    """Read the largest file of a folder past the page cache, for about a second; yield what each read gave."""
    file = _largest(path)
    if file is None or not hasattr(os, "O_DIRECT"):
        return
    buffer = mmap.mmap(-1, nbytes)  # aligned, as direct reads must be
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # this file system has no direct reads
        return
    try:
        began = time.perf_counter()
        for offset in offsets:
            if (
                time.perf_counter() - began > _READ_S
                or (got := os.preadv(fd, [buffer], offset)) <= 0
            ):
                return
            yield got
    except OSError:
        return
    finally:
        os.close(fd)


def _largest(path: Path) -> Path | None:
    best, best_size = None, _MIN_FILE
    for count, file in enumerate(path.rglob("*") if path.is_dir() else [path]):
        if count > _MAX_LOOKED_AT:
            break
        with suppress(OSError):
            if file.is_file() and (size := file.stat().st_size) >= best_size:
                best, best_size = file, size
    return best


def pool_sizes() -> tuple[int, int]:
    """Return the threads that OpenCV and torch use by default in this process."""
    return cv2.getNumThreads(), torch.get_num_threads()


def opencv_simd() -> str:
    """Return the instruction sets that OpenCV was built for and finds here."""
    used = [word for word in cv2.getCPUFeaturesLine().split() if not word.endswith("?")]
    return used[-1].lstrip("*") if used else "none"


def jpeg_simd_gain(timeout_s: float) -> float | None:
    """Return how many times faster JPEG decodes with SIMD than without, each in a process of its own."""
    with_simd = _figure(_DECODE, {}, timeout_s / 2)
    without = _figure(_DECODE, {"JSIMD_FORCENONE": "1"}, timeout_s / 2)
    return with_simd / without if with_simd and without else None


def allocator_gain(library: Path, timeout_s: float) -> float | None:
    """Return how many times faster fresh memory comes from another allocator."""
    without = _figure(_ALLOCATE, {}, timeout_s / 2)
    preloaded = _figure(_ALLOCATE, {"LD_PRELOAD": str(library)}, timeout_s / 2)
    return preloaded / without if preloaded and without else None


def _figure(code: str, environment: dict[str, str], timeout_s: float) -> float | None:
    """Run Python that prints a number."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        return float(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None


def copy_and_gather_bytes_per_s(
    num_threads: int, available_bytes: int
) -> tuple[float, float] | None:
    """Return what all cores copy in one piece, and what they gather in rows of a 224-pixel image.

    An eighth of the available memory is taken at most; None where that is too little.
    """
    copied = copy_bytes_per_s(num_threads, available_bytes)
    return (copied, _gather_bytes_per_s(num_threads, available_bytes)) if copied else None


def _gather_bytes_per_s(num_threads: int, available_bytes: int, seconds: float = 0.3) -> float:
    wanted = _ROW_BYTES * (_ROWS + _GATHERED * num_threads)
    share = min(1.0, available_bytes / ROOM_SHARE / wanted)
    num_rows, num_gathered = int(share * _ROWS), max(1, int(share * _GATHERED))
    rows = torch.zeros(num_rows, _ROW_BYTES, dtype=torch.uint8)
    totals: list[float] = []

    def gather() -> None:
        torch.set_num_threads(1)
        out = torch.empty(num_gathered, _ROW_BYTES, dtype=torch.uint8)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            torch.index_select(rows, 0, torch.randint(num_rows, (num_gathered,)), out=out)
            count += 1
        totals.append(count * out.nbytes / (time.perf_counter() - began))

    before = torch.get_num_threads()
    threads = [threading.Thread(target=gather) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    return sum(totals)


def gpu_copy_bytes_per_s() -> tuple[float, float] | None:
    """Return the rates of copies to the GPU, from pinned and from other memory; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    host = torch.zeros(64 << 20, dtype=torch.uint8)
    return _copies(host.pin_memory()), _copies(host)


def _copies(host: torch.Tensor, seconds: float = 0.3) -> float:
    device = torch.empty_like(host, device="cuda")
    copy: Callable[[], object] = lambda: device.copy_(host, non_blocking=True)  # noqa: E731
    copy()
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        copy()
        torch.cuda.synchronize()
        count += 1
    return count * host.nbytes / (time.perf_counter() - began)
