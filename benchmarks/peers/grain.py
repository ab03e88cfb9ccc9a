# /// script
# dependencies = ["grain==0.2.18", "array_record==0.8.6"]
# ///
"""Grain: ArrayRecord files, read by threads.

Settings: `group_size:1`, which ArrayRecord's documentation asks for where samples are read in random order; the
numbers are shuffled and batched, and a batch's records are read in one call (`__getitems__`): one by one takes twenty
times as long; all of it before `to_iter_dataset`, so that a thread makes whole batches;
`ReadOptions(num_threads=workers)`, eight batches ahead.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any

import grain
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.peers.protocol import Epoch, Job, from_records, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


def prepare(job: Job) -> None:
    """Write one ArrayRecord file."""
    writer = ArrayRecordWriter(f"{job.folder}/all.array_record", "group_size:1,uncompressed")
    for i, record in enumerate(job.records()):
        writer.write(struct.pack("<q", i) + record)
    writer.close()


def open_epochs(job: Job) -> Epoch:
    """Build the dataset of an epoch."""
    source = grain.sources.ArrayRecordDataSource(f"{job.folder}/all.array_record")
    seeds = itertools.count(1)

    def batch_of(numbers: np.ndarray) -> Any:
        records = source.__getitems__(numbers.tolist())
        ids = [struct.unpack_from("<q", record)[0] for record in records]
        return from_records(job, [memoryview(record)[8:] for record in records], ids)

    def epoch() -> Iterator[Any]:
        dataset = grain.MapDataset.range(len(source)).shuffle(seed=next(seeds))
        dataset = dataset.batch(job.batch).map(batch_of)
        options = grain.ReadOptions(num_threads=job.workers, prefetch_buffer_size=8)
        return iter(dataset.to_iter_dataset(options))

    return epoch


if __name__ == "__main__":
    serve(prepare, open_epochs)
