"""Train a small ResNet on packed photos: an example to copy, and a measurement of what faster loading is worth.

    packdata images photos packed --size 256                      # makes packed/train and packed/val
    python benchmarks/train.py run packed --out runs/a            # killed? The same command goes on at the very sample
    torchrun --nproc-per-node 8 benchmarks/train.py run packed    # the same training on 8 GPUs, or in 8 processes
    python benchmarks/train.py compare --photos photos            # what each step towards fast loading is worth

`run` is the example: a batch is one optimizer step over all ranks, so neither their number nor `--accumulate` changes
what is learned, and a checkpoint of 8 ranks goes on with 2. `compare` is in `ladder.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from resnet import SIZES, SmallResNet, make_optimizer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from loaders import DataLoader, Normalize, RAMDataset, ShardDataset, augment

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- the data --------------------------------------------------------------------------------------


def open_datasets(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return what to train on and what to evaluate on: two splits, or nine tenths and the rest."""
    crop = [augment.RandomResizedCrop(args.size), augment.RandomHorizontalFlip()]
    whole = [augment.Resize(args.size * 8 // 7), augment.CenterCrop(args.size)]
    fields = ["image", "label", "sample_id"] if args.record else ["image", "label"]

    def opened(path: Path) -> Any:
        if args.ram:
            # One copy for all ranks of a machine.
            return RAMDataset(path, fields=fields, shared=True)
        return ShardDataset(path, fields=fields)

    if (args.dataset / "train").is_dir():
        train, val = opened(args.dataset / "train"), opened(args.dataset / "val")
    else:
        train, val = opened(args.dataset).split([0.9, 0.1], stratify="label", seed=0)
    return train.replace(augment=crop), val.replace(augment=whole)


def make_loaders(
    args: argparse.Namespace, world_size: int, device: torch.device
) -> tuple[DataLoader, DataLoader]:
    """Return a loader of full steps in a new order each epoch, and one of each sample exactly once over all ranks."""
    if args.batch_size % world_size:
        found = f"--batch-size {args.batch_size} is of all ranks"
        raise SystemExit(f"{found}: make it a multiple of {world_size}")
    train, val = open_datasets(args)
    if len(train) < args.batch_size or not len(val):
        found = f"{len(train)} samples to train on, {len(val)} to evaluate on"
        needed = f"at least --batch-size {args.batch_size}, and one"
        raise SystemExit(f"{args.dataset} has {found}: need {needed}")
    batch_size = args.batch_size // world_size
    options: dict[str, Any] = {"num_workers": args.workers, "device": device, "seed": args.seed}
    return (
        DataLoader(train, batch_size, shuffle=True, drop_last=True, **options),
        DataLoader(val, batch_size, pad=False, **options),
    )


# -- training --------------------------------------------------------------------------------------


def rate_at(step: int, num_steps: int, peak: float) -> float:
    """Return the learning rate of a step: linearly up for a twentieth of them, then half a cosine down."""
    warmup = max(1, num_steps // 20)
    done = (step - warmup) / max(1, num_steps - warmup)
    return peak * min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * max(0.0, done)))


def training_step(
    model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer, precision: torch.autocast, num_parts: int
) -> torch.Tensor:  # fmt: skip
    """Take one optimizer step, with the gradients of so many parts of the batch added up; return the mean loss."""
    optimizer.zero_grad()
    total = torch.zeros((), device=batch.label.device)
    parts = list(zip(batch.image.chunk(num_parts), batch.label.chunk(num_parts), strict=True))
    for i, (images, labels) in enumerate(parts):
        waits = isinstance(model, DistributedDataParallel) and i < len(parts) - 1
        with model.no_sync() if waits else nullcontext():  # ranks exchange gradients once a step
            with precision:
                loss = cross_entropy(model(images), labels) * (len(labels) / len(batch.label))
            loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


@torch.inference_mode()
def evaluate(
    model: nn.Module, loader: DataLoader, precision: torch.autocast, log: Log
) -> dict[str, float]:
    """Return mean loss and accuracy over all ranks; of the bare model: ranks may have unequal numbers of batches."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=loader.device)
    for batch in loader:
        with precision:
            logits = model(batch.image)
        loss = cross_entropy(logits.float(), batch.label, reduction="sum")
        correct = (logits.argmax(1) == batch.label).sum()
        sums += torch.stack([loss, correct, torch.full_like(loss, len(logits))])
        log.samples(batch, evaluated=True)
    model.train()
    loss, correct, num = summed(sums).tolist()
    return {"val_loss": loss / num, "val_accuracy": correct / num, "val_samples": int(num)}


def make_model(args: argparse.Namespace, num_classes: int, dtype: torch.dtype) -> nn.Module:
    """Return a model of uint8 images: standardizing them is its first layer, on its device."""
    normalize = Normalize.imagenet(dtype, torch.channels_last)
    return nn.Sequential(normalize, SmallResNet(args.model, num_classes))


def run(args: argparse.Namespace) -> dict[str, float]:
    """Train, with an evaluation and a checkpoint after each epoch; return the last figures."""
    rank, world_size, device = join_ranks()
    torch.manual_seed(args.seed)  # the same first weights on every rank; no step draws from it
    train, val = make_loaders(args, world_size, device)
    is_bf16 = args.precision == "bf16" or (args.precision == "auto" and device.type == "cuda")
    precision = torch.autocast(device.type, torch.bfloat16, enabled=is_bf16)
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    model = make_model(args, len(train.dataset.classes), dtype)
    model.to(device, memory_format=torch.channels_last)
    peak = args.lr * args.batch_size / 256
    optimizer = make_optimizer(model, peak)
    checkpoint = args.out / "checkpoint.pt"
    step = load_checkpoint(checkpoint, model, optimizer, train)
    if args.compile:
        model.compile()  # in place: the names in the checkpoint stay as they are
    parallel = DistributedDataParallel(model) if world_size > 1 else model
    steps_per_epoch = len(train.dataset) // args.batch_size
    num_steps = args.epochs * steps_per_epoch
    log = Log(args, rank, train)
    figures: dict[str, float] = {}

    for epoch in range(train.epoch, args.epochs):
        log.begin()
        for batch in train:  # after a resume: the rest of the epoch
            rate = rate_at(step, num_steps, peak)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = training_step(parallel, batch, optimizer, precision, args.accumulate)
            log.samples(batch, step=step, loss=loss)
            step += 1
            if step % args.print_every == 0 or step == num_steps:
                mean = (summed(loss) / world_size).item()
                figures = {"loss": mean, "lr": rate, **log.rates(args.batch_size)}
                log.figures(f"epoch {epoch} step {step}/{num_steps}", step, figures)
            is_due = step % args.checkpoint_every == 0 or step % steps_per_epoch == 0
            if is_due and rank == 0:  # the state is the same on every rank
                save_checkpoint(checkpoint, model, optimizer, train, step)
        found = evaluate(model, val, precision, log)
        log.figures(f"epoch {epoch} evaluated", step, found)
        figures |= found
    return figures or evaluate(model, val, precision, log)  # of a run that was over


# -- ranks, checkpoints, figures -------------------------------------------------------------------


def join_ranks() -> tuple[int, int, torch.device]:
    """Return rank, world size and device of this process; under torchrun it joins the others first."""
    has_cuda, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local_rank) if has_cuda else torch.device("cpu")
    if has_cuda:
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return 0, 1, device
    dist.init_process_group("nccl" if has_cuda else "gloo", device_id=device if has_cuda else None)
    return dist.get_rank(), dist.get_world_size(), device


def leave_ranks() -> None:
    """Leave the group, and give its threads the time to put down what they hold.

    DDP of torch 2.13 keeps gloo's threads beyond the group, and one that frees the tensor of the last collective while
    the interpreter ends aborts the process.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.2)


