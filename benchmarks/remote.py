"""A dataset in a store, over a slow link: `python benchmarks/remote.py [--scale 1]`.

A server that speaks S3, and before it a proxy that is the link: so many milliseconds before each answer, so many
megabytes a second on each connection; both of the tests. All are processes of this machine. Each row has what stands
beside it: the same bytes by plain connections, the same pass over the local folder, or the size of the data.
`--peers litdata streaming` adds these, in environments that are made for them, with the same rows in their own formats.
Writes `benchmarks/results/remote.json`. Extra ``dev``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from compare import PeerError, Place, place_of
from page import write
from spine import HERE, ROOT, conditions

import packdata
from loaders import DataLoader, ShardDataset
from loaders.remote import origin
from loaders.schema import Array
from packdata.packed.derive import copy_dataset
from packdata.packed.remote import clear_cache, fetch

sys.path.insert(0, str(ROOT))
from tests.remote import servers
from tests.remote.conftest import ended, fetcher_of, storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL, BATCH, CONNECTIONS = "s3://bucket/packed", 32, 16
LATENCY_S, RATE = 0.03, 4e6
LINK = {"latency_s": LATENCY_S, "rate": RATE}
FAST_LINK = {
    "latency_s": LATENCY_S,
    "rate": 4e7,
}  # a connection alone gives more than steps of STEP_S need
STEP_S, FILLS = 0.12, 8
ROW_BYTES, SHARD_BYTES, NUM_SHARDS = 16_384, 4 << 20, 24
_OBSTORE = """
import asyncio, os, sys, time
import obstore
from obstore.store import S3Store
endpoint, target, rounds, *names = sys.argv[1:]
options = {"region": "us-east-1", "skip_signature": True, "client_options": {"allow_http": True}}
store = S3Store("bucket", endpoint=endpoint, **options)
async def one(name):
    data = await obstore.get_async(store, name)
    with open(os.path.join(target, os.path.basename(name)), "wb") as file:
        os.pwrite(file.fileno(), await data.bytes_async(), 0)
async def main():
    spent = 0.0
    for _ in range(int(rounds)):
        before = time.process_time()
        await asyncio.gather(*map(one, names))
        spent += time.process_time() - before
        for name in os.listdir(target):
            os.unlink(os.path.join(target, name))
    print(spent)
asyncio.run(main())
"""


class Bench:
    """The servers, and the data in their bucket."""

    def __init__(
        self, folder: Path, endpoint: str, proxy: servers.Proxy, environments: Path
    ) -> None:
        self.folder, self.endpoint, self.proxy = folder, endpoint, proxy
        self.environments = environments
        self.local = folder / "root" / "bucket" / "packed"
        self.files = sorted(self.local.glob("*.lmdb"))
        self.num_rows = len(np.load(folder / "rows.npy", mmap_mode="r"))
        self.size = sum(path.stat().st_size for path in self.files)

    @contextlib.contextmanager
    def cold(self, endpoint: str = "", **cache: Any) -> Iterator[ShardDataset[Any]]:
        """Yield the dataset over an empty cache."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place, ended(Path(place) / "c") as at:
            options = storage(endpoint or self.proxy.endpoint, retry_timeout=60, timeout=20)
            self.cache = at
            origin.set_defaults({"path": at, **cache}, options)
            yield ShardDataset(URL)
            origin.set_defaults()

    def came(self) -> int:
        """Bytes of shards that went over the link since it was set."""
        return sum(each["bytes"] for each in self.proxy.requests(".lmdb"))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def plain_get(bench: Bench, num_shards: int = 0) -> None:
    """Get shards, or all, by plain connections, a shard each at a time."""
    host = bench.proxy.endpoint.removeprefix("http://")

    def get(path: Path) -> int:
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("GET", f"/bucket/packed/{path.name}")
        return len(connection.getresponse().read())

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(get, bench.files[: num_shards or None]))


def plain_put(bench: Bench, name: str) -> None:
    """Send all shards by as many plain connections as an upload has."""
    host = bench.proxy.endpoint.removeprefix("http://")

    def put(path: Path) -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("PUT", f"/bucket/{name}/{path.name}", path.read_bytes())
        connection.getresponse().read()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(put, bench.files))


def fill(bench: Bench) -> tuple[float, float]:
    """Seconds of plain connections, and of a cold cache that is filled."""
    bench.proxy.set(**LINK)
    beside = seconds(lambda: plain_get(bench))
    with bench.cold():
        return beside, seconds(lambda: fetch(Path(URL)))


