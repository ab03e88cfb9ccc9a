"""Boxes and keypoints as sources write them, to what ``loaders.schema`` stores: float32, in pixels, x1 y1 x2 y2."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.errors import CodecError

if TYPE_CHECKING:
    from loaders.schema import Keypoints

Floats = npt.NDArray[np.float32]
Size = tuple[int, int]  # height, width
BOX_FORMATS = ("xyxy", "xywh", "cxcywh", "yolo")
_FORMATS_TEXT = "xyxy (corners), xywh (COCO), cxcywh (center, in pixels) and yolo (the same in shares of the picture)"
_ROUNDED = 1.0  # pixels beyond the edge that come from rounding, and are cut off


def to_boxes(value: Any, form: str, size: Size) -> Floats:
    """Return boxes as ``(n, 4)``: x1, y1, x2, y2 in pixels of a picture of a size (height, width).

    ``value`` is rows of four numbers in one of ``BOX_FORMATS``, or four numbers; also as text. None and nothing are
    no boxes.

    Raises:
        CodecError: These are no boxes, or not such, or they lie beyond the picture.
    """
    rows = _numbers(value, "boxes").astype(np.float64)
    rows = rows.reshape(-1, 4) if rows.shape == (4,) or not rows.size else rows
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise CodecError(f"boxes have four numbers each, these are of shape {rows.shape}")
    height, width = size
    if form == "yolo":
        rows = rows * (width, height, width, height)
    else:
        _check_pixels(rows, "boxes", f"read as {form}, in pixels: there are {_FORMATS_TEXT}")
    boxes = rows.copy()
    if form in ("cxcywh", "yolo"):
        boxes[:, :2] = rows[:, :2] - rows[:, 2:] / 2
    if form != "xyxy":
        boxes[:, 2:] = boxes[:, :2] + rows[:, 2:]
    _check_boxes(boxes, form, size)
    return np.clip(boxes, 0, (width, height, width, height)).astype(np.float32)


def _check_pixels(numbers: npt.NDArray[Any], what: str, hint: str) -> None:
    """Raise CodecError for shares of the picture, as they lie within its first pixel."""
    if numbers.size and (np.abs(numbers) <= 1).all() and (numbers % 1).any():
        raise CodecError(f"{what} look normalized (0 to 1), and are {hint}")


def _check_boxes(boxes: npt.NDArray[np.float64], form: str, size: Size) -> None:
    height, width = size
    edges = np.array((width, height), np.float64) + _ROUNDED
    is_right = np.isfinite(boxes).all(1) & (boxes[:, :2] <= boxes[:, 2:]).all(1)
    is_right &= (boxes[:, :2] >= -_ROUNDED).all(1) & (boxes[:, 2:] <= edges).all(1)
    if not is_right.all():
        first = int(is_right.argmin())
        box = ", ".join(f"{number:g}" for number in boxes[first].tolist())
        raise CodecError(
            f"box {first}, read as {form}, is x1, y1, x2, y2 = {box}, and the picture is {width} x {height} "
            f"(width x height): is it of another form? There are {_FORMATS_TEXT}; docs/masks.md clips what hangs over"
        )


def to_keypoints(value: Any, field: Keypoints, size: Size | None = None) -> Floats:
    """Return points as ``(n, num, 2)``, or with COCO's visibility ``(n, num, 3)``.

    Args:
        value: Things of points of two or three numbers, or things of flat numbers x, y, v, x, ... as in COCO;
            also as text.
        field: How many points a thing has, and which of them are pairs.
        size: (height, width) of the picture; None to leave unchecked where points lie.

    Raises:
        CodecError: These are no keypoints, some lie beyond the picture, or a pair has a point that is not there.
    """
    num, array = field.num, _numbers(value, "keypoints")
    if not array.size:
        return np.zeros((0, num or 1, 3), np.float32)
    if array.ndim == 2 and array.shape[1] in (2, 3) and num in (None, array.shape[0]):
        array = array[None]  # of one thing
    flat = np.atleast_2d(array)
    if array.ndim < 3 and flat.shape[1] % (num or 3) == 0:
        array = flat.reshape((len(flat), num, -1) if num else (len(flat), -1, 3))
        if num is None and not np.isin(array[..., 2], (0, 1, 2)).all():
            what = "flat keypoints are x, y and a visibility of 0, 1 or 2 for each point"
            raise CodecError(what)
    if array.ndim != 3 or array.shape[2] not in (2, 3) or num not in (None, array.shape[1]):
        wanted = "any number of" if num is None else num
        what = f"keypoints are {wanted} points of 2 or 3 numbers for each thing"
        raise CodecError(f"{what}, these are of shape {array.shape}")
    if (last := max(chain(*field.flip_pairs), default=0)) >= array.shape[1]:
        raise CodecError(f"flip_pairs name point {last}, and points are 0 to {array.shape[1] - 1}")
    if size is not None:
        _check_points(array, size)
    return array.astype(np.float32)


def _check_points(points: npt.NDArray[Any], size: Size) -> None:
    height, width = size
    places = points[..., :2]
    _check_pixels(places, "keypoints", "in pixels: multiply x by the width and y by the height")
    is_right = (places >= -_ROUNDED).all(-1) & (places != -1).any(-1)  # as some say: no such point
    is_right &= (places <= np.array((width, height)) + _ROUNDED).all(-1)
    if points.shape[2] == 3:
        is_right |= (points[..., 2] == 0) & np.isfinite(places).all(-1)
    if not is_right.all():
        x, y = places[~is_right][0].tolist()
        what = f"keypoint {x:g}, {y:g} (x, y) lies beyond the picture of {width} x {height} (width x height)"
        raise CodecError(f"{what}: keypoints are in pixels of the upright picture")


def _numbers(value: Any, what: str) -> npt.NDArray[np.float64]:
    """Return numbers from lists, or from their JSON in a cell of a table."""
    try:
        value = json.loads(value.strip() or "[]") if isinstance(value, str) else value
        return np.asarray([] if value is None else value, np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"{what} are lists of numbers, as [[1, 2], [3, 4]] ({error})") from error
