"""Images and masks of a batch: decoded, cropped, resized and flipped into their places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders import augment
from loaders.buffers import scratch
from loaders.cached import cached_property
from loaders.codecs.heads import PictureHead, PictureHeads, picture_heads
from loaders.codecs.jpeg import Block, PicturePart, blocks_of, ends_of, first_rows, part_of
from loaders.datasets.reading.fixed import Layout
from loaders.errors import CodecError
from loaders.schema import Image, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.augment.pixels import Step
    from loaders.datasets.access.store import Store
    from loaders.datasets.reading.request import Memory, Request

    UInt8Array = npt.NDArray[np.uint8]

_FEW = 4  # pictures: preparing takes as long as looking at so many one by one

Move = tuple[list[int], list[int], list[bool]]  # box, size and flips


@dataclass(slots=True)
class Wanted:
    """What is wanted of N pictures.

    Attributes:
        records: The files.
        heads: Their headers.
        sizes: Height and width of each.
        plans: Boxes, sizes and flips of each view.
        reductions: By how much each may be reduced.
        blocks: Which segments of each are enough; None: as many rows.
        ends: How many that is; 0: all.
        steps: What happens to each in each view, of those that are ready.
        most_pixels: Of the largest.
        are_ready: Whether it is a JPEG whose boxes are all inside, with results of the batch's size: others are
            looked at one by one.
    """

    records: list[UInt8Array]
    heads: PictureHeads
    sizes: list[tuple[int, ...]]
    plans: list[augment.Geometry]
    reductions: list[int]
    blocks: list[Block | None]
    ends: list[int]
    most_pixels: int = dataclass_field(init=False)
    steps: list[tuple[Step, ...]] = dataclass_field(init=False)
    are_ready: list[bool] = dataclass_field(init=False)

    def __post_init__(self) -> None:
        num = len(self.records)
        self.most_pixels = int(self.heads.sizes.prod(axis=1).max(initial=0))
        self.steps, self.are_ready = [()] * num, [False] * num

    def moves(self, i: int) -> list[Move]:
        """Return what happens to a picture in each view."""
        return [
            (boxes[i].tolist(), sizes[i].tolist(), flips[i].tolist())
            for boxes, sizes, flips in self.plans
        ]

    def columns(self, first: int, last: int) -> tuple[Sequence[Any], ...]:
        """Return of some pictures what is needed of each."""
        columns = (
            self.are_ready,
            self.records,
            self.heads.jpegs,
            self.sizes,
            self.blocks,
            self.ends,
            self.reductions,
            self.steps,
        )
        return tuple(column[first:last] for column in columns)

    def part(self, i: int) -> PicturePart:
        """Return what of a picture is needed."""
        height, width = self.sizes[i]
        head = PictureHead(height, width, self.heads.jpegs[i])
        return part_of(self.records[i], head, self.ends[i], self.blocks[i])


@dataclass(frozen=True)
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
    fills: tuple[int, ...]  # of each view: what lies outside of the pictures
    min_rows: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.views)

    @property
    def read_ahead_field(self) -> str | None:
        return self.name if self.store.reads_whole else None

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [
            [None] * num_samples
            if layout is None
            else self._slot(name, layout, num_samples, memory)
            for name, layout in zip(self.names, self._layouts, strict=True)
        ]

    @cached_property
    def _layouts(self) -> list[Layout | None]:
        return [size and Layout.of(replace(self.field, size=size)) for size in self.sizes]

    def _slot(
        self, name: str, layout: Layout, num_samples: int, memory: Memory
    ) -> tuple[torch.Tensor, npt.NDArray[Any]]:
        dtype = np.dtype(self.field.dtype)
        flat = memory.take(name, num_samples * prod(layout.shape) * dtype.itemsize)
        rows = flat.view(dtype).reshape(num_samples, *layout.shape)
        return layout.tensor(flat, num_samples), rows

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        if self._is_plain:
            for i, record in enumerate(self._records(request, first, last), first):
                self._read_plain(values, i, record)
            return
        wanted, start = self.wanted(request, first, last)
        buffer = scratch(wanted.most_pixels * self._channels)
        decode: Any = getattr(self.codec, "decode_jpeg", None)  # those that are ready have one
        end_at = start + last - first
        numbers = range(start, end_at), range(first, last)  # in ``wanted``, and in the batch
        places = self._places(values, first, last)
        pictures = zip(*numbers, *wanted.columns(start, end_at), *places, strict=True)
        # Flat: a thread fetches what runs between two decoders into a cold cache, with the interpreter's lock.
        for i, row, is_ready, record, jpeg, size, block, end, reduction, steps, *outs in pictures:
            if not is_ready:
                self._read_any(wanted, i, outs, values, row)
                continue
            (height, width), ends_early = size, False
            if block is not None:
                record, height, width, top, left, ends_early = wanted.part(i)
                steps = augment.moved_steps(steps, top // reduction, left // reduction)
            elif end and (cut := first_rows(record, jpeg, end, width)) is not None:
                record, height, ends_early = cut, end, True
            image = decode(record, reduction, height, width, buffer, ends_early)
            augment.take_steps(image, steps, outs)

    def _read_any(
        self,
        wanted: Wanted,
        i: int,
        outs: Sequence[Any],
        values: list[Any],
        row: int,
    ) -> None:
        """Read a picture of any format and dtype."""
        part = wanted.part(i)
        image, source_size = self._decode(part, wanted.reductions[i])
        for view, (out, (box, size, flip)) in enumerate(zip(outs, wanted.moves(i), strict=True)):
            done = augment.apply(
                image, [box[0] - part.top, box[1] - part.left, *box[2:]], size, flip, self.fills[view],
                out=out, nearest=isinstance(self.field, Mask), source_size=source_size,
            )  # fmt: skip
            if out is None:
                values[view][row] = _channels_first(done)

    def _records(self, request: Request, first: int, last: int) -> Sequence[UInt8Array]:
        return request.records(self.store, self.name, first, last)

    def wanted(self, request: Request, first: int, last: int) -> tuple[Wanted, int]:
        """Find pictures, read their headers, and draw their crops and flips; return where row ``first`` is, too."""
        return request.shared(("wanted", self.name), self._wanted, first, last)

    def _wanted(self, request: Request, first: int, last: int) -> Wanted:
        records = self.store.records(self.name, request.part(first, last))
        heads = self._heads(records)
        plans = [
            request.geometry(ops, view, heads.sizes, first, last)
            for view, (_, ops) in enumerate(self.views)
        ]
        covers, reductions = _needed(plans)
        enough = (
            blocks_of(heads.sizes, heads.jpegs, covers, request.num_workers),
            ends_of(heads.sizes, covers),
        )
        # Tuples, which no collection of garbage looks at twice.
        sizes = list(map(tuple, heads.sizes.tolist()))
        wanted = Wanted(records, heads, sizes, plans, reductions.tolist(), *enough)
        if None not in self.sizes and len(records) >= _FEW and any(heads.jpegs):
            self._prepare(wanted, reductions)
        return wanted

    def _prepare(self, wanted: Wanted, reductions: npt.NDArray[np.int64]) -> None:
        """Prepare what happens to JPEGs."""
        sizes = wanted.heads.sizes
        views = [augment.steps_of(plan, sizes, reductions) for plan in wanted.plans]
        are_ready = np.array([jpeg is not None for jpeg in wanted.heads.jpegs])
        for plan, size, (_, are_inside) in zip(wanted.plans, self.sizes, views, strict=True):
            are_ready &= are_inside & (plan.sizes == size).all(axis=1)
        by_view = (map(tuple, steps.tolist()) for steps, _ in views)
        wanted.steps = list(zip(*by_view, strict=True))
        wanted.are_ready = are_ready.tolist()

    def _places(self, values: list[Any], first: int, last: int) -> Iterator[Sequence[Any]]:
        """Yield for each view where its pictures go; None where their sizes differ."""
        for value, size in zip(values, self.sizes, strict=True):
            yield [None] * (last - first) if size is None else tuple(value[1][first:last])

    @cached_property
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

    def _heads(self, records: Sequence[UInt8Array]) -> PictureHeads:
        if self.field.codec != "raw":
            heads = picture_heads(records)
            return (
                heads
                if self.codec.keeps_jpeg
                else PictureHeads(heads.sizes, [None] * len(records))
            )
        sizes = [self.field.size or self.codec.decode(record).shape[:2] for record in records]
        return PictureHeads(np.array(sizes, np.int64).reshape(-1, 2), [None] * len(records))

    def _decode(
        self, part: PicturePart, reduction: int
    ) -> tuple[npt.NDArray[Any], tuple[int, int] | None]:
        """Decode a picture or a part of one; return it and, if it was reduced, its size at full scale."""
        if self.field.codec == "raw":
            return self.codec.decode(part.record), None
        size = part.height, part.width
        buffer = scratch(part.height * part.width * self._channels)
        image = self.codec.decode(part.record, reduction, buffer, size, ends_early=part.ends_early)
        return image, None if reduction == 1 else size

    def finish(self, values: list[Any]) -> list[Any]:
        return [v if size is None else v[0] for v, size in zip(values, self.sizes, strict=True)]


def _needed(
    plans: Sequence[augment.Geometry],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the box that covers those of all views of each picture, and by how much that may be reduced."""
    reductions = [augment.reductions(plan.boxes, plan.sizes) for plan in plans]
    covers = plans[0].boxes
    if len(plans) > 1:
        starts = np.minimum.reduce([plan.boxes[:, :2] for plan in plans])
        ends = np.maximum.reduce([plan.boxes[:, :2] + plan.boxes[:, 2:] for plan in plans])
        covers = np.concatenate([starts, ends - starts], axis=1)
    return covers, np.minimum.reduce(reductions)


def _channels_first(array: npt.NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.permute(2, 0, 1) if tensor.dim() == 3 else tensor
