"""Carry out one sample's geometry on the CPU: pixels, boxes and keypoints.

``carry_out`` does all of it, by ``apply`` or by a warp. ``apply`` runs once per sample on worker threads, and how many
of them pay depends on how briefly each holds the GIL: so it takes plain ints, one slice, and one cv2 call (two with a
flip). cv2 reads a crop in place, as a view with the image's strides, writes into the batch, and releases the GIL
meanwhile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from loaders.augment.geometry import corners_of, moved_points
from loaders.augment.resampling import (
    FAST,
    Fill,
    Resampling,
    inner_span,
    is_between_pixels,
    margin_of,
    resample,
    source_positions,
)
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Geometry, Move

    Array = npt.NDArray[Any]

_INTERPOLABLE = frozenset(map(np.dtype, ("uint8", "uint16", "int16", "float32", "float64")))
_POWERS = np.array([1, 2, 4, 8])  # by which libjpeg reduces
_ZERO = np.zeros((), np.uint8)
_MAX_AREA_CHANNELS = 4  # INTER_AREA asserts it
_BORDERS = {
    "constant": cv2.BORDER_CONSTANT,
    "edge": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT_101,
    "symmetric": cv2.BORDER_REFLECT,
}
_TO_CENTRE = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])  # of a pixel, from its corner


def carry_out(
    image: Array,
    move: Move,
    resampling: Resampling = FAST,
    fill: Fill = 0,
    *,
    out: Array | None = None,
    nearest: bool = False,
) -> Array:
    """Carry out one sample's geometry, into ``out`` or a new array; arguments and errors are those of ``apply``."""
    box, size, flip, matrix, ripple = move
    if matrix is None:
        return apply(image, box, size, flip, fill, out=out, nearest=nearest, resampling=resampling)
    if out is None:
        out = np.empty((*size, *image.shape[2:]), image.dtype)
    # Our coordinates count from pixel corners, those of OpenCV from pixel centres.
    centred = np.linalg.inv(_TO_CENTRE) @ matrix @ _TO_CENTRE
    nearest = nearest or resampling.warp == "nearest"
    flags = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    around = fill if isinstance(fill, tuple) else (fill,) * 4
    border, inverse = _BORDERS[resampling.padding_mode], flags | cv2.WARP_INVERSE_MAP
    shape = (size[1], size[0])
    try:
        flat = np.ascontiguousarray(image)
        if ripple is not None:
            at = moved_points(matrix[None], ripple.sources(size).reshape(1, -1, 2)) - 0.5
            x, y = at.astype(np.float32).reshape(*size, 2).transpose(2, 0, 1)
            done = cv2.remap(flat, x, y, flags, None, border, around)
        elif (centred[2] == (0, 0, 1)).all():
            done = cv2.warpAffine(flat, centred[:2], shape, None, inverse, border, around)
        else:
            done = cv2.warpPerspective(flat, centred, shape, None, inverse, border, around)
    except cv2.error as error:
        raise BatchError(
            f"cannot warp a {image.dtype} image of shape {image.shape}: {error.err}"
        ) from error
    out[...] = done.reshape(out.shape)  # OpenCV leaves out an axis of one channel
    return out


def apply(
    image: Array,
    box: Sequence[Any],
    size: Sequence[int],
    flip: Sequence[bool],
    fill: Fill = 0,
    *,
    out: Array | None = None,
    nearest: bool = False,
    resampling: Resampling = FAST,
) -> Array:
    """Crop, resize and flip one image in one resampling, into ``out`` or a new array, and return that.

    ``image`` is ``(H, W)`` or ``(H, W, C)``, pixels contiguous. Box, size and flip are a row of a ``Geometry``: the
    box of ``regions`` if images are filtered. If box and size agree, pixels of any dtype are copied; ``nearest``, for
    masks, picks them. Otherwise they are interpolated bilinearly between pixel centres, or averaged over areas
    (``cv2.INTER_AREA``) where both sides shrink by more than 2. At the edges of the box its own edge pixels are
    repeated. Outside the image it is ``fill``. ``out`` must not overlap the image. BatchError if shapes or dtypes do
    not match, or the dtype cannot be interpolated.
    """
    shape, how = image.shape, resampling
    nearest = nearest or how.interpolation == "nearest"
    out_shape = (*size, *shape[2:])
    if out is None:
        out = np.empty(out_shape, image.dtype)
    elif out.shape != out_shape or out.dtype != image.dtype:
        raise BatchError(f"out must be {image.dtype} {out_shape}, got {out.dtype} {out.shape}")
    if (
        image.dtype not in _INTERPOLABLE
        and not nearest
        and (how.is_filtered or tuple(box[2:]) != tuple(size))
    ):
        allowed = ", ".join(sorted(map(str, _INTERPOLABLE)))
        raise BatchError(f"can interpolate {allowed}, got {image.dtype}")
    if how is not FAST:
        image, box = _padded(image, box, size, fill, how)
    if how.is_filtered:
        if nearest:
            return _pick(image, box, flip, fill, out)
        return resample(image, box, flip, out, interpolation=how.interpolation, fill=fill)
    try:
        source = _crop(image, box, out, np.array(fill, image.dtype) if fill else _ZERO)
        if source.shape != out_shape:
            _resize(source, out, nearest, how.interpolation)
            source = out
        vertical, horizontal = flip
        if (vertical or horizontal) and image.dtype in _INTERPOLABLE:
            cv2.flip(source, int(_FLIPS[2 * vertical + horizontal]), out)
        else:
            out[...] = source[:: -1 if vertical else 1, :: -1 if horizontal else 1]
    except (cv2.error, ValueError) as error:
        raise BatchError(
            f"cannot take box {tuple(box)} of a {image.dtype} {shape} image to {out_shape}"
        ) from error
    return out


