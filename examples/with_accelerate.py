"""accelerate: `prepare` returns the loader as it is, and `save_state` keeps its state with the rest.

accelerate launch examples/with_accelerate.py packed --folder run
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy

from loaders import DataLoader, Normalize, ShardDataset, augment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of packed/train and packed/val")
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    parser.add_argument("--folder", type=Path, default=Path("run"))
    args = parser.parse_args()

    accelerator = Accelerator()
    crop = [augment.RandomResizedCrop(args.crop), augment.RandomHorizontalFlip()]
    train = ShardDataset(args.data / "train", augment=crop)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 7, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, len(train.classes)),
    )
    normalize = Normalize.imagenet().to(accelerator.device)
    loader = DataLoader(
        train, args.batch_size, shuffle=True, drop_last=True, device=accelerator.device, seed=0
    )
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), 1e-3), loader
    )
    if args.folder.exists():
        accelerator.load_state(str(args.folder))

    for epoch in range(loader.epoch, args.epochs):
        for step, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(net(normalize(images)), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % args.save_every == 0:
                accelerator.save_state(str(args.folder))
        accelerator.save_state(str(args.folder))
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
