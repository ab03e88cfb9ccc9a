# /// script
# dependencies = ["litdata==0.2.76"]
# ///
"""LitData: optimized chunks, local, through its StreamingDataLoader.

Settings: `optimize` into chunks of 32 MB; `StreamingDataset(shuffle=True, batch_decode=False)`: its default,
"auto", decodes the neighbours of a sample that shuffling then leaves unused; tokens through `TokensLoader`, its
loader for text, over windows written one behind the other; workers kept between epochs.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import litdata
import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

from benchmarks.peers.protocol import (
    WINDOW,
    Epoch,
    Job,
    from_records,
    output,
    serve,
    worker_options,
)


def record(job: Job, i: int) -> Any:
    """Return what is stored of a sample."""
    if job.kind == "tokens":
        return torch.from_numpy(job.array()[i].copy())
    if job.kind == "jpeg":
        with open(job.files[i], "rb") as file:
            return struct.pack("<q", i) + file.read()
    return struct.pack("<q", i) + job.array()[i].tobytes()


def prepare(job: Job) -> None:
    """Write chunks."""
    tokens = job.kind == "tokens"
    size = {"chunk_size": 4096 * (WINDOW + 1)} if tokens else {"chunk_bytes": 32 << 20}
    litdata.optimize(
        functools.partial(record, job),
        list(range(job.num_samples)),
        f"{job.folder}/chunks",
        num_workers=1,
        item_loader=TokensLoader() if tokens else None,
        **size,
    )


def collate(job: Job, samples: list[Any]) -> Any:
    """Make a batch."""
    if job.kind == "tokens":
        return output("tokens", torch.stack(samples).numpy()), None
    ids = [struct.unpack_from("<q", sample)[0] for sample in samples]
    return from_records(job, [memoryview(sample)[8:] for sample in samples], ids)


def open_epochs(job: Job) -> Epoch:
    """Open a StreamingDataset and a StreamingDataLoader."""
    tokens = job.kind == "tokens"
    dataset = StreamingDataset(
        f"{job.folder}/chunks",
        shuffle=True,
        item_loader=TokensLoader(block_size=WINDOW + 1) if tokens else None,
        **({} if tokens else {"batch_decode": False}),
    )
    loader = StreamingDataLoader(
        dataset,
        batch_size=job.batch,
        collate_fn=functools.partial(collate, job),
        **worker_options(job),
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    serve(prepare, open_epochs)
