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
from loaders.codecs.heads import HEAD, PictureHead, picture_heads
from loaders.codecs.jpeg import blocks_of, cut_out, ends_of, first_rows
from loaders.codecs.picture import PictureCodec
from loaders.datasets.reading.fixed import Layout
from loaders.datasets.reading.known import geometry_of
from loaders.datasets.reading.request import Reader
from loaders.errors import CodecError
from loaders.schema import Image, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Geometry, Move
    from loaders.data.finder import Rows
    from loaders.data.store import Store
    from loaders.datasets.reading.request import Request

    UInt8Array = npt.NDArray[np.uint8]
    Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class WantedPictures:
    """What is wanted of N pictures, as lists of numbers: an object for each would cost garbage collection."""

    records: list[UInt8Array]  # the files
    heads: Ints  # ``(N, 7)``: what their headers say, as ``PictureHead``
    plans: list[Geometry]  # boxes, sizes and flips of each view
    blocks: Ints  # ``(N, 10)``: which segments are enough of each, as of ``blocks_of``; zeros: none are
    ends: list[int]  # how many rows are enough of each of the others; 0: all
    reductions: list[int]  # by which factor the decoder may shrink each: 1, 2, 4 or 8
    # What happens to each that is ready: for each view 8 lists of N, the numbers of a ``Step``.
    steps: list[list[list[int]]]
    # Whether each is a JPEG or raw bytes, with all boxes inside it and results of the batch's size; others are
    # read one by one.
    are_ready: list[bool]

    @property
    def sizes(self) -> Ints:
        """Height and width of each, ``(N, 2)``."""
        return self.heads[:, :2]

    def each(self, first: int, last: int) -> Iterator[tuple[Any, ...]]:
        """Yield of some pictures what is needed of each."""
        lists: tuple[list[Any], ...] = (
            self.are_ready,
            self.records,
            self.ends,
            self.reductions,
        )
        steps = [zip(*[numbers[first:last] for numbers in view]) for view in self.steps]  # noqa: B905  # costs
        heads, blocks = self.heads[first:last].tolist(), self.blocks[first:last].tolist()
        parts = [column[first:last] for column in lists]
        return zip(*parts, heads, blocks, zip(*steps), strict=True)  # noqa: B905

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

    def of(self, records: Sequence[UInt8Array], rows: Rows, max_pixels: int) -> Ints:
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
    views: tuple[tuple[str, tuple[Any, ...]], ...]  # name and ops of each; no ops: as stored
    codec: Any
    # Height and width of all results, by view; None: they differ, and a batch is a list of tensors.
    sizes: tuple[tuple[int, int] | None, ...]
    fills: tuple[Any, ...]  # of each view: what lies outside of the pictures
    known: KnownHeads | None = None  # of the store's pictures; None: heads are read each time
    min_rows = 4

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.views)

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [
            [None] * num_samples if layout is None else layout.slot(name, num_samples, memory)
            for name, layout in zip(self.names, self._layouts, strict=True)
        ]

    @cached_property
    def _layouts(self) -> list[Layout | None]:
        return [size and Layout.of(replace(self.field, size=size)) for size in self.sizes]

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        wanted, start = self.wanted(request, first, last)
        buffer = scratch(int(wanted.sizes.prod(axis=1).max(initial=0)) * self._channels)
        decode: Any = (
            (lambda record, *_: self.codec.decode(record))
            if self._is_bytes
            else getattr(self.codec, "decode_jpeg", None)
        )
        is_edited = any(plan.edits is not None for plan in wanted.plans)
        pictures = wanted.each(start, start + last - first)
        places, is_whole = self._places(values, first, last), self._is_whole
        rows = zip(range(first, last), pictures, *places, strict=True)
        # Inlined on purpose: this runs with the GIL held and a cold cache.
        for row, picture, *outs in rows:
            is_ready, record, end, reduction, head, block, steps = picture
            if not is_ready:
                self._read_any(wanted, start + row - first, values, row)
                continue
            height, width, height_at = head[:3]
            if is_whole:
                decode(record, 1, height, width, outs[0], False)
                continue
            ends_early = False
            part = cut_out(record, PictureHead._make(head), block) if block[1] else None
            if part is not None:
                record, height, width, top, left = part
                steps = moved_steps(steps, top // reduction, left // reduction)
            elif end and (cut := first_rows(record, height_at, end, width)) is not None:
                record, height, ends_early = cut, end, True
            image = decode(record, reduction, height, width, buffer, ends_early)
            take_steps(image, steps, outs)
            if is_edited:
                self._edit(wanted, start + row - first, outs)

    def _read_any(self, wanted: WantedPictures, i: int, values: list[Any], row: int) -> None:
        """Read a picture of any format and dtype, all of it."""
        height, width = wanted.sizes[i].tolist()
        size = height, width
        outs = [
            None if size is None else value[1][row]
            for value, size in zip(values, self.sizes, strict=True)
        ]
        for out, plan in zip(outs, wanted.plans, strict=True):
            if out is not None and out.shape[:2] != tuple(plan.sizes[i].tolist()):  # without ops
                what = f"the picture is {height} x {width}"
                raise CodecError(f"{what}, the field says {self.field.size}")
        image, reduction = self._decode(wanted.records[i], size, wanted.reductions[i])
        for view, (out, move) in enumerate(zip(outs, wanted.moves(i), strict=True)):
            if reduction > 1:
                numbers = map(np.array, ([move.box], [size], [reduction]))
                move = move._replace(box=reduced_boxes(*numbers)[0].tolist())
            if self._is_whole and out is None:
                done = image.copy()
            else:
                done = carry_out(
                    image, move, wanted.plans[view].resampling, self.fills[view],
                    out=out, nearest=isinstance(self.field, Mask),
                )  # fmt: skip
            self._edit(wanted, i, [done], view)
            if out is None:
                tensor = torch.from_numpy(np.ascontiguousarray(done))
                values[view][row] = tensor.permute(2, 0, 1) if tensor.dim() == 3 else tensor

    def _edit(self, wanted: WantedPictures, i: int, outs: Sequence[Any], view: int = 0) -> None:
        """Carry out the edits of a picture, in place, of its views from one on; masks have none."""
        for plan, out in zip(wanted.plans[view:], outs, strict=False):
            if plan.edits is not None and isinstance(self.field, Image):
                kinds, values = plan.edits
                edit(out, kinds[i].tolist(), values[i].tolist())

    def wanted(self, request: Request, first: int, last: int) -> tuple[WantedPictures, int]:
        """Find pictures, read their headers, and draw their crops and flips; return where row ``first`` is, too."""
        return request.shared(("wanted", self.name), self._wanted, first, last)

    def _wanted(self, request: Request, first: int, last: int) -> WantedPictures:
        records = self.read_records(self.name, request.rows_of(first, last))
        heads = self._heads(records, request.rows_of(first, last))
        sizes = heads[:, :2]
        plans = [
            geometry_of(request, ops, view, sizes, first, last)
            for view, (_, ops) in enumerate(self.views)
        ]
        num = len(heads)
        if self._is_bytes or self._is_whole:  # all of each
            blocks, ends = np.zeros((num, 10), np.int64), np.zeros(num, np.int64)
            factors = np.ones(num, np.int64)
        else:
            covers, factors = _needed(plans, sizes)
            blocks, ends = blocks_of(heads, covers, request.num_workers), ends_of(sizes, covers)
        ready = self._steps(heads, plans, factors)
        return WantedPictures(
            records, heads, plans, blocks, ends.tolist(), factors.tolist(), *ready
        )

    def _steps(
        self, heads: Ints, plans: Sequence[Geometry], reductions: Ints
    ) -> tuple[list[list[list[int]]], list[bool]]:
        """Prepare what happens to JPEGs and raw bytes; return which of them are ready, too."""
        num = len(heads)
        are_ready = (heads[:, 2] > 0) | self._is_bytes
        if None in self.sizes:
            are_ready[:] = False
        if self._is_whole:
            are_ready &= (heads[:, :2] == self.sizes[0]).all(axis=1)
        if self._is_whole or not are_ready.any():
            return [[[0] * num]] * len(plans), are_ready.tolist()
        views: list[list[list[int]]] = []
        for plan, size in zip(plans, self.sizes, strict=True):
            steps, are_inside = steps_of(plan, heads[:, :2], reductions)
            are_ready &= are_inside & (plan.sizes == size).all(axis=1)
            views.append(steps.T.tolist())
        return views, are_ready.tolist()

    def _places(self, values: list[Any], first: int, last: int) -> Iterator[Sequence[Any]]:
        """Yield for each view where its pictures go; None where their sizes differ."""
        for value, size in zip(values, self.sizes, strict=True):
            if size is None:
                yield [None] * (last - first)
            else:
                rows = value[1][first:last]
                yield tuple(rows.reshape(len(rows), -1) if self._is_whole else rows)

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
        return len(self.views) == 1 and not self.views[0][1] and not self._is_bytes

    def _heads(self, records: Sequence[UInt8Array], rows: Rows) -> Ints:
        if isinstance(self.codec, PictureCodec):
            most = self.codec.max_pixels
            heads = (
                picture_heads(records, most)
                if self.known is None
                else self.known.of(records, rows, most)
            )
            if not self.codec.keeps_jpeg:
                heads[:, 2:] = 0
            return heads
        sizes = [self.field.size or self.codec.decode(record).shape[:2] for record in records]
        heads = np.zeros((len(records), len(PictureHead._fields)), np.int64)
        heads[:, :2] = np.array(sizes, np.int64).reshape(-1, 2)
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
            for layout, value in zip(self._layouts, values, strict=True)
        ]


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
