"""From records to the values of a batch: one reader per way of getting there.

A reader is made once per dataset. For each batch it begins a ``Values`` with the final tensors
over memory that it is given, and fills ranges of rows, on any thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from loaders import augment
from loaders.codecs import codec_for
from loaders.codecs.picture import picture_size
from loaders.datasets.coefficients import (
    MovingReader,
    WholeImages,
    dct_reader,
    has_halves,
    records_at,
)
from loaders.datasets.crops import crop_readers
from loaders.datasets.samples import in_form
from loaders.errors import CodecError, SchemaError
from loaders.schema import Array, Boxes, Field, Image, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.datasets.store import Rows, Store

UInt8Array = npt.NDArray[np.uint8]
_PART_BYTES = 1 << 20  # copying less than this is not worth another thread


class Memory(Protocol):
    """Where batches come from: reusable slots, or fresh memory."""

    def take(self, name: str, nbytes: int) -> UInt8Array:
        """Return ``nbytes`` bytes of undefined content."""


@dataclass(slots=True)
class Request:
    """The samples of one batch.

    Attributes:
        indices: int64 sample numbers as the user counts them.
        rows: The same in the store, where a view has other numbers.
        epoch: The epoch, for augmentation.
        draws: How often each index came before in the epoch, or None for never.
        seed: For augmentation.
    """

    indices: npt.NDArray[np.int64]
    rows: Rows
    epoch: int
    draws: npt.NDArray[np.int64] | None
    seed: int

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, first: int, last: int) -> Rows:
        """Return a range of the samples, as the store knows them."""
        return self.rows if last - first == len(self.indices) else self.rows[first:last]


class Reader(Protocol):
    """Reads one field.

    Attributes:
        names: What it contributes to a sample: the field's name, or one name per view.
        min_rows: How many rows are worth a thread.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def min_rows(self) -> int: ...

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        """Return the values of a batch, one per name, undefined as yet."""

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        """Fill in rows ``first`` to ``last``."""

    def finish(self, values: list[Any]) -> list[Any]:
        """Return the values in the form that the user gets."""