def summed(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks."""
    if dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
    return values


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, step: int
) -> None:
    """Write all that a resumed run needs; a run killed meanwhile leaves the checkpoint before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    owners = {"model": model, "optimizer": optimizer, "loader": loader}
    state = {name: owner.state_dict() for name, owner in owners.items()}
    with part.open("wb") as file:
        torch.save({"step": step} | state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> int:
    """Go on where a checkpoint says, on any number of ranks; return the number of steps that were taken."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return int(state["step"])


class Log:
    """Figures for people, and on request for TensorBoard; with `--record` also which samples each rank got."""

    def __init__(self, args: argparse.Namespace, rank: int, loader: DataLoader) -> None:
        self._is_first, self._loader = rank == 0, loader
        self._writer = tensorboard(args.tensorboard) if args.tensorboard and rank == 0 else None
        self._lines = args.record / f"rank{rank}.jsonl" if args.record else None

    def begin(self) -> None:
        """Count from now."""
        stats = self._loader.stats()
        self._since = (time.perf_counter(), stats.num_batches, stats.wait_s)

    def rates(self, batch_size: int) -> dict[str, float]:
        """Return images/s, and the share of the time that waited for data, since `begin` or the last call.

        Call it where the device was waited for (`loss.item()`), or it is the time of the host alone.
        """
        before = self._since
        self.begin()
        seconds, batches, waited = (b - a for a, b in zip(before, self._since, strict=True))
        return {"images_per_s": batches * batch_size / seconds, "data_wait": waited / seconds}

    def figures(self, where: str, step: int, values: dict[str, float]) -> None:
        """Print them, and write them as scalars."""
        if self._is_first:
            told = (f"{name} {value:.4g}" for name, value in values.items())
            print(where, *told, sep="  ", flush=True)
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def samples(self, batch: Any, **values: Any) -> None:
        """Write a line that says which samples a batch was made of."""
        if self._lines is None:
            return
        plain = {k: v.item() if isinstance(v, torch.Tensor) else v for k, v in values.items()}
        self._lines.parent.mkdir(parents=True, exist_ok=True)
        with self._lines.open("a") as file:
            file.write(json.dumps(plain | {"samples": batch.sample_id.tolist()}) + "\n")


def tensorboard(folder: Path) -> Any:
    """Return a writer of scalars."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SystemExit("--tensorboard needs a package: pip install tensorboard") from None
    return SummaryWriter(str(folder))


# -- the command line ------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of `run` or `compare`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    # fmt: off
    add = commands.add_parser("run", help="train; under torchrun on many ranks").add_argument
    add("dataset", type=Path, help="what packdata made: with train and val, or else a tenth is held out")
    add("--out", type=Path, default=Path("runs/resnet"), help="folder of the checkpoint; resumed if there is one")
    add("--epochs", type=int, default=10)
    add("--batch-size", type=int, default=256, help="of an optimizer step, over all ranks")
    add("--accumulate", type=int, default=1, help="parts that a rank's batch is cut into, to save memory")
    add("--lr", type=float, default=0.2, help="peak learning rate for 256 samples a step, scaled linearly")
    add("--precision", choices=("auto", "bf16", "fp32"), default="auto", help="auto: bf16 on a GPU")
    add("--compile", action="store_true", help="by torch.compile")
    add("--ram", action="store_true", help="keep the data in memory, one copy for all ranks of a machine")
    add("--seed", type=int, default=0, help="of the first weights, the order and the crops")
    add("--print-every", type=int, default=20, help="steps between lines")
    add("--checkpoint-every", type=int, default=500, help="steps; also at the end of each epoch")
    add("--tensorboard", type=Path, help="folder for scalars")
    add("--record", type=Path, help="folder for the loss and the sample ids of each step, a file per rank")
    add("--model", choices=SIZES, default="small")
    add("--size", type=int, default=224, help="side of the crops")
    add("--workers", type=lambda n: n if n == "auto" else int(n), default="auto")
    add = commands.add_parser("compare", help="measure what each step towards fast loading is worth").add_argument
    add("--photos", type=Path, required=True, help="folder of photos to cut up")
    add("--num", type=int, default=512, help="training images that are made of them")
    add("--rounds", type=int, default=5, help="timed epochs of each step, in turns")
    add("--batch-size", type=int, default=64)
    add("--lr", type=float, default=0.1)
    add("--model", choices=SIZES, default="tiny")
    add("--size", type=int, default=224, help="side of the crops")
    add("--workers", type=int, default=2, help="processes of torch's, threads of ours")
    add("--out", type=Path, default=Path(__file__).parent, help="folder for RESULTS.md and results/")
    # fmt: on
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    args = parse(arguments)
    if args.command == "run":
        run(args)
        leave_ranks()
    else:
        from ladder import compare

        compare(args)


if __name__ == "__main__":
    main()
