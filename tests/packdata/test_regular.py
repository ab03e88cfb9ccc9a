"""Reading files by few calls: the bytes are those that ``Path.read_bytes`` gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loaders.errors import SourceError
from packdata.regular import read_regular

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")


@pytest.mark.parametrize("nbytes", [0, 1, 4096, (1 << 20) + 1])
def test_a_file_is_read_whole(tmp_path: Path, nbytes: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(nbytes))

    assert read_regular(file, "file") == file.read_bytes()


@needs_proc
def test_a_file_whose_size_is_not_told_is_read_to_its_end() -> None:
    file = Path("/proc/version")

    assert file.stat().st_size == 0
    assert read_regular(file, "version") == file.read_bytes() != b""


def test_a_file_that_grows_meanwhile_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"begun")
    fstat = os.fstat

    def fstat_before_it_grows(descriptor: int) -> os.stat_result:
        about = fstat(descriptor)
        with file.open("ab") as more:
            more.write(b", and done")
        return about

    monkeypatch.setattr(os, "fstat", fstat_before_it_grows)

    assert read_regular(file, "file") == b"begun, and done"


@needs_proc
def test_nothing_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")

    for name in ("no file", "folder", "pipe"):
        path = tmp_path / name
        if name == "folder":
            path.mkdir()
        if name == "pipe":
            os.mkfifo(path)
        with pytest.raises((OSError, SourceError)):
            read_regular(path, name)

    assert os.listdir("/proc/self/fd") == before
