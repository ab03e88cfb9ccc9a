"""Semantic segmentation: pictures and masks cropped together, void pixels ignored, IoU over all ranks' pixels.

packdata images pictures packed --masks masks --size 512
python examples/segmentation.py packed --classes 21
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from loaders import DataLoader, Normalize, ShardDataset, augment

VOID = 255


def make_net(num_classes: int) -> nn.Sequential:
    """Return a small net of stride 8; put yours here."""

    def block(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    return nn.Sequential(
        block(3, 32), block(32, 64), block(64, 128), nn.Conv2d(128, num_classes, 1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="packed pictures with masks, which are divided here"
    )
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--crop", type=int, default=384)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = ShardDataset(args.data)
    train, val = whole.split([0.8, 0.2], seed=0)
    train = train.replace(
        augment=[
            augment.RandomResizedCrop(args.crop, scale=(0.25, 1)),
            augment.RandomHorizontalFlip(),
        ]
    )
    val = val.replace(augment=[augment.Resize(args.crop), augment.CenterCrop(args.crop)])
    loader = DataLoader(
        train, args.batch_size, shuffle=True, drop_last=True, device=device, seed=0
    )
    normalize = Normalize.imagenet().to(device)
    net = make_net(args.classes).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    for epoch in range(args.epochs):
        net.train()
        for images, masks in loader:  # uint8 (N, 3, H, W) and (N, H, W), cut by the same boxes
            logits = interpolate(net(normalize(images)), masks.shape[-2:], mode="bilinear")
            loss = cross_entropy(logits, masks.long(), ignore_index=VOID)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        iou = evaluate(net, val, args, normalize, device)
        print(f"epoch {epoch}: loss {loss.item():.3f}, mean IoU {iou:.1%}")


@torch.no_grad()
def evaluate(
    net: nn.Module, val: ShardDataset, args: argparse.Namespace, normalize: Normalize, device: str
) -> float:
    net.eval()
    confusion = torch.zeros(args.classes, args.classes, dtype=torch.int64, device=device)
    for images, masks in DataLoader(val, args.batch_size, pad=False, device=device):
        found = interpolate(net(normalize(images)), masks.shape[-2:], mode="bilinear").argmax(1)
        counted = masks != VOID
        pairs = masks[counted].long() * args.classes + found[counted]
        confusion += torch.bincount(pairs, minlength=args.classes**2).view_as(confusion)
    overlap = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - overlap
    return (overlap[union > 0] / union[union > 0]).mean().item()


if __name__ == "__main__":
    main()
