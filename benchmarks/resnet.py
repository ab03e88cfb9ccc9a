"""A small ResNet, of a size that suits the machine, and its optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SIZES = {  # stem stride, channels of each stage, blocks per stage
    "tiny": (8, (16, 32, 64), 1),  # so small that a CPU waits for data, too
    "small": (4, (64, 128, 256, 512), 2),  # ResNet-18's
}


def conv(channels: int, wider: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its norm, by groups: the statistics of a batch would depend on how it is cut."""
    layer = nn.Conv2d(channels, wider, size, stride, size // 2, bias=False)
    return [layer, nn.GroupNorm(8, wider)]


class Block(nn.Module):
    """Two convolutions, and the way around them."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        inner = [*conv(channels, wider, 3, stride), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*inner, *conv(wider, wider, 3))
        is_same = channels == wider and stride == 1
        self.around = nn.Sequential(*([] if is_same else conv(channels, wider, 1, stride)))
        nn.init.zeros_(self.body[-1].weight)  # each block begins as the way around it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.around(x) + self.body(x))


class SmallResNet(nn.Sequential):
    """Images `(N, 3, H, W)` to logits `(N, num_classes)`."""

    def __init__(self, size: str, num_classes: int) -> None:
        stem, widths, depth = SIZES[size]
        layers = [*conv(3, widths[0], 2 * stem - 1, stem), nn.ReLU(inplace=True)]
        channels = widths[0]
        for stage, width in enumerate(widths):
            for block in range(depth):
                layers.append(Block(channels, width, stride=2 if stage and not block else 1))
                channels = width
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
        super().__init__(*layers, *head)


def make_optimizer(model: nn.Module, rate: float, decay: float = 5e-5) -> torch.optim.Optimizer:
    """Return SGD with momentum; weights decay, biases and norms do not."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, rate, momentum=0.9, nesterov=True)
