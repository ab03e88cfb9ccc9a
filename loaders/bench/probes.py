"""Short measurements of a machine for the doctor."""

from __future__ import annotations

import itertools
import mmap
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch

from loaders.bench.stages import copy_cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_BLOCK = 4 << 20
_MIN_FILE = 1 << 20
_READ_S = 1.0
_SMALL, _MAX_READS = 4096, 2000
_MAX_LOOKED_AT = 2000
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


def direct_reads(path: Path) -> tuple[float | None, float] | None:
    """Read files of a folder past the page cache, for about two seconds.

    Return bytes/s from the start of the largest, and the median seconds of 4 KiB at random places in it. Where all are
    smaller than 1 MiB, there is no rate, and the seconds are of the first 4 KiB of each. None if that cannot be done.
    """
    files = _files(path)
    if not files or not hasattr(os, "O_DIRECT"):
        return None
    size, largest = max(files)
    took: list[tuple[int, float]] = []
    if size >= _MIN_FILE:
        took = list(_timed_reads(largest, itertools.count(0, _BLOCK), _BLOCK))
        places = np.random.default_rng(0).integers(0, size // _SMALL, _MAX_READS)
        reads = _timed_reads(largest, (places * _SMALL).tolist(), _SMALL)
    else:
        deadline = time.perf_counter() + _READ_S
        some = itertools.takewhile(lambda _: time.perf_counter() < deadline, files)
        reads = itertools.chain.from_iterable(_timed_reads(file, [0], _SMALL) for _, file in some)
    late = [seconds for _, seconds in reads]
    if not late:
        return None
    rate = sum(got for got, _ in took) / sum(s for _, s in took) if took else None
    return rate, statistics.median(late)


def _timed_reads(file: Path, offsets: Iterable[int], nbytes: int) -> Iterator[tuple[int, float]]:
    """Yield what each read gave, and how long it took; nothing where the file system has no direct reads."""
    buffer = mmap.mmap(-1, nbytes)  # aligned, as direct reads must be
    with suppress(OSError):
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
        try:
            deadline = time.perf_counter() + _READ_S
            for offset in offsets:
                began = time.perf_counter()
                got = os.preadv(fd, [buffer], offset)
                if got <= 0 or began > deadline:
                    return
                yield got, time.perf_counter() - began
                if got % mmap.PAGESIZE:  # the end of the file
                    return
        finally:
            os.close(fd)


def _files(path: Path) -> list[tuple[int, Path]]:
    """Return files with their sizes, but for empty ones."""
    found = []
    for file in itertools.islice(path.rglob("*") if path.is_dir() else [path], _MAX_LOOKED_AT):
        with suppress(OSError):
            if file.is_file() and (size := file.stat().st_size):
                found.append((size, file))
    return found


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
            [sys.executable, "-P", "-c", code],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        return float(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None


def gpu_copy_bytes_per_s() -> float | None:
    """Return the rate of copies to the GPU from pinned memory; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    host = torch.zeros(64 << 20, dtype=torch.uint8)
    return copy_cost(host, torch.device("cuda"), seconds=0.3).samples_per_s
