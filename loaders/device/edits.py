"""Edits of pixels (``loaders.augment.edits``) on batches: a kernel runs once for all samples that want it.

What is launched depends on how many kinds of edits there are, not on how many samples. Which samples want which is
known on the host, where it was drawn: nothing waits for the device.

Source: values are those of ``torchvision.transforms.v2.functional`` on uint8 tensors; the host's are within one step,
where it calculates in whole numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from loaders.augment.edits import GRAY, Edits, Kind, hashed
from loaders.device.accelerator import row_of
from loaders.device.warps import blurred, points_of, warp
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class EditRound(NamedTuple):
    """Samples of a batch that get the same kind of edit at the same time."""

    kind: int  # of ``Kind``
    rows: torch.Tensor | None  # int64 ``(n,)``: which samples; None: all
    values: torch.Tensor  # float32 ``(n, NUM_VALUES)``: how, of each
    # Of a blur, width and height of the largest kernel; of a warp, whether any is by the nearest pixel, and any
    # between pixels; of a mix, whether it is the last.
    most: tuple[int, ...] = ()


def group_edits(edits: Edits | None) -> tuple[EditRound, ...]:
    """Return the edits of a batch by kind, in order."""
    if edits is None:
        return ()
    groups = []
    for kinds, values in zip(edits.kinds.T, edits.values.swapaxes(0, 1), strict=True):
        for kind in np.unique(kinds[kinds > 0]).tolist():
            rows = np.flatnonzero(kinds == kind)
            is_all = len(rows) == len(kinds)
            how = values[rows].astype(np.float32)
            most: tuple[int, ...] = ()
            if kind == Kind.BLUR:
                most = int(how[:, 1].max()), int(how[:, 2].max())
            elif kind == Kind.WARP:
                most = int(not how[:, 6].all()), int(how[:, 6].any())
            elif kind == Kind.MIX:
                most = (int(how[0, 1]),)
            which = None if is_all else torch.from_numpy(rows)
            groups.append(EditRound(kind, which, torch.from_numpy(how), most))
    return tuple(groups)


def edit_images(images: torch.Tensor, groups: Sequence[EditRound]) -> torch.Tensor:
    """Carry out edits on images, uint8 ``(N, 1 or 3, H, W)``, which may be changed in place; return them."""
    if not groups or not images.numel():
        return images
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise BatchError(
            f"pixel ops take uint8 images (N, 1 or 3, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    kept = total = images
    for group in groups:
        rows = group.rows
        some = images if rows is None else images.index_select(0, rows)
        if group.kind == Kind.KEEP:
            kept, total = some.clone(), some * _column(group.values)
            continue
        if group.kind == Kind.MIX:
            total += some * _column(group.values)
            made = _bytes(total) if group.most[0] else kept.clone()
        else:
            made = _KERNELS[group.kind](some, group.values, *group.most)
        images = made if rows is None else images.index_copy_(0, rows, made)
    return images


def _column(values: torch.Tensor, i: int = 0) -> torch.Tensor:
    """Return one of the values of each sample, to be broadcast with images."""
    return values[:, i].view(-1, 1, 1, 1)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Bound values and cut off what is behind the point."""
    return x.clamp_(0, 255).to(torch.uint8)


def _gray(images: torch.Tensor) -> torch.Tensor:
    """Return the gray pictures ``(N, 1, H, W)`` float32, of whole numbers."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.float().split(1, dim=1)
    gray: torch.Tensor = (red * GRAY[0]).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])
    return gray.floor_()


def _brightness(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return _bytes(images * _column(values))


def _contrast(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    factor = _column(values)
    mean = _gray(images).mean(dim=(1, 2, 3), keepdim=True)
    return _bytes(images * factor + mean * (1 - factor))


def _saturation(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if images.shape[1] == 1:
        return images
    factor = _column(values)
    return _bytes(images * factor + _gray(images) * (1 - factor))


def _grayscale(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return _gray(images).to(torch.uint8).expand_as(images).clone()


def _hue(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Turn the hue: to hue, saturation and value, and back."""
    if images.shape[1] == 1:
        return images
    x = images.float() / 255
    top, low = x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True)
    spread = top - low
    red, green, blue = (
        (top - each) / torch.where(spread > 0, spread, 1) for each in x.split(1, 1)
    )
    is_red, is_green = x[:, :1] == top, x[:, 1:2] == top
    hue = torch.where(is_red, blue - green, torch.where(is_green, 2 + red - blue, 4 + green - red))
    hue = hue + 6 * _column(values)
    # Each channel as a function of the hue: a trapezoid that is shifted by a third of a turn.
    at = (row_of((5.0, 3.0, 1.0), x).view(1, 3, 1, 1) + hue).remainder_(6)
    flank = torch.minimum(at, 4 - at).clamp_(0, 1)
    return _bytes((top - spread * flank) * 255.999)


