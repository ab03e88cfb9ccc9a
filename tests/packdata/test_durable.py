"""A shard is on disk before anybody hears of it."""

import errno
import os
from pathlib import Path

import pytest

from loaders.data.manifest import read_manifest
from loaders.schema import Label
from packdata.formats import write_shard
from packdata.packed.derive import merge
from tests.columns import fixed_column
from tests.packdata.breaking import no_links
from tests.packdata.packing import pack_samples
from tests.refusals import At


@pytest.fixture(params=["lmdb", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"shard-00000.{request.param}"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which files were synced, and when they had been changed last."""
    found: list[tuple[int, int]] = []
    fsync = os.fsync

    def watch(fd: int) -> None:
        stat = os.fstat(fd)
        found.append((stat.st_ino, stat.st_mtime_ns))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watch)
    return found


def test_a_shard_is_synced_after_its_last_byte_was_written(
    path: Path, synced: list[tuple[int, int]]
) -> None:
    write_shard(path, {"label": fixed_column([bytes(8)] * 3, 8)}, {"label": Label()})

    stat = path.stat()
    assert (stat.st_ino, stat.st_mtime_ns) in synced


def test_so_is_one_that_is_copied(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pack_samples(tmp_path / "src", 3)
    no_links(monkeypatch)
    merge(tmp_path / "dst", [folder])

    for shard in read_manifest(tmp_path / "dst").shards:
        stat = (tmp_path / "dst" / shard.file).stat()
        assert (stat.st_ino, stat.st_mtime_ns) in synced


def test_a_shard_that_the_disk_refuses_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(OSError, check=At(errno=errno.EIO)):
        write_shard(path, {"label": fixed_column([bytes(8)] * 3, 8)}, {"label": Label()})
