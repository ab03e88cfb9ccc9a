"""JPEG files that leave the host as they are, to be decoded, cropped and flipped on a device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.augment.planning import output_size
from loaders.codecs.heads import picture_size, pixels_within
from loaders.datasets.base import SamplesOf, check_stored
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.halves import Unfinished, check_on_device, make_whole, with_moves
from loaders.device.jpeg import JpegFinish
from loaders.errors import CodecError, SchemaError
from loaders.schema import Bytes, Image, Images, Mask

if TYPE_CHECKING:
    import torch

    from loaders.datasets.base import Halves
    from loaders.datasets.reading.request import Request
    from loaders.device.jpeg import Decode
    from loaders.schema import Field


# Encoded files of a batch, and their samples as the user counts them, for messages: both stay on the host.
Files = tuple[list[bytes], npt.NDArray[np.int64]]


class JpegOnDevice(SamplesOf[PackedDataset[Any]]):
    """A dataset of JPEG images whose files a loader hands to the device: decoded, cropped and flipped there.

    A decoder on a GPU may round in its own way; order and crops are the same. Images of one size are
    cropped in a batch, others size by size. Without a device and ``decode``, the host decodes.

    Args:
        dataset: Its images are of codec ``jpeg``. Boxes and keypoints are moved on the host, by the same draw; masks,
            spatial arrays and ``Images`` are for datasets without augmentation. Its ``on_error`` is ``"raise"``: the
            device finds what does not decode when the host has left the batch behind.
        decode: Decodes there; default on CUDA: nvImageCodec or torchvision, one of which has to be installed. What
            it refuses, the CPU decodes.

    Raises:
        TypeError: It is no packed dataset.
        SchemaError: It has something that only the host can do; the message says what.
    """

    def __init__(self, dataset: PackedDataset[Any], *, decode: Decode | None = None) -> None:
        if not isinstance(dataset, PackedDataset):
            what = f"dataset must be a ShardDataset or RAMDataset, got {type(dataset).__name__}"
            raise TypeError(what)
        check_stored(dataset, type(self).__name__)
        _check(dataset)
        super().__init__(dataset)
        self.finishes_late, self._decode = decode is not None, decode

    @property
    def classes(self) -> tuple[str, ...]:
        """The dataset's."""
        return self.dataset.classes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"

    def halves(self, device: torch.device) -> Halves:
        """Return the same samples as encoded files, and what decodes them; LoadersError if nothing does so there."""
        dataset = self.dataset
        images, most = images_of(dataset), dataset.max_picture_mb
        makers = {
            name: partial(
                _decoded, dataset, JpegFinish(field, device, self._decode, max_picture_mb=most)
            )
            for name, field in images.items()
        }
        lists = [n for n, f in images.items() if output_size(dataset.augment, f.size) is None]
        plan = dataset.plan_half(partial(_unfinished, dataset), dict.fromkeys(images, Bytes()))
        whole = partial(make_whole, fields=dataset.stored_fields, makers=makers, lists=lists)
        return SamplesOf(dataset, plan), whole


def images_of(dataset: PackedDataset[Any]) -> dict[str, Image]:
    """Return the image fields that are served."""
    fields = dataset.stored_fields.items()
    return {name: field for name, field in fields if isinstance(field, Image)}


def _unfinished(dataset: PackedDataset[Any], batch: Any, request: Request) -> Unfinished:
    """Add to a batch of files what is drawn for it."""
    files = {name: (getattr(batch, name), request.indices) for name in images_of(dataset)}
    sizes = {
        name: [_size(dataset, record, i) for record, i in zip(*each, strict=True)]
        for name, each in (files.items() if dataset.augment else ())
    }
    return with_moves(dataset.augment, sizes, batch._replace(**files), request)


def _size(dataset: PackedDataset[Any], record: bytes, index: int) -> tuple[int, int]:
    try:
        return picture_size(record, pixels_within(dataset.max_picture_mb))
    except CodecError as error:
        raise dataset.view.sample_error(int(index), error) from error


def _decoded(dataset: PackedDataset[Any], finish: JpegFinish, files: Files) -> list[torch.Tensor]:
    records, indices = files
    try:
        return finish(records)  # type: ignore[no-any-return]
    except CodecError:
        for index, record in zip(indices.tolist(), records, strict=True):
            try:
                finish.decode_on_host(record)
            except CodecError as error:
                raise dataset.view.sample_error(index, error) from error
        raise


def _check(dataset: PackedDataset[Any]) -> None:
    """Raise SchemaError if a device cannot do all of it."""
    hint = "; hand the dataset itself to the loader"
    if not images_of(dataset):
        raise SchemaError(f"there is no image among {list(dataset.fields)}{hint}")

    def why_not(field: Field) -> str:
        if isinstance(field, Image) and (field.codec != "jpeg" or field.channels not in (1, 3)):
            return f"holds {field.channels} channels of codec {field.codec!r}, not JPEG"
        is_moved = dataset.augment and isinstance(field, Mask | Images)
        return "is moved by augment, which is done on the host" if is_moved else ""

    check_on_device(dataset, why_not, hint)
    if dataset.on_error == "replace":
        raise SchemaError(f"on_error='replace' needs decoding on the host{hint}")