def _pick(
    image: Array, box: Sequence[float], flip: Sequence[bool], fill: Fill, out: Array
) -> Array:
    """Nearest-neighbour resampling of a sub-pixel box."""
    target = out[:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]
    picked = []
    for axis in (0, 1):
        start, extent, count = box[axis], box[axis + 2], out.shape[axis]
        first, last = inner_span(start, extent, count, image.shape[axis])
        at = np.floor(start + (np.arange(first, last) + 0.5) * (extent / count)).astype(np.int64)
        picked.append((slice(first, last), at.clip(0, image.shape[axis] - 1)))
    (rows, ys), (columns, xs) = picked
    if (len(ys), len(xs)) != out.shape[:2]:
        target[...] = fill
    target[rows, columns] = image.take(ys, 0).take(xs, 1)
    return out


def _padded(
    image: Array, box: Sequence[Any], size: Sequence[int], fill: Fill, resampling: Resampling
) -> tuple[Array, Sequence[Any]]:
    """Pad an image so that it contains the box, as ``padding_mode`` says, or where a filter mixes both.

    Return it, and the box there. Other constant padding is left to the resampling.
    """
    mode, box, margin = resampling.padding_mode, list(box), 0
    for axis in (0, 1):
        (start, extent), length = box[axis::2], image.shape[axis]
        is_inside = start >= 0 and start + extent <= length
        is_mixed = resampling.is_filtered and is_between_pixels(start, extent, size[axis], length)
        if is_inside or (mode == "constant" and not is_mixed):
            continue
        if resampling.is_filtered:
            margin = int(margin_of(resampling.interpolation, extent / size[axis]))
        at = np.arange(math.floor(start) - margin, math.ceil(start + extent) + margin)
        box[axis] -= int(at[0])
        if mode != "constant":
            image = image.take(source_positions(at, length, mode), axis)
            continue
        image = image.take(at.clip(0, length - 1), axis)
        image[(slice(None),) * axis + ((at < 0) | (at >= length),)] = fill
    return image, box


# What ``apply`` does to a uint8 image, as plain numbers: top, bottom, left and right of the box; width and height
# of the result; cv2's interpolation (-1: no resize) and flip code (2: no flip).
Step = tuple[int, ...] | list[int]
_NO_METHOD, _NO_FLIP = -1, 2
_METHODS = {  # copied; resized; both sides shrink by more than 2
    "bilinear": np.array([_NO_METHOD, cv2.INTER_LINEAR, cv2.INTER_AREA]),
    "bicubic": np.array([_NO_METHOD, cv2.INTER_CUBIC, cv2.INTER_CUBIC]),
}
_FLIPS = np.array([_NO_FLIP, 1, 0, -1])  # none, horizontal, vertical, both


