"""Self-distillation of many crops, as in DINO: one decode, two large and several small views of each picture.

packdata images pictures packed --size 256
python examples/dino.py packed
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from loaders import DataLoader, Normalize, ShardDataset, augment


def views(large: int, small: int, num_small: int) -> augment.Views:
    """Return the crops: each draws for itself."""
    flip = augment.RandomHorizontalFlip()
    first = [augment.RandomResizedCrop(large, scale=(0.4, 1)), flip]
    others = {
        f"small{i}": [augment.RandomResizedCrop(small, scale=(0.05, 0.4)), flip]
        for i in range(num_small)
    }
    return augment.Views(large0=first, large1=first, **others)


def make_net(width: int) -> nn.Sequential:
    """Return a small net for pictures of any size; put your transformer here."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, 4),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, 2),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, width),
    )


def distill(student: list[Tensor], teacher: list[Tensor], center: Tensor) -> Tensor:
    """Cross-entropy of each view with each large one that is another."""
    wanted = [((t - center) / 0.04).softmax(1).detach() for t in teacher]
    losses = [
        -(w * (s / 0.1).log_softmax(1)).sum(1).mean()
        for i, w in enumerate(wanted)
        for j, s in enumerate(student)
        if i != j
    ]
    return torch.stack(losses).mean()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="packed pictures")
    parser.add_argument("--large", type=int, default=224)
    parser.add_argument("--small", type=int, default=96)
    parser.add_argument("--num-small", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = ShardDataset(
        args.data, fields=["image"], augment=[views(args.large, args.small, args.num_small)]
    )
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, drop_last=True, device=device, seed=0
    )
    normalize = Normalize.imagenet().to(device)
    student, teacher = make_net(args.width).to(device), make_net(args.width).to(device)
    teacher.load_state_dict(student.state_dict())
    center = torch.zeros(args.width, device=device)
    optimizer = torch.optim.AdamW(student.parameters(), 5e-4)

    for epoch in range(args.epochs):
        for batch in loader:  # a tensor for each view, large ones first
            crops = [normalize(view) for view in batch]
            with torch.no_grad():
                targets = [teacher(crop) for crop in crops[:2]]
            loss = distill([student(crop) for crop in crops], targets, center)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                center.lerp_(torch.cat(targets).mean(0), 0.1)
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.004)
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
