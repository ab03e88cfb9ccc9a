"""What a cache downloads, keeps and evicts; what it refuses before the first batch."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset, concat
from loaders.data.manifest import read_manifest
from loaders.data.shards import RemoteShard
from loaders.errors import CacheError, RemoteError, SampleError
from loaders.loading.fetching import LoaderPass
from loaders.remote import fetcher
from loaders.remote.ahead import Needs, downloads
from loaders.remote.folder import Cache, CacheFolder, prepare
from loaders.remote.served import ServedURL
from loaders.remote.url import URL
from loaders.remote.wire import File
from loaders.sampling import Lanes
from loaders.sampling.order import Sequential
from loaders.sampling.plan import Plan
from loaders.schema import Array, Label
from tests.remote import servers
from tests.remote.conftest import ended, fetcher_of, is_alive, signal_fetcher, storage
from tests.remote.test_remote import S3, assert_same, batches
from tests.waiting import wait_until

NUM_SHARDS, PER_SHARD, ROW = 48, 20, 5_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with ``bucket/many``: 48 shards of 400 kB."""
    root = tmp_path_factory.mktemp("many")
    rows = np.random.default_rng(1).integers(0, 255, (NUM_SHARDS * PER_SHARD, ROW * 4), np.uint8)
    fields = {"values": Array(dtype="uint8", dims=(ROW * 4,))}
    packdata.pack(
        ({"values": row} for row in rows), root / "bucket/many", fields, shard_bytes=399_000
    )
    assert len(list((root / "bucket/many").glob("*.lmdb"))) == NUM_SHARDS
    return root


@pytest.fixture(scope="module")
def _many_proxy(many: Path) -> Iterator[servers.Proxy]:
    with servers.bucket(many) as endpoint, servers.proxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def many_proxy(_many_proxy: servers.Proxy) -> servers.Proxy:
    _many_proxy.set()
    return _many_proxy


def data_bytes(root: Path, name: str = "many") -> int:
    return sum(path.stat().st_size for path in (root / "bucket" / name).glob("*.lmdb"))


def downloaded(proxy: servers.Proxy) -> int:
    return sum(each["bytes"] for each in proxy.requests(".lmdb"))


def held(cache: Path) -> int:
    held = 0
    for path in (cache / "v2").rglob("*.lmdb"):
        with suppress(OSError):  # it is evicted meanwhile
            held += path.stat().st_size
    return held


