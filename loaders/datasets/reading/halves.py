"""Batches in two halves: the host reads pictures as they are stored and draws their moves, a device does the rest.

A dataset's ``halves`` are a plan whose batches are pairs, the batch and its moves, and a function that finishes these.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from loaders.datasets.base import SamplesOf
from loaders.datasets.reading.crops import spatial_axes
from loaders.datasets.reading.known import geometry_of
from loaders.device.accelerator import without_autocast
from loaders.device.pixels import move_images, move_masks
from loaders.device.planning import Moves, moves_of
from loaders.errors import SchemaError
from loaders.schema import Field, Image, Images, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Op
    from loaders.datasets.base import Halves
    from loaders.datasets.reading.request import Request

    Indices = npt.NDArray[np.int64]
    Sizes = Mapping[str, tuple[int, int] | Sequence[tuple[int, int]]]


class PictureMoves(NamedTuple):
    """What augmentation does to the pictures of one size in a batch."""

    names: list[str]  # of their fields: image and mask of one size move together
    rows: Indices | None  # of their samples, on the host; None: all
    moves: Moves


Unfinished = tuple[Any, list[PictureMoves]]  # a batch before its pictures are made and moved


def draw_picture_moves(ops: tuple[Op, ...], sizes: Sizes, request: Request) -> list[PictureMoves]:
    """Draw what happens to the pictures of some fields: of one size each, or of a size for each sample."""
    if not ops:
        return []
    groups: dict[tuple[tuple[int, int], tuple[int, ...] | None], list[str]] = {}
    for name, given in sizes.items():
        distinct = [given] if isinstance(given, tuple) else [*dict.fromkeys(given)]
        for size in distinct:
            is_size_of_all = len(distinct) == 1
            rows = None if is_size_of_all else tuple(i for i, s in enumerate(given) if s == size)
            groups.setdefault((size, rows), []).append(name)
    drawn: list[PictureMoves] = []
    for (size, rows), names in groups.items():
        which = None if rows is None else np.array(rows)
        part = request if which is None else request.select(which)
        lengths = np.broadcast_to(np.array(size), (len(part), 2))
        geometry = geometry_of(part, ops, 0, lengths, 0, len(part))
        drawn.append(PictureMoves(names, which, moves_of(ops, geometry, size)))
    return drawn


def move_pictures(
    values: dict[str, Any], fields: Mapping[str, Field], drawn: list[PictureMoves]
) -> None:
    """Replace pictures, tensors ``(N, ...)`` or lists of tensors, by what augmentation makes of them."""
    for names, rows, moves in drawn:
        for name in names:
            move = move_images if isinstance(fields[name], Image) else move_masks
            value = values[name]
            if rows is None:
                stacked = value if isinstance(value, torch.Tensor) else torch.stack(value)
                values[name] = move(stacked, moves)
                continue
            moved = move(torch.stack([value[i] for i in rows.tolist()]), moves)
            for i, picture in zip(rows.tolist(), moved, strict=True):
                value[i] = picture


def make_whole(
    half: Unfinished,
    *,
    fields: Mapping[str, Field],  # of the dataset
    makers: Mapping[str, Callable[[Any], Any]],  # make pictures of what the host read
    lists: Collection[str] = (),  # fields whose pictures differ in size in the end
) -> Any:
    """Return a batch, a named tuple, with its pictures, where they are."""
    batch, drawn = half
    names = dict.fromkeys([*makers, *(name for each in drawn for name in each.names)])
    values = {name: getattr(batch, name) for name in names}
    with without_autocast():
        for name, make in makers.items():
            values[name] = make(values[name])
        move_pictures(values, fields, drawn)
    for name, pictures in values.items():
        is_list = isinstance(pictures, list)
        if is_list != (name in lists):
            values[name] = torch.stack(pictures) if is_list else [*pictures]
    return batch._replace(**values)


def with_moves(ops: tuple[Op, ...], sizes: Sizes, batch: Any, request: Request) -> Unfinished:
    """Add to a batch what is drawn for its pictures of some sizes."""
    return batch, draw_picture_moves(ops, sizes, request)


# -- pixels of one size, which augmentation moves on a device --------------------------------------


def moving_halves(dataset: Any) -> Halves:
    """Return the halves of a dataset of pixels of one size, which augmentation moves on a device."""
    check_on_device(dataset, _why_not_moved, "; leave augment_on='auto'")
    sizes = picture_sizes(dataset)
    plan = dataset.plan_half(partial(with_moves, dataset.augment, sizes))
    return SamplesOf(dataset, plan), partial(make_whole, fields=dataset.stored_fields, makers={})


def picture_sizes(dataset: Any) -> dict[str, tuple[int, int]]:
    """Return the size of the pictures of each field that augmentation moves."""
    fields = dataset.stored_fields.items()
    return {n: f.size for n, f in fields if isinstance(f, Image | Mask) and f.size is not None}


def _why_not_moved(field: Field) -> str:
    if isinstance(field, Image | Mask) and (field.codec != "raw" or field.size is None):
        return "is not stored as pixels of one size"
    return "is any number of pictures, moved on the host" if isinstance(field, Images) else ""


def check_on_device(dataset: Any, why_not: Callable[[Field], str], hint: str) -> None:
    """Raise SchemaError, which ends with ``hint``, if a device cannot make batches of a dataset whole.

    It moves images and masks alone. ``why_not`` says what else keeps a field from it; empty: nothing does.
    """
    if not dataset.allows_halves:
        raise SchemaError(f"transforms and augment.Views work on the host{hint}")
    moved = spatial_axes(dataset.stored_fields) if dataset.augment else {}
    for name, field in dataset.stored_fields.items():
        what = "is moved by augment, which is done on the host" if name in moved else ""
        if what := why_not(field) or what:
            raise SchemaError(f"field {name!r} {what}{hint}")
