"""What each step towards fast loading is worth in training: `python benchmarks/train.py compare --photos FOLDER`.

The same images, network, optimizer and number of steps for all; in turns, an epoch of training and an epoch of loading
alone each, so that a change of the machine's speed hits all alike. The first round warms up. Nothing is simulated: on
a CPU, the network takes the same cores as the loading and most of the time; an accelerator moves the epoch towards the
column *loading alone*. Each batch's loss is waited for, so that a wait for data is a wait of the device.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import PIL.Image
import simplejpeg
import torch
from page import write
from resnet import SmallResNet, make_optimizer
from spine import conditions, number
from torch.nn.functional import cross_entropy

from loaders import DataLoader, Normalize, RAMDataset, ShardDataset, augment
from loaders.device.normalize import IMAGENET_MEAN, IMAGENET_STD
from packdata import pack_images

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

MAX_CLASSES = 100
ALONE = "the network alone, one batch over and over"
NOTE = """Medians of epochs in turns. Each step is one more than the line before has; the two codecs at the end are
other packings, squares of one size, mapped. *Of the first*: the epoch as a share of the first line's. *Waiting*: the
share of the epoch in which the network waited for a batch. *Loading alone*: with nobody training. *Last loss*: the mean
of the last epoch, after equal steps for all. On a CPU, both compete for the cores, and the network dominates."""


# -- what many projects begin with -----------------------------------------------------------------


def random_resized_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return y, x, height, width as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        h, w = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if 0 < h <= height and 0 < w <= width:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


class LooseFiles(torch.utils.data.Dataset[Any]):
    """Files, a decoder, a crop and a flip; floats as ToTensor and Normalize make them, or uint8."""

    def __init__(self, files: list[Path], size: int, decoder: str, *, is_float: bool) -> None:
        self.files, self.size, self.is_float = files, size, is_float
        self.crop = {"PIL": self.by_pil, "cv2": self.by_cv2}[decoder]
        names = sorted({file.parent.name for file in files})
        self.labels = [names.index(file.parent.name) for file in files]
        self.mean, self.std = (
            torch.tensor(v).view(3, 1, 1) / 255 for v in (IMAGENET_MEAN, IMAGENET_STD)
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.crop(self.files[i])).permute(2, 0, 1).contiguous()
        if self.is_float:
            image = image.float().div_(255).sub_(self.mean).div_(self.std)
        return image, self.labels[i]

    def by_pil(self, file: Path) -> np.ndarray:
        image = PIL.Image.open(file).convert("RGB")
        y, x, height, width = random_resized_crop(image.height, image.width)
        box = (x, y, x + width, y + height)
        image = image.resize((self.size, self.size), PIL.Image.Resampling.BILINEAR, box)
        if random.random() < 0.5:
            image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)

    def by_cv2(self, file: Path) -> np.ndarray:
        cv2.setNumThreads(1)  # workers are the threads
        image = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
        y, x, height, width = random_resized_crop(*image.shape[:2])
        image = cv2.resize(image[y : y + height, x : x + width], (self.size, self.size))
        return cv2.flip(image, 1) if random.random() < 0.5 else image


# -- the steps -------------------------------------------------------------------------------------


@dataclass
class Step:
    """A way to load, and what was seen of it: each epoch's seconds, of which so many waited for data."""

    name: str
    batches: Iterable[Any]
    train_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def cut(photos: Path, folder: Path, num: int) -> list[Path]:
    """Write JPEGs, each a large part of a photo; its class is the photo that it is a part of."""
    found = [p for p in sorted(photos.rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg", ".png")]
    if not found:
        raise SystemExit(f"{photos} has no .jpg, .jpeg or .png: give a folder of photos")
    found, rng = found[:MAX_CLASSES], np.random.default_rng(0)
    files = [folder / f"{i % len(found):03}" / f"{i:05}.jpg" for i in range(num)]
    for first, path in enumerate(found):
        photo = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
        for file in files[first :: len(found)]:
            size = [int(n * rng.uniform(0.7, 1)) for n in photo.shape[:2]]
            y, x = (int(rng.integers(n - m + 1)) for n, m in zip(photo.shape, size, strict=False))
            file.parent.mkdir(parents=True, exist_ok=True)
            part = photo[y : y + size[0], x : x + size[1]]
            file.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(part), 90, "RGB", "420"))
    return sorted(files)


