"""From records to the values of a batch: which reader gets each field there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from loaders import augment
from loaders.augment.planning import fill_mask_of, fill_of, output_size
from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.codecs.picture import PictureCodec
from loaders.datasets.reading.coefficients import CoefficientReader, has_halves, pixels_of
from loaders.datasets.reading.crops import CropReader, crop_readers
from loaders.datasets.reading.fixed import FixedReader, Layout, WideReader, torch_dtype
from loaders.datasets.reading.known import first_boxes
from loaders.datasets.reading.objects import ImagesReader, ObjectReader, ShapeReader, sanitizer_of
from loaders.datasets.reading.pictures import KnownHeads, PictureReader
from loaders.datasets.reading.request import Reader
from loaders.datasets.reading.samples import LIST, Form
from loaders.device.decode import side_of
from loaders.device.nested import holds
from loaders.errors import SchemaError
from loaders.schema import Array, Boxes, Field, Image, Images, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loaders.augment.geometry import Op
    from loaders.augment.resampling import Fill
    from loaders.buffers import Memory
    from loaders.datasets.reading.request import Request


class SampleIdReader(Reader):
    """The position of each sample in the dataset."""

    name = "sample_id"
    nbytes = 8
    prefetched_field = None

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [torch.empty(num_samples, dtype=torch.int64, device="cpu")]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        values[0][first:last] = torch.from_numpy(request.numbers[first:last])


def make_readers(
    dataset: Any,
    fields: dict[str, Field | None],
    ops: tuple[Any, ...],
    batching: Mapping[str, Form],
    *,
    half: bool = False,
) -> tuple[Reader, ...]:
    """Return the reader of each field (None: the sample's position) of a packed dataset under a list of augmentations.

    With ``half``, fields that a device can finish are read as their host half, and ``ops`` are not done. Boxes follow
    the dataset's ``leader``, a picture that is stored, served or not, under all of its ``augment``, also where a
    device carries out the ops of pictures.
    """
    views, store = _views(ops), dataset.store
    crops = crop_readers(store, fields, views, batching)
    readers: list[Reader] = []
    for name, field in fields.items():
        if field is None:
            readers.append(SampleIdReader())
        elif half and isinstance(field, Image) and has_halves(field):
            nbytes = field.record_nbytes
            if nbytes is None:
                codec = DctCodec(field, side_of(dataset.scale))
                readers.append(CoefficientReader(store, name, codec))
            else:
                planes = Layout(torch.uint8, (nbytes,), is_image=False)
                readers.append(FixedReader(store, name, nbytes, planes))
        elif isinstance(field, Image | Mask) and (
            ops or has_halves(field) or field.record_nbytes is None
        ):
            readers.append(_picture_reader(dataset, name, field, views))
        elif isinstance(field, Images):
            one = _picture_reader(dataset, name, field.one, views)
            readers.append(ImagesReader(store, name, one, batching.get(name, LIST)))
        elif name in crops:
            readers.append(crops[name])
        elif (nbytes := field.record_nbytes) is not None:
            layout = Layout.of(field)
            if field.served_dtype == field.dtype:
                readers.append(FixedReader(store, name, nbytes, layout))
            else:
                stored = np.dtype(field.dtype)
                readers.append(WideReader(store, name, nbytes, layout, stored))
        else:
            readers.append(_object_reader(dataset, name, field, fields, batching.get(name, LIST)))
    return tuple(readers)


def _object_reader(
    dataset: Any, name: str, field: Field, fields: Mapping[str, Field | None], form: Form
) -> ObjectReader:
    """Return the reader of a field whose records differ in size: with a picture, if that moves or drops its rows."""
    stored, lists = dataset.schema.fields, _views(dataset.augment)
    store, codec = dataset.store, codec_for(field)
    drops = tuple(sanitizer_of(name, field, each, stored) for each in lists.values())
    if not any(drops) and not (isinstance(field, Boxes | Keypoints) and dataset.augment):
        return ObjectReader(store, name, field, codec, form)
    picture = _picture_reader(dataset, *_followed(dataset, name, fields), lists)
    is_guess = sum(isinstance(each, Image) for each in stored.values()) > 1
    is_leader = name == first_boxes(stored)
    return ShapeReader(store, name, field, codec, form, picture, drops, is_guess, is_leader)


def forms_of(
    readers: Sequence[Reader], fields: Mapping[str, Field | None], batching: Mapping[str, Form]
) -> dict[str, Form]:
    """Return, by the names of samples, how values that differ in shape are joined which a transform made."""
    forms: dict[str, Form] = {}
    for reader, (name, field) in zip(readers, fields.items(), strict=True):
        form = batching.get(name)
        if isinstance(reader, CropReader):
            unequal = (name for name, layout in reader.layouts.items() if layout is None)
            forms |= dict.fromkeys(unequal, form or Form("equal"))
        elif form is not None:
            forms |= dict.fromkeys(reader.names, form)
        elif isinstance(reader, ImagesReader):
            forms |= dict.fromkeys(reader.names, LIST)
        elif isinstance(reader, ObjectReader) and isinstance(field, Array | Boxes | Keypoints):
            # Whether there are as many boxes in all samples of a batch is chance.
            kind = "equal" if isinstance(field, Array) else "list"
            forms |= dict.fromkeys(reader.names, Form(kind))
    return forms


def _followed(
    dataset: Any, boxes: str, fields: Mapping[str, Field | None]
) -> tuple[str, Image | Mask]:
    """Return the picture whose crops boxes follow, also if samples have others only."""
    stored, leader = dataset.schema.fields, dataset.leader
    field = stored.get(leader or "")
    is_shown = any(isinstance(stored.get(name), Image | Mask) for name in fields)
    if leader is None or not is_shown or not isinstance(field, Image | Mask):
        what = f"boxes {boxes!r} are moved with the picture {leader!r}, which is not in fields"
        raise SchemaError(
            f"{what}: add it (for a RAMDataset when it is loaded), or leave out augment"
        )
    return leader, field


def as_forms(
    batching: Mapping[str, Any], fields: Mapping[str, Field | None], *, is_transformed: bool
) -> dict[str, Form]:
    """Return the form of each field that ``batching`` names; SchemaError if it is none, or not one for such a field.

    What a transform makes is judged when it is made.
    """
    # A view may have fewer fields.
    shown = {name: given for name, given in batching.items() if name in fields}
    forms = {name: _form(name, given, fields[name]) for name, given in shown.items()}
    for name, form in () if is_transformed else forms.items():
        _check_form(name, shown[name], form, fields[name])
    return forms


def _form(name: str, given: Any, field: Field | None) -> Form:
    value: float = 0
    kind, axes = given, list[int]()
    match given:
        case "list" | "pad" | "offsets":
            pass
        case ("offsets", int() as axis):
            kind, axes = "offsets", [axis]
        case ("pad", int() | float() as value):
            kind = "pad"
        case ("pad", int() | float() as value, int() as axis):
            kind, axes = "pad", [axis]
        case _:
            _refuse(name, given)
    if bool in map(type, (value, *axes)):
        _refuse(name, given)
    if axes:
        return Form(kind, value, axes[0])
    shape = () if field is None else field.shape or ()
    free = [axis for axis, n in enumerate(shape) if n is None]
    if isinstance(field, Boxes | Keypoints | Images) or len(free) == 1:
        return Form(kind, value, free[0], len(shape))
    return Form(kind, value)


def _check_form(name: str, given: Any, form: Form, field: Field | None) -> None:
    """Raise SchemaError for a form that a field's arrays, as they are stored, cannot have."""
    if form.kind == "list" and isinstance(field, Image | Mask):
        return  # for what a transform makes of them
    if not isinstance(field, Array | Boxes | Keypoints | Images) or field.is_fixed:
        _refuse(name, given)
    if form.kind == "pad" and not holds(torch_dtype(field.served_dtype), form.value):
        what = f"{form.value} is no value of {field.served_dtype}"
        raise SchemaError(
            f"batching[{name!r}] = {given!r}: {what}: pad with another, or pack a wider dtype"
        )
    varies_along_several = form.kind != "list" and form.axis is None
    if varies_along_several or (isinstance(field, Images) and form.axis != 0):
        _refuse(name, given)


def _refuse(name: str, given: Any) -> NoReturn:
    raise SchemaError(
        f"batching[{name!r}] = {given!r}: use 'list', 'pad', ('pad', value, axis) or ('offsets', axis) for Images, "
        "arrays and boxes that vary along one axis, 'list' for pictures and arrays that vary along several; other "
        "fields need a transform that makes such arrays"
    )


def _views(ops: tuple[Any, ...]) -> dict[str, tuple[Op, ...]]:
    """Return the ops of each view by the suffix of its name; one view without a suffix unless ``Views`` is used."""
    if not any(isinstance(op, augment.Views) for op in ops):
        return {"": ops}
    if len(ops) != 1:
        raise SchemaError(
            "augment.Views must be the only entry of augment: put the other ops into each of its lists"
        )
    return {f"_{name}": view for name, view in ops[0]}


def _picture_reader(
    dataset: Any, name: str, field: Image | Mask, views: dict[str, tuple[Op, ...]]
) -> PictureReader:
    codec, field = pixels_of(field, dataset)
    layouts: dict[str, Layout | None] = {}
    for suffix, ops in views.items():
        size = output_size(ops, field.size)
        layouts[f"{name}{suffix}"] = size and Layout.of(replace(field, size=size))
    lists = tuple(views.values())
    fills = tuple(_fill(name, field, ops) for ops in lists)
    known = KnownHeads(dataset.store, name) if isinstance(codec, PictureCodec) else None
    return PictureReader(dataset.store.records, name, field, lists, codec, layouts, fills, known)


def _fill(name: str, field: Image | Mask, ops: tuple[Op, ...]) -> Fill:
    """Return what lies outside of a field's pictures; SchemaError if they cannot hold it."""
    is_image, limits = isinstance(field, Image), np.iinfo(field.dtype)
    what, fill = ("fill", fill_of(ops)) if is_image else ("fill_mask", fill_mask_of(ops))
    if not all(limits.min <= each <= limits.max for each in np.ravel(fill)):
        raise SchemaError(f"{what} {fill} does not fit into {field.dtype}, as {name!r} is")
    if isinstance(field, Image) and np.size(fill) not in (1, field.channels):
        raise SchemaError(
            f"fill={fill} has {np.size(fill)} channels, {name!r} has {field.channels}"
        )
    return fill
