"""Tables that are not as they should be: a right answer, or an error that says file, line and remedy."""

import datetime
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from loaders.errors import SchemaError, SourceError
from packdata.parsing import arrow_lines
from packdata.tables import pack_tables, plan_tables
from packdata.types import shown
from tests.packdata.reading import PackedReader
from tests.refusals import At


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def assert_refused(folder: Path, source: Any, place: str, *named: str, **options: Any) -> None:
    """Check that packing ends with an error about a place, which names these, and leaves nothing behind."""
    with pytest.raises(SourceError, check=At(place)) as caught:
        pack_tables(source, folder / "out", **options)
    assert [each for each in named if each not in str(caught.value)] == []
    assert not (folder / "out").exists()


def packed(folder: Path, source: Any, **options: Any) -> PackedReader:
    pack_tables(source, folder / "out", **options)
    return PackedReader(folder / "out")


def rejected(folder: Path) -> list[str]:
    lines = (folder / "out/rejected.jsonl").read_text().splitlines()
    return [json.loads(line)["error"] for line in lines]


# ------------------------------------------------------------------------------ rows


def test_a_row_with_too_few_or_many_cells_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, 'a,b\n1,"x\ny"\n\n2\n3,z,9\n4,w\n')

    assert_refused(tmp_path, source, "t.csv, line 5")
    reader = packed(tmp_path, source, on_error="skip")

    assert reader.column("features")[:, 0].tolist() == [1, 4]
    assert [error.split(", ")[1] for error in rejected(tmp_path)] == [
        "line 5: the row has 1 cells",
        "line 6: the row has 3 cells",
    ]


def test_quotes_and_line_ends_in_cells_are_kept(tmp_path: Path) -> None:
    cells = ['a "quoted" word', "two\nlines", "a,comma", "crlf\r\nin it", '"', 'end"']
    table = pd.DataFrame({"x": range(6), "text": cells})
    table.to_csv(tmp_path / "t.csv", index=False)

    reader = packed(tmp_path, tmp_path / "t.csv")

    field: Any = reader.schema.fields["categories"]
    words = [field.vocabularies[0][code - 1] for code in reader.column("categories")[:, 0]]
    assert words == cells


def test_line_ends_in_cells_are_kept(tmp_path: Path) -> None:
    cells = [f"a\r\nb{i}" for i in range(10)]
    source = write(tmp_path, "x,y\r\n" + "".join(f'{i},"{c}"\r\n' for i, c in enumerate(cells)))

    field: Any = packed(tmp_path, source).schema.fields["categories"]

    assert field.vocabularies == (tuple(cells),)


def test_a_quote_that_is_never_closed_is_found(tmp_path: Path) -> None:
    source = write(tmp_path, 'a,b\n1,x\n2,"y\n3,z\n')

    assert_refused(tmp_path, source, "t.csv, line 3")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_of_every_system_are_read(tmp_path: Path, end: str) -> None:
    source = write(tmp_path, end.join(["\ufeffa,b", "1,x", "", "2,y"]))

    reader = packed(tmp_path, source)

    assert reader.schema.fields["features"].to_json()["columns"] == ["a"]
    assert reader.column("features")[:, 0].tolist() == [1, 2]


def test_text_that_is_not_utf8_is_named_and_only_such_rows_are_left_out(tmp_path: Path) -> None:
    source = write(tmp_path, "a,b\n1,caf\xe9\n2,tea\n3,caf\xe9\n".encode("latin-1"))

    assert_refused(tmp_path, source, "t.csv, line 2", "'b'", r"caf\xe9", "iconv")
    reader = packed(tmp_path, source, on_error="skip")

    assert reader.column("features")[:, 0].tolist() == [2]
    assert len(rejected(tmp_path)) == 2


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("sep=;\na;b\n1;2\n", "skip_rows=1"),
        ("a,b\ninf,1\n-inf,2\n", "'a'"),
    ],
)
def test_what_a_file_needs_is_said(tmp_path: Path, text: str, remedy: str) -> None:
    assert_refused(tmp_path, write(tmp_path, text), "", remedy)


def test_one_column_of_texts_with_blanks_is_one_column(tmp_path: Path) -> None:
    reader = packed(tmp_path, write(tmp_path, "full name\nAda Lovelace\nAlan Turing\n"))

    assert reader.column("categories").tolist() == [[1], [2]]