def make_steps(
    files: list[Path], folder: Path, args: argparse.Namespace, device: torch.device
) -> list[Step]:
    """Return the ladder, slowest first; what a name says is what is new in it."""
    crop = [augment.RandomResizedCrop(args.size), augment.RandomHorizontalFlip()]
    side = f"{args.size * 8 // 7}"  # 256 for crops of 224

    def loose(name: str, decoder: str, *, is_float: bool) -> Step:
        is_cuda = device.type == "cuda"
        data = LooseFiles(files, args.size, decoder, is_float=is_float)
        return Step(name, torch.utils.data.DataLoader(
            data, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers,
            persistent_workers=True, pin_memory=is_cuda,
        ))  # fmt: skip

    def ours(name: str, dataset: Any) -> Step:
        options: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": args.workers}
        served = dataset.replace(augment=crop)
        return Step(name, DataLoader(served, args.batch_size, device=device, seed=0, **options))

    def packed(name: str, **options: Any) -> Path:
        pack_images(folder / "files", folder / name, **options)
        return folder / name

    square = {"sizes": [side], "fit": "cover"}
    presized = packed("presized", sizes=[side])
    return [
        loose("PIL, loose files, torch's DataLoader", "PIL", is_float=True),
        loose("cv2 in place of PIL", "cv2", is_float=True),
        loose("uint8, Normalize on the device", "cv2", is_float=False),
        ours("packed, files as they are: ShardDataset", ShardDataset(packed("original"))),
        ours(f"packed, shorter side {side}", ShardDataset(presized)),
        ours("in memory: RAMDataset", RAMDataset(presized)),
        ours(f"codec raw, {side} x {side}", ShardDataset(packed("raw", codec="raw", **square))),
        ours(f"codec dct, {side} x {side}", ShardDataset(packed("dct", codec="dct", **square))),
    ]


# -- measuring -------------------------------------------------------------------------------------


