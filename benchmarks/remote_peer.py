"""One library of `remote.py` that reads rows from a store, in a process of its own.

`prepare NAME ROWS.npy FOLDER` writes the rows in its format; `run NAME ENDPOINT CACHE` goes through `s3://bucket/NAME`
twice, from an empty cache, and prints the seconds of each epoch and the sum of all bytes. Batches are uint8 (N, bytes).

Streaming 0.13.0 has one worker: with two, both fetched the same shard at times; of eight runs three served other bytes,
and three failed.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BATCH, WORKERS, CHUNK_BYTES = 32, 2, 4 << 20
KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "something"}
KEYS["AWS_REGION"] = KEYS["AWS_DEFAULT_REGION"] = "us-east-1"


def litdata_row(path: str, i: int) -> bytes:
    return np.load(path, mmap_mode="r")[i].tobytes()


def tensor_of(samples: list[Any]) -> torch.Tensor:
    rows = [np.frombuffer(s["x"] if isinstance(s, dict) else s, np.uint8) for s in samples]
    return torch.from_numpy(np.stack(rows))


def prepare_litdata(path: str, folder: str) -> None:
    import litdata

    num = len(np.load(path, mmap_mode="r"))
    row = functools.partial(litdata_row, path)
    litdata.optimize(row, list(range(num)), folder, num_workers=1, chunk_bytes=CHUNK_BYTES)


def open_litdata(endpoint: str, cache: str) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it reads chunks over https alone
    names = {n.lower(): v for n, v in KEYS.items() if "KEY" in n}
    options = {"endpoint_url": endpoint, "region_name": KEYS["AWS_REGION"], **names}
    dataset = StreamingDataset(
        "s3://bucket/litdata", cache_dir=cache, shuffle=True, storage_options=options
    )
    return StreamingDataLoader(  # type: ignore[no-any-return]
        dataset,
        batch_size=BATCH,
        num_workers=WORKERS,
        collate_fn=tensor_of,
        persistent_workers=True,
    )


def prepare_streaming(path: str, folder: str) -> None:
    from benchmarks.peers.streaming import MDSWriter  # which stands in for what it imports in vain

    with MDSWriter(out=folder, columns={"x": "bytes"}, size_limit=CHUNK_BYTES) as writer:
        for row in np.load(path, mmap_mode="r"):
            writer.write({"x": row.tobytes()})


def open_streaming(endpoint: str, cache: str) -> Iterable[Any]:
    from benchmarks.peers.streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = endpoint
    dataset = StreamingDataset(
        remote="s3://bucket/streaming",
        local=cache,
        shuffle=True,
        batch_size=BATCH,
        num_canonical_nodes=1,
    )
    return torch.utils.data.DataLoader(
        dataset, BATCH, num_workers=1, collate_fn=tensor_of, persistent_workers=True
    )


def open_loaders(endpoint: str, cache: str) -> Iterable[Any]:
    from loaders import DataLoader, ShardDataset

    options = {"endpoint": endpoint, "skip_signature": True}
    dataset = ShardDataset("s3://bucket/packed", cache=cache, storage=options)
    return DataLoader(dataset, BATCH, shuffle="lanes", num_workers=WORKERS)


PREPARE: dict[str, Callable[[str, str], None]] = {
    "litdata": prepare_litdata,
    "streaming": prepare_streaming,
}
OPEN: dict[str, Callable[[str, str], Iterable[Any]]] = {
    "litdata": open_litdata,
    "streaming": open_streaming,
    "loaders": open_loaders,
}


def run(name: str, endpoint: str, cache: str) -> None:
    """Go through the data twice."""
    began, seconds, total, num_rows = time.perf_counter(), [], 0, 0
    loader = OPEN[name](endpoint, cache)
    for _ in range(2):
        for batch in loader:
            rows = batch if isinstance(batch, torch.Tensor) else batch.data
            total, num_rows = total + int(rows.sum()), num_rows + len(rows)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    print(json.dumps({"seconds": seconds, "rows": num_rows, "sum": total}))


if __name__ == "__main__":
    os.environ.update(KEYS)
    what, name, *rest = sys.argv[1:]
    (PREPARE[name] if what == "prepare" else functools.partial(run, name))(*rest)
