"""Images and masks of a batch: decoded, cropped, resized and flipped into their places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaders import augment
from loaders.buffers import scratch
from loaders.codecs.heads import PictureHead, picture_head
from loaders.codecs.jpeg import PicturePart, part_of
from loaders.datasets.reading.fixed import Layout
from loaders.errors import CodecError
from loaders.schema import Image, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from loaders.datasets.access.store import Store
    from loaders.datasets.reading.request import Memory, Request

    UInt8Array = npt.NDArray[np.uint8]


class Wanted(NamedTuple):
    """What is wanted of one picture.

    Attributes:
        record: The file.
        head: Its header.
        reduction: By how much it may be reduced.
        cover: The box that covers those of all views.
        moves: Box, size and flips of each view, as plain numbers.
    """

    record: UInt8Array
    head: PictureHead
    reduction: int
    cover: list[int]
    moves: Sequence[tuple[list[int], list[int], list[bool]]]


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
    def asks_for(self) -> str | None:
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
        nearest = isinstance(self.field, Mask)
        places = zip(*self._places(values, first, last), strict=True)
        pictures = zip(self.wanted(request, first, last), places, strict=True)
        for i, ((record, head, reduction, cover, moves), outs) in enumerate(pictures, first):
            part = part_of(record, head, cover, request.num_workers)
            image, source_size = self._decode(part, reduction)
            for view, (out, (box, size, flip)) in enumerate(zip(outs, moves, strict=True)):
                if part.top or part.left:
                    box = [box[0] - part.top, box[1] - part.left, *box[2:]]
                done = augment.apply(
                    image, box, size, flip, self.fills[view],
                    out=out, nearest=nearest, source_size=source_size,
                )  # fmt: skip
                if out is None:
                    values[view][i] = _channels_first(done)

    def _records(self, request: Request, first: int, last: int) -> Sequence[UInt8Array]:
        return request.records(self.store, self.name, first, last)

    def wanted(self, request: Request, first: int, last: int) -> Sequence[Wanted]:
        """Find pictures, read their headers, and draw their crops and flips."""
        find = partial(self._wanted, request)
        return request.shared(("wanted", self.name), find, first, last)

    def _wanted(self, request: Request, first: int, last: int) -> list[Wanted]:
        records = self.store.records(self.name, request.part(first, last))
        heads = [self._head(record) for record in records]
        shapes = [head[:2] for head in heads]
        plans = [self._geometry(v, request, shapes, first, last) for v in range(len(self.views))]
        moves = zip(*map(_moves, plans), strict=True)
        return list(map(Wanted, records, heads, *_needed(plans), moves))

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

    def _head(self, record: UInt8Array) -> PictureHead:
        if self.field.codec != "raw":
            return picture_head(record)
        return PictureHead(*(self.field.size or self.codec.decode(record).shape[:2]))

    def _geometry(
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


def _needed(plans: Sequence[augment.Geometry]) -> tuple[list[int], list[list[int]]]:
    """Return by how much each picture may be reduced, and the box that covers those of all its views."""
    reductions = [augment.reductions(plan.boxes, plan.sizes) for plan in plans]
    covers = plans[0].boxes
    if len(plans) > 1:
        starts = np.minimum.reduce([plan.boxes[:, :2] for plan in plans])
        ends = np.maximum.reduce([plan.boxes[:, :2] + plan.boxes[:, 2:] for plan in plans])
        covers = np.concatenate([starts, ends - starts], axis=1)
    return np.minimum.reduce(reductions).tolist(), covers.tolist()


def _moves(plan: augment.Geometry) -> Iterable[tuple[list[int], list[int], list[bool]]]:
    """Return the box, size and flips of each picture, as plain numbers."""
    return zip(plan.boxes.tolist(), plan.sizes.tolist(), plan.flips.tolist(), strict=True)


def _channels_first(array: npt.NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.permute(2, 0, 1) if tensor.dim() == 3 else tensor