@pytest.mark.slow
def test_half_a_cache_keeps_half_from_epoch_to_epoch(many: Path, cache: Path) -> None:
    """By the known order: what was used last is needed last, and goes first. Never above the budget.

    Nothing holds the reader up here: it comes to a shard sooner than a client is given to map what it asked for.
    """
    size = data_bytes(many)
    limits = {"path": cache, "size": size // 2}
    remote = ShardDataset(f"file://{many}/bucket/many", cache=limits)
    loader = DataLoader(remote, 20, num_workers=1, collate_fn=list)  # not many batches at once

    counts = [0.0]
    for _ in range(3):
        for _ in loader:
            pass
        remote_counts = loader.stats().remote or {}
        counts.append(remote_counts["bytes"])
        assert held(cache) <= size // 2

    assert np.diff(counts) / size == pytest.approx([1, 0.52, 0.52], abs=0.04)


def cache_of(folder: Path, *names: str) -> CacheFolder:
    """Return a cache of files of 4 bytes, the first one used last."""
    for age, name in enumerate(names):
        path = folder / f"shards/{name[:2]}/{name}.lmdb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
        os.utime(path, (1000 - age, 1000 - age))
    (folder / "parts").mkdir()
    return CacheFolder(folder)


def test_of_what_nobody_needs_goes_first_what_was_used_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = cache_of(tmp_path, "idle", "older", "used")
    monkeypatch.setattr("loaders.remote.folder.MAP_S", 0.0)
    stored.note_answer("a client", "used")

    assert stored.make_room(8, {})
    assert stored.make_room(4, {})

    assert [*stored.files] == ["used"]


def test_what_nobody_needs_goes_first_then_what_is_needed_last_but_not_what_was_just_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = cache_of(tmp_path, "near", "far", "told", "idle")
    needs = {"near": 10, "far": 500, "told": 900}
    stored.note_answer("a client", "told")

    left = []
    for size in (12, 8, 4):
        assert stored.make_room(size, needs)
        left.append(sorted(stored.files))

    assert left == [["far", "near", "told"], ["near", "told"], ["told"]]
    assert not stored.make_room(0, needs)
    monkeypatch.setattr("loaders.remote.folder.MAP_S", 0.0)
    assert stored.make_room(0, needs)


@pytest.mark.slow
def test_the_next_fetcher_is_told_what_a_reader_needs_that_stands_still(
    many: Path, many_proxy: servers.Proxy, cache: Path
) -> None:
    """It waits for a file, for example, which others would evict for theirs, again and again."""
    remote = ShardDataset("s3://bucket/many", cache=cache, storage=storage(many_proxy.endpoint))
    many_proxy.set(latency_s=0.5)
    batches = iter(DataLoader(remote, 16, num_workers=1, collate_fn=list))
    next(batches)
    time.sleep(0.3)  # until that was told
    first = signal_fetcher(cache)
    shards = cache / "v2/shards"
    assert len([*shards.glob("??/*")]) < NUM_SHARDS
    many_proxy.set()

    wait_until(lambda: len([*shards.glob("??/*")]) == NUM_SHARDS)

    assert fetcher_of(cache) not in (0, first)


@pytest.mark.slow
def test_nothing_is_fetched_for_a_job_that_has_gone(
    many: Path, many_proxy: servers.Proxy, cache: Path
) -> None:
    """What it would have read next is not, nor is its budget forgotten."""
    budget = 30 * 421_888
    script = """
import json, sys
from loaders import DataLoader, ShardDataset
url, cache, storage = json.loads(sys.argv[1])
dataset = ShardDataset(url, cache=cache, storage=storage)
next(iter(DataLoader(dataset, 16, shuffle="lanes", num_workers=1, collate_fn=list)))
"""
    limits = {"path": str(cache), "size": budget}
    options = ["s3://bucket/many", limits, storage(many_proxy.endpoint)]
    many_proxy.set(latency_s=0.05)
    job = subprocess.Popen([sys.executable, "-c", script, json.dumps(options)])
    assert not job.wait(60)
    num_requests = len(many_proxy.requests())

    wait_until(lambda: not fetcher_of(cache))

    assert 0 < held(cache) <= budget
    assert len(many_proxy.requests()) <= num_requests + 8  # which were on their way


_READS_FROM = """
import json, sys
from loaders import DataLoader, ShardDataset
url, cache, first = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
dataset = ShardDataset(url, cache=cache)
dataset = dataset.select([(first + i) % len(dataset) for i in range(len(dataset))])
seen = [n for _, numbers in DataLoader(dataset, 8, num_workers=2, pad=False) for n in numbers.tolist()]
assert sorted(seen) == list(range(len(dataset))), len(seen)
"""


@pytest.mark.slow
def test_jobs_that_each_fit_share_a_small_cache_and_all_end(tmp_path: Path) -> None:
    """Each reads on from elsewhere, in groups of batches that take several shards: one alone would take a fourth."""
    fields = {"values": Array(dtype="uint8", dims=(5000,)), "number": Label()}
    rows = ({"values": np.full(5000, n % 251, np.uint8), "number": n} for n in range(2400))
    packdata.pack(rows, tmp_path / "packed", fields, shard_bytes=24 * 5000)
    cache = json.dumps({"path": str(tmp_path / "cache"), "size": 6_000_000})
    url = f"file://{tmp_path / 'packed'}"
    run = [sys.executable, "-c", _READS_FROM, url, cache]

    jobs = [
        subprocess.Popen(
            [*run, str(600 * i)], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True
        )
        for i in range(4)
    ]
    told = [job.communicate(timeout=200)[1] for job in jobs]

    assert [job.returncode for job in jobs] == [0] * 4, told


@pytest.mark.slow
def test_lanes_in_a_cache_that_holds_them_request_nothing_in_the_second_epoch(
    many: Path, many_proxy: servers.Proxy, cache: Path
) -> None:
    remote = ShardDataset("s3://bucket/many", cache=cache, storage=storage(many_proxy.endpoint))
    loader = DataLoader(remote, batch_size=16, shuffle="lanes", num_workers=2)
    for _ in loader:
        pass
    assert downloaded(many_proxy) == data_bytes(many)
    many_proxy.set()

    for _ in loader:
        pass

    assert not many_proxy.requests()


@pytest.mark.slow
def test_four_nodes_with_lanes_download_the_data_once_between_them(
    many: Path, many_proxy: servers.Proxy, tmp_path: Path
) -> None:
    """And nothing in the second epoch: a cache for each."""
    with contextlib.ExitStack() as stack:
        loaders = []
        for rank in range(4):
            cache = stack.enter_context(ended(tmp_path / f"node{rank}"))
            remote = ShardDataset(
                "s3://bucket/many", cache=cache, storage=storage(many_proxy.endpoint)
            )
            ranks: Any = {"rank": rank, "world_size": 4, "num_workers": 1}
            loaders.append(DataLoader(remote, 16, shuffle="lanes", drop_last=True, **ranks))
        for goal in (1.05, 0):
            assert {sum(len(batch.values) for batch in loader) for loader in loaders} == {240}
            assert downloaded(many_proxy) <= goal * data_bytes(many)
            many_proxy.set()


@pytest.mark.slow
def test_four_ranks_download_once(many: Path, many_proxy: servers.Proxy, cache: Path) -> None:
    script = """
import json, sys
from loaders import DataLoader, ShardDataset
url, cache, storage, rank = json.loads(sys.argv[1])
dataset = ShardDataset(url, cache=cache, storage=storage)
loader = DataLoader(dataset, 16, shuffle="lanes", num_workers=1, rank=rank, world_size=4)
print(sum(len(batch.values) for batch in loader))
"""
    options = ["s3://bucket/many", str(cache), storage(many_proxy.endpoint)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, json.dumps([*options, rank])], stdout=subprocess.PIPE
        )
        for rank in range(4)
    ]

    counts = [int(rank.communicate(timeout=120)[0]) for rank in ranks]

    assert sum(counts) == NUM_SHARDS * PER_SHARD
    assert downloaded(many_proxy) == data_bytes(many)
    assert len(many_proxy.requests("manifest.json")) <= 4