def test_one_column_of_texts_with_other_separators_is_one_where_the_comma_is_named(
    tmp_path: Path,
) -> None:
    source, names = write(tmp_path, "hello; world\nfoo bar\n"), ("text",)

    assert_refused(tmp_path, source, "t.csv", "delimiter=';'", names=names)
    reader = packed(tmp_path, source, names=names, delimiter=",")

    assert reader.column("categories").tolist() == [[2], [1]]


def test_lines_are_right_behind_rows_that_were_left_out_and_rejects_in_their_order(
    tmp_path: Path,
) -> None:
    lines = ["a,b", "1,caf\xe9", "inf,x", "2", "3,y", "-inf,z", "4"]
    source = write(tmp_path, "\n".join(lines).encode("latin-1"))

    packed(tmp_path, source, on_error="skip")

    found = [error.partition("t.csv, ")[2].split(" ")[:4] for error in rejected(tmp_path)]
    assert [words[1] for words in found] == ["2:", "3:", "4:", "6:", "7:"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow", ".feather"])
def test_the_first_bad_value_in_the_order_of_the_file_is_named(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 50)
    monkeypatch.setattr("packdata.sources.row_kinds.PART_ROWS", 2)
    values = np.arange(300.0)
    values[[123, 250]] = np.nan
    table, path = pa.table({"a": pa.array(values, from_pandas=True)}), tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("a\n" + "".join("NA\n" if np.isnan(v) else f"{v}\n" for v in values))
    elif suffix == ".jsonl":
        path.write_text("".join("{}\n" if np.isnan(v) else f'{{"a": {v}}}\n' for v in values))
    elif suffix == ".parquet":
        pq.write_table(table, path, row_group_size=40)
    else:
        new = pa.ipc.new_stream if suffix == ".arrow" else pa.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=40)

    place = {".csv": "line 125", ".jsonl": "line 124"}.get(suffix, "row 123")
    assert_refused(tmp_path, path, f"t{suffix}, {place}", "'a'", workers=3)
    packed(tmp_path, path, on_error="skip", workers=3)
    assert f"{place}:" in rejected(tmp_path)[0]


# ------------------------------------------------------------------------------ columns


