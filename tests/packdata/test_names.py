"""Names that are not UTF-8: folders by such names work, and files where the name must be text are named."""

import json
import os
from pathlib import Path
from typing import Any

import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packdata
from loaders import RAMDataset, ShardDataset
from loaders.errors import SourceError
from loaders.schema import Array, Text
from packdata.cli import main
from packdata.tables import pack_tables
from packdata.tokens.files import list_files
from packdata.tokens.options import TokenOptions
from packdata.tokens.source import TokenSource
from tests.refusals import At


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder by such a name."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ph\xff"))
    folder.mkdir()
    return folder


def save_pictures(folder: Path) -> None:
    for i in range(3):
        PIL.Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i}.png")


def test_pictures_in_an_odd_folder_are_packed_and_bad_ones_listed(
    tmp_path: Path, odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pictures(odd)
    assert main(["images", str(odd), str(tmp_path / "whole")]) == 0
    (odd / "bad.png").write_bytes(b"no picture")

    assert main(["images", str(odd), str(tmp_path / "some"), "--on-error", "skip"]) == 3

    assert len(ShardDataset(tmp_path / "whole")) == len(ShardDataset(tmp_path / "some")) == 3
    (line,) = (tmp_path / "some/rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["item"] == str(odd / "bad.png")
    for command in (["info"], ["info", "--json"]):
        assert main([*command, str(tmp_path / "some")]) == 0
    assert r"ph\udcff" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_a_dataset_may_lie_in_an_odd_folder(odd: Path, format: Any) -> None:
    fields = {"x": Array(dtype="float32"), "t": Text()}
    rows = [{"x": float(i), "t": "t" * i} for i in range(5)]

    packdata.pack(rows, odd / "p", fields, format=format)

    assert ShardDataset(odd / "p").column("x").tolist() == [0, 1, 2, 3, 4]
    assert main(["verify", str(odd / "p")]) == 0
    assert main(["copy", str(odd / "p"), str(odd / "q"), "--where", "x > 2"]) == 0
    assert RAMDataset(odd / "q", progress=False)[0].t == "ttt"


def test_tables_in_an_odd_folder_are_packed_and_bad_rows_listed(tmp_path: Path, odd: Path) -> None:
    (odd / "t.csv").write_text("a,b\n1,2\n3\n")

    summary = pack_tables(odd / "t.csv", tmp_path / "p", on_error="skip")

    assert (summary.samples, len(summary.rejected)) == (1, 1)
    assert "line 3" in (tmp_path / "p/rejected.jsonl").read_text()


def test_files_that_pyarrow_must_open_are_named(tmp_path: Path, odd: Path) -> None:
    table = pa.table({"text": ["a"], "image": [{"bytes": b""}]})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.parquet").rename(odd / "t.parquet")
    (odd / "t.feather").write_bytes(b"ARROW1")

    with pytest.raises(SourceError, check=At("ph\udcff/t.parquet")):
        pack_tables(odd / "t.parquet", tmp_path / "p")
    with pytest.raises(SourceError, check=At("ph\udcff/t.feather")):
        pack_tables(odd / "t.feather", tmp_path / "p")
    with pytest.raises(SourceError, check=At("ph\udcff/t.parquet")):
        TokenSource(list_files([odd / "t.parquet"])[0], TokenOptions())
    assert main(["images", str(odd / "t.parquet"), str(tmp_path / "p")]) == 1


@pytest.mark.parametrize("half", [r"\ud800", r"\udcff", r"\uDFFF"])
@pytest.mark.parametrize("column", ["path", "label", "note"])
def test_half_a_surrogate_pair_in_a_list_is_named_with_its_line(
    tmp_path: Path, half: str, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pictures(tmp_path)
    values = {"path": "0.png", "label": "a", "note": "😀"} | {column: f"{half}.png"}
    row = "{" + ", ".join(f'"{name}": "{value}"' for name, value in values.items()) + "}\n"
    good = '{"path": "1.png", "label": "a", "note": "\\ud83d\\ude00"}\n'
    (tmp_path / "l.jsonl").write_text(good + row)

    assert main(["images", str(tmp_path / "l.jsonl"), str(tmp_path / "p")]) == 1

    assert "l.jsonl, line 2: not JSON (half of a" in capsys.readouterr().err


def test_a_picture_by_an_odd_path_is_named(odd: Path) -> None:
    save_pictures(odd)

    with pytest.raises(SourceError, check=At("ph\\udcff/0.png'")):
        RAMDataset.from_files([odd / "0.png"])
