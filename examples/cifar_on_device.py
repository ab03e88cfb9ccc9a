"""Small pictures that live on the device: no copies, crops and flips there, a batch is one gather.

python examples/cifar_on_device.py cifar.npz      # uint8 images (N, 32, 32, 3) or (N, 3, 32, 32), integer labels
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from loaders import DataLoader, Normalize, RAMDataset, augment


def block(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="npz file of images and labels")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=512)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with np.load(args.data) as file:
        whole = RAMDataset.from_arrays(image=file["images"], label=file["labels"].astype(np.int64))
    train, val = whole.split([0.9, 0.1], seed=0)
    crop = [augment.RandomCrop(28), augment.RandomHorizontalFlip()]
    train = RAMDataset(train, device=device, augment=crop)
    val = RAMDataset(val, device=device, augment=[augment.CenterCrop(28)])
    num_classes = int(whole.column("label").max()) + 1
    normalize = Normalize.imagenet().to(device)
    net = nn.Sequential(
        block(3, 64), block(64, 128), block(128, 256), nn.Flatten(), nn.LazyLinear(num_classes)
    ).to(device)
    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True, seed=0)
    net(normalize(next(iter(loader)).image))  # makes the lazy layer
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    for epoch in range(args.epochs):
        net.train()
        for images, labels in loader:
            loss = cross_entropy(net(normalize(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            right = sum(
                (net(normalize(images)).argmax(1) == labels).sum().item()
                for images, labels in DataLoader(val, args.batch_size, pad=False)
            )
        print(f"epoch {epoch}: {right / len(val):.1%} right", flush=True)


if __name__ == "__main__":
    main()
