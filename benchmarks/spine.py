"""Images end to end, beside what a user would otherwise run: `python benchmarks/spine.py [--photos FOLDER]`.

Every case runs its contenders in turns (A B A B ...), in one process, data in the page cache, two worker threads or
processes unless it says otherwise; the table shows the median, the range, and the ratio to the case's baseline. Writes
`benchmarks/RESULTS.md` and, with every repeat, `benchmarks/results/spine.json`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import cv2
import numpy as np
import PIL.Image
import simplejpeg
import torch
from page import HERE, write

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset, augment, concat
from loaders.augment.planning import draw_geometry
from loaders.backends.maker import Maker, chunks
from loaders.codecs.picture import encode_jpeg
from loaders.datasets.reading.samples import collate
from loaders.schema import Image, Label

ROOT = Path(__file__).resolve().parent.parent
OPS = (augment.RandomResizedCrop(224), augment.RandomHorizontalFlip())
WORKERS = 2
RAW, SMALL = 8192, 307_200  # images
PASSES = 4  # over raw ones in an epoch, which would else be 60 ms long: beginning one takes 3
Run = Callable[[], float]  # does the work once; returns units per second


@dataclass
class Case:
    """Contenders that do the same work; the first is the baseline."""

    name: str
    unit: str
    runs: dict[str, Run]
    note: str = ""
    lower_is_better: bool = False


# -- data ------------------------------------------------------------------------------------------


class Data:
    """Packed and loose copies of crops of real photos, made once per run."""

    def __init__(self, photos: Path, folder: Path, scale: float) -> None:
        self.folder, self.scale = folder, scale
        files = sorted(
            p for p in photos.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png")
        )
        self.photos = [cv2.cvtColor(cv2.imread(str(p)), cv2.COLOR_BGR2RGB) for p in files]
        self.rng = np.random.default_rng(0)
        self.original = self._loose("original", int(256 * scale), None)
        self.presized = self._loose("presized", int(1024 * scale), 256)
        self.raw = np.stack([self._crop((224, 224)) for _ in range(int(RAW * scale))])
        small = [
            cv2.cvtColor(self._crop((56, 56)), cv2.COLOR_RGB2GRAY)[::2, ::2] for _ in range(2000)
        ]
        self.small = np.stack([small[i % 2000] for i in range(int(SMALL * scale))])[..., None]

    def _crop(self, size: tuple[int, int] | int | None) -> np.ndarray:
        photo = self.photos[self.rng.integers(len(self.photos))]
        height, width = (int(n * self.rng.uniform(0.7, 1)) for n in photo.shape[:2])
        y, x = (
            self.rng.integers(n - m + 1)
            for n, m in zip(photo.shape[:2], (height, width), strict=True)
        )
        crop = photo[y : y + height, x : x + width]
        if size is None:
            return photo
        if isinstance(size, int):
            size = (
                round(height * size / min(height, width)),
                round(width * size / min(height, width)),
            )
        return cv2.resize(crop, size[::-1], interpolation=cv2.INTER_AREA)

    def _loose(self, name: str, count: int, size: int | None) -> list[Path]:
        (self.folder / name).mkdir(parents=True)
        files = [self.folder / name / f"{i:05}.jpg" for i in range(count)]
        for file in files:
            pixels = np.ascontiguousarray(self._crop(size))
            file.write_bytes(simplejpeg.encode_jpeg(pixels, 90, "RGB", "420"))
        return files

    def mapped(self, name: str) -> np.ndarray:
        """Return `raw` or `small` in a mapped file."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            np.save(path, getattr(self, name))
        return np.load(path, mmap_mode="c")

    def packed(self, name: str, kind: str) -> ShardDataset:
        """Return a dataset packed from `original`, `presized`, `raw` or `small`."""
        path = self.folder / f"{name}-{kind}"
        if not path.exists():
            self._pack(getattr(self, name), path, kind)
        return ShardDataset(path)

    def encoded(self, name: str) -> ShardDataset:
        """Return `original` or `presized` as packdata encodes it: with restart markers."""
        path = self.folder / f"{name}-encoded"
        if not path.exists():
            files = (file.read_bytes() for file in getattr(self, name))
            self._pack([encode_jpeg(simplejpeg.decode_jpeg(file)) for file in files], path, "lmdb")
        return ShardDataset(path)

    def _pack(self, source: Any, path: Path, kind: str) -> None:
        field = Image()
        if isinstance(source[0], np.ndarray):
            field = Image(size=source[0].shape[:2], channels=source[0].shape[2], codec="raw")
        rows = ({"image": value, "label": i % 10} for i, value in enumerate(source))
        fields = {"image": field, "label": Label()}
        packdata.pack(rows, path, fields, format=kind, shard_bytes=32 << 20)


