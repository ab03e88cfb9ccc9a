"""Storage that answers late, as over a network: `python benchmarks/storage.py [--photos FOLDER] [--late-us 1000]`.

A file system in user space (`slowfs.c`: needs a C compiler, libfuse 3 with its headers, and leave to mount) shows a
folder and answers each read after a while, of at most 128 KiB, a dozen or more at the same time. Each run is a
process of its own on a fresh mount, so that nothing is in memory: images/s from opening to the last of some batches,
of a dataset that is larger than they. Contenders: our threads; the same, with pages that are read when they are
touched; torch's DataLoader with a file for each picture. Writes `benchmarks/results/storage.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from page import write
from spine import HERE, OPS, ROOT, Case, Data, LooseFiles, Told, conditions

from loaders import DataLoader, ShardDataset
from loaders.data import records

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH, NUM_BATCHES, NUM_FILES = 64, 48, 16_384
WORKERS = (2, 8)
LOOSE_WORKERS = (2, 8, 16)


class LateData(Data):
    """More files than are read."""

    def __init__(self, photos: Path, folder: Path, scale: float) -> None:
        super().__init__(photos, folder, scale)
        num = int(NUM_FILES * scale)
        for i in range(len(self.presized), num):
            shutil.copyfile(
                self.presized[i % len(self.presized)], folder / "presized" / f"{i:05}.jpg"
            )
        self.presized = sorted((folder / "presized").iterdir())


def compiled(folder: Path) -> Path:
    """Compile the file system."""
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True
    )
    program = folder / "slowfs"
    source = str(HERE / "slowfs.c")
    subprocess.run(["cc", "-O2", source, "-o", str(program), *flags.stdout.split()], check=True)
    return program


@contextlib.contextmanager
def mounted(program: Path, folder: Path, late_us: int) -> Iterator[Path]:
    """Show a folder late."""
    with tempfile.TemporaryDirectory() as place:
        threads = "max_threads=64,max_idle_threads=64"
        words = [str(program), str(folder), str(late_us), place, "-f", "-o", threads]
        server = subprocess.Popen(words)
        try:
            while not Path(place).is_mount():
                if server.poll() is not None:
                    raise SystemExit("the file system could not be mounted: see above")
                time.sleep(0.01)
            yield Path(place)
        finally:
            subprocess.run(["fusermount3", "-u", place], check=True)
            server.wait()


# -- one run, in a process of its own -------------------------------------------------------------


def serve(contender: str, path: Path, num_workers: int) -> float:
    """Return images per second from opening on."""
    began = time.perf_counter()
    loader = make_loader(contender, path, num_workers)
    samples = sum(len(images) for _, (images, _) in zip(range(NUM_BATCHES), loader, strict=False))
    return samples / (time.perf_counter() - began)


def make_loader(contender: str, path: Path, num_workers: int) -> Any:
    """Make what a run iterates."""
    if contender == "loose":
        files = sorted(path.iterdir())
        settings: dict[str, Any] = {"shuffle": True, "num_workers": num_workers}
        return torch.utils.data.DataLoader(LooseFiles(files, "cv2"), BATCH, **settings)
    if contender == "touched":
        assert records._libc is not None
        records._libc = None  # neither asked nor waited for
    dataset = ShardDataset(path, augment=[] if path.name.startswith("raw") else OPS)
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=num_workers, backend="thread")


def run(program: Path, folder: Path, late_us: int, name: str, words: tuple[str, int]) -> float:
    """Mount, run one contender, and unmount."""
    with mounted(program, folder, late_us) as place:
        one = ["--one", words[0], str(place / name), str(words[1])]
        command = [sys.executable, "-W", "ignore", __file__, *one]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return float(done.stdout)


# -- cases -----------------------------------------------------------------------------------------


def cases(data: Data, program: Path, late_us: int) -> Iterator[Case]:
    """Yield a case for each kind of data."""
    late = functools.partial(run, program, data.folder, late_us)
    for title, name in (
        ("JPEG, shorter side 256 -> RandomResizedCrop(224), flip", "presized"),
        ("raw 224 x 224", "raw"),
    ):
        data.packed(name, "lmdb")
        packed = f"{name}-lmdb"
        runs = {}
        for kind, label in (("touched", "pages as they are touched"), ("asked", "loaders")):
            for num in WORKERS:
                runs[f"{label}, {num} threads"] = functools.partial(late, packed, (kind, num))
        if name == "presized":
            for num in LOOSE_WORKERS:
                label = f"torch DataLoader, a file each, cv2, {num} processes"
                runs[label] = functools.partial(late, name, ("loose", num))
        note = f"each read answered after {late_us} us; opening included"
        yield Case(f"{title}; batch {BATCH}, cold", "images/s", runs, note)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, default=ROOT / "tests/data/photos")
    parser.add_argument("--late-us", type=int, default=1000, help="until a read is answered")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the data sizes")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(serve(args.one[0], Path(args.one[1]), int(args.one[2])))
        return
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as tools:
        data, program = LateData(args.photos, Path(folder), args.scale), compiled(Path(tools))
        told = Told()
        for case in cases(data, program, args.late_us):
            told.run(case, args.repeats)
    where = conditions(f"{len(data.photos)} photos") | {"page cache": "cold"}
    title = "Storage that answers late: `python benchmarks/storage.py --photos FOLDER`"
    write(args.out, "storage", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
