"""Memory of some processes that hold one dataset: `python benchmarks/shared.py [--processes 4] [--megabytes 512]`.

Each process opens the same raw images, reads an epoch in batches of 128, and stays while all look at their
proportional set size (PSS: memory that is shared counts in equal parts). A plain `RAMDataset`, one that is shared,
and a `ShardDataset`, whose memory is the page cache. Also: seconds until a process had the dataset, batches per
second with all processes reading at once. Writes `benchmarks/results/shared.json`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import write
from spine import HERE, conditions

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.schema import Image, Label

SIDE, BATCH = 224, 128
CONTENDERS = {
    "RAMDataset": (RAMDataset, {"progress": False}),
    "RAMDataset, shared": (RAMDataset, {"progress": False, "shared": True}),
    "ShardDataset": (ShardDataset, {}),
}


def pack(folder: Path, megabytes: int) -> Path:
    """Pack images of noise, of so many megabytes together."""
    rng, count = np.random.default_rng(0), megabytes * 1_000_000 // (SIDE * SIDE * 3)
    fields = {"image": Image(size=(SIDE, SIDE), codec="raw"), "label": Label()}
    rows = (
        {"image": rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), "label": i}
        for i in range(count)
    )
    packdata.pack(rows, folder / "packed", fields, format="parquet")
    return folder / "packed"


def pss_bytes() -> dict[str, int]:
    """Return this process's PSS by kind: Anon, File, Shmem."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    found = {words[0][:-1]: int(words[1]) << 10 for words in lines if words[0].startswith("Pss_")}
    return {name[4:]: found[name] for name in ("Pss_Anon", "Pss_File", "Pss_Shmem")}


def hold(name: str, path: Path, start: Any, read: Any, done: Any, results: Any) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    cls, settings = CONTENDERS[name]
    start.wait()
    began = time.perf_counter()
    dataset = cls(path, **settings)
    opened = time.perf_counter() - began
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=1)
    read.wait()
    began = time.perf_counter()
    num_batches = sum(1 for _ in loader)
    batches_per_s = num_batches / (time.perf_counter() - began)
    read.wait()  # until all have touched everything
    results.put({"opened_s": opened, "batches_per_s": batches_per_s, "pss_bytes": pss_bytes()})
    done.wait()


def run(name: str, path: Path, num_processes: int) -> list[dict[str, Any]]:
    """Let some processes hold the dataset at once; return what each saw."""
    context = multiprocessing.get_context("spawn")
    start, read, done = (
        context.Barrier(n) for n in (num_processes, num_processes, num_processes + 1)
    )
    results: Any = context.Queue()
    arguments = (name, path, start, read, done, results)
    processes = [context.Process(target=hold, args=arguments) for _ in range(num_processes)]
    for process in processes:
        process.start()
    seen = [results.get(timeout=600) for _ in processes]
    done.wait()
    for process in processes:
        process.join()
    return seen


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=512, help="of the dataset")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    args = parser.parse_args()
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pack(Path(folder), args.megabytes)
        print(
            f"{args.processes} processes, one dataset of {args.megabytes} MB; PSS of all in MB\n"
        )
        lines = [
            "| PSS in MB | private | files | shared memory | opened after, s | batches/s, all |"
        ]
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
        print("\n".join(lines))
        for name in CONTENDERS:
            seen = cases[name] = run(name, path, args.processes)
            sums = (sum(s["pss_bytes"][k] for s in seen) / 1e6 for k in ("Anon", "File", "Shmem"))
            opened = max(s["opened_s"] for s in seen)
            rate = sum(s["batches_per_s"] for s in seen)
            memory = " | ".join(f"{each:,.0f}" for each in sums)
            lines.append(f"| {name} | {memory} | {opened:.2f} | {rate:,.0f} |")
            print(lines[-1], flush=True)
    where = conditions("none") | {"processes": args.processes, "megabytes": args.megabytes}
    title = "Memory of processes that hold one dataset: `python benchmarks/shared.py`"
    told = {"conditions": where, "cases": cases}
    write(args.out, "shared", title, told, ["\n".join([*lines, ""])])


if __name__ == "__main__":
    main()
