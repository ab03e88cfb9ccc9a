"""Crops out of volumes, beside slicing them with numpy: `python benchmarks/arrays.py [--side 512]`.

Crops of 64 x 64 x 64 at random places of volumes in random order, in batches of 8. Every case runs its contenders in
turns (A B A B ...), in one process; the table shows the median, the range, and the ratio to bare slicing. Warm: all
volumes in the page cache. Cold: dropped from it before each repeat. Writes, with every repeat,
`benchmarks/results/arrays.json`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import write
from spine import HERE, WORKERS, Case, Told, conditions, timed

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset, augment

CROP, BATCH = 64, 8


class Volumes:
    """Loose and packed volumes of noise, made once per run."""

    def __init__(self, folder: Path, side: int, count: int, dtype: str) -> None:
        self.side, self.count, self.dtype = side, count, dtype
        self.files = [folder / f"{dtype}/{i}.npy" for i in range(count)]
        self.files[0].parent.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for file in self.files:
            np.save(file, rng.integers(0, 256, (side,) * 3, np.uint8).astype(dtype))
        self.packed = folder / f"{dtype}-packed"
        packdata.pack_arrays(self.files[0].parent, self.packed, workers=1)

    def dataset(self, num_crops: int, cls: Any = ShardDataset, **settings: Any) -> Any:
        """Return `num_crops` samples that go round the volumes."""
        dataset = cls(self.packed, augment=[augment.RandomCrop(CROP)], **settings)
        return dataset.select(np.arange(num_crops) % self.count)

    def drop(self) -> None:
        """Take the files out of the page cache; nothing may have them mapped."""
        for file in [*self.files, *self.packed.glob("shard-*")]:
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Sliced(torch.utils.data.Dataset):
    """What a user writes: a memory map per volume, a random slice of it."""

    def __init__(self, files: list[Path], num_crops: int) -> None:
        self.maps = [np.load(file, mmap_mode="r") for file in files]
        self.num_crops = num_crops

    def __len__(self) -> int:
        return self.num_crops

    def __getitem__(self, i: int) -> torch.Tensor:
        volume = self.maps[i % len(self.maps)]
        z, y, x = (int(torch.randint(n - CROP + 1, ())) for n in volume.shape)
        return torch.from_numpy(volume[z : z + CROP, y : y + CROP, x : x + CROP].copy())[None]


def bare(volumes: Volumes, num_crops: int, threads: int) -> Any:
    """Slices of memory maps into one warm buffer per thread: no loader at all."""
    maps = [np.load(file, mmap_mode="r") for file in volumes.files]
    buffers = np.zeros((threads, BATCH, CROP, CROP, CROP), volumes.dtype)
    pool, rng = ThreadPoolExecutor(threads), np.random.default_rng(1)

    def part(thread: int, order: np.ndarray, corners: np.ndarray) -> None:
        for i in range(thread, len(order), threads):
            z, y, x = corners[i]
            source = maps[order[i]][z : z + CROP, y : y + CROP, x : x + CROP]
            np.copyto(buffers[thread, i % BATCH], source)

    def run() -> float:
        order = rng.permutation(num_crops) % volumes.count
        corners = rng.integers(0, volumes.side - CROP + 1, (num_crops, 3)).tolist()
        work = [(thread, order.tolist(), corners) for thread in range(threads)]
        return timed(num_crops, lambda: list(pool.map(lambda w: part(*w), work)))

    return run


def epoch(loader: Any) -> float:
    """Run an epoch; return crops per second."""
    began, crops = time.perf_counter(), 0
    for batch in loader:
        crops += len(batch if isinstance(batch, torch.Tensor) else batch[0])
    return crops / (time.perf_counter() - began)


def warm_case(volumes: Volumes, num_crops: int) -> Case:
    """Return the case of volumes that lie in the page cache."""
    runs = {
        "numpy slices, one thread": bare(volumes, num_crops, 1),
        f"numpy slices, {WORKERS} threads": bare(volumes, num_crops, WORKERS),
    }
    sources = {
        "mapped": volumes.dataset(num_crops),
        "mapped, never checked": volumes.dataset(num_crops, check="never"),
        "in RAM": volumes.dataset(num_crops, RAMDataset, progress=False),
    }
    for name, dataset in sources.items():
        for workers in (0, WORKERS) if name == "mapped" else (WORKERS,):
            loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)
            runs[f"loaders, {name}, {workers} workers"] = lambda loader=loader: epoch(loader)
    sliced = torch.utils.data.DataLoader(
        Sliced(volumes.files, num_crops),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    runs[f"torch DataLoader of slices, {WORKERS} processes"] = lambda: epoch(sliced)
    name = f"{CROP}^3 crops of {volumes.count} {volumes.dtype} volumes of {volumes.side}^3, warm"
    return Case(name, "crops/s", runs, "After one epoch of each contender")


def cold_case(volumes: Volumes) -> Case:
    """Return the case of volumes that have to be read: one crop of each, by one thread."""
    rng = np.random.default_rng(2)

    def slices() -> float:
        volumes.drop()
        out = np.zeros((CROP,) * 3, volumes.dtype)

        def work() -> None:
            for file in volumes.files:
                z, y, x = rng.integers(0, volumes.side - CROP + 1, 3)
                volume = np.load(file, mmap_mode="r")
                np.copyto(out, volume[z : z + CROP, y : y + CROP, x : x + CROP])

        return timed(volumes.count, work)

    epochs = iter(range(1 << 30))

    def ours(check: str) -> float:
        volumes.drop()
        dataset = volumes.dataset(volumes.count, check=check)
        dataset.set_epoch(next(epochs))
        return timed(volumes.count, lambda: [dataset[i] for i in range(volumes.count)])

    runs = {
        "numpy slices": slices,
        "loaders, checked": lambda: ours("first"),
        "loaders, never checked": lambda: ours("never"),
    }
    name = f"{CROP}^3 crops of {volumes.count} {volumes.dtype} volumes of {volumes.side}^3, cold"
    readahead = sorted(
        {p.read_text().strip() for p in Path("/sys/block").glob("*/queue/read_ahead_kb")}
    )
    return Case(name, "crops/s", runs, f"Opening included; the kernel reads ahead {readahead} KiB")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=256, help="of the volumes")
    parser.add_argument("--volumes", type=int, default=8)
    parser.add_argument("--crops", type=int, default=1024, help="per repeat")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    args = parser.parse_args()
    told = Told()
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("uint8", "float32"):
            volumes = Volumes(Path(folder), args.side, args.volumes, dtype)
            for make in (lambda v: warm_case(v, args.crops), cold_case):
                told.run(make(volumes), args.repeats)
    where = conditions("none") | {"side": args.side, "volumes": args.volumes, "crops": args.crops}
    title = "Crops out of volumes: `python benchmarks/arrays.py`"
    write(args.out, "arrays", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
