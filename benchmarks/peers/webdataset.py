# /// script
# dependencies = ["webdataset==1.0.2"]
# ///
"""WebDataset: tar shards, a quarter of an epoch in each worker's shuffle buffer.

Settings: shards enough for all workers (four each), shuffled; a record is one tar member of a number and bytes, so
that no second member has to be found and no text parsed; batches are made in the workers (`.batched`) and handed
over whole (`WebLoader(batch_size=None)`), as its documentation recommends; workers kept between epochs. The order
is a shuffle of shards and of a buffer, not of all samples.
"""

from __future__ import annotations

import struct
from typing import Any

import webdataset

from benchmarks.peers.protocol import Epoch, Job, from_records, serve, worker_options


def prepare(job: Job) -> None:
    """Write tar files."""
    per_shard = -(-job.num_samples // (4 * job.workers))
    with webdataset.ShardWriter(f"{job.folder}/%06d.tar", maxcount=per_shard, verbose=0) as sink:
        for i, record in enumerate(job.records()):
            sink.write({"__key__": f"{i:08}", "bin": struct.pack("<q", i) + record})


def open_epochs(job: Job) -> Epoch:
    """Open a WebLoader."""
    shards = -(-job.num_samples // -(-job.num_samples // (4 * job.workers)))

    def batch_of(samples: list[dict[str, Any]]) -> Any:
        records = [sample["bin"] for sample in samples]
        return from_records(
            job, [r[8:] for r in records], [struct.unpack_from("<q", r)[0] for r in records]
        )

    urls = f"{job.folder}/{{000000..{shards - 1:06}}}.tar"
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=shards)
        .shuffle(max(job.batch, job.num_samples // (4 * job.workers)))
        .batched(job.batch, collation_fn=batch_of)
    )
    loader = webdataset.WebLoader(
        dataset,
        batch_size=None,
        **worker_options(job),
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    serve(prepare, open_epochs)
