"""`packdata tables`: numbers, categories and targets come out as they went in, from any kind of file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import packdata
from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.errors import SchemaError, SourceError
from loaders.schema import Array, Categories, Features, Label
from packdata.cli import main
from packdata.inspect.stats import stats
from packdata.inspect.verify import verify
from packdata.packed.derive import CopyOptions, copy_dataset, extend, merge
from packdata.tables import pack_tables, plan_tables
from tests.packdata.breaking import interrupted
from tests.packdata.reading import PackedReader
from tests.packdata.recipes import contents
from tests.refusals import At

ROWS = 400


def frame(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Return a table of numbers, categories and targets."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "carat": rng.uniform(0.2, 3, rows).round(3),
            "cut": rng.choice(["Ideal", "Good", "Very, very good"], rows, p=[0.5, 0.2, 0.3]),
            "depth": rng.integers(40, 80, rows),
            "sold": rng.choice(["True", "False"], rows),
            "when": pd.Timestamp("2024-02-28 18:00")
            + pd.to_timedelta(rng.integers(0, 99, rows), "h"),
            "price": rng.integers(300, 9000, rows),
            "kind": rng.choice(["b", "a", "c"], rows),
        }
    )


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write a table in the format that its suffix names."""
    flags = table.assign(sold=table.sold == "True")
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        table.to_csv(path, index=False, sep="\t")
    elif path.suffix == ".jsonl":
        flags.assign(when=table.when.astype(str)).to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        flags.to_parquet(path, row_group_size=90)
    else:
        arrow = pa.Table.from_pandas(flags, preserve_index=False)
        stream = path.suffix == ".arrow"
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(path, arrow.schema) as writer:
            writer.write_table(arrow, max_chunksize=70)
    return path


def pack(table: pd.DataFrame, tmp_path: Path, name: str = "t.csv", **options: Any) -> PackedReader:
    defaults: dict[str, Any] = {"target": ("price", "kind"), "dates": "days"}
    source = write(table, tmp_path / name)
    pack_tables(source, tmp_path / f"{name}-packed", **(defaults | options))
    return PackedReader(tmp_path / f"{name}-packed", check=True)


def features_of(reader: PackedReader) -> Features:
    field = reader.schema.fields["features"]
    assert isinstance(field, Features)
    return field


