"""Lightning: pass the loader as it is; its state is in Lightning's checkpoints.

python examples/with_lightning.py packed --resume last.ckpt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from loaders import DataLoader, Normalize, ShardDataset, augment


class Classifier(lightning.LightningModule):
    """A small net; put yours here."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.normalize = Normalize.imagenet()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 7, 4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, num_classes),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.net(self.normalize(images)), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, labels = batch
        right = (self.net(self.normalize(images)).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of packed/train and packed/val")
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--resume", help="a checkpoint of Lightning's")
    args = parser.parse_args()

    crop = [augment.RandomResizedCrop(args.crop), augment.RandomHorizontalFlip()]
    train = ShardDataset(args.data / "train", augment=crop)
    val = ShardDataset(
        args.data / "val", augment=[augment.Resize(args.crop), augment.CenterCrop(args.crop)]
    )
    trainer = lightning.Trainer(max_epochs=args.epochs)
    trainer.fit(
        Classifier(len(train.classes)),
        DataLoader(train, args.batch_size, shuffle=True, drop_last=True, seed=0),
        DataLoader(val, args.batch_size, pad=False),
        ckpt_path=args.resume,
    )
    print(f"accuracy {trainer.callback_metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
