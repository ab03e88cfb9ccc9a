"""Images and masks of a batch: decoded, cropped, resized and flipped into their places."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders.augment.edits import edit
from loaders.augment.pixels import (
    carry_out,
    moved_steps,
    reduced_boxes,
    reductions,
    steps_of,
    take_steps,
)
from loaders.buffers import Memory, scratch
from loaders.codecs.heads import HEAD, HEADS, picture_heads, rows_of, sizes_of
from loaders.codecs.jpeg import cut_out, parts_of
from loaders.codecs.picture import PictureCodec
from loaders.datasets.reading.fixed import Layout, begin_views
from loaders.datasets.reading.known import geometry_of
from loaders.datasets.reading.request import Reader
from loaders.errors import CodecError
from loaders.schema import Image, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Geometry, Move, Op
    from loaders.augment.resampling import Fill
    from loaders.codecs import Codec
    from loaders.codecs.heads import Heads
    from loaders.data.finder import Rows
    from loaders.data.store import Store
    from loaders.datasets.reading.request import Request

    UInt8Array = npt.NDArray[np.uint8]
    Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class WantedPictures:
    """What is wanted of N pictures, as arrays: an object for each would cost garbage collection."""

    records: list[UInt8Array]  # the files
    heads: Heads  # ``(N,)``: what their headers say
    sizes: Ints  # ``(N, 2)``: their heights and widths
    plans: list[Geometry]  # boxes, sizes and flips of each view
    parts: Ints  # ``(N, 4)``: which part is enough of each, as of ``parts_of``
    reductions: Ints  # ``(N,)``: by which factor the decoder may shrink each: 1, 2, 4 or 8
    steps: Ints  # ``(N, views, 8)``: what happens to each that is ready, as of ``steps_of``
    # ``(N,)``: whether each is a JPEG or raw bytes, with all boxes inside it and results of the batch's size; others
    # are read one by one.
    are_ready: npt.NDArray[np.bool_]

    def moves(self, i: int) -> list[Move]:
        """Return what happens to a picture in each view."""
        return [plan.move(i) for plan in self.plans]


class KnownHeads:
    """The heads of a field of a store: as its shards keep them, else as they are read."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._heads = np.zeros(len(store), HEAD)
        self._taken: set[int] = set()  # the shards whose heads were looked for

    def __reduce__(self) -> Any:
        return KnownHeads, (self._store, self._name)

    def of(self, records: Sequence[UInt8Array], rows: Rows, max_pixels: int) -> Heads:
        """Return the heads of some pictures, as ``picture_heads``."""
        known = self._heads[rows.indices]
        missing = set(rows.shards[known["height"] == 0].tolist()) - self._taken
        if missing:
            for shard in missing:
                self._take(shard)
            known = self._heads[rows.indices]
        heads = picture_heads(records, max_pixels, known)
        self._heads[rows.indices] = known
        return heads

    def _take(self, shard: int) -> None:
        sums = self._store.shard(shard).checksums.get(self._name)
        if sums is not None and sums.heads:
            found = np.frombuffer(sums.heads, HEAD)
            first = int(self._store.starts[shard])
            self._heads[first : first + len(found)] = found
        self._taken.add(shard)


