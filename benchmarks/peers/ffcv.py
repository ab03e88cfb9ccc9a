# /// script
# dependencies = ["ffcv==1.0.2"]
# [tool.compare]
# system = ["libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++"]
# ///
"""FFCV: a .beton file, compiled pipelines.

Settings: `OrderOption.RANDOM`, `os_cache=True` (the data fits into memory), `num_workers` = workers,
`batches_ahead` 3, its default; `RandomResizedCropRGBImageDecoder` and `RandomHorizontalFlip`; other kinds as
`NDArrayField`, uint16 as bytes. The JPEG bytes are stored as they are (its own writer would encode the pictures
anew: see `keep_jpeg`). It decodes with libjpeg-turbo's fast DCT and resizes with INTER_AREA. A batch is overwritten
when its ring of buffers comes round. The time to the first batch contains compiling.

It is built from source, with Debian's libopencv-dev, libturbojpeg0-dev and pkg-config. Without root: download them
and what they need (`apt-get -d -o Dir::Cache::archives=FOLDER install ...`) and `dpkg -x` each into
`CACHE/system/root`, CACHE being what `compare.py --cache` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import (
    IntDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
)
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter

from benchmarks.peers.protocol import SIDE, Epoch, Job, output, serve

if TYPE_CHECKING:
    from collections.abc import Iterator


def keep_jpeg(destination: Any, record: bytes, malloc: Any) -> None:
    """Store JPEG bytes as they came: what `RGBImageField.encode` does, without encoding."""
    data = np.frombuffer(record, np.uint8)
    destination["mode"] = IMAGE_MODES["jpg"]
    destination["height"], destination["width"] = cv2.imdecode(data, cv2.IMREAD_COLOR).shape[:2]
    destination["data_ptr"], storage = malloc(data.nbytes)
    storage[:] = data


class Source:
    """Samples by number, for the writer's processes."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return self.job.num_samples

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if self.job.kind == "jpeg":
            with open(self.job.files[i], "rb") as file:
                return file.read(), i
        row = np.ascontiguousarray(self.job.array()[i])
        return row.view(np.uint8) if self.job.kind == "tokens" else row, i


def prepare(job: Job) -> None:
    """Write a .beton file."""
    if job.kind == "jpeg":
        field: Any = RGBImageField(write_mode="jpg")
        field.encode = keep_jpeg
    else:
        dtype, shape = job.row
        tokens = job.kind == "tokens"
        field = (
            NDArrayField(np.dtype("u1"), (shape[0] * 2,)) if tokens else NDArrayField(dtype, shape)
        )
    fields = {"x": field, "id": IntField()}
    DatasetWriter(f"{job.folder}/all.beton", fields, num_workers=job.workers).from_indexed_dataset(
        Source(job), chunksize=100
    )


def open_epochs(job: Job) -> Epoch:
    """Open a Loader."""
    if job.kind == "jpeg":
        size = (SIDE, SIDE)
        if job.whole:
            steps: list[Any] = [
                RandomResizedCropRGBImageDecoder(size, scale=(1, 1), ratio=(1, 1)),
                ToTensor(),
                ToTorchImage(),
            ]
        else:
            decoder = RandomResizedCropRGBImageDecoder(size)
            steps = [decoder, RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    else:
        steps = [NDArrayDecoder(), ToTensor()]
    loader = Loader(
        f"{job.folder}/all.beton",
        batch_size=job.batch,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"x": steps, "id": [IntDecoder(), ToTensor(), Squeeze(1)]},
    )

    def epoch() -> Iterator[Any]:
        for rows, ids in loader:
            if job.kind == "tokens":
                yield output("tokens", rows.numpy().view(np.uint16)), ids.to(torch.int64)
            else:
                yield rows if job.kind == "jpeg" else output(job.kind, rows), ids.to(torch.int64)

    return epoch


if __name__ == "__main__":
    serve(prepare, open_epochs)