def categories_of(reader: PackedReader) -> Categories:
    field = reader.schema.fields["categories"]
    assert isinstance(field, Categories)
    return field


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make even small files of several parts."""
    monkeypatch.setattr("packdata.rows.PART_BYTES", 4000)


@pytest.fixture
def diamonds(tmp_path: Path) -> tuple[Path, pd.DataFrame]:
    """Return a packed table and what it was made of; in two rows the cut is missing."""
    table = frame().drop(columns=["when"])
    table.loc[[3, 200], "cut"] = None
    pack(table, tmp_path, target=("price",), categorical=("kind",))
    return tmp_path / "t.csv-packed", table


@pytest.mark.parametrize(
    ("where", "query"),
    [
        ("cut == 'Ideal'", "cut == 'Ideal'"),
        ("cut != 'Ideal' and carat > 1.5", "cut != 'Ideal' and carat > 1.5"),
        ("cut in ('Good', 'Very, very good')", "cut in ('Good', 'Very, very good')"),
        ("depth == 61 or carat <= 0.3", "depth == 61 or carat <= 0.3"),
        ("cut == ''", "cut.isna()"),
        ("not cut == 'Good' and price >= 5000", "cut != 'Good' and price >= 5000"),
    ],
)
def test_conditions_name_the_columns_of_a_table(
    diamonds: tuple[Path, pd.DataFrame], tmp_path: Path, where: str, query: str
) -> None:
    packed, table = diamonds

    copy_dataset(packed, tmp_path / "b", CopyOptions(where=where))

    kept = PackedReader(tmp_path / "b")
    assert kept.column("price").tolist() == table.query(query).price.tolist()
    assert kept.schema == PackedReader(packed).schema


def test_a_float32_equals_the_number_that_was_packed(
    diamonds: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    packed, table = diamonds
    carat = table.carat[17]

    copy_dataset(packed, tmp_path / "b", CopyOptions(where=f"carat == {carat}"))

    expected = table.price[table.carat == carat].tolist()
    assert PackedReader(tmp_path / "b").column("price").tolist() == expected


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("cut == 'Idael'", "'Ideal'"),
        ("cut == 1", "quote"),
        ("cuts == 'Ideal'", "cut"),
        ("categories == 'Ideal'", "'categories'"),
    ],
)
def test_conditions_on_columns_that_are_none_are_refused(
    diamonds: tuple[Path, pd.DataFrame], tmp_path: Path, where: str, named: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        copy_dataset(diamonds[0], tmp_path / "b", CopyOptions(where=where))
    assert named in str(caught.value)


def test_a_table_is_divided_by_a_column(diamonds: tuple[Path, pd.DataFrame]) -> None:
    packed, table = diamonds
    reader = PackedReader(packed)

    for name in ("cut", "kind", "depth"):
        parts = reader.divide([0.75, 0.25], stratify=name)
        assert sorted(np.concatenate(parts).tolist()) == list(range(ROWS))
        for _, rows in table.groupby(name, dropna=False):
            assert abs(np.isin(rows.index, parts[1]).sum() - len(rows) / 4) < 1.01


def test_a_column_of_many_numbers_cannot_stratify(
    diamonds: tuple[Path, pd.DataFrame], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    args = ("split", str(diamonds[0]), str(tmp_path / "s"), "--parts", "a=0.5", "--stratify")

    assert main([*args, "carat"]) == 1
    assert "column 'carat' has 3" in (error := capsys.readouterr().err)
    assert "different numbers in 400 samples, too many to stratify" in error
    assert main([*args, "features"]) == 1
    assert not (tmp_path / "s").exists()
    assert main([*args, "cut"]) == 0


# ------------------------------------------------------------------------------ what is stored


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".feather"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    table = frame()

    reader = pack(table, tmp_path, f"t{suffix}")

    assert list(reader.schema.fields) == ["features", "categories", "price", "kind"]
    assert features_of(reader).columns == ("carat", "depth", "sold", "when")
    when = (table.when - pd.Timestamp(0)).dt.total_seconds() / 86400
    expected = np.stack([table.carat, table.depth, table.sold == "True", when], 1)
    np.testing.assert_allclose(reader.column("features"), expected, rtol=1e-6)
    np.testing.assert_array_equal(reader.column("price"), table.price)
    assert reader.schema.fields["kind"] == Label(classes=("a", "b", "c"))
    np.testing.assert_array_equal(reader.column("kind"), table.kind.map({"a": 0, "b": 1, "c": 2}))
    (vocabulary,) = categories_of(reader).vocabularies
    assert vocabulary == tuple(table.cut.value_counts().index)
    codes = table.cut.map({name: i for i, name in enumerate(vocabulary, 1)})
    np.testing.assert_array_equal(reader.column("categories")[:, 0], codes)
    if suffix not in (".arrow", ".feather"):
        assert len(plan_tables([tmp_path / f"t{suffix}"], dates="days").recipe) > 2


def test_statistics_are_those_of_the_table_and_stored_numbers_its_own(tmp_path: Path) -> None:
    table = frame()

    field = features_of(pack(table, tmp_path, target=("price",), features=("carat", "depth")))

    assert not field.standardized
    for name, values in (("mean", "mean"), ("least", "min"), ("most", "max")):
        expected = [getattr(table[c].astype(float), values)() for c in field.columns]
        np.testing.assert_allclose(getattr(field, name), expected, rtol=1e-12)
    np.testing.assert_allclose(field.std, table[list(field.columns)].std(ddof=0), rtol=1e-12)


def test_standardized_numbers_have_mean_0_and_deviation_1(tmp_path: Path) -> None:
    table = frame().assign(same=7)

    reader = pack(table, tmp_path, features=("carat", "depth", "same"), standardize=True)

    rows = reader.column("features").astype(np.float64)
    assert features_of(reader).standardized
    np.testing.assert_allclose(rows.mean(0), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(rows.std(0), [1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(features_of(reader).mean, table[["carat", "depth", "same"]].mean())


def test_missing_numbers_of_standardized_columns_are_nan_or_the_mean(tmp_path: Path) -> None:
    options: dict[str, Any] = {"features": ("carat",), "standardize": True}
    table = frame()
    table.loc[[3, 200], "carat"] = None
    nan = pack(table, tmp_path, **options, missing="nan").column("features")
    filled = pack(table, tmp_path, "m.csv", **options, missing="mean").column("features")

    assert np.flatnonzero(np.isnan(nan)).tolist() == [3, 200]
    assert filled[[3, 200]].tolist() == [[0], [0]]


def test_statistics_say_that_numbers_are_standardized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(pack(frame(), tmp_path, features=("carat",), standardize=True).path)

    assert main(["stats", path]) == 0
    shown = capsys.readouterr().out
    assert "\nfeatures (features)\n  standardized: True\n  columns: 1\n    carat: min -1" in shown
    assert stats(path).fields["features"]["standardized"] is True


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_are_stored_as_asked(tmp_path: Path, dtype: str) -> None:
    table = frame()

    reader = pack(table, tmp_path, features=("carat",), dtype=dtype)

    np.testing.assert_array_equal(reader.column("features")[:, 0], table.carat.astype(dtype))
    assert reader.schema.fields["price"].dtype == ("float64" if dtype == "float64" else "float32")


def test_dates_become_days(tmp_path: Path) -> None:
    times = ["1969-12-31 18:30:00", "2024-02-29 00:00:00", "2100-03-01 23:59:59", None]
    pd.DataFrame({"when": pd.to_datetime(times)}).to_csv(tmp_path / "t.csv", index=False)

    pack_tables(tmp_path / "t.csv", tmp_path / "p", dates="days", missing="nan", dtype="float64")

    days = PackedReader(tmp_path / "p").column("features")[:, 0]
    np.testing.assert_allclose(days, [-1 + 18.5 / 24, 19782, 47542 - 1 / 86400, np.nan])


def test_times_of_day_are_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at\n12:30:00\n06:00:00\n")

    pack_tables(tmp_path / "t.csv", tmp_path / "p", dates="days")

    assert categories_of(PackedReader(tmp_path / "p")).columns == ("at",)


def test_missing_numbers_are_nan_or_mean_with_a_mask_on_request(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,5\n,y,6\n3,,NA\n")

    for missing in ("nan", "mean"):
        pack_tables(tmp_path / "t.csv", tmp_path / missing, missing=missing, missing_mask=True)

    nan, mean = (PackedReader(tmp_path / name) for name in ("nan", "mean"))
    np.testing.assert_array_equal(nan.column("features"), [[1, 5], [np.nan, 6], [3, np.nan]])
    np.testing.assert_array_equal(mean.column("features"), [[1, 5], [2, 6], [3, 5.5]])
    for reader in (nan, mean):
        assert reader.schema.fields["missing"] == Array(dtype="bool", dims=(2,))
        np.testing.assert_array_equal(reader.column("missing"), [[0, 0], [1, 0], [0, 1]])
        np.testing.assert_array_equal(reader.column("categories"), [[1], [2], [0]])


def test_categories_of_numbers_keep_their_spelling_and_ties_go_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("zip,x\n007,1\n7,2\n100,3\n007,4\n9,5\n")

    pack_tables(tmp_path / "t.csv", tmp_path / "p", categorical=("zip",))

    assert categories_of(PackedReader(tmp_path / "p")).vocabularies == (("007", "100", "7", "9"),)


def test_whole_numbers_as_a_categorical_target_are_classes_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("digit,x\n10,1\n2,2\n-1,3\n2,4\n")

    pack_tables(tmp_path / "t.csv", tmp_path / "p", target=("digit",), categorical=("digit",))

    reader = PackedReader(tmp_path / "p")
    assert reader.schema.fields["digit"] == Label(classes=("-1", "2", "10"))
    assert reader.column("digit").tolist() == [2, 1, 0, 1]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (255, "uint8"),
        (256, "uint16"),
        pytest.param(65_536, "uint32", marks=pytest.mark.slow),
    ],
)
def test_categories_take_the_narrowest_type_that_holds_0_too(
    tmp_path: Path, size: int, dtype: str
) -> None:
    (tmp_path / "t.csv").write_text("c\n" + "".join(f"name {i}\n" for i in range(size)))

    pack_tables(tmp_path / "t.csv", tmp_path / "p")

    field = categories_of(PackedReader(tmp_path / "p"))
    assert (field.dtype, field.num_categories) == (dtype, (size + 1,))
    np.testing.assert_array_equal(
        np.sort(PackedReader(tmp_path / "p").column("categories")[:, 0]), np.arange(1, size + 1)
    )


def test_target_names_become_field_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("is fraud?,class,features,x\n1,a,2,3\n0,b,3,4\n")

    pack_tables(tmp_path / "t.csv", tmp_path / "p", target=("is fraud?", "class", "features"))

    names = list(read_manifest(tmp_path / "p").schema.fields)
    assert names == ["features", "is_fraud", "class_", "features_"]


# ------------------------------------------------------------------------------ the same bytes


def test_the_bytes_depend_on_the_rows_and_options_alone(tmp_path: Path) -> None:
    source = write(frame(), tmp_path / "t.csv")
    options: dict[str, Any] = {"dates": "days", "shard_bytes": 3000}

    for workers in (1, 2, 5):
        pack_tables(source, tmp_path / f"{workers}", workers=workers, **options)

    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")
    assert len(read_manifest(tmp_path / "1").shards) > 3


def test_an_interrupted_packing_goes_on(tmp_path: Path) -> None:
    source = write(frame(), tmp_path / "t.csv")
    options: dict[str, Any] = {"dates": "days", "shard_bytes": 1000}
    pack_tables(source, tmp_path / "whole", **options)
    with interrupted(5):
        pack_tables(source, tmp_path / "a", **options)

    summary = pack_tables(source, tmp_path / "a", **options)

    assert "samples packed earlier" in summary.notes[0]
    assert {name: data for name, data in contents(tmp_path / "a").items() if "shard" in name} == {
        name: data for name, data in contents(tmp_path / "whole").items() if "shard" in name
    }


def test_many_files_are_one_table(tmp_path: Path) -> None:
    table = frame()
    (tmp_path / "in").mkdir()
    for i in range(4):
        write(table[i * 100 : (i + 1) * 100], tmp_path / "in" / f"part-{i}.csv")

    for name, source in (("pattern", tmp_path / "in" / "part-*.csv"), ("folder", tmp_path / "in")):
        pack_tables(str(source), tmp_path / name, dates="days", target=("price",))
    pack_tables(
        [tmp_path / "in" / "part-0.csv", str(tmp_path / "in/part-[1-3].csv")],
        tmp_path / "c",
        dates="days",
        target=("price",),
    )

    rows = [PackedReader(tmp_path / name).column("price") for name in ("pattern", "folder", "c")]
    for each in rows:
        np.testing.assert_array_equal(each, table.price)


# ------------------------------------------------------------------------------ like another


def test_test_data_gets_the_columns_dictionaries_and_statistics_of_training_data(
    tmp_path: Path,
) -> None:
    train = pack(frame(), tmp_path, "train.csv", standardize=True, missing="mean")
    test = frame(50, seed=1)
    test.loc[3, "cut"] = "never seen"
    test.loc[4, "carat"] = np.nan
    test = test[["kind", "price", "when", "sold", "depth", "cut", "carat"]].assign(more=1)
    source = write(test, tmp_path / "test.csv")

    summary = pack_tables(source, tmp_path / "test", like=train.path)

    reader = PackedReader(tmp_path / "test")
    assert reader.schema == train.schema
    field = features_of(reader)
    carat = (test.carat.fillna(field.mean[0]) - field.mean[0]) / field.std[0]
    np.testing.assert_allclose(reader.column("features")[:, 0], carat, rtol=1e-5, atol=1e-6)
    assert reader.column("categories")[3, 0] == 0
    assert "unknown to the vocabulary: cut (1)" in summary.notes[-1]
    assert extend(train.path, [tmp_path / "test"]).shards == 2
    assert verify(train.path).ok


@pytest.mark.parametrize("gaps", ["train", "test"])
def test_numbers_of_categories_are_known_also_where_pandas_made_floats_of_them(
    tmp_path: Path, gaps: str
) -> None:
    """A column of integers is one of floats as soon as a value is missing."""
    whole = pd.DataFrame({"id": [12345678901, 3, 3, 70], "x": [0.5, 1, 2, 3]})
    train, test = whole, whole.copy()
    (train if gaps == "train" else test).loc[4] = [np.nan, 4]
    for name, table in (("train", train), ("test", test)):
        table.to_parquet(tmp_path / f"{name}.parquet")
    pack_tables(tmp_path / "train.parquet", tmp_path / "train", target="x", categorical="id")

    source = tmp_path / "test.parquet"
    summary = pack_tables(source, tmp_path / "test", like=tmp_path / "train")

    known, codes = (
        PackedReader(tmp_path / name).column("categories")[:4, 0] for name in ("train", "test")
    )
    assert codes.tolist() == known.tolist()
    assert codes.all()
    assert "unknown" not in str(summary.notes)


def test_test_data_without_a_target_can_be_packed_without_it(tmp_path: Path) -> None:
    train = pack(frame(), tmp_path, "train.csv")
    source = write(frame(20, seed=1).drop(columns=["price"]), tmp_path / "test.csv")

    with pytest.raises(SourceError, check=At("test.csv")):
        pack_tables(source, tmp_path / "test", like=train.path)
    pack_tables(source, tmp_path / "test", like=train.path, drop=("price",))

    assert list(read_manifest(tmp_path / "test").schema.fields) == [
        "features",
        "categories",
        "kind",
    ]


def test_like_takes_no_other_columns_and_only_tables(tmp_path: Path) -> None:
    train = pack(frame(), tmp_path, "train.csv")

    with pytest.raises(SchemaError):
        pack_tables(tmp_path / "train.csv", tmp_path / "a", like=train.path, standardize=True)
    source = write(frame(20).drop(columns=["cut"]), tmp_path / "test.csv")
    with pytest.raises(SchemaError):
        pack_tables(source, tmp_path / "a", like=train.path, target=("cut",), dtype="float16")
    with pytest.raises(SourceError, check=At(source)) as caught:
        pack_tables(source, tmp_path / "a", like=train.path)
    assert "'cut'" in caught.value.what
    assert str(train.path) in caught.value.what


def test_like_takes_no_table_with_a_field_of_another_origin(tmp_path: Path) -> None:
    train = pack(frame(), tmp_path, "train.csv")
    weights = np.ones(ROWS, np.float32)
    packdata.write(ShardDataset(train.path), tmp_path / "more", add={"weight": weights})

    with pytest.raises(SourceError, check=At(tmp_path / "more")):
        pack_tables(tmp_path / "train.csv", tmp_path / "a", like=tmp_path / "more")


def test_like_works_for_what_was_split_and_merged(tmp_path: Path) -> None:
    train = pack(frame(), tmp_path, "train.csv", target=("price", "sold"))
    assert (
        main(["split", str(train.path), str(tmp_path / "parts"), "--parts", "a=0.5", "b=0.5"]) == 0
    )
    merge(tmp_path / "merged", [tmp_path / "parts" / "a", tmp_path / "parts" / "b"])

    pack_tables(tmp_path / "train.csv", tmp_path / "again", like=tmp_path / "merged")

    again = PackedReader(tmp_path / "again")
    for name in ("features", "sold"):
        np.testing.assert_array_equal(again.column(name), train.column(name))


def test_other_dictionaries_cannot_be_appended(tmp_path: Path) -> None:
    one = pack(frame(), tmp_path, "one.csv")
    other = pack(frame().assign(cut="other"), tmp_path, "other.csv")

    with pytest.raises(SchemaError):
        extend(one.path, [other.path])


# ------------------------------------------------------------------------------ other tools


def test_the_commands_work_on_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = pack(frame(), tmp_path, missing_mask=True)
    path = str(reader.path)

    for command in (
        ["info", path],
        ["verify", path],
        ["stats", path],
        ["preview", path, "--num", "2"],
    ):
        assert main(command) == 0
    shown = capsys.readouterr().out
    copied = ["copy", path, str(tmp_path / "c"), "--where", "kind == 'a'"]
    assert main(copied) == 0

    assert "4 columns of float32 (carat, depth, sold, when)" in shown
    assert "1 column of uint8 (cut: 3)" in shown
    assert "cut=" in shown
    assert len(PackedReader(tmp_path / "c")) == int((frame().kind == "a").sum())


def test_stats_are_taken_column_by_column(tmp_path: Path) -> None:
    table = frame()
    found = stats(pack(table, tmp_path).path).fields

    carat, cut = found["features"]["columns"]["carat"], found["categories"]["columns"]["cut"]
    np.testing.assert_allclose(carat["mean"], table.carat.mean(), rtol=1e-6)
    np.testing.assert_allclose(carat["std"], table.carat.std(ddof=0), rtol=1e-5)
    assert cut["most_frequent"] == table.cut.value_counts().to_dict()
    assert cut["num_unknown"] == 0


def test_shards_of_tables_have_a_size_of_their_own_unless_another_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "t.csv"
    source.write_text("a\n" + "1\n" * 1000)
    monkeypatch.setattr("packdata.tables.plan.TABLE_SHARD_BYTES", 1000)

    assert pack_tables(source, tmp_path / "usual").shards > 1
    assert pack_tables(source, tmp_path / "asked", shard_bytes=1 << 20).shards == 1


def test_pandas_and_duckdb_read_the_shards(tmp_path: Path) -> None:
    table = frame()
    reader = pack(table, tmp_path)
    shard = str(next((tmp_path / "t.csv-packed").glob("*.parquet")))

    read = pd.read_parquet(shard)
    sums: Any = duckdb.sql(
        f"select sum(features[1]), count(distinct categories), avg(price), max(kind) from '{shard}'"
    )

    np.testing.assert_allclose(np.stack(read.features)[:, 0], table.carat, rtol=1e-6)
    codes = np.stack([np.frombuffer(row, np.uint8) for row in read.categories])
    np.testing.assert_array_equal(codes, reader.column("categories"))
    assert (str(read.price.dtype), str(read.kind.dtype)) == ("float32", "int64")
    np.testing.assert_allclose(
        sums.fetchall()[0], [table.carat.sum(), 3, table.price.mean(), 2], rtol=1e-6
    )
    assert pq.read_schema(shard).field("features").type == pa.list_(
        pa.field("element", pa.float32(), nullable=False), 4
    )


def test_missing_values_are_counted_of_the_rows_that_are_packed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,c,y\n1,a,1\n,,2\nNA,b,3\n,b,\n")

    summary = pack_tables(
        tmp_path / "t.csv", tmp_path / "out", target="y", missing="nan", on_error="skip"
    )

    assert "missing values: c (1), x (2)" in summary.notes
    assert summary.counts["missing:x"] == 2


def test_the_plan_can_be_looked_at_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(frame(), tmp_path / "t.csv")
    command = ["tables", str(source), str(tmp_path / "p"), "--target", "price", "--dates", "days"]

    assert main([*command, "--dry-run"]) == 0
    assert "400 rows in 1 file" in capsys.readouterr().out
    assert main([*command, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rows"] == ROWS
    assert not (tmp_path / "p").exists()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == ROWS
    assert main(command) == 0  # it is there
    assert main([*command, "--shard-size", "1MB"]) == 1
    assert main([*command, "--overwrite"]) == 0


# Not ru_maxrss: that of a process begins with its parent's.
PEAK = r"""
import re, sys
from packdata.tables import files, pack_tables
files.MOST_BYTES = 64 << 20  # else memory grows until that is reached
pack_tables(sys.argv[1], sys.argv[2], target=("y",), workers=2)
print(int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024)
"""


@pytest.mark.slow
@pytest.mark.memory
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 100_000
    table = {f"x{i}": rng.normal(size=rows).round(5) for i in range(28)}
    table |= {
        "city": rng.choice([f"city {i}" for i in range(300)], rows),
        "y": rng.normal(size=rows),
    }
    peaks = []
    for name, times in (("small", 3), ("large", 12)):  # 80 and 320 MB
        with open(tmp_path / f"{name}.csv", "wb") as file:
            for i in range(times):
                pa.csv.write_csv(pa.table(table), file, pa.csv.WriteOptions(include_header=not i))
        command = [sys.executable, "-c", PEAK, str(tmp_path / f"{name}.csv"), str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        peaks.append(float(done.stdout))

    assert peaks[1] < 800
    assert (
        peaks[1] < peaks[0] + 200
    )  # of 240 MB; two shards more or less, as threads happen to meet
