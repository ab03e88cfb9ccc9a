# /// script
# dependencies = ["spdl==0.8.0"]
# ///
"""SPDL: its pipeline over threads, a job for each batch.

Settings: `PipelineBuilder`, the source yields the shuffled numbers of a batch, one stage makes the batch in place
(concurrency = workers; OpenCV, or a gather out of the mapped array); four batches are kept ready. One pipeline
serves all epochs, one after the other: to build one for each costs a fast source much of its time. SPDL's own
decoder needs FFmpeg's libraries on the system, and was slower; OpenCV needs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.protocol import Epoch, Job, from_records, output, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

AHEAD = 4  # batches


def prepare(job: Job) -> None:
    """Nothing: the source is read as it is."""


def open_epochs(job: Job) -> Epoch:
    """Build the pipeline."""
    array = None if job.kind == "jpeg" else job.array()
    files = job.files

    def batch_of(indices: torch.Tensor) -> Any:
        if array is None:
            numbers = indices.tolist()
            return from_records(job, [Path(files[i]).read_bytes() for i in numbers], numbers)
        return gather(indices), indices

    if array is not None:
        flat = torch.from_numpy(np.asarray(array)) if job.kind != "tokens" else None

    def gather(indices: torch.Tensor) -> Any:
        if flat is None:
            return output(job.kind, array[indices.numpy()])
        return output(job.kind, flat.index_select(0, indices))

    def orders() -> Iterator[torch.Tensor]:
        while True:
            yield from torch.randperm(job.num_samples).split(job.batch)

    builder = PipelineBuilder().add_source(orders())
    builder.pipe(batch_of, concurrency=job.workers, output_order="input").add_sink(AHEAD)
    pipeline = builder.build(num_threads=job.workers)
    pipeline.start()
    batches = iter(pipeline)
    steps, taken = -(-job.num_samples // job.batch), 0

    def epoch() -> Iterator[Any]:
        nonlocal taken
        taken %= steps
        while taken < steps:
            taken += 1
            yield next(batches)

    return epoch


if __name__ == "__main__":
    serve(prepare, open_epochs, num_kept=AHEAD + 2)  # one in each worker's hands
