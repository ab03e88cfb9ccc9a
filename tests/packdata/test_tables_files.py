"""Which files a table is made of: each once, and what a folder holds beside them is told."""

import errno
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loaders.errors import PackError, SourceError
from packdata import Summary, pack_images, pack_tokens
from packdata.cli import main
from packdata.tables import pack_tables, plan_tables
from tests.refusals import At


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a table of one row."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("x\n1\n")
    return tmp_path / "in"


def test_what_a_folder_holds_beside_tables_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sub", "other", ".hidden"):
        (folder / name).mkdir()
        (folder / name / "b.csv").write_text("x\n2\n")
    for name in ("readme.txt", "notes.TXT", "LICENSE", "archive.zip", ".DS_Store"):
        (folder / name).write_text("words")
    told = "skipped: 1 without suffix, 1 .zip, 2 .txt, 2 folders"

    summary = pack_tables(folder, tmp_path / "out")

    assert summary.samples == 1
    assert summary.notes == (told,)
    assert str(plan_tables([folder])).endswith(told)
    assert main(["tables", str(folder), str(tmp_path / "b"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [told]
    assert pack_tables(folder / "a.csv", tmp_path / "c").notes == ()


@pytest.mark.parametrize(
    "log",
    [
        "_delta_log/00000000000000000000.json",
        "metadata/v1.metadata.json",
        "metadata/00001-0c8a.metadata.json",
        ".hoodie/hoodie.properties",
    ],
)
@pytest.mark.parametrize("pack", [pack_tables, pack_tokens, pack_images])
def test_a_table_whose_log_says_which_files_count_is_refused(
    tmp_path: Path, pack: Callable[..., Summary], log: str
) -> None:
    """What Delta Lake deletes or writes anew stays in the folder: its rows came back, or came twice."""
    (tmp_path / "in" / log).parent.mkdir(parents=True)
    (tmp_path / "in" / log).write_text("{}")
    for name in ("before", "after"):
        pd.DataFrame({"text": ["a"], "x": [1]}).to_parquet(tmp_path / f"in/{name}.parquet")

    with pytest.raises(SourceError, check=At(tmp_path / "in")) as caught:
        pack(tmp_path / "in", tmp_path / "out")

    assert log.split("/")[0] in caught.value.what
    assert pack_tables(f"{tmp_path}/in/*.parquet", tmp_path / "all").samples == 2


@pytest.mark.parametrize("log", ["_delta_log/00000.json", "metadata/v1.metadata.json"])
def test_such_a_table_below_a_folder_of_texts_is_refused(tmp_path: Path, log: str) -> None:
    table = tmp_path / "in/table"
    (table / log).parent.mkdir(parents=True)
    (table / log).write_text("{}")
    pd.DataFrame({"text": ["a"], "x": [1]}).to_parquet(table / "a.parquet")

    with pytest.raises(SourceError, check=At(table)):
        pack_tokens(tmp_path / "in", tmp_path / "out")
    assert pack_tables(table / "a.parquet", tmp_path / "file").samples == 1


def test_a_compressed_table_of_a_folder_is_read(folder: Path, tmp_path: Path) -> None:
    (folder / "c.csv.gz").write_bytes(gzip.compress(b"x\n3\n"))

    assert pack_tables(folder, tmp_path / "packed").samples == 2
    assert pack_tables(f"{folder}/*.csv", tmp_path / "named").samples == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_folder_of_folders_is_told_how_their_tables_are_taken(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "in/2024").mkdir(parents=True)
    pd.DataFrame({"x": [1]}).to_csv(tmp_path / "in/2024/a.csv", index=False)
    if suffix == "parquet":
        pd.read_csv(tmp_path / "in/2024/a.csv").to_parquet(tmp_path / "in/2024/a.parquet")
        (tmp_path / "in/2024/a.csv").unlink()

    with pytest.raises(SourceError, check=At("in")):
        pack_tables(tmp_path / "in", tmp_path / "out")

    assert pack_tables(f"{tmp_path}/in/**/*.{suffix}", tmp_path / "out").samples == 1


@pytest.mark.parametrize("second", ["in/../in/a.csv", "link.csv", "in/a.csv.gz", "in", "in/*.csv"])
def test_a_file_that_is_named_twice_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """Also by a link, compressed, or by its folder: its rows would come twice."""
    (tmp_path / "link.csv").symlink_to(folder / "a.csv")
    monkeypatch.chdir(tmp_path)
    if second.endswith(".gz"):
        (folder / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n"))

    with pytest.raises(SourceError, check=At("")):
        pack_tables([folder / "a.csv", second], tmp_path / "out")
    assert pack_tables([folder / "a.csv"], tmp_path / "out").samples == 1


@pytest.mark.parametrize("name", ["b.jsonl", "0.ndjson.gz"])
def test_json_lines_beside_other_tables_are_refused(
    folder: Path, tmp_path: Path, name: str
) -> None:
    """What a line lacks is missing there, and an error in the others."""
    line = b'{"x": 2}\n'
    (folder / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)

    with pytest.raises(SourceError, check=At(f"in/{name}")):
        pack_tables(folder, tmp_path / "out")
    assert pack_tables(folder / name, tmp_path / "out").samples == 1


def test_a_file_that_is_no_table_is_an_error_before_the_first_is_read(tmp_path: Path) -> None:
    for i in range(9):
        (tmp_path / f"{i}.jsonl").write_text("{\n")
    (tmp_path / "9.jsonl").write_text("")

    with pytest.raises(SourceError, check=At("9.jsonl")):
        plan_tables([tmp_path], workers=1)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.jsonl.gz"])
def test_where_a_copy_has_no_room_the_folder_of_copies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / name).write_bytes(gzip.compress(b'{"a": 1}\n'))
    monkeypatch.setattr("shutil.copyfileobj", full)

    with pytest.raises(PackError, check=At(tempfile.gettempdir())):
        pack_tables(tmp_path / name, tmp_path / "out")
