"""A ResNet on packed pictures: DDP, mixed precision, accumulation, torch.compile, exact evaluation and resume.

    packdata images imagenet packed --size 256
    torchrun --nproc-per-node 8 examples/imagenet.py packed --checkpoint run.pt

The same command again goes on after the last step that was saved. SIGTERM saves, and ends. (The model: torchvision.s.)
"""

from __future__ import annotations

import math
import os
import signal
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from loaders import DataLoader, Normalize, ShardDataset, augment

parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("data", type=Path, help="folder of packed/train and packed/val")
parser.add_argument("--model", default="torchvision.models:resnet50", help="MODULE:FUNCTION")
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--batch-size", type=int, default=256, help="on each rank")
parser.add_argument("--accumulate", type=int, default=1, help="batches a step of the optimizer")
parser.add_argument("--crop", type=int, default=224)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--checkpoint", type=Path, default=Path("imagenet.pt"))
parser.add_argument("--save-every", type=int, default=1000, help="steps")
args = parser.parse_args()

if is_distributed := "RANK" in os.environ:
    dist.init_process_group()
local_rank = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")


def sum_over_ranks(numbers: list[float]) -> Tensor:
    """Return the sums of these numbers over all ranks."""
    total = torch.tensor(numbers, device=device)
    if is_distributed:
        dist.all_reduce(total)
    return total


# Data: crops for training, the middle for evaluation.
crop = [augment.RandomResizedCrop(args.crop), augment.RandomHorizontalFlip()]
middle = [augment.Resize(args.crop * 8 // 7), augment.CenterCrop(args.crop)]
train = ShardDataset(args.data / "train", augment=crop)
val = ShardDataset(args.data / "val", augment=middle)
loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True, device=device, seed=0)
val_loader = DataLoader(val, args.batch_size, pad=False, device=device)  # each sample once

# Model.
module, _, function = args.model.partition(":")
net = getattr(import_module(module), function)(num_classes=len(train.classes))
net = net.to(device, memory_format=torch.channels_last)
model: Any = torch.compile(net) if args.compile else net
model = nn.parallel.DistributedDataParallel(model) if is_distributed else model
normalize = Normalize.imagenet().to(device)
optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)

if args.checkpoint.exists():
    state = torch.load(args.checkpoint, map_location=device)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])


def save() -> None:
    """Rank 0 saves: the loader's state is the same on all ranks."""
    if not is_distributed or dist.get_rank() == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"loader": loader.state_dict()}, f"{args.checkpoint}.new")
        os.replace(f"{args.checkpoint}.new", args.checkpoint)


signals: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))

for epoch in range(loader.epoch, args.epochs):
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = args.lr * (1 + math.cos(math.pi * epoch / args.epochs)) / 2
    for number, (images, labels) in enumerate(loader, 1):
        is_step = number % args.accumulate == 0
        with nullcontext() if is_step or not is_distributed else model.no_sync():
            with torch.autocast(device.type, torch.bfloat16):
                loss = cross_entropy(model(normalize(images)), labels) / args.accumulate
            loss.backward()
        if is_step:
            optimizer.step()
            optimizer.zero_grad()
            if sum_over_ranks([len(signals)]) > 0:  # ranks hear of it at different steps
                save()
                raise SystemExit(0)
            if number % (args.accumulate * args.save_every) == 0:
                save()
    optimizer.zero_grad()  # of the last batches, where they are too few for a step
    save()

    net.eval()
    right = 0
    with torch.no_grad():
        for images, labels in val_loader:
            right += int((net(normalize(images)).argmax(1) == labels).sum())
    share = sum_over_ranks([right])[0] / len(val)
    if not is_distributed or dist.get_rank() == 0:
        print(f"epoch {epoch}: {share:.1%} of the validation set right", flush=True)

if is_distributed:
    dist.destroy_process_group()
