"""From records to the values of a batch: which reader gets each field there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders import augment
from loaders.codecs import codec_for
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.codecs.picture import PictureCodec
from loaders.datasets.reading.coefficients import (
    MovingReader,
    WholeImages,
    dct_reader,
    has_halves,
    records_at,
)
from loaders.datasets.reading.crops import CropReader, crop_readers
from loaders.datasets.reading.fixed import FixedReader, Layout, WideReader
from loaders.datasets.reading.pictures import Move, PictureReader
from loaders.datasets.reading.samples import Form, in_form
from loaders.device.decode import Yuv420Finish
from loaders.errors import CodecError, SchemaError
from loaders.schema import Array, Boxes, Field, Image, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from loaders.data.store import Store
    from loaders.datasets.reading.coefficients import CoefficientReader
    from loaders.datasets.reading.request import Memory, Reader, Request

    UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """Anything else, value by value: text, JSON, bytes, arrays of varying shape."""

    store: Store
    name: str
    field: Field
    codec: Any
    batching: Form = "list"
    picture: PictureReader | None = None  # whose crops boxes and keypoints follow
    is_guess: bool = False  # it is the first of several images
    min_rows: int = 256

    @property
    def names(self) -> tuple[str, ...]:
        if self.picture is None:
            return (self.name,)
        return tuple(
            f"{self.name}{name.removeprefix(self.picture.name)}" for name in self.picture.names
        )

    @property
    def prefetched_field(self) -> str:
        return self.name

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [[None] * num_samples for _ in self.names]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = request.records(self.store, self.name, first, last)
        if self.picture is not None and isinstance(self.field, Boxes | Keypoints):
            self._read_moved(self.picture, values, request, records, first)
            return
        for i, record in enumerate(records, first):
            value = self.codec.decode(record)
            values[0][i] = (
                torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
            )

    def _read_moved(
        self,
        picture: PictureReader,
        values: list[Any],
        request: Request,
        records: Sequence[UInt8Array],
        first: int,
    ) -> None:
        wanted, start = picture.wanted(request, first, first + len(records))
        for i, record in enumerate(records):
            value = self.codec.decode(record)
            if self.is_guess and isinstance(self.field, Boxes):
                _check_inside(value, picture.name, wanted.heads.sizes[start + i])
            for moved, move in zip(values, wanted.moves(start + i), strict=True):
                moved[first + i] = torch.from_numpy(self._moved(value, move))

    def _moved(self, value: npt.NDArray[Any], move: Move) -> npt.NDArray[Any]:
        box, size, flip = move
        if isinstance(self.field, Keypoints):
            return augment.move_keypoints(value, box, size, flip, self.field.flip_pairs)
        return augment.move_boxes(value, box, size, flip)

    def finish(self, values: list[Any]) -> list[Any]:
        return [in_form(tensors, self.batching) for tensors in values]


@dataclass(frozen=True, slots=True)
class SampleIdReader:
    """The position of each sample in the dataset."""

    names: tuple[str, ...] = ("sample_id",)
    min_rows: int = 1 << 30
    prefetched_field: str | None = None
    nbytes: int = 8  # of each

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [torch.empty(num_samples, dtype=torch.int64, device="cpu")]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        values[0][first:last] = torch.from_numpy(request.indices[first:last])

    def finish(self, values: list[Any]) -> list[Any]:
        return values


def make_readers(
    store: Store,
    fields: dict[str, Field | None],
    ops: tuple[Any, ...],
    batching: Mapping[str, Form],
    scale: float = 1,
    *,
    stored: Mapping[str, Field],
    leader: str | None,
    half: bool = False,
    max_picture_mb: int = MAX_PICTURE_MB,
) -> tuple[Reader, ...]:
    """Return the reader of each field (None: the sample's position) under a list of augmentations.

    At a ``scale`` other than 1, ``dct`` images are smaller. With ``half``, fields that a device can
    finish are read as their host half, and ``ops`` are drawn for it, not done. Boxes follow the
    picture ``leader``, which is one of the ``stored`` fields, served or not.
    """
    _check_batching(fields, batching)
    views = _views(ops)
    by_name = {
        name: _picture_reader(store, name, field, views, scale, max_picture_mb)
        for name, field in fields.items()
        if isinstance(field, Image | Mask)
    }
    is_guess = sum(isinstance(field, Image) for field in stored.values()) > 1
    crops = crop_readers(store, fields, views, batching)
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
            follows = None
            if isinstance(field, Boxes | Keypoints) and ops:
                picture = _followed(name, fields, stored, leader)
                follows = _picture_reader(store, *picture, views, scale, max_picture_mb)
            codec, form = codec_for(field), batching.get(name, "list")
            readers.append(ObjectReader(store, name, field, codec, form, follows, is_guess))
    return tuple(readers)


def forms_of(readers: Sequence[Reader], batching: Mapping[str, Form]) -> dict[str, Form]:
    """Return, by the names of samples, how values that differ in shape are joined."""
    forms: dict[str, Form] = {}
    for reader in readers:
        if isinstance(reader, CropReader):
            forms |= dict.fromkeys(reader.list_names, reader.batching)
        elif isinstance(reader, ObjectReader) and isinstance(
            reader.field, Array | Boxes | Keypoints
        ):
            forms |= dict.fromkeys(reader.names, reader.batching)
        elif isinstance(reader, PictureReader) and reader.name in batching:
            forms |= dict.fromkeys(reader.names, "list")
    return forms


def first_picture(fields: Mapping[str, Field]) -> str | None:
    """Return whose pixels boxes are in: the first image of a schema, without one the first mask."""
    kinds = (Image, Mask)
    named = (name for kind in kinds for name, field in fields.items() if isinstance(field, kind))
    return next(named, None)


def _followed(
    boxes: str, fields: Mapping[str, Field | None], stored: Mapping[str, Field], leader: str | None
) -> tuple[str, Image | Mask]:
    """Return the picture whose crops boxes follow, also if samples have others only."""
    if not any(isinstance(field, Image | Mask) for field in fields.values()):
        what = f"boxes {boxes!r} follow the crops of an image or a mask, and samples have none"
        raise SchemaError(f"{what}: add one to fields, or leave out augment")
    field = stored.get(leader or "")
    if leader is None or not isinstance(field, Image | Mask):
        what = f"boxes {boxes!r} follow the crops of {leader!r}, which was left out of the memory"
        raise SchemaError(f"{what}: add it to fields there, or leave out augment")
    return leader, field


def _check_inside(boxes: npt.NDArray[Any], picture: str, size: npt.NDArray[np.int64]) -> None:
    """Raise CodecError if one begins beyond the picture: it was drawn on another one of the sample."""
    height, width = size.tolist()
    outside = (boxes[:, 0] > width) | (boxes[:, 1] > height)
    if outside.any():
        box, where = boxes[outside.argmax()].tolist(), f"{picture!r}, which is {height} x {width}"
        what = f"box {box} lies outside of {where}. Boxes are in pixels of the first image of the schema"
        raise CodecError(f"{what}: list that one first when packing")


def _fixed_reader(store: Store, name: str, field: Field, nbytes: int) -> FixedReader:
    layout = Layout.of(field)
    if field.served_dtype == field.dtype:
        return FixedReader(store, name, nbytes, layout)
    return WideReader(store, name, nbytes, layout, np.dtype(field.dtype))


def _check_batching(fields: dict[str, Field | None], batching: Mapping[str, Form]) -> None:
    for name, form in batching.items():
        if name not in fields:  # a view of fewer fields
            continue
        field = fields[name]
        if form == "list" and isinstance(field, Image | Mask):
            continue  # for what a transform makes of them
        if (
            not (form in ("list", "pad", "offsets") or _is_padding(form, field))
            or not isinstance(field, Array | Boxes | Keypoints)
            or field.is_fixed
        ):
            raise SchemaError(
                f"batching[{name!r}] = {form!r}: 'list', 'pad' (or ('pad', value) of the field's type) and 'offsets' "
                "are for arrays and boxes of varying length, 'list' for pictures"
            )
        shape = field.shape or (None,)
        if form != "list" and shape[0] is not None:
            raise SchemaError(
                f"batching[{name!r}] = {form!r}: its arrays {shape} do not vary along their first axis; take 'list', "
                "crop them to one length, or store them with that axis first"
            )
        if form != "list" and sum(n is None for n in shape) > 1:
            raise SchemaError(
                f"batching[{name!r}] = {form!r}: its arrays vary in more than their length; take 'list'"
            )


def _is_padding(form: Form, field: Field | None) -> bool:
    """Tell whether a form is ``("pad", value)``, of a value that the field can hold."""
    given: Any = form
    if not isinstance(given, tuple) or len(given) != 2 or given[0] != "pad" or field is None:
        return False
    value, dtype = given[1], np.dtype(field.served_dtype)
    if dtype.kind == "f":
        return isinstance(value, int | float)
    limits = np.iinfo(dtype if dtype.kind in "ui" else np.uint8)
    return isinstance(value, int) and limits.min <= value <= limits.max


def _views(ops: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the ops of each view by the suffix of its name; one view without a suffix unless ``Views`` is used."""
    if not any(isinstance(op, augment.Views) for op in ops):
        return {"": ops}
    if len(ops) != 1:
        raise SchemaError("augment.Views stands alone: put the other ops into each of its lists")
    return {f"_{name}": view for name, view in ops[0]}


def _picture_reader(
    store: Store,
    name: str,
    field: Image | Mask,
    views: dict[str, tuple[Any, ...]],
    scale: float,
    max_picture_mb: int,
) -> PictureReader:
    named = tuple((f"{name}{suffix}", ops) for suffix, ops in views.items())
    source: Any = store
    codec: Any
    if isinstance(field, Image) and has_halves(field):
        source, codec = records_at(store, field, scale), WholeImages(field, scale)
        field = codec.served
    else:
        codec = codec_for(field)
        codec = codec.limited(max_picture_mb) if isinstance(codec, PictureCodec) else codec
    sizes = tuple(_output_size(field, ops) for ops in views.values())
    fills = tuple(_fill(name, field, ops) for ops in views.values())
    return PictureReader(source, name, field, named, codec, sizes, fills)


def _fill(name: str, field: Image | Mask, ops: tuple[Any, ...]) -> int:
    """Return what lies outside of a field's pictures; SchemaError if they cannot hold it."""
    if isinstance(field, Image):
        return 0
    fill, limits = augment.fill_mask_of(ops), np.iinfo(field.dtype)
    if not limits.min <= fill <= limits.max:
        raise SchemaError(f"fill_mask {fill} does not fit into {field.dtype}, as mask {name!r} is")
    return fill


def _half_reader(
    whole: PictureReader, store: Store, field: Image, ops: tuple[Any, ...], scale: float
) -> Reader:
    """Return the reader of what a device makes images of."""
    name, nbytes = whole.name, field.record_nbytes
    half: FixedReader | CoefficientReader
    if nbytes is None:
        half = dct_reader(store, name, field, scale)
        unit = half.unit
    else:
        half = FixedReader(store, name, nbytes, Layout(torch.uint8, (nbytes,), is_image=False))
        unit = Yuv420Finish.unit
    assert whole.field.size is not None
    return MovingReader(half, ops, whole.field.size, unit) if ops else half


def _output_size(field: Image | Mask, ops: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return the size that every picture of a field leaves with, or None if it depends on the picture."""
    size = augment.output_size(ops) if ops else None
    if size is not None or field.size is None:
        return size
    one = np.zeros(1, np.int64)
    plan = augment.plan(ops, np.array([field.size]), seed=0, epoch=0, indices=one)
    height, width = plan.sizes[0].tolist()
    return height, width
