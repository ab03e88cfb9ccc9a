"""Uploads that nobody finishes: ``finish`` ends those of what it publishes, whoever may still be sending it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from loaders.data.manifest import read_manifest
from packdata.cli import main
from tests.remote import servers
from tests.remote.conftest import SETTINGS, ended, fetcher_of
from tests.remote.test_packing import shards_at
from tests.waiting import wait_until

OUT = "s3://out/packed"


class Bucket:
    """A bucket of a server that lists uploads, and machines that pack into it, each with a cache of its own."""

    def __init__(self, place: Path, endpoint: str) -> None:
        self.place, self.endpoint = place, endpoint
        key, secret = servers.SECRET["access_key_id"], servers.SECRET["secret_access_key"]
        self.secrets = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    def uploads(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket="out")
        return sorted(each["Key"] for each in found.get("Uploads", ()))

    def run(self, cache: Path, *words: str) -> subprocess.Popen[str]:
        (cache.parent / f"{cache.name}-tmp").mkdir(exist_ok=True)
        env = os.environ | self.secrets | {"TMPDIR": str(cache.parent / f"{cache.name}-tmp")}
        given = SETTINGS | {"endpoint": self.endpoint, "skip_signature": False, "timeout": 30}
        options = [f"--storage={name}={value}" for name, value in given.items()]
        command = [sys.executable, "-m", "packdata", *words, *options, f"--cache={cache}"]
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)

    def done(self, cache: Path, *words: str) -> None:
        process = self.run(cache, *words)
        error = process.communicate(timeout=120)[1]
        assert not process.returncode, error

    def stopped(self, cache: Path, *words: str) -> tuple[subprocess.Popen[str], int]:
        """Run a command until it has begun to send, and stop its fetcher there; return both."""
        before, process, pid = self.uploads(), self.run(cache, *words), 0

        def is_stopped() -> bool:
            nonlocal pid
            assert process.poll() is None, process.communicate()
            if self.uploads() == before:
                return False
            pid = fetcher_of(cache)
            os.kill(pid, signal.SIGSTOP)
            if self.uploads() != before:
                return True
            os.kill(pid, signal.SIGCONT)  # it was finished right now
            return False

        wait_until(is_stopped, 60)
        return process, pid


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    (tmp_path / "root" / "out").mkdir(parents=True)
    with servers.signed_bucket(tmp_path / "root") as endpoint:
        yield Bucket(tmp_path, endpoint)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Eight arrays of 10 MB: four shards, each of three parts of an upload."""
    rng = np.random.default_rng(0)
    (tmp_path / "scans").mkdir()
    for i in range(8):
        np.save(tmp_path / "scans" / f"{i}.npy", rng.integers(0, 256, 10 << 20, np.uint8))
    return tmp_path / "scans"


@pytest.mark.slow
def test_finish_ends_killed_uploads_of_its_shards_and_a_twin_that_sends_one_is_done(
    bucket: Bucket, scans: Path, tmp_path: Path
) -> None:
    pack = ["arrays", str(scans), OUT, "--shard-size", "20MB", "--workers", "1", "--part"]
    for i in range(2):
        assert main([*pack[:2], str(tmp_path / "local"), *pack[3:], f"{i}/2"]) == 0
    assert main(["finish", str(tmp_path / "local")]) == 0
    with ended(tmp_path / "one") as one, ended(tmp_path / "other") as other:
        killed, fetcher = bucket.stopped(one, *pack, "0/2")
        killed.kill()
        os.kill(fetcher, signal.SIGKILL)
        killed.communicate()
        twin, fetcher = bucket.stopped(other, *pack, "1/2")
        begun = bucket.uploads()
        bucket.client.create_multipart_upload(Bucket="out", Key="packed/shard-9")

        for i in range(2):
            bucket.done(one, *pack, f"{i}/2")
        assert {*begun} <= {*bucket.uploads()}
        bucket.done(one, "finish", OUT)

        assert bucket.uploads() == ["packed/shard-9"]
        os.kill(fetcher, signal.SIGCONT)
        error = twin.communicate(timeout=60)[1]
        assert twin.returncode == 0, error
        bucket.done(one, "finish", OUT)
        assert bucket.uploads() == ["packed/shard-9"]
    there = tmp_path / "root" / "out" / "packed"
    manifest = read_manifest(there)
    assert manifest.fingerprint == read_manifest(tmp_path / "local").fingerprint
    assert shards_at(there) == shards_at(tmp_path / "local")
    assert {path.name for path in there.iterdir()} - {".parts"} == {
        "manifest.json",
        *(shard.file for shard in manifest.shards),
    }
