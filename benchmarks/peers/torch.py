# /// script
# dependencies = []
# ///
"""torch's DataLoader.

Settings: worker processes kept between epochs (`persistent_workers`), `prefetch_factor` 4; JPEG files are read and
decoded one by one with OpenCV (`torch:pil`: with PIL, whose `resize(box=...)` crops and whose `draft` mode is not
used: it would change the pixels). Rows of memory-mapped arrays are gathered a batch at a time by `__getitems__`,
which the DataLoader calls where a Dataset has it; `torch:rows` is the Dataset that most people write, a row at a
time and the default collate.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.protocol import (
    SIDE,
    Batch,
    Epoch,
    Job,
    as_it_is,
    crop_box,
    decode,
    output,
    serve,
    worker_options,
)


class Files(torch.utils.data.Dataset[Any]):
    """JPEG files, decoded one by one."""

    def __init__(self, job: Job) -> None:
        self.files, self.whole = job.files, job.whole
        self.decode = self.with_pil if job.variant == "pil" else self.with_cv2

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.decode(self.files[i])).permute(2, 0, 1), i

    def with_cv2(self, file: str) -> np.ndarray:
        return decode(Path(file).read_bytes(), self.whole)

    def with_pil(self, file: str) -> np.ndarray:
        import PIL.Image

        image = PIL.Image.open(file).convert("RGB")
        y, x, h, w = (
            (0, 0, image.height, image.width)
            if self.whole
            else crop_box(image.height, image.width)
        )
        box = (x, y, x + w, y + h)
        image = image.resize((SIDE, SIDE), PIL.Image.Resampling.BILINEAR, box)
        if not self.whole and random.random() < 0.5:
            image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)


class Rows(torch.utils.data.Dataset[Any]):
    """A memory-mapped array, a row at a time."""

    def __init__(self, job: Job) -> None:
        self.kind, self.rows = job.kind, job.array()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        inputs = output(self.kind, self.rows[i][None].copy())
        return tuple(x[0] for x in inputs) if self.kind == "tokens" else inputs[0], i


class Batches(Rows):
    """The same, a batch at a time."""

    def __getitems__(self, indices: list[int]) -> Batch:
        return output(self.kind, self.rows[indices]), torch.tensor(indices)


def open_epochs(job: Job) -> Epoch:
    """Open a DataLoader."""
    dataset = Files(job) if job.kind == "jpeg" else Rows(job)
    options: dict[str, Any] = {}
    if job.kind != "jpeg" and job.variant != "rows":
        dataset, options = Batches(job), {"collate_fn": as_it_is}
    loader = torch.utils.data.DataLoader(
        dataset,
        job.batch,
        shuffle=True,
        **worker_options(job),
        **options,
    )
    return lambda: iter(loader)


def prepare(job: Job) -> None:
    """Nothing: the source is read as it is."""


if __name__ == "__main__":
    serve(prepare, open_epochs)
