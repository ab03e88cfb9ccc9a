"""Standardize images, the last step before the model, on the model's device; and back, to look at them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from loaders.checks import as_list, as_path, real_number, shown
from loaders.device import fused
from loaders.errors import BatchError
from loaders.system.regular import read_regular

if TYPE_CHECKING:
    from pathlib import Path

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
_RANGES = {torch.uint8: (0, 255), torch.uint16: (0, 65535)}


class Normalize(nn.Module):
    """Turn integer images into standardized floats, on whichever device holds them.

    Each channel ``c`` becomes ``(x[c] - mean[c]) / std[c]``. The arithmetic is float32, rounded
    once, to ``dtype``, at the end. ``Normalize.imagenet()`` has the statistics that most pretrained
    models expect, ``Normalize.from_stats("stats.json")`` those of your data. It is a module to call
    on the images of a batch; ``.to(device)`` moves it to where they are.

    Args:
        mean: Per-channel mean in pixel units (0 to 255 for uint8), length C.
        std: Per-channel standard deviation, same units and length, all above 0.
        dtype: Floating dtype of the result; default: ``torch.float32``.
        memory_format: ``torch.contiguous_format`` or ``torch.channels_last``; None, the default,
            keeps the input's memory order.
        max_value: 1 says that ``mean`` and ``std`` are for uint8 images scaled to 0..1, as
            torchvision gives them; they are then multiplied by 255. 255 or 65535 says that they are
            in pixel units. None, the default, says so, too, but refuses what looks like 0..1.

    On a GPU with Triton it is one pass over the pixels, to the same values; under ``torch.compile``
    it is plain operations, for the compiler to fuse.

    The statistics stay float32, and so does the arithmetic, when the module, or a model around it,
    is moved to another dtype.

    Shape:
        ``(N, C, H, W)``, ``(C, H, W)`` or ``(N, C, D, H, W)`` integers in, of ``dtype`` out.

    Raises:
        ValueError: At construction, ``mean`` and ``std`` do not pair up, or look like statistics
            of another scale.
        BatchError: At call, the input is not of integers (of uint8, with ``max_value=1``; of what was measured, with
            ``from_stats``) or does not have C channels.
        TypeError: At call, it is no tensor, but a whole batch, or a list of images of many sizes.

    Source:
        ``IMAGENET_MEAN``, ``IMAGENET_STD``: torchvision's reference recipes, times 255.

    Example:
        >>> Normalize(mean=[0.0], std=[255.0])(torch.tensor([[[[51]]]], dtype=torch.uint8))
        tensor([[[[0.2000]]]])
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format | None = None,
        *,
        max_value: int | None = None,
    ) -> None:
        super().__init__()
        means, stds = _numbers("mean", mean), _numbers("std", std)
        _check_statistics(means, stds, max_value)
        if not getattr(dtype, "is_floating_point", False):  # a name of one has no such thing
            raise ValueError(f"dtype must be a floating dtype of torch, got {dtype!r}")
        if memory_format not in (None, torch.contiguous_format, torch.channels_last):
            raise ValueError(
                "memory_format must be None, torch.contiguous_format or torch.channels_last, "
                f"got {memory_format!r}"
            )
        # The dtype of what was measured.
        self._only: torch.dtype | None = torch.uint8 if max_value == 1 else None
        scale = 255.0 if max_value == 1 else 1.0
        self.dtype = dtype
        # By name: torch.memory_format objects cannot be pickled or deep-copied (torch 2.13).
        self._memory_format = None if memory_format is None else str(memory_format).split(".")[-1]
        self.register_buffer("mean", torch.tensor(means, dtype=torch.float32) * scale)
        self.register_buffer("std", torch.tensor(stds, dtype=torch.float32) * scale)

    @property
    def memory_format(self) -> torch.memory_format | None:
        """The memory order of the result, or None for the input's."""
        return None if self._memory_format is None else getattr(torch, self._memory_format)

    @classmethod
    def imagenet(
        cls, dtype: torch.dtype = torch.float32, memory_format: torch.memory_format | None = None
    ) -> Self:
        """Return the module for models pretrained on ImageNet, which takes uint8 images."""
        made = cls(IMAGENET_MEAN, IMAGENET_STD, dtype, memory_format)
        made._only = torch.uint8
        return made

    @classmethod
    def from_stats(
        cls,
        stats: Mapping[str, Any] | Path | str,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format | None = None,
    ) -> Self:
        """Return the module for what ``packdata stats DATASET --json`` printed: a mapping, or its file.

        Those of the images; where there are none, of the one array field with channels (volumes, say), or of the
        field whose entry of ``"fields"`` is given.
        """
        data = stats if isinstance(stats, Mapping) else _read_stats(stats)
        found = data if "mean" in data else _of_arrays(data)
        # Of a field: in its own units.
        max_value = found.get("max_value", 255 if "kind" in found else None)
        made = cls(found["mean"], found["std"], dtype, memory_format, max_value=max_value)
        dtypes: dict[int | None, torch.dtype] = {255: torch.uint8, 65535: torch.uint16}
        made._only = made._only or dtypes.get(found.get("max_value"))
        return made

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the standardized images."""
        self._check(images)
        if images.dim() == 3:
            return self.forward(images.unsqueeze(0)).squeeze(0)
        if fused.can_fuse(images) and images.device == self.mean.device:
            fast = self._fused(images)
            if fast is not None:
                return fast
        shape = (-1, *(1,) * (images.dim() - 2))  # C, then H and W, or D, H and W
        result = images.to(torch.float32).sub_(self.mean.view(shape)).div_(self.std.view(shape))
        result, order = result.to(self.dtype), self._order(images)
        return result if order is None else result.contiguous(memory_format=order)

    def _fused(self, images: torch.Tensor) -> torch.Tensor | None:
        """Normalize a batch in one pass, to the same values; None where no kernel can."""
        order = self._order(images) or torch.preserve_format  # of slices, too
        out = torch.empty_like(images, dtype=self.dtype, memory_format=order)
        return fused.normalized(images, self.mean, self.std, out)

    def _order(self, images: torch.Tensor) -> torch.memory_format | None:
        order = self.memory_format
        is_3d = order == torch.channels_last and images.dim() == 5
        return torch.channels_last_3d if is_3d else order

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the buffers, but keep their dtype: 123.675 would be 123.5 in bfloat16."""
        exact = {"mean": self.mean, "std": self.std}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            moved = getattr(self, name)
            if moved.dtype != buffer.dtype:
                setattr(self, name, buffer.to(moved.device))
        return self

    def _check(self, images: torch.Tensor) -> None:
        if not isinstance(images, torch.Tensor):
            raise TypeError(
                f"Normalize takes a tensor of integer images, got {_not_tensor(images)}"
            )
        if images.is_floating_point() or images.is_complex() or images.dtype == torch.bool:
            raise BatchError(
                f"Normalize takes integer images, got {images.dtype}: pass what the loader yields"
            )
        # Those of 16 bits are often held in wider ones, with which torch can do more.
        if self._only not in (None, images.dtype) and torch.uint8 in (self._only, images.dtype):
            raise BatchError(
                f"these statistics are for {self._only} images, got {images.dtype}: pass those of such images, or "
                "those of 0..1 times the largest value, 65535 for 16 bits, without max_value"
            )
        if not _has_channels(images, len(self.mean)):
            raise BatchError(
                f"Normalize was made for {len(self.mean)} channels and takes (N, C, H, W), "
                f"got {tuple(images.shape)}"
            )

    def extra_repr(self) -> str:
        """Show the settings in pixel units."""
        mean, std = ([round(v, 3) for v in t.tolist()] for t in (self.mean, self.std))
        return f"mean={mean}, std={std}, dtype={self.dtype}"


