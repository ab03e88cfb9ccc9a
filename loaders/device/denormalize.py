"""Back from standardized floats to pixels: to look at what a model was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import nn

from loaders.checks import shown
from loaders.device.normalize import Normalize
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANGES = {torch.uint8: (0, 255), torch.uint16: (0, 65535)}


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
        mean, std = normalize.mean.tolist(), normalize.std.tolist()
        return cls(mean, std, dtype, max_value=255).to(normalize.mean.device)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the pixels."""
        mean, std = self._forth.mean, self._forth.std
        if not isinstance(images, torch.Tensor):
            raise TypeError(f"Denormalize takes a tensor of floats, got {shown(images)}")
        axis = 0 if images.dim() == 3 else 1
        fits = images.dim() in (3, 4, 5) and images.shape[axis] == len(mean)
        if not fits or not images.is_floating_point():
            what = f"floats (N, C, H, W) of {len(mean)} channels"
            raise BatchError(f"Denormalize takes {what}, got {images.dtype} {tuple(images.shape)}")
        shape = (-1, *(1,) * max(2, images.dim() - 2))
        pixels = images.to(torch.float32, copy=True).mul_(std.view(shape)).add_(mean.view(shape))
        return pixels.round_().clamp_(*_RANGES[self.dtype]).to(self.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"dtype={self.dtype}"
