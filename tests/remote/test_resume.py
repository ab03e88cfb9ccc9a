"""One training that is stopped, killed, and goes on: other ranks each time, the store and the local copy in turn."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders.schema import Array
from loaders.system.regular import hash_file
from tests.remote import resume_jobs, servers
from tests.remote.conftest import fetcher_of, storage
from tests.remote.resume_jobs import EPOCHS, Job
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
NUM_SHARDS, PER_SHARD, ROW = 63, 24, 5_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With ``bucket/train``: shards that nobody else has, each byte of which tells its sample's number."""
    root = tmp_path_factory.mktemp("resume")
    rows = (np.full(ROW, n % 251, np.uint8) for n in range(NUM_SHARDS * PER_SHARD))
    run = uuid.uuid4().hex  # a copy in memory is shared with whoever has the same dataset
    samples = ({"values": row, "run": np.frombuffer(run.encode(), np.uint8)} for row in rows)
    fields = {"values": Array(dtype="uint8", dims=(ROW,)), "run": Array(dtype="uint8", dims=(32,))}
    packdata.pack(samples, root / "bucket/train", fields, shard_bytes=PER_SHARD * (ROW + 32))
    return root


@pytest.fixture
def link(root: Path) -> Iterator[servers.Proxy]:
    """Slow enough that shards are on their way at any time."""
    with servers.bucket(root) as endpoint, servers.proxy(endpoint) as proxy:
        proxy.set(latency_s=0.1)
        yield proxy


class Training:
    """A turn of it: the ranks of one machine."""

    def __init__(self, job: Job, world_size: int) -> None:
        self.cache = Path((job.cache or {}).get("path", "none"))
        Path(job.meeting).unlink(missing_ok=True)
        command = [sys.executable, resume_jobs.__file__, json.dumps(job._asdict())]
        common = os.environ | {
            "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
            "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.ranks = [
            subprocess.Popen(
                command, env=common | {"RANK": str(rank)}, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )
            for rank in range(world_size)
        ]  # fmt: skip

    def until_under_way(self) -> None:
        """Wait until a state was saved, and a shard is on its way."""
        assert self.ranks[0].stdout is not None
        assert self.ranks[0].stdout.readline() == "3\n"
        wait_until(lambda: os.listdir(self.cache / "v2/parts"), 60)

    def kill(self, who: str) -> None:
        """End the fetcher, a rank of the trainer, or the fetcher and all ranks, without notice."""
        fetcher = fetcher_of(self.cache)
        assert fetcher
        if who != "trainer":
            os.kill(fetcher, signal.SIGKILL)
        for rank in self.ranks if who == "both" else self.ranks[-1:] if who == "trainer" else ():
            rank.kill()

    def end(self) -> list[tuple[int, str]]:
        """Return how each rank ended, and what it said of errors; the others of a killed one do not hang."""
        try:
            said = [rank.communicate(timeout=120)[1] for rank in self.ranks]
        finally:
            for rank in self.ranks:
                rank.kill()
        return [(rank.returncode, text) for rank, text in zip(self.ranks, said, strict=True)]


def is_left(names: set[str], pids: list[int]) -> list[str]:
    """Return those that are of this package, or of one of these processes."""
    return [name for name in names if "loaders" in name or any(f"_{p}_" in name for p in pids)]


def sockets() -> set[str]:
    """The abstract sockets of this machine."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {name for line in lines if (name := line.split()[-1]).startswith("@")}


def processes(word: str) -> list[int]:
    """Other processes with a word in their command lines."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in each.read_bytes():
                found.append(int(each.parent.name))
    return [pid for pid in found if pid != os.getpid()]


# Where it is read from, by how many ranks, and how it ends; what is killed is killed while shards are on their way.
TURNS: list[tuple[str, int, str, dict[str, Any]]] = [
    ("store", 2, "trainer", {}),
    ("folder", 3, "stop", {"backend": "subprocess"}),
    ("store", 3, "fetcher", {"backend": "subprocess"}),
    ("folder", 1, "stop", {"is_shared": True}),
    ("store", 2, "both", {}),
    ("folder", 1, "stop", {}),
    ("store", 2, "", {"is_shared": True, "batch_size": 32}),
]


def test_each_sample_comes_once_however_often_it_is_stopped_and_killed_and_nothing_is_left(
    root: Path, link: servers.Proxy, cache: Path, tmp_path: Path
) -> None:
    size = sum(path.stat().st_size for path in (root / "bucket/train").glob("*.lmdb"))
    before = {"files": set(os.listdir("/dev/shm")), "sockets": sockets()}
    pids, seen, checkpoint = [], [list[int]()], tmp_path / "checkpoint"
    for turn, (place, world_size, ending, more) in enumerate(TURNS):
        is_remote = place == "store"
        job = Job(
            "s3://bucket/train" if is_remote else str(root / "bucket/train"),
            {"path": str(cache), "size": int(size * 0.6)} if is_remote else None,
            storage(link.endpoint, retry_timeout=60, timeout=20) if is_remote else None,
            str(checkpoint), str(tmp_path / f"meeting{turn}"),
            stop_at={"": 0, "stop": 9}.get(ending, 24), **more,
        )  # fmt: skip
        training = Training(job, world_size)
        pids += [rank.pid for rank in training.ranks]
        if ending not in ("stop", ""):
            training.until_under_way()
            training.kill(ending)
        ends = training.end()
        is_killed = ending in ("trainer", "both")
        assert all((code != 0) == is_killed for code, _ in ends), (turn, ends)
        seen = json.loads(checkpoint.read_text())["seen"]
        assert (len(seen[-1]) == NUM_SHARDS * PER_SHARD) == (not ending), turn

    for epoch in range(EPOCHS):
        assert sorted(seen[epoch]) == list(range(NUM_SHARDS * PER_SHARD))
    wait_until(lambda: not processes(str(tmp_path)))
    assert not processes(resume_jobs.__file__)
    assert not os.listdir(cache / "v2/parts")
    assert not (cache / "v2/socket").exists()
    held = [*(cache / "v2/shards").glob("??/*")]
    assert sum(path.stat().st_size for path in held) <= 0.6 * size
    assert all(hash_file(path) == path.stem for path in held)
    assert not is_left(set(os.listdir("/dev/shm")) - before["files"], pids)
    assert not is_left(sockets() - before["sockets"], pids)