@pytest.mark.parametrize("most_bytes", [1 << 30, 2000, 0], ids=["kept", "some", "none"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_codes_that_come_late_are_read_as_if_they_were_known(
    tmp_path: Path, suffix: str, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only their columns are read again, some of them in parts with rows that are left out."""
    monkeypatch.setattr("packdata.rows.PART_BYTES", 300)
    monkeypatch.setattr("packdata.tables.files.MOST_BYTES", most_bytes)
    rows = [(i / 4, str(1000 + i % 7), i) for i in range(200)]
    rows[150] = (0.5, "0077", 3)
    if suffix == ".csv":
        lines = ["a,zip,b", *(",".join(map(str, row)) for row in rows)]
        lines[60], lines[170] = "1,2", '1,"x"y,3'
        lines[100] = "1\udcff,1003,5"  # no UTF-8, in a column that is not read again
    else:
        lines = [json.dumps(dict(zip("azb", row, strict=True))) for row in rows]
        lines[60], lines[170] = "{", '{"a": 1'
    text = "\n".join([*lines, ""]).encode(errors="surrogateescape")
    source = write(tmp_path, text, f"t{suffix}")
    name = "zip" if suffix == ".csv" else "z"

    found = packed(tmp_path, source, on_error="skip")
    left_out = rejected(tmp_path)
    known = packed(tmp_path, source, on_error="skip", overwrite=True, categorical=(name,))

    assert found.column("categories").tolist() == known.column("categories").tolist()
    assert found.column("features").tolist() == known.column("features").tolist()
    assert left_out == rejected(tmp_path)
    assert len(left_out) >= 1


def test_text_among_numbers_is_named_and_can_be_either(tmp_path: Path) -> None:
    source = write(tmp_path, "id,x\n1,5\n2,6\n3,6 kg\n4,7\n")

    ways = ("categorical=['x']", "drop=['x']", "numeric=['x']")
    assert_refused(tmp_path, source, "t.csv, line 4", "'x'", "'6 kg'", *ways)
    assert_refused(tmp_path, source, "t.csv, line 4", "'x'", "'6 kg'", numeric=("x",))
    codes = packed(tmp_path, source, categorical=("x",)).column("categories")[:, 0]
    assert sorted(codes.tolist()) == [1, 2, 3, 4]
    for missing in ("error", "mean"):  # which the text is not
        how: dict[str, Any] = {"missing": missing, "on_error": "skip", "overwrite": True}
        reader = packed(tmp_path, source, numeric=("x",), **how)
        assert reader.column("features").tolist() == [[1, 5], [2, 6], [4, 7]]


def test_text_in_a_later_part_is_text_among_numbers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 20)
    lines = [f"{i},{i}" for i in range(50)]
    lines[40], lines[46] = "40,many", "46,more"

    source = write(tmp_path, "a,b\n" + "\n".join(lines))

    assert_refused(tmp_path, source, "t.csv, line 42", "'b'", "'many'")


def test_whole_numbers_that_become_fractions_in_the_second_file_are_numbers(
    tmp_path: Path,
) -> None:
    files = [write(tmp_path, "a\n1\n2\n", "1.csv"), write(tmp_path, "a\n2.5\n1e3\n", "2.csv")]

    reader = packed(tmp_path, files)

    assert reader.column("features")[:, 0].tolist() == [1, 2, 2.5, 1000]


def test_flags_are_numbers_and_other_words_categories_wherever_they_stand(tmp_path: Path) -> None:
    files = [
        write(tmp_path, "a,b\ntrue,true\nFalse,false\n", "1.csv"),
        write(tmp_path, "a,b\n,maybe\n", "2.csv"),
    ]

    reader = packed(tmp_path, files, missing="nan")

    np.testing.assert_array_equal(reader.column("features")[:, 0], [1, 0, np.nan])
    field: Any = reader.schema.fields["categories"]
    assert field.vocabularies == (("false", "maybe", "true"),)


def test_dates_need_a_decision_and_one_kind_of_zone(tmp_path: Path) -> None:
    source = write(tmp_path, "d,x\n2024-01-01,1\n2024-01-02,2\n")
    mixed = write(tmp_path, "d,x\n2024-01-01 10:00:00Z,1\n2024-01-02 11:00:00,2\n", "m.csv")
    words = write(tmp_path, "d,x\n2024-01-01,1\nsoon,2\n", "w.csv")

    assert_refused(tmp_path, source, "t.csv, line 2", "'d'", "'2024-01-01'", "dates='days'")
    assert_refused(tmp_path, mixed, "m.csv, line 2", "'d'", dates="days")
    assert_refused(tmp_path, words, "w.csv, line 3", "'d'", "'soon'", dates="days")
    zoned = write(tmp_path, "d\n1970-01-02 10:00:00+02:00\n1970-01-02 08:00:00Z\n", "z.csv")
    days = packed(tmp_path, zoned, dates="days", dtype="float64").column("features")
    np.testing.assert_allclose(days[:, 0], 1 + 8 / 24)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv", "jsonl"])
def test_the_first_date_is_named_behind_rows_without_one(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 40)
    monkeypatch.setattr("packdata.sources.row_kinds.PART_ROWS", 2)
    dates = [None] * 7 + [datetime.date(2024, 2, 29), datetime.date(2023, 1, 1)]
    table, path = pa.table({"x": range(9), "d": pa.array(dates, pa.date32())}), tmp_path / "t"
    path = path.with_suffix(f".{suffix}")
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=5)
    elif suffix == "feather":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif suffix == "csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in table.to_pylist()))

    place = {"csv": "line 9", "jsonl": "line 8"}.get(suffix, "row 7")
    if suffix == "jsonl":  # where dates are texts, unless somebody asks for them
        path.write_text(path.read_text() + '{"x": 9, "d": "soon"}\n{"x": 9, "d": "later"}\n' * 9)
        assert_refused(tmp_path, path, f"t.jsonl, {place}", "'d'", "'2024-02-29'", dates="days")
    else:
        assert_refused(tmp_path, path, f"t.{suffix}, {place}", "'d'", "'2024-02-29'")


@pytest.mark.parametrize(
    ("text", "bad", "kept"),
    [
        ("2023-01-01,1\n2023-02-30,2\n2024-02-29,3", "2023-02-30", [1, 3]),
        (
            "2023-01-01T00:00:00Z,1\n2023-01-01T00:00:00+99:99,2\n",
            "2023-01-01T00:00:00+99:99",
            [1],
        ),
        ("2023-01-01 10:00,1\n2023-01-01 24:30,2\n", "2023-01-01 24:30", [1]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_days_that_do_not_exist_are_named_or_their_rows_left_out(
    tmp_path: Path, text: str, bad: str, kept: list[int], suffix: str
) -> None:
    rows = [line.split(",") for line in text.split("\n") if line]
    lines = [json.dumps({"d": d, "x": int(x)}) for d, x in rows] if suffix == "jsonl" else [text]
    head = "\n" if suffix == "jsonl" else "d,x\n"  # so that lines are the same
    source = write(tmp_path, head + "\n".join(lines), f"t.{suffix}")

    assert_refused(tmp_path, source, f"t.{suffix}, line 3", repr(bad), dates="days")
    reader = packed(tmp_path, source, dates="days", on_error="skip")

    assert reader.column("features")[:, 1].tolist() == kept
    assert len(rejected(tmp_path)) == len(rows) - len(kept)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_dates_of_other_centuries_are_dates(tmp_path: Path, suffix: str) -> None:
    dates = ["1600-01-01T00:00:00Z", "2023-02-20T00:00:00+01:00", "9999-12-31 23:00:00.123456789Z"]
    lines = [json.dumps({"d": d}) for d in dates] if suffix == "jsonl" else ["d", *dates]
    source = write(tmp_path, "\n".join(lines), f"t.{suffix}")

    rows = packed(tmp_path, source, dates="days", dtype="float64").column("features")

    days = [-135140, 19407 + 23 / 24, 2932896 + (23 + 0.123456 / 3600) / 24]
    np.testing.assert_allclose(rows[:, 0], days, rtol=1e-15)


def test_zones_of_json_are_told_apart_too(tmp_path: Path) -> None:
    mixed = '{"d": "2024-01-01 10:00:00Z"}\n{"d": "2024-01-02 11:00:00"}\n'

    source = write(tmp_path, mixed, "m.jsonl")
    assert_refused(tmp_path, source, "m.jsonl, line 1", "'d'", dates="days")


def test_infinite_numbers_are_named_or_their_rows_left_out(tmp_path: Path) -> None:
    source = write(tmp_path, "a,y\n1,1\n-inf,2\n3,inf\n4,4\n")

    assert_refused(tmp_path, source, "t.csv, line 3", "'a'", "-inf", target=("y",))
    reader = packed(tmp_path, source, target=("y",), on_error="skip")

    assert reader.column("features")[:, 0].tolist() == [1, 4]
    assert (
        "line 3: column 'a' is infinite, or more than dtype=float32 holds (-inf)"
        in rejected(tmp_path)[0]
    )
    assert "line 4: target 'y' is infinite" in rejected(tmp_path)[1]
    field: Any = reader.schema.fields["features"]
    assert (field.least, field.most) == ((1.0,), (4.0,))


def test_missing_numbers_are_an_error_unless_it_is_said_what_becomes_of_them(
    tmp_path: Path,
) -> None:
    source = write(tmp_path, "a,b\n1,1\n,2\n3,\n,4\n")

    assert_refused(tmp_path, source, "t.csv, line 3", "'a'", "missing=")
    reader = packed(tmp_path, source, on_error="skip")

    assert reader.column("features").tolist() == [[1, 1]]
    assert len(rejected(tmp_path)) == 3


def test_a_column_without_any_value_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "a,b\n1,\n2,\n")

    assert_refused(tmp_path, source, "t.csv", "'b'", "drop=['b']", missing="nan")
    assert packed(tmp_path, source, drop=("b",)).column("features").tolist() == [[1], [2]]


def test_a_column_without_a_name_gets_its_number(tmp_path: Path) -> None:
    reader = packed(tmp_path, write(tmp_path, ",b\n1,2\n"))

    assert reader.schema.fields["features"].to_json()["columns"] == ["column_1", "b"]


def test_a_target_that_is_missing_is_named_or_its_row_left_out(tmp_path: Path) -> None:
    source = write(tmp_path, "a,y,k\n1,1,u\n2,,v\n3,3,\n4,4,u\n")

    assert_refused(tmp_path, source, "t.csv, line 3", "'y'", target=("y", "k"))
    reader = packed(tmp_path, source, target=("y", "k"), on_error="skip")

    assert reader.column("features")[:, 0].tolist() == [1, 4]
    assert "line 4: target 'k' has no value" in rejected(tmp_path)[1]


def test_a_column_that_is_not_there_is_named_with_those_that_are_near(tmp_path: Path) -> None:
    source = write(tmp_path, "price,carat\n1,2\n")

    for option in ("target", "features", "drop", "categorical", "numeric"):
        assert_refused(tmp_path, source, "t.csv", "'prize'", "'price'", **{option: ("prize",)})


def test_files_with_other_columns_are_named_unless_those_are_left_out(tmp_path: Path) -> None:
    files = [write(tmp_path, "a,b\n1,2\n", "1.csv"), write(tmp_path, "c,a\n3,4\n", "2.csv")]

    assert_refused(tmp_path, files, "2.csv", "b", "c", "1.csv", "features")
    reader = packed(tmp_path, files, features=("a",))
    assert reader.column("features")[:, 0].tolist() == [1, 4]


def test_columns_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    files = [write(tmp_path, "a,b\n1,2\n", "1.csv"), write(tmp_path, "b,a\n3,4\n", "2.csv")]

    assert packed(tmp_path, files).column("features").tolist() == [[1, 2], [4, 3]]


def test_numbers_that_the_dtype_cannot_hold_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "a,big\n1,70000\n2,16777217\n")

    assert_refused(tmp_path, source, "t.csv, line 2", "'big'", "70000", "dtype=", dtype="float16")
    assert packed(tmp_path, source).column("features")[1].tolist() == [2, 16777216]


def test_a_column_whose_deviation_no_float_holds_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "a,b\n1,1e200\n2,-1e200\n")

    with pytest.raises(SchemaError, match="'b'"):
        pack_tables(source, tmp_path / "out", dtype="float64")


def test_a_mean_that_the_dtype_cannot_hold_is_not_stored(tmp_path: Path) -> None:
    source = write(tmp_path, "a,b\n60000,1\n,2\n90000,3\n")
    options: dict[str, Any] = {"dtype": "float16", "missing": "mean"}

    assert_refused(tmp_path, source, "t.csv, line 3", "'a'", "75000.0", **options)
    rows = packed(tmp_path, source, on_error="skip", **options).column("features")

    assert rows[:, 0].tolist() == [60000]


def test_numbers_that_are_too_large_for_the_dtype_of_like_are_named(tmp_path: Path) -> None:
    pack_tables(write(tmp_path, "a\n1\n2\n"), tmp_path / "train", dtype="float16")
    source = write(tmp_path, "a\n1\n1e6\n", "test.csv")

    like = tmp_path / "train"
    assert_refused(tmp_path, source, "test.csv, line 3", "'a'", "1000000.0", like=like)
    rows = packed(tmp_path, source, like=like, on_error="skip").column("features")
    assert rows.tolist() == [[1]]


def test_a_column_of_too_many_texts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tables.scan.MAX_CATEGORIES", 3)
    source = write(tmp_path, "id\n" + "".join(f"id-{i}\n" for i in range(5)))

    assert_refused(tmp_path, source, "t.csv", "'id'", "3", "drop=['id']")


# ------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("t.csv", b"", []),
        ("t.csv", b"\n\n", []),
        ("t.csv", b"a,b\n", []),
        ("t.csv", b"a;b\n1;2\n", ["'a;b'", "';'"]),
        ("t.csv", b"a,b\r1,2\r", []),
        ("t.jsonl", b"", []),
        ("t.parquet", b"PAR1", ["Parquet"]),
        ("t.feather", b"nothing", ["Arrow"]),
        ("t.csv.gz", b"\x1f\x8b", ["decompressed"]),
        ("t.csv.xz", b"\xfd7zXZ", ["Decompress"]),
        ("t.xls", b"", [".xls", ".csv"]),
    ],
)
def test_files_that_are_no_tables_are_named(
    tmp_path: Path, name: str, data: bytes, named: list[str]
) -> None:
    assert_refused(tmp_path, write(tmp_path, data, name), name, *named)


def test_paths_that_name_nothing_are_named(tmp_path: Path) -> None:
    assert_refused(tmp_path, tmp_path / "none.csv", "none.csv")
    assert_refused(tmp_path, str(tmp_path / "*.csv"), "*.csv")
    assert_refused(tmp_path, tmp_path, str(tmp_path), ".csv")


def test_another_separator_can_be_named(tmp_path: Path) -> None:
    source = write(tmp_path, "a;b\n1;2\n")

    assert packed(tmp_path, source, delimiter=";").column("features").tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"a": ', ""),
        ("[1, 2]", "[1, 2]"),
        ("null", "null"),
        ('{"a": 5}{"a": null}', ""),
        ('{"a": "\udce9"}', ""),
        (r'{"a": "\ud800"}', r"'\ud800'"),
        ('{"a": 5, "a": 6}', "'a'"),
        ('{"b": {"x": 5, "x": 6}}', "'x'"),
    ],
)
def test_lines_that_are_no_json_objects_are_named(tmp_path: Path, line: str, named: str) -> None:
    text = '{"a": 1}\n\n' + line + '\n{"a": 2}\n'
    source = write(tmp_path, text.encode(errors="surrogateescape"), "t.jsonl")

    assert_refused(tmp_path, source, "t.jsonl, line 3", named)
    reader = packed(tmp_path, source, on_error="skip")

    assert reader.column("features")[:, 0].tolist() == [1, 2]


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"


@pytest.mark.parametrize(
    "lines",
    [b"null\n", b"null\nnull\n", b"\n" * 200_000 + DEEP],
    ids=["null", "nulls", "deep below blank lines"],
)
def test_lines_that_arrow_takes_for_others_are_named(tmp_path: Path, lines: bytes) -> None:
    """In a process of its own: of some lines Arrow's parser ends it."""
    source = write(tmp_path, lines, "t.jsonl")
    code = "import sys; from packdata.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "tables", str(source), str(tmp_path / "p")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "t.jsonl" in done.stderr


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n", "\n\n"], ids=repr)
@pytest.mark.parametrize("begin", ["", "\ufeff"], ids=["", "a mark"])
def test_arrow_parses_lines_of_objects(begin: str, end: str) -> None:
    data = f'{begin}{{"a": "x"}}{end} {{"a": "}}"}}{end}{{"a": "{{"}}'.encode()

    for lines in (data, data + end.encode()):
        table = arrow_lines(lines, pa.schema([]), with_others=True)
        assert table is not None
        assert table["a"].to_pylist() == ["x", "}", "{"]


@pytest.mark.parametrize("line", [b'{"a": "\xe9"}', b'{"\xe9": "x"}'])
def test_texts_and_names_of_json_that_are_not_utf8_are_named(tmp_path: Path, line: bytes) -> None:
    source = write(tmp_path, b'{"a": "x"}\n' + line + b'\n{"a": "y"}\n', "t.jsonl")

    assert_refused(tmp_path, source, "t.jsonl, line 2", "UTF-8")
    reader = packed(tmp_path, source, on_error="skip")

    assert reader.column("categories")[:, 0].tolist() == [1, 2]


def test_text_among_numbers_of_json_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, '{"a": 1, "b": 1}\n{"a": "x", "b": 2}\n{"b": 3}\n', "t.jsonl")

    assert_refused(tmp_path, source, "t.jsonl", "'a'", "several kinds")
    assert_refused(tmp_path, source, "t.jsonl", "'a'", "several kinds", categorical=("a",))
    assert_refused(tmp_path, source, "t.jsonl", "'a'", "several kinds", numeric=("a",))


@pytest.mark.parametrize("part_bytes", [4 << 20, 8])
@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["1", '"x"'], {"numeric": ("a",), "on_error": "skip"}),
        (["1", '"1"'], {"categorical": ("a",)}),
        (["true", '"no"'], {}),
        (["true", "3"], {"numeric": ("a",)}),
    ],
    ids=["text among numbers", "a number as text", "text among flags", "a number among flags"],
)
def test_kinds_of_json_do_not_depend_on_its_parts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[str],
    options: dict[str, Any],
    part_bytes: int,
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", part_bytes)
    source = write(tmp_path, "".join(f'{{"a": {v}, "b": 1}}\n' for v in values), "t.jsonl")

    place = "t.jsonl, from line 2 on" if part_bytes == 8 else "t.jsonl"
    assert_refused(tmp_path, source, place, "'a'", **options)


