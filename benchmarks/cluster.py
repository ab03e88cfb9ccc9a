"""Parts in processes beside as many workers: `python benchmarks/cluster.py [--ray] [--peers litdata]`.

Pictures of 800 x 600 become JPEGs of 256, by one process with two workers, and as two parts in two processes of one
worker that are then joined; with `--peers litdata` also by its `optimize` (in an environment that is made for it, with
Pillow and workers that are processes). With `--ray` the parts, beside the same as tasks of a Ray that runs already.
Starting Python is in each figure. `finish` joins parts of one shard, beside linking those shards alone. Then from a
bucket whose objects take 30 ms: pictures, tars and CSV, of each some ten seconds of work for one worker, so that they
say more than how long starting takes; beside them what the servers take of the same cores. `finish` in a bucket; and
the memory of a process that has listed pictures in a bucket (of `--items` objects that are made up), read a list that
names them, and with `--ray` given them to Ray, beside what 1 GB for 10,000,000 of them would be.
In turns; median, range, ratio. Writes, with every repeat, `benchmarks/results/cluster.json`. Extra ``dev``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from page import write
from spine import HERE, ROOT, Case, Told, conditions

from loaders.remote.origin import set_defaults
from loaders.remote.url import URL
from loaders.remote.wire import Entry
from packdata.bucket import Bucket
from packdata.files.splits import open_splits
from packdata.images.plan import pack_images
from packdata.parts.packing import finish
from packdata.parts.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(ROOT))
from benchmarks.compare import Place, place_of
from tests.remote import servers

PROCESSES, LATENCY_S = 2, 0.03
PER_TAR, CSV_ROWS = 100, {"CSV": 20_000, "large CSV": 100_000}


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


def rate(num: int, dst: Path, *steps: list[list[str]]) -> float:
    """Return how many items a second commands take, step by step, from nothing on."""
    shutil.rmtree(dst, ignore_errors=True)
    began = time.perf_counter()
    for commands in steps:
        packdata(*commands)
    return num / (time.perf_counter() - began)


def packing_case(folder: Path, num: int, litdata: Place | None) -> Case:
    """Pack the same pictures in each way."""
    src, dst = str(make_pictures(folder / "pictures", num)), folder / "packed"
    pack = ["images", src, str(dst), "--size", "256", "--shard-size", "16MB"]

    def optimized() -> float:
        assert litdata is not None
        shutil.rmtree(dst, ignore_errors=True)
        began = time.perf_counter()
        words = [str(litdata.python), str(HERE / "cluster_peer.py"), src, str(dst), str(PROCESSES)]
        subprocess.run(words, env=litdata.env, check=True, capture_output=True)
        return num / (time.perf_counter() - began)

    parts = [[*pack, "--workers", "1", "--part", f"{i}/{PROCESSES}"] for i in range(PROCESSES)]
    runs = {
        f"one process, {PROCESSES} workers": lambda: rate(
            num, dst, [[*pack, "--workers", str(PROCESSES)]]
        ),
        f"{PROCESSES} parts, and finish": lambda: rate(num, dst, parts, [["finish", str(dst)]]),
    }
    if litdata is not None:
        runs[f"LitData's optimize, {PROCESSES} workers"] = optimized
    return Case("packing in parts", "images/s", runs, f"{num:,} JPEGs of 800 x 600, to 256")


def ray_case(folder: Path, num: int) -> Case:
    """Pack the same parts in processes, and as tasks of a Ray that runs already."""
    import ray

    src, dst = str(make_pictures(folder / "pictures", num)), folder / "packed"
    ray.init(num_cpus=PROCESSES, include_dashboard=False, address="local", logging_level="ERROR")
    address = ray.get_runtime_context().gcs_address
    pack = ["images", src, str(dst), "--size", "256", "--shard-size", "16MB", "--workers", "1"]
    num_parts = 4 * PROCESSES

    parts = [[*pack, "--part", f"{i}/{num_parts}"] for i in range(num_parts)]
    at_once = [parts[i : i + PROCESSES] for i in range(0, num_parts, PROCESSES)]
    on_ray = [*pack, "--engine", "ray", "--parts", str(num_parts), "--address", address]
    runs = {
        "the parts, two at a time, and finish": lambda: rate(
            num, dst, *at_once, [["finish", str(dst)]]
        ),
        "the parts on Ray": lambda: rate(num, dst, [on_ray]),
    }
    note = (
        f"{num:,} JPEGs of 800 x 600, to 256, in {num_parts} parts; each part alone starts Python"
    )
    return Case("parts on Ray", "images/s", runs, note)


def copy_parts(made: Path, num_parts: int) -> None:
    """Make many parts of the only one that lies in a folder: the same shard under other names."""
    (record,) = (made / ".parts").iterdir()
    (shard,) = made.glob("shard-*")
    text = record.read_text().replace('"part.of":"1"', f'"part.of":"{num_parts}"', 1)
    record.unlink()
    for i in range(num_parts):
        name = shard.name.replace("shard-", f"shard-{i:05d}-" if num_parts > 1 else "shard-")
        (record.parent / Part(i, num_parts).name).write_text(text.replace(shard.name, name))
        shutil.copy(shard, shard.with_name(f".{name}"))
        os.rename(shard.with_name(f".{name}"), shard.with_name(name))


def finish_case(folder: Path, num_parts: int) -> Case:
    """Join parts that are copies of one; link its shard as often."""
    src, made = make_pictures(folder / "pictures", 1) / "c0", folder / "made"
    pack_images(src, made, part="0/1")
    (shard,) = made.glob("shard-*")

    def join() -> float:
        dst = folder / "joined"
        shutil.rmtree(dst, ignore_errors=True)
        shutil.copytree(made, dst)
        copy_parts(dst, num_parts)
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

    note = f"{num_parts:,} parts of one shard, which finish reads and lists"
    return Case("finish", "parts/s", {"os.link alone": link, "finish": join}, note)


def source_case(folder: Path, what: str, num: int, workers: int, options: list[str]) -> Case:
    """Pack the same pictures, tars or tables from files and from objects that take 30 ms each."""
    files = folder / "root" / "raw" / what.lower().replace(" ", "-")
    if not files.exists():
        make = {"pictures": make_pictures, "tars": make_tars}
        make.get(what, partial(make_tables, CSV_ROWS.get(what, 0)))(files, num)
    command = ["tables", "--target", "a"] if what in CSV_ROWS else ["images", "--size", "256"]

    dst = folder / "packed"
    how = [*command[1:], "--shard-size", "16MB", "--workers", str(workers), *options]

    def packed(src: str) -> float:
        return rate(num, dst, [[command[0], src, str(dst), *how]])

    spent_s = 0.0

    def from_objects() -> float:
        nonlocal spent_s
        before = cpu_of_servers()
        found = packed(f"s3://raw/{files.name}")
        spent_s = cpu_of_servers() - before
        return found

    runs = {
        "local files": lambda: packed(str(files)),
        "objects, 30 ms each": from_objects,
        "what the CPU time of the servers would allow": lambda: num / max(spent_s, 0.01),
    }
    notes = {
        "pictures": f"{num:,} JPEGs of 800 x 600, to 256",
        "tars": f"{num:,} JPEGs of 800 x 600, to 256, in tars of {PER_TAR}",
    }
    notes |= {each: f"{num:,} files of {rows:,} rows" for each, rows in CSV_ROWS.items()}
    unit = "files/s" if what in CSV_ROWS else "images/s"
    cores = "with the server and the fetcher on the other core"
    if workers > 1:
        cores = "with the server and the fetcher on the same two cores"
    name = f"{what} in a bucket, workers: {workers}"
    return Case(name, unit, runs, f"{notes[what]}; {cores}")


def cpu_of_servers() -> float:
    """Return the seconds of CPU that the servers have taken: all processes of this one that run now."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