@dataclass(frozen=True)
class PictureReader(Reader):
    """Images and masks: decoded, cropped, resized and flipped, straight into their place in the batch."""

    # Returns the records of the field of some samples: of a store, as ``Store.records``, or of what stands in for it.
    read_records: Callable[[str, Rows], list[UInt8Array]]
    name: str
    field: Image | Mask
    views: tuple[tuple[Op, ...], ...]  # the ops of each; none: as stored
    codec: Codec
    # By the names of views, in order. None: its pictures differ in size, and a batch is a list of tensors.
    layouts: Mapping[str, Layout | None]
    fills: tuple[Fill, ...]  # of each view: what lies outside of the pictures
    known: KnownHeads | None = None  # of the store's pictures; None: heads are read each time
    min_rows = 4

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.layouts)

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return begin_views(self.layouts, num_samples, memory)

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        wanted, start = self.wanted(request, first, last)
        part = slice(start, start + last - first)
        rows = zip(
            wanted.records[part],
            rows_of(wanted.heads[part]),
            wanted.parts[part].tolist(),
            wanted.reductions[part].tolist(),
            wanted.steps[part].tolist(),
            wanted.are_ready[part].tolist(),
            *self._places(values, first, last),
            strict=True,
        )
        buffer = scratch(int(wanted.sizes.prod(axis=1).max(initial=0)) * self._channels)
        decode_jpeg: Any = getattr(self.codec, "decode_jpeg", None)
        is_bytes, is_whole = self._is_bytes, self._is_whole
        is_edited = any(plan.edits is not None for plan in wanted.plans)
        # Flat on purpose: this runs with the GIL held and a cold cache.
        for i, (record, head, enough, reduction, steps, is_ready, *outs) in enumerate(rows, start):
            if not is_ready:
                self._read_any(wanted, i, values, first + i - start)
            elif is_whole:
                decode_jpeg(record, 1, head.height, head.width, outs[0], False)
            else:
                if is_bytes:
                    image = self.codec.decode(record)
                else:
                    file, box, ends_early = cut_out(record, head, enough)
                    top, left, height, width = box
                    image = decode_jpeg(file, reduction, height, width, buffer, ends_early)
                    if top or left:
                        steps = moved_steps(steps, top // reduction, left // reduction)
                take_steps(image, steps, outs)
                if is_edited:
                    for plan, out in zip(wanted.plans, outs, strict=True):
                        _edit(plan, i, out)

    def _places(self, values: list[Any], first: int, last: int) -> list[Sequence[Any]]:
        """Return for each view where its pictures go; None where their sizes differ."""
        places: list[Sequence[Any]] = []
        for value, layout in zip(values, self.layouts.values(), strict=True):
            if layout is None:
                places.append([None] * (last - first))
            else:
                rows = value[1][first:last]
                places.append(rows.reshape(len(rows), -1) if self._is_whole else rows)
        return places

    def _read_any(self, wanted: WantedPictures, i: int, values: list[Any], row: int) -> None:
        """Read a picture of any format and dtype, all of it."""
        height, width = wanted.sizes[i].tolist()
        image, reduction = self._decode(
            wanted.records[i], (height, width), int(wanted.reductions[i])
        )
        layouts, moves = self.layouts.values(), wanted.moves(i)
        views = zip(values, layouts, wanted.plans, moves, self.fills, strict=True)
        for value, layout, plan, move, fill in views:
            if layout is not None and layout.shape[:2] != tuple(move.size):  # without ops
                what = f"the picture is {height} x {width}"
                raise CodecError(f"{what}, the field says {self.field.size}")
            if reduction > 1:
                numbers = map(np.array, ([move.box], [(height, width)], [reduction]))
                move = move._replace(box=reduced_boxes(*numbers)[0].tolist())
            out = None if layout is None else value[1][row]
            is_mask = isinstance(self.field, Mask)
            done = carry_out(image, move, plan.resampling, fill, out=out, nearest=is_mask)
            _edit(plan, i, done)
            if out is None:
                tensor = torch.from_numpy(done)
                value[row] = tensor.permute(2, 0, 1) if tensor.dim() == 3 else tensor

    def wanted(self, request: Request, first: int, last: int) -> tuple[WantedPictures, int]:
        """Find pictures, read their headers, and draw their crops and flips; return where row ``first`` is, too."""
        return request.shared(("wanted", self.name), self._wanted, first, last)

    def _wanted(self, request: Request, first: int, last: int) -> WantedPictures:
        rows = request.rows_of(first, last)
        records = self.read_records(self.name, rows)
        heads = self._heads(records, rows)
        sizes = sizes_of(heads)
        plans = [
            geometry_of(request, ops, view, sizes, first, last)
            for view, ops in enumerate(self.views)
        ]
        if isinstance(self.field, Mask):  # pixel ops leave them as they are
            plans = [replace(plan, edits=None) for plan in plans]
        if self._is_bytes or self._is_whole:  # all of each
            parts, factors = np.zeros((len(heads), 4), np.int64), np.ones(len(heads), np.int64)
        else:
            covers, factors = _needed(plans, sizes)
            parts = parts_of(heads, covers, request.num_workers)
        steps, are_ready = self._steps(heads, sizes, plans, factors)
        return WantedPictures(records, heads, sizes, plans, parts, factors, steps, are_ready)

    def _steps(
        self, heads: Heads, sizes: Ints, plans: Sequence[Geometry], reductions: Ints
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Prepare what happens to JPEGs and raw bytes; return which of them are ready, too."""
        steps = np.zeros((len(heads), len(plans), 8), np.int64)
        shapes = [layout.shape[:2] for layout in self.layouts.values() if layout is not None]
        are_ready = ((heads["height_at"] > 0) | self._is_bytes) & (len(shapes) == len(plans))
        if not are_ready.any():
            return steps, are_ready
        for view, (plan, shape) in enumerate(zip(plans, shapes, strict=True)):
            are_ready &= np.equal(plan.sizes, shape).all(axis=1)
            if not self._is_whole:
                steps[:, view], are_inside = steps_of(plan, sizes, reductions)
                are_ready &= are_inside
        return steps, are_ready

    @cached_property
    def _channels(self) -> int:
        return self.field.channels if isinstance(self.field, Image) else 1

    @cached_property
    def _is_bytes(self) -> bool:
        """Whether pictures are stored as the bytes that steps are taken on."""
        field = self.field
        return (
            field.codec == "raw"
            and field.dtype == "uint8"
            and 1 <= self._channels <= 4
            and isinstance(field, Image)
        )

    @cached_property
    def _is_whole(self) -> bool:
        """Whether JPEGs are decoded into their places: there are no ops."""
        return self.views == ((),) and not self._is_bytes

    def _heads(self, records: Sequence[UInt8Array], rows: Rows) -> Heads:
        if isinstance(self.codec, PictureCodec):
            most = self.codec.max_pixels
            heads = (
                picture_heads(records, most)
                if self.known is None
                else self.known.of(records, rows, most)
            )
            if not self.codec.keeps_jpeg:
                heads["height_at"] = heads["interval"] = 0
            return heads
        sizes = [self.field.size or self.codec.decode(record).shape[:2] for record in records]
        heads = np.zeros(len(records), HEADS)
        heads["height"], heads["width"] = np.array(sizes, np.int64).reshape(-1, 2).T
        return heads

    def _decode(
        self, record: UInt8Array, size: tuple[int, int], reduction: int
    ) -> tuple[npt.NDArray[Any], int]:
        """Decode a picture; return it and by how much it was reduced: JPEG alone can be."""
        if not isinstance(self.codec, PictureCodec):
            return self.codec.decode(record), 1
        buffer = scratch(math.prod(size) * self._channels)
        image = self.codec.decode(record, reduction, buffer, size)
        return image, 1 if image.shape[:2] == size else reduction

    def finish(self, values: list[Any]) -> list[Any]:
        return [
            value if layout is None else layout.tensor(value[0], len(value[1]))
            for layout, value in zip(self.layouts.values(), values, strict=True)
        ]


def _edit(plan: Geometry, i: int, image: npt.NDArray[Any]) -> None:
    """Carry out the edits of a picture in one view, in place."""
    if plan.edits is not None:
        kinds, values = plan.edits
        edit(image, kinds[i].tolist(), values[i].tolist())


def _needed(plans: Sequence[Geometry], lengths: Ints) -> tuple[Ints, Ints]:
    """Return the box that covers those of all views of each picture, and by how much that may be reduced."""
    covers = [plan.covers(lengths) for plan in plans]
    factors = [_reductions(plan) for plan in plans]
    if len(plans) == 1:
        return covers[0], factors[0]
    starts = np.minimum.reduce([boxes[:, :2] for boxes in covers])
    ends = np.maximum.reduce([boxes[:, :2] + boxes[:, 2:] for boxes in covers])
    return np.concatenate([starts, ends - starts], axis=1), np.minimum.reduce(factors)


def _reductions(plan: Geometry) -> Ints:
    if plan.regions is not None:  # the filter wants all pixels
        return np.ones(len(plan), np.int64)
    # The boxes of warped pictures enclose more than is shown.
    return np.where(plan.is_warped, 1, reductions(plan.boxes, plan.sizes))