class Trainee:
    """A network that one step of the ladder trains, from the same first weights as the others."""

    def __init__(self, args: argparse.Namespace, num_classes: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = SmallResNet(args.model, num_classes).to(device)
        self.normalize = Normalize.imagenet().to(device)
        self.optimizer = make_optimizer(self.model, args.lr)

    def take(self, batch: Any) -> float:
        """Take a step; return its loss."""
        images, labels = (part.to(self.device, non_blocking=True) for part in batch[:2])
        images = images if images.is_floating_point() else self.normalize(images)
        loss = cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train_epoch(step: Step, trainee: Trainee) -> tuple[float, float, float]:
    """Return an epoch's seconds, those of them that waited for data, and the mean loss."""
    losses, waited, began = [], 0.0, time.perf_counter()
    batches = iter(step.batches)
    waited += time.perf_counter() - began
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            return time.perf_counter() - began, waited, statistics.fmean(losses)
        losses.append(trainee.take(batch))


def load_epoch(step: Step, device: torch.device) -> float:
    """Return the seconds of an epoch in which nobody trains."""
    began = time.perf_counter()
    for batch in step.batches:
        batch[0].to(device, non_blocking=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(
    steps: list[Step], args: argparse.Namespace, num_classes: int, device: torch.device
) -> None:
    """Let each step train an epoch and load one, in turns; keep what was seen."""
    trainees = [Trainee(args, num_classes, device) for _ in steps]
    for round_ in range(args.rounds + 1):
        for step, trainee in zip(steps, trainees, strict=True):
            seconds, waited, loss = train_epoch(step, trainee)
            alone = 0.0 if step.name == ALONE else load_epoch(step, device)
            step.losses.append(loss)
            if round_:  # the first warms up
                step.train_s.append(seconds)
                step.wait_s.append(waited)
                step.alone_s.append(alone)
        print(f"round {round_} of {args.rounds}", flush=True)


# -- reporting -------------------------------------------------------------------------------------


def summary(step: Step, base: Step, num: int) -> dict[str, float]:
    """Return the figures of a step: medians over its epochs."""
    middle = statistics.median(step.train_s)
    shares = [waited / seconds for waited, seconds in zip(step.wait_s, step.train_s, strict=True)]
    alone = statistics.median(step.alone_s)
    return {
        "epoch_s": middle,
        "fastest_s": min(step.train_s),
        "slowest_s": max(step.train_s),
        "data_wait": statistics.median(shares),
        "times_faster": statistics.median(base.train_s) / middle,
        "loading_alone_per_s": num / alone if alone else 0.0,
        "first_loss": step.losses[0],
        "last_loss": step.losses[-1],
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| step | epoch, s | range | of the first | waiting | loading alone | last loss |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        is_alone = name == ALONE
        spread = f"{row['fastest_s']:.2f} to {row['slowest_s']:.2f}"
        loading = "" if is_alone else f"{number(row['loading_alone_per_s'])}/s"
        wait = "" if is_alone else f"{row['data_wait']:.0%}"
        loss = "" if is_alone else f"{row['last_loss']:.2f}"
        ratio = f"{1 / row['times_faster']:.2f}"
        lines.append(
            f"| {name} | {row['epoch_s']:.2f} | {spread} | {ratio} | {wait} | {loading} | {loss} |"
        )
    return "\n".join([*lines, ""])


def draw(found: dict[str, dict[str, float]], path: Path, title: str) -> None:
    """Write a picture: what an epoch's time goes to, and how fast each step loads when nobody trains."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.5 * len(found) + 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    epochs, loading = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    names, rows = list(found), list(found.values())
    alone = found[ALONE]["epoch_s"]
    rest = [max(0.0, row["epoch_s"] - alone) for row in rows]
    reach = [[row["epoch_s"] - row["fastest_s"] for row in rows],
             [row["slowest_s"] - row["epoch_s"] for row in rows]]  # fmt: skip
    epochs.barh(names, [alone] * len(rows), color="#0072B2", label="the network alone")
    epochs.barh(
        names,
        rest,
        left=alone,
        xerr=reach,
        color="#E69F00",
        label="what loading adds: waiting, and its cores",
    )
    epochs.set_xlabel("seconds per epoch: median, and lowest to highest")
    epochs.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2)
    rates = [row["loading_alone_per_s"] for row in rows]
    loading.barh(names, rates, color="#009E73")
    for y, rate in enumerate(rates):
        loading.annotate(
            number(rate) if rate else "",
            (rate, y),
            (3, 0),
            textcoords="offset points",
            va="center",
        )
    loading.set_xlabel("images/s, loading alone")
    loading.margins(x=0.2)
    loading.locator_params(axis="x", nbins=4)
    loading.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    epochs.invert_yaxis()
    for axes in (epochs, loading):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)


def compare(args: argparse.Namespace) -> None:
    """Make the data, measure, print and write `results/train.json`, `.md` and `.png`."""
    if args.workers < 1:
        raise SystemExit(f"--workers must be at least 1 for the ladder, got {args.workers}")
    if args.num < args.batch_size:
        raise SystemExit(
            f"--num {args.num} images make no batch of {args.batch_size}: ask for more"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        root = type(args.out)(folder)
        files = cut(args.photos, root / "files", args.num)
        steps = make_steps(files, root, args, device)
        num_batches, num_classes = args.num // args.batch_size, len({f.parent for f in files})
        batch = [part.to(device) for part in next(iter(steps[-1].batches))[:2]]
        steps.append(Step(ALONE, [batch] * num_batches))
        measure(steps, args, num_classes, device)
    num = num_batches * args.batch_size
    found = {step.name: summary(step, steps[0], num) for step in steps}
    settings = {"rounds": args.rounds, "images": num, "batch": args.batch_size, "network": args.model,
                "crop": args.size, "workers": args.workers, "device": str(device), "classes": num_classes,
                "torch_threads": torch.get_num_threads()}  # fmt: skip
    where = conditions(str(num_classes)) | settings
    epochs = {
        step.name: {k: v for k, v in vars(step).items() if k.endswith(("_s", "losses"))}
        for step in steps
    }
    told = {"conditions": where, "summary": found, "epochs": epochs}
    text, picture = table(found), args.out / "results/train.png"
    title = (
        "What each step is worth in training: `python benchmarks/train.py compare --photos FOLDER`"
    )
    shown = "![Seconds of an epoch, and images/s of loading alone](results/train.png)"
    write(args.out, "train", title, told, [shown, "", text, NOTE])
    about = f"{num} photos an epoch, a {args.model} ResNet on {args.size} px, {where['cpu']}"
    draw(found, picture, f"{about}, {device}, {args.workers} workers, {where['cores']} cores")
    print(f"\n{text}\nwritten: train.json, train.md and train.png in {picture.parent}")
