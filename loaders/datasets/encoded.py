"""JPEG files that leave the host as they are, to be decoded, cropped and flipped on a device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaders.codecs.heads import picture_size, pixels_within
from loaders.datasets.base import SamplesOf, check_stored
from loaders.datasets.moving import check_arrays_stay
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.known import known_of
from loaders.device.augment import Moves, draw_moves, move_images
from loaders.device.jpeg import JpegFinish
from loaders.device.modes import without_autocast
from loaders.errors import CodecError, SchemaError
from loaders.schema import Bytes, Image, Images, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.datasets.base import Halves
    from loaders.datasets.reading.request import Request
    from loaders.device.jpeg import Decode


class SameSize(NamedTuple):
    """The pictures of one size in a batch, and what augmentation does to them."""

    rows: list[int]  # their places in the batch; a list stays on the host
    moves: Moves  # of these


class EncodedBatch(NamedTuple):
    """A batch whose images are encoded files."""

    batch: Any  # with a list of bytes for each image field
    # The samples as the user counts them, for messages; a list stays on the host.
    indices: list[int]
    moves: dict[str, list[SameSize]]  # by image field, where there is augmentation


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

    has_own_samples = False

    def __init__(self, dataset: PackedDataset[Any], *, decode: Decode | None = None) -> None:
        if not isinstance(dataset, PackedDataset):
            what = f"dataset must be a ShardDataset or RAMDataset, got {type(dataset).__name__}"
            raise TypeError(what)
        check_stored(dataset, type(self).__name__)
        _check(dataset)
        super().__init__(dataset)
        self.finishes_late, self._decode = decode is not None, decode

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, decoded on the host."""
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return samples, decoded on the host."""
        return self.dataset.__getitems__(indices)

    @property
    def classes(self) -> tuple[str, ...]:
        """The dataset's."""
        return self.dataset.classes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"

    def halves(self, device: torch.device) -> Halves:
        """Return the same samples as encoded files, and what decodes them; LoadersError if nothing does so there."""
        dataset = self.dataset
        images = images_of(dataset)
        modules = {
            name: JpegFinish(field, device, self._decode, max_picture_mb=dataset.max_picture_mb)
            for name, field in images.items()
        }
        as_bytes = dict.fromkeys(images, Bytes())
        plan = dataset.plan_half(partial(_with_moves, dataset), as_bytes)
        return SamplesOf(dataset, plan), EncodedFinisher(dataset, modules)


def images_of(dataset: PackedDataset[Any]) -> dict[str, Image]:
    """Return the image fields that are served."""
    fields = dataset.stored_fields.items()
    return {name: field for name, field in fields if isinstance(field, Image)}


def _with_moves(dataset: PackedDataset[Any], batch: Any, request: Request) -> EncodedBatch:
    """Add to a batch of files what was drawn for it."""
    moves = {}
    for name in images_of(dataset) if dataset.augment else ():
        sizes = [
            _size(dataset, record, i)
            for record, i in zip(getattr(batch, name), request.indices, strict=True)
        ]
        moves[name] = _draw(dataset.augment, sizes, request)
    return EncodedBatch(batch, request.indices.tolist(), moves)


def _size(dataset: PackedDataset[Any], record: bytes, index: int) -> tuple[int, int]:
    try:
        return picture_size(record, pixels_within(dataset.max_picture_mb))
    except CodecError as error:
        raise dataset.sample_error(int(index), error) from error


def _draw(ops: Any, sizes: list[tuple[int, int]], request: Request) -> list[SameSize]:
    """Draw what happens to the pictures of each size."""
    found = []
    known = known_of(request, ops, 0, 0, len(request))
    for size in dict.fromkeys(sizes):
        rows = np.flatnonzero([other == size for other in sizes])
        draws = None if request.draws is None else request.draws[rows]
        settings: dict[str, Any] = {"seed": request.seed, "epoch": request.epoch, "draws": draws}
        settings["known"] = None if known is None else known.of(rows)
        moves = draw_moves(ops, size, request.numbers[rows], **settings)
        found.append(SameSize(rows.tolist(), moves))
    return found


class EncodedFinisher:
    """Makes batches of images out of batches of files."""

    def __init__(self, dataset: PackedDataset[Any], modules: dict[str, JpegFinish]) -> None:
        self.modules, self._dataset = modules, dataset
        served = {reader.names[0]: reader for reader in dataset.plan.readers}
        self._is_stacked = {name: served[name].sizes[0] is not None for name in modules}  # type: ignore[attr-defined]

    def __call__(self, value: EncodedBatch) -> Any:
        """Return the batch, a named tuple, with images on the device."""
        with without_autocast():
            made = {name: self._images(name, value) for name in self.modules}
        return value.batch._replace(**made)

    def _images(self, name: str, value: EncodedBatch) -> Any:
        images = self._decoded(name, value)
        for rows, moves in value.moves.get(name, ()):
            moved = move_images(torch.stack([images[i] for i in rows]), moves)
            if len(moved) == len(images) and self._is_stacked[name]:  # all of one size
                return moved
            for i, image in zip(rows, moved, strict=True):
                images[i] = image
        return torch.stack(images) if self._is_stacked[name] else images

    def _decoded(self, name: str, value: EncodedBatch) -> list[torch.Tensor]:
        records, module = getattr(value.batch, name), self.modules[name]
        try:
            return module(records)  # type: ignore[no-any-return]
        except CodecError:
            for index, record in zip(value.indices, records, strict=True):
                self._check_one(module, index, record)
            raise

    def _check_one(self, module: JpegFinish, index: int, record: bytes) -> None:
        try:
            module.decode_on_host(record)
        except CodecError as error:
            raise self._dataset.sample_error(index, error) from error


def _check(dataset: PackedDataset[Any]) -> None:
    """Raise SchemaError if a device cannot do all of it."""
    images, hint = images_of(dataset), "; hand the dataset itself to the loader"
    if not images:
        raise SchemaError(f"there is no image among {list(dataset.fields)}{hint}")
    for name, field in images.items():
        if field.codec != "jpeg" or field.channels not in (1, 3):
            what = f"{field.channels} channels of codec {field.codec!r}"
            raise SchemaError(f"field {name!r} holds {what}, not JPEG{hint}")
    dataset.check_splits(hint)
    if dataset.on_error == "replace":
        raise SchemaError(f"on_error='replace' needs decoding on the host{hint}")
    for name, other in dataset.stored_fields.items() if dataset.augment else ():
        if isinstance(other, Mask | Images):
            raise SchemaError(f"augment moves field {name!r}, which is done on the host{hint}")
    check_arrays_stay(dataset, hint)
