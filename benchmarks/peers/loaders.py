# /// script
# dependencies = []
# ///
"""This project: `packdata`, `ShardDataset` (`loaders:ram`: `RAMDataset`), `DataLoader` with the defaults and two
workers.

JPEG files are kept byte for byte. `loaders:lmdb` packs into LMDB instead of Parquet; `loaders:segments` divides JPEGs
into segments of the same pixels, as `packdata images --segments` does (by `jpegtran`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packdata
from benchmarks.peers.protocol import SIDE, WINDOW, Epoch, Job, serve
from loaders import DataLoader, RAMDataset, ShardDataset, TokenWindows, augment
from loaders.schema import Array, Image, Label
from packdata.images.stored import divide_without_loss
from packdata.tokens.plan import TokenOptions, pack_tokens


def prepare(job: Job) -> None:
    """Pack."""
    path, kind = f"{job.folder}/packed", "lmdb" if job.variant == "lmdb" else "parquet"
    if job.kind == "tokens":
        pack_tokens(job.source, path, TokenOptions(vocab_size=50_257, eod=50_256), format=kind)
        return
    if job.kind == "jpeg":
        field: Any = Image()
    elif job.kind == "raw":
        field = Image(size=job.row[1][:2], channels=job.row[1][2], codec="raw")
    else:
        field = Array(dtype="float32", dims=job.row[1])
    values: Any = job.files if job.kind == "jpeg" else job.array()
    if job.variant == "segments":
        files = (Path(file).read_bytes() for file in values)
        values = (divide_without_loss(file) or file for file in files)
    rows = ({"x": value, "label": i} for i, value in enumerate(values))
    packdata.pack(rows, path, {"x": field, "label": Label()}, format=kind)


def open_epochs(job: Job) -> Epoch:
    """Open a DataLoader."""
    cls: Any = RAMDataset if job.variant == "ram" else ShardDataset
    dataset = cls(f"{job.folder}/packed")
    if job.kind == "tokens":
        windows = TokenWindows(dataset, WINDOW)
        loader = DataLoader(windows, job.batch, shuffle=True, num_workers=job.workers)
        return lambda: ((batch, None) for batch in loader)
    if job.kind == "jpeg":
        crop = [augment.RandomResizedCrop(SIDE), augment.RandomHorizontalFlip()]
        whole = [augment.Resize((SIDE, SIDE))]
        dataset = dataset.replace(augment=whole if job.whole else crop)
    loader = DataLoader(dataset, job.batch, shuffle=True, num_workers=job.workers)
    return lambda: iter(loader)


if __name__ == "__main__":
    serve(prepare, open_epochs)