@dataclass(frozen=True, slots=True)
class FixedReader:
    """Records of one size: gathered in one call, typed where they land."""

    store: Store
    name: str
    nbytes: int  # of each record
    layout: Layout

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def min_rows(self) -> int:
        return max(1, _PART_BYTES // self.nbytes)

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        flat = memory.take(self.name, num_samples * self.nbytes)
        return [self.layout.tensor(flat, num_samples), flat.reshape(num_samples, self.nbytes)]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        self.store.gather(self.name, request.part(first, last), values[1][first:last])

    def finish(self, values: list[Any]) -> list[Any]:
        return values[:1]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the values of one field lie in a batch; pictures are H x W x C in memory, whatever their axes are called."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    is_image: bool

    @classmethod
    def of(cls, field: Field) -> Layout:
        """Return the layout of a field of fixed shape."""
        shape = tuple(n for n in field.shape or () if n is not None)
        if isinstance(field, Image):
            return cls(torch_dtype(field.dtype), (*shape[1:], shape[0]), True)
        return cls(torch_dtype(field.served_dtype), shape, False)

    def tensor(self, flat: UInt8Array | torch.Tensor, num_samples: int) -> torch.Tensor:
        """View bytes as the field's tensor; it shares and keeps them."""
        tensor = flat if isinstance(flat, torch.Tensor) else torch.from_numpy(flat)
        if not num_samples:
            tensor = tensor.new_empty(
                0, dtype=self.dtype
            )  # numpy's empty rows have no stride to view by
        elif self.dtype is not torch.uint8:
            tensor = tensor.view(self.dtype)
        if self.shape:
            tensor = tensor.view(num_samples, *self.shape)
        return tensor.permute(0, 3, 1, 2) if self.is_image else tensor


def served(records: torch.Tensor, field: Field) -> torch.Tensor:
    """Turn records of one size, ``(N, nbytes)`` uint8 on any device, into the field's tensor; it may share them."""
    layout = Layout.of(field)
    if field.served_dtype == field.dtype:
        return layout.tensor(records.flatten(), len(records))
    narrow = records.flatten().view(torch_dtype(field.dtype))
    return narrow.to(layout.dtype).view(len(records), *layout.shape)


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of a numpy name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise SchemaError(f"dtype {name!r} has no counterpart in torch")
    return dtype


@dataclass(frozen=True, slots=True)
class WideReader(FixedReader):
    """Numbers that are stored in a narrow type and served in a wider one: gathered, then cast where they land."""

    stored: np.dtype[Any]

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        served = torch.empty((), dtype=self.layout.dtype).numpy().dtype
        width = self.nbytes // self.stored.itemsize
        flat = memory.take(self.name, num_samples * width * served.itemsize)
        tensor = self.layout.tensor(flat, num_samples)
        return [tensor, flat.view(served).reshape(num_samples, width)]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        narrow = _scratch((last - first) * self.nbytes)[: (last - first) * self.nbytes]
        rows, width = last - first, values[1].shape[1]
        self.store.gather(self.name, request.part(first, last), narrow.reshape(rows, self.nbytes))
        values[1][first:last] = narrow.view(self.stored).reshape(rows, width)


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Images and masks: decoded, cropped, resized and flipped, straight into their place in the batch."""

    store: Store
    name: str
    field: Image | Mask
    views: tuple[tuple[str, tuple[Any, ...]], ...]  # name and ops of each; no ops: as stored
    codec: Any
    sizes: tuple[
        tuple[int, int] | None, ...
    ]  # of every sample of a view, or None: a list of tensors
    min_rows: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.views)

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [
            [None] * num_samples if size is None else self._slot(name, size, num_samples, memory)
            for name, size in zip(self.names, self.sizes, strict=True)
        ]

    def _slot(
        self, name: str, size: tuple[int, int], num_samples: int, memory: Memory
    ) -> tuple[torch.Tensor, npt.NDArray[Any]]:
        field = replace(self.field, size=size)
        dtype = np.dtype(field.dtype)
        height, width = size
        flat = memory.take(name, num_samples * height * width * self._channels * dtype.itemsize)
        shape = (
            (num_samples, height, width, self._channels)
            if isinstance(field, Image)
            else (num_samples, height, width)
        )
        return Layout.of(field).tensor(flat, num_samples), flat.view(dtype).reshape(shape)

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = self.store.records(self.name, request.part(first, last))
        if self._is_plain:
            for i, record in enumerate(records, first):
                self._read_plain(values, i, record)
            return
        shapes = [self.picture_size(record) for record in records]
        plans = [
            self.geometry(view, request, shapes, first, last) for view in range(len(self.views))
        ]
        boxes, sizes, flips = zip(
            *((p.boxes.tolist(), p.sizes.tolist(), p.flips.tolist()) for p in plans), strict=True
        )
        nearest = isinstance(self.field, Mask)
        for i, record in enumerate(records):
            image, size = self._decode(
                record, shapes[i], [box[i] for box in boxes], [size[i] for size in sizes]
            )
            for view, place in enumerate(values):
                out = None if self.sizes[view] is None else place[1][first + i]
                done = augment.apply(
                    image,
                    boxes[view][i],
                    sizes[view][i],
                    flips[view][i],
                    out=out,
                    nearest=nearest,
                    source_size=size,
                )
                if out is None:
                    place[first + i] = _channels_first(done)

    @property
    def _channels(self) -> int:
        return self.field.channels if isinstance(self.field, Image) else 1

    @property
    def _is_plain(self) -> bool:
        return len(self.views) == 1 and not self.views[0][1]

    def _read_plain(self, values: list[Any], i: int, record: UInt8Array) -> None:
        if self.sizes[0] is None:
            values[0][i] = _channels_first(np.array(self.codec.decode(record)))
            return
        place = values[0][1][i]
        image = (
            self.codec.decode(record, out=place.reshape(-1))
            if self._decodes_in_place
            else self.codec.decode(record)
        )
        if image.shape != place.shape:
            raise CodecError(f"the picture is {image.shape}, the field says {place.shape}")
        if not np.may_share_memory(image, place):
            np.copyto(place, image)

    @property
    def _decodes_in_place(self) -> bool:
        return self.field.codec == "jpeg" and self.field.dtype == "uint8"

    def picture_size(self, record: UInt8Array) -> tuple[int, int]:
        """Return (height, width) of a stored picture, without decoding it."""
        if self.field.codec != "raw":
            return picture_size(record)
        if self.field.size is not None:
            return self.field.size
        height, width = self.codec.decode(record).shape[:2]
        return height, width

    def geometry(
        self, view: int, request: Request, shapes: Sequence[tuple[int, int]], first: int, last: int
    ) -> augment.Geometry:
        """Draw the crops and flips of one view; the same for every field whose pictures have these sizes."""
        draws = None if request.draws is None else request.draws[first:last]
        return augment.plan(
            self.views[view][1],
            np.array(shapes, np.int64).reshape(-1, 2),
            seed=request.seed,
            epoch=request.epoch,
            indices=request.indices[first:last],
            draws=draws,
            view=view,
        )

    def _decode(
        self,
        record: UInt8Array,
        shape: tuple[int, int],
        boxes: list[list[int]],
        sizes: list[list[int]],
    ) -> tuple[npt.NDArray[Any], tuple[int, int] | None]:
        """Decode as much of a picture as its crops need; return it and, if it was reduced, its size at full scale."""
        if self.field.codec == "raw":
            return self.codec.decode(record), None
        reduction, rows = 8, 0
        for (y, _, height, width), (out_height, out_width) in zip(boxes, sizes, strict=True):
            reduction = min(reduction, augment.reduction(height, width, out_height, out_width))
            rows = max(rows, y + height)
        image = self.codec.decode(
            record, reduction, rows, _scratch(shape[0] * shape[1] * self._channels)
        )
        if reduction == 1:
            return image, None
        return image, (min(shape[0], image.shape[0] * reduction), shape[1])

    def finish(self, values: list[Any]) -> list[Any]:
        return [v if size is None else v[0] for v, size in zip(values, self.sizes, strict=True)]


_local = threading.local()


def _scratch(nbytes: int) -> UInt8Array:
    """Return a buffer of this thread to decode into: a new one for each picture would cost more in page faults."""
    buffer: UInt8Array | None = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _local.buffer = np.empty(max(nbytes, 1 << 20), np.uint8)
    return buffer


def _channels_first(array: npt.NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.permute(2, 0, 1) if tensor.dim() == 3 else tensor


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """Anything else, value by value: text, JSON, bytes, arrays of varying shape."""

    store: Store
    name: str
    field: Field
    codec: Any
    batching: str = "list"
    picture: PictureReader | None = None  # whose crops boxes follow
    min_rows: int = 256

    @property
    def names(self) -> tuple[str, ...]:
        if self.picture is None or len(self.picture.views) == 1:
            return (self.name,)
        return tuple(
            f"{self.name}{name.removeprefix(self.picture.name)}" for name in self.picture.names
        )

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [[None] * num_samples for _ in self.names]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = self.store.records(self.name, request.part(first, last))
        if self.picture is not None and isinstance(self.field, Boxes):
            self._read_boxes(self.picture, values, request, records, first)
            return
        for i, record in enumerate(records, first):
            value = self.codec.decode(record)
            values[0][i] = (
                torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
            )

    def _read_boxes(
        self,
        picture: PictureReader,
        values: list[Any],
        request: Request,
        records: list[UInt8Array],
        first: int,
    ) -> None:
        last = first + len(records)
        pictures = self.store.records(picture.name, request.part(first, last))
        shapes = [picture.picture_size(record) for record in pictures]
        for view, moved in enumerate(values):
            plan = picture.geometry(view, request, shapes, first, last)
            boxes, sizes, flips = plan.boxes.tolist(), plan.sizes.tolist(), plan.flips.tolist()
            for i, record in enumerate(records):
                value = augment.move_boxes(self.codec.decode(record), boxes[i], sizes[i], flips[i])
                moved[first + i] = torch.from_numpy(value)

    def finish(self, values: list[Any]) -> list[Any]:
        return [in_form(tensors, self.batching) for tensors in values]


@dataclass(frozen=True, slots=True)
class SampleIdReader:
    """The position of each sample in the dataset."""

    names: tuple[str, ...] = ("sample_id",)
    min_rows: int = 1 << 30

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [torch.empty(num_samples, dtype=torch.int64)]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        values[0][first:last] = torch.from_numpy(request.indices[first:last])

    def finish(self, values: list[Any]) -> list[Any]:
        return values


def make_readers(
    store: Store,
    fields: dict[str, Field | None],
    ops: tuple[Any, ...],
    batching: dict[str, str],
    scale: float = 1,
    *,
    half: bool = False,
) -> tuple[Reader, ...]:
    """Return the reader of each field (None: the sample's position) under a list of augmentations.

    At a ``scale`` other than 1, ``dct`` images are smaller. With ``half``, fields that a device can
    finish are read as their host half, and ``ops`` are drawn for it, not done.
    """
    _check_batching(fields, batching)
    views = _views(ops)
    pictures = [
        _picture_reader(store, name, field, views, scale)
        for name, field in fields.items()
        if isinstance(field, Image | Mask)
    ]
    by_name = {reader.name: reader for reader in pictures}
    crops = crop_readers(store, fields, views, batching)
    leader = next(iter(pictures), None)
    readers: list[Reader] = []
    for name, field in fields.items():
        if field is None:
            readers.append(SampleIdReader())
        elif isinstance(field, Image) and has_halves(field):
            whole = by_name[name]
            readers.append(_half_reader(whole, store, field, ops, scale) if half else whole)
        elif isinstance(field, Image | Mask) and (ops or field.record_nbytes is None):
            readers.append(by_name[name])
        elif name in crops:
            readers.append(crops[name])
        elif field.record_nbytes is not None:
            readers.append(_fixed_reader(store, name, field, field.record_nbytes))
        else:
            follows = leader if isinstance(field, Boxes) and ops else None
            codec = codec_for(field)
            readers.append(
                ObjectReader(store, name, field, codec, batching.get(name, "list"), follows)
            )
    return tuple(readers)


def _fixed_reader(store: Store, name: str, field: Field, nbytes: int) -> FixedReader:
    layout = Layout.of(field)
    if field.served_dtype == field.dtype:
        return FixedReader(store, name, nbytes, layout)
    return WideReader(store, name, nbytes, layout, np.dtype(field.dtype))


def _check_batching(fields: dict[str, Field | None], batching: dict[str, str]) -> None:
    for name, form in batching.items():
        field = fields.get(name)
        if (
            form not in ("list", "pad", "offsets")
            or not isinstance(field, Array | Boxes)
            or field.is_fixed
        ):
            raise SchemaError(
                f"batching[{name!r}] = {form!r}: 'list', 'pad' and 'offsets' are for arrays and boxes of varying length"
            )


def _views(ops: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the ops of each view by the suffix of its name; one view without a suffix unless ``Views`` is used."""
    if not any(isinstance(op, augment.Views) for op in ops):
        return {"": ops}
    if len(ops) != 1:
        raise SchemaError("augment.Views stands alone: put the other ops into each of its lists")
    return {f"_{name}": view for name, view in ops[0]}


def _picture_reader(
    store: Store, name: str, field: Image | Mask, views: dict[str, tuple[Any, ...]], scale: float
) -> PictureReader:
    named = tuple((f"{name}{suffix}", ops) for suffix, ops in views.items())
    source: Any = store
    codec: Any
    if isinstance(field, Image) and has_halves(field):
        source, codec = records_at(store, field, scale), WholeImages(field, scale)
        field = codec.served
    else:
        codec = codec_for(field)
    sizes = tuple(_output_size(field, ops) for ops in views.values())
    return PictureReader(source, name, field, named, codec, sizes)


def _half_reader(
    whole: PictureReader, store: Store, field: Image, ops: tuple[Any, ...], scale: float
) -> Reader:
    """Return the reader of what a device makes images of."""
    name, nbytes, reader = whole.name, field.record_nbytes, None
    if nbytes is not None:
        layout = Layout(torch.uint8, (nbytes,), is_image=False)
        reader = FixedReader(store, name, nbytes, layout)
    half: Reader = reader or dct_reader(store, name, field, scale)
    assert whole.field.size is not None
    return MovingReader(half, ops, whole.field.size) if ops else half


def _output_size(field: Image | Mask, ops: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return the size that every picture of a field leaves with, or None if it depends on the picture."""
    size = augment.output_size(ops) if ops else None
    if size is not None or field.size is None:
        return size
    one = np.zeros(1, np.int64)
    plan = augment.plan(ops, np.array([field.size]), seed=0, epoch=0, indices=one)
    height, width = plan.sizes[0].tolist()
    return height, width