def test_flags_and_texts_of_files_that_declare_them_are_two_kinds(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [True, False]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["true", "no"]}), tmp_path / "2.parquet")

    assert_refused(tmp_path, tmp_path, "2.parquet, row 0", "'a'")


def test_columns_that_are_not_packed_are_named_with_their_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 8)
    write(tmp_path, '{"a": 1}\n{"a": 2}\n', "1.jsonl")
    write(tmp_path, '{"a": 3}\n{"a": 4}\n{"a": [5]}\n{"a": 6}\n', "2.jsonl")

    assert_refused(tmp_path, tmp_path, "2.jsonl, from line 3 on", "'a'", drop=("b",))


def test_a_column_of_several_kinds_takes_no_good_rows_along(tmp_path: Path) -> None:
    pack_tables(write(tmp_path, "a\n1\n2\n"), tmp_path / "train")
    source = write(tmp_path, '{"a": 1}\n{"a": "x"}\n{"a": 2}\n', "t.jsonl")

    with pytest.raises(SourceError, check=At("t.jsonl")):
        pack_tables(source, tmp_path / "out", like=tmp_path / "train", on_error="skip")


@pytest.mark.parametrize("more", ["{}\n", "{}\n[]\n"], ids=["by Arrow", "by Python"])
@pytest.mark.parametrize(
    "numbers", [["1234567890123456789", "1234567890123456788", "4"], ["4", "1.5", "NaN"]]
)
def test_categories_of_json_are_exact(tmp_path: Path, numbers: list[str], more: str) -> None:
    lines = "".join(f'{{"id": {number}}}\n' for number in numbers)
    source = write(tmp_path, lines + more, "t.jsonl")

    reader = packed(tmp_path, source, categorical=("id",), on_error="skip")

    field: Any = reader.schema.fields["categories"]
    words = ["NaN", *field.vocabularies[0]]
    assert [words[code] for code in reader.column("categories")[:-1, 0]] == numbers
    assert reader.column("categories")[-1, 0] == 0