def steps_of(
    geometry: Geometry, sizes: npt.NDArray[np.int64], reductions: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Compute what ``apply`` does to N uint8 images, for ``take_steps``: ``(N, 8)`` int64, each row a ``Step``.

    And ``(N,)`` bool: False where ``apply`` is needed (boxes that reach outside the image, filters, ``"nearest"``,
    warps). ``sizes`` ``(N, 2)`` are those of the stored images, before a JPEG decoder reduces them.
    """
    boxes = reduced_boxes(geometry.boxes, sizes, reductions)
    shapes = -(-sizes // reductions[:, None])
    starts, extents = boxes[:, :2], boxes[:, 2:]
    ends = starts + extents
    is_resized = (extents != geometry.sizes).any(axis=1)
    (top, left), (bottom, right), (height, width) = starts.T, ends.T, geometry.sizes.T
    are_half = is_half(*extents.T, *geometry.sizes.T)
    methods = _METHODS.get(geometry.resampling.interpolation, _METHODS["bilinear"])
    method, flip = methods[is_resized * (1 + are_half)], _FLIPS[geometry.flips @ (2, 1)]
    steps = np.array([top, bottom, left, right, width, height, method, flip]).T
    is_inside: npt.NDArray[np.bool_] = (starts >= 0) & (ends <= shapes)
    is_ready = is_inside[:, 0] & is_inside[:, 1]
    how = geometry.resampling
    is_stepped = not how.is_filtered and how.interpolation in _METHODS
    return steps, is_ready & ~geometry.is_warped & is_stepped


def moved_steps(steps: Sequence[Step], top: int, left: int) -> list[Step]:
    """Return the steps relative to a part of the image that begins at (top, left)."""
    return [
        [first - top, last - top, start - left, end - left, *rest]
        for first, last, start, end, *rest in steps
    ]


def take_steps(image: Array, steps: Sequence[Step], outs: Sequence[Array]) -> None:
    """Do what ``apply`` does to a uint8 image of at most 4 channels, checking only what a bad file could cause.

    Boxes of steps lie inside the image, or it is smaller than its header said, a BatchError; ``outs`` are contiguous
    arrays of their sizes.
    """
    num_rows, num_columns = image.shape[:2]
    for (top, bottom, left, right, width, height, method, flip), out in zip(steps, outs):  # noqa: B905  # costs as much as a step
        if bottom > num_rows or right > num_columns:
            raise BatchError(
                f"the decoded image is {image.shape[0]} x {image.shape[1]}, smaller than its header said: "
                f"the crop ends at row {bottom}, column {right}"
            )
        source = image[top:bottom, left:right]
        if method != _NO_METHOD:
            cv2.resize(source, (width, height), out, 0, 0, method)
            source = out
        if flip != _NO_FLIP:
            cv2.flip(source, flip, out)
        elif source is not out:
            out[...] = source


def _crop(image: Array, box: Sequence[int], target: Array, around: Array) -> Array:
    """Return the box: a view if it is inside the image, else a padded copy, in target if that has its size."""
    y, x, height, width = box
    bottom, right = y + height, x + width
    if y >= 0 and x >= 0 and bottom <= image.shape[0] and right <= image.shape[1]:
        return image[y:bottom, x:right]
    shape = (height, width, *image.shape[2:])
    canvas = target if shape == target.shape else np.empty(shape, image.dtype)
    part = image[max(y, 0) : max(bottom, 0), max(x, 0) : max(right, 0)]
    top, left = max(-y, 0), max(-x, 0)
    canvas[...] = around
    canvas[top : top + part.shape[0], left : left + part.shape[1]] = part
    return canvas


def _resize(source: Array, target: Array, nearest: bool, interpolation: str) -> None:
    """Resample all of source into all of target."""
    height, width = target.shape[:2]
    if nearest:  # in whole numbers; of two equally near pixels the later one
        rows, cols = (
            (2 * np.arange(count, dtype=np.int64) + 1) * length // (2 * count)
            for count, length in zip(target.shape[:2], source.shape[:2], strict=True)
        )
        # Not mode="raise", which would copy.
        np.take(source.take(rows, 0), cols, 1, out=target, mode="clip")
        return
    method = cv2.INTER_CUBIC if interpolation == "bicubic" else cv2.INTER_LINEAR
    if interpolation == "bilinear" and is_half(source.shape[0], source.shape[1], height, width):
        method = cv2.INTER_AREA
    if method != cv2.INTER_AREA or source.ndim == 2 or source.shape[2] <= _MAX_AREA_CHANNELS:
        cv2.resize(source, (width, height), target, 0, 0, method)
        return
    for start in range(0, source.shape[2], _MAX_AREA_CHANNELS):
        part = np.ascontiguousarray(source[:, :, start : start + _MAX_AREA_CHANNELS])
        resized = cv2.resize(part, (width, height), interpolation=method)
        target[:, :, start : start + part.shape[2]] = resized.reshape(height, width, -1)


def is_half(from_height: Any, from_width: Any, height: Any, width: Any) -> Any:
    """Return whether both sides shrink by more than 2; of numbers, or elementwise of arrays."""
    return (from_height > 2 * height) & (from_width > 2 * width)


def reductions(
    boxes: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return by how much a decoder may shrink each image so that its crop is at least as large as the result.

    1, 2, 4 or 8, ``(N,)``, of boxes ``(N, 4)`` and sizes of results ``(N, 2)``.
    """
    times = (boxes[:, 2:] // sizes).min(axis=1)
    reductions: npt.NDArray[np.int64] = _POWERS[np.searchsorted(_POWERS[1:], times, "right")]
    return reductions


def reduced_boxes(
    boxes: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], reductions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Convert boxes ``(N, 4)`` to whole pixels of images that libjpeg reduced, whose sides are rounded up.

    Halves are rounded up; a box has at least one pixel, and is inside the image if it was. ``sizes`` ``(N, 2)`` are
    those of the whole images.
    """
    if reductions.max(initial=1) == 1:
        return boxes
    factor, starts, extents = reductions[:, None], boxes[:, :2], boxes[:, 2:]
    ends, lengths = starts + extents, -(-sizes // factor)
    first, last = ((2 * edge + factor) // (2 * factor) for edge in (starts, ends))
    # Less than half a pixel across: the one at its centre.
    is_thin, centre = first == last, (starts + ends) // (2 * factor)
    first, last = np.where(is_thin, centre, first), np.where(is_thin, centre + 1, last)
    is_over = (ends <= sizes) & (last > lengths)
    first = np.where(is_over, np.minimum(first, lengths - 1), first)
    return np.concatenate([first, np.where(is_over, lengths, last) - first], axis=1)


def move_boxes(boxes: npt.NDArray[np.float32], move: Move) -> npt.NDArray[np.float32]:
    """Move boxes ``(n, 4)``, x1, y1, x2, y2 in source pixels, as ``carry_out`` moves pixels.

    They are clipped to the result. Number and order stay: boxes outside of it have zero width or height, for the
    caller to keep or drop together with their labels. Of a warp they enclose their corners.
    """
    # Without a warp two corners tell where all are.
    corners = boxes.reshape(-1, 2, 2) if move.matrix is None else corners_of(boxes)
    found = _to_result(corners, move)
    frame = np.array((move.size[1], move.size[0]), np.float64)
    np.minimum(np.maximum(found, 0, out=found), frame, out=found)
    return np.concatenate([found.min(axis=1), found.max(axis=1)], axis=1, dtype=np.float32)


def _to_result(points: Array, move: Move) -> npt.NDArray[np.float64]:
    """Return points ``(n, num, 2)`` of the source, x and y, in pixels of the result."""
    (y, x, height, width), size, flip, matrix, ripple = move
    found = points.astype(np.float64)
    if matrix is not None:
        at = moved_points(np.linalg.inv(matrix)[None], found)
        return at if ripple is None else ripple.moved(at)
    found -= np.array((x, y), np.float64)
    found *= np.array((size[1] / width, size[0] / height))
    for axis in (0, 1):
        if flip[1 - axis]:
            np.subtract(size[1 - axis], found[..., axis], out=found[..., axis])
    return found


def move_keypoints(
    points: npt.NDArray[np.float32], move: Move, pairs: Sequence[Sequence[int]] = ()
) -> npt.NDArray[np.float32]:
    """Move keypoints ``(n, num, 2)``, x and y, or ``(n, num, 3)`` with COCO's visibility, as ``move_boxes``.

    ``pairs`` of points (left and right eye) are swapped in a horizontal flip, or if the matrix mirrors. With
    visibility, points outside the result and unlabelled points are 0, 0, 0.
    """
    moved, is_mirrored = points.astype(np.float64), move.flip[1]
    moved[..., :2] = _to_result(points[..., :2], move)
    if move.matrix is not None:
        total = move.matrix if move.ripple is None else move.matrix @ move.ripple.frame
        is_mirrored = np.linalg.det(total[:2, :2]) < 0
    # Without a thing there may be fewer points than pairs name.
    for first, second in pairs if is_mirrored and len(points) else ():
        moved[:, [first, second]] = moved[:, [second, first]]
    if points.shape[2] == 3:
        place, end = moved[..., :2], (move.size[1], move.size[0])
        is_gone = ((place < 0) | (place > end)).any(-1)
        moved[is_gone | (moved[..., 2] == 0)] = 0
    return np.asarray(moved, np.float32)
