"""Shuffled batches of table rows, beside `index_select`: `python benchmarks/tables.py [--rows 5000000]`.

Rows of 32 float32 and a label, packed from Parquet, in batches of 4,096. Every case runs its contenders in turns
(A B A B ...), in one process, data in the page cache, two workers; the table shows the median, the range, and the
ratio to the bare gather. A second case packs CSV, beside pandas reading it and the least that it takes. Writes,
with every repeat, `benchmarks/results/tables.json`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from page import write
from spine import HERE, WORKERS, Case, Run, Told, conditions

from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.data.columns import FixedColumn
from loaders.schema import Array, Features
from packdata.formats import parquet
from packdata.tables import pack_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loaders.schema import Field

COLUMNS, BATCH = 32, 4096
PART_ROWS = 250_000


def make_parquet(path: Path, rows: int) -> None:
    """Write a table of noise, part by part."""
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(COLUMNS)]
    types = pa.schema([*((name, pa.float32()) for name in names), ("label", pa.int64())])
    with pq.ParquetWriter(path, types) as writer:
        for first in range(0, rows, PART_ROWS):
            count = min(PART_ROWS, rows - first)
            values = rng.normal(size=(COLUMNS, count)).astype(np.float32)
            labels = rng.integers(0, 10, count)
            writer.write_table(pa.table([*map(pa.array, values), pa.array(labels)], types))


def rate(rows: int, batches: Iterable[Any]) -> float:
    """Go through an epoch and touch every batch; return rows per second."""
    began, seen = time.perf_counter(), 0
    for features, labels in batches:
        seen += len(features)
        assert len(labels) == len(features)
    assert seen == rows
    return rows / (time.perf_counter() - began)


def bare(features: torch.Tensor, labels: torch.Tensor, out: bool) -> Run:
    """Gather rows and labels with `index_select`, on this thread, into warm buffers or new ones."""
    buffers = torch.zeros(BATCH, COLUMNS), torch.zeros(BATCH, dtype=labels.dtype)

    def batches() -> Iterable[Any]:
        order = torch.randperm(len(features))
        for chosen in order.split(BATCH):
            if out and len(chosen) == BATCH:
                yield (
                    torch.index_select(features, 0, chosen, out=buffers[0]),
                    torch.index_select(labels, 0, chosen, out=buffers[1]),
                )
            else:
                yield features.index_select(0, chosen), labels.index_select(0, chosen)

    return lambda: one_thread(lambda: rate(len(features), batches()))


def one_thread(run: Run) -> float:
    """Run with one torch thread: what one worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run()
    finally:
        torch.set_num_threads(before)


def in_torch(features: torch.Tensor, labels: torch.Tensor, share: float) -> Run:
    """torch's own `DataLoader(TensorDataset)`, over a share of the rows: it is slow."""
    count = max(BATCH, int(len(features) * share))
    dataset = torch.utils.data.TensorDataset(features[:count], labels[:count])
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS
    )
    return lambda: rate(count, loader)


def gather_case(folder: Path, rows: int) -> Case:
    """Serve shuffled rows with labels."""
    make_parquet(folder / "t.parquet", rows)
    options: dict[str, Any] = {"target": ("label",), "categorical": ("label",)}
    pack_tables(folder / "t.parquet", folder / "packed", **options)
    (folder / "t.parquet").unlink()
    shards, ram = ShardDataset(folder / "packed"), RAMDataset(folder / "packed")
    features = torch.from_numpy(np.array(shards.column("features")))
    labels = torch.from_numpy(np.array(shards.column("label")))

    def ours(dataset: Any, workers: int) -> Callable[[], float]:
        loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, backend="thread")
        return lambda: rate(rows, loader)

    runs = {
        "bare index_select, one thread, warm buffers": bare(features, labels, out=True),
        "bare index_select, one thread": bare(features, labels, out=False),
        f"loaders, ShardDataset, {WORKERS} workers": ours(shards, WORKERS),
        "loaders, ShardDataset, 1 worker": ours(shards, 1),
        "loaders, ShardDataset, inline": ours(shards, 0),
        f"loaders, RAMDataset, {WORKERS} workers": ours(ram, WORKERS),
        "torch DataLoader(TensorDataset)": in_torch(features, labels, 0.1),
    }
    note = f"{rows:,} rows of {COLUMNS} float32 and an int64 label; budget: 0.7 of the first line"
    return Case(f"tables, shuffled, batch {BATCH:,}", "rows/s", runs, note)


def packing_case(folder: Path, rows: int) -> Case:
    """Pack a CSV, beside pandas reading it into memory; both with all cores."""
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=rows).round(5) for i in range(COLUMNS - 4)}
    table |= {
        f"c{i}": np.array([f"name {k}" for k in range(200)])[rng.integers(0, 200, rows)]
        for i in range(4)
    }
    source = folder / "t.csv"
    pa.csv.write_csv(pa.table(table), source)
    megabytes = source.stat().st_size / 1e6

    def packed() -> float:
        shutil.rmtree(folder / "packed-csv", ignore_errors=True)
        began = time.perf_counter()
        pack_tables(source, folder / "packed-csv")
        return megabytes / (time.perf_counter() - began)

    def read() -> float:
        began = time.perf_counter()
        pd.read_csv(source, engine="pyarrow")
        return megabytes / (time.perf_counter() - began)

    numbers = [name for name in table if name.startswith("x")]
    words = [name for name in table if name.startswith("c")]
    types = {name: pa.float64() for name in numbers}
    types |= dict.fromkeys(words, pa.dictionary(pa.int32(), pa.string()))

    def write(number: int, rows: pa.Table) -> None:
        values = np.stack([rows[name].to_numpy() for name in numbers]).astype(np.float32)
        codes = [rows[name].combine_chunks().indices.to_numpy() for name in words]
        found = np.ascontiguousarray(values.T), np.stack(codes, 1).astype(np.uint8)
        columns = {
            name: FixedColumn(each.view(np.uint8).reshape(len(rows), -1))
            for name, each in zip(("features", "categories"), found, strict=True)
        }
        fields: dict[str, Field] = {
            "features": Features(columns=tuple(numbers)),
            "categories": Array(dtype="uint8", dims=(len(words),)),
        }
        path = folder / f"{number}.parquet"
        parquet.write(path, columns, b"{}", fields)
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def least() -> float:
        began = time.perf_counter()
        converting = pa.csv.ConvertOptions(column_types=types)
        parsed = pa.csv.read_csv(source, convert_options=converting).unify_dictionaries()
        half = -(-rows // 2)
        with ThreadPoolExecutor(WORKERS) as threads:
            list(threads.map(write, range(2), (parsed[:half], parsed[half:])))
        return megabytes / (time.perf_counter() - began)

    runs = {
        "pandas.read_csv(engine='pyarrow')": read,
        "packdata tables": packed,
        "parsed by Arrow, types known; rows made, two shards written, synced": least,
    }
    note = (
        f"{rows:,} rows, {megabytes:,.0f} MB; packing parses it once, writes, reads back, fsyncs"
    )
    return Case("packing CSV", "MB/s", runs, note)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--csv-rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    args = parser.parse_args()
    told = Told()
    for make, rows in ((gather_case, args.rows), (packing_case, args.csv_rows)):
        with tempfile.TemporaryDirectory() as folder:
            told.run(make(Path(folder), rows), args.repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    where = conditions("none") | {"rows": args.rows, "batch": BATCH, "peak_rss_mb": round(peak)}
    title = "Rows of tables: `python benchmarks/tables.py`"
    write(args.out, "tables", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
