"""How tables are read: without a header, below folders of keys, with missing words, nested deep, in other encodings."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.errors import SchemaError, SourceError
from packdata.cli import main
from packdata.delimited import CsvOptions, CsvRows
from packdata.rows import COMPRESSIONS
from packdata.sources.listed import files_at
from packdata.tables import pack_tables, plan_tables
from tests.packdata.reading import PackedReader
from tests.refusals import At


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def packed(folder: Path, source: Any, **options: Any) -> PackedReader:
    pack_tables(source, folder / "out", **options)
    return PackedReader(folder / "out")


def columns_of(reader: PackedReader, field: str = "features") -> tuple[str, ...]:
    kind: Any = reader.schema.fields[field]
    return tuple(kind.columns)


# ------------------------------------------------------------------------------ headers


def test_a_file_without_a_header_keeps_its_first_row(tmp_path: Path) -> None:
    source = write(tmp_path, "0.1,a\n0.2,b\n")

    reader = packed(tmp_path, source, header=False)

    assert columns_of(reader) == ("column_1",)
    np.testing.assert_array_equal(
        reader.column("features")[:, 0], np.array([0.1, 0.2], np.float32)
    )
    named = tmp_path / "named"
    command = ["tables", str(source), str(named), "--names", '"x, m",c', "--target", '"x, m"']
    assert main(command) == 0
    assert list(PackedReader(named).schema.fields) == ["categories", "x_m"]
    assert len(PackedReader(named)) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_above_the_header_are_passed_over(tmp_path: Path, end: str) -> None:
    source = write(tmp_path, end.join(["\ufeff# a, b", '"', "", "x,y", "1,2", "3,", ""]))

    reader = packed(tmp_path, source, skip_rows=2, missing="nan")

    assert columns_of(reader) == ("x", "y")
    assert reader.column("features")[:, 0].tolist() == [1, 3]
    with pytest.raises(SourceError, check=At("t.csv, line 6")):
        pack_tables(source, tmp_path / "no", skip_rows=2)
    renamed = packed(tmp_path / "b", source, skip_rows=4, names=("a", "b"), missing="nan")
    assert columns_of(renamed) == ("a", "b")
    assert len(renamed) == 2


def test_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "1,2\n3,4\n")

    with pytest.raises(SourceError, check=At("t.csv, line 1")):
        plan_tables([source], names=("a", "b", "c"))
    with pytest.raises(SourceError, check=At("t.csv")):
        plan_tables([source], names=("a", "a"))
    with pytest.raises(SourceError, check=At("t.csv")):
        plan_tables([source], skip_rows=9)
    with pytest.raises(ValueError):
        plan_tables([source], skip_rows=-1)


def test_options_for_csv_are_refused_where_there_is_none(tmp_path: Path) -> None:
    source = write(tmp_path, '{"a": 1}\n', "t.jsonl")

    with pytest.raises(SchemaError):
        plan_tables([source], header=False, skip_rows=1)


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("5.1,3.5\n4.9,3.0\n", True),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n4.7,3.1,other\n", True),
        ("2020-01-01,true\n2020-01-02,false\n", True),
        ("sepal,width,kind\n4.9,3.0,setosa\n", False),
        ("0.1,width\n4.9,3.0\n", True),
        ("02139,Doe\n10001,Poe\n", True),
        ("-1,name\n2,x\n", True),
        ("country,2019,2020\nPeru,1.5,2\n", False),
    ],
)
def test_a_header_that_looks_like_values_is_told(tmp_path: Path, text: str, is_told: bool) -> None:
    source = write(tmp_path, text)

    notes = plan_tables([source], dates="days").notes()

    assert any("looks like values" in note for note in notes) == is_told


# ------------------------------------------------------------------------------ names and words


def test_columns_of_the_same_name_can_be_left_out(tmp_path: Path) -> None:
    source = write(tmp_path, "a,b,a\n1,2,x\n3,4,y\n")

    with pytest.raises(SourceError, check=At("t.csv")):
        pack_tables(source, tmp_path / "out")
    assert packed(tmp_path, source, drop=("a",)).column("features").tolist() == [[2], [4]]
    assert packed(tmp_path / "b", source, features=("b",)).column("features").tolist() == [
        [2],
        [4],
    ]


@pytest.mark.parametrize("format", ["parquet", "feather"])
def test_columns_of_the_same_name_in_typed_files_can_be_left_out(
    tmp_path: Path, format: str
) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "b", "a"])
    source = tmp_path / f"t.{format}"
    if format == "parquet":
        pq.write_table(table, source)
    else:
        with pa.ipc.new_file(source, table.schema) as writer:
            writer.write_table(table)

    with pytest.raises(SourceError):
        pack_tables(source, tmp_path / "out")
    assert packed(tmp_path, source, drop=("a",)).column("features").tolist() == [[2]]


def test_a_name_with_a_comma_is_given_in_quotes(tmp_path: Path) -> None:
    source = write(tmp_path, '"income, EUR",age,"say ""hi"""\n1,2,3\n4,5,6\n')
    command = ["tables", str(source), str(tmp_path / "out"), "--drop", 'age, "say ""hi"""']

    assert main([*command]) == 0
    assert columns_of(PackedReader(tmp_path / "out")) == ("income, EUR",)