def fill_cpu(bench: Bench, dataset: str = "packed") -> tuple[float, float]:
    """CPU seconds of a process that gets and writes by obstore, and of the fetcher; several fills, and no link."""
    url = Path(f"s3://bucket/{dataset}")
    with tempfile.TemporaryDirectory(dir=bench.folder) as target:
        names = [
            f"{dataset}/{path.name}" for path in bench.local.with_name(dataset).glob("*.lmdb")
        ]
        command = [sys.executable, "-c", _OBSTORE, bench.endpoint, target, str(FILLS), *names]
        beside = float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    with bench.cold(bench.endpoint):
        clock = ~fetcher_of(bench.cache) << 3 | 2  # of the kernel: nanoseconds of all its threads
        spent = 0.0
        for _ in range(FILLS):
            before = time.clock_gettime(clock)
            fetch(url)
            spent += time.clock_gettime(clock) - before
            clear_cache(bench.cache)
        return beside, spent


def one_pass(dataset: ShardDataset[Any], step_s: float = 0.0) -> None:
    for _ in DataLoader(dataset, BATCH, shuffle="lanes", num_workers=2):
        if step_s:
            time.sleep(step_s)


def cold_pass(bench: Bench) -> tuple[float, float]:
    """Seconds of plain connections, and of a pass over a cold cache."""
    bench.proxy.set(**LINK)
    beside = seconds(lambda: plain_get(bench))
    with bench.cold() as dataset:
        return beside, seconds(lambda: one_pass(dataset))


def trained_pass(bench: Bench) -> tuple[float, float]:
    """Seconds of a pass over the local folder, and of one over a cold cache, with steps that the link outruns.

    What is late is the first batch, which has a row of its own; here it is a small part of the pass, as in a training.
    """
    bench.proxy.set(**FAST_LINK)
    beside = seconds(lambda: one_pass(ShardDataset(bench.local), STEP_S))
    with bench.cold() as dataset:
        return beside, seconds(lambda: one_pass(dataset, STEP_S))


def first_batch(bench: Bench) -> tuple[float, float]:
    """Seconds of plain connections for a shard on each, and until the first batch."""
    bench.proxy.set(**LINK)
    beside = seconds(lambda: plain_get(bench, CONNECTIONS))
    with bench.cold() as dataset:
        loader = DataLoader(dataset, BATCH, num_workers=2)
        return beside, seconds(lambda: next(iter(loader)))


def warm_pass(bench: Bench) -> tuple[float, float]:
    """CPU seconds of a pass over the local folder, and of one over the cache, in turns; no request is made."""
    local = ShardDataset(bench.local)
    bench.proxy.set()
    with bench.cold() as dataset:
        one_pass(dataset)
        bench.proxy.set()
        spent: list[list[float]] = [[], []]
        for _ in range(7):
            for each, some in zip((local, dataset), spent, strict=True):
                before = time.process_time()
                one_pass(each)
                some.append(time.process_time() - before)
        assert not bench.proxy.requests()
    return statistics.median(spent[0]), statistics.median(spent[1])


