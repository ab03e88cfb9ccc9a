"""What ``gpu.py`` runs: each function is a case, ``CASES`` has them in order."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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
        beside = ", ".join(f"{name} {shown(value)}" for name, value in self.beside.items())
        return f"{self.case:12} {self.what:52} {shown(self.value):>12} {self.unit:10} {beside}"


def shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def has(package: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(package))
    return False


def seconds(run: Run, fn: Callable[[], Any], repeats: int = 30, warm_up: int = 5) -> float:
    """Return the device's median time of a call: what it launches is queued behind a wait that is longer."""
    repeats, warm_up = (2, 1) if run.is_dry else (repeats, warm_up)
    for _ in range(warm_up):
        fn()
    host = statistics.median(wall_seconds(run, fn, repeats))
    if run.device.type != "cuda":
        return host
    cycles = int(min(host * 1.5 + 1e-4, 0.05) * 2e9)  # of about 2 GHz
    took = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        begin.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) / 1000)
    return statistics.median(took)


def wall_seconds(run: Run, fn: Callable[[], Any], repeats: int = 12) -> list[float]:
    """Return the times of calls by the clock: launching, and what is launched."""
    took = []
    for _ in range(run.size(repeats, 2)):
        synchronize(run)
        began = time.perf_counter()
        fn()
        synchronize(run)
        took.append(time.perf_counter() - began)
    return took


def host_us(run: Run, fn: Callable[[], Any]) -> float:
    """Return the microseconds in which a call returns: what it costs the trainer's thread."""
    took = []
    for _ in range(run.size(30, 2)):
        synchronize(run)
        began = time.perf_counter()
        fn()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


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
                    host_us=host_us(run, lambda module=module, x=x: module(x)),
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


def jpeg(run: Run) -> None:
    """JPEG files decoded by the device: by nvImageCodec and by torchvision, whichever is there, and by a core."""
    from loaders import JpegFinish
    from loaders.codecs.picture import encode_jpeg
    from loaders.device.jpeg import nvimgcodec_decoder, torchvision_decoder
    from loaders.schema import Image

    num, side = run.size(256, 3), run.size(256, 32)
    field = Image(codec="jpeg")
    distinct = [encode_jpeg(p, 90) for p in smooth_pictures(min(num, 16), side)]
    records = [distinct[i % len(distinct)] for i in range(num)]
    host = JpegFinish(field, "cpu")
    want = host(records)
    alone = num / statistics.median(wall_seconds(run, lambda: host(records), 3))
    decoders: dict[str, Any] = {}
    if run.device.type != "cuda":
        decoders["the CPU"] = None
    if run.device.type == "cuda" and any(has(f"nvidia-nvimgcodec-cu{n}") for n in (12, 13)):
        decoders["nvImageCodec"] = nvimgcodec_decoder(3, run.device)
    if run.device.type == "cuda" and has("torchvision"):
        decoders["torchvision"] = torchvision_decoder(3)
    for name, decode in decoders.items():
        finish = JpegFinish(field, run.device, decode)
        apart = [
            (found.cpu().double() - image.double()).abs().mean()
            for found, image in zip(finish(records), want, strict=True)
        ]
        assert max(apart) < 2, f"{name}: {max(apart)} steps from the CPU's on average"
        refused = finish.num_refused  # of one batch: timing goes on counting
        took = statistics.median(wall_seconds(run, lambda finish=finish: finish(records)))
        beside = {"batch": num, "refused": refused, "apart": float(max(apart))}
        beside["of_one_core"] = num / took / alone
        run.add("jpeg", f"JPEG {side} px, quality 90, by {name}", num / took, "images/s", **beside)


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
    from loaders.augment.pixels import apply
    from loaders.augment.planning import draw_geometry

    num, side, out = run.size(256, 3), run.size(256, 20), run.size(224, 12)
    images = np.stack(smooth_pictures(min(num, 16), side))
    images = images[np.arange(num) % len(images)]
    steps = [ops.RandomResizedCrop(out), ops.RandomHorizontalFlip()]
    drawn = draw_geometry(steps, np.full((num, 2), side), seed=0, epoch=0, indices=np.arange(num))
    moves = (drawn.boxes.tolist(), drawn.sizes.tolist(), drawn.flips.tolist())
    rows = zip(images, *moves, strict=True)
    want = np.stack([apply(*row) for row in rows]).transpose(0, 3, 1, 2)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).to(run.device)
    plain = BatchAugment(steps)
    check(plain(x, indices=range(num)), want, 1, "BatchAugment")
    both = BatchAugment(steps, normalize=Normalize.imagenet(torch.bfloat16).to(run.device))
    for name, module in {"": plain, ", then Normalize bf16": both}.items():
        moves = module.draw(x, range(num), 0)
        moves = moves._replace(table=moves.table.to(run.device))
        took = seconds(run, lambda module=module, moves=moves: module(x, moves=moves))
        host = host_us(run, lambda module=module, moves=moves: module(x, moves=moves))
        beside = {"batch": num, "host_us": host}
        run.add("augment", f"crop {side} to {out}, flip{name}", num / took, "images/s", **beside)


