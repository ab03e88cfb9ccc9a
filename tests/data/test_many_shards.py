"""A dataset of many shards opens soon, and is read whatever the system lets be open and mapped."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders import DataLoader, ShardDataset
from loaders.data.manifest import read_manifest
from loaders.data.store import Store
from loaders.errors import ShardError
from loaders.schema import Array
from loaders.system.limits import most_maps
from packdata.cli import main
from tests.manifests import put_manifest

ROWS, WIDTH = 8, 16


def many(folder: Path, num_shards: int, width: int = WIDTH) -> Path:
    """A dataset of that many shards, of 4 contents: the files are links."""
    rows = np.arange(4 * ROWS * width, dtype=np.int32).reshape(-1, width)
    few = folder / "few"
    size = ROWS * (4 * width)
    fields = {"values": Array(dtype="int32", dims=(width,))}
    packdata.pack(({"values": row} for row in rows), few, fields, shard_bytes=size)
    manifest, target = read_manifest(few), folder / "many"
    target.mkdir()
    shards = []
    for number in range(num_shards):
        shard = manifest.shards[number % 4]
        source = few / shard.file
        if number >= 4 and source.stat().st_nlink > 60_000:  # what a file system allows
            source.rename(few / "full")
            source.write_bytes((few / "full").read_bytes())
            (few / "full").unlink()
        name = f"shard-{number:06}.lmdb"
        os.link(source, target / name)
        shards.append(shard._replace(file=name))
    put_manifest(target, replace(manifest, shards=tuple(shards)))
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many(tmp_path_factory.mktemp("many"), 300)


def test_all_orders_read_more_shards_than_files_may_be_open(folder: Path) -> None:
    dataset = ShardDataset(folder)
    most = len(os.listdir("/proc/self/fd")) + 40
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        firsts = [_firsts(dataset, shuffle) for shuffle in (True, "block", "lanes", False)]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most  # it was not raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert all(sorted(each) == sorted(firsts[-1]) for each in firsts)
    assert len(firsts[-1]) == 300 * ROWS


def test_where_no_file_may_be_opened_the_error_names_the_limit(folder: Path) -> None:
    dataset, before = ShardDataset(folder), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        with pytest.raises(ShardError) as caught:
            dataset.view.store.shard(5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert caught.value.path == folder / "shard-000005.lmdb"
    assert "ulimit" in caught.value.hint


def _firsts(dataset: ShardDataset, shuffle: Any) -> list[int]:
    loader = DataLoader(dataset, 100, shuffle=shuffle, num_workers=2)
    return [int(first) for batch in loader for first in batch.values[:, 0]]


@pytest.mark.parametrize("most", [1, 7, 100])
def test_no_more_shards_are_mapped_than_a_store_may(folder: Path, most: int) -> None:
    store = ShardDataset(folder).view.store
    bounded = Store(store.shards, max_open=most)
    rows = store.rows(np.random.default_rng(0).permutation(len(store))[:50])
    wanted, got = np.empty((2, 50, 4 * WIDTH), np.uint8)
    store.gather("values", rows, wanted)

    for first in range(0, 50, 5):
        part = slice(first, first + 5)
        bounded.gather("values", rows[part], got[part])
        assert sum(shard is not None for shard in bounded._open) <= max(most, 5)

    assert (got == wanted).all()


def test_a_quarter_of_the_maps_that_the_kernel_allows_are_one_readers(tmp_path: Path) -> None:
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/max_map_count").write_text("65530\n")

    assert most_maps(100, tmp_path) is None
    assert most_maps(16_000, tmp_path) is None
    assert most_maps(100_000, tmp_path) == 16_382
    assert most_maps(100_000, tmp_path / "nowhere") is None


def test_merge_makes_few_shards_of_many(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["merge", str(folder), str(folder), str(tmp_path / "few"), "--shard-size", "64K"]

    assert main([*command, "--json"]) == 0

    made = json.loads(capsys.readouterr().out)
    total = 2 * 300 * ROWS * WIDTH * 4
    assert total / 65536 <= made["shards"] <= total / 65536 + 2
    assert made["samples"] == 2 * 300 * ROWS
    both, few = ShardDataset(folder), ShardDataset(tmp_path / "few")
    assert (few[len(both) + 77].values == both[77].values).all()


@pytest.mark.slow
def test_100_000_shards_open_in_3_s_and_300_mb_and_are_read_in_every_order(tmp_path: Path) -> None:
    script = """
import resource, sys, time
from loaders import DataLoader, ShardDataset
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
dataset = ShardDataset(sys.argv[1])
seconds = time.process_time() - began
print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
for shuffle in (True, "block", "lanes", False):
    batches = iter(DataLoader(dataset, 64, shuffle=shuffle, num_workers=2))
    for _ in range(20):
        assert len(next(batches).values) == 64
    del batches
"""
    command = [sys.executable, "-c", script, str(many(tmp_path, 100_000))]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=600, check=True)

    seconds, mb = map(float, done.stdout.split())
    assert seconds < 3  # of this process alone; 1.4 where little else runs
    assert mb < 300
