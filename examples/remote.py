"""Training from a bucket on several nodes: each downloads its own part once. It goes on on any number of nodes.

    packdata copy packed/train s3://bucket/packed/train
    torchrun --nproc-per-node 8 examples/remote.py s3://bucket/packed/train --cache 200GB

Keys come from the environment, a profile of ~/.aws, or the machine's role.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from loaders import DataLoader, Normalize, ShardDataset, augment

parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("url", help="of packed pictures; a folder does as well")
parser.add_argument("--cache", help="folder on a local disk, or how much of one, such as 200GB")
parser.add_argument("--model", default="torchvision.models:resnet50", help="MODULE:FUNCTION")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64, help="on each rank")
parser.add_argument("--crop", type=int, default=224)
parser.add_argument("--checkpoint", type=Path, default=Path("remote.pt"))
args = parser.parse_args()

if is_distributed := "RANK" in os.environ:
    dist.init_process_group()
is_first = not is_distributed or dist.get_rank() == 0
local_rank = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")

# Lanes: a node reads the same shards in every epoch, and the next one asks the store for nothing.
crop = [augment.RandomResizedCrop(args.crop), augment.RandomHorizontalFlip()]
train = ShardDataset(args.url, augment=crop, cache=args.cache)
loader = DataLoader(train, args.batch_size, shuffle="lanes", drop_last=True, device=device, seed=0)

module, _, function = args.model.partition(":")
net = getattr(import_module(module), function)(num_classes=len(train.classes)).to(device)
model = nn.parallel.DistributedDataParallel(net) if is_distributed else net
normalize = Normalize.imagenet().to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

if args.checkpoint.exists():
    state = torch.load(args.checkpoint, map_location=device)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])

for epoch in range(loader.epoch, args.epochs):
    for images, labels in loader:
        loss = cross_entropy(model(normalize(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if is_first:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"loader": loader.state_dict()}, args.checkpoint)
        came = loader.stats().remote or {"bytes": 0, "waited_s": 0}
        print(
            f"epoch {epoch}: {came['bytes']:.0f} bytes downloaded so far, "
            f"waited {came['waited_s']:.1f} s for them",
            flush=True,
        )
if is_distributed:
    dist.destroy_process_group()
