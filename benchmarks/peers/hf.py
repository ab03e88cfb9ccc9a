# /// script
# dependencies = ["datasets==5.2.0"]
# ///
"""Hugging Face datasets: an Arrow dataset on disk, mapped, through torch's DataLoader.

Settings: bytes in a `binary` column for pictures (decoded with OpenCV: its own `Image` feature decodes with PIL);
rows as fixed-size lists in the "arrow" format, whose buffers become arrays without a value being looked at (the
"torch" format is several times slower); a batch is asked for at once (`__getitems__`); workers kept between epochs.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import torch

from benchmarks.peers.protocol import Epoch, Job, from_records, output, quiet_worker, serve

if TYPE_CHECKING:
    from collections.abc import Iterator


def prepare(job: Job) -> None:
    """Write Arrow files."""

    def rows() -> Iterator[dict[str, Any]]:
        values = job.records() if job.kind == "jpeg" else (row.reshape(-1) for row in job.array())
        for i, value in enumerate(values):
            yield {"x": value, "id": i}

    if job.kind == "jpeg":
        column = datasets.Value("binary")
    else:
        dtype, shape = job.row
        column = datasets.List(datasets.Value(str(dtype)), length=int(np.prod(shape)))
    features = datasets.Features({"x": column, "id": datasets.Value("int64")})
    made = datasets.Dataset.from_generator(
        rows, features=features, cache_dir=f"{job.folder}/made", writer_batch_size=1000
    )
    made.save_to_disk(f"{job.folder}/arrow")
    shutil.rmtree(f"{job.folder}/made")


class Batches(torch.utils.data.Dataset[Any]):
    """A batch at a time."""

    def __init__(self, job: Job) -> None:
        self.job, self.rows = job, datasets.load_from_disk(f"{job.folder}/arrow")
        self.rows = self.rows.with_format("arrow")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> Any:
        table = self.rows[indices]
        if self.job.kind == "jpeg":
            return from_records(self.job, table["x"].to_pylist(), table["id"].to_pylist())
        _dtype, shape = self.job.row
        flat = table["x"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        rows = flat.reshape(-1, *shape)
        rows = rows if self.job.kind == "tokens" or rows.flags.writeable else rows.copy()
        return output(self.job.kind, rows), torch.tensor(indices)


def as_it_is(batch: Any) -> Any:
    """Collate what is a batch already."""
    return batch


def open_epochs(job: Job) -> Epoch:
    """Open a DataLoader."""
    loader = torch.utils.data.DataLoader(
        Batches(job),
        job.batch,
        shuffle=True,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=4,
        collate_fn=as_it_is,
        worker_init_fn=quiet_worker,
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    serve(prepare, open_epochs)