@pytest.mark.parametrize("shuffle", [True, "lanes"])
def test_what_cannot_work_is_refused_before_the_first_batch(
    many: Path, many_proxy: servers.Proxy, cache: Path, shuffle: Any
) -> None:
    limits = {"path": cache, "size": 4 * 400_000}
    remote = ShardDataset("s3://bucket/many", cache=limits, storage=storage(many_proxy.endpoint))

    with pytest.raises(CacheError) as caught:
        next(iter(DataLoader(remote, batch_size=64, shuffle=shuffle, num_workers=1)))

    assert caught.value.path == cache
    assert ("lanes" in caught.value.hint) == (shuffle is True)
    assert not many_proxy.requests(".lmdb")


@pytest.mark.parametrize(("ranks_of_node", "is_told"), [(1, True), (2, False)])
def test_that_an_order_downloads_more_than_its_nodes_share_is_told_once(
    many: Path,
    cache: Path,
    ranks_of_node: int,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each of two ranks reads all shards: of two nodes that is twice the share, of one it is all there is."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks_of_node))
    limits = {"path": cache, "size": data_bytes(many) // 2}
    remote = ShardDataset(f"file://{many}/bucket/many", cache=limits)
    (origin,), plan = remote.store.remotes, Plan(len(remote), 16, rank=0, world_size=2)

    for epoch in range(2):
        LoaderPass(remote, origin, Sequential(len(remote)), plan, epoch).check()

    assert len(caplog.records) == is_told


@pytest.mark.slow
def test_lanes_that_need_more_than_half_a_cache_run_with_the_number_that_the_error_names(
    many: Path, cache: Path
) -> None:
    size = data_bytes(many)
    limits = {"path": cache, "size": size // 2}
    remote = ShardDataset(f"file://{many}/bucket/many", cache=limits)
    with pytest.raises(CacheError) as caught:
        next(iter(DataLoader(remote, 16, shuffle="lanes", num_workers=1)))
    found = re.search(r"seed=(\d+), num_lanes=(\d+)", caught.value.hint)
    assert found is not None
    order = Lanes(remote, seed=int(found[1]), num_lanes=int(found[2]))
    loader = DataLoader(remote, 16, sampler=order, num_workers=1, collate_fn=list)

    counts = []
    for _ in range(3):
        assert sum(len(batch) for batch in loader) == len(remote)
        counts.append((loader.stats().remote or {})["bytes"])

    assert order.num_lanes > 1
    assert max(np.diff(counts)) <= 0.6 * size


@pytest.mark.parametrize("on_error", ["raise", "replace"])  # of which no sample is to blame
def test_a_shard_that_is_larger_than_the_cache_is_an_error(
    many: Path, many_proxy: servers.Proxy, cache: Path, on_error: Any
) -> None:
    limits: Any = {"cache": {"path": cache, "size": 100_000}, "on_error": on_error}
    remote = ShardDataset("s3://bucket/many", storage=storage(many_proxy.endpoint), **limits)

    with pytest.raises(RuntimeError) as caught:
        remote.read([0])

    assert isinstance(caught.value.__cause__, CacheError)


@pytest.mark.slow
def test_an_unknown_order_is_served_within_the_budget(
    many: Path, many_proxy: servers.Proxy, cache: Path
) -> None:
    budget = 8_000_000
    limits = {"path": cache, "size": budget}
    remote = ShardDataset("s3://bucket/many", cache=limits, storage=storage(many_proxy.endpoint))
    local = ShardDataset(many / "bucket/many")

    for i in np.random.default_rng(0).permutation(len(remote))[:120].tolist():
        assert (remote.read([i])[0].values == local[i].values).all()
        assert held(cache) <= budget


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two datasets of 24 shards of 420 kB, which share nothing."""
    folders = [tmp_path / "one", tmp_path / "other"]
    fields = {"values": Array(dtype="uint8", dims=(ROW * 4,))}
    for seed, folder in enumerate(folders):
        rows = np.random.default_rng(seed).integers(0, 255, (480, ROW * 4), np.uint8)
        packdata.pack(({"values": row} for row in rows), folder, fields, shard_bytes=399_000)
    return folders


@pytest.mark.slow
def test_two_jobs_of_different_orders_share_a_cache_that_holds_each_but_not_both(
    two: list[Path], cache: Path
) -> None:
    """The first one has all of its data mapped, and is idle, while the other one needs the room."""
    budget = 24 * 550_000
    limits = {"path": cache, "size": budget}
    datasets = [ShardDataset(f"file://{folder}", cache=limits) for folder in two]
    options: list[Any] = [{"shuffle": "lanes"}, {"shuffle": False}]
    loaders = [  # which read not many batches at once
        DataLoader(each, 16, num_workers=1, collate_fn=list, **more)
        for each, more in zip(datasets, options, strict=True)
    ]
    local = [
        DataLoader(ShardDataset(each), 16, **more) for each, more in zip(two, options, strict=True)
    ]

    for loader in loaders:
        assert sum(1 for _ in loader) == 30
        assert held(cache) <= budget

    for _ in zip(*local, strict=True):  # to the second epoch
        pass
    for one, other, *same in zip(*loaders, *local, strict=True):
        for batch, expected in zip((one, other), same, strict=True):
            assert torch.equal(torch.stack([each.values for each in batch]), expected.values)
        assert held(cache) <= budget + 2 * 421_888  # files come and go while they are counted
    total = sum((loader.stats().remote or {})["bytes"] for loader in loaders)
    assert total < 3 * 2 * 24 * 421_888  # of two passes of each


def test_each_of_two_clients_has_its_next_files_fetched_up_to_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far the other one is: ten files may be on their way, and the cache holds twelve."""
    monkeypatch.setattr(fetcher, "_AHEAD_BYTES", 9)
    monkeypatch.setattr(fetcher, "MAX_CONNECTIONS", 0)  # nothing is asked for

    async def begun(size: int) -> list[str]:
        serving = fetcher.Fetcher(Cache(tmp_path / f"cache{size}", size).open())
        for name in ("first", "second"):
            files = [File(f"{name}{n}", 1, f"{name}{n:026x}") for n in range(50)]
            writer: Any = None
            client = fetcher.Connected(writer, 0)
            client.size, client.source = size, ServedURL(URL(f"file://{tmp_path}"), {}, {})
            serving._clients.add(client)
            await serving.do(client, "order", files=files, upcoming=[*range(50)])
            for download in [*serving._downloads.values()] if name == "first" else ():
                del serving._downloads[download.file.hash]
                serving._stored.add(download.file.hash, download.target, 1)
        serving._pump()
        return sorted(each.file.file for each in serving._downloads.values())

    of_two = [f"{name}{n}" for name in ("first", "second") for n in range(5)]
    assert asyncio.run(begun(100)) == [*(f"first1{n}" for n in range(5)), *of_two[5:]]
    assert asyncio.run(begun(14)) == [f"second{n}" for n in range(4)]


def test_a_reader_of_more_than_the_cache_holds_maps_no_more_than_the_cache(tmp_path: Path) -> None:
    """The answer to its order says so, before it has mapped anything."""

    async def limit(size: int) -> int | None:
        serving = fetcher.Fetcher(Cache(tmp_path / f"cache{size}", size).open())
        writer: Any = None
        client = fetcher.Connected(writer, 0)
        client.size, client.source = size, ServedURL(URL(f"file://{tmp_path}"), {}, {})
        serving._clients.add(client)
        files = [File(f"shard{n}", 1, f"{n:032x}") for n in range(50)]
        found: int | None = await serving.do(client, "order", files=files, upcoming=None)
        return found

    assert [asyncio.run(limit(size)) for size in (49, 50)] == [49, None]


def test_a_file_stays_for_the_reader_that_comes_to_it_first(tmp_path: Path) -> None:
    async def left() -> set[str]:
        serving = fetcher.Fetcher(Cache(tmp_path / "cache", 100).open())
        files = [File(f"shard{n}", 1, f"{n:032x}") for n in range(3)]
        for file in files:
            serving._stored.add(file.hash, tmp_path / file.file, 1)
        for upcoming in ([0, 1, 2], [2, 1, 0]):
            writer: Any = None
            client = fetcher.Connected(writer, 0)
            client.source = ServedURL(URL(f"file://{tmp_path}"), {}, {})
            serving._clients.add(client)
            await serving.do(client, "order", files=files, upcoming=upcoming)
        assert serving._stored.make_room(2, serving._needs)
        return {file.file for file in files if file.hash in serving._stored.files}

    assert asyncio.run(left()) == {"shard0", "shard2"}


def test_a_shard_in_the_cache_can_be_read_alone(many: Path, cache: Path) -> None:
    """Who has it mapped would see what another writes."""
    remote = ShardDataset(f"file://{many}/bucket/many", cache=cache)
    shard = remote.store.shards[0]
    assert isinstance(shard, RemoteShard)

    assert stat.S_IMODE(shard.fetch().stat().st_mode) == 0o444


def test_what_a_client_needed_that_has_gone_is_evicted_first(tmp_path: Path) -> None:
    async def left() -> set[str]:
        serving = fetcher.Fetcher(Cache(tmp_path / "cache", 100).open())
        files = [File(f"shard{n}", 1, f"{n:032x}") for n in range(3)]
        for file in files:
            serving._stored.add(file.hash, tmp_path / file.file, 1)
        ends = [socket.socketpair() for _ in range(2)]
        served = []
        for (_, end), upcoming in zip(ends, ([0], [1, 2]), strict=True):
            before = {*serving._clients}
            streams = await asyncio.open_unix_connection(sock=end)
            served.append(asyncio.create_task(serving._serve(*streams)))
            await asyncio.sleep(0)
            (client,) = serving._clients - before
            client.source = ServedURL(URL(f"file://{tmp_path}"), {}, {})
            await serving.do(client, "order", files=files, upcoming=upcoming)
        ends[0][0].close()
        await served[0]
        assert serving._stored.make_room(2, serving._needs)
        ends[1][0].close()
        await served[1]
        return {file.file for file in files if file.hash in serving._stored.files}

    assert asyncio.run(left()) == {"shard1", "shard2"}


def test_reading_on_in_a_cache_that_holds_no_shard_is_an_error_of_the_cache(
    many: Path, cache: Path
) -> None:
    """Also of what is fetched ahead, which nobody waits for: the fetcher goes on."""
    remote = ShardDataset(f"file://{many}/bucket/many", cache={"path": cache, "size": 100_000})

    with pytest.raises(SampleError) as caught:
        next(iter(remote))

    assert isinstance(caught.value.__cause__, CacheError)
    assert "Traceback" not in (cache / "v2/fetcher.log").read_text()


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_memory_is_loaded_through_a_cache_that_holds_few_shards(
    many: Path, many_proxy: servers.Proxy, cache: Path, options: dict[str, Any]
) -> None:
    """A shard comes once, or twice if it was evicted first; what is in memory needs no cache."""
    limits = {"path": cache, "size": 5 * 421_888}
    remote = ShardDataset("s3://bucket/many", cache=limits, storage=storage(many_proxy.endpoint))
    some = remote.select(np.random.default_rng(0).permutation(len(remote))[:400])

    memory: Any = RAMDataset(some, progress=False, **options)

    assert downloaded(many_proxy) <= 1.5 * data_bytes(many)
    local = ShardDataset(many / "bucket/many").select(some.view.numbers)
    assert_same(batches(memory, batch_size=64), batches(local, batch_size=64))


def test_memory_joins_and_packdata_read_urls(
    packed: Path, server: str, cache: Path, tmp_path: Path
) -> None:
    local = ShardDataset(packed / "bucket" / "packed")
    remote = ShardDataset(S3, cache=cache, storage=storage(server))

    assert_same(batches(RAMDataset(remote, progress=False)), batches(local))
    joined = concat([remote, local])
    assert int(joined[len(local)].label) == int(joined[0].label) == 0
    packdata.write(remote, tmp_path / "copy")
    assert_same(batches(ShardDataset(tmp_path / "copy")), batches(local))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["fetcher", "trainer", "both"])
def test_kill_9_needs_no_cleaning_by_hand(
    packed: Path, proxy: servers.Proxy, cache: Path, who: str
) -> None:
    proxy.set(latency_s=0.15)
    script = """
import json, sys
from loaders import DataLoader, ShardDataset
url, cache, storage = json.loads(sys.argv[1])
dataset = ShardDataset(url, cache=cache, storage=storage)
for step, batch in enumerate(DataLoader(dataset, 16, shuffle=True, num_workers=2)):
    print(step, int(batch.values.long().sum()), flush=True)
"""
    given = json.dumps([S3, str(cache), storage(proxy.endpoint)])
    command = [sys.executable, "-c", script, given]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    wait_until(lambda: fetcher_of(cache) and proxy.requests(".lmdb"), 60)

    first = fetcher_of(cache) if who == "trainer" else signal_fetcher(cache)
    if who != "fetcher":
        trainer.kill()
    output = trainer.communicate(timeout=120)[0]
    if who != "fetcher":
        output = subprocess.run(command, stdout=subprocess.PIPE, timeout=120, text=True).stdout

    local = ShardDataset(packed / "bucket" / "packed")
    sums = [int(b.values.long().sum()) for b in DataLoader(local, 16, shuffle=True)]
    assert [int(line.split()[1]) for line in output.splitlines()] == sums
    wait_until(lambda: not fetcher_of(cache), 60)
    assert not list((cache / "v2" / "parts").iterdir())
    assert not is_alive(first)


@pytest.mark.slow
def test_a_fetcher_that_is_stopped_is_an_error_and_no_hang(
    server: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.remote.client.Connection", _impatient())
    remote = ShardDataset(S3, cache=cache, storage=storage(server))
    pid = signal_fetcher(cache, signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError) as caught:
            remote.read([0])
    finally:
        os.kill(pid, signal.SIGCONT)

    assert str(pid) in str(caught.value)


def _impatient() -> Any:
    from loaders.remote.wire import Connection

    return lambda inside: Connection(inside, timeout_s=2.0)


def test_belady_downloads_least() -> None:
    reads = [0, 1, 2, 3] * 3

    assert downloads(reads, [1] * 4, 4) == 4
    assert downloads(reads, [1] * 4, 2) == 9  # by last use it would be 12
    assert downloads(reads, [1] * 4, 0) == 12


def test_needs_tell_what_comes_next_and_how_much_at_a_time() -> None:
    files = [File(f"{n}", 10 + n, f"{n:032x}") for n in range(3)]
    needs = Needs(files, [(0, np.array([0, 1])), (8, np.array([1])), (16, np.array([2, 0]))])

    assert needs.upcoming() == [0, 1, 2]
    assert needs.least_bytes() == 10 + 11 + 12
    assert needs.upcoming(9) == [1, 0, 2]


def test_a_shard_that_is_here_is_mapped_though_the_fetcher_dies_when_it_is_told_of_it(
    server: str, cache: Path
) -> None:
    about: Any = {"cache": cache, "storage": storage(server)}
    store = ShardDataset("s3://bucket/packed", **about).store
    for number in (0, 2):
        ShardDataset("s3://bucket/packed", **about).store.shards[number].open("never")
    store.shard(0)
    signal_fetcher(cache)
    wait_until(lambda: not fetcher_of(cache))
    len(ShardDataset("s3://bucket/packed", **about))
    pid = signal_fetcher(cache, signal.SIGSTOP)
    later = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    later.start()

    assert store.shard(2) is not None

    later.join()


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    return prepare(tmp_path / "cache")


def of(path: Path) -> tuple[ServedURL, File]:
    """The first shard of a folder, as a fetcher is asked for it."""
    shard = read_manifest(path).shards[0]
    url = URL(f"file://{path}")
    return ServedURL(url, {}, {}), File(shard.file, shard.size_bytes, shard.xxh3_128)


def manifest_in(folder: Path) -> bytes:
    return (folder / "manifest.json").read_bytes()


def test_a_manifest_that_is_replaced_while_it_is_read_is_read_again(
    packed: Path, inside: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "packed"
    shutil.copytree(packed / "bucket" / "packed", folder)
    (tmp_path / "new").write_bytes(b"another")

    async def run() -> bytes:
        serving, (source, _) = fetcher.Fetcher(inside), of(folder)
        get, is_put = source.objects.get, asyncio.Event()

        async def slow(*about: Any, **more: Any) -> Any:
            got = await get(*about, **more)
            await is_put.wait()
            return got

        source.objects.get = slow  # type: ignore[method-assign]
        writer: Any = None
        client = fetcher.Connected(writer, 0)
        client.source = source
        reading = asyncio.create_task(serving._on_manifest(client))
        await asyncio.sleep(0.1)
        shutil.copy(tmp_path / "new", folder / "manifest.json")
        about: Any = {"name": "manifest.json", "data": tmp_path / "new", "only": None}
        with pytest.raises(RemoteError):  # of this scheme; its answer may be lost of others
            await serving.do(client, "put", **about)
        is_put.set()
        assert manifest_in(await reading) != b"another"
        return manifest_in(await serving._on_manifest(client))

    assert asyncio.run(run()) == b"another"
