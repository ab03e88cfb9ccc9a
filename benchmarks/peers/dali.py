# /// script
# dependencies = ["nvidia-dali-cuda120==2.4.0"]
# ///
"""NVIDIA DALI on the CPU (`device_id=None`).

Settings: `num_threads` = workers; JPEG through `readers.file` (all files in the shuffle buffer) and
`decoders.image_random_crop`, which decodes what the crop needs, then `resize` (linear, no antialiasing, as OpenCV
does) and `flip`; arrays through a batched `external_source` that gathers out of the mapped array: DALI has no
reader for rows of one large array. `prefetch_queue_depth` 3. Outputs become torch tensors by `DALIGenericIterator`,
which copies.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from benchmarks.peers.protocol import SIDE, Epoch, Job, output, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

AHEAD = 3  # batches


def prepare(job: Job) -> None:
    """Nothing: the source is read as it is."""


def pictures(job: Job) -> tuple[Any, Any]:
    """Read, decode, crop, resize and flip."""
    encoded, ids = fn.readers.file(
        files=job.files,
        labels=list(range(job.num_samples)),
        random_shuffle=True,
        initial_fill=job.num_samples,
        name="reader",
    )
    if job.whole:
        images, flip = fn.decoders.image(encoded, output_type=types.RGB), 0
    else:
        images = fn.decoders.image_random_crop(
            encoded, output_type=types.RGB, random_area=[0.08, 1]
        )
        flip = fn.random.coin_flip()
    images = fn.resize(images, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=False)
    return fn.flip(images, horizontal=flip), ids


def gathered(job: Job) -> tuple[Any, Any]:
    """Gather a batch at a time, in an order of its own for each epoch."""
    array, steps = job.array(), -(-job.num_samples // job.batch)
    orders = (
        np.random.default_rng(seed).permutation(job.num_samples) for seed in itertools.count()
    )

    def batches() -> Iterator[Any]:
        for order in orders:
            for step in range(steps):
                chosen = order[step * job.batch : (step + 1) * job.batch]
                rows = array[chosen]
                yield rows.astype(np.int64) if job.kind == "tokens" else rows, chosen

    return tuple(fn.external_source(source=batches(), num_outputs=2, batch=True))


def open_epochs(job: Job) -> Epoch:
    """Build the pipeline; an iterator restarts it."""

    @pipeline_def(
        batch_size=job.batch, num_threads=job.workers, device_id=None, prefetch_queue_depth=AHEAD
    )
    def pipeline() -> tuple[Any, Any]:
        return pictures(job) if job.kind == "jpeg" else gathered(job)

    built = pipeline()
    built.build()
    sizes = {"reader_name": "reader"} if job.kind == "jpeg" else {"size": -1}
    batches = DALIGenericIterator(
        [built], ["x", "id"], last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=False, **sizes
    )
    steps = -(-job.num_samples // job.batch)
    taken = 0

    def epoch() -> Iterator[Any]:
        nonlocal taken
        if taken == steps:
            if job.kind == "jpeg":
                batches.reset()
            taken = 0
        while taken < steps:
            taken += 1
            (found,) = next(batches)
            ids = found["id"].reshape(-1).to(torch.int64)
            yield as_output(job, found["x"]), ids

    return epoch


def as_output(job: Job, rows: torch.Tensor) -> Any:
    """Return what a trainer gets."""
    if job.kind == "tokens":
        return rows[:, :-1], rows[:, 1:]
    return output(job.kind, rows)


if __name__ == "__main__":
    serve(prepare, open_epochs, num_kept=AHEAD)