def half_cached(bench: Bench) -> tuple[float, float]:
    """Bytes of the data, and those that a second epoch downloads with half of it cached."""
    bench.proxy.set()
    with bench.cold(size=bench.size // 2) as dataset:
        loader = DataLoader(dataset, 2, num_workers=1)
        for _ in range(2):
            bench.proxy.set()
            for _ in loader:
                pass
        return bench.size, bench.came()


_RANK = """
import json, sys
import torch.distributed as dist
from loaders import DataLoader, ShardDataset
url, place, cache, storage, rank, num_ranks, batch = json.loads(sys.argv[1])
dist.init_process_group("gloo", f"file://{place}", rank=rank, world_size=num_ranks)
loader = DataLoader(ShardDataset(url, cache=cache, storage=storage), batch, shuffle="lanes", num_workers=1)
for epoch in range(2):
    print(sum(len(each.data) for each in loader), flush=True)
    dist.barrier()
    sys.stdin.readline()
dist.destroy_process_group()
"""


def ranks(bench: Bench, num_caches: int) -> list[int]:
    """Return the bytes that four ranks over so many caches download in each of two epochs: gloo, real processes."""
    bench.proxy.set()
    came = []
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.folder))
        caches = [stack.enter_context(ended(Path(place) / f"c{n}")) for n in range(num_caches)]
        options = storage(bench.proxy.endpoint, retry_timeout=60, timeout=20)
        running = []
        for rank in range(4):
            cache = str(caches[rank * num_caches // 4])
            given = [URL, f"{place}/store", cache, options, rank, 4, BATCH]
            command = [sys.executable, "-c", _RANK, json.dumps(given)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            running.append(subprocess.Popen(command, text=True, **pipes))
        for _ in range(2):
            num = sum(int(each.stdout.readline()) for each in running if each.stdout)
            assert num == bench.num_rows, num
            came.append(bench.came())
            bench.proxy.set()
            for each in running:
                assert each.stdin is not None
                each.stdin.write("\n")
                each.stdin.flush()
        assert not any(each.wait(60) for each in running)
    return came


def one_node(bench: Bench) -> tuple[float, float]:
    """Bytes of the data, and those that four ranks of a node download for an epoch."""
    return bench.size, ranks(bench, 1)[0]


def four_nodes(bench: Bench) -> tuple[float, float]:
    """Bytes of the data, and those that four nodes download between them in two epochs: nothing in the second."""
    first, second = ranks(bench, 4)
    assert not second
    return bench.size, first + second


def resume(bench: Bench) -> tuple[float, float]:
    """Bytes of a window, and those that came when a run that goes on in mid-epoch has its first batch.

    The window: a shard on each connection. As many as that are on their way and
    arrive within milliseconds of each other: whether one or all have come when the batch has is chance.
    """
    with bench.cold() as dataset:
        loader = DataLoader(dataset, 2, num_workers=1)
        for _ in zip(range(len(loader) // 2), loader, strict=False):
            pass
        state = loader.state_dict()
    with bench.cold() as dataset:
        bench.proxy.set(**LINK)
        loader = DataLoader(dataset, 2, num_workers=1)
        loader.load_state_dict(state)
        next(iter(loader))
        came = (loader.stats().remote or {})["bytes"]
        return CONNECTIONS * SHARD_BYTES, came


def bad_answers(bench: Bench) -> tuple[float, float]:
    """Seconds of a fill, and of one where 1 % of the requests fail and 1 % are cut."""
    found = []
    for faults in ([], [{"kind": "503", "every": 100}, {"kind": "cut", "every": 67}]):
        with bench.cold():
            bench.proxy.set(**LINK, faults=faults)
            found.append(seconds(lambda: fetch(Path(URL))))
    return found[0], found[1]


def send(bench: Bench) -> tuple[float, float]:
    """Seconds of four plain connections that send the shards, and of an upload."""
    bench.proxy.set(**LINK)
    name = f"copy{time.monotonic_ns()}"
    beside = seconds(lambda: plain_put(bench, f"plain-{name}"))
    with bench.cold():
        return beside, seconds(lambda: copy_dataset(bench.local, f"s3://bucket/{name}"))


def beside(name: str) -> Callable[[Bench], tuple[float, float]]:
    """Return what gives the seconds of two epochs of another library, the first from an empty cache, and of ours."""

    def measure(bench: Bench) -> tuple[float, float]:
        theirs, ours = (place_of(each, bench.environments) for each in (name, "loaders"))
        target = bench.folder / "root" / "bucket" / name
        if not target.exists():
            peer(theirs, "prepare", name, bench.folder / "rows.npy", target)
        found = []
        for place, each in ((theirs, name), (ours, "loaders")):
            bench.proxy.set(**LINK)
            with (
                tempfile.TemporaryDirectory(dir=bench.folder) as at,
                ended(Path(at) / "c") as cache,
            ):
                found.append(json.loads(peer(place, "run", each, bench.proxy.endpoint, cache)))
        if found[0]["sum"] != found[1]["sum"]:
            raise PeerError(f"it serves other bytes: {found[0]}, and not {found[1]}")
        return sum(found[0]["seconds"]), sum(found[1]["seconds"])

    return measure


def peer(place: Place, *words: object) -> str:
    """Run a library's part in its environment; return the last line that it prints."""
    command = [str(place.python), str(HERE / "remote_peer.py"), *map(str, words)]
    done = subprocess.run(command, env=place.env, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise PeerError(done.stderr.strip()[-300:])
    return done.stdout.strip().rpartition("\n")[2]


# What is measured, what stands beside it, and whether the ratio is the other's share of ours, or ours of the other.
ROWS: dict[str, tuple[Callable[[Bench], tuple[float, float]], str, str, bool]] = {
    "fill a cold cache": (fill, f"{CONNECTIONS} plain connections", ">= 0.9", True),
    "CPU of a fill: get, hash, write": (fill_cpu, "obstore get, pwrite", "<= 1.3", False),
    "CPU of a fill, shards of 64 MB (the usual size)": (
        partial(fill_cpu, dataset="large"),
        "obstore get, pwrite",
        "<= 1.3",
        False,
    ),
    "pass, cold, bound by the link": (
        cold_pass,
        f"{CONNECTIONS} plain connections",
        ">= 0.9",
        True,
    ),
    f"pass, cold, steps of {STEP_S * 1000:.0f} ms": (
        trained_pass,
        "the local folder",
        ">= 0.95",
        True,
    ),
    "first batch, cold": (
        first_batch,
        f"{CONNECTIONS} shards by plain connections",
        "<= 1.5",
        False,
    ),
    "pass, all cached (CPU)": (warm_pass, "the local folder", "<= 1.02", False),
    "second epoch, half cached": (half_cached, "bytes of the data", "<= 0.52", False),
    "4 ranks on one node": (one_node, "bytes of the data", "1.00", False),
    "4 nodes, lanes, two epochs": (four_nodes, "bytes of the data", "<= 1.05", False),
    "resume in mid-epoch, first batch": (resume, "bytes of a window", "<= 1", False),
    "fill, 1 % 503 and 1.5 % cut": (bad_answers, "the clean fill", ">= 0.9", True),
    "upload": (send, "4 plain connections", ">= 0.9", True),
}


def pack(root: Path, num_shards: int) -> None:
    """Pack noise, in shards of about 4 MiB, and as much of the usual size."""
    rng = np.random.default_rng(0)
    num = num_shards * SHARD_BYTES // ROW_BYTES
    data = rng.integers(0, 256, (num, ROW_BYTES), np.uint8)
    np.save(root.parent / "rows.npy", data)
    rows = ({"data": row} for row in data)
    fields = {"data": Array(dtype="uint8", dims=(ROW_BYTES,))}
    packdata.pack(rows, root / "bucket" / "packed", fields, shard_bytes=SHARD_BYTES)
    rows = ({"data": row} for row in data)
    packdata.pack(rows, root / "bucket" / "large", fields)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default="", help="only rows whose names have this in them")
    parser.add_argument("--peers", nargs="*", default=[], choices=["litdata", "streaming"])
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "loaders-compare"
    parser.add_argument(
        "--cache", type=Path, default=home, help="environments; default: %(default)s"
    )
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    lines = [
        "| | ours | beside it | | ratio | goal |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    cases = []
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        pack(Path(place) / "root", max(4, int(NUM_SHARDS * args.scale)))
        endpoint = stack.enter_context(servers.bucket(Path(place) / "root"))
        proxy = stack.enter_context(servers.proxy(endpoint))
        bench = Bench(Path(place), endpoint, proxy, args.cache)
        peers = {
            f"two epochs, {each}": (beside(each), each, ">= 1.0", True) for each in args.peers
        }
        for name, (measure, other_name, goal, is_share) in (ROWS | peers).items():
            if args.rows not in name:
                continue
            try:
                pairs = [measure(bench) for _ in range(args.repeats)]
            except PeerError as error:
                print(f"{name}: {error}", flush=True)
                continue
            ratios = [(a / b if is_share else b / a) for a, b in pairs]
            middle = sorted(range(len(ratios)), key=ratios.__getitem__)[len(ratios) // 2]
            other, ours = pairs[middle]
            lines.append(
                f"| {name} | {ours:,.3g} | {other:,.3g} | {other_name} | {ratios[middle]:.2f} | {goal} |"
            )
            print(lines[-1], flush=True)
            results = {
                other_name: [pair[0] for pair in pairs],
                "loaders": [pair[1] for pair in pairs],
            }
            cases.append({"case": name, "goal": goal, "ratios": ratios, "results": results})
    told = {
        "conditions": conditions("none, noise")
        | {"link": f"30 ms, 4 MB/s a connection, {CONNECTIONS} of them"},
        "cases": cases,
    }
    note = (
        "\nSeconds or bytes, median ratio of the repeats; server and link are processes beside the loader. CPU: "
        f"{FILLS} fills, by the clock of the process. Steps: they sleep, as a trainer that waits for its GPU, and need "
        f"{BATCH * ROW_BYTES / STEP_S / 1e6:.0f} MB/s of a link that gives 40 on each connection; the first "
        "batch is what is late.\n"
    )
    title = "A dataset in a store: `python benchmarks/remote.py`"
    write(args.out, "remote", title, told, ["\n".join(lines), note])


if __name__ == "__main__":
    main()
