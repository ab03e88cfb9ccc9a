"""What ops know about a sample, to crop around: points of labels, and boxes; the same for all fields of a sample."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders import augment
from loaders.augment.planning import draw_geometry, every_op
from loaders.errors import LoadersError, SchemaError
from loaders.rng import key64, uniform
from loaders.schema import Array, Boxes, Json, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Geometry
    from loaders.data.finder import Rows
    from loaders.data.view import View
    from loaders.datasets.reading.request import Request
    from loaders.schema import Field

    Floats = npt.NDArray[np.float64]

_DOMAIN = int.from_bytes(b"fore", "big")
_NUM_LOOKED_AT = 20  # samples
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def check_known(ops: Sequence[Any], fields: Mapping[str, Field]) -> None:
    """Raise SchemaError if the labels or boxes that ops follow are not stored, or are of another kind."""
    for op in every_op(ops):
        if isinstance(op, augment.SanitizeBoundingBoxes) or _needs_boxes(op):
            if first_boxes(fields) is None:
                raise SchemaError(f"{op} needs a Boxes field (in memory, add it to fields)")
            check_rows(op, getattr(op, "fields", None), fields)
        elif (name := getattr(op, "foreground", None)) is not None:
            field = fields.get(name)
            if not isinstance(field, Mask) and not (isinstance(field, Array) and field.spatial):
                what = "a stored Mask, or an Array with spatial axes"
                raise SchemaError(f"{op} needs {name!r} to be {what}, got {field}")


def check_followed(ops: Sequence[Any], fields: Mapping[str, Field | None], view: View) -> None:
    """Warn of points without pairs that ops mirror; SchemaError for lists beside boxes that ops drop, not with them."""
    every = every_op(ops)
    flips = augment.RandomHorizontalFlip | augment.RandomFlip
    is_mirrored = any(isinstance(op, flips) for op in every)
    droppers = [op for op in every if isinstance(op, augment.SanitizeBoundingBoxes)]
    for name, field in fields.items():
        is_unpaired = isinstance(field, Keypoints) and field.num != 1 and not field.flip_pairs
        if is_mirrored and is_unpaired and name not in _warned:
            _warned.add(name)
            _log.warning(
                "Keypoints %r have no flip_pairs: a flip does not exchange left and right points. If some are, pack "
                "them with --flip-pairs",
                name,
            )
        if not droppers or droppers[0].fields is not None:
            continue
        if has_planes(field) or (isinstance(field, Json) and _is_list(name, view)):
            raise SchemaError(
                f"{droppers[0]} drops boxes, but not the entries of {name!r}: pack them as numbers (packdata images "
                "--box-labels), leave the field out, or name what follows in SanitizeBoundingBoxes(fields=[...])"
            )


def _is_list(name: str, view: View) -> bool:
    """Tell whether the first samples have an entry for each box in a field of JSON."""
    boxes = first_boxes(view.schema.fields)
    if boxes is None:
        return False
    if view.store.is_remote:  # no shard is fetched at opening
        _log.warning("%r: if it has an entry for each box, ops that drop boxes leave those", name)
        return False
    some = np.arange(min(len(view), _NUM_LOOKED_AT))
    try:
        values, places = (
            [view.codec(each).decode(record) for record in view.records(each, some)]
            for each in (name, boxes)
        )
    except LoadersError:  # reading the sample is what raises it
        return False
    counts = [len(each) for each in places]
    return any(counts) and all(map(_has_entries, values, counts))


def _has_entries(value: Any, count: int) -> bool:
    """Tell whether JSON is a list of so many entries, or has one."""
    lists = value.values() if isinstance(value, dict) else [value]
    return any(isinstance(each, list) and len(each) == count for each in lists)


def first_boxes(fields: Mapping[str, Field]) -> str | None:
    """Return the field of boxes that ops look at."""
    return next((name for name, field in fields.items() if isinstance(field, Boxes)), None)


def check_rows(op: object, names: Sequence[str] | None, fields: Mapping[str, Field]) -> None:
    """Raise SchemaError if one of the fields that are named has no row for each box."""
    for name in names or ():
        if not has_rows(fields.get(name)):
            raise SchemaError(
                f"{op}: field {name!r} does not have one row per box: {fields.get(name)}"
            )


def has_rows(field: Field | None) -> bool:
    """Tell whether a field may have a row for each box."""
    is_list = isinstance(field, Array) and field.dims[:1] == (None,) and None not in field.dims[1:]
    return (is_list and not has_planes(field)) or isinstance(field, Boxes | Keypoints)


def has_planes(field: Field | None) -> bool:
    """Tell whether a field may have pixels for each box, which ops that drop boxes leave as they are."""
    if not isinstance(field, Array) or field.dims[:1] != (None,):
        return False
    return 0 < (field.spatial or 0) < len(field.dims)


def _needs_boxes(op: Any) -> bool:
    return getattr(op, "needs_boxes", False)


def geometry_of(
    request: Request,
    ops: Sequence[Any],
    view: int,
    sizes: npt.NDArray[np.int64],
    first: int,
    last: int,
) -> Geometry:
    """Draw the crops and flips of a range of the samples: the same for every field that has these sizes.

    Sizes are int64 lengths of the spatial axes, a row a sample of the range; each view has draws of its own.
    """
    return draw_geometry(
        ops,
        sizes,
        seed=request.seed,
        epoch=request.epoch,
        indices=request.numbers[first:last],
        draws=request.draws_of(slice(first, last)),
        view=view,
        points=_points_of(request, ops, view, first, last),
        boxes=boxes_of(request, first, last) if any(map(_needs_boxes, ops)) else None,
    )


def _points_of(
    request: Request, ops: Sequence[Any], view: int, first: int, last: int
) -> list[Floats | None] | None:
    """Return the points that ops crop a range of samples around, of each op; None if none asks for them."""
    if not any(getattr(op, "foreground", None) for op in ops):
        return None
    draw = partial(_draw_points, ops, view)
    found, start = request.shared(("points", view), draw, first, last)
    return [None if each is None else each[start : start + last - first] for each in found]


def boxes_of(request: Request, first: int, last: int) -> Sequence[npt.NDArray[np.float32]]:
    """Return the stored boxes of a range of samples."""
    return request.shared_rows("boxes", _boxes, first, last)


def _boxes(request: Request, first: int, last: int) -> list[npt.NDArray[np.float32]]:
    view = request.plan.samples
    name = first_boxes(view.schema.fields)
    assert name is not None
    records = view.store.records(name, request.rows_of(first, last))
    return [view.codec(name).decode(record) for record in records]


def _draw_points(
    ops: Sequence[Any], number: int, request: Request, first: int, last: int
) -> list[Floats | None]:
    view = request.plan.samples
    indices, rows = request.numbers[first:last], request.rows_of(first, last)
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
    records = view.store.records(name, rows[wanted])
    for row, record in zip(wanted.tolist(), records, strict=True):
        labels = codec.decode(record) != 0
        labels = labels.any(axis=tuple(range(labels.ndim - num_axes)))
        places = np.flatnonzero(labels)
        if len(places):
            place = np.unravel_index(places[int(chosen[row] * len(places))], labels.shape)
            points[row] = (np.array(place) + 0.5) / labels.shape
    return points
