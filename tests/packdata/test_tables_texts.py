"""Texts of tables that others read as something else: NA is missing among numbers, and a country among countries."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.errors import SourceError
from packdata.tables import pack_tables, plan_tables
from tests.packdata.reading import PackedReader
from tests.refusals import At

SUFFIXES = ["csv", "jsonl", "parquet", "feather"]


def write(folder: Path, cells: Sequence[str], suffix: str = "csv", name: str = "t") -> Path:
    """Write a column ``c`` of texts, where nothing is an empty cell or null, and one ``x`` of numbers."""
    path, numbers = folder / f"{name}.{suffix}", range(len(cells))
    if suffix == "csv":
        path.write_text(
            "c,x\n" + "".join(f"{c},{x}\n" for c, x in zip(cells, numbers, strict=True))
        )
    elif suffix == "jsonl":
        rows = [{"c": c or None, "x": x} for c, x in zip(cells, numbers, strict=True)]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        table = pa.table({"c": [c or None for c in cells], "x": list(numbers)})
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    return path


def packed(folder: Path, source: Any, **options: Any) -> PackedReader:
    pack_tables(source, folder / "out", **options)
    return PackedReader(folder / "out")


def words_of(reader: PackedReader) -> list[str]:
    """Return the texts of the one column of categories; ``?`` where there is none."""
    field: Any = reader.schema.fields["categories"]
    words = ("?", *field.vocabularies[0])
    return [words[code] for code in reader.column("categories")[:, 0]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_na_among_texts_is_a_text(tmp_path: Path, suffix: str) -> None:
    cells = ["NA", "DE", "null", "", "nan", "N/A", "NA"]
    source = write(tmp_path, cells, suffix)

    pack_tables(source, tmp_path / "out")

    assert words_of(PackedReader(tmp_path / "out")) == [c or "?" for c in cells]


NA_AMONG = {
    "numbers": (["1", "NA", "2.5", "null", "", "nan"], [1, np.nan, 2.5, np.nan, np.nan, np.nan]),
    "plus": (["+1", "NA", "2.5", "n/a"], [1, np.nan, 2.5, np.nan]),
    "flags": (["true", "NA", "False", "NULL"], [1, np.nan, 0, np.nan]),
    "days": (["1970-01-02", "NA", "1970-01-03", ""], [1, np.nan, 2, np.nan]),
    "zones": (["1970-01-02T00:00:00Z", "#N/A"], [1, np.nan]),
}
DATES = ("days", "zones")
NUMBERS = ("numbers", "plus")


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        *((kind, "csv") for kind in NA_AMONG),
        *((kind, "jsonl") for kind in (*NUMBERS, *DATES)),
        *((kind, suffix) for kind in NUMBERS for suffix in ("parquet", "feather")),
    ],
)
def test_na_among_others_than_texts_is_missing(tmp_path: Path, suffix: str, kind: str) -> None:
    cells, expected = NA_AMONG[kind]
    source = write(tmp_path, cells, suffix)
    options: dict[str, Any] = {"missing": "nan", "dates": "days"}
    if suffix != "csv" and kind in NUMBERS:
        options["numeric"] = ("c",)

    reader = packed(tmp_path, source, **options)

    np.testing.assert_array_equal(reader.column("features")[:, 0], expected)
    notes = plan_tables([source], **options).notes()
    assert notes == []


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "feather"])
@pytest.mark.parametrize("dates", [None, "days"])
@pytest.mark.parametrize(
    "cells", [["01234", "1234", "01234"], ["true", "false"], ["1", "2.5", "NA"], ["1e400", "0x10"]]
)
def test_what_a_file_declares_to_be_text_is_text(
    tmp_path: Path, suffix: str, cells: list[str], dates: str | None
) -> None:
    reader = packed(tmp_path, write(tmp_path, cells, suffix), dates=dates)

    assert words_of(reader) == cells


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "feather"])
def test_dates_of_texts_are_texts_where_the_file_could_say_dates_or_nobody_asks(
    tmp_path: Path, suffix: str
) -> None:
    source = write(tmp_path, ["2020-01-01", "2020-01-02"], suffix)
    pack_tables(source, tmp_path / "asked", dates="days")

    assert words_of(packed(tmp_path, source)) == ["2020-01-01", "2020-01-02"]
    asked = PackedReader(tmp_path / "asked").schema.fields
    assert ("categories" in asked) == (suffix != "jsonl")


@pytest.mark.parametrize("small", [True, False], ids=["parts", "whole"])
def test_numbers_of_csv_that_begin_with_zeros_are_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if small:
        monkeypatch.setattr("packdata.rows.PART_BYTES", 60)
    cells = [*(["90210", "10115.50"] * 20), "01234", "", "1234"]
    source = write(tmp_path, cells)

    summary = pack_tables(source, tmp_path / "out")

    assert words_of(PackedReader(tmp_path / "out")) == [cell or "?" for cell in cells]
    assert summary.notes == ("missing values: c (1)",)
    numbers = packed(tmp_path / "out", source, numeric=("c",), missing="nan").column("features")
    assert numbers[-3:, 0].tolist()[::2] == [1234, 1234]


@pytest.mark.parametrize("cells", [["0", "0.5", "-0.5", "0e1", "10"], ["-0", "0"]])
def test_a_zero_alone_begins_nothing(tmp_path: Path, cells: list[str]) -> None:
    rows = packed(tmp_path, write(tmp_path, cells)).column("features")[:, 0]

    assert rows.tolist() == [float(cell) for cell in cells]


def test_numbers_with_zeros_and_signs_are_names_too(tmp_path: Path) -> None:
    assert words_of(packed(tmp_path, write(tmp_path, ["+07", "-1", "2"]))) == ["+07", "-1", "2"]


@pytest.mark.parametrize(("suffix", "place"), [("csv", "line 4"), ("parquet", "row 2")])
def test_na_among_others_than_texts_is_named_where_nothing_may_be_missing(
    tmp_path: Path, suffix: str, place: str
) -> None:
    source = write(tmp_path, ["1", "2", "NA"], suffix)

    with pytest.raises(SourceError, check=At(f"t.{suffix}, {place}")):
        pack_tables(source, tmp_path / "out", numeric=("c",))


@pytest.mark.parametrize("small", [True, False], ids=["parts", "whole"])
@pytest.mark.parametrize("cells", [["NA"] * 40, ["", "NA"] * 20, ["null", "NA"] * 20])
@pytest.mark.parametrize("last", ["DE", "true or false"])
def test_a_part_of_nothing_but_na_is_of_texts_if_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[str], last: str, small: bool
) -> None:
    if small:
        monkeypatch.setattr("packdata.rows.PART_BYTES", 60)

    reader = packed(tmp_path, write(tmp_path, [*cells, last]))

    assert words_of(reader) == [c or "?" for c in (*cells, last)]


@pytest.mark.parametrize(("last", "expected"), [("7", 7), ("true", 1)])
def test_a_part_of_nothing_but_na_is_missing_if_others_are_no_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, expected: float
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 60)
    source = write(tmp_path, [*(["NA"] * 40), last])

    with pytest.raises(SourceError, check=At("t.csv, line 2")):
        pack_tables(source, tmp_path / "out")
    reader = packed(tmp_path, source, missing="nan")

    np.testing.assert_array_equal(reader.column("features")[:, 0], [np.nan] * 40 + [expected])


def test_a_column_of_nothing_but_na_has_no_value_unless_it_is_of_categories(
    tmp_path: Path,
) -> None:
    source = write(tmp_path, ["NA", "NA"])

    with pytest.raises(SourceError, check=At("t.csv")):
        pack_tables(source, tmp_path / "out", missing="nan")
    assert words_of(packed(tmp_path, source, categorical=("c",))) == ["NA", "NA"]


def test_na_among_classes_that_are_numbers_is_none_in_csv(tmp_path: Path) -> None:
    source = write(tmp_path, ["10", "2", "NA", "2"])
    options: dict[str, Any] = {"target": ("c",), "categorical": ("c",), "on_error": "skip"}

    reader = packed(tmp_path, source, **options)

    assert reader.schema.fields["c"].to_json()["classes"] == ["2", "10"]
    assert reader.column("features")[:, 0].tolist() == [0, 1, 3]


def test_a_class_may_be_called_na(tmp_path: Path) -> None:
    source = write(tmp_path, ["none", "NA", "some"])

    reader = packed(tmp_path, source, target=("c",))

    assert reader.schema.fields["c"].to_json()["classes"] == ["NA", "none", "some"]


@pytest.mark.parametrize("options", [{}, {"categorical": ("c",)}], ids=["guessed", "told"])
def test_hexadecimal_numbers_are_texts(tmp_path: Path, options: dict[str, Any]) -> None:
    cells = ["0x1A", "0X2b", "0x1A"]

    assert words_of(packed(tmp_path, write(tmp_path, cells), **options)) == cells


def test_hexadecimal_numbers_among_others_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, ["26", "0x1A", "27"])

    with pytest.raises(SourceError, check=At("t.csv, line 3")):
        pack_tables(source, tmp_path / "out")


def test_numbers_beside_hexadecimal_texts_are_numbers(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("h,n,f\n0x1A,1,1.5\n0x2B,-2,2\n")

    reader = packed(tmp_path, source)

    assert reader.column("features").tolist() == [[1, 1.5], [-2, 2]]
    assert words_of(reader) == ["0x1A", "0x2B"]


@pytest.mark.parametrize(
    ("others", "code"), [(["01234"], "007"), (["01234", "x 05", "1"], "-07"), (["a"], " +07")]
)
def test_zeros_of_one_column_are_not_taken_for_those_of_another(
    tmp_path: Path, others: list[str], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 100)
    rows = [f"{others[i % len(others)]},{i + 1},08:0{i % 9}:00" for i in range(40)]
    plain, zeros = (tmp_path / name for name in ("plain.csv", "zeros.csv"))
    plain.write_text("\n".join(["c,x,t", *rows]))
    zeros.write_text("\n".join(["c,x,t", *rows, f"{others[0]},{code},09:00:00"]))

    kinds = [packed(tmp_path / p.stem, p).schema for p in (plain, zeros)]

    assert "x" in kinds[0].fields["features"].to_json()["columns"]
    assert "x" in kinds[1].fields["categories"].to_json()["columns"]


@pytest.mark.parametrize(("cells", "line"), [(["\xa01", "2"], 2), (["2", "\xa01"], 3)])
def test_blanks_beyond_ascii_make_a_text_of_a_number_wherever_it_is(
    tmp_path: Path, cells: list[str], line: int
) -> None:
    with pytest.raises(SourceError, check=At(f"t.csv, line {line}")):
        pack_tables(write(tmp_path, cells), tmp_path / "out")


def test_a_class_may_have_more_digits_than_python_reads(tmp_path: Path) -> None:
    digits = "9" * 5000
    reader = packed(tmp_path, write(tmp_path, [digits, "1"]), target=("c",), categorical=("c",))

    assert reader.schema.fields["c"].to_json()["classes"] == ["1", digits]


@pytest.mark.parametrize("cells", [["x", "\ufeffx"], ["\ufeffx", "x"]])
@pytest.mark.parametrize("part_bytes", [4, 4 << 20])
def test_a_mark_that_begins_a_cell_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[str], part_bytes: int
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", part_bytes)
    source = tmp_path / "t.csv"
    source.write_text("\ufeffc,x\n" + "".join(f"{cell},1\n" for cell in cells), encoding="utf-8")

    assert words_of(packed(tmp_path, source)) == cells


@pytest.mark.parametrize("part_bytes", [3, 4 << 20])
def test_an_infinite_number_among_names_is_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", part_bytes)

    assert words_of(packed(tmp_path, write(tmp_path, ["01", "NA", "inf"]))) == ["01", "?", "inf"]
