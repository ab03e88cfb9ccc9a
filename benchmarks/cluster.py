"""Parts in processes beside as many workers: `python benchmarks/cluster.py [--pictures 2000] [--ray]`.

Pictures of 800 x 600 become JPEGs of 256, by one process with two workers, and as two parts in two processes of one
worker that are then joined; with `--ray` also as two tasks of a Ray that starts for it. Starting Python is in each
figure. `finish` joins parts of one shard, beside linking those shards alone. Then from a bucket whose objects take
30 ms, and `finish` in a bucket. In turns; median, range, ratio. Writes, with every repeat,
`benchmarks/results/cluster.json`. Extra ``dev``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from page import write
from spine import HERE, ROOT, Case, Told, conditions

from loaders.remote.origin import origin_of, set_defaults
from packdata.images.plan import pack_images
from packdata.parts.local import finish
from packdata.parts.part import Part

sys.path.insert(0, str(ROOT))
from tests.remote import servers

PROCESSES, LATENCY_S = 2, 0.03


def make_pictures(folder: Path, num: int) -> Path:
    """Write smooth noise, which compresses as photos do."""
    rng = np.random.default_rng(0)
    for i in range(num):
        (folder / f"c{i % 10}").mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 256, (60, 80, 3), np.uint8)
        cv2.imwrite(str(folder / f"c{i % 10}" / f"{i:06d}.jpg"), cv2.resize(small, (800, 600)))
    return folder


def packdata(*commands: list[str]) -> None:
    """Run commands at the same time."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "packdata", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        )
        for words in commands
    ]
    assert [process.wait() for process in running] == [0] * len(commands)


def packing_case(folder: Path, num: int, with_ray: bool) -> Case:
    """Pack the same pictures in each way."""
    src, dst = str(make_pictures(folder / "pictures", num)), folder / "packed"
    pack = ["images", src, str(dst), "--size", "256", "--shard-size", "16MB"]

    def timed(*steps: list[list[str]]) -> float:
        shutil.rmtree(dst, ignore_errors=True)
        began = time.perf_counter()
        for commands in steps:
            packdata(*commands)
        return num / (time.perf_counter() - began)

    parts = [[*pack, "--workers", "1", "--part", f"{i}/{PROCESSES}"] for i in range(PROCESSES)]
    runs = {
        f"one process, {PROCESSES} workers": lambda: timed([[*pack, "--workers", str(PROCESSES)]]),
        f"{PROCESSES} parts, and finish": lambda: timed(parts, [["finish", str(dst)]]),
    }
    if with_ray:
        runs["the parts on Ray, started for it"] = lambda: timed(
            [[*pack, "--engine", "ray", "--parts", str(PROCESSES)]]
        )
    return Case("packing in parts", "images/s", runs, f"{num:,} JPEGs of 800 x 600, to 256")


def finish_case(folder: Path, num_parts: int) -> Case:
    """Join parts that are copies of one; link its shard as often."""
    src, made = make_pictures(folder / "pictures", 1), folder / "made"
    pack_images(src, made, part="0/1")
    one = made / ".parts" / Part(0, 1).name
    (shard,) = (one / "shards").iterdir()
    header, *lines = (one / "journal.jsonl").read_text().split("\n")
    header = header.replace('"part.of":"1"', f'"part.of":"{num_parts}"')

    def join() -> float:
        dst = folder / "joined"
        shutil.rmtree(dst, ignore_errors=True)
        for i in range(num_parts):
            part = dst / ".parts" / Part(i, num_parts).name
            shutil.copytree(one, part)
            (part / "journal.jsonl").write_text("\n".join([header, *lines]))
        began = time.perf_counter()
        assert finish(dst).samples == num_parts
        return num_parts / (time.perf_counter() - began)

    def link() -> float:
        dst = folder / "linked"
        shutil.rmtree(dst, ignore_errors=True)
        dst.mkdir()
        began = time.perf_counter()
        for i in range(num_parts):
            os.link(shard, dst / f"{i}{shard.suffix}")
        return num_parts / (time.perf_counter() - began)

    note = f"{num_parts:,} parts of one shard, which finish reads of, links, lists and removes"
    return Case("finish", "parts/s", {"os.link alone": link, "finish": join}, note)


