"""Standardize images: the last step before the model, on the model's device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from loaders.errors import BatchError

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


class Normalize(nn.Module):
    """Turn integer images into standardized floats, on whichever device holds them.

    Each channel ``c`` becomes ``(x[c] - mean[c]) / std[c]``. The arithmetic is float32, rounded
    once, to ``dtype``, at the end.

    Args:
        mean: Per-channel mean in pixel units (0 to 255 for uint8), length C.
        std: Per-channel standard deviation, same units and length, all above 0.
        dtype: Floating dtype of the result.
        memory_format: ``torch.contiguous_format`` or ``torch.channels_last``; None keeps the input's memory order.
        max_value: 1 says that ``mean`` and ``std`` are for images scaled to 0..1, as torchvision gives them;
            they are then multiplied by 255. Statistics that look like that are refused without it.

    Shape:
        ``(N, C, H, W)``, ``(C, H, W)`` or ``(N, C, D, H, W)`` uint8 or uint16 in, of ``dtype`` out.

    Raises:
        ValueError: At construction, ``mean`` and ``std`` do not pair up, or look like statistics of another scale.
        BatchError: At call, the input is not of integers or does not have C channels.

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
        max_value: int = 255,
    ) -> None:
        super().__init__()
        means, stds = [float(m) for m in mean], [float(s) for s in std]
        _check_statistics(means, stds, max_value)
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating dtype, got {dtype}")
        scale = 255.0 if max_value == 1 else 1.0
        self.dtype, self.memory_format = dtype, memory_format
        self.register_buffer("mean", torch.tensor(means) * scale)
        self.register_buffer("std", torch.tensor(stds) * scale)

    @classmethod
    def imagenet(
        cls, dtype: torch.dtype = torch.float32, memory_format: torch.memory_format | None = None
    ) -> Self:
        """Return the module for models pretrained on ImageNet."""
        return cls(IMAGENET_MEAN, IMAGENET_STD, dtype, memory_format)

    @classmethod
    def from_stats(
        cls,
        stats: Mapping[str, Any] | Path | str,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format | None = None,
    ) -> Self:
        """Return the module for the mean and std that ``packdata stats --json`` printed: a mapping, or its file."""
        data = stats if isinstance(stats, Mapping) else json.loads(Path(stats).read_text())
        return cls(
            data["mean"], data["std"], dtype, memory_format, max_value=data.get("max_value", 255)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the standardized images."""
        self._check(images)
        shape = (-1, *(1,) * max(2, images.dim() - 2))  # C, then H and W, or D, H and W
        result = images.to(torch.float32).sub_(self.mean.view(shape)).div_(self.std.view(shape))
        result = result.to(self.dtype)
        if self.memory_format is None:
            return result
        return result.contiguous(memory_format=self.memory_format)

    def _check(self, images: torch.Tensor) -> None:
        if images.is_floating_point() or images.dtype == torch.bool:
            raise BatchError(
                f"Normalize takes integer images, got {images.dtype}: pass what the loader yields"
            )
        axis = 0 if images.dim() == 3 else 1
        if images.dim() not in (3, 4, 5) or images.shape[axis] != len(self.mean):
            raise BatchError(
                f"Normalize was made for {len(self.mean)} channels and takes (N, C, H, W), got {tuple(images.shape)}"
            )

    def extra_repr(self) -> str:
        """Show the settings in pixel units."""
        mean, std = ([round(v, 3) for v in t.tolist()] for t in (self.mean, self.std))
        return f"mean={mean}, std={std}, dtype={self.dtype}"


def _check_statistics(mean: list[float], std: list[float], max_value: int) -> None:
    if len(mean) != len(std) or not mean:
        raise ValueError(
            f"mean and std must have one value per channel, got {len(mean)} and {len(std)}"
        )
    if not all(s > 0 for s in std):
        raise ValueError(f"every std must be above 0, got {std}")
    if max_value not in (1, 255, 65535):
        raise ValueError(f"max_value must be 1, 255 or 65535, got {max_value}")
    if max_value != 1 and max(std) <= 1 and max(abs(m) for m in mean) <= 1:
        raise ValueError(
            f"mean {mean} and std {std} look like statistics of images scaled to 0..1; "
            "these images are in pixel units: multiply by 255, or pass max_value=1"
        )
