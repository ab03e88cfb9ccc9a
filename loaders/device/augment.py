"""Crops, resizes and flips of whole batches, with the parameters that each sample would have drawn on the host.

``loaders.augment.plan`` draws them on the host, a few numbers per sample; the pixels are moved
here, on whichever device holds them, axis by axis: each output row (or column) is a weighted sum
of a few source rows (or columns), all samples at once.

The rules are those of ``loaders.augment.apply``: bilinear between pixel centres, or averages over
areas where both sides of a sample's box shrink by more than 2; the box's edge pixels continue
beyond its edges; what lies outside the image is zero, outside a mask ``fill_mask``. OpenCV weighs
with 11 bits where this uses float32, so interpolated pixels may differ by one step of uint8; copied
ones never do. Of a mask, where a centre lies exactly between two pixels, OpenCV takes either (by its
rounding), this the later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from loaders.augment import fill_mask_of, plan
from loaders.augment.geometry import as_ops
from loaders.checks import shown, whole_number
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment import Op
    from loaders.device.normalize import Normalize

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_PIXELS = {torch.uint8: 255, torch.uint16: 65535}


class Moves(NamedTuple):
    """What happens to each sample of a batch, K being its spatial axes.

    Attributes:
        table: ``(N, 3, K)`` int64: corner and lengths of the box, and which axes are mirrored.
        size: The K lengths of every result.
        num_taps: Per axis, how many source rows the widest average needs.
        is_copy: Nothing is resampled: all boxes have the result's size.
        fill_mask: What lies outside of masks.
    """

    table: torch.Tensor
    size: tuple[int, ...]
    num_taps: tuple[int, ...]
    is_copy: bool
    fill_mask: int = 0


def draw_moves(
    ops: Sequence[Op],
    size: Sequence[int],
    indices: Any,
    *,
    seed: int,
    epoch: int,
    draws: Any = None,
    view: int = 0,
    points: Any = None,
) -> Moves:
    """Draw what happens to a batch of samples of one size; the arguments are those of ``augment.plan``."""
    if points is None and any(getattr(op, "foreground", None) for op in ops):
        raise BatchError(
            "crops with the foreground are drawn where labels are read: by augment= of the dataset"
        )
    numbers = np.asarray(indices)
    sizes = np.broadcast_to(np.asarray(size, np.int64), (len(numbers), len(size)))
    repeats = None if draws is None else np.asarray(draws)
    settings: Any = {
        "seed": seed,
        "epoch": epoch,
        "draws": repeats,
        "view": view,
        "points": points,
    }
    drawn = plan(ops, sizes, indices=numbers, **settings)
    lengths = drawn.boxes[:, len(size) :]
    target = drawn.sizes[0] if len(numbers) else np.asarray(size, np.int64)
    table = np.stack([drawn.boxes[:, : len(size)], lengths, drawn.flips.astype(np.int64)], axis=1)
    is_area = (lengths > 2 * drawn.sizes).all(axis=1, keepdims=True)
    taps = np.where(is_area, -(-lengths // drawn.sizes) + 1, 2)
    return Moves(
        torch.from_numpy(table),
        tuple(target.tolist()),
        tuple(taps.max(axis=0, initial=2).tolist()),
        bool((lengths == drawn.sizes).all()),
        fill_mask_of(ops),
    )


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
        moves = moves._replace(table=_moved(moves.table, images.device))
        pixels = move_images(images, moves)
        if self.normalize is not None:
            pixels = self.normalize(pixels)
        return (pixels, *(move_masks(mask, moves) for mask in masks)) if masks else pixels

    def draw(self, images: torch.Tensor, indices: Any, epoch: int, draws: Any = None) -> Moves:
        """Draw what happens to these images."""
        numbers = np.asarray([] if indices is None else indices)
        is_whole = numbers.dtype.kind in "iu" or not numbers.size
        if numbers.shape != (len(images),) or not is_whole:
            got = str(numbers.size) if is_whole and numbers.ndim == 1 else shown(indices)
            got = "none" if indices is None else got
            raise BatchError(f"each of {len(images)} images needs its index, got {got}")
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
        if mask.shape != (len(images), *images.shape[2:]):
            raise BatchError(
                f"a mask {tuple(mask.shape)} does not fit images {tuple(images.shape)}"
            )
        if not _holds(mask.dtype, moves.fill_mask):
            raise BatchError(f"fill_mask {moves.fill_mask} does not fit into {mask.dtype}")


def _holds(dtype: torch.dtype, number: int) -> bool:
    if dtype == torch.bool:
        return number in (0, 1)
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.min <= number <= limits.max


def _moved(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Bring the parameters to the device without waiting for what it is doing."""
    if device.type == "cuda" and not table.is_cuda:
        table = table.pin_memory()
    return table.to(device, non_blocking=True)


