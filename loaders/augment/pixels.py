"""Carry out one sample's geometry on the CPU: pixels, boxes and keypoints.

``apply`` runs once per sample on worker threads, and how many of them pay depends on how briefly each holds the GIL:
so it takes plain ints, one slice, and one cv2 call (two with a flip). cv2 reads a crop in place, as a view with the
image's strides, writes into the batch, and releases the GIL meanwhile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from loaders.augment.geometry import moved_points
from loaders.augment.resampling import (
    FAST,
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

    from loaders.augment.elastic import Ripple
    from loaders.augment.geometry import Geometry

    Array = npt.NDArray[Any]

_INTERPOLABLE = frozenset(map(np.dtype, ("uint8", "uint16", "int16", "float32", "float64")))
# Dtypes that cv2 lacks (before version 5 bool and uint32) or misreads (int64 as int32) are moved bit for bit as
# another one of the same width.
_STAND_INS: dict[np.dtype[Any], np.dtype[Any]] = {
    **dict.fromkeys(map(np.dtype, ("bool", "int8")), np.dtype("uint8")),
    np.dtype("float16"): np.dtype("uint16"),
    **dict.fromkeys(map(np.dtype, ("int32", "uint32")), np.dtype("int32")),
    **dict.fromkeys(map(np.dtype, ("int64", "uint64")), np.dtype("float64")),
}
_POWERS = np.array([1, 2, 4, 8])  # by which libjpeg reduces
_ZERO = np.zeros((), np.uint8)
_MAX_CHANNELS = 128  # CV_CN_MAX of OpenCV 5; 512 before
_MAX_AREA_CHANNELS = 4  # INTER_AREA asserts it
_MAX_NEAREST_SIDE = 32767  # INTER_NEAREST_EXACT of OpenCV 4 overflows its 16.16 steps beyond


def apply(
    image: Array,
    box: Sequence[Any],
    size: Sequence[int],
    flip: Sequence[bool],
    fill: Any = 0,
    *,
    out: Array | None = None,
    nearest: bool = False,
    source_size: Sequence[int] | None = None,
    resampling: Resampling = FAST,
) -> Array:
    """Crop, resize and flip one image in one resampling.

    If box and size agree, pixels are copied. Otherwise they are interpolated bilinearly between pixel centres, or
    averaged over areas (``cv2.INTER_AREA``) where both sides shrink by more than 2. At the edges of the box its own
    edge pixels are repeated. Where the box reaches outside the image it is filled.

    Args:
        image: ``(H, W, C)`` or ``(H, W)``, pixels contiguous; uint8, uint16, int16, float32 or float64; any integer,
            bool or float if nothing is interpolated.
        box: y, x, height, width in source pixels: a row of ``Geometry.boxes`` as plain ints, or, if images are
            filtered, of ``Geometry.regions`` as floats.
        size: Height and width of the result: a row of ``Geometry.sizes``.
        flip: Vertical, horizontal: a row of ``Geometry.flips``.
        fill: Value outside the image: one number, or one per channel.
        out: Contiguous array of the result's shape and dtype to write to, such as a row of a batch; a new one by
            default. It must not overlap the image.
        nearest: Nearest-neighbour instead: for masks, whose values must not be mixed.
        source_size: Height and width of the stored image, if the decoder reduced it by 2, 4 or 8. The box, in pixels
            of the stored image, is then rounded to whole pixels of the reduced one.
        resampling: ``Geometry.resampling``; the default is the fast bilinear way.

    Returns:
        ``out``.

    Raises:
        BatchError: Shapes or dtypes do not match, or the dtype cannot be interpolated.

    Example:
        >>> image = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
        >>> apply(image, box=(0, 1, 2, 2), size=(2, 2), flip=(False, True)).tolist()
        [[3, 2], [6, 5]]
    """
    shape = image.shape
    nearest = nearest or resampling.interpolation == "nearest"
    if source_size is not None:
        box = _reduced_box(box, source_size, shape)
    out_shape = (*size, *shape[2:])
    if out is None:
        out = np.empty(out_shape, image.dtype)
    elif out.shape != out_shape or out.dtype != image.dtype:
        raise BatchError(f"out must be {image.dtype} {out_shape}, got {out.dtype} {out.shape}")
    if resampling is not FAST:
        image, box = _padded(image, box, size, fill, resampling)
    if resampling.is_filtered:
        return _apply_filtered(image, box, flip, fill, out, nearest, resampling.interpolation)
    source, target, around = image, out, np.array(fill, image.dtype) if fill else _ZERO
    if image.dtype not in _INTERPOLABLE:
        moves_only = nearest or tuple(box[2:]) == tuple(size)
        source, target = _stand_in(source, target, moves_only=moves_only)
        around = around.view(source.dtype) if fill else _ZERO
    try:
        source = _crop(source, box, target, around)
        if source.shape != out_shape:
            _resize(source, target, nearest, resampling.interpolation)
            source = target
        vertical, horizontal = flip
        if vertical or horizontal:
            _flip(source, target, vertical, horizontal)
        elif source is not target:
            target[...] = source
    except (cv2.error, ValueError) as error:
        raise BatchError(
            f"cannot take box {tuple(box)} of a {image.dtype} {shape} image to {out_shape}"
        ) from error
    return out


def _apply_filtered(
    image: Array,
    box: Sequence[float],
    flip: Sequence[bool],
    fill: Any,
    out: Array,
    nearest: bool,
    interpolation: str,
) -> Array:
    """Do what ``apply`` does for filtered images, and for masks at the same sub-pixel boxes."""
    if nearest:
        return _pick(image, box, flip, fill, out)
    if image.dtype not in _INTERPOLABLE:
        _stand_in(image, out, moves_only=False)
    return resample(image, box, flip, out, interpolation=interpolation, fill=fill)


def _pick(
    image: Array, box: Sequence[float], flip: Sequence[bool], fill: Any, out: Array
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
    image: Array, box: Sequence[Any], size: Sequence[int], fill: Any, resampling: Resampling
) -> tuple[Array, Sequence[Any]]:
    """Pad an image as ``padding_mode`` says so that it contains the box; return it, and the box there.

    Constant padding is left to the resampling, unless a filter mixes it with the image.
    """
    mode, box = resampling.padding_mode, list(box)
    for axis in (0, 1):
        (start, extent), length = box[axis::2], image.shape[axis]
        is_inside = start >= 0 and start + extent <= length
        is_mixed = resampling.is_filtered and is_between_pixels(start, extent, size[axis], length)
        if is_inside or (mode == "constant" and not is_mixed):
            continue
        margin = 0
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
    """Compute what ``apply`` does to N uint8 images, for ``take_steps``.

    Args:
        geometry: Boxes, sizes and flips.
        sizes: ``(N, 2)``: height and width of the stored images, before a JPEG decoder reduces them.
        reductions: ``(N,)``: by how much the decoder reduces them: 1, 2, 4 or 8.

    Returns:
        ``(N, 8)`` int64, each row a ``Step``; and ``(N,)`` bool: False where ``apply`` is needed (boxes that reach
        outside the image, filters, ``"nearest"``, warps).
    """
    boxes, shapes = _reduced_boxes(geometry.boxes, sizes, reductions)
    starts, extents = boxes[:, :2], boxes[:, 2:]
    ends = starts + extents
    is_resized = (extents != geometry.sizes).any(axis=1)
    is_half = _is_half(*extents.T, *geometry.sizes.T)
    steps = np.empty((len(boxes), 8), np.int64)
    steps[:, 0:4:2], steps[:, 1:4:2], steps[:, 4:6] = starts, ends, geometry.sizes[:, ::-1]
    methods = _METHODS.get(geometry.resampling.interpolation, _METHODS["bilinear"])
    steps[:, 6] = methods[is_resized * (1 + is_half)]
    steps[:, 7] = _FLIPS[geometry.flips @ (2, 1)]
    is_inside: npt.NDArray[np.bool_] = (starts >= 0) & (ends <= shapes)
    is_ready = is_inside[:, 0] & is_inside[:, 1]
    return steps, is_ready & ~geometry.is_warped & _is_stepped(geometry.resampling)


def _is_stepped(resampling: Resampling) -> bool:
    """Return whether ``take_steps`` can resample so."""
    return not resampling.is_filtered and resampling.interpolation in _METHODS


def _reduced_boxes(
    boxes: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], reductions: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return boxes in pixels of the decoded, possibly reduced images, and the sizes of those images."""
    rows = np.flatnonzero(reductions > 1).tolist()
    if not rows:
        return boxes, sizes
    boxes, shapes = boxes.copy(), -(-sizes // reductions[:, None])
    for i in rows:
        boxes[i] = _reduced_box(boxes[i].tolist(), sizes[i].tolist(), tuple(shapes[i].tolist()))
    return boxes, shapes


def moved_steps(steps: Sequence[Step], top: int, left: int) -> list[Step]:
    """Return the steps relative to a part of the image that begins at (top, left)."""
    return [
        [first - top, last - top, start - left, end - left, *rest]
        for first, last, start, end, *rest in steps
    ]


def take_steps(image: Array, steps: Sequence[Step], outs: Sequence[Array]) -> None:
    """Do what ``apply`` does, checking only what a bad file could cause.

    Args:
        image: ``(H, W, C)`` uint8 with at most 4 channels.
        steps: Steps whose boxes lie inside the image.
        outs: For each step a contiguous array of its size, with the image's dtype and channels.

    Raises:
        BatchError: The image is smaller than the one that the steps were computed for.
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


def _stand_in(source: Array, target: Array, *, moves_only: bool) -> tuple[Array, Array]:
    """View both arrays as a dtype of the same width that cv2 can move."""
    stand_in = _STAND_INS.get(source.dtype)
    if stand_in is None or not moves_only:
        allowed = ", ".join(sorted(map(str, _INTERPOLABLE)))
        hint = "" if stand_in is None else "; for a mask pass nearest=True"
        raise BatchError(f"can interpolate {allowed}, got {source.dtype}{hint}")
    return source.view(stand_in), target.view(stand_in)


def _crop(image: Array, box: Sequence[int], target: Array, around: Array) -> Array:
    """Return the box: a view if it is inside the image, else a padded copy, in target if that has its size."""
    y, x, height, width = box
    bottom, right = y + height, x + width
    if y >= 0 and x >= 0 and bottom <= image.shape[0] and right <= image.shape[1]:
        return image[y:bottom, x:right]
    shape = (height, width, *image.shape[2:])
    canvas = target if shape == target.shape else np.empty(shape, image.dtype)
    _copy_padded(image, y, x, canvas, around)
    return canvas


def _copy_padded(image: Array, y: int, x: int, canvas: Array, around: Array) -> None:
    """Copy the part of the image at (y, x) into a canvas, and fill the rest of it with ``around``."""
    height, width = canvas.shape[:2]
    part = image[max(y, 0) : max(y + height, 0), max(x, 0) : max(x + width, 0)]
    top, left = max(-y, 0), max(-x, 0)
    canvas[...] = around
    canvas[top : top + part.shape[0], left : left + part.shape[1]] = part


def _resize(source: Array, target: Array, nearest: bool, interpolation: str = "bilinear") -> None:
    """Resample all of source into all of target."""
    height, width = target.shape[:2]
    from_height, from_width = source.shape[:2]
    if nearest:
        too_large = from_height > _MAX_NEAREST_SIDE or from_width > _MAX_NEAREST_SIDE
        if too_large or _has_ties(from_height, height) or _has_ties(from_width, width):
            _resize_nearest(source, target)
            return
        method = cv2.INTER_NEAREST_EXACT
    elif interpolation == "bicubic":
        method = cv2.INTER_CUBIC
    elif _is_half(from_height, from_width, height, width):
        method = cv2.INTER_AREA
    else:
        method = cv2.INTER_LINEAR
    if source.ndim == 3 and source.shape[2] > _MAX_AREA_CHANNELS:
        _resize_channels(source, target, method)
    else:
        cv2.resize(source, (width, height), target, 0, 0, method)


def _is_half(from_height: Any, from_width: Any, height: Any, width: Any) -> Any:
    """Return whether both sides shrink by more than 2; of numbers, or elementwise of arrays."""
    return (from_height > 2 * height) & (from_width > 2 * width)


def _resize_channels(source: Array, target: Array, method: int) -> None:
    """Resize many channels, as many at a time as cv2 supports."""
    height, width, channels = target.shape
    step = _MAX_AREA_CHANNELS if method == cv2.INTER_AREA else _MAX_CHANNELS
    if channels <= step:
        cv2.resize(source, (width, height), target, 0, 0, method)
        return
    for start in range(0, channels, step):
        part = np.ascontiguousarray(source[:, :, start : start + step])
        resized = cv2.resize(part, (width, height), interpolation=method)
        target[:, :, start : start + step] = resized.reshape(height, width, -1)


def _has_ties(length: int, size: int) -> bool:
    """Return whether some centre lies exactly between two pixels, where cv2's choice is not consistent."""
    common = math.gcd(length, size)
    return not length // common % 2 and size // common % 2 == 1


def _resize_nearest(source: Array, target: Array) -> None:
    """Nearest-neighbour in exact integers; of two equally near pixels the later one."""
    rows, cols = (
        (2 * np.arange(count, dtype=np.int64) + 1) * length // (2 * count)
        for count, length in zip(target.shape[:2], source.shape[:2], strict=True)
    )
    np.take(source.take(rows, 0), cols, 1, out=target, mode="clip")  # not "raise": it would copy


def _flip(source: Array, target: Array, vertical: bool, horizontal: bool) -> None:
    """Flip source into target, which may be the same array."""
    if source.ndim == 3 and source.shape[2] > _MAX_CHANNELS:
        target[...] = source[:: -1 if vertical else 1, :: -1 if horizontal else 1]
    else:
        cv2.flip(source, (-1 if vertical else 1) if horizontal else 0, target)


def reductions(
    boxes: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return by how much a decoder may shrink each image so that its crop is at least as large as the result.

    Args:
        boxes: ``(N, 4)``: y, x, height, width.
        sizes: ``(N, 2)``: height and width of the results.

    Returns:
        ``(N,)``: 1, 2, 4 or 8.

    Example:
        >>> boxes = np.array([[0, 0, 900, 1000], [0, 0, 900, 400]])
        >>> reductions(boxes, np.array([[224, 224]])).tolist()
        [4, 1]
    """
    times = (boxes[:, 2:] // sizes).min(axis=1)
    reductions: npt.NDArray[np.int64] = _POWERS[np.searchsorted(_POWERS[1:], times, "right")]
    return reductions


def _reduced_box(
    box: Sequence[int], source_size: Sequence[int], shape: Sequence[int]
) -> tuple[int, int, int, int]:
    """Convert a box to pixels of an image that the decoder reduced."""
    y, x, height, width = box
    factor = _factor(source_size, shape)
    y, height = _reduced_span(y, height, factor, source_size[0], shape[0])
    x, width = _reduced_span(x, width, factor, source_size[1], shape[1])
    return y, x, height, width


def _factor(source_size: Sequence[int], shape: Sequence[int]) -> int:
    """Return the factor between two sizes; libjpeg rounds reduced sides up, other decoders down."""
    height, width = source_size
    for factor in (1, 2, 4, 8):
        down = (height // factor, width // factor)
        up = (-(-height // factor), -(-width // factor))
        if shape[:2] in (up, down):
            return factor
    raise BatchError(
        f"source_size {tuple(source_size)} divided by 1, 2, 4 or 8 never gives the image's "
        f"{tuple(shape[:2])}"
    )


def _reduced_span(
    start: int, extent: int, factor: int, source_length: int, length: int
) -> tuple[int, int]:
    """Divide start and end by the factor, rounding halves up; at least one pixel, and inside the image."""
    first = (2 * start + factor) // (2 * factor)
    last = (2 * (start + extent) + factor) // (2 * factor)
    if first == last:  # less than half a pixel across: the one at its centre
        first = (2 * start + extent) // (2 * factor)
        last = first + 1
    if start + extent <= source_length and last > length:
        first, last = min(first, length - 1), length
    return first, last - first


def move_boxes(
    boxes: npt.NDArray[np.float32],
    box: Sequence[float],
    size: Sequence[int],
    flip: Sequence[bool],
    matrix: npt.NDArray[np.float64] | None = None,
    ripple: Ripple | None = None,
) -> npt.NDArray[np.float32]:
    """Move bounding boxes as ``apply`` moves pixels.

    Args:
        boxes: ``(n, 4)``: x1, y1, x2, y2 in source pixels.
        box: As in ``apply``.
        size: As in ``apply``.
        flip: As in ``apply``.
        matrix: As in ``warp``, instead of box and flip: a box becomes the one that encloses its warped corners.
        ripple: As in ``warp``.

    Returns:
        ``(n, 4)`` float32, in pixels of the result and clipped to it. Number and order stay: boxes outside the
        result have zero width or height, for the caller to keep or drop together with their labels.

    Raises:
        BatchError: ``boxes`` is not ``(n, 4)``.

    Example:
        >>> boxes = np.array([[10, 20, 30, 40]], np.float32)
        >>> move_boxes(boxes, box=(20, 0, 50, 100), size=(25, 50), flip=(False, True)).tolist()
        [[35.0, 0.0, 45.0, 10.0]]
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise BatchError(f"boxes must be (n, 4), got {boxes.shape}")
    out_height, out_width = size
    frame = np.array((out_width, out_height) * 2, np.float64)
    if matrix is not None:
        corners = boxes[:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 4, 2)
        found = _to_result(corners, matrix, ripple)
        moved = np.concatenate([found.min(axis=1), found.max(axis=1)], axis=1)
        return np.asarray(np.clip(moved, 0, frame), np.float32)
    y, x, height, width = box
    scale = np.array((out_width / width, out_height / height) * 2)
    moved = (boxes - np.array((x, y, x, y), np.float64)) * scale
    vertical, horizontal = flip
    if horizontal:
        moved[:, ::2] = out_width - moved[:, 2::-2]
    if vertical:
        moved[:, 1::2] = out_height - moved[:, 3::-2]
    return np.asarray(np.clip(moved, 0, frame), np.float32)


def _to_result(
    points: Array, matrix: npt.NDArray[np.float64], ripple: Ripple | None
) -> npt.NDArray[np.float64]:
    """Return points ``(n, num, 2)`` of the source in pixels of the result."""

    def back(matrix: npt.NDArray[np.float64], points: Array) -> npt.NDArray[np.float64]:
        return moved_points(np.asarray(np.linalg.inv(matrix), np.float64)[None], points)

    at = back(matrix, points.astype(np.float64))
    return at if ripple is None else back(ripple.frame, ripple.moved(at))


def move_keypoints(
    points: npt.NDArray[np.float32],
    box: Sequence[float],
    size: Sequence[int],
    flip: Sequence[bool],
    pairs: Sequence[Sequence[int]] = (),
    matrix: npt.NDArray[np.float64] | None = None,
    ripple: Ripple | None = None,
) -> npt.NDArray[np.float32]:
    """Move keypoints as ``apply`` moves pixels.

    Args:
        points: ``(n, num, 2)``: x, y in source pixels; or ``(n, num, 3)`` with COCO's visibility.
        box: As in ``apply``.
        size: As in ``apply``.
        flip: As in ``apply``.
        pairs: Pairs of points (left and right eye) to swap in a horizontal flip, or if the matrix mirrors.
        matrix: As in ``warp``, instead of box and flip.
        ripple: As in ``warp``.

    Returns:
        float32 of the same shape, in pixels of the result. With visibility, points outside the result and unlabelled
        points are 0, 0, 0.

    Raises:
        BatchError: ``points`` has another shape.

    Example:
        >>> points = np.array([[[10, 20], [30, 40]]], np.float32)
        >>> move_keypoints(points, (20, 0, 50, 100), (25, 50), (False, True), [(0, 1)]).tolist()
        [[[35.0, 10.0], [45.0, 0.0]]]
    """
    if points.ndim != 3 or points.shape[2] not in (2, 3):
        raise BatchError(f"keypoints must be (n, num, 2) or (n, num, 3), got {points.shape}")
    frame = np.array((size[1], size[0]), np.float64)
    moved = points.astype(np.float64)
    if matrix is not None:
        moved[..., :2] = _to_result(moved[..., :2], matrix, ripple)
        box, flip = (0, 0, *size), (False, False)
        total = matrix if ripple is None else matrix @ ripple.frame
        for first, second in pairs if np.linalg.det(total[:2, :2]) < 0 else ():
            moved[:, [first, second]] = moved[:, [second, first]]
    y, x, height, width = box
    moved[..., :2] = (moved[..., :2] - (x, y)) * (frame / (width, height))
    vertical, horizontal = flip
    if horizontal:
        moved[..., 0] = frame[0] - moved[..., 0]
        for first, second in pairs:
            moved[:, [first, second]] = moved[:, [second, first]]
    if vertical:
        moved[..., 1] = frame[1] - moved[..., 1]
    if points.shape[2] == 3:
        is_gone = (moved[..., :2] < 0).any(-1) | (moved[..., :2] > frame).any(-1)
        moved[is_gone | (moved[..., 2] == 0)] = 0
    return np.asarray(moved, np.float32)