def test_missing_values_of_csv_can_be_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": ["1", "?", "3", "\\N"], "c": ["None", "a", "?", "<NA>"]})
    source = tmp_path / "t.csv"
    frame.to_csv(source, index=False)
    words = ("?", "None", "<NA>", "\\N")

    how: dict[str, Any] = {"missing_values": words, "missing": "nan", "numeric": ("x",)}
    reader = packed(tmp_path, source, **how)

    np.testing.assert_array_equal(reader.column("features")[:, 0], [1, np.nan, 3, np.nan])
    assert reader.column("categories")[:, 0].tolist() == [0, 1, 0, 0]
    again = packed(tmp_path / "test", source, like=tmp_path / "out")  # takes the words too
    np.testing.assert_array_equal(again.column("features"), reader.column("features"))
    ragged = tmp_path / "ragged.csv"  # which is read row by row
    ragged.write_text(f"{source.read_text()}5,b,c\n")
    rows = packed(tmp_path / "rows", ragged, **how, on_error="skip")
    np.testing.assert_array_equal(rows.column("features"), reader.column("features"))
    np.testing.assert_array_equal(rows.column("categories"), reader.column("categories"))
    command = ["tables", str(source), str(tmp_path / "c"), "--missing", "nan", "--numeric", "x"]
    assert main([*command, "--missing-values", r"?,\N", "--missing-values", '"None","<NA>"']) == 0
    assert len(PackedReader(tmp_path / "c")) == 4