def move_masks(masks: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Return masks ``(N, *spatial)`` moved; ``moves`` is on their device."""
    return _nearest(masks, moves, False, moves.fill_mask)


def move_images(images: torch.Tensor, moves: Moves) -> torch.Tensor:
    """Return images ``(N, C, *spatial)`` moved; ``moves`` is on their device."""
    if moves.is_copy:
        return _nearest(images, moves, True)
    lines = images.movedim(1, -1).contiguous()  # once: each tap gathers whole rows
    if images.dtype in _SIGNED:  # gathering knows no unsigned 16 bits
        lines = lines.view(_SIGNED[images.dtype])
    top = _PIXELS[images.dtype]
    is_area = (moves.table[:, 1] > 2 * _row(moves.size, moves.table)).all(dim=1)
    for axis in range(2):
        corner, length, flip = moves.table[:, :, axis].unbind(1)
        taps, weights = _taps(length, flip, is_area, moves.size[axis], moves.num_taps[axis])
        positions, inside = _inside(corner.view(-1, 1, 1) + taps, images.shape[2 + axis])
        lines = _weighted(lines, axis + 1, positions, weights * inside, top)
    return lines.round_().clamp_(0, top).to(images.dtype).movedim(-1, 1)


def _row(values: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return a few numbers on the device, without a copy from the host that would wait for it."""
    return torch.stack([torch.full((), value, device=like.device) for value in values])


def _taps(
    length: torch.Tensor, flip: torch.Tensor, is_area: torch.Tensor, size: int, num: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which positions in its box each output position takes, and their weights: ``(N, size, num)`` each."""
    at = _positions(flip, size)
    extent = length.view(-1, 1)
    scale = extent.to(torch.float32) / size
    centre = ((at + 0.5) * scale - 0.5).clamp_(min=0)
    first = torch.minimum(centre.floor().long(), extent - 1)
    begin, end = at * scale, (at + 1) * scale
    first = torch.where(is_area.view(-1, 1), (at * extent) // size, first)
    taps = first.unsqueeze(-1) + torch.arange(num, device=length.device)
    left, edge = taps.to(torch.float32), extent.unsqueeze(-1)
    share = torch.minimum(left + 1, end.unsqueeze(-1)) - torch.maximum(left, begin.unsqueeze(-1))
    area = share.clamp_(min=0) / scale.unsqueeze(-1)
    linear = (1 - (left - centre.unsqueeze(-1)).abs()).clamp_(min=0)
    weights = torch.where(is_area.view(-1, 1, 1), area, linear)
    return torch.minimum(taps, edge - 1), weights  # beyond the last pixel the same one goes on


def _positions(flip: torch.Tensor, size: int) -> torch.Tensor:
    """Return the output positions of each sample, backwards where it is mirrored: ``(N, size)`` int64."""
    at = torch.arange(size, device=flip.device).expand(len(flip), size)
    return torch.where(flip.view(-1, 1) > 0, size - 1 - at, at)


def _inside(positions: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions that can be read, and which of them are those that were meant."""
    inside = (positions >= 0) & (positions < length)
    return positions.clamp(0, max(length - 1, 0)), inside


def _weighted(
    lines: torch.Tensor, axis: int, positions: torch.Tensor, weights: torch.Tensor, top: int
) -> torch.Tensor:
    """Sum what lies at ``positions``, ``(N, size, taps)``, along an axis, weighted."""
    shape = [len(lines), *(1,) * (lines.dim() - 1)]
    shape[axis] = positions.shape[1]
    total: torch.Tensor | None = None
    for position, weight in zip(positions.unbind(-1), weights.unbind(-1), strict=True):
        part = _take(lines, axis, position)
        if part.dtype == torch.int16:
            part = part.to(torch.int32).bitwise_and_(top)
        part = part.to(torch.float32).mul_(weight.reshape(shape))
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


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


def _nearest(
    values: torch.Tensor, moves: Moves, has_channels: bool, fill: int = 0
) -> torch.Tensor:
    """Take the pixel nearest to each centre, or ``fill`` outside; exact, for any dtype."""
    kind = values.dtype
    around = torch.full((), fill, dtype=kind, device="cpu").view(_SIGNED.get(kind, kind)).item()
    lines = values.movedim(1, -1) if has_channels else values.unsqueeze(-1)
    lines = lines.view(_SIGNED.get(kind, kind))
    for axis, size in enumerate(moves.size):
        corner, length, flip = (
            column.unsqueeze(1) for column in moves.table[:, :, axis].unbind(1)
        )
        at = _positions(flip, size)
        nearest = (2 * at + 1) * length // (2 * size)
        positions, inside = _inside(corner + nearest, values.shape[axis + 1 + has_channels])
        lines = _take(lines, axis + 1, positions)
        shape = [len(values), *(1,) * (lines.dim() - 1)]
        shape[axis + 1] = size
        lines = lines.masked_fill(~inside.view(shape), around)
    lines = lines.view(kind)
    return lines.movedim(-1, 1) if has_channels else lines.squeeze(-1)
