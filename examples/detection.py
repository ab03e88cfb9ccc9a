"""Object detection: boxes follow the crops, and batches are the lists that torchvision's detectors take.

packdata images coco/train2017 packed --annotations coco/annotations/instances_train2017.json --size 640
python examples/detection.py packed
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from loaders import DataLoader, ShardDataset
from loaders.augment import presets


class Batch(NamedTuple):
    """What the loader hands over: for type checkers, which take each field for one tensor if nothing is said."""

    image: Tensor  # uint8 (N, 3, H, W)
    boxes: list[Tensor]  # float32 (number, 4), for each picture
    box_labels: list[Tensor]  # int64 (number,)


def find(name: str) -> Callable[..., torch.nn.Module]:
    """Return what MODULE:FUNCTION names."""
    module, _, function = name.partition(":")
    found: Callable[..., torch.nn.Module] = getattr(import_module(module), function)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="packed pictures with boxes")
    parser.add_argument("--model", default="torchvision.models.detection:fasterrcnn_resnet50_fpn")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ops = presets.detection(args.size)  # drops boxes that are cropped away, and their labels
    dataset: ShardDataset[Batch] = ShardDataset(args.data, fields=Batch._fields, augment=ops)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, drop_last=True, device=device, seed=0
    )
    model = find(args.model)(num_classes=1 + len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.005, momentum=0.9, weight_decay=5e-4)

    model.train()
    for epoch in range(args.epochs):
        for images, boxes, kinds in loader:
            targets = [
                {"boxes": box, "labels": kind + 1}  # 0 is the background
                for box, kind in zip(boxes, kinds, strict=True)
            ]
            losses = model(list(images / 255), targets)
            loss = torch.stack([*losses.values()]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
