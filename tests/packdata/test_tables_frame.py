"""Tables in memory are packed, and served, as a file of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.errors import PackError, SourceError
from loaders.schema import Label
from packdata.cli import main
from tests.packdata.reading import PackedReader
from tests.packdata.recipes import contents
from tests.refusals import At


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "x": rng.normal(size=300),
            "zip": rng.choice(["01234", "1234"], 300),
            "kind": pd.Categorical(rng.choice(["a", "b"], 300)),
            "when": pd.Timestamp("9999-12-31") - pd.to_timedelta(rng.integers(0, 9, 300), "D"),
            "y": rng.choice(["no", "yes"], 300),
            "n": rng.integers(0, 2**40, 300),
        },
        index=rng.permutation(300),
    )


COLUMNS: dict[str, Any] = {"x": [0.5, 1.5, 2.5], "y": [0, 1, 0]}


def test_a_lazy_frame_is_packed_as_the_frame_that_it_makes(tmp_path: Path) -> None:
    frames: dict[str, Any] = {"frame": pl.DataFrame(COLUMNS), "lazy": pl.LazyFrame(COLUMNS)}

    for name, frame in frames.items():
        packdata.pack_tables(frame, tmp_path / name, target="y")

    made, expected = (ShardDataset(tmp_path / name).fingerprint for name in ("lazy", "frame"))
    assert made == expected


@pytest.mark.parametrize("kind", [pd, pl])
def test_a_series_is_a_table_of_one_column(tmp_path: Path, kind: Any) -> None:
    packdata.pack_tables(kind.DataFrame(COLUMNS)["x"], tmp_path / "p")

    assert ShardDataset(tmp_path / "p")[1].features.tolist() == [1.5]


def test_of_a_dataset_of_hugging_face_its_selection_is_packed(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    reverse = {name: values[::-1] for name, values in COLUMNS.items()}

    selected = datasets.Dataset.from_dict(reverse).select([2, 1, 0])
    frames: dict[str, Any] = {"frame": pl.DataFrame(COLUMNS), "hf": selected}

    for name, frame in frames.items():
        packdata.pack_tables(frame, tmp_path / name, target="y")

    made, expected = (ShardDataset(tmp_path / name).fingerprint for name in ("hf", "frame"))
    assert made == expected


def test_of_hugging_face_streams_and_several_splits_are_refused(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_dict(COLUMNS)

    for several in (datasets.DatasetDict(train=one), one.to_iterable_dataset()):
        with pytest.raises(SourceError):
            packdata.pack_tables(several, tmp_path / "out", target="y")


OPTIONS: dict[str, Any] = {"target": ("y", "n"), "dates": "days", "dtype": "float64"}


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_a_frame_is_packed_as_a_file_of_it(
    tmp_path: Path, frame: pd.DataFrame, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.sources.row_kinds.PART_ROWS", 70)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    packdata.pack_tables(tmp_path / "t.parquet", tmp_path / "file", **OPTIONS)
    source = frame if kind == "pandas" else pa.Table.from_pandas(frame, preserve_index=False)

    summary = packdata.pack_tables(source, tmp_path / "frame", **OPTIONS)

    assert summary.samples == 300
    made, expected = (PackedReader(tmp_path / name) for name in ("frame", "file"))
    assert made.schema.fields["categories"] == expected.schema.fields["categories"]
    for name in expected.schema.fields:
        np.testing.assert_array_equal(made.column(name), expected.column(name))
    shards = [
        {n: d for n, d in contents(tmp_path / f).items() if "shard" in n}
        for f in ("frame", "file")
    ]
    assert shards[0] == shards[1]


def test_a_frame_is_served_as_it_would_be_packed(tmp_path: Path, frame: pd.DataFrame) -> None:
    packdata.pack_tables(frame, tmp_path / "packed", **OPTIONS)

    served = RAMDataset.from_arrays(**packdata.arrays_of(frame, **OPTIONS))

    packed = RAMDataset(tmp_path / "packed", progress=False)
    assert list(served.schema.fields) == list(packed.schema.fields)
    assert served.schema.fields["y"] == Label(classes=("no", "yes"))
    for one, other in zip(
        DataLoader(served, batch_size=64, num_workers=0),
        DataLoader(packed, batch_size=64, num_workers=0),
        strict=True,
    ):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    again = packdata.arrays_of(frame, "y", drop=("n",), like=None, dates="days")
    assert list(again["schema"]) == ["features", "categories", "y"]
    like = packdata.arrays_of(frame[:5], (), like=tmp_path / "packed")
    assert (like["features"] == served.column("features")[:5]).all()


@pytest.mark.parametrize("kind", ["pandas", "polars", "parquet"])
def test_categories_in_an_order_are_the_classes_of_a_target(tmp_path: Path, kind: str) -> None:
    """Numbers of an ordinal target are those of its categories, also of one that no row has."""
    order, values = ["low", "mid", "high"], ["high", "low", "high"]
    frame: Any = pd.DataFrame({"x": [1, 2, 3], "y": pd.Categorical(values, order, ordered=True)})
    if kind == "polars":
        frame = pl.DataFrame({"x": [1, 2, 3], "y": pl.Series(values, dtype=pl.Enum(order))})
    if kind == "parquet":
        frame.to_parquet(tmp_path / "a.parquet")
        packdata.pack_tables(tmp_path / "a.parquet", tmp_path / "p", target="y")
    else:
        packdata.pack_tables(frame, tmp_path / "p", target="y")

    made = PackedReader(tmp_path / "p")
    assert made.schema.fields["y"] == Label(classes=tuple(order))
    assert made.column("y").tolist() == [2, 0, 2]
    plain = pd.DataFrame({"x": [1, 2, 3], "y": pd.Categorical(values, order)})
    assert packdata.arrays_of(plain, "y")["schema"]["y"] == Label(classes=("high", "low"))


@pytest.mark.parametrize(
    ("order", "classes"),
    [
        ([10.0, 9.0, 2.5], ("10", "9", "2.5")),
        ([True, False], ("true", "false")),
        (
            [pd.Timestamp("2021-01-01"), pd.Timestamp("2020-01-01")],
            ("2021-01-01 00:00:00", "2020-01-01 00:00:00"),
        ),
    ],
    ids=["numbers", "flags", "dates"],
)
def test_categories_that_are_no_texts_keep_their_order(order: Any, classes: tuple[str]) -> None:
    values = pd.Categorical(order, order, ordered=True)
    frame = pd.DataFrame({"x": range(len(order)), "y": values})

    made = packdata.arrays_of(frame, "y")["schema"]["y"].classes

    assert [text.split(".000")[0] for text in made] == [*classes]


def test_na_is_a_class_where_a_frame_declares_texts() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3], "y": ["NA", "1", "2"]})

    assert packdata.arrays_of(frame, "y")["schema"]["y"] == Label(classes=("1", "2", "NA"))


def test_a_target_is_not_called_as_another_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"price": [9.0, 8.0], "price_": [1.0, 2.0], "y ": [1, 2]})

    fields = packdata.arrays_of(frame, ("price_", "y "))["schema"]

    assert [*fields] == ["features", "price_", "y"]


def test_whole_numbers_that_arrow_does_not_hold_are_a_source_error() -> None:
    frame = pd.DataFrame({"x": pd.Series([2**64, 1], dtype=object)})

    with pytest.raises(SourceError, check=At("DataFrame")):
        packdata.arrays_of(frame)


def test_rows_of_a_frame_that_cannot_be_packed_are_named_or_left_out(
    frame: pd.DataFrame,
) -> None:
    frame.loc[frame.index[7], "y"] = None

    with pytest.raises(SourceError, check=At("DataFrame, row 7")):
        packdata.arrays_of(frame, **OPTIONS)
    assert len(packdata.arrays_of(frame, **OPTIONS, on_error="skip")["y"]) == 299


def test_a_frame_is_packed_as_a_table_and_by_no_other_function(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    pack: Any = packdata.pack
    for source, options in ((frame, {"target": "y"}), ([{"x": 1}], {"fields": {}, "target": "x"})):
        with pytest.raises(TypeError, match="a DataFrame is packed by"):
            pack(source, tmp_path / "out", **options)
    with pytest.raises(SourceError, check=At("DataFrame")):
        packdata.pack_tables(pd.DataFrame({"x": [1, "a", b"b"]}), tmp_path / "out")
    with pytest.raises(TypeError):
        packdata.arrays_of(frame, targets="y")
    assert main(["verify", str(tmp_path)]) == 1


def test_a_frame_in_another_order_is_another_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.tables.files.PART_ROWS", 16)
    for _ in range(2):
        packdata.pack_tables(pa.table({"x": [*range(40)]}), tmp_path / "out")

    with pytest.raises(PackError):
        packdata.pack_tables(pa.table({"x": [*range(38), 39, 38]}), tmp_path / "out")


def test_a_frame_may_call_its_columns_by_numbers() -> None:
    arrays = packdata.arrays_of(pd.DataFrame(np.arange(6.0).reshape(2, 3)))

    assert arrays["features"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["schema"]["features"].to_json()["columns"] == ["0", "1", "2"]


def test_one_column_may_be_named_alone(tmp_path: Path, frame: pd.DataFrame) -> None:
    options: dict[str, Any] = {"dates": "days"}
    packdata.pack_tables(frame, tmp_path / "one", target="y", drop="n", **options)
    packdata.pack_tables(frame, tmp_path / "list", target=["y"], drop=["n"], **options)

    assert contents(tmp_path / "one") == contents(tmp_path / "list")