def _solarize(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(images >= _column(values), 255 - images, images)


def _posterize(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    step = 2 ** (8 - _column(values))
    return ((images / step).floor_() * step).to(torch.uint8)


def _invert(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return 255 - images


def _autocontrast(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    x = images.float()
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    is_flat = low == high
    scale = torch.where(is_flat, 1.0, (high - low) * (1.0 / 255))
    return _bytes((x - torch.where(is_flat, 0.0, low)) / scale)


def _equalize(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    num, channels, height, width = images.shape
    flat = images.reshape(num * channels, -1).long()
    counts = torch.zeros((num * channels, 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    last = flat.amax(dim=1, keepdim=True)
    step = (flat.shape[1] - counts.gather(1, last)) // 255
    below = functional.pad(counts.cumsum(1)[:, :-1], (1, 0))
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    found = torch.where(step > 0, table.gather(1, flat), flat)
    return found.to(torch.uint8).view(num, channels, height, width)


def _blur(images: torch.Tensor, values: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Blur rows and columns; the size of a kernel is the largest for all, zeros make it the sample's."""
    x = images.float()
    for axis, column, most in ((3, 1, width), (2, 2, height)):
        x = blurred(x, axis, values[:, 0], values[:, column], most // 2)
    return x.round_().clamp_(0, 255).to(torch.uint8)


def _sharpness(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    channels = images.shape[1]
    if min(images.shape[2:]) <= 2:
        return images
    x, factor = images.float(), _column(values)
    kernel = torch.full((channels, 1, 3, 3), 1 / 13, dtype=x.dtype, device=x.device)
    kernel[:, :, 1, 1] = 5 / 13
    smooth = functional.conv2d(x, kernel, groups=channels).round_()
    inner = x[:, :, 1:-1, 1:-1]
    inner.add_((smooth - inner) * (1 - factor))
    return _bytes(x)


def _erase(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    num, channels, height, width = images.shape
    y = torch.arange(height, device=images.device).view(1, 1, -1, 1) - _column(values, 0)
    x = torch.arange(width, device=images.device).view(1, 1, 1, -1) - _column(values, 1)
    rows, columns = _column(values, 2), _column(values, 3)
    inside = (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    at = ((y * columns + x) * channels + channel).long()
    seeds = _column(values, 5).long()
    plain = values[:, 5 : 5 + channels].view(num, channels, 1, 1)
    value = torch.where(_column(values, 4) > 0, hashed(at, seeds).float(), plain)
    return torch.where(inside, value.to(torch.uint8), images)


def _warp(images: torch.Tensor, values: torch.Tensor, *ways: int) -> torch.Tensor:
    """Resample by a matrix for each sample, by the nearest pixel or between pixels."""
    points = points_of(values[:, :6].view(-1, 2, 3), images.shape[2:])
    fill = values[:, 7 : 7 + images.shape[1]]
    found = [
        warp(images, points, mode, fill)
        for mode, is_there in zip(("nearest", "bilinear"), ways, strict=True)
        if is_there
    ]
    return found[0] if len(found) == 1 else torch.where(_column(values, 6) > 0, found[1], found[0])


_KERNELS: dict[
    int, Callable[..., torch.Tensor]
] = {  # of images and values, and ``EditRound.most``
    Kind.BRIGHTNESS: _brightness,
    Kind.CONTRAST: _contrast,
    Kind.SATURATION: _saturation,
    Kind.HUE: _hue,
    Kind.GRAYSCALE: _grayscale,
    Kind.SOLARIZE: _solarize,
    Kind.POSTERIZE: _posterize,
    Kind.INVERT: _invert,
    Kind.AUTOCONTRAST: _autocontrast,
    Kind.EQUALIZE: _equalize,
    Kind.SHARPNESS: _sharpness,
    Kind.ERASE: _erase,
    Kind.BLUR: _blur,
    Kind.WARP: _warp,
}
