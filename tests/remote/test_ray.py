"""``--engine ray`` from a bucket into a bucket: the driver is killed, and then two of them finish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from loaders.data.manifest import read_manifest
from packdata.cli import main
from tests.packdata.recipes import contents
from tests.remote.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.remote.conftest import Store

NUM_PARTS, NUM_PICTURES = 8, 64


@pytest.mark.slow
def test_a_driver_that_is_killed_and_two_that_go_on_make_what_parts_make(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    rng = np.random.default_rng(0)
    for i in range(NUM_PICTURES):
        folder = store.root / "raw" / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{i:02}.png"), rng.integers(0, 256, (60, 60, 3), np.uint8))
    shutil.copytree(store.root / "raw", tmp_path / "raw")
    pack = ["images", "s3://raw", "s3://out/packed", "--shard-size", "32kB"]
    command = [
        sys.executable,
        "-m",
        "packdata",
        *pack,
        "--engine",
        "ray",
        "--parts",
        f"{NUM_PARTS}",
    ]
    given = {"RAY_USAGE_STATS_ENABLED": "0"}
    there = store.root / "out" / "packed"

    def start() -> subprocess.Popen[str]:
        env, pipe = os.environ | given, subprocess.PIPE
        return subprocess.Popen([*command, *store.options], env=env, stderr=pipe, text=True)

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
    told = f"in {NUM_PARTS} parts, on 1 node"
    assert any(f"{NUM_PICTURES} items of " in error and told in error for error in errors)
    store.proxy.set()
    monkeypatch.chdir(tmp_path)
    calm = ["images", "raw", "calm", "--shard-size", "32kB", "--shuffle", "0"]
    for i in range(NUM_PARTS):
        assert main([*calm, "--part", f"{i}/{NUM_PARTS}"]) == 0
    assert main(["finish", "calm"]) == 0
    one, other = read_manifest(there), read_manifest("calm")
    assert one.fingerprint == other.fingerprint
    assert [s.xxh3_128 for s in one.shards] == [s.xxh3_128 for s in other.shards]
    assert {*contents(there)} == {"manifest.json", *(shard.file for shard in one.shards)}