# -- contenders ------------------------------------------------------------------------------------


def in_python(image: torch.Tensor) -> torch.Tensor:
    """What a user's transform in plain Python does to the lock; here, as a child imports no script."""
    sum(range(20_000))
    return image


def loader_epoch(loader: Any) -> float:
    """Run an epoch; return samples per second."""
    began, samples = time.perf_counter(), 0
    for images, _labels in loader:
        samples += len(images)
    return samples / (time.perf_counter() - began)


def timed(samples: int, work: Callable[[], Any]) -> float:
    """Return samples per second of one call."""
    began = time.perf_counter()
    work()
    return samples / (time.perf_counter() - began)


def bare_gather(
    array: np.ndarray, labels: np.ndarray, batch: int, threads: int, num_buffers: int = 1
) -> Run:
    """`index_select` into warm buffers of each thread in turn, rows in random order, labels beside them."""
    rows, targets = torch.from_numpy(array.reshape(len(array), -1)), torch.from_numpy(labels)
    shape = (threads, num_buffers, batch, rows.shape[1])
    buffers = torch.zeros(shape, dtype=torch.uint8)
    pool = ThreadPoolExecutor(threads)

    def part(thread: int, order: torch.Tensor) -> None:
        torch.set_num_threads(1)
        starts = range(thread * batch, len(order) - batch + 1, threads * batch)
        for number, start in enumerate(starts):
            chosen = order[start : start + batch]
            torch.index_select(rows, 0, chosen, out=buffers[thread, number % num_buffers])
            torch.index_select(targets, 0, chosen)

    def run() -> float:
        order = torch.cat([torch.randperm(len(rows)) for _ in range(PASSES)])
        samples = len(order) // batch * batch
        return timed(samples, lambda: list(pool.map(part, range(threads), [order] * threads)))

    return run