def test_missing_values_are_refused_where_there_is_no_csv(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        plan_tables(pd.DataFrame({"x": ["?", "1"]}), missing_values=("?",))


# ------------------------------------------------------------------------------ all problems at once


MANY = "id,when,kg,empty,tags\n" + "".join(
    f"{i},2024-01-0{i},{'6 kg' if i == 3 else i},,t{i}\n" for i in range(1, 7)
)


def test_columns_of_no_one_kind_are_named_together_each_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tables.scan.MAX_CATEGORIES", 4)
    source = write(tmp_path, MANY)

    with pytest.raises(SourceError, check=At("t.csv")) as caught:
        plan_tables([source])

    lines = caught.value.what.splitlines()[1:]
    for column in ("when", "kg", "empty", "tags"):
        (line,) = (line for line in lines if f"column {column!r}" in line)
        assert "=" in line.partition(repr(column))[2]  # the argument that helps


def test_all_columns_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    source = write(tmp_path, "price,carat\n1,2\n")

    with pytest.raises(SourceError, check=At("t.csv")):
        plan_tables([source], drop=("prize", "karat"))


# ------------------------------------------------------------------------------ folders of keys


def test_folders_of_keys_are_refused(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / f"in/year={year}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1.0]}), tmp_path / f"in/year={year}/a.parquet")

    for source in (tmp_path / "in", f"{tmp_path}/in/*/*.parquet"):
        with pytest.raises(SourceError):
            pack_tables(source, tmp_path / "out")
    assert pack_tables(tmp_path / "in/year=2024", tmp_path / "one").samples == 1


@pytest.mark.parametrize("columns", [["x"], ["x", "x2"]])
def test_a_table_of_which_all_columns_are_dropped_is_refused(
    tmp_path: Path, columns: list[str]
) -> None:
    frame = pd.DataFrame({name: [1.0, 2.0] for name in columns})
    for source in (write(tmp_path, frame.to_csv(index=False)), frame):
        with pytest.raises(SchemaError):
            pack_tables(source, tmp_path / "out", drop=columns)


# ------------------------------------------------------------------------------ text that is none


DEEP = """
import sys
from packdata.cli import main
sys.exit(main(["tables", sys.argv[1], sys.argv[2], *sys.argv[3:]]))
"""


@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        ("list", 20_000),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("list", 100), ("object", 1000), ("object", 200_000))
        ),
    ],
)
def test_json_that_is_nested_deep_is_an_error_of_one_line(
    tmp_path: Path, kind: str, depth: int
) -> None:
    value = "[" * depth + "]" * depth if kind == "list" else '{"b":' * depth + "1" + "}" * depth
    source = write(tmp_path, '{"a": 1}\n{"a": 2, "b": ' + value + "}\n", "t.jsonl")
    run = [sys.executable, "-c", DEEP, str(source)]

    done = subprocess.run([*run, str(tmp_path / "a")], capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert len(done.stderr) < 600
    is_read = sys.version_info >= (3, 14) and (kind, depth) == ("list", 20_000)
    if depth == 100 or is_read:
        assert "column 'b' holds lists" in done.stderr
    elif depth > 1000:
        assert f"{source}, line 2: values are nested too deep" in done.stderr
        skipped = subprocess.run([*run, str(tmp_path / "b"), "--on-error", "skip"], timeout=60)
        assert skipped.returncode == 3


def test_brackets_in_texts_are_not_nesting(tmp_path: Path) -> None:
    lines = [json.dumps({"a": i, "c": "[{" * 99}) for i in range(200)]

    reader = packed(tmp_path, write(tmp_path, "\n".join(lines), "t.jsonl"))

    assert reader.column("features")[:, 0].tolist() == list(range(200))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_utf16_is_named_as_what_it_is(tmp_path: Path, encoding: str, name: str) -> None:
    source = write(tmp_path, '{"a": 1}\n'.encode(encoding), name)

    with pytest.raises(SourceError, check=At(name)) as caught:
        plan_tables([source])
    assert "iconv -f UTF-16" in caught.value.hint


@pytest.mark.parametrize("encoding", ["cp1252", "mac-roman", "latin-1"])
def test_no_encoding_is_claimed_that_nobody_knows(tmp_path: Path, encoding: str) -> None:
    source = write(tmp_path, "a,b\n1,caf\xe9\n".encode(encoding))

    with pytest.raises(SourceError, check=At("t.csv, line 2")) as caught:
        plan_tables([source])
    assert "LATIN1" not in str(caught.value)


def test_a_row_of_more_cells_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "a,b\n1,2\n1,caf\xe9,3\n4,5\n".encode("latin-1"))

    with pytest.raises(SourceError, check=At("t.csv, line 3")):
        plan_tables([source])
    reader = packed(tmp_path, source, on_error="skip")
    assert reader.column("features").tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".lz4"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_compressed_text_is_read_as_if_it_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, suffix: str
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 100)
    rows = [(i, "ab"[i % 2]) for i in range(60)]
    text = "x,c\n" + "".join(f"{x},{c}\n" for x, c in rows)
    if kind == "jsonl":
        text = "".join(f"{json.dumps({'x': x, 'c': c})}\n" for x, c in rows)
    plain, compressed = write(tmp_path, text, f"t.{kind}"), tmp_path / f"t.{kind}{suffix}"
    with pa.CompressedOutputStream(str(compressed), COMPRESSIONS[suffix]) as file:
        file.write(text.encode())

    pack_tables(plain, tmp_path / "plain")
    pack_tables(compressed, tmp_path / "packed")

    one, other = (PackedReader(tmp_path / name) for name in ("plain", "packed"))
    assert one.schema == other.schema
    for name in one.schema.fields:
        np.testing.assert_array_equal(one.column(name), other.column(name))
    compressed.write_bytes(compressed.read_bytes()[:20])
    with pytest.raises(SourceError, check=At(f"t.{kind}{suffix}")):
        pack_tables(compressed, tmp_path / "damaged")


def test_a_compressed_table_is_unpacked_behind_its_header_until_its_process_lets_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"\xef\xbb\xbfsep=,\n\n\na,b\n1,2\n"
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    rows = CsvRows(files_at(tmp_path / "t.csv.gz")[0], CsvOptions(skip_rows=1))

    assert rows.columns == ("a", "b")
    assert [*(tmp_path / "tmp").iterdir()] == []
    (part,) = rows.parts()
    if (child := os.fork()) == 0:
        del rows
        os._exit(0)
    os.waitpid(child, 0)
    assert [cells for _, cells, _ in rows.records(part)] == [["1", "2"]]
    del rows
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_a_name_may_have_a_line_break(tmp_path: Path) -> None:
    source = write(tmp_path, '"x\n(m)",y\n1,2\n')

    assert columns_of(packed(tmp_path, source)) == ("x\n(m)", "y")


def test_a_header_of_any_length_is_read(tmp_path: Path) -> None:
    name = "x" * (3 << 19)
    source = write(tmp_path, f"a,{name}\n1,2\n")

    assert columns_of(packed(tmp_path, source)) == ("a", name)
