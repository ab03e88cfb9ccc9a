"""Which codec when: `python benchmarks/codecs.py [--photos FOLDER]`.

The same images, stored by each codec, served on one core up to the point where a batch is ready to be moved to the
device: decoded pixels, or the host half of what the device finishes. Batches of 128 in reusable slots, data in the page
cache, contenders in turns in one process; the tables show medians. Bytes are those of the records, PSNR is of
the images that come out, against those that went in. Writes `codecs.md` and, with every repeat, `codecs.json` to
`benchmarks/results`. Take a machine without other work: with it, the ratios of single runs scatter.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow
import simplejpeg
import torch
from page import write

import packdata
from loaders import ShardDataset
from loaders.buffers import Slots
from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.codecs.picture import encode_jpeg
from loaders.schema import Image

ROOT = Path(__file__).resolve().parent.parent
BATCH = 128
QUALITY = 90


@dataclass
class Contender:
    """One way of storing and serving the images of one size."""

    name: str
    dataset: Any
    bytes_per_image: float
    psnr_db: float | None


def load_photos(folder: Path, size: int) -> list[np.ndarray]:
    """Return the centre squares of all photos, scaled to a size."""
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    return [_square(cv2.cvtColor(cv2.imread(str(p)), cv2.COLOR_BGR2RGB), size) for p in files]


def _square(photo: np.ndarray, size: int) -> np.ndarray:
    height, width = photo.shape[:2]
    side = min(height, width)
    y, x = (height - side) // 2, (width - side) // 2
    part = photo[y : y + side, x : x + side]
    return cv2.resize(part, (size, size), interpolation=cv2.INTER_AREA)


def psnr_db(images: list[np.ndarray], dataset: Any) -> float:
    """Return the mean over the photos."""
    values = []
    for i, image in enumerate(images):
        served = dataset[i].image.permute(1, 2, 0).numpy().astype(np.float64)
        error = max(float(np.mean((served - image) ** 2)), 1e-9)
        values.append(10 * np.log10(255**2 / error))
    return statistics.mean(values)


def half_of(dataset: Any) -> Any:
    """Return the host's half of a dataset, or all of it where a device has nothing to do."""
    return (dataset.halves(torch.device("cpu")) or (dataset,))[0]


def contenders(images: list[np.ndarray], folder: Path, num: int) -> list[Contender]:
    """Pack the images with each codec, repeated to `num` samples."""
    size = images[0].shape[:2]
    fields = {
        "jpeg": Image(size=size, codec="jpeg"),
        "raw": Image(size=size, codec="raw"),
        "yuv420": Image(size=size, codec="yuv420"),
        "dct, lz4": Image(size=size, codec="dct", quality=QUALITY, compression="lz4"),
        "dct, zstd": Image(size=size, codec="dct", quality=QUALITY, compression="zstd"),
    }
    found = []
    for name, field in fields.items():
        codec: Any = codec_for(field)
        records = [
            encode_jpeg(image, QUALITY) if name == "jpeg" else codec.encode(image)
            for image in images
        ]
        path = folder / name.replace(", ", "-")
        rows = ({"image": images[i % len(images)]} for i in range(num))
        packdata.pack(rows, path, {"image": field}, format="parquet", quality=QUALITY)
        dataset, nbytes = ShardDataset(path), statistics.mean(map(len, records))
        whole = psnr_db(images, dataset)
        quality = None if name == "raw" else whole
        found.append(Contender(name, half_of(dataset), nbytes, quality))
        if isinstance(codec, DctCodec):
            for text, side in (("1/2", 4), ("1/4", 2), ("1/8", 1)):
                smaller = half_of(dataset.replace(scale=side / 8))
                found.append(Contender(f"{name}, scale {text}", smaller, nbytes, None))
    return found


def host_rate(dataset: Any, slots: Slots) -> float:
    """Return samples/s of one thread for one pass of a host half, up to the batch that a device is given."""
    order = np.random.default_rng(0).permutation(len(dataset))
    began = time.perf_counter()
    for first in range(0, len(order), BATCH):
        job = dataset.job(order[first : first + BATCH], slots)
        job.run(0)
        job.finish()
    return len(order) / (time.perf_counter() - began)


def measure(found: list[Contender], repeats: int) -> dict[str, list[float]]:
    """Run the contenders in turns, after a warm-up of each."""
    slots, rates = Slots(), {contender.name: [] for contender in found}
    for repeat in range(repeats + 1):
        for contender in found:
            rate = host_rate(contender.dataset, slots)
            if repeat:
                rates[contender.name].append(rate)
    return rates


def table(size: int, found: list[Contender], rates: dict[str, list[float]]) -> str:
    """Return a Markdown table; ratios are to JPEG, of scales to the full one."""
    lines = [
        f"### {size} x {size}, quality {QUALITY}",
        "",
        "| codec | bytes/image | of JPEG's | images/s per core | of JPEG's | PSNR |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    base = found[0]
    for contender in found:
        rate = statistics.median(rates[contender.name])
        times = rate / statistics.median(rates[base.name])
        share = contender.bytes_per_image / base.bytes_per_image
        quality = "" if contender.psnr_db is None else f"{contender.psnr_db:.2f} dB"
        lines.append(
            f"| {contender.name} | {contender.bytes_per_image:,.0f} | {share:.2f} | {rate:,.0f} "
            f"| {times:.1f} | {quality} |"
        )
    return "\n".join([*lines, "", *_scales(found, rates), ""])


def _scales(found: list[Contender], rates: dict[str, list[float]]) -> list[str]:
    lines = []
    for contender in found:
        name, _, scale = contender.name.partition(", scale ")
        if scale:
            times = statistics.median(rates[contender.name]) / statistics.median(rates[name])
            lines.append(f"- {name} at {scale}: {times:.2f} times the images/s")
    return lines


def conditions(photos: str) -> dict[str, Any]:
    """Say where and with what this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    modules = (torch, np, cv2, simplejpeg, pyarrow)
    return {
        "cpu": cpu or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load when begun": os.getloadavg()[0],
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in modules},
        "commit": done.stdout.strip(),
        "photos": photos,
        "threads": 1,
        "page cache": "warm",
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, default=ROOT / "tests/data/photos")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 256])
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    where = conditions(f"{len(load_photos(args.photos, 8))} photos")
    tables, cases = [], []
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            found = contenders(load_photos(args.photos, size), Path(folder), args.samples)
            rates = measure(found, args.repeats)
        tables.append(table(size, found, rates))
        print(tables[-1], flush=True)
        cases.append({
            "size": size,
            "quality": QUALITY,
            "codecs": [
                {
                    "name": c.name,
                    "bytes_per_image": c.bytes_per_image,
                    "psnr_db": c.psnr_db,
                    "images_per_s": rates[c.name],
                }
                for c in found
            ],
        })  # fmt: skip
    title = "Codecs, one core: `python benchmarks/codecs.py --photos FOLDER`"
    write(args.out, "codecs", title, {"conditions": where, "cases": cases}, tables)


if __name__ == "__main__":
    main()