def make_tars(folder: Path, num: int) -> Path:
    """Write the same pictures into tars."""
    loose = make_pictures(folder.parent / "loose", num)
    folder.mkdir(parents=True)
    files = sorted(loose.rglob("*.jpg"), key=lambda file: file.name)
    for start in range(0, num, PER_TAR):
        with tarfile.open(folder / f"{start:06d}.tar", "w") as tar:
            for file in files[start : start + PER_TAR]:
                tar.add(file, file.name)
    shutil.rmtree(loose)
    return folder


def make_tables(num_rows: int, folder: Path, num: int) -> Path:
    """Write tables of numbers and words."""
    folder.mkdir(parents=True)
    rows = "".join(f"{i},{i / 7:.3f},{'xyz'[i % 3]}\n" for i in range(num_rows))
    for i in range(num):
        (folder / f"{i:04d}.csv").write_text(f"a,b,c\n{rows}")
    return folder


def memory_case(num: int, place: Path, endpoint: str, *, on_ray: bool) -> Case:
    """List made up objects as a source of pictures, in a process of its own; send it by Ray; name them in a list."""
    with open(place / "root" / "raw" / "list.csv", "w") as file:
        file.write("path\n")
        file.writelines(f"{name}\n" for name in object_names(num))

    def listed(*words: str) -> float:
        command = [sys.executable, str(HERE / "cluster.py"), "--list", str(num), *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1])

    runs = {
        "1 GB for 10,000,000": lambda: num / 10_000,
        "listed": listed,
        "named by a list.csv": lambda: listed("--endpoint", endpoint),
    }
    if on_ray:
        runs["listed, and given to Ray"] = lambda: listed("--ray")
    note = f"{num:,} names of 24 bytes; above what the imports take"
    return Case("memory of a listing", "MB", runs, note, lower_is_better=True)


