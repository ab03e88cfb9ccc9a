"""Crops and flips of arrays: cut out of the mapped record, straight into their place in the batch.

Which arrays they are for, is the schema's to say (``Array.spatial``): of an array that may be meant, it must. What is
drawn is the same as for pictures: arrays with the same spatial axes get the same crop, whatever their dtype and other
axes. Nothing is resampled here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from loaders.augment.colour import PixelOp
from loaders.augment.geometry import SizedBySample
from loaders.augment.ops import Crop, RandomFlip, RandomHorizontalFlip, RandomVerticalFlip
from loaders.augment.planning import check_ops, draw_geometry, fill_mask_of
from loaders.codecs.raw import RawCodec
from loaders.data.partial import BoxBytes, PartialRecords, RecordPart
from loaders.datasets.reading.fixed import PART_BYTES, Layout, begin_views, torch_dtype
from loaders.datasets.reading.known import geometry_of
from loaders.datasets.reading.request import Reader
from loaders.datasets.reading.samples import LIST, Form, in_form
from loaders.errors import BatchError, CodecError, SchemaError
from loaders.schema import Array, Field, Image, Images, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loaders.augment.geometry import Op
    from loaders.buffers import Memory
    from loaders.data.store import Store
    from loaders.datasets.reading.request import Request

UInt8Array = npt.NDArray[np.uint8]
_VOLUME_AXES = 3
_FLOOR_NBYTES = 4 << 10  # of a sample, where the batch is a list
_FLIPS = RandomFlip | RandomHorizontalFlip | RandomVerticalFlip


class _Cut(NamedTuple):
    """What is cut out of an array in one view: a row of a ``Geometry`` as plain numbers."""

    part: RecordPart  # what is read of the record
    box: list[int]
    flip: list[bool]


_Cuts = tuple[npt.NDArray[Any], list[_Cut]]  # an array, and what is cut out of it in each view


def spatial_axes(fields: Mapping[str, Field | None]) -> dict[str, int]:
    """Return how many axes of each array crops move, by field; others are left out."""
    arrays = {name: field for name, field in fields.items() if isinstance(field, Array)}
    return {name: field.spatial for name, field in arrays.items() if field.spatial}


def _check_spatial(fields: Mapping[str, Field | None]) -> None:
    """Raise SchemaError for an array that does not say whether it moves, and has the lengths of what does."""
    moved = [lengths for field in fields.values() if (lengths := _moved_lengths(field))]
    for name, field in fields.items():
        if not isinstance(field, Array) or field.spatial is not None:
            continue
        beside = any(_has(field.dims, lengths) for lengths in moved)
        if beside or (not moved and len(field.dims) >= _VOLUME_AXES):
            raise SchemaError(
                f"{name!r}: augment does not know how many of its last axes are spatial: use Mask(...) for labels of "
                "pixels, or Array(dims=..., spatial=2) for (C, H, W); 0 to leave the array as it is"
            )


def _moved_lengths(field: Field | None) -> tuple[int | None, ...]:
    if isinstance(field, Image | Images | Mask):
        return field.size or (None, None)
    is_moved = isinstance(field, Array) and field.spatial
    return field.dims[-field.spatial :] if is_moved else ()  # type: ignore[union-attr]


def _has(dims: tuple[int | None, ...], lengths: tuple[int | None, ...]) -> bool:
    """Tell whether some axes in a row have these lengths."""
    num = len(lengths)
    return any(dims[i : i + num] == lengths for i in range(len(dims) - num + 1))


def crop_readers(
    store: Store,
    fields: Mapping[str, Field | None],
    views: Mapping[str, tuple[Op, ...]],
    batching: Mapping[str, Form],
) -> dict[str, CropReader]:
    """Return a reader for each array that the ops of some view move; SchemaError if an op cannot be carried out."""
    if not any(views.values()):
        return {}
    _check_spatial(fields)
    axes = spatial_axes(fields)
    has_masks = any(isinstance(field, Mask) for field in fields.values())
    if axes and not has_masks and any(map(fill_mask_of, views.values())):
        raise SchemaError(
            "fill_mask is for Mask fields, and there is none: arrays are padded with zeros"
        )
    readers: dict[str, CropReader] = {}
    for name, num_axes in axes.items():
        field: Any = fields[name]
        layouts: dict[str, Layout | None] = {}
        for suffix, ops in views.items():
            try:
                check_ops(ops, num_axes)
                layouts[f"{name}{suffix}"] = _layout_of(field, ops, num_axes)
            except BatchError as error:
                raise SchemaError(
                    f"augment cannot be applied to field {name!r}, an array with {num_axes} spatial axes: {error}. "
                    "Leave the field out (fields=[...]), or pack it with Array(spatial=0)"
                ) from error
        codec, form = RawCodec(field), batching.get(name, LIST)
        readers[name] = CropReader(
            store, name, num_axes, tuple(views.values()), codec, layouts, form
        )
    return readers


def _layout_of(field: Array, ops: tuple[Op, ...], num_axes: int) -> Layout | None:
    """Return how arrays lie in a batch; None if the shape that they leave with depends on the array."""
    split = len(field.dims) - num_axes
    leading = tuple(n for n in field.dims[:split] if n is not None)
    lengths = output_lengths(ops, field.dims[split:])
    if lengths is None or len(leading) < split:
        return None
    return Layout(torch_dtype(field.dtype), (*leading, *lengths), is_image=False)


@dataclass(frozen=True, slots=True)
class CropReader(Reader):
    """Boxes out of arrays.

    A view whose samples share a shape is one tensor ``(N, *shape)``, any other a list of tensors
    (or what ``batching`` says).
    """

    store: Store
    name: str
    num_axes: int  # the last ones, which are cropped and flipped
    views: tuple[tuple[Op, ...], ...]  # the ops of each
    codec: RawCodec
    # By the names of views, in order: the field's name, with that of the view behind it where there are several. None:
    # its samples differ in shape.
    layouts: Mapping[str, Layout | None]
    batching: Form = LIST
    parts: PartialRecords = dataclass_field(init=False, compare=False)
    prefetched_field = None  # ``parts`` do, for what is cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", PartialRecords(self.store, self.name))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.layouts)

    @property
    def min_rows(self) -> int:
        """How many crops are worth a thread."""
        sizes = [math.prod(layout.shape) for layout in self.layouts.values() if layout]
        nbytes = sum(sizes) * self.codec.dtype.itemsize
        return max(1, PART_BYTES // max(nbytes, _FLOOR_NBYTES))

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return begin_views(self.layouts, num_samples, memory)

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        cuts, start = request.shared(("cuts", self.name), self._cuts, first, last)
        for row, (array, views) in enumerate(cuts[start : start + last - first], first):
            for filled, view in zip(values, views, strict=True):
                self.parts.verify(view.part)
                if isinstance(filled, list):
                    filled[row] = torch.from_numpy(cut(array, view.box, view.flip))
                else:
                    cut(array, view.box, view.flip, out=filled[1][row])

    def _cuts(self, request: Request, first: int, last: int) -> list[_Cuts]:
        """Find the arrays, draw what is cut out of each, and have storage fetch it."""
        rows = request.rows_of(first, last)
        records = self.parts.find(rows)
        arrays = [self._array(record) for record in records]
        spatial = [array.shape[-self.num_axes :] for array in arrays]
        lengths = np.array(spatial, np.int64).reshape(-1, self.num_axes)
        plans = [
            [part.tolist() for part in geometry_of(request, ops, view, lengths, first, last)]
            for view, ops in enumerate(self.views)
        ]
        numbers = rows.indices - self.store.starts[rows.shards]
        stored = zip(rows.shards.tolist(), numbers.tolist(), records, arrays, strict=True)
        cuts: list[_Cuts] = []
        for i, (shard, number, record, array) in enumerate(stored):
            found = []
            for boxes, sizes, flips in plans:
                box = boxes[i]
                if box[self.num_axes :] != sizes[i]:
                    what = f"augment resizes {box[self.num_axes :]} to {sizes[i]}"
                    raise BatchError(f"{what}; arrays are only cropped and flipped")
                spans = _spans(array, box, len(record) - array.nbytes)
                # The kernel fetches them while others are copied.
                part = self.parts.part(shard, number, record, spans)
                found.append(_Cut(part, box, flips[i]))
            cuts.append((array, found))
        return cuts

    def _array(self, record: UInt8Array) -> npt.NDArray[Any]:
        """See a record as an array, wherever it lies."""
        shape, data = self.codec.shape_of(record)
        dtype = self.codec.dtype
        if data.nbytes != math.prod(shape) * dtype.itemsize:
            what = f"a record of {len(record)} bytes does not hold {dtype.name} of shape {shape}"
            raise CodecError(what)
        return np.frombuffer(data, dtype).reshape(shape)

    def finish(self, values: list[Any]) -> list[Any]:
        """Return a tensor for each view, or its samples in the form asked for."""
        return [
            in_form(value, self.batching, name)
            if layout is None
            else layout.tensor(value[0], len(value[1]))
            for value, (name, layout) in zip(values, self.layouts.items(), strict=True)
        ]


def _spans(array: npt.NDArray[Any], box: list[int], header: int) -> BoxBytes:
    """Return which bytes of its record a box takes."""
    num_axes = len(box) // 2
    split = array.ndim - num_axes
    start, lengths = header, list(array.shape[:split])
    for axis in range(num_axes):
        size, first = array.shape[split + axis], box[axis]
        last = max(min(first + box[num_axes + axis], size), 0)
        first = min(max(first, 0), last)
        start += first * array.strides[split + axis]
        lengths.append(last - first)
    return BoxBytes(start, (*lengths, array.itemsize), (*array.strides, 1), header)


def output_lengths(ops: Sequence[Op], lengths: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the spatial lengths of every result; None if they depend on the array, or on what is drawn."""
    known = [length for length in lengths if length is not None]
    if len(known) == len(lengths) and not any(isinstance(op, SizedBySample) for op in ops):
        one = np.zeros(1, np.int64)
        planned = draw_geometry(ops, np.array([known]), seed=0, epoch=0, indices=one)
        return tuple(planned.sizes[0].tolist())
    for op in reversed(ops):
        if isinstance(op, Crop):
            return op.lengths(len(lengths))
        if not isinstance(op, _FLIPS | PixelOp):
            break
    return None


