"""What being exact, checked and measured costs: `python benchmarks/trust.py [--photos FOLDER]`.

A training step of tiny operations beside each backend; the child process beside threads; checksums in the first epoch
and after it; the order; being resumable, and resuming in the middle of 10^9 samples; the bench and the profiler
themselves; memory over 50 epochs. Contenders run in turns (A B A B ...), in one process; the table shows the median,
the range, and the ratio to the case's first line. Writes, with every repeat, `benchmarks/results/trust.json`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from page import HERE, write
from spine import OPS, ROOT, WORKERS, Case, Data, Run, Told, conditions, in_python, loader_epoch

import loaders
from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.bench.measure import Config, family, own_memory, time_loader
from loaders.bench.sweep import make_loader, round_size
from loaders.sampling.batch import index_batches
from loaders.sampling.order import Shuffled
from loaders.sampling.plan import Plan
from loaders.sampling.sampler import EpochSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

TINY_OPERATIONS = 3000  # of a step: some 10 ms of them
LATENCY_BATCH = 8
SETTLED = 10  # epochs before memory is compared
HUGE = 1_000_000_000


# -- the trainer's interpreter ---------------------------------------------------------------------


def tiny_step() -> None:
    """Many operations that each let go of the interpreter and want it back."""
    x = torch.zeros(4)
    for _ in range(TINY_OPERATIONS):
        x = x + 1


def bare_steps(seconds: float) -> float:
    """Return the milliseconds of a step whose batch is there already."""
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        tiny_step()
        steps += 1
    return (time.perf_counter() - began) / steps * 1e3


class Beside:
    """Steps of tiny operations, a batch for each."""

    def __init__(self, dataset: Any, backend: str, workers: int, seconds: float) -> None:
        config = Config(workers, LATENCY_BATCH, backend)
        self.loader, self.seconds = make_loader(dataset, config), seconds
        self.with_waits_ms = 0.0

    def run(self, seconds: float) -> float:
        """Return the milliseconds of a step alone, without the wait for its batch."""
        batches = iter(self.loader)
        for _ in range(3):  # those made ahead, while nobody trained
            next(batches)
        steps, stepping, began = 0, 0.0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            next(batches)
            got = time.perf_counter()
            tiny_step()
            stepping += time.perf_counter() - got
            steps += 1
        self.with_waits_ms = (time.perf_counter() - began) / steps * 1e3
        batches.close()
        return stepping / steps * 1e3

    def runs(self, name: str) -> dict[str, Run]:
        """Return the step alone, and the same turn with its waits."""
        return {
            name: lambda: self.run(self.seconds),
            f"{name}; with the waits for batches": lambda: self.with_waits_ms,
        }


def step_cases(data: Data, seconds: float) -> Iterator[Case]:
    """Yield the step beside JPEG decoding, and beside a transform in Python."""
    pixels = torch.zeros(2000, 3, 64, 64, dtype=torch.uint8)
    transformed = RAMDataset.from_arrays(image=pixels).replace(transform={"image": in_python})
    jpeg = data.packed("presized", "parquet").replace(augment=OPS)
    for what, dataset in (("JPEG, crop, flip", jpeg), ("a transform in Python", transformed)):
        runs: dict[str, Run] = {"the batch is there": lambda: bare_steps(seconds)}
        for backend in ("subprocess", "thread"):
            beside = Beside(dataset, backend, 1, seconds)
            runs |= beside.runs(f"backend={backend!r}, 1 worker")
        beside = Beside(dataset, "subprocess", WORKERS, seconds)
        runs |= beside.runs(f"backend='subprocess', {WORKERS} workers, as many as cores")
        name = (
            f"a step of {TINY_OPERATIONS:,} tiny operations beside {what}, batch {LATENCY_BATCH}"
        )
        note = "goal: the second line below 1.05 of the first. Where workers fill every core, the step shares it"
        yield Case(name, "ms per step", runs, note)


# -- what batches come through ---------------------------------------------------------------------


def steady(dataset: Any, config: Config, seconds: float) -> Run:
    """Return samples/s between the first batch and the end, in an epoch that does not end; a child process is kept."""
    loader = make_loader(dataset, config, persistent_workers=True)
    together = round_size(dataset, config)

    def run() -> float:
        timed = time_loader(loader, config.batch_size, seconds=seconds, round_size=together)
        return timed.samples_per_s

    return run


def workloads(data: Data) -> dict[str, tuple[Any, int]]:
    """Return datasets and batch sizes."""
    return {
        "JPEG 256 px, crop, flip": (data.packed("presized", "parquet").replace(augment=OPS), 128),
        "raw 224 px": (data.packed("raw", "parquet"), 128),
        "raw 28 px": (data.packed("small", "parquet"), 1024),
    }


def backend_cases(data: Data, seconds: float) -> Iterator[Case]:
    """Yield threads beside the same threads in a child process, with a core left to the trainer and without."""
    for what, (dataset, batch) in workloads(data).items():
        for workers in (WORKERS - 1, WORKERS):
            runs = {
                f"backend={name!r}": steady(dataset, Config(workers, batch, name), seconds)
                for name in ("thread", "subprocess")
            }
            name = f"a child process: {what}, batch {batch:,}, num_workers={workers}"
            yield Case(name, "images/s", runs, "goal: within 10 % of the first line")


# -- checksums -------------------------------------------------------------------------------------


def check_cases(data: Data) -> Iterator[Case]:
    """Yield the first and the second epoch, with and without checksums."""
    for what, name, batch, is_cold in (
        ("raw 224 px, warm", "raw", 128, False),
        ("raw 28 px, warm", "small", 1024, False),
        ("JPEG 256 px, warm", "presized", 128, False),
        ("raw 224 px, cold", "raw", 128, True),
        ("JPEG 256 px, cold", "presized", 128, True),
    ):
        path = data.packed(name, "parquet").path
        settings = {"augment": OPS} if name == "presized" else {}

        def epoch(
            check: str, after: int, path: Path = path, batch: int = batch,
            is_cold: bool = is_cold, settings: dict[str, Any] = settings,
        ) -> float:  # fmt: skip
            if is_cold:
                gc.collect()  # what is mapped cannot be dropped
                for file in path.glob("shard-*"):
                    with file.open() as opened:
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            dataset = ShardDataset(path, check=check, **settings)
            loader = DataLoader(dataset, batch, shuffle=True, num_workers=WORKERS)
            for _ in range(after):
                loader_epoch(loader)
            return loader_epoch(loader)

        runs: dict[str, Run] = {
            "check='never', first epoch": functools.partial(epoch, "never", 0),
            "check='first', first epoch": functools.partial(epoch, "first", 0),
        }
        if not is_cold:
            runs |= {
                "check='never', second epoch": functools.partial(epoch, "never", 1),
                "check='first', second epoch": functools.partial(epoch, "first", 1),
                "check='always', second epoch": functools.partial(epoch, "always", 1),
            }
        warm = "second line above 0.9 where data is decoded or cold, and stated for warm raw rows"
        note = f"opening included; goal: the {warm}; the second epochs alike"
        yield Case(f"checksums: {what}", "images/s", runs, note)


# -- order and resume ------------------------------------------------------------------------------


def order_case() -> Case:
    """Return the rate of indices, as a loader asks for them."""
    some = 4_000_000

    def drawn() -> float:
        began = time.perf_counter()
        torch.randperm(10_000_000)
        return 10_000_000 / (time.perf_counter() - began)

    def batches(length: int) -> float:
        plan, seen = Plan(length, 256, start=length // 2), 0
        began = time.perf_counter()
        for batch in index_batches(Shuffled(length, 0), plan, epoch=0):
            seen += len(batch)
            if seen >= some:
                break
        return seen / (time.perf_counter() - began)

    def alone(length: int) -> float:
        chunks = [np.arange(first, first + (1 << 16)) for first in range(0, some, 1 << 16)]
        order, began = Shuffled(length, 0), time.perf_counter()
        for chunk in chunks:
            order.at(0, chunk)
        return len(chunks) * (1 << 16) / (time.perf_counter() - began)

    runs: dict[str, Run] = {"torch.randperm of 10^7, which is kept in memory": drawn}
    for power in (7, 9, 12):
        runs[f"keyed permutation of 10^{power}"] = functools.partial(alone, 10**power)
    runs["the same of 10^9, cut into batches of 256"] = functools.partial(batches, HUGE)
    return Case("the order, one thread", "indices/s", runs, "goal: 10 M/s; nothing is stored")


class NotCounted:
    """The batches of a loader of ours, from a batch sampler that it does not know: nothing is counted."""

    def __init__(self, length: int, batch: int) -> None:
        self.sampler, self.batch = EpochSampler(length, rank=0, world_size=1), batch

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler
        return index_batches(sampler.order, sampler.plan(self.batch), sampler.epoch)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch)


def counting_case(data: Data) -> Case:
    """Return the time per batch where little else is left to do: 16 rows of 8 bytes, inline.

    A collate function of one's own keeps batches from being made in groups, which those of a foreign sampler are not.
    """
    dataset = data.packed("small", "parquet").replace(fields=["label"])

    def per_batch(loader: DataLoader, is_saved: bool = False) -> float:
        began, num = time.perf_counter(), 0
        for _ in loader:
            num += 1
            if is_saved and num % 100 == 0:
                loader.state_dict()
        return (time.perf_counter() - began) / num * 1e6

    settings: dict[str, Any] = {"num_workers": 0, "collate_fn": lambda samples: samples.batch}
    counted = DataLoader(dataset, 16, shuffle=True, **settings)
    plain = DataLoader(dataset, batch_sampler=NotCounted(len(dataset), 16), **settings)
    runs = {
        "the same indices, not counted: it cannot be resumed": lambda: per_batch(plain),
        "resumable": lambda: per_batch(counted),
        "its state taken every 100 batches": lambda: per_batch(counted, True),
    }
    note = "goal: no cost that shows beside a batch of any size that is trained on (milliseconds)"
    return Case(
        "being resumable: batches of 16 rows of 8 bytes, inline", "us per batch", runs, note
    )


class Numbers(torch.utils.data.Dataset[int]):
    """A dataset of 10^9 samples that are their own numbers."""

    def __len__(self) -> int:
        return HUGE

    def __getitem__(self, i: int) -> int:
        return i


def resume_case() -> Case:
    """Return the time from a state to the first batch."""
    made = functools.partial(DataLoader, Numbers(), 256, shuffle=True, num_workers=0)

    def first(delivered: int) -> float:
        loader = made(backend="thread")
        state = loader.state_dict()
        state["sampler"] |= {"epoch": 3, "delivered": delivered}
        began = time.perf_counter()
        loader.load_state_dict(state)
        next(iter(loader))
        return (time.perf_counter() - began) * 1e3

    runs = {
        "at the beginning": lambda: first(0),
        "in the middle": lambda: first(HUGE // 2),
        "at the last batch but one": lambda: first(HUGE - 512),
    }
    return Case("resuming in an epoch of 10^9 samples, to the first batch", "ms", runs,
                "goal: milliseconds")  # fmt: skip


# -- measuring itself ------------------------------------------------------------------------------


def by_hand(loader: DataLoader, seconds: float) -> float:
    """The loop that anyone would write."""
    batches = iter(loader)
    for _ in range(WORKERS):
        next(batches)
    samples, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        samples += loader.batch_size or 1
    took = time.perf_counter() - began
    batches.close()
    return samples / took


def profiled(loader: DataLoader, seconds: float) -> float:
    """The same under the profiler."""
    profile = loaders.profile(loader, steps=1 << 20)
    profile.start()
    try:
        return by_hand(loader, seconds)
    finally:
        profile.stop()


def bench_cases(data: Data, seconds: float) -> Iterator[Case]:
    """Yield the bench and the profiler beside a loop by hand."""
    for what, (dataset, batch) in list(workloads(data).items())[:2]:
        config = Config(WORKERS, batch, "thread")
        loader = make_loader(dataset, config)

        def timed(loader: DataLoader = loader, batch: int = batch) -> float:
            return time_loader(loader, batch, seconds=seconds).samples_per_s

        runs: dict[str, Run] = {
            "a loop by hand": functools.partial(by_hand, loader, seconds),
            "the bench": timed,
            "the loop by hand, loaders.profile on": functools.partial(profiled, loader, seconds),
        }
        note = "goals: the bench within 5 % of the first line, the profiler within 2 %"
        yield Case(f"measuring: {what}, batch {batch}", "images/s", runs, note)


# -- memory ----------------------------------------------------------------------------------------


def memory_by_epoch(loader: DataLoader, epochs: int) -> list[int]:
    """Return the memory of all processes in the middle of each epoch, without mapped files."""
    found, middle = [], len(loader) // 2
    for _ in range(epochs):
        for step, _batch in enumerate(loader):
            if step == middle:
                gc.collect()
                found.append(own_memory(family()))
    return found


def memory_part(data: Data, epochs: int) -> tuple[dict[str, Any], str]:
    """Measure and tabulate each backend with some workers; return figures and a table."""
    raw = data.packed("raw", "parquet")
    dataset = raw.select(np.arange(256) % len(raw))
    lines = [
        f"### memory over {epochs} epochs of 256 raw images of 224 px, batch 16", "",
        "PSS of all processes without mapped files, in the middle of an epoch; medians of ten epochs. An epoch serves"
        " 38.5 MB. goal: flat. A step is a slot that was not needed before:"
        " there are at most two more than in flight.", "",
        f"| | epochs {SETTLED} to {SETTLED + 9}, MB | last ten, MB | growth per epoch, kB |",
        "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    told: dict[str, Any] = {}
    gc.collect()
    gc.freeze()  # what is here stays, and need not be gone through in each epoch
    for backend in ("thread", "subprocess", "process"):
        for workers in (0, 2, 4):
            if backend == "subprocess" and not workers:
                continue  # inline, as with threads
            with warnings.catch_warnings():  # more worker processes than cores, on purpose
                warnings.filterwarnings("ignore", "This DataLoader will create")
                loader = DataLoader(
                    dataset, 16, shuffle=True, num_workers=workers, backend=backend,
                    persistent_workers=workers > 0,
                )  # fmt: skip
                found = memory_by_epoch(loader, epochs)
            del loader
            gc.collect()
            name = f"backend={backend!r}, {workers} workers"
            told[name] = found
            early = float(np.median(found[SETTLED : SETTLED + 10]))
            late = float(np.median(found[-10:]))
            growth = (late - early) / (epochs - 10 - SETTLED) / 1e3
            lines.append(f"| {name} | {early / 1e6:,.1f} | {late / 1e6:,.1f} | {growth:+.1f} |")
    return told, "\n".join([*lines, ""])


# -- running ---------------------------------------------------------------------------------------


def cases(data: Data, seconds: float) -> Iterator[Case]:
    """Yield every case."""
    yield from step_cases(data, seconds)
    yield from backend_cases(data, seconds)
    yield from check_cases(data)
    yield order_case()
    yield counting_case(data)
    yield resume_case()
    yield from bench_cases(data, seconds)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, default=ROOT / "tests/data/photos", help="folder")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn, where it is free")
    parser.add_argument("--scale", type=float, default=0.5, help="share of the data sizes")
    parser.add_argument("--epochs", type=int, default=50, help="of memory, above 20")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    args = parser.parse_args()
    told = Told()
    with tempfile.TemporaryDirectory() as folder:
        data = Data(args.photos, Path(folder), args.scale)
        where = conditions(f"{len(data.photos)} photos") | {"load": os.getloadavg()[0]}
        for case in cases(data, args.seconds):
            if args.only in case.name:
                told.run(case, args.repeats)
        if args.only in "memory":
            found, table = memory_part(data, args.epochs)
            told.tables.append(table)
            told.cases.append({"case": "memory", "unit": "bytes", "results": found})
            print(table, flush=True)
    title = (
        "What exactness, checks and measuring cost: `python benchmarks/trust.py --photos FOLDER`"
    )
    write(args.out, "trust", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
