"""The settings of a dataset, checked, in the form that readers take."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loaders.augment import PixelOp
from loaders.augment.planning import as_augment, every_op
from loaders.checks import as_list, did_you_mean, one_of, shown, whole_number
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.datasets.reading.crops import spatial_axes
from loaders.errors import SchemaError
from loaders.schema import VIRTUAL_FIELDS, Array, Boxes, Image, Images, Json, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.schema import Field, Schema

DEFAULTS: dict[str, Any] = {
    "fields": None,
    "augment": None,
    "transform": None,
    "batching": None,
    "on_error": "raise",
    "scale": 1,
    "max_picture_mb": MAX_PICTURE_MB,
}
SETTINGS = tuple(DEFAULTS)  # of ``PackedDataset.replace``
_FORMS = (
    "{field: 'list', 'pad', ('pad', value), ('pad', value, axis), 'offsets' or ('offsets', axis)}"
)
_log = logging.getLogger(__name__)
_noted: set[tuple[str, ...]] = set()


def as_settings(given: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Return settings, each checked by itself, and the defaults of the others; TypeError for an unexpected one."""
    if unknown := sorted(given.keys() - DEFAULTS.keys()):
        hint = did_you_mean(unknown[0], SETTINGS)
        raise TypeError(f"settings of a dataset are {sorted(SETTINGS)}, got {unknown}{hint}")
    settings = DEFAULTS | given
    one_of("on_error", settings["on_error"], ("raise", "replace"))
    whole_number("max_picture_mb", settings["max_picture_mb"], at_least=1)
    batching, transform = settings["batching"], settings["transform"]
    if not isinstance(batching, Mapping | None):
        raise TypeError(f"batching must be {_FORMS}, got {shown(batching)}")
    functions = transform.values() if isinstance(transform, Mapping) else [transform]
    if transform is not None and not all(callable(function) for function in functions):
        what = "a function of a sample, or {field: function}"
        raise TypeError(f"transform must be {what}, got {shown(transform)}")
    return settings | {
        "fields": _as_fields(settings["fields"], schema),
        "augment": as_augment(settings["augment"]),
        "batching": dict(batching or {}),
    }


def _as_fields(fields: Any, schema: Schema) -> tuple[str, ...]:
    """Return the names of the fields that samples show; of the packing's choice for None."""
    if fields is None:
        return schema.defaults
    names = tuple(as_list("fields", fields, "names, such as ['image', 'label']"))
    if not names and schema.defaults:
        raise SchemaError(
            f"fields is empty; there are {[*schema.fields, *sorted(VIRTUAL_FIELDS)]}"
        )
    return names


def check_augment(augment: Any, fields: Mapping[str, Field]) -> None:
    """Raise SchemaError if there is nothing that ops could act on: they would be left out in silence."""
    pictures = any(isinstance(field, Image | Images | Mask) for field in fields.values())
    unsaid = any(
        isinstance(f, Array) and f.spatial is None and len(f.dims) > 2 for f in fields.values()
    )
    if not augment or pictures or unsaid or spatial_axes(fields):
        return
    kinds = ", ".join(f"{name} ({field.kind})" for name, field in fields.items())
    raise SchemaError(
        f"augment has no field to act on: the fields are {kinds}. Images in memory must be uint8 or "
        "uint16 (N, C, H, W), with C = 1 for grayscale; for other arrays the schema must say which "
        "axes are spatial: Array(dtype=..., dims=..., spatial=2)"
    )


def check_pixel_ops(ops: Sequence[Any], fields: Mapping[str, Field | None]) -> None:
    """Raise SchemaError where ops of pixels cannot act, or would leave behind what belongs to moved pixels."""
    pixel_ops = [op for op in every_op(ops) if isinstance(op, PixelOp)]
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


def note_unmoved(augment: Sequence[Any], fields: Mapping[str, Field | None]) -> None:
    """Log once which fields stay as they are beside pictures that move: only the user knows if they are places."""
    pictures = any(isinstance(field, Image | Images | Mask) for field in fields.values())
    moves = any(not isinstance(op, PixelOp) or op.edits_places for op in every_op(augment))
    has_boxes = any(isinstance(field, Boxes) for field in fields.values())
    names = tuple(name for name, field in fields.items() if _may_hold_places(field, has_boxes))
    if pictures and moves and names and names not in _noted:
        _noted.add(names)
        _log.warning(
            "augment moves pictures, and leaves as they are: %s. Places in a picture move if they are packed as Boxes "
            "or Keypoints (packdata images --boxes COLUMN, --keypoints COLUMN)",
            ", ".join(names),
        )


def _may_hold_places(field: Field | None, has_boxes: bool) -> bool:
    """Tell whether a field that no op moves is JSON, or rows of numbers without names."""
    if isinstance(field, Json):
        return True
    if not isinstance(field, Array) or field.spatial or field.classes:
        return False
    if has_boxes and field.dims == (None,) and "int" in field.dtype:  # their classes, say
        return False
    return type(field) is Array and (len(field.dims) > 1 or None in field.dims)


def check_batching(batching: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raise SchemaError if it names a field that samples have not."""
    for name in batching:
        if name not in fields:
            what = f"batching names {name!r}, which is not served: {', '.join(fields)}"
            raise SchemaError(f"{what}{did_you_mean(name, fields)}")