def cut(
    array: npt.NDArray[Any],
    box: Sequence[int],
    flip: Sequence[bool],
    *,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Copy a box out of an array ``(..., *spatial)``, flipped along given axes, into ``out`` or a new one.

    Box and flips are a row of a ``Geometry`` as plain numbers, for the last ``len(flip)`` axes; outside the array the
    result is zero. Only the box is read: of a mapped file, only its pages. The copy releases the GIL.
    """
    num_axes = len(flip)
    corner, lengths = box[:num_axes], box[num_axes:]
    shape = (*array.shape[: array.ndim - num_axes], *lengths)
    if out is None:
        out = np.empty(shape, array.dtype)
    elif out.shape != shape or out.dtype != array.dtype:
        raise BatchError(f"out must be {array.dtype} {shape}, got {out.dtype} {out.shape}")
    source: list[Any] = [...]
    target: list[Any] = [...]
    is_inside = True
    for start, length, size in zip(corner, lengths, array.shape[-num_axes:], strict=True):
        first, last = max(start, 0), max(min(start + length, size), 0)
        source.append(slice(first, last))
        target.append(slice(first - start, max(last, first) - start))
        is_inside &= last - first == length
    turned: list[Any] = [..., *(slice(None, None, -1 if on else 1) for on in flip)]
    mirrored = out[tuple(turned)]
    if not is_inside:
        out[...] = 0
    np.copyto(mirrored[tuple(target)], array[tuple(source)])
    return out
