"""The settings of a dataset, checked, in the form that readers take."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.augment import PixelOp, Views
from loaders.checks import as_list, did_you_mean, shown
from loaders.datasets.reading.crops import spatial_axes
from loaders.errors import LoadersError, SchemaError
from loaders.schema import VIRTUAL_FIELDS, Array, Boxes, Image, Images, Json, Keypoints, Mask, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.data.view import View
    from loaders.schema import Field, Schema

    Transform = Callable[..., Any] | Mapping[str, Callable[..., Any]]

SETTINGS = (  # of ``PackedDataset.replace``
    *("fields", "augment", "transform", "batching", "on_error", "scale", "max_picture_mb"),
)
_log = logging.getLogger(__name__)
_PLACES = re.compile(  # words of names of columns, or of members of JSON
    r"(?<![a-z])(bbs?|b?box(es)?|bndbox|rect(s|angles?)?|[xy](min|max)|xy(xy|wh)|cxcywh|keypoints?|kps?|landmarks?|points?|"
    "joints|poses?|corners|cent(er|re)|polygons?|segmentation|objects|annotations|instances)(?![a-z])"
    r"(?!_(labels?|ids?|class(es)?|names?|areas?|scores?|is_?crowd)$)"  # of such, and no places
)
_NUM_LOOKED_AT = 20  # values of a list
_told: set[str] = set()


def as_fields(fields: Any, schema: Schema) -> tuple[str, ...]:
    """Return the names of the fields that samples show; of the packing's choice for None."""
    if fields is None:
        return schema.defaults
    names = tuple(as_list("fields", fields, "names, such as ['image', 'label']"))
    if not names and schema.defaults:
        raise SchemaError(
            f"fields is empty; there are {[*schema.fields, *sorted(VIRTUAL_FIELDS)]}"
        )
    return names


def as_transform(transform: Any) -> Transform | None:
    """Return a function of samples, or functions of fields; TypeError if it is neither."""
    functions = transform.values() if isinstance(transform, Mapping) else [transform]
    if transform is not None and not all(callable(function) for function in functions):
        what = "a function of a sample, or {field: function}"
        raise TypeError(f"transform must be {what}, got {shown(transform)}")
    return transform  # type: ignore[no-any-return]


def check_augment(augment: Any, fields: Mapping[str, Field]) -> None:
    """Raise SchemaError if there is nothing that ops could act on: they would be left out in silence."""
    pictures = any(isinstance(field, Image | Images | Mask) for field in fields.values())
    unsaid = any(
        isinstance(f, Array) and f.spatial is None and len(f.dims) > 2 for f in fields.values()
    )
    if not augment or pictures or unsaid or spatial_axes(fields.values()):
        return
    kinds = ", ".join(f"{name} ({field.kind})" for name, field in fields.items())
    raise SchemaError(
        f"augment has no field to act on: the fields are {kinds}. Images in memory must be uint8 or "
        "uint16 (N, C, H, W), with C = 1 for grayscale; for other arrays the schema must say which "
        "axes are spatial: Array(dtype=..., dims=..., spatial=2)"
    )


def check_pixel_ops(ops: Sequence[Any], fields: Mapping[str, Field | None]) -> None:
    """Raise SchemaError where ops of pixels cannot act, or would leave behind what belongs to moved pixels."""
    lists: list[Sequence[Any]] = [view for op in ops if isinstance(op, Views) for _, view in op]
    pixel_ops = [op for each in lists or [ops] for op in each if isinstance(op, PixelOp)]
    moving = [op for op in pixel_ops if op.edits_places]
    if not pixel_ops:
        return
    for name, field in fields.items():
        if isinstance(field, Image | Images) and (
            field.dtype != "uint8" or field.channels not in (1, 3)
        ):
            what = f"{name!r} is {field.dtype} of {field.channels}"
            raise SchemaError(f"{pixel_ops[0]} needs uint8 images with 1 or 3 channels, {what}")
        is_placed = isinstance(field, Mask | Boxes | Keypoints)
        if moving and (is_placed or (isinstance(field, Array) and field.spatial)):
            raise SchemaError(
                f"{moving[0]} moves pixels, but not field {name!r} with them, as in torchvision: "
                "leave the op out, or the field with fields=[...]"
            )
    if not any(isinstance(field, Image | Images) for field in fields.values()):
        raise SchemaError(f"{pixel_ops[0]} needs an image field, and there is none")


def tell_of_unmoved(augment: Any, fields: Mapping[str, Field | None], view: View) -> None:
    """Say once, in the log, which fields look like places in pictures, and stay where pictures are moved."""
    pictures = any(isinstance(field, Image | Images | Mask) for field in fields.values())
    for name, field in fields.items() if augment and pictures else ():
        plain = isinstance(field, Json | Text) or (
            isinstance(field, Array) and not field.spatial and not field.classes
        )
        if not plain or name in _told:
            continue
        if _is_place(name) or (isinstance(field, Json) and _holds_places(_first_json(view, name))):
            _told.add(name)
            _log.warning(
                "Field %r looks like places in a picture, but is %s, which augment does not move: if it should "
                "move, pack it as Boxes or Keypoints (packdata images --boxes %s, --keypoints %s)",
                name, type(field).__name__, name, name,
            )  # fmt: skip


def _first_json(view: View, name: str) -> Any:
    """Return the value of the first sample; None where there is none, it is damaged, or not on this machine."""
    if not len(view) or view.store.is_remote:
        return None
    with suppress(LoadersError, ValueError):
        return json.loads(view.records(name, np.zeros(1, np.int64))[0].tobytes())
    return None


def _is_place(name: str) -> bool:
    return bool(_PLACES.search(name.lower()))


def _holds_places(value: Any) -> bool:
    """Tell whether JSON has a member that is called as places are, or is a list of four numbers each."""
    if isinstance(value, dict):
        return any(_is_place(name) or _holds_places(member) for name, member in value.items())
    if not isinstance(value, list):
        return False
    some = value[:_NUM_LOOKED_AT]
    return bool(some) and (all(map(_are_four, some)) or any(map(_holds_places, some)))


def _are_four(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and {*map(type, value)} <= {int, float}


def as_batching(batching: Any) -> dict[str, Any]:
    """Return the form of each field of varying length; TypeError if that is not said by field."""
    if batching is not None and not isinstance(batching, Mapping):
        what = "{field: 'list', 'pad', ('pad', value), ('pad', value, axis), 'offsets' or ('offsets', axis)}"
        raise TypeError(f"batching must be {what}, got {shown(batching)}")
    return dict(batching or {})


def check_batching(batching: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raise SchemaError if it names a field that samples have not."""
    for name in batching:
        if name not in fields:
            what = f"batching names {name!r}, which is not served: {', '.join(fields)}"
            raise SchemaError(f"{what}{did_you_mean(name, fields)}")
