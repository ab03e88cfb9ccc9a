"""``--engine ray`` into a bucket: the driver is killed, and then two of them finish; a node is killed."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from loaders.data.manifest import read_manifest
from tests.packdata import test_cluster
from tests.packdata.recipes import contents
from tests.remote.conftest import Store
from tests.waiting import wait_until

NUM_PARTS, NUM_FILES = 8, 64
PACKS = {
    "images": "images SRC DST --shard-size 32kB --shuffle 0",
    "tokens": "tokens SRC DST --documents line --shard-size 1MB --shuffle 7",
    "tables": "tables SRC DST --target b --shard-size 64kB --shuffle 7",
}


def make_source(kind: str, place: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(NUM_FILES):
        folder = place if kind == "tables" else place / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (60, 60, 3), np.uint8)
        if kind == "images":
            cv2.imwrite(str(folder / f"{i:02}.png"), pixels)
        elif kind == "tables":
            rows = "".join(f"{j},{i},{j % 7}\n" for j in range(9_000))
            (folder / f"{i:02}.csv").write_text(f"a,b,c\n{rows}")
        else:  # of eight a piece
            line = pixels.tobytes().hex() + "\n"
            (folder / f"{i:02}.txt").write_text(line * (600_000 // len(line)))


def assert_same(there: Path, calm: Path) -> None:
    """Assert that a dataset of a bucket is that of a folder, and that nothing else is there."""
    one, other = read_manifest(there), read_manifest(calm)
    assert one.fingerprint == other.fingerprint
    assert [s.xxh3_128 for s in one.shards] == [s.xxh3_128 for s in other.shards]
    shards = (shard.file for shard in one.shards)
    assert {*contents(there)} == {"manifest.json", *shards, *one.schema.files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKS)
def test_a_driver_that_is_killed_and_two_that_go_on_make_what_parts_make(
    kind: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    make_source(kind, store.root / "raw")
    shutil.copytree(store.root / "raw", tmp_path / "raw")
    pack = PACKS[kind].replace("SRC", "s3://raw").replace("DST", "s3://out/packed").split()
    ray = ["--engine", "ray", "--parts", f"{NUM_PARTS}", *store.options]
    given = {"RAY_USAGE_STATS_ENABLED": "0"}
    there = store.root / "out" / "packed"

    def start() -> subprocess.Popen[str]:
        env, pipe = os.environ | given, subprocess.PIPE
        command = [sys.executable, "-m", "packdata", *pack, *ray]
        return subprocess.Popen(command, env=env, stderr=pipe, text=True)

    store.proxy.set(latency_s=0.05)
    killed = start()
    try:
        wait_until(lambda: [*there.glob(".parts/part-*")] or killed.poll() is not None, 120)
    finally:
        killed.kill()
        told = killed.communicate()[1]
    assert killed.returncode == -9, told
    assert not [*there.glob("manifest.json")]
    both = [start(), start()]
    errors = [process.communicate(timeout=200)[1] for process in both]

    assert [process.returncode for process in both] == [0, 0], errors
    items = NUM_PARTS if kind == "tokens" else NUM_FILES
    told = f"{items} items in {NUM_PARTS} parts, on 1 node"
    assert any(told in error for error in errors), errors
    store.proxy.set()
    monkeypatch.chdir(tmp_path)
    test_cluster.pack_calmly(PACKS[kind].replace("SRC", "raw"), "calm", NUM_PARTS)
    assert_same(there, tmp_path / "calm")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "tokens"])
def test_a_node_that_is_killed_costs_no_part_of_a_bucket(
    kind: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    test_cluster.make_source(kind, tmp_path)
    words = test_cluster.PACKS[kind].replace("DST", "s3://out/packed").split()
    staging = tmp_path / "tmp" / f"packdata-{os.getuid()}"
    staging.parent.mkdir()

    done = test_cluster.run_on_three(
        tmp_path,
        test_cluster.DRIVER,
        [*words, "--parts", f"{test_cluster.NUM_PARTS}", *store.options],
        LOCKS=f"{staging}/*/made/.packing/lock",
        TMPDIR=str(staging.parent),
        RAY_TMPDIR=tempfile.gettempdir(),  # whose sockets take short names
    )

    assert done.returncode == 0, done.stderr
    assert "begun: 3" in done.stdout
    test_cluster.pack_calmly(test_cluster.PACKS[kind], "calm")
    assert_same(store.root / "out" / "packed", tmp_path / "calm")