@pytest.mark.parametrize("beside", ["1234567890123456788", "1.5"])
@pytest.mark.parametrize("more", ["{}\n", "[]\n"], ids=["by Arrow", "by Python"])
def test_numbers_that_floats_do_not_hold_are_no_categories(
    tmp_path: Path, beside: str, more: str
) -> None:
    number = "12345678901234567891" if beside != "1.5" else "9007199254740993"
    source = write(tmp_path, f'{{"id": {number}}}\n{{"id": {beside}}}\n{more}', "t.jsonl")
    options: dict[str, Any] = {"categorical": ("id",), "on_error": "skip"}

    assert_refused(tmp_path, source, "t.jsonl", "'id'", "2**53", **options)


def test_a_whole_number_of_json_beyond_all_floats_is_infinite(tmp_path: Path) -> None:
    source = write(tmp_path, f'{{"a": 1}}\n{{"a": -1{"0" * 400}}}\n[]\n', "t.jsonl")

    reader = packed(tmp_path, source, on_error="skip")

    assert reader.column("features").tolist() == [[1]]
    assert (
        "line 2: column 'a' is infinite, or more than dtype=float32 holds (-inf)"
        in rejected(tmp_path)[0]
    )


def test_keys_that_lines_lack_are_missing_values(tmp_path: Path) -> None:
    lines = [json.dumps({"a": i} | ({"late": i * 2} if i > 5 else {})) for i in range(10)]
    source = write(tmp_path, "\n".join(lines), "t.jsonl")

    rows = packed(tmp_path, source, missing="nan").column("features")

    np.testing.assert_array_equal(rows[:, 1], [np.nan] * 6 + [12, 14, 16, 18])


