"""Values that a batch has as lists: text, JSON, arrays of varying shape, pictures; and what follows crops of a picture.

Boxes and keypoints are moved as its pixels are; what belongs to boxes is dropped with them. Any number of pictures a
sample are read as one sequence of pictures, with the draw of its sample for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loaders import augment
from loaders.augment.pixels import move_boxes, move_keypoints
from loaders.buffers import Memory
from loaders.codecs.picture import split_files
from loaders.datasets.reading.known import boxes_of, first_boxes, has_rows
from loaders.datasets.reading.request import Reader, Request
from loaders.datasets.reading.samples import Form, in_form, with_own_storage
from loaders.errors import BatchError, CodecError
from loaders.schema import Boxes, Field, Keypoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Move
    from loaders.data.store import Store
    from loaders.datasets.reading.pictures import PictureReader

    Bools = npt.NDArray[np.bool_]
    UInt8Array = npt.NDArray[np.uint8]


class ListReader(Reader):
    """Values that a batch has as lists, or in the form that ``batching`` says."""

    batching: Form

    def begin(self, num_samples: int, memory: Memory) -> list[Any]:
        return [[None] * num_samples for _ in self.names]

    def finish(self, values: list[Any]) -> list[Any]:
        named = zip(self.names, values, strict=True)
        return [in_form(each, self.batching, name) for name, each in named]


@dataclass(frozen=True, slots=True)
class ObjectReader(ListReader):
    """Anything else, value by value: text, JSON, bytes, arrays of varying shape."""

    store: Store
    name: str
    field: Field
    codec: Any
    batching: Form
    min_rows = 256

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = request.records(self.store.records, self.name, first, last)
        for i, record in enumerate(records, first):
            value = self.codec.decode(record)
            values[0][i] = (
                torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
            )


def sanitizer_of(
    name: str, field: Field, ops: Sequence[Any], fields: Mapping[str, Field]
) -> augment.SanitizeBoundingBoxes | None:
    """Return the op that drops rows of a field with boxes; None where none does."""
    for op in reversed(ops):
        if isinstance(op, augment.SanitizeBoundingBoxes):
            goes_along = has_rows(field) if op.fields is None else name in op.fields
            return op if goes_along or name == first_boxes(fields) else None
    return None


@dataclass(frozen=True, slots=True)
class ShapeReader(ObjectReader):
    """Values that follow the crops of a picture, in each of its views."""

    picture: PictureReader  # whose crops they follow
    # The op that drops rows, by view; None: none does.
    sanitizers: tuple[augment.SanitizeBoundingBoxes | None, ...]
    is_guess: bool  # it is the first of several images
    is_leader: bool  # it is the field of boxes that ops look at

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            f"{self.name}{name.removeprefix(self.picture.name)}" for name in self.picture.names
        )

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = request.records(self.store.records, self.name, first, last)
        wanted, start = self.picture.wanted(request, first, last)
        keeps = [self._kept(view, request, first, last) for view in range(len(values))]
        for i, record in enumerate(records):
            value = self.codec.decode(record)
            if self.is_guess and isinstance(self.field, Boxes):
                _check_inside(value, self.picture.name, wanted.sizes[start + i])
            for view, move in enumerate(wanted.moves(start + i)):
                marks = wanted.plans[view].kept if self.is_leader else None
                moved = self._moved(value, move)
                if marks is not None:
                    moved = moved * marks[start + i][:, None]
                kept = keeps[view]
                if kept is not None:
                    if len(moved) != len(kept[i]):
                        what = f"sample {request.indices[first + i]} has {len(kept[i])} boxes and {len(moved)} rows"
                        raise BatchError(
                            f"{what} of {self.name!r}: name the fields with one row per box in "
                            "SanitizeBoundingBoxes(fields=[...])"
                        )
                    moved = moved[kept[i]]
                values[view][first + i] = torch.from_numpy(moved)

    def _moved(self, value: npt.NDArray[Any], move: Move) -> npt.NDArray[Any]:
        if isinstance(self.field, Boxes):
            return move_boxes(value, move)
        if isinstance(self.field, Keypoints):
            return move_keypoints(value, move, self.field.flip_pairs)
        return np.array(value)

    def _kept(self, view: int, request: Request, first: int, last: int) -> Sequence[Bools] | None:
        """Return which boxes of each sample are left in a view; None: all."""
        if self.sanitizers[view] is None:
            return None
        keeps = partial(self._keeps, view)
        return request.shared_rows(("kept", self.picture.name, view), keeps, first, last)

    def _keeps(self, view: int, request: Request, first: int, last: int) -> list[Bools]:
        sanitizer = self.sanitizers[view]
        assert sanitizer is not None
        wanted, start = self.picture.wanted(request, first, last)
        found = []
        for i, boxes in enumerate(boxes_of(request, first, last), start):
            marks = wanted.plans[view].kept
            moved = move_boxes(boxes, wanted.moves(i)[view])
            kept = sanitizer.keeps(moved)
            found.append(kept if marks is None else kept & marks[i])
        return found


def _check_inside(boxes: npt.NDArray[Any], picture: str, size: npt.NDArray[np.int64]) -> None:
    """Raise CodecError if one begins beyond the picture: it was drawn on another one of the sample."""
    height, width = size.tolist()
    outside = (boxes[:, 0] > width) | (boxes[:, 1] > height)
    if outside.any():
        box, where = boxes[outside.argmax()].tolist(), f"{picture!r}, which is {height} x {width}"
        what = f"box {box} lies outside of {where}. Boxes are in pixels of the first image of the schema"
        raise CodecError(f"{what}: list that one first when packing")


@dataclass(frozen=True, slots=True)
class ImagesReader(ListReader):
    """Pictures of samples: of each a list, or a tensor where all leave with one size."""

    store: Store  # where the records lie
    name: str  # of the field
    pictures: PictureReader  # reads single pictures from their places
    batching: Form
    min_rows = 1

    @property
    def names(self) -> tuple[str, ...]:
        return self.pictures.names

    def read(self, values: list[Any], request: Request, first: int, last: int) -> None:
        records = request.records(self.store.records, self.name, first, last)
        samples = [split_files(record) for record in records]
        counts = [len(files) for files in samples]
        files = [file for sample in samples for file in sample]
        # A row for each picture, which draws as its sample does.
        views = self._decoded(files, request.select(np.repeat(np.arange(first, last), counts)))
        ends = list(accumulate(counts, initial=0))
        for value, pictures in zip(values, views, strict=True):
            for row, start, end in zip(range(first, last), ends, ends[1:], strict=False):
                part = pictures[start:end]
                value[row] = with_own_storage(part) if isinstance(part, torch.Tensor) else part

    def _decoded(self, files: list[UInt8Array], request: Request) -> list[Any]:
        """Return all pictures of each view."""
        # All at once; their numbers are those of samples.
        reader = replace(self.pictures, read_records=lambda name, rows: files, known=None)
        values = reader.begin(len(files), Memory())
        if files:
            reader.read(values, request, 0, len(files))
        return reader.finish(values)