class Denormalize(nn.Module):
    """Turn standardized floats into the pixels they came from: the inverse of ``Normalize``.

    Each channel ``c`` becomes ``x[c] * std[c] + mean[c]``, in float32, rounded to the nearest pixel
    value (halves to even) and clamped to the dtype's range. What ``Normalize`` made of uint8 in
    float32 or float16 with usual statistics comes back exactly; bfloat16 has fewer bits than that.

    Args:
        mean: Per-channel mean in pixel units, length C.
        std: Per-channel standard deviation, same units and length, all above 0.
        dtype: ``torch.uint8`` or ``torch.uint16``.
        max_value: As in ``Normalize``.

    Shape:
        ``(N, C, H, W)``, ``(C, H, W)`` or ``(N, C, D, H, W)`` floats in, pixels out.

    Raises:
        ValueError: At construction, ``mean`` and ``std`` do not pair up, or the dtype is another than they are for.
        BatchError: At call, the input is not floating or does not have C channels.

    Example:
        >>> Denormalize(mean=[0.0], std=[255.0])(torch.tensor([[[[0.2]]]]))
        tensor([[[[51]]]], dtype=torch.uint8)
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.uint8,
        *,
        max_value: int | None = None,
    ) -> None:
        super().__init__()
        if dtype not in _RANGES:
            raise ValueError(f"dtype must be torch.uint8 or torch.uint16, got {dtype}")
        if max_value == 1 and dtype != torch.uint8:
            raise ValueError(
                f"max_value=1 is for uint8 images, got {dtype}: multiply mean and std by 65535, and leave it out"
            )
        self.dtype = dtype
        self._forth = Normalize(mean, std, max_value=max_value)  # keeps and checks the statistics

    @classmethod
    def of(cls, normalize: Normalize, dtype: torch.dtype = torch.uint8) -> Self:
        """Return the inverse of a ``Normalize``, where that one is."""
        if not isinstance(normalize, Normalize):
            raise TypeError(f"Denormalize.of takes a Normalize, got {shown(normalize)}")
        if normalize._only not in (None, dtype):
            raise ValueError(f"normalize has statistics of {normalize._only} images, got {dtype}")
        mean, std = normalize.mean.tolist(), normalize.std.tolist()
        return cls(mean, std, dtype, max_value=255).to(normalize.mean.device)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the pixels."""
        mean, std = self._forth.mean, self._forth.std
        if not isinstance(images, torch.Tensor):
            raise TypeError(f"Denormalize takes a tensor of floats, got {shown(images)}")
        if not _has_channels(images, len(mean)) or not images.is_floating_point():
            what = f"floats (N, C, H, W) of {len(mean)} channels"
            raise BatchError(f"Denormalize takes {what}, got {images.dtype} {tuple(images.shape)}")
        shape = (-1, *(1,) * max(2, images.dim() - 2))
        pixels = images.to(torch.float32, copy=True).mul_(std.view(shape)).add_(mean.view(shape))
        return pixels.round_().clamp_(*_RANGES[self.dtype]).to(self.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"dtype={self.dtype}"


def _has_channels(images: torch.Tensor, num: int) -> bool:
    return images.dim() in (3, 4, 5) and images.shape[images.dim() > 3] == num


def _numbers(name: str, values: Any) -> list[float]:
    listed = as_list(name, values, "numbers, one per channel")
    return [float(real_number(f"{name}[{i}]", value)) for i, value in enumerate(listed)]


def _of_arrays(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the statistics of the only field that has them by channel."""
    fields: Mapping[str, Any] = data.get("fields", {})
    found = [name for name, field in fields.items() if isinstance(field.get("mean"), list)]
    if len(found) != 1:
        what = "mean and std of images, or of one array by channel"
        raise ValueError(
            f"stats must have {what}, got arrays {found}: pass stats['fields'][...] of one of them"
        )
    return fields[found[0]]  # type: ignore[no-any-return]


def _read_stats(path: Any) -> Mapping[str, Any]:
    what = "what 'packdata stats DATASET --json > stats.json' wrote, or a mapping of it"
    file = as_path("stats", path, what)
    try:
        return dict(json.loads(read_regular(file)))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"stats must be {what}, got {file}: {error}") from error


def _not_tensor(images: Any) -> str:
    """Describe what is no tensor, with the remedy."""
    if isinstance(images, list):
        sizes = "images of different sizes come as a list"
        return f"a list of {len(images)}: {sizes}; use augment=[augment.RandomResizedCrop(224)]"
    if isinstance(images, tuple) and hasattr(images, "_fields"):
        return f"a whole batch of {', '.join(images._fields)}: pass one of them"
    return shown(images)


def _check_statistics(mean: list[float], std: list[float], max_value: int | None) -> None:
    if len(mean) != len(std) or not mean:
        raise ValueError(
            f"mean and std must have one value per channel, got {len(mean)} and {len(std)}"
        )
    if not all(0 < s < math.inf for s in std) or not all(map(math.isfinite, mean)):
        raise ValueError(f"mean and std must be finite, every std above 0, got {mean} and {std}")
    if max_value not in (None, 1, 255, 65535):
        raise ValueError(f"max_value must be 1, 255 or 65535, got {max_value}")
    is_small = max(std) <= 1 and max(abs(m) for m in mean) <= 1
    if max_value is None and is_small:
        raise ValueError(
            f"mean {mean} and std {std} look like statistics of images scaled to 0..1; "
            "images here are in pixel units: multiply both by 255 (65535 for 16 bits), or pass max_value=1 "
            "for uint8 images (or max_value=255, if these values are right)"
        )
    if max_value == 1 and not is_small:
        raise ValueError(
            f"max_value=1 is for statistics of images scaled to 0..1, got mean {mean} and std {std}: leave it out"
        )
