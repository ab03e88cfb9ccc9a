"""Wrong use of the commands: one clear error that names what was found, the right status, and nothing written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from packdata.cli import main
from packdata.partition import split_indices
from packdata.reader import PackedReader
from tests.packdata.command_sources import make_sources
from tests.packdata.packing import pack_samples

USAGE = [
    ("split packed {dst} --parts a=0.9 b=0.2", "together at most 1"),
    ("split packed {dst} --parts a=0.9 --by key-hash --stratify label", "it cannot stratify"),
    ("split stream {dst} --parts a=0.5 --stratify label", "divide them by shuffle"),
    ("split packed {dst} --parts a=0.9 --format parquet --shard-size 1GB", "shard_bytes must be in"),
]  # fmt: skip

DATA = [
    ("split packed {dst} --parts a=0.5 --stratify image", "field 'image' is no label or whole number"),
    ("split packed {dst} --parts a=0.01 b=0.9", "part 'a' would be empty. Give it a larger share"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(autouse=True)
def sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def run(line: str, dst: Path) -> int:
    try:
        return main([word.format(dst=dst) for word in shlex.split(line)])
    except SystemExit as exit:
        return int(exit.code or 0)


def there(*folders: Path) -> dict[str, int]:
    """Return every file and folder, files with the time of their last change."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    return {str(path): path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


@pytest.mark.parametrize(
    ("line", "status", "what"),
    [*((line, 2, what) for line, what in USAGE), *((line, 1, what) for line, what in DATA)],
)
def test_wrong_use_is_one_error_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, status: int, what: str
) -> None:
    before = there(Path(), tmp_path)

    assert run(line, tmp_path / "dst") == status

    out, err = capsys.readouterr()
    assert out == ""
    error, *rest = err.splitlines()
    command = line.split()[0]
    assert error.startswith(f"packdata {command}: error: " if status == 2 else "packdata: ")
    assert what in error
    assert len(rest) <= 1
    assert there(Path(), tmp_path) == before


def test_a_part_that_cannot_be_read_leaves_none_of_the_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = pack_samples(tmp_path / "packed", 8, fields=["label", "key"], per_shard=1)
    _, second = split_indices(PackedReader(damaged), [0.5, 0.5])
    (damaged / f"shard-{second[-1]:05}.lmdb").unlink()

    assert run(f"split {damaged} {{dst}}/halves --parts a=0.5 b=0.5", tmp_path / "dst") == 1

    assert "the shard is missing" in capsys.readouterr().err
    assert not (tmp_path / "dst").exists()
