"""Points of labels, around which crops with the foreground are placed: drawn once for all fields of a sample."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders import augment
from loaders.data.finder import Rows
from loaders.errors import SchemaError
from loaders.rng import key64, uniform
from loaders.schema import Array, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from loaders.data.view import View
    from loaders.datasets.reading.request import Request
    from loaders.schema import Field

    Floats = npt.NDArray[np.float64]

_DOMAIN = int.from_bytes(b"fore", "big")


def check_foreground(ops: Sequence[Any], fields: Mapping[str, Field]) -> None:
    """Raise SchemaError if the labels that crops follow are not stored, or are no labels of pixels."""
    for op in ops:
        if isinstance(op, augment.Views):
            for _, each in op:
                check_foreground(each, fields)
        elif (name := getattr(op, "foreground", None)) is not None:
            field = fields.get(name)
            if not isinstance(field, Mask) and not (isinstance(field, Array) and field.spatial):
                what = (
                    "is not stored here (in memory, add it to fields)"
                    if field is None
                    else f"is {field}"
                )
                raise SchemaError(
                    f"{op} follows labels {name!r}, which {what}: it takes a Mask, or an Array with spatial axes"
                )


def foreground_points(
    request: Request, ops: Sequence[Any], view: int, first: int, last: int
) -> list[Floats | None] | None:
    """Return what ``augment.plan`` takes as ``points`` of a range of samples; None where no op needs any."""
    if not any(getattr(op, "foreground", None) for op in ops):
        return None
    draw = partial(_draw_points, ops, view)
    found, start = request.shared(("points", view), draw, first, last)
    return [None if each is None else each[start : start + last - first] for each in found]


def _draw_points(
    ops: Sequence[Any], number: int, request: Request, first: int, last: int
) -> list[Floats | None]:
    view = request.plan.view
    assert view is not None
    indices, rows = request.indices[first:last], request.part(first, last)
    draws = np.zeros_like(indices) if request.draws is None else request.draws[first:last]
    found: list[Floats | None] = []
    for position, op in enumerate(ops):
        name = getattr(op, "foreground", None)
        if name is None:
            found.append(None)
            continue
        key = key64(_DOMAIN, request.seed, request.epoch, number, position)
        drawn = uniform(key, indices, draws, num=2)
        found.append(_points(view, name, rows, np.where(drawn[:, 0] < op.p, drawn[:, 1], -1)))
    return found


def _points(view: View, name: str, rows: Rows, chosen: Floats) -> Floats:
    """Return which point of the labels was chosen by a number from 0 to 1, as parts of each axis; NaN for none."""
    field, codec = view.schema.fields[name], view.codec(name)
    num_axes = field.spatial if isinstance(field, Array) else 2
    assert num_axes
    points = np.full((len(chosen), num_axes), np.nan)
    wanted = np.flatnonzero(chosen >= 0)
    records = view.store.records(name, Rows(rows.indices[wanted], rows.shards[wanted]))
    for row, record in zip(wanted.tolist(), records, strict=True):
        labels = codec.decode(record) != 0
        labels = labels.any(axis=tuple(range(labels.ndim - num_axes)))
        places = np.flatnonzero(labels)
        if len(places):
            place = np.unravel_index(places[int(chosen[row] * len(places))], labels.shape)
            points[row] = (np.array(place) + 0.5) / labels.shape
    return points
