"""Everything that runs on a GPU, checked and timed in one short run.

    python benchmarks/gpu.py [--out FOLDER] [--only NAME ...]

Each case runs in a process of its own: one that fails, hangs or breaks the device takes no other with it.
Each figure is in FOLDER/gpu.jsonl as soon as it is known, and in gpu.json and gpu.md after its case.

Each case is checked against a reference first (float64 where it computes, the host's own batches
where it moves bytes) and a case that is wrong has no time. Times are the median of CUDA event
intervals after a warm-up; the figures beside them are limits of the same device, measured in the
same run. ``--dry-run cpu`` runs all of it on the CPU at a size that measures nothing.

Exit status: 0 done, 1 a case was wrong or failed, 2 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent


@dataclass
class Run:
    """Where and how large, and the file for what is found."""

    device: torch.device
    is_dry: bool
    rows: Path

    def size(self, full: int, dry: int) -> int:
        return dry if self.is_dry else full

    def add(self, case: str, what: str, value: float, unit: str, **beside: Any) -> None:
        row = Row(case, what, value, unit, beside)
        with self.rows.open("a") as file:  # now: what comes next may end this process
            file.write(json.dumps(asdict(row)) + "\n")
        print(row.line(), flush=True)


@dataclass
class Row:
    """One figure, and what belongs to it."""

    case: str
    what: str
    value: float
    unit: str
    beside: dict[str, Any]

    def line(self) -> str:
        beside = ", ".join(f"{name} {_short(value)}" for name, value in self.beside.items())
        return f"{self.case:12} {self.what:52} {_short(self.value):>12} {self.unit:10} {beside}"


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def seconds(run: Run, fn: Callable[[], Any], repeats: int = 30, warm_up: int = 5) -> float:
    """Return the median time of a call, from events around each."""
    repeats, warm_up = (2, 1) if run.is_dry else (repeats, warm_up)
    for _ in range(warm_up):
        fn()
    if run.device.type != "cuda":
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            fn()
            times.append(time.perf_counter() - began)
        return statistics.median(times)
    torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1000


def copy_rate(run: Run, nbytes: int) -> float:
    """Return the bytes/s, read and written together, of a copy within the device that moves ``nbytes``."""
    source = torch.empty(max(1, nbytes // 2), dtype=torch.uint8, device=run.device).zero_()
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(run, lambda: target.copy_(source))


def check(found: torch.Tensor, want: Any, within: float, what: str, relative: float = 0) -> None:
    """Raise AssertionError if a result is further from its reference than it may be."""
    reference = torch.as_tensor(want).double()
    difference = (found.double().cpu() - reference).abs()
    worst = (difference - relative * reference.abs()).max().item() if found.numel() else 0.0
    assert worst <= within, f"{what}: {worst} beyond the reference, {within} is allowed"


# -- cases -----------------------------------------------------------------------------------------


def normalize(run: Run) -> None:
    """``Normalize`` in every layout against the device's copy bandwidth; goal: 0.8 of it."""
    from loaders import Normalize
    from loaders.device import fused
    from loaders.device.normalize import IMAGENET_MEAN, IMAGENET_STD

    num, side = run.size(256, 2), run.size(224, 16)
    images = torch.randint(0, 256, (num, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(v).double().view(-1, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    want = (images.double() - mean) / std
    orders = {"channels-last": torch.channels_last, "NCHW": torch.contiguous_format}
    for source in orders:
        x = images.to(run.device).contiguous(memory_format=orders[source])
        for target, order in orders.items():
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                module = Normalize.imagenet(dtype, order).to(run.device)
                name = f"{source} to {target} {str(dtype)[6:]}"
                check(module(x), want, 1e-5, name, torch.finfo(dtype).eps)
                took = seconds(run, lambda module=module, x=x: module(x))
                nbytes = x.nbytes * (1 + dtype.itemsize)
                rate = copy_rate(run, nbytes)
                run.add(
                    "normalize",
                    name,
                    num / took,
                    "images/s",
                    fused=fused.can_fuse(x),
                    gb_per_s=nbytes / took / 1e9,
                    of_copy=nbytes / took / rate,
                )


def dct(run: Run) -> None:
    """``dct`` and ``yuv420``: the device half, then ``Normalize``; goal: 100,000 images/s at 224."""
    from loaders import Normalize
    from loaders.codecs import codec_for
    from loaders.device.decode import Coefficients, DctFinish, Yuv420Finish
    from loaders.schema import Image

    num, side, distinct = run.size(512, 2), run.size(224, 16), run.size(32, 2)
    pictures = smooth_pictures(distinct, side)
    module = Normalize.imagenet(torch.bfloat16).to(run.device)
    for scale in (1, 1 / 2, 1 / 4):
        coded = Image(size=(side, side), codec="dct", quality=90)
        codec: Any = codec_for(coded)
        records = [np.frombuffer(codec.encode(p), np.uint8) for p in pictures]
        rows = np.empty((num, codec.row_nbytes(round(8 * scale))), np.uint8)
        escapes = codec.fill([records[i % distinct] for i in range(num)], rows)
        half = Coefficients(*(torch.from_numpy(part) for part in (rows, *escapes)))
        host = DctFinish.of(coded, scale)
        moved = Coefficients(*(part.to(run.device) for part in half))
        finish = DctFinish.of(coded, scale).to(run.device)
        check(finish(moved), host(half), 1, f"dct at scale {scale}")
        name = f"dct {side} px at scale {scale:g}, then Normalize bf16"
        took = seconds(run, lambda finish=finish, moved=moved: module(finish(moved)), 15)
        run.add("dct", name, num / took, "images/s", batch=num)
    coded = Image(size=(side, side), codec="yuv420")
    codec = codec_for(coded)
    encoded = [np.frombuffer(codec.encode(p), np.uint8) for p in pictures]
    planes = torch.from_numpy(np.stack([encoded[i % distinct] for i in range(num)]))
    there, yuv = planes.to(run.device), Yuv420Finish((side, side)).to(run.device)
    check(yuv(there), Yuv420Finish((side, side))(planes), 1, "yuv420")
    took = seconds(run, lambda: module(yuv(there)), 15)
    run.add("dct", f"yuv420 {side} px, then Normalize bf16", num / took, "images/s", batch=num)


def crops(run: Run) -> None:
    """Crops of 224 out of ``dct`` images of 512: only the blocks they touch, beside whole images."""
    from loaders import BatchAugment
    from loaders import augment as ops
    from loaders.codecs import codec_for
    from loaders.device.augment import draw_moves
    from loaders.device.blocks import Cut, cut_around
    from loaders.device.decode import Coefficients, DctFinish
    from loaders.schema import Image

    num, side, out = run.size(256, 3), run.size(512, 64), run.size(224, 20)
    field = Image(size=(side, side), codec="dct", quality=90)
    codec: Any = codec_for(field)
    records = [np.frombuffer(codec.encode(p), np.uint8) for p in smooth_pictures(3, side)]
    rows = np.empty((num, codec.row_nbytes()), np.uint8)
    escapes = codec.fill([records[i % 3] for i in range(num)], rows)
    half = Coefficients(*(torch.from_numpy(part).to(run.device) for part in (rows, *escapes)))
    steps = [ops.RandomCrop(out), ops.RandomHorizontalFlip()]
    drawn = draw_moves(steps, (side, side), np.arange(num), seed=0, epoch=0)
    finish, crop = DctFinish.of(field).to(run.device), BatchAugment(steps)
    found = cut_around(drawn, (side, side), finish.unit)
    assert found is not None, "nothing is saved"
    cut = Cut(found[0].corners.to(run.device), found[0].size)
    moves, rest = (m._replace(table=m.table.to(run.device)) for m in (drawn, found[1]))
    want = crop(finish(half), moves=moves)
    check(crop(finish(half, cut), moves=rest), want.cpu(), 1, "blocks of crops")
    whole = seconds(run, lambda: crop(finish(half), moves=moves), 9)
    took = seconds(run, lambda: crop(finish(half, cut), moves=rest), 9)
    name = f"dct {side} px, crops of {out} and flips"
    run.add("crops", name, num / took, "images/s", of_whole=whole / took)


def jpeg(run: Run) -> None:
    """JPEG files decoded by the device: torchvision's decoder, and what it leaves to the CPU."""
    from loaders import JpegFinish
    from loaders.codecs.picture import PictureCodec
    from loaders.schema import Image

    if run.device.type == "cuda" and not _has("torchvision"):
        print("jpeg         needs torchvision, left out", flush=True)
        return
    num, side = run.size(256, 3), run.size(256, 32)
    codec = PictureCodec(Image(codec="jpeg"))
    distinct = [codec.encode(p, 90) for p in smooth_pictures(min(num, 16), side)]
    records = [distinct[i % len(distinct)] for i in range(num)]
    finish = JpegFinish(Image(codec="jpeg"), run.device)
    images, host = finish(records), JpegFinish(Image(codec="jpeg"), "cpu")
    refused = finish.num_refused  # of one batch: timing goes on counting
    for found, want in zip(images, host(records), strict=True):
        check(found.double().mean(), want.double().mean(), 1, "jpeg")
        check((found.cpu().double() - want.double()).abs().mean(), 0.0, 2, "jpeg")
    began = time.perf_counter()
    host(records)
    alone = num / (time.perf_counter() - began)
    took = seconds(run, lambda: finish(records), 9)
    beside = {"batch": num, "refused": refused, "of_one_core": num / took / alone}
    run.add("jpeg", f"JPEG {side} px, quality 90", num / took, "images/s", **beside)


def inflate(run: Run) -> None:
    """``dct`` records copied compressed and decompressed there (nvCOMP), beside decompressed ones copied."""
    if run.device.type == "cuda" and not any(_has(f"nvidia-nvcomp-cu{n}") for n in (12, 13)):
        print("inflate      needs nvCOMP, left out", flush=True)
        return
    inflate_one(run, "lz4")
    inflate_one(run, "zstd")


def inflate_one(run: Run, compression: str) -> None:
    from loaders.codecs import codec_for
    from loaders.device.decode import DctFinish
    from loaders.device.inflate import Compressed, InflateFinish, places_of
    from loaders.schema import Image

    num, side = run.size(256, 3), run.size(224, 32)
    field = Image(size=(side, side), codec="dct", quality=90, compression=compression)
    codec: Any = codec_for(field)
    distinct = [np.frombuffer(codec.encode(p), np.uint8) for p in smooth_pictures(3, side)]
    records = [distinct[i % 3] for i in range(num)]
    rows = np.empty((num, codec.row_nbytes()), np.uint8)
    codec.fill(records, rows)
    began = time.perf_counter()
    codec.fill(records, rows)
    alone = num / (time.perf_counter() - began)
    parts, escapes = codec.split(records)
    places = places_of([len(part) for part in parts])
    data = np.zeros(places.offsets[-1] + places.sizes[-1], np.uint8)
    for part, at in zip(parts, places.offsets, strict=True):
        data[at : at + len(part)] = np.frombuffer(part, np.uint8)
    stored, plain = (_locked(run, torch.from_numpy(a)) for a in (data, rows))
    positions, adds = (torch.from_numpy(part).to(run.device) for part in escapes)
    finish = InflateFinish(codec, DctFinish.of(field), run.device)

    def move() -> torch.Tensor:
        there = stored.to(run.device, non_blocking=True)
        return finish.coefficients(Compressed(there, places.sizes, positions, adds)).planes

    check(move(), plain, 0, f"inflate {compression}")
    took = seconds(run, move, 9)
    copied = seconds(run, lambda: plain.to(run.device, non_blocking=True), 9)
    beside = {"batch": num, "of_one_core": num / took / alone, "of_copy_alone": copied / took}
    name = f"dct {side} px, {compression}, copied and decompressed"
    run.add("inflate", name, num / took, "images/s", **beside)


def _locked(run: Run, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if run.device.type == "cuda" else tensor


def smooth_pictures(num: int, side: int) -> list[np.ndarray]:
    """Return images with the spectrum of photos, roughly: sums of noise at several sizes."""
    random, images = np.random.default_rng(0), []
    for _ in range(num):
        total = torch.zeros(1, 3, side, side)
        for cells in (2, 4, 8, 16, side):
            noise = torch.from_numpy(
                random.normal(0, 40 / cells**0.5, (1, 3, cells, cells))
            ).float()
            total += nn.functional.interpolate(noise, size=(side, side), mode="bilinear")
        pixels = (total[0] + 128).clamp(0, 255).to(torch.uint8)
        images.append(pixels.permute(1, 2, 0).contiguous().numpy())
    return images


def augment(run: Run) -> None:
    """``BatchAugment``: random crops of 256 px to 224, flips, then ``Normalize``."""
    from loaders import BatchAugment, Normalize
    from loaders import augment as ops

    num, side, out = run.size(256, 3), run.size(256, 20), run.size(224, 12)
    images = np.stack(smooth_pictures(min(num, 16), side))
    images = images[np.arange(num) % len(images)]
    steps = [ops.RandomResizedCrop(out), ops.RandomHorizontalFlip()]
    boxes, sizes, flips = ops.plan(
        steps, np.full((num, 2), side), seed=0, epoch=0, indices=np.arange(num)
    )
    rows = zip(images, boxes.tolist(), sizes.tolist(), flips.tolist(), strict=True)
    want = np.stack([ops.apply(*row) for row in rows]).transpose(0, 3, 1, 2)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).to(run.device)
    plain = BatchAugment(steps)
    check(plain(x, indices=range(num)), want, 1, "BatchAugment")
    both = BatchAugment(steps, normalize=Normalize.imagenet(torch.bfloat16).to(run.device))
    for name, module in {"": plain, ", then Normalize bf16": both}.items():
        moves = module.draw(x, range(num), 0)
        moves = moves._replace(table=moves.table.to(run.device))
        took = seconds(run, lambda module=module, moves=moves: module(x, moves=moves))
        run.add("augment", f"crop {side} to {out}, flip{name}", num / took, "images/s", batch=num)


def gather(run: Run) -> None:
    """Random rows out of GPU memory, and out of page-locked host memory, against what each bus gives."""
    from loaders.device import fused

    num, batch, side = run.size(16384, 8), run.size(256, 4), run.size(224, 8)
    nbytes = side * side * 3
    column = torch.randint(0, 256, (num, nbytes), dtype=torch.uint8)
    order = torch.randperm(num)[:batch]
    rows, want = order.to(run.device), column[order]
    there = column.to(run.device).view(torch.int64)
    check(there.index_select(0, rows).view(torch.uint8), want, 0, "gather in device memory")
    took = seconds(run, lambda: there.index_select(0, rows))
    rate = copy_rate(run, 2 * batch * nbytes)
    run.add(
        "gather",
        f"{side} px raw rows, in device memory",
        batch / took,
        "images/s",
        gb_per_s=2 * batch * nbytes / took / 1e9,
        of_copy=2 * batch * nbytes / took / rate,
    )
    why = fused.why_not(run.device) if run.device.type == "cuda" else "needs CUDA and Triton"
    if why is not None:
        print(f"gather       from host memory: {why}, left out", flush=True)
        return
    locked = column.pin_memory()
    part, target = locked[:batch], torch.empty(batch, nbytes, dtype=torch.uint8, device=run.device)
    bus = batch * nbytes / seconds(run, lambda: target.copy_(part, non_blocking=True))
    words, out = locked.view(torch.int64), target.view(torch.int64)
    check(fused.gathered(words, rows, out).view(torch.uint8), want, 0, "gather from host memory")
    took = seconds(run, lambda: fused.gathered(words, rows, out))
    name = f"{side} px raw rows, from page-locked host memory"
    speed = batch * nbytes / took
    run.add(
        "gather", name, batch / took, "images/s", gb_per_s=speed / 1e9, of_bus_copy=speed / bus
    )


def prefetch(run: Run) -> None:
    """A ResNet-50 step at batch 256 with batches from a loader, beside the step alone; goal: 2 % more at most."""
    from loaders import DataLoader, Normalize, RAMDataset

    num, batch, side = run.size(4096, 12), run.size(256, 4), run.size(224, 32)
    pixels = np.random.default_rng(0).integers(0, 256, (num, side, side, 3), np.uint8)
    host = RAMDataset.from_arrays(image=pixels, label=np.arange(num) % 1000)
    settings: dict[str, Any] = {"batch_size": batch, "shuffle": True, "drop_last": True}
    sources = {
        "RAMDataset, host": host,
        "RAMDataset, on the device": RAMDataset(host, device=run.device),
    }
    for name, dataset in sources.items():
        plain = DataLoader(host, **settings)
        moved = DataLoader(dataset, device=run.device, **settings)
        for one, other in zip(plain, moved, strict=True):
            check(other.image, one.image, 0, name)
            check(other.label, one.label, 0, name)
    step = training_step(run, Normalize.imagenet(torch.bfloat16, torch.channels_last))
    fixed = next(iter(DataLoader(host, device=run.device, **settings)))
    steps = run.size(60, 2)
    for name, dataset in sources.items():
        loader = DataLoader(dataset, device=run.device, **settings)
        alone = step_seconds(run, step, iter(lambda: fixed, None), steps)
        before = loader.stats().wait_s
        loaded = step_seconds(run, step, endless(loader), steps)
        wait = (loader.stats().wait_s - before) / (steps + 5)
        run.add(
            "prefetch",
            f"{model_name()} step, batch {batch}, {name}",
            loaded * 1000,
            "ms",
            alone_ms=alone * 1000,
            more=loaded / alone - 1,
            wait_ms=wait * 1000,
        )


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def step_seconds(run: Run, step: Callable[..., None], batches: Iterator[Any], steps: int) -> float:
    """Return the time per step of a whole run of them, from first to last."""
    for _ in range(5):
        step(*next(batches)[:2])
    synchronize(run)
    began = time.perf_counter()
    for _ in range(steps):
        step(*next(batches)[:2])
    synchronize(run)
    return (time.perf_counter() - began) / steps


def synchronize(run: Run) -> None:
    if run.device.type == "cuda":
        torch.cuda.synchronize()


def training_step(run: Run, norm: nn.Module) -> Callable[..., None]:
    torch.manual_seed(0)
    model = resnet(run).to(run.device, memory_format=torch.channels_last)
    norm = norm.to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(run.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(norm(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def model_name() -> str:
    return "ResNet-50" if _has("torchvision") else "ResNet-50 (own)"


def resnet(run: Run) -> nn.Module:
    """Return torchvision's ResNet-50, or where that is missing the same stack of blocks; tiny in a dry run."""
    if _has("torchvision") and not run.is_dry:
        from torchvision.models import resnet50

        return resnet50()
    depths, width = ((1, 1), 8) if run.is_dry else ((3, 4, 6, 3), 64)
    layers: list[nn.Module] = [*conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def conv(channels: int, wider: int, size: int, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(channels, wider, size, stride, size // 2, bias=False)
    return [layer, nn.BatchNorm2d(wider)]


class Bottleneck(nn.Module):
    """He et al., "Deep residual learning for image recognition", 2015; the stride where torchvision has it."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv(channels, width, 1),
            nn.ReLU(),
            *conv(width, width, 3, stride),
            nn.ReLU(),
            *conv(width, 4 * width, 1),
        )
        same = stride == 1 and channels == 4 * width
        self.skip = nn.Identity() if same else nn.Sequential(*conv(channels, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.skip(x))


CASES = {
    case.__name__: case
    for case in (normalize, dct, crops, augment, gather, prefetch, jpeg, inflate)
}  # in the order of their goals


# -- the run ---------------------------------------------------------------------------------------


def _has(package: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(package))
    return False


def conditions(device: torch.device, *, is_dry: bool) -> dict[str, Any]:
    """Return what the figures belong to."""
    nvcomp = ("nvidia-nvcomp-cu12", "nvidia-nvcomp-cu13")
    packages = ("torch", "triton", "torchvision", "numpy", *nvcomp)
    found: dict[str, Any] = {n: importlib.metadata.version(n) for n in packages if _has(n)}
    found |= {"python": sys.version.split()[0], "device": str(device), "dry_run": is_dry}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["driver"] = _output(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
    found["commit"] = _output("git", "-C", str(HERE), "rev-parse", "HEAD")
    return found


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def table(rows: list[Row]) -> str:
    """Return the figures as Markdown."""
    lines = ["| case | | figure | beside it |", "| --- | --- | ---: | --- |"]
    for row in rows:
        beside = ", ".join(f"{name} {_short(value)}" for name, value in row.beside.items())
        lines.append(f"| {row.case} | {row.what} | {_short(row.value)} {row.unit} | {beside} |")
    return "\n".join(lines)


def run_each(
    names: list[str], out: Path, found: dict[str, Any], limit_s: float, options: list[str]
) -> int:
    """Run each case in a process of its own; write what is there after each."""
    out.mkdir(parents=True, exist_ok=True)
    rows, failed = out / "gpu.jsonl", list[str]()
    rows.write_text("")
    report = write_report(out, found, rows, failed)
    for name in names:
        command = [sys.executable, __file__, "--only", name, "--rows", str(rows), *options]
        try:
            status = f"exit status {subprocess.run(command, timeout=limit_s).returncode}"
        except subprocess.TimeoutExpired:
            status = f"not done after {limit_s:g} s"
        if status != "exit status 0":
            failed.append(name)
            print(f"{name} failed: {status}", file=sys.stderr, flush=True)
        report = write_report(out, found, rows, failed)
    print(report)
    return 1 if failed else 0


def write_report(out: Path, found: dict[str, Any], rows: Path, failed: list[str]) -> str:
    """Write all that is known so far, and return it."""
    known = [Row(**json.loads(line)) for line in rows.read_text().splitlines()]
    result = {"conditions": found, "failed": failed, "rows": [asdict(row) for row in known]}
    (out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "gpu.md").write_text(table(known) + "\n")
    return f"{table(known)}\n\n{json.dumps(result)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="folder for gpu.jsonl, gpu.json and gpu.md")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--limit", type=float, default=300, help="seconds for one case")
    parser.add_argument("--dry-run", choices=["cpu"], help="everything, tiny, on the CPU")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of a case's own process
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        print(
            "no CUDA device: nothing was measured (--dry-run cpu shows what would be)",
            file=sys.stderr,
        )
        return 2
    device, is_dry = torch.device(args.dry_run or "cuda:0"), bool(args.dry_run)
    if args.rows:
        for name in args.only:
            CASES[name](Run(device, is_dry, args.rows))
        return 0
    found = conditions(device, is_dry=is_dry)
    print(json.dumps(found), flush=True)
    options = ["--dry-run", args.dry_run] if is_dry else []
    with tempfile.TemporaryDirectory() as folder:
        return run_each(args.only, args.out or Path(folder), found, args.limit, options)


if __name__ == "__main__":
    sys.exit(main())