def handed_over(array: np.ndarray, labels: np.ndarray, batch: int, threads: int) -> Run:
    """The least that a loader does besides: each thread has two buffers, another takes the batches in order."""
    rows, targets = torch.from_numpy(array.reshape(len(array), -1)), torch.from_numpy(labels)
    buffers = torch.zeros((threads, 2, batch, rows.shape[1]), dtype=torch.uint8)
    pool = ThreadPoolExecutor(threads)

    def make(
        thread: int, order: torch.Tensor, free: SimpleQueue[Any], made: SimpleQueue[Any]
    ) -> None:
        torch.set_num_threads(1)
        for start in range(thread * batch, len(order) - batch + 1, threads * batch):
            chosen, buffer = order[start : start + batch], free.get()
            torch.index_select(rows, 0, chosen, out=buffer)
            made.put((buffer, torch.index_select(targets, 0, chosen)))

    def take(order: torch.Tensor) -> None:
        free, made = ([SimpleQueue[Any]() for _ in range(threads)] for _ in range(2))
        for thread, its in enumerate(buffers):
            list(map(free[thread].put, its))
        jobs = [pool.submit(make, t, order, free[t], made[t]) for t in range(threads)]
        held: list[Any] = []  # by the trainer, until it asks for the next
        for number in range(len(order) // batch):
            thread = number % threads
            held.append((free[thread], made[thread].get()))
            if len(held) > 1:
                queue, (buffer, _) = held.pop(0)
                queue.put(buffer)
        for job in jobs:
            job.result()

    def run() -> float:
        order = torch.cat([torch.randperm(len(rows)) for _ in range(PASSES)])
        return timed(len(order) // batch * batch, lambda: take(order))

    return run


def on_threads(work: Callable[[bytes, np.ndarray], Any], records: list[bytes]) -> Run:
    """Call `work(record, scratch)` on every record, on two threads that share nothing."""
    pool = ThreadPoolExecutor(WORKERS)
    scratch = [np.empty(1 << 23, np.uint8) for _ in range(WORKERS)]

    def part(thread: int) -> None:
        for record in records[thread::WORKERS]:
            work(record, scratch[thread])

    return lambda: timed(len(records), lambda: list(pool.map(part, range(WORKERS))))


def decode_crop_resize(records: list[bytes]) -> Run:
    """The same decoder, crops and resize as ours, without a loader: whole pictures into a warm buffer."""
    sizes = np.array([simplejpeg.decode_jpeg_header(record)[:2] for record in records])
    out = [np.zeros((224, 224, 3), np.uint8) for _ in range(WORKERS)]
    pool = ThreadPoolExecutor(WORKERS)
    scratch = [np.empty(1 << 23, np.uint8) for _ in range(WORKERS)]
    epochs = iter(range(1 << 30))

    def part(thread: int, boxes: list[list[int]], flips: list[list[bool]]) -> None:
        for i in range(thread, len(records), WORKERS):
            image = simplejpeg.decode_jpeg(records[i], buffer=scratch[thread])
            y, x, height, width = boxes[i]
            cv2.resize(image[y : y + height, x : x + width], (224, 224), out[thread])
            if flips[i][1]:
                cv2.flip(out[thread], 1, out[thread])

    def run() -> float:
        drawn = draw_geometry(
            OPS, sizes, seed=0, epoch=next(epochs), indices=np.arange(len(records))
        )
        boxes, flips = drawn.boxes.tolist(), drawn.flips.tolist()
        work = functools.partial(
            pool.map, part, range(WORKERS), [boxes] * WORKERS, [flips] * WORKERS
        )
        return timed(len(records), lambda: list(work()))

    return run


class LooseFiles(torch.utils.data.Dataset[Any]):
    """What many projects have: files, a decoder, and a crop in Python."""

    def __init__(self, files: list[Path], decoder: str) -> None:
        self.files, self.decoder = files, decoder

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        cv2.setNumThreads(1)
        return getattr(self, self.decoder)(self.files[i]).permute(2, 0, 1), i % 10

    def _box(self, height: int, width: int) -> tuple[int, int, int, int]:
        drawn = draw_geometry(
            OPS[:1],
            np.array([[height, width]]),
            seed=0,
            epoch=0,
            indices=np.random.default_rng().integers(1 << 40, size=1),
        )
        return tuple(drawn.boxes[0].tolist())

    def cv2(self, file: Path) -> torch.Tensor:
        image = cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB)
        y, x, height, width = self._box(*image.shape[:2])
        image = cv2.resize(image[y : y + height, x : x + width], (224, 224))
        return torch.from_numpy(
            cv2.flip(image, 1) if np.random.default_rng().random() < 0.5 else image
        )

    def pil(self, file: Path) -> torch.Tensor:
        image = PIL.Image.open(file).convert("RGB")
        y, x, height, width = self._box(image.height, image.width)
        image = image.resize(
            (224, 224), PIL.Image.Resampling.BILINEAR, (x, y, x + width, y + height)
        )
        if np.random.default_rng().random() < 0.5:
            image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image))


