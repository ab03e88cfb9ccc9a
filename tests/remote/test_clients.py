"""What clients of a fetcher are to it: processes that come and go, what each may map, what is counted for them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from loaders import DataLoader, ShardDataset, concat
from loaders.errors import RemoteError
from loaders.remote.faults import StoreFault
from loaders.remote.served import ServedURL
from loaders.remote.url import URL
from tests.remote import servers
from tests.remote.conftest import fetcher_of, is_alive, storage
from tests.remote.test_cache import NUM_SHARDS, held
from tests.remote.test_cache import _many_proxy as _many_proxy
from tests.remote.test_cache import many as many
from tests.remote.test_cache import many_proxy as many_proxy
from tests.remote.test_remote import S3
from tests.waiting import wait_until

FORKS = """
import json, os, sys, time
from loaders import ShardDataset
url, cache, storage = json.loads(sys.argv[1])
dataset = ShardDataset(url, cache=cache, storage=storage)
assert dataset[0]
if child := os.fork():
    print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_client_that_was_killed_has_gone_though_its_forked_child_lives_on(
    server: str, cache: Path
) -> None:
    """The child has the same socket open."""
    arguments = json.dumps([S3, str(cache), storage(server)])
    trainer = subprocess.Popen(
        [sys.executable, "-c", FORKS, arguments], stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    child, fetcher = int(trainer.stdout.readline()), fetcher_of(cache)
    try:
        trainer.kill()
        trainer.wait()

        wait_until(lambda: not is_alive(fetcher), 5)

        assert is_alive(child)
    finally:
        trainer.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_a_silent_store_is_an_error_for_all_that_wait_as_long_after_its_last_byte_as_is_said(
    many_proxy: servers.Proxy, cache: Path
) -> None:
    """Whatever they wait for: here more parts than there are connections."""
    options = storage(many_proxy.endpoint, retry_timeout=5, timeout=1.5)
    remote = ShardDataset("s3://bucket/many", cache=cache, storage=options)
    many_proxy.set(faults=[{"kind": "hang", "match": ".lmdb"}])
    began = time.monotonic()

    def seconds(number: int) -> float:
        with pytest.raises(RemoteError):
            remote.store.shards[number].fetch()  # type: ignore[union-attr]
        return time.monotonic() - began

    with ThreadPoolExecutor(24) as pool:
        found = [*pool.map(seconds, range(24))]

    assert 5 <= min(found) <= max(found) < 7.5


def test_who_waits_long_is_asked_for_as_long_as_bytes_come_to_others(tmp_path: Path) -> None:
    """As the last part of a large shard, whose turn comes late."""

    async def part(hear: Any) -> str:
        hear(1)
        return "part"

    async def run() -> None:
        served = ServedURL(URL(f"file://{tmp_path}"), {}, {})
        served._heard_at = asked_at = time.monotonic() - served.objects.deadline_s

        with pytest.raises(StoreFault):
            await served.again(part, asked_at)
        assert await served.again(part) == "part"
        assert await served.again(part, asked_at) == "part"

    asyncio.run(run())


def unlinked_bytes(pid: int, cache: Path) -> int:
    """The bytes of files that a process has mapped, and that were evicted."""
    sizes = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if str(cache) in line and line.endswith("(deleted)"):
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            sizes[line.split()[4]] = end - start
    return sum(sizes.values())


@pytest.mark.slow
def test_what_is_mapped_beside_the_cache_is_no_more_than_the_cache(
    many: Path, cache: Path
) -> None:
    """A mapped file takes its room on the disk until it is unmapped."""
    budget = 16 * 421_888
    remote = ShardDataset(f"file://{many}/bucket/many", cache={"path": cache, "size": budget})
    most = 0
    for _ in DataLoader(remote, 16, num_workers=2):
        most = max(most, held(cache) + unlinked_bytes(os.getpid(), cache))

    assert budget <= most <= 2 * budget  # where the reader is slow, nothing is mapped beside it


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["thread", "process", "subprocess"])
def test_shards_are_counted_whichever_process_reads_them(
    many: Path, cache: Path, backend: Any
) -> None:
    remote = ShardDataset(f"file://{many}/bucket/many", cache=cache)
    loader = DataLoader(remote, 16, num_workers=2, backend=backend)
    for _ in loader:
        pass

    counts = loader.stats().remote

    assert counts is not None
    assert counts["hits"] + counts["misses"] >= NUM_SHARDS


def test_what_is_the_caches_is_not_counted_for_each_url(
    packed: Path, server: str, cache: Path
) -> None:
    about: dict[str, Any] = {"cache": {"path": cache, "size": 50_000_000}}
    places = [S3, f"file://{packed}/bucket/packed"]
    one, other = (
        ShardDataset(place, **about, storage=storage(server) if place == S3 else {})
        for place in places
    )
    loader = DataLoader(concat([one, other]), 60, num_workers=1)
    for _ in loader:
        pass

    counts = loader.stats().remote

    assert counts is not None
    assert counts["budget_bytes"] == 50_000_000
    assert counts["cached_bytes"] == held(cache)
