"""Pack a folder of photos, serve it in every way, train on it, and say what was done: run by tools/quickstart."""

from __future__ import annotations

import argparse
import sys
import time
from itertools import chain, islice, repeat
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from loaders import DataLoader, Normalize, RAMDataset, ShardDataset, augment
from packdata.cli import main as packdata

PHOTOS = Path(__file__).resolve().parent.parent / "tests/data/photos"
SIZE = "160"
SECONDS = 1.5  # each rate is measured for this long
OPS = [augment.RandomResizedCrop(128), augment.RandomHorizontalFlip()]


def main() -> int:
    """Run all steps; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    about = "of images, flat or one folder per class"
    parser.add_argument("folder", nargs="?", type=Path, default=PHOTOS, help=about)
    about = "where the packed data and the contact sheet go"
    parser.add_argument("--out", type=Path, default=Path("quickstart-out"), help=about)
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    args = parser.parse_args()
    for kind in ("lmdb", "parquet"):
        say(f"pack {args.folder} as {kind}, shorter side {SIZE} pixels")
        words = ["images", str(args.folder), str(args.out / kind), "--size", SIZE]
        if status := packdata([*words, "--format", kind, "--overwrite"]):
            return status
    lmdb, parquet = (first_dataset(args.out / kind) for kind in ("lmdb", "parquet"))
    serve(lmdb, parquet)
    train(lmdb, args.steps)
    say("a contact sheet")
    sheet = args.out / "sheet.png"
    sheet.unlink(missing_ok=True)  # of the run before: packdata replaces no file
    return packdata(["preview", str(lmdb), "--out", str(sheet)])


def first_dataset(packed: Path) -> Path:
    """Return the dataset that was packed; of several splits the one to train on."""
    splits = sorted(file.parent for file in packed.glob("*/manifest.json"))
    return next((split for split in splits if split.name.lower() == "train"), [*splits, packed][0])


def say(what: str) -> None:
    """Announce a step."""
    print(f"\n-- {what}", flush=True)


def serve(lmdb: Path, parquet: Path) -> None:
    """Measure every way to the same batches."""
    say("serve random crops of 128 x 128, flipped at random, as uint8 batches")
    datasets: dict[str, ShardDataset | RAMDataset] = {
        "ShardDataset, LMDB": ShardDataset(lmdb, augment=OPS),
        "ShardDataset, Parquet": ShardDataset(parquet, augment=OPS),
        "RAMDataset, JPEG in RAM": RAMDataset(lmdb, augment=OPS, progress=False),
        "RAMDataset, pixels in RAM": RAMDataset(lmdb, decode=True, augment=OPS, progress=False),
    }
    for name, dataset in datasets.items():
        print(f"{name:27} {len(dataset):6,} images {rate(dataset):12,.0f} images/s")


def rate(dataset: ShardDataset | RAMDataset) -> float:
    """Return images/s of a shuffled loader over as many epochs as fit into the time."""
    many = dataset.select(list(range(len(dataset))) * max(1, 2048 // len(dataset)))
    loader = DataLoader(many, batch_size=128, shuffle=True)
    began, num_images = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < SECONDS:
        num_images += sum(len(batch[0]) for batch in loader)
    return num_images / seconds


def train(path: Path, steps: int) -> None:
    """Train a small network: on the classes, or, where there are none, to tell the mean colour."""
    dataset = ShardDataset(path, augment=OPS)
    num_classes = len(dataset.classes) if "label" in dataset.schema.fields else 0
    say(f"train a small network for {steps} steps on {num_classes or 'no'} classes")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = min(32, len(dataset))
    loader = DataLoader(dataset, size, shuffle=True, drop_last=True, device=device, seed=0)
    normalize = Normalize.imagenet().to(device)
    torch.manual_seed(0)
    model = network(num_classes or 3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses: list[float] = []
    began = time.perf_counter()
    for batch in islice(chain.from_iterable(repeat(loader)), steps):
        images = normalize(batch.image)
        found = model(images)
        loss = (
            cross_entropy(found, batch.label)
            if num_classes
            else mse_loss(found, images.mean((2, 3)))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds, tenth = time.perf_counter() - began, max(1, steps // 10)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    print(
        f"loss {first:.3f} -> {last:.3f} on {device}, {steps * size / seconds:,.0f} images/s, "
        f"of {seconds:.1f} s waited {loader.stats().wait_s:.2f} s for data"
    )


def network(num_outputs: int) -> nn.Module:
    """Return three convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for channels, wider in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, wider, 3, 2, 1), nn.BatchNorm2d(wider), nn.ReLU()]
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, *pooled, nn.Linear(64, num_outputs))


if __name__ == "__main__":
    sys.exit(main())