def torch_loader(files: list[Path], decoder: str) -> Run:
    """torch's own DataLoader with two worker processes, kept between epochs."""
    loader = torch.utils.data.DataLoader(
        LooseFiles(files, decoder), 128, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return lambda: loader_epoch(loader)


# -- cases -----------------------------------------------------------------------------------------


def cases(data: Data) -> Iterator[Case]:
    """Yield every case; its data is made when it is its turn."""
    for kind in ("lmdb", "parquet", "RAMDataset"):
        is_file = kind != "RAMDataset"
        rows = data.mapped("raw") if is_file else data.raw
        labels = np.arange(len(rows)) % 10
        in_memory = functools.partial(RAMDataset.from_arrays, image=data.raw, label=labels)
        dataset = data.packed("raw", kind) if is_file else in_memory()
        long = concat([dataset] * PASSES)
        place = "a mapped file" if is_file else "memory"
        yield Case(f"raw 224 x 224, {kind}, batch 128", "images/s", {
            f"bare gather from {place} into a warm buffer, 2 threads": bare_gather(rows, labels, 128, 2),
            "the same into two buffers each, as a batch is in use": bare_gather(rows, labels, 128, 2, 2),
            "the same, whole batches handed to another thread in order": handed_over(rows, labels, 128, 2),
            "loaders": functools.partial(loader_epoch, DataLoader(long, 128, shuffle=True, drop_last=True)),
        }, f"epochs of {PASSES} passes; budget: 0.85 of the bare gather")  # fmt: skip
    for kind in ("lmdb", "parquet"):
        dataset = data.packed("small", kind)
        long = concat([dataset] * PASSES)
        yield Case(f"raw 28 x 28, {kind}, batch 1024", "images/s", {
            "bare gather, 1 thread": bare_gather(data.small, dataset.column("label").copy(), 1024, 1),
            "loaders": functools.partial(loader_epoch, DataLoader(long, 1024, shuffle=True, drop_last=True)),
        }, f"epochs of {PASSES} passes; budget: 0.65 of the bare gather")  # fmt: skip
    for name, what in (("presized", "JPEG, shorter side 256"), ("original", "JPEG as it comes")):
        files: list[Path] = getattr(data, name)
        records = [file.read_bytes() for file in files]
        datasets = {f"loaders, {kind}": data.packed(name, kind) for kind in ("lmdb", "parquet")}
        datasets["loaders, lmdb, encoded by packdata (restart markers)"] = data.encoded(name)
        ours = {
            contender: functools.partial(
                loader_epoch, DataLoader(dataset.replace(augment=OPS), 128, shuffle=True)
            )
            for contender, dataset in datasets.items()
        }
        yield Case(f"{what} -> RandomResizedCrop(224), flip; batch 128", "images/s", {
            "same decoder, crops and resize, no loader": decode_crop_resize(records),
            "decoder alone": on_threads(lambda r, s: simplejpeg.decode_jpeg(r, buffer=s), records),
            **ours,
            "torch DataLoader, cv2": torch_loader(files, "cv2"),
            "torch DataLoader, PIL": torch_loader(files, "pil"),
        }, "budget: 0.95 of the first line")  # fmt: skip
    yield Case(
        "overhead per batch of 16 rows of 8 bytes",
        "us",
        overheads(data),
        "budget: 20 inline, 25 on a thread in groups",
        True,
    )
    yield Case(
        "time that holds the GIL, per sample",
        "us",
        gil_held(data),
        "budget: 15 JPEG, 2 raw rows, about 0 small rows; so many threads share the interpreter as the lock's time"
        " goes into the whole time of a sample",
        True,
    )
    yield Case(
        "first batch of 1 M samples, from constructing",
        "s",
        {
            "loaders": functools.partial(first_batch, data),
            "with its imports": functools.partial(first_batch, data, with_imports=True),
        },
        "budget: 0.3, after importing torch",
        True,
    )
    yield Case(
        "first batch of a further epoch, 1,000 samples in memory, batch 100",
        "ms",
        further_epochs(),
        "budget: 3; medians of 50 epochs, CPU time is that of all threads",
        True,
    )
    yield packing(data)


def overheads(data: Data) -> dict[str, Run]:
    """Time per batch where nothing is left to do but handing over."""
    dataset = data.packed("small", "parquet").replace(fields=["label"])

    def per_batch(workers: int) -> float:
        loader = DataLoader(dataset, 16, shuffle=True, num_workers=workers)
        began = time.perf_counter()
        num_batches = sum(1 for _ in loader)
        return (time.perf_counter() - began) / num_batches * 1e6

    return {"inline": lambda: per_batch(0), "one thread, groups of batches": lambda: per_batch(1)}


def further_epochs() -> dict[str, Run]:
    """Time from `iter` to the first batch, where an epoch takes no longer than that."""
    labels = np.arange(1000)
    datasets = {
        "rows of 16 floats": RAMDataset.from_arrays(
            x=np.zeros((1000, 16), np.float32), label=labels
        ),
        "images of 32 px": RAMDataset.from_arrays(
            image=np.zeros((1000, 32, 32, 3), np.uint8), label=labels
        ),
    }

    def first(dataset: Any, clock: Callable[[], float]) -> float:
        loader = DataLoader(dataset, 100, shuffle=True, num_workers=WORKERS)
        took = []
        for _ in range(51):
            began = clock()
            batches = iter(loader)
            held = next(batches)  # dropping it is not part of it
            took.append(clock() - began)
            del held
            for _batch in batches:
                pass
        return statistics.median(took[1:]) * 1e3

    return {
        f"{name}{', CPU time' if clock is time.process_time else ''}": functools.partial(
            first, dataset, clock
        )
        for name, dataset in datasets.items()
        for clock in (time.perf_counter, time.process_time)
    }


def epoch_in_parts(loader: DataLoader, num_workers: int) -> float:
    """Make the batches of an epoch in the parts that so many threads would share, one after the other."""
    maker = Maker(loader.dataset, collate, loader.batch_size, True, num_workers)
    began, samples = time.perf_counter(), 0
    for chunk in chunks(loader._indices(maker.chunk_size), maker.chunk_size):
        for turn in range(chunk.num_turns):
            job = chunk.job(turn, maker)
            for part in range(job.num_parts):
                job.run(part)
            samples += len(job.finish()[0][0])
    return samples / (time.perf_counter() - began)


class Clocks:
    """Time the calls of some functions of other modules, while it is entered."""

    def __init__(self, *places: tuple[Any, str]) -> None:
        self.places, self.calls = places, [getattr(module, name) for module, name in places]
        self.inside_s, self.num_calls = 0.0, 0

    def __enter__(self) -> Self:
        for (module, name), call in zip(self.places, self.calls, strict=True):
            setattr(module, name, self.clocked(call))
        return self

    def __exit__(self, *_: object) -> None:
        for (module, name), call in zip(self.places, self.calls, strict=True):
            setattr(module, name, call)

    def clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.inside_s += time.perf_counter() - began
                self.num_calls += 1

        return timed_call

    def own_s(self) -> float:
        """Return how long the clocks took beside the calls: tried on calls of nothing."""
        trial = Clocks()
        nothing = trial.clocked(len)
        began = time.perf_counter()
        for _ in range(100_000):
            nothing("")
        beside_s = time.perf_counter() - began - trial.inside_s
        return beside_s / trial.num_calls * self.num_calls


def gil_held(data: Data) -> dict[str, Run]:
    """Time of one thread minus the time inside calls that release the GIL (decode, resize, flip, gather).

    Counted although numpy lets the GIL go for it: drawing the crops of a part, copying a record that is cut short.
    """

    def held(dataset: ShardDataset, batch: int, num_workers: int = 1) -> float:
        loader = DataLoader(dataset, batch, shuffle=True, num_workers=0)
        places = [(simplejpeg, "decode_jpeg"), (cv2, "resize"), (cv2, "flip")]
        with Clocks(*places, (torch, "index_select")) as clocks:
            rate = epoch_in_parts(loader, num_workers)
        return (1 / rate - (clocks.inside_s + clocks.own_s()) / len(dataset)) * 1e6

    def whole(dataset: ShardDataset, batch: int) -> float:
        return 1e6 / epoch_in_parts(DataLoader(dataset, batch, shuffle=True, num_workers=0), 1)

    def long(dataset: ShardDataset) -> ShardDataset:
        """Of several passes: the first batches of an epoch share less of the work than those that follow."""
        return concat([dataset] * PASSES)

    jpeg = long(data.packed("presized", "lmdb").replace(augment=OPS))
    encoded = long(data.encoded("presized").replace(augment=OPS))
    raw, small = long(data.packed("raw", "parquet")), data.packed("small", "parquet")
    return {  # the warm-up run compares the checksums
        "JPEG, crop, resize, flip: the whole time of one thread": lambda: whole(jpeg, 128),
        "JPEG, crop, resize, flip": lambda: held(jpeg, 128),
        "the same, in the parts of 16 threads": lambda: held(jpeg, 128, 16),
        "encoded by packdata (restart markers)": lambda: held(encoded, 128),
        "the same in the parts of 16 threads, which save less": lambda: held(encoded, 128, 16),
        "raw 224 x 224": lambda: held(raw, 128),
        "raw 28 x 28": lambda: held(small, 1024),
    }


FIRST_BATCH = """
import sys, time, torch
began = time.perf_counter()
from loaders import DataLoader, ShardDataset
imported = time.perf_counter()
next(iter(DataLoader(ShardDataset(sys.argv[1]), 256, shuffle=True)))
done = time.perf_counter()
print(done - imported, done - began)
"""


def first_batch(data: Data, *, with_imports: bool = False) -> float:
    """Open a million samples in a fresh process that has imported torch."""
    path = data.folder / "million"
    if not path.exists():
        fields = {"image": Image(channels=1, size=(4, 4), codec="raw"), "label": Label()}
        pixels = np.zeros((4, 4, 1), np.uint8)
        rows = ({"image": pixels, "label": i % 10} for i in range(int(1_000_000 * data.scale)))
        packdata.pack(rows, path, fields, format="parquet", shard_bytes=1 << 20)
    command = [sys.executable, "-c", FIRST_BATCH, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    return float(done.stdout.split()[with_imports])


def packing(data: Data) -> Case:
    """Packing at 256 pixels, beside its three steps on all cores without a packer."""
    # Sixteen times the files, so that the fixed costs are not all there is.
    source = data.folder / "many"
    source.mkdir()
    for i, file in enumerate(data.original * 16):
        os.link(file, source / f"{i:05}.jpg")
    records = [file.read_bytes() for file in data.original * 16]

    def by_hand(record: bytes, scratch: np.ndarray) -> None:
        image = simplejpeg.decode_jpeg(record, buffer=scratch)
        scale = 256 / min(image.shape[:2])
        size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
        encode_jpeg(cv2.resize(image, size, interpolation=cv2.INTER_AREA), 90)

    def packed(kind: str) -> float:
        target = data.folder / "packing"
        shutil.rmtree(target, ignore_errors=True)
        return timed(
            len(records), lambda: packdata.pack_images(source, target, sizes=["256"], format=kind)
        )

    return Case("packing JPEG at shorter side 256", "images/s", {
        "decode, resize, encode on all cores, no packer": on_threads(by_hand, records),
        "packdata images, lmdb": lambda: packed("lmdb"),
        "packdata images, parquet": lambda: packed("parquet"),
    }, "budget: 0.8 of the first line; decodes everything, hashes, reads back, fsyncs")  # fmt: skip


# -- running and reporting -------------------------------------------------------------------------


def measure(case: Case, repeats: int) -> dict[str, list[float]]:
    """Run the contenders in turns, after a warm-up of each."""
    results: dict[str, list[float]] = {name: [] for name in case.runs}
    for repeat in range(repeats + 1):
        for name, run in case.runs.items():
            gc.collect()  # or one of them would pay for what the others left
            value = run()
            if repeat:
                results[name].append(value)
    return results


def report(case: Case, results: dict[str, list[float]]) -> str:
    """Return the case as a Markdown table."""
    lines = [
        f"### {case.name}",
        "",
        f"{case.note}." if case.note else "",
        "",
        f"| | {case.unit} | range | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    baseline = statistics.median(next(iter(results.values())))
    for name, values in results.items():
        middle = statistics.median(values)
        ratio = "" if case.lower_is_better else f"{middle / baseline:.2f}"
        lines.append(
            f"| {name} | {number(middle)} | {number(min(values))} to {number(max(values))} | {ratio} |"
        )
    return "\n".join([*lines, ""])


class Told:
    """What the cases of a benchmark gave.

    Args:
        only: What the names of cases that are measured have in them.

    Attributes:
        cases: Every repeat, for the JSON file.
        tables: For the page.
    """

    def __init__(self, only: str = "") -> None:
        self._only = only
        self.cases: list[dict[str, Any]] = []
        self.tables: list[str] = []

    def run(self, case: Case, repeats: int) -> None:
        """Measure a case, print it and keep it."""
        if self._only not in case.name:
            return
        results = measure(case, repeats)
        about = {"case": case.name, "unit": case.unit, "note": case.note}
        self.cases.append(about | {"results": results})
        self.tables.append(report(case, results))
        print(self.tables[-1], flush=True)


def number(value: float) -> str:
    """Return three digits or whole numbers."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def conditions(photos: str) -> dict[str, Any]:
    """Say where and with what this was measured."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    versions = {
        name: sys.modules[name].__version__
        for name in ("torch", "numpy", "cv2", "simplejpeg", "PIL")
    }
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    commit = done.stdout.strip()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **versions,
        "commit": commit,
        "photos": photos,
        "page cache": "warm",
        "workers": WORKERS,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--photos",
        type=Path,
        default=ROOT / "tests/data/photos",
        help="folder of photos to cut up",
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the data sizes, for a quick try"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for RESULTS.md and results/"
    )
    parser.add_argument("--only", default="", help="cases with this in their name")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Data(args.photos, Path(folder), args.scale)
        kind = f"{len(data.photos)} photos of {data.photos[0].shape[1]} x {data.photos[0].shape[0]} or so"
        where = conditions(kind)
        told = Told()
        for case in cases(data):
            if args.only in case.name:
                told.run(case, args.repeats)
    title = "Images, order and overheads: `python benchmarks/spine.py --photos FOLDER`"
    write(args.out, "spine", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