def source_case(folder: Path, num: int, proxy: servers.Proxy, options: list[str]) -> Case:
    """Pack the same pictures from files and from objects that take 30 ms each."""
    files = make_pictures(folder / "root" / "raw", num)
    proxy.set(latency_s=LATENCY_S)

    def timed(src: str) -> float:
        shutil.rmtree(folder / "packed", ignore_errors=True)
        began = time.perf_counter()
        pack = ["images", src, str(folder / "packed"), "--size", "256", "--shard-size", "16MB"]
        packdata([*pack, "--workers", str(PROCESSES), *options])
        return num / (time.perf_counter() - began)

    runs = {
        "local files": lambda: timed(str(files)),
        "objects, 30 ms each": lambda: timed("s3://raw"),
    }
    return Case("source in a bucket", "images/s", runs, f"{num:,} JPEGs of 800 x 600, to 256")


def stored_finish_case(folder: Path, num_parts: int) -> Case:
    """Join parts at a URL that are copies of one of a single small picture, beside asking for each of them."""
    rng = np.random.default_rng(0)
    (folder / "one" / "c").mkdir(parents=True)
    cv2.imwrite(str(folder / "one" / "c" / "a.png"), rng.integers(0, 256, (8, 8, 3), np.uint8))
    there = folder / "root" / "out"
    there.mkdir(parents=True)

    def place() -> None:
        shutil.rmtree(there)
        there.mkdir()
        pack_images(folder / "one", "s3://out/packed", part="0/1")
        (record,) = (there / "packed/.parts").iterdir()
        (shard,) = (there / "packed").glob("shard-*")
        text = record.read_text().replace('"part.of":"1"', f'"part.of":"{num_parts}"', 1)
        record.unlink()
        for i in range(num_parts):
            (record.parent / Part(i, num_parts).name).write_text(text)
            name = shard.name.replace("shard-", f"shard-{i:05d}-" if num_parts > 1 else "shard-")
            shutil.copy(shard, shard.with_name(f".{name}"))
            os.rename(shard.with_name(f".{name}"), shard.with_name(name))

    def join() -> float:
        place()
        began = time.perf_counter()
        assert finish("s3://out/packed").samples == num_parts
        return num_parts / (time.perf_counter() - began)

    def ask() -> float:
        place()
        origin = origin_of("s3://out/packed/.parts")
        began = time.perf_counter()
        entries = [entry for some in origin.below() for entry in some]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda entry: origin.objects([(entry, 0, entry.size)]), entries))
            list(pool.map(lambda entry: origin.delete(entry.name), entries))
        return num_parts / (time.perf_counter() - began)

    note = f"{num_parts:,} parts; the test server takes a part of each figure"
    runs = {"a GET and a DELETE of each record": ask, "finish": join}
    return Case("finish in a bucket", "parts/s", runs, note)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    args = parser.parse_args()
    told = Told()
    with tempfile.TemporaryDirectory() as folder:
        told.run(packing_case(Path(folder), args.pictures, args.ray), args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        told.run(finish_case(Path(folder), args.parts), args.repeats)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "root").mkdir()
        endpoint = stack.enter_context(servers.bucket(place / "root"))
        proxy = stack.enter_context(servers.proxy(endpoint))
        storage = {"endpoint": proxy.endpoint, "skip_signature": True}
        options = [f"--storage={name}={value}" for name, value in storage.items()]
        options.append(f"--cache={place / 'cache'}")
        told.run(source_case(place, args.pictures, proxy, options), args.repeats)
        set_defaults(place / "cache", storage | {"endpoint": endpoint})
        told.run(stored_finish_case(place, args.parts), args.repeats)
    where = conditions("none") | {"load": [round(each, 1) for each in os.getloadavg()]}
    title = "Packing on many machines, played by one: `python benchmarks/cluster.py`"
    write(args.out, "cluster", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
