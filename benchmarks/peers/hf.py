# /// script
# dependencies = ["datasets==5.2.0"]
# ///
"""Hugging Face datasets: an Arrow dataset on disk, mapped, through torch's DataLoader.

Settings: bytes in a `binary` column for pictures (decoded with OpenCV: its own `Image` feature decodes with PIL);
rows as fixed-size lists in the "arrow" format, whose buffers become arrays without a value being looked at (the
"torch" format is several times slower); a batch is asked for at once (`__getitems__`); workers kept between epochs.
"""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch

from benchmarks.peers.protocol import (
    Epoch,
    Job,
    as_it_is,
    from_records,
    output,
    serve,
    worker_options,
)


def prepare(job: Job) -> None:
    """Write Arrow files, from one Arrow table: `from_generator` would make rows value by value."""
    if job.kind == "jpeg":
        values = pa.array(list(job.records()))
    else:
        flat = pa.array(np.ascontiguousarray(job.array()).reshape(-1))
        values = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(job.row[1])))
    table = pa.table({"x": values, "id": np.arange(job.num_samples)})
    made = datasets.Dataset(datasets.table.InMemoryTable(table))
    made.save_to_disk(f"{job.folder}/arrow")


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


def open_epochs(job: Job) -> Epoch:
    """Open a DataLoader."""
    loader = torch.utils.data.DataLoader(
        Batches(job),
        job.batch,
        shuffle=True,
        collate_fn=as_it_is,
        **worker_options(job),
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    serve(prepare, open_epochs)