def object_names(num: int) -> Iterator[str]:
    """Yield the names of made up objects, by name."""
    return (f"c{i * 1000 // num:04d}/img_{i:010d}.jpg" for i in range(num))


def list_objects(num: int, endpoint: str, *, on_ray: bool) -> None:
    """Print what this process has taken at most, in MB above what imports take, when Ray has such a source, too."""
    if on_ray:
        import ray

        ray.init(num_cpus=1, include_dashboard=False, address="local", logging_level="ERROR")
    source, found = "s3://raw", [Entry("a.jpg", 1, 1)]
    Bucket.below = lambda self, folder="": iter([found])  # type: ignore[method-assign]
    open_splits(source)  # imports what it needs
    if endpoint:
        source += "/list.csv"
        set_defaults(tempfile.mkdtemp(), {"endpoint": endpoint, "skip_signature": True})
    before = memory_of_this("VmRSS")
    sizes = ((100_000 + i % 1000, 2 * i + 1) for i in range(num))
    entries = (Entry(name, *about) for name, about in zip(object_names(num), sizes, strict=True))
    pages = iter(lambda: [*islice(entries, 1_000)], [])
    Bucket.below = lambda self, folder="": pages  # type: ignore[method-assign]
    sources = [*open_splits(source).values()]
    if on_ray:
        job = ray.put(sources)
        assert job is not None
    assert sum(map(len, sources)) == num
    print(memory_of_this("VmHWM") - before)


def memory_of_this(name: str) -> float:
    """Return MB of this process; getrusage's peak would be that of who started it, where that is more."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


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
        pack_images(folder / "one" / "c", "s3://out/packed", part="0/1")
        copy_parts(there / "packed", num_parts)

    def join() -> float:
        place()
        began = time.perf_counter()
        assert finish("s3://out/packed").samples == num_parts
        return num_parts / (time.perf_counter() - began)

    def ask() -> float:
        place()
        origin = Bucket(URL("s3://out/packed/.parts"))
        began = time.perf_counter()
        entries = [entry for some in origin.below() for entry in some]
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(
                    lambda entry: origin.objects([(entry.name, 0, entry.size, entry.mark)]),
                    entries,
                )
            )
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
    parser.add_argument("--peers", nargs="*", default=[], choices=["litdata"])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--list", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "loaders-compare"
    parser.add_argument("--cache", type=Path, default=home, help="environments of peers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="cases with this in their names; writes nothing"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results/")
    args = parser.parse_args()
    if args.list:
        list_objects(args.list, args.endpoint, on_ray=args.ray)
        return
    told = Told(args.only)
    litdata = place_of("litdata", args.cache) if args.peers else None
    with tempfile.TemporaryDirectory() as folder:
        told.run(packing_case(Path(folder), args.pictures, litdata), args.repeats)
    if args.ray:
        with tempfile.TemporaryDirectory() as folder:
            told.run(ray_case(Path(folder), args.pictures), args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        told.run(finish_case(Path(folder), args.parts), args.repeats)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "root").mkdir()
        far = stack.enter_context(servers.bucket(place / "root", latency_s=LATENCY_S))
        storage = {"endpoint": far, "skip_signature": True}
        options = [f"--storage={name}={value}" for name, value in storage.items()]
        options.append(f"--cache={place / 'cache'}")
        for what in ("pictures", "tars", *CSV_ROWS):
            num = max(2, args.pictures // (10 if what == "large CSV" else 2))
            for workers in (1, PROCESSES):
                case = source_case(place, what, num, workers, options)
                told.run(case, args.repeats)
        endpoint = stack.enter_context(servers.bucket(place / "root"))
        set_defaults(place / "cache", storage | {"endpoint": endpoint})
        told.run(stored_finish_case(place, args.parts), args.repeats)
        told.run(memory_case(args.items, place, endpoint, on_ray=args.ray), 1)
    if args.only:
        return
    where = conditions("none") | {"load": [round(each, 1) for each in os.getloadavg()]}
    title = "Packing on many machines, played by one: `python benchmarks/cluster.py`"
    write(args.out, "cluster", title, {"conditions": where, "cases": told.cases}, told.tables)


if __name__ == "__main__":
    main()