def edits(run: Run) -> None:
    """RandAugment and RandomErasing, each image its own, beside torchvision's and kornia's; goal: 20,000 images/s."""
    from loaders import BatchAugment
    from loaders import augment as ops

    num, side = run.size(256, 4), run.size(224, 32)
    images = np.stack(smooth_pictures(min(num, 16), side))[np.arange(num) % min(num, 16)]
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    lists: dict[str, list[Any]] = {
        "RandAugment(2, 9), RandomErasing": [ops.RandAugment(2, 9), ops.RandomErasing(0.25)],
        "ColorJitter, grayscale, blur": [
            ops.RandomApply([ops.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            ops.RandomGrayscale(0.2),
            ops.RandomApply([ops.GaussianBlur(23)], 0.5),
        ],
    }
    there, indices, epochs = x.to(run.device), range(num), itertools.count()
    for name, steps in lists.items():
        module = BatchAugment(steps)
        apart = (
            module(there, indices=indices).cpu().int() - module(x, indices=indices).int()
        ).abs()
        assert (apart <= 1).float().mean() > 0.995, f"{name}: not what the CPU gives"
        moves = [map_to(run, module.draw(x, indices, epoch)) for epoch in range(8)]
        turns = itertools.cycle(moves)
        took = seconds(run, lambda module=module, turns=turns: module(there, moves=next(turns)))
        drawing = statistics.median(
            wall_seconds(run, lambda m=module: m.draw(x, indices, next(epochs)))
        )
        whole = statistics.median(
            wall_seconds(run, lambda m=module: m(there, indices=indices, epoch=next(epochs)))
        )
        host = host_us(run, lambda m=module: m(there, moves=next(turns)))  # noqa: B023
        beside = {
            "batch": num,
            "host_us": host,
            "drawing_us": drawing * 1e6,
            "by_the_clock": num / whole,
        }
        run.add("edits", name, num / took, "images/s", **beside)
    from gpu_peers import peers_of_edits

    for name, peer in peers_of_edits(there).items():
        took = statistics.median(wall_seconds(run, peer, 40))
        run.add("edits", f"RandAugment(2, 9), RandomErasing by {name}", num / took, "images/s")


def map_to(run: Run, moves: Any) -> Any:
    from loaders.device.nested import map_tensors

    return map_tensors(moves, lambda tensor: tensor.to(run.device))


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

    if not run.is_dry and not has("torchvision"):
        print("prefetch     needs torchvision, left out", flush=True)
        return
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
            f"ResNet-50 step, batch {batch}, {name}",
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
    model = network(run).to(run.device, memory_format=torch.channels_last)
    norm = norm.to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(run.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(norm(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def network(run: Run) -> nn.Module:
    """Return torchvision's ResNet-50; in a dry run something small."""
    if not run.is_dry:
        from torchvision.models import resnet50

        return resnet50()
    layers = [nn.Conv2d(3, 8, 7, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 1000))


CASES = {
    case.__name__: case for case in (normalize, dct, augment, edits, gather, prefetch, jpeg)
}  # in the order of their goals
