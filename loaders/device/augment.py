"""Crops, resizes and flips of whole batches, with the parameters that each sample would have drawn on the host.

``loaders.augment.planning.draw_geometry`` draws them on the host, a few numbers per sample; the pixels are moved
here, on whichever device holds them, axis by axis: each output row (or column) is a weighted sum
of a few source rows (or columns), all samples at once.

The rules are those of ``loaders.augment.pixels.apply``: bilinear between pixel centres, or averages over
areas where both sides of a sample's box shrink by more than 2; the box's edge pixels continue
beyond its edges; what lies outside the image is zero, outside a mask ``fill_mask``; or one of Pillow's
filters. OpenCV and Pillow weigh with few bits where this uses float32 and rounds once, so interpolated
pixels may differ by one step of uint8; copied ones never do.
Of a mask, where a centre lies exactly between two pixels, OpenCV takes either (by its rounding), this the
later.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from loaders.augment.planning import as_ops, draw_geometry, fill_mask_of, fill_of
from loaders.augment.resampling import (
    FAST,
    SUPPORT,
    Resampling,
    filter_weights,
    is_between_pixels,
    margin_of,
    source_positions,
)
from loaders.checks import shown, whole_number
from loaders.device.edits import (
    SIGNED,
    EditRound,
    Ripples,
    edit_images,
    group_edits,
    ripples_of,
    row_of,
    sources,
    warp,
)
from loaders.device.nested import holds, map_tensors
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment import Geometry, Op
    from loaders.augment.geometry import Known
    from loaders.device.normalize import Normalize

_PIXELS = {torch.uint8: 255, torch.uint16: 65535}
_CUBIC = -0.75  # of OpenCV's cubic interpolation, which is not filtered


class Warps(NamedTuple):
    """The samples of a batch that are turned, sheared and the like."""

    rows: torch.Tensor  # int64 ``(n,)``: which
    matrices: torch.Tensor  # ``(n, 3, 3)`` float64, as ``augment.Geometry`` says
    ripples: Ripples | None  # how they are displaced; None: not at all


class Moves(NamedTuple):
    """What happens to each sample of a batch, K being its spatial axes."""

    # ``(N, 3, K)`` int64: corner and lengths of the box, and which axes are mirrored.
    table: torch.Tensor
    size: tuple[int, ...]  # the K lengths of every result
    num_taps: tuple[int, ...]  # per axis, how many source rows the widest average needs
    is_copy: bool  # nothing is resampled: all boxes have the result's size
    fill_mask: int = 0  # what lies outside of masks
    fill: Any = 0  # what lies outside of images: one number, or one for each channel
    resampling: Resampling = FAST  # how, as ``augment.Geometry`` says
    # Where images are filtered ``(N, 2, 2)`` float64: corner and lengths of the exact boxes. ``table`` then has the
    # boxes of all that is read.
    regions: torch.Tensor | None = None
    edits: tuple[EditRound, ...] = ()  # what happens to the pixels of images then
    warps: Warps | None = None


def draw_moves(
    ops: Sequence[Op],
    size: Sequence[int],
    indices: Any,
    *,
    seed: int,
    epoch: int,
    draws: Any = None,
    view: int = 0,
    known: Known | None = None,
) -> Moves:
    """Draw what happens to a batch of samples of one size; the arguments are those of ``draw_geometry``."""
    if known is None and any(getattr(op, "foreground", None) for op in ops):
        raise BatchError(
            "RandomCrop(foreground=...) needs the labels: use it in augment= of the dataset, not in BatchAugment"
        )
    numbers = np.asarray(indices)
    sizes = np.broadcast_to(np.asarray(size, np.int64), (len(numbers), len(size)))
    repeats = None if draws is None else np.asarray(draws)
    settings: Any = {"seed": seed, "epoch": epoch, "draws": repeats, "view": view, "known": known}
    drawn = draw_geometry(ops, sizes, indices=numbers, **settings)
    regions = drawn.regions
    corners, lengths = np.split(drawn.boxes if regions is None else drawn.covers(sizes), 2, axis=1)
    target = drawn.sizes[0] if len(numbers) else np.asarray(size, np.int64)
    if (drawn.sizes != target).any():
        raise BatchError(f"results would differ in size: end {list(ops)} with a crop or Resize")
    table = np.stack([corners, lengths, drawn.flips.astype(np.int64)], axis=1)
    taps = _num_taps(drawn).max(axis=0, initial=2)
    return Moves(
        torch.from_numpy(table),
        tuple(target.tolist()),
        tuple(taps.tolist()),
        regions is None and bool((lengths == drawn.sizes).all()),
        fill_mask_of(ops),
        fill_of(ops),
        drawn.resampling,
        None if regions is None else torch.from_numpy(regions.reshape(-1, 2, 2)),
        group_edits(drawn.edits),
        _warps(drawn),
    )


def _warps(drawn: Geometry) -> Warps | None:
    rows = np.flatnonzero(drawn.is_warped)
    if drawn.matrices is None or not len(rows):
        return None
    if (mode := drawn.resampling.padding_mode) not in ("constant", "edge"):
        raise BatchError(f"padding_mode={mode!r} of rotations and other warps is done on the host")
    ripples = None if drawn.ripples is None else ripples_of(drawn.ripples)
    return Warps(torch.from_numpy(rows), torch.from_numpy(drawn.matrices[rows]), ripples)


def _num_taps(drawn: Geometry) -> Any:
    """Return how many source rows and columns a result takes of each sample."""
    interpolation = drawn.resampling.interpolation
    if drawn.regions is not None:
        return 2 * margin_of(interpolation, drawn.regions[:, 2:] / drawn.sizes).astype(np.int64)
    lengths = drawn.boxes[:, drawn.sizes.shape[1] :]
    if interpolation == "bicubic":
        return np.full_like(lengths, 4)
    is_area = (lengths > 2 * drawn.sizes).all(axis=1, keepdims=True)
    return np.where(is_area, -(-lengths // drawn.sizes) + 1, 2)


class BatchAugment(nn.Module):
    """Crop, resize and flip a batch of images of one size, and their masks with them.

    Sample ``i`` gets the box and flips that the same ops draw on the host for
    ``(seed, epoch, indices[i], draws[i])``, whatever else is in its batch.

    Args:
        ops: Ops of ``loaders.augment``; of volumes, crops and flips alone.
        seed: Of the run: the loader's.
        view: Number of the view, where a sample has several.
        normalize: Applied at the end, to the same pixels.

    Shape:
        images uint8 or uint16 ``(N, C, H, W)`` (of crops and flips alone, any dtype and also
        ``(N, C, D, H, W)``) in, ``(N, C, *size)`` out, channels-last in memory as the loader's;
        masks any dtype ``(N, H, W)`` (or ``(N, D, H, W)``) in, ``(N, *size)`` out, by nearest.

    Raises:
        TypeError: At construction, ``ops`` is not a list of ops.
        BatchError: At call, the tensors do not fit together, or an op does not suit them.

    Example:
        >>> from loaders.augment import CenterCrop
        >>> images = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
        >>> BatchAugment([CenterCrop(2)])(images, indices=[0])
        tensor([[[[ 5,  6],
                  [ 9, 10]]]], dtype=torch.uint8)
    """

    def __init__(
        self,
        ops: Sequence[Op],
        *,
        seed: int = 0,
        view: int = 0,
        normalize: Normalize | None = None,
    ) -> None:
        super().__init__()
        self.ops = as_ops(ops)
        self.seed, self.view = whole_number("seed", seed), whole_number("view", view, at_least=0)
        if normalize is not None and not callable(normalize):
            raise TypeError(f"normalize must be a Normalize, got {shown(normalize)}")
        self.normalize = normalize

    def forward(
        self,
        images: torch.Tensor,
        *masks: torch.Tensor,
        indices: Any = None,
        epoch: int = 0,
        draws: Any = None,
        moves: Moves | None = None,
    ) -> Any:
        """Return the augmented images; with masks, a tuple of images and masks.

        Args:
            images: The batch.
            *masks: Of the same spatial size, if any.
            indices: ``(N,)`` positions in the dataset, on the host (a batch's ``sample_id``).
            epoch: From 0.
            draws: ``(N,)``: which repeat of its index within the epoch each sample is.
            moves: What ``draw_moves`` returned, in place of the three before.
        """
        for tensor in (images, *masks):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"BatchAugment takes tensors of images of one size, got {shown(tensor)}"
                )
        if moves is None:
            moves = self.draw(images, indices, epoch, draws)
        _check(images, masks, moves)
        moves = map_tensors(moves, partial(_moved, device=images.device))
        pixels = move_images(images, moves)
        if self.normalize is not None:
            pixels = self.normalize(pixels)
        return (pixels, *(move_masks(mask, moves) for mask in masks)) if masks else pixels

    def draw(self, images: torch.Tensor, indices: Any, epoch: int, draws: Any = None) -> Moves:
        """Draw what happens to these images."""
        numbers = np.asarray([] if indices is None else indices)
        is_whole = numbers.dtype.kind in "iu" or not numbers.size
        if numbers.shape != (len(images),) or not is_whole:
            what = f"one whole number per image ({len(images)})"
            raise BatchError(f"indices must have {what}, got {shown(indices)}")
        epoch = whole_number("epoch", epoch, at_least=0)
        settings = {"seed": self.seed, "epoch": epoch, "draws": draws, "view": self.view}
        return draw_moves(self.ops, images.shape[2:], numbers.astype(np.int64), **settings)

    def extra_repr(self) -> str:
        """Show the ops."""
        return f"ops={list(self.ops)}, seed={self.seed}"


def _check(images: torch.Tensor, masks: tuple[torch.Tensor, ...], moves: Moves) -> None:
    num_axes = len(moves.size)
    if images.dim() != num_axes + 2 or len(images) != len(moves.table):
        raise BatchError(
            f"{len(moves.table)} samples of {num_axes} spatial axes do not fit images {tuple(images.shape)}"
        )
    if not moves.is_copy and (images.dtype not in _PIXELS or num_axes != 2):
        raise BatchError(
            f"only uint8 and uint16 images (N, C, H, W) can be resampled, got {images.dtype} {tuple(images.shape)}"
        )
    for mask in masks:
        fits = mask.shape == (len(images), *images.shape[2:])
        if not fits or not holds(mask.dtype, moves.fill_mask):
            what = f"a mask {mask.dtype} {tuple(mask.shape)} does not fit images {tuple(images.shape)}"
            raise BatchError(f"{what}, or fill_mask={moves.fill_mask}")


def _moved(table: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """Bring the parameters to the device without waiting for what it is doing."""
    if device.type == "cuda" and not table.is_cuda:
        table = table.pin_memory()
    return table.to(device, non_blocking=True)


def move_masks(masks: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Return masks ``(N, *spatial)`` moved; ``moves`` is on their device."""
    moved = _nearest(masks, moves, False, moves.fill_mask)
    if moves.warps is not None:
        kind = masks.dtype
        plain = moved.view(SIGNED.get(kind, kind))  # indexing knows no unsigned 16 bits
        turned = _turned(masks.view(plain.dtype), moves.warps, moves)
        plain.index_copy_(0, moves.warps.rows, turned)
    return moved


def _turned(masks: torch.Tensor, warps: Warps, moves: Moves) -> torch.Tensor:
    """Take the pixel nearest to where each comes from."""
    height, width = masks.shape[1:]
    points = sources(warps.matrices, moves.size, warps.ripples)
    x, y = points.floor().long().unbind(-1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    at = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).flatten(1)
    some = masks.index_select(0, warps.rows).flatten(1)
    found = some.gather(1, at).view(inside.shape)
    is_edge = moves.resampling.padding_mode == "edge"
    return found if is_edge else found.masked_fill(~inside, moves.fill_mask)


def move_images(images: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Return images ``(N, C, *spatial)`` moved and edited; ``moves`` is on their device."""
    moved = _moved_images(images, moves)
    if moves.warps is not None:
        rows, matrices, ripples = moves.warps
        if images.dtype != torch.uint8:
            raise BatchError(
                f"only uint8 images can be rotated, sheared or warped on a device, got {images.dtype}"
            )
        fill = row_of(np.broadcast_to(moves.fill, images.shape[1]).tolist(), images)[None]
        some = images.index_select(0, rows)
        points = sources(matrices, moves.size, ripples)
        turned = warp(some, points, moves.resampling.warp, fill)
        moved.index_copy_(0, rows, turned)
    return edit_images(moved, moves.edits)


def _moved_images(images: torch.Tensor, moves: Moves) -> torch.Tensor:
    if moves.is_copy or moves.resampling.interpolation == "nearest":
        return _nearest(images, moves, True, moves.fill)
    lines = images.movedim(1, -1).contiguous()  # once: each tap gathers whole rows
    if images.dtype in SIGNED:  # gathering knows no unsigned 16 bits
        lines = lines.view(SIGNED[images.dtype])
    top = _PIXELS[images.dtype]
    shares = []
    for axis in range(2):
        positions, weights = _lines(moves, axis, images.shape[2 + axis])
        lines = _weighted(lines, axis + 1, positions, weights, top)
        shares.append(weights.sum(-1))
    if moves.fill:
        outside = 1 - shares[0].unsqueeze(2) * shares[1].unsqueeze(1)
        lines += outside.unsqueeze(-1) * row_of(np.atleast_1d(moves.fill).tolist(), lines)
    return lines.round_().clamp_(0, top).to(images.dtype).movedim(-1, 1)


def _lines(moves: Moves, axis: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the pixels of an axis come from, and their weights: ``(N, size, taps)`` each."""
    size, num, mode = moves.size[axis], moves.num_taps[axis], moves.resampling.padding_mode
    corner, extent, flip = moves.table[:, :, axis].unbind(1)
    if moves.regions is not None:
        region = moves.regions[:, :, axis].to(_real(moves.table))
        return _filtered(region, flip, size, num, length, moves.resampling)
    interpolation = moves.resampling.interpolation
    is_area = (moves.table[:, 1] > 2 * row_of(moves.size, moves.table)).all(dim=1)
    is_area &= interpolation == "bilinear"
    taps, weights = _taps(extent, flip, is_area, size, num, interpolation)
    positions, inside = _inside(corner.view(-1, 1, 1) + taps, length, mode)
    return positions, weights * inside


def _real(like: torch.Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64


def _filtered(
    region: torch.Tensor, flip: torch.Tensor, size: int, num: int, length: int, how: Resampling
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions and weights of one of Pillow's filters, at a box ``(N, 2)`` of an axis: start and extent."""
    start, extent = region[:, :1], region[:, 1:]
    sizes = torch.full_like(extent, size)  # divided by a number, CUDA multiplies by its reciprocal
    scale, at = extent / sizes, _positions(flip, size)
    # Calculated as Pillow does, and from the same pixel on, as the host hands it the pixels below a box alone: whether
    # a pixel lies on the edge of an area hangs on the last bit.
    margin = (SUPPORT[how.interpolation] * scale.clamp(min=1)).ceil() + 1
    begin = (start - margin).floor().clamp_(min=0)
    low, high = ((edge - begin).float().to(region.dtype) for edge in (start, start + extent))
    scale = (high - low) / sizes
    centre, wide = low + (at + 0.5) * scale, scale.clamp(min=1)
    reach = SUPPORT[how.interpolation] * wide
    first, last = ((edge + 0.5).floor().long() for edge in (centre - reach, centre + reach))
    taps = first.unsqueeze(-1) + torch.arange(num, device=region.device)
    x = (taps - centre.unsqueeze(-1) + 0.5) * (1 / wide).unsqueeze(-1)
    weights = filter_weights(x, how.interpolation) * (taps < last.unsqueeze(-1))
    taps += begin.long().unsqueeze(-1)
    weights = weights / weights.sum(-1, keepdim=True)
    is_mixed = is_between_pixels(start, extent, size, length)
    # Where a box reaches outside; else the image ends where it does.
    if how.padding_mode != "constant":
        is_mixed = (start < 0) | (start + extent > length)
    inside = (taps >= 0) & (taps < length)
    inner = weights * inside
    whole = inner / inner.sum(-1, keepdim=True).clamp_(min=1e-9)
    whole = whole * _on_image(at, start, extent, size, length).unsqueeze(-1)
    mixed = inner if how.padding_mode == "constant" else weights
    positions, _ = _inside(taps, length, how.padding_mode)
    return positions, torch.where(is_mixed.unsqueeze(-1), mixed, whole).to(torch.float32)


def _on_image(
    at: torch.Tensor, start: torch.Tensor, extent: torch.Tensor, size: int, length: int
) -> torch.Tensor:
    """Tell which pixels of a result lie on the image, which ends between two of them."""
    first, last = -start * size / extent, (length - start) * size / extent
    return (at >= first.round()) & (at < last.round())


def _taps(
    length: torch.Tensor,
    flip: torch.Tensor,
    is_area: torch.Tensor,
    size: int,
    num: int,
    interpolation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which positions in its box each output position takes, and their weights: ``(N, size, num)`` each."""
    at, extent, is_area = _positions(flip, size), length.view(-1, 1), is_area.view(-1, 1)
    scale = extent.to(torch.float32) / size
    centre = (at + 0.5) * scale - 0.5
    first = centre.floor().long() + 1 - int(SUPPORT[interpolation])
    first = torch.where(is_area, (at * extent) // size, first)
    taps = first.unsqueeze(-1) + torch.arange(num, device=length.device)
    left, begin, end = taps.to(torch.float32), at * scale, (at + 1) * scale
    share = torch.minimum(left + 1, end.unsqueeze(-1)) - torch.maximum(left, begin.unsqueeze(-1))
    weights = torch.where(
        is_area.unsqueeze(-1),
        share.clamp_(min=0) / scale.unsqueeze(-1),
        filter_weights(left - centre.unsqueeze(-1), interpolation, _CUBIC),
    )
    # Beyond the edges of the box their pixels go on.
    return torch.minimum(taps.clamp(min=0), extent.unsqueeze(-1) - 1), weights


def _positions(flip: torch.Tensor, size: int) -> torch.Tensor:
    """Return the output positions of each sample, backwards where it is mirrored: ``(N, size)`` int64."""
    at = torch.arange(size, device=flip.device).expand(len(flip), size)
    return torch.where(flip.view(-1, 1) > 0, size - 1 - at, at)


def _inside(positions: torch.Tensor, length: int, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions that can be read, and which of them are those that were meant."""
    if mode != "constant" and length:
        found = source_positions(positions, length, mode)
        return found, torch.ones_like(found, dtype=torch.bool)
    inside = (positions >= 0) & (positions < length)
    return positions.clamp(0, max(length - 1, 0)), inside


def _weighted(
    lines: torch.Tensor, axis: int, positions: torch.Tensor, weights: torch.Tensor, top: int
) -> torch.Tensor:
    """Sum what lies at ``positions``, ``(N, size, taps)``, along an axis, weighted."""
    shape = [len(lines), *(1,) * (lines.dim() - 1)]
    shape[axis] = positions.shape[1]

    def tap(position: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        part = _take(lines, axis, position)
        if part.dtype == torch.int16:
            part = part.to(torch.int32).bitwise_and_(top)
        return part.to(torch.float32).mul_(weight.reshape(shape))

    return reduce(torch.Tensor.add_, map(tap, positions.unbind(-1), weights.unbind(-1)))


def _take(lines: torch.Tensor, axis: int, positions: torch.Tensor) -> torch.Tensor:
    """Gather along an axis, at positions ``(N, size)`` of each sample's own."""
    num, length, size = len(lines), lines.shape[axis], positions.shape[1]
    shape = list(lines.shape)
    shape[axis] = size
    if axis == 1:  # whole rows: one gather of contiguous bytes
        starts = torch.arange(num, device=lines.device).unsqueeze(1) * length
        flat = lines.reshape(num * length, lines.shape[2:].numel())
        rows = flat.index_select(0, (starts + positions).flatten())
        return rows.view(shape)
    view = [num, *(1,) * (lines.dim() - 1)]
    view[axis] = size
    return lines.gather(axis, positions.reshape(view).expand(shape))


def _nearest(values: torch.Tensor, moves: Moves, has_channels: bool, fill: Any) -> torch.Tensor:
    """Take the pixel nearest to each centre, or ``fill`` outside; exact, for any dtype."""
    kind = values.dtype
    around = torch.from_numpy(np.atleast_1d(fill)).to(kind).view(SIGNED.get(kind, kind))
    lines = values.movedim(1, -1) if has_channels else values.unsqueeze(-1)
    lines = lines.view(SIGNED.get(kind, kind))
    for axis in range(len(moves.size)):
        length = values.shape[axis + 1 + has_channels]
        positions, inside = _nearest_positions(moves, axis, length)
        lines = _take(lines, axis + 1, positions)
        shape = [len(values), *(1,) * (lines.dim() - 1)]
        shape[axis + 1] = moves.size[axis]
        lines = (
            lines.masked_fill(~inside.view(shape), around.item())
            if len(around) == 1
            else torch.where(inside.view(shape), lines, around.to(lines.device))
        )
    lines = lines.view(kind)
    return lines.movedim(-1, 1) if has_channels else lines.squeeze(-1)


def _nearest_positions(moves: Moves, axis: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    size, mode = moves.size[axis], moves.resampling.padding_mode
    corner, extent, flip = (column.unsqueeze(1) for column in moves.table[:, :, axis].unbind(1))
    at = _positions(flip, size)
    if moves.regions is None:
        return _inside(corner + (2 * at + 1) * extent // (2 * size), length, mode)
    start, extent = moves.regions[:, :, axis].to(_real(moves.table)).unsqueeze(2).unbind(1)
    scale = extent / torch.full_like(extent, size)  # as the host: see ``_filtered``
    found = (start + (at + 0.5) * scale).floor().long()
    positions, inside = _inside(found, length, mode)
    if mode == "constant":
        is_mixed = is_between_pixels(start, extent, size, length)
        inside &= is_mixed | _on_image(at, start, extent, size, length)
    return positions, inside
