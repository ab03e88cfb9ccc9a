"""What lists of ops amount to: how they resample, what they pad with, the geometry of each sample, and views of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.augment.edits import Edits
from loaders.augment.geometry import Op, SizedBySample, Window
from loaders.augment.ops import Crop
from loaders.augment.resampling import Fill, Resampling
from loaders.checks import as_list
from loaders.errors import BatchError
from loaders.rng import key64, uniforms
from loaders.schema.schema import check_field_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from loaders.augment.geometry import Floats, Geometry, Ints

_DOMAIN = 0x41554721  # separates these draws from all others with the same seed and epoch


def resampling_of(ops: Sequence[Op]) -> Resampling:
    """Return how a list of ops resamples: as its last resizing op says.

    If that op has ``antialias=None``, images are filtered if no op draws at random.
    """
    mode, warp = _one_of(ops, "padding_mode", "constant"), _warp(ops)
    for op in reversed(ops):
        interpolation = getattr(op, "interpolation", None)
        if interpolation is None or not hasattr(op, "antialias"):
            continue
        antialias = op.antialias
        if antialias is None:
            antialias = not any(each.num_draws for each in ops)
        is_filtered = interpolation == "area" or (antialias and interpolation != "nearest")
        return Resampling(interpolation, bool(is_filtered), mode, warp)
    return Resampling(padding_mode=mode, warp=warp)


def _warp(ops: Sequence[Op]) -> str:
    moving = [op for op in ops if not hasattr(op, "edit")]
    ways = {way for op in moving if (way := getattr(op, "interpolation", None)) is not None}
    return "nearest" if ways == {"nearest"} else "bilinear"


def as_ops(ops: Sequence[Op], what: str = "augment") -> tuple[Op, ...]:
    """Return ops as a tuple; TypeError if one is none, ValueError if they disagree on fills or ``padding_mode``."""
    if not isinstance(ops, (list, tuple)):
        raise TypeError(f"{what} must be a list of ops, got {ops!r}")
    for position, op in enumerate(ops):
        if isinstance(op, type) or not isinstance(op, Op):
            hint = (
                f"write {op.__name__}(...)"
                if isinstance(op, type)
                else "functions go to transform="
            )
            raise TypeError(
                f"{what}[{position}] must be an op such as CenterCrop(224), got {op!r}: {hint}"
            )
    for check in (fill_mask_of, fill_of, resampling_of):
        check(ops)
    return tuple(ops)


def fill_mask_of(ops: Sequence[Op]) -> int:
    """Return the padding value of masks: the one that ops set, or 0; ValueError if ops set different ones."""
    return int(_one_of(ops, "fill_mask", 0))


def fill_of(ops: Sequence[Op]) -> Fill:
    """Return the padding value of pixels: the one that ops set, or 0; ValueError if ops set different ones."""
    fill: Fill = _one_of(ops, "fill", 0)
    return fill


def _one_of(ops: Sequence[Op], name: str, default: Any) -> Any:
    # Pixel ops use their own fill themselves.
    moving = [op for op in ops if not hasattr(op, "edit")]
    found = {value for op in moving if (value := getattr(op, name, None)) is not None}
    if len(found) > 1:
        several = " and ".join(sorted(map(str, found)))
        raise ValueError(f"{name} must be the same in all ops that set it, got {several}")
    return found.pop() if found else default


def check_ops(ops: Sequence[Op], num_axes: int) -> None:
    """Raise BatchError for an op that resamples, or needs another number of spatial axes than ``num_axes``."""
    for op in ops:
        resamples = hasattr(op, "interpolation") and not hasattr(op, "edit")
        if resamples or (num_axes != 2 and isinstance(op, SizedBySample)):
            raise BatchError(f"{op} is for images; arrays can only be cropped and flipped")
        if isinstance(op, Crop):
            op.lengths(num_axes)


def output_size(ops: Sequence[Op], size: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """Return the (height, width) of all results, of images of one size or of any (None); None if they differ."""
    for op in ops:
        size = op.resized(size)
    return size


def draw_geometry(
    ops: Sequence[Op],
    # ``(N, 2)``, of volumes ``(N, 3)``: height and width in source pixels
    sizes: npt.NDArray[Any],
    *,
    seed: int,  # the run's
    epoch: int,
    indices: npt.NDArray[Any],  # ``(N,)``: positions in the dataset
    draws: npt.NDArray[Any] | None = None,  # ``(N,)``: of repeats of an index within the epoch
    view: int = 0,  # number of the view, if several are made from one decode
    # For ops that ask for them, ``(N, 2)`` of each: points to crop around, as fractions of the axes; NaN: at random.
    points: Sequence[Floats | None] | None = None,
    # For ops that ask for them, of each sample float32 ``(n, 4)``: x1, y1, x2, y2 in source pixels.
    boxes: Sequence[npt.NDArray[Any]] | None = None,
) -> Geometry:
    """Draw the parameters of a batch and reduce them to one ``Geometry``; BatchError for an image that is too small.

    A sample's row depends on ``ops`` (and their positions), its own size, index and draw, and on ``seed``, ``epoch``
    and ``view``: it is the same in any batch, and alone.
    """
    indices, sizes = np.asarray(indices), np.asarray(sizes, np.int64)
    draws = np.zeros(1, np.int64) if draws is None else np.asarray(draws)
    for row in np.flatnonzero((sizes < 1).any(axis=1)).tolist():
        raise BatchError(f"sample {indices[row]} is empty: {sizes[row].tolist()} pixels")
    window = Window(sizes, indices)
    num_axes = window.size.shape[1]
    if num_axes != 2:
        check_ops(ops, num_axes)
    keys = [key64(_DOMAIN, seed, epoch, view, position) for position in range(len(ops))]
    nums = [num_axes if getattr(op, "per_axis", False) else op.num_draws for op in ops]
    drawn = uniforms(keys, indices, draws, nums=nums) if ops else []
    lengths = window.size.copy()
    window.boxes = boxes
    for op, numbers, at in zip(ops, drawn, points or [None] * len(ops), strict=True):
        window.points = _source_points(at, lengths)
        op.move(window, numbers)
    geometry = window.geometry(resampling_of(ops))
    edited = [
        op.edit(numbers, geometry.sizes)
        for op, numbers in zip(ops, drawn, strict=True)
        if hasattr(op, "edit")
    ]
    return replace(geometry, edits=Edits.joined(edited)) if edited else geometry


def _source_points(points: Floats | None, lengths: Ints) -> Floats | None:
    if points is None:
        return None
    if points.shape != lengths.shape:
        raise BatchError(
            f"the foreground field has {points.shape[1]} spatial axes, the samples have {lengths.shape[1]}: "
            "serve only fields with as many axes as the foreground"
        )
    return points * lengths


# -- several lists ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False)
class Views:
    """Several views of each sample from one decode, each with its own ops and random draws.

    Iterates as (name, ops) pairs; a pair's position is the ``view`` of its draws in ``draw_geometry``.

    Args:
        **lists: The ops of each view by its name: the view ``a`` of the field ``image`` is served as ``image_a``.

    Raises:
        TypeError: At construction, one of the lists is not a list of ops.
        ValueError: At construction, there is no view, or a name is not a valid field name.

    Example:
        >>> from loaders.augment import CenterCrop, RandomResizedCrop
        >>> views = Views(weak=[CenterCrop(8)], strong=[RandomResizedCrop(8)])
        >>> views.names
        ('weak', 'strong')
    """

    names: tuple[str, ...]
    lists: tuple[tuple[Op, ...], ...]

    def __init__(self, *unnamed: Any, **lists: Sequence[Op]) -> None:
        if unnamed:
            raise TypeError("Views takes lists of ops by name: Views(weak=[...], strong=[...])")
        if not lists:
            raise ValueError("Views needs at least one list of ops, got none")
        for name in lists:
            check_field_name(name)
        object.__setattr__(self, "names", tuple(lists))
        checked = tuple(as_ops(ops, name) for name, ops in lists.items())
        object.__setattr__(self, "lists", checked)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, tuple[Op, ...]]]:
        return zip(self.names, self.lists, strict=True)


def as_augment(ops: Any) -> tuple[Any, ...]:
    """Check a dataset's ``augment`` and return it as a tuple; TypeError if it is not a list of ops."""
    if isinstance(ops, Views):
        raise TypeError("augment must be a list of ops, got Views(...): write [Views(...)]")
    listed = [] if ops is None else as_list("augment", ops, "ops, such as [CenterCrop(224)]")
    as_ops([op for op in listed if not isinstance(op, Views)])
    return tuple(listed)


def has_draws(augment: Sequence[Op | Views]) -> bool:
    """Return whether any op, those of views included, draws at random."""
    return any(op.num_draws for op in every_op(augment))


def every_op(augment: Sequence[Op | Views]) -> list[Any]:
    """Return the ops of a dataset, those of all views."""
    lists = [op.lists if isinstance(op, Views) else ((op,),) for op in augment]
    return [op for views in lists for ops in views for op in ops]
