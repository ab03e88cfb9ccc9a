"""The statistics of a table are those of the rows that are packed, and no number blows up by them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from loaders.errors import PackError, SourceError
from packdata.cli import main
from packdata.tables import pack_tables, plan_tables
from tests.packdata.breaking import interrupted
from tests.packdata.reading import PackedReader
from tests.refusals import At


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def packed(folder: Path, source: Any, name: str = "out", **options: Any) -> PackedReader:
    pack_tables(source, folder / name, **options)
    return PackedReader(folder / name)


def features_of(reader: PackedReader) -> Any:
    return reader.schema.fields["features"]


# ------------------------------------------------------------------------------ columns of one number


def test_a_constant_column_is_zero_when_standardized_and_other_numbers_stay_small(
    tmp_path: Path,
) -> None:
    source = write(
        tmp_path, "x,y\n0.1,1\n0.1,2\n0.1,3\n"
    )  # of which the sum is no multiple of 0.1
    train = packed(tmp_path, source, "train", standardize=True)

    test = packed(tmp_path, write(tmp_path, "x,y\n0.2,2\n", "test.csv"), like=train.path)

    assert (features_of(train).mean[0], features_of(train).std[0]) == (0.1, 0.0)
    assert train.column("features")[:, 0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(test.column("features"), [[0.1, 0]], rtol=1e-6)


def test_a_constant_column_is_one_in_many_parts_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.rows.PART_BYTES", 50)
    files = [write(tmp_path, "x,y\n" + "0.1,1\n" * n, f"{n}.csv") for n in (3, 10, 97)]

    field = features_of(packed(tmp_path, files))

    assert (field.mean, field.std) == ((0.1, 1.0), (0.0, 0.0))


@pytest.mark.parametrize(
    "values",
    [
        np.r_[np.full(9999, 1.7e9), 1.7e9 + 1],
        1.7e9 + np.arange(1000) / 1000,
        np.r_[np.full(999, 1.7e15), 1.7e15 + 1],
        2.0**52 - np.arange(2),
        np.r_[np.full(9999, 1e-12), 2e-12],
        np.array([1.0, 1.0 + 1e-12]),
    ],
    ids=["one_second", "milliseconds", "one_microsecond", "large_ids", "tiny", "close"],
)
def test_a_small_deviation_of_large_numbers_is_kept(
    tmp_path: Path, values: np.ndarray[Any, Any]
) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "t.parquet")

    field = features_of(packed(tmp_path, tmp_path / "t.parquet"))

    expected = np.std((values - values[0]).astype(np.longdouble))
    np.testing.assert_allclose(field.std, float(expected), rtol=1e-3)


# ------------------------------------------------------------------------------ rows that are left out


def test_classes_and_statistics_cover_rows_that_are_left_out(tmp_path: Path) -> None:
    source = write(tmp_path, "x,k,y\n1,u,1\n2,v,\n")

    reader = packed(tmp_path, source, target=("k", "y"), on_error="skip")

    assert reader.schema.fields["k"].to_json()["classes"] == ["u", "v"]
    assert features_of(reader).mean == (1.5,)
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["error"].endswith("line 3: target 'y' has no value.")


def test_texts_of_rows_that_are_left_out_are_not_counted_as_unknown(tmp_path: Path) -> None:
    train = packed(tmp_path, write(tmp_path, "x,c\n1,a\n", "train.csv"), "train")
    source = write(tmp_path, "x,c\n1,b\n,b\n3,a\n")

    summary = pack_tables(source, tmp_path / "out", like=train.path, on_error="skip")

    assert "stored as 0, unknown to the vocabulary: c (1)" in summary.notes


def test_a_table_of_which_no_row_can_be_packed_ends_with_the_first(tmp_path: Path) -> None:
    source = write(tmp_path, "x,y\n1,\n,2\n")

    with pytest.raises(PackError, check=At("out")):
        pack_tables(source, tmp_path / "out", on_error="skip")


@pytest.mark.parametrize("target", [("y", "k"), ("k", "y")], ids=["number_first", "label_first"])
def test_the_first_row_that_cannot_be_packed_is_named(
    tmp_path: Path, target: tuple[str, ...]
) -> None:
    source = write(tmp_path, "x,y,k\n1,1,u\n2,2,\n3,,u\n")

    with pytest.raises(SourceError, check=At("t.csv, line 3")) as caught:
        pack_tables([source], tmp_path / "out", target=target)

    assert "'k' has no value" in caught.value.what
    assert main(["tables", str(source), str(tmp_path / "a"), "--target", ",".join(target)]) == 1


def test_an_interrupted_packing_without_some_rows_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, "x,y\n" + "".join(f"{i},{i % 9 or ''}\n" for i in range(400)))
    monkeypatch.setattr("packdata.rows.PART_BYTES", 300)
    options: dict[str, Any] = {"on_error": "skip", "standardize": True, "shard_bytes": 300}
    pack_tables(source, tmp_path / "whole", **options)
    with interrupted(5):
        pack_tables(source, tmp_path / "a", **options)

    assert "samples packed earlier" in pack_tables(source, tmp_path / "a", **options).notes[0]
    again, whole = (PackedReader(tmp_path / name) for name in ("a", "whole"))
    assert again.schema == whole.schema
    np.testing.assert_array_equal(again.column("features"), whole.column("features"))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_flags_and_dates_stay_what_they_are_where_rows_are_left_out(
    tmp_path: Path, suffix: str
) -> None:
    rows = [{"x": i or None, "f": i % 2 == 0, "d": f"2024-01-0{i + 1}"} for i in range(6)]
    source = tmp_path / f"t.{suffix}"
    if suffix == "jsonl":
        source.write_text("\n".join(map(json.dumps, rows)))
    else:
        table = pa.Table.from_pylist(rows)
        dates = pa.compute.strptime(table["d"], "%Y-%m-%d", "s").cast(pa.date32())
        table = table.set_column(2, "d", dates)
        pa.csv.write_csv(table, source) if suffix == "csv" else pq.write_table(table, source)

    reader = packed(tmp_path, source, dates="days", on_error="skip")

    expected = [[i, i % 2 == 0, 19723 + i] for i in range(1, 6)]
    assert reader.column("features").tolist() == expected
    assert list(reader.schema.fields) == ["features"]


def test_columns_with_a_number_in_each_row_are_measured_as_others_are() -> None:
    values = np.random.default_rng(0).integers(-99, 99, 5000).astype(np.float64)
    halves = pa.array(values / 2)
    names = {"x": pa.array(values), "y": halves}
    others = {"x": pa.array(values.astype(np.int64)), "y": halves.cast(pa.decimal128(9, 1))}

    fast, plain = (plan_tables(pa.table(each)).recipe.schema for each in (names, others))

    assert fast == plain
