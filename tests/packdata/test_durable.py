"""A shard is on disk before anybody hears of it."""

import errno
import os
from pathlib import Path

import pytest

from loaders.schema import Label
from packdata.formats import write_shard
from tests.columns import fixed_column
from tests.refusals import At


@pytest.fixture(params=["lmdb", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"shard-00000.{request.param}"


def test_a_shard_is_synced_after_its_last_byte_was_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def watch(fd: int) -> None:
        stat = os.fstat(fd)
        synced.append((stat.st_ino, stat.st_mtime_ns))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watch)

    write_shard(path, {"label": fixed_column([bytes(8)] * 3, 8)}, {"label": Label()})

    stat = path.stat()
    assert (stat.st_ino, stat.st_mtime_ns) in synced


def test_a_shard_that_the_disk_refuses_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(OSError, check=At(errno=errno.EIO)):
        write_shard(path, {"label": fixed_column([bytes(8)] * 3, 8)}, {"label": Label()})