def test_columns_of_lists_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [[1, 2]]}), tmp_path / "t.parquet")

    source = tmp_path / "t.parquet"
    assert_refused(tmp_path, source, "t.parquet", "'b'", "list<", "drop=['b']")
    assert packed(tmp_path, tmp_path / "t.parquet", drop=("b",)).column("features").tolist() == [
        [1]
    ]


@pytest.mark.parametrize("beside", ["[3]", '"text"'])
def test_lists_in_json_are_no_categories(tmp_path: Path, beside: str) -> None:
    source = write(tmp_path, f'{{"a": [1, 2]}}\n{{"a": {beside}}}\n', "t.jsonl")

    assert_refused(tmp_path, source, "t.jsonl", "'a'", "not numbers, texts", categorical=("a",))


def test_types_of_parquet_become_numbers_and_categories(tmp_path: Path) -> None:
    table = pa.table(
        {
            "small": pa.array([1, None, 3], pa.int8()),
            "flag": pa.array([True, False, None]),
            "money": pa.array([1, 2, 3], pa.decimal128(10, 2)),
            "nan": pa.array([1.5, float("nan"), None]),
            "word": pa.array(["b", "a", "b"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")

    reader = packed(tmp_path, tmp_path / "t.parquet", missing="nan")

    expected = [[1, 1, 1, 1.5], [np.nan, 0, 2, np.nan], [3, np.nan, 3, np.nan]]
    np.testing.assert_array_equal(reader.column("features"), expected)
    assert reader.column("categories")[:, 0].tolist() == [1, 2, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nan_is_no_category(tmp_path: Path, dtype: Any) -> None:
    values = pa.array(np.array([1, np.nan, 2.5], dtype))
    pq.write_table(pa.table({"a": values, "y": values}), tmp_path / "t.parquet")
    options: dict[str, Any] = {"target": ("y",), "categorical": ("a", "y")}

    assert_refused(tmp_path, tmp_path / "t.parquet", "t.parquet, row 1", "'y'", **options)
    reader = packed(tmp_path, tmp_path / "t.parquet", categorical=("a", "y"))

    field: Any = reader.schema.fields["categories"]
    assert field.vocabularies == (("1", "2.5"), ("1", "2.5"))
    assert reader.column("categories").tolist() == [[1, 1], [0, 0], [2, 2]]


def test_a_file_that_changes_between_the_passes_is_noticed(tmp_path: Path) -> None:
    from loaders.errors import PackError
    from packdata.plan import pack_plan

    source = write(tmp_path, "a\n1\n2\n")
    plan = plan_tables(source)
    write(tmp_path, "a\n1\n3\n4\n")

    with pytest.raises(PackError, check=At("out")):
        pack_plan(plan, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"target": ("a",), "drop": ("a",)}, ["a", "target", "drop"]),
        ({"target": ("a", "a")}, ["a", "target"]),
        ({"dates": "years"}, ["dates", "days", "'years'"]),
        ({"missing": "zero"}, ["missing", "nan", "'zero'"]),
        ({"dtype": "int8"}, ["dtype", "float32", "'int8'"]),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, options: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(SchemaError) as caught:
        pack_tables(write(tmp_path, "a,b\n1,2\n"), tmp_path / "out", **options)
    assert [each for each in named if each not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("text", "options", "asked"),
    [
        ("a,b\n1,\n", {"missing": "nan"}, {"drop": ["b"]}),
        ('a,"b, c"\n1,\n', {"missing": "nan"}, {"drop": ["b, c"]}),
        ("a,b\n1,x\n2,1\n", {}, {"categorical": ["b"]}),
        ("a,d\n1,2020-01-01\n", {}, {"dates": "days"}),
        ("a,b\n1,70000\n", {"dtype": "float16"}, {"dtype": "float64"}),
    ],
)
def test_errors_from_python_give_arguments_that_pass(
    tmp_path: Path, text: str, options: dict[str, Any], asked: dict[str, Any]
) -> None:
    source = write(tmp_path, text)

    with pytest.raises(SourceError) as caught:
        pack_tables(source, tmp_path / "out", **options)

    (name, value), *_ = asked.items()
    assert f"{name}=" in str(caught.value)
    assert "--" not in str(caught.value)
    pack_tables(source, tmp_path / "out", **options | {name: value})


def test_values_are_shown_where_somebody_reads_them_and_nowhere_else(tmp_path: Path) -> None:
    """To show one takes long, and not every value can be: a time after the year 9999, or of an unknown zone."""
    rows = [f"{i},2024-01-0{1 + i % 9},{'x' if i % 4 == 0 else i}\n" for i in range(4000)]
    bad = write(tmp_path, "a,d,n\n" + "".join(rows))
    good = tmp_path / "good.parquet"
    late = pa.array([253402300800 + i for i in range(400)], pa.timestamp("s"))
    label = [f"c{i % 3}" for i in range(400)]
    pq.write_table(pa.table({"t": late, "w": label, "y": label}), good)
    options: dict[str, Any] = {"dates": "days", "workers": 1}

    num_good, _ = num_shown(lambda: pack_tables(good, tmp_path / "good", target=["y"], **options))
    num_failed, _ = num_shown(
        lambda: assert_refused(tmp_path, bad, "t.csv, line 2", numeric=["n"], **options)
    )
    num_skipped, _ = num_shown(
        lambda: pack_tables(bad, tmp_path / "out", numeric=["n"], on_error="skip", **options)
    )

    assert num_good <= 3  # first values, one a column
    assert num_failed <= 1000 + 3  # the reasons of one part
    assert len(rejected(tmp_path)) == 1000
    assert num_skipped <= 1000 + 3  # each reason once


def num_shown(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many values were shown meanwhile, on any thread, and the result."""
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is shown.__code__

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        done = work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls, done
