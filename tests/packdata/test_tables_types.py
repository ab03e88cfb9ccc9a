"""Types of Arrow: those that hold numbers, texts or dates are packed, and the others named."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from loaders.errors import PackError, SourceError
from packdata.tables import pack_tables
from tests.packdata.reading import PackedReader
from tests.refusals import At


def write(folder: Path, values: pa.Array, suffix: str = "feather", name: str = "t") -> Path:
    """Write a column ``v``, and one ``x`` of numbers."""
    path, table = folder / f"{name}.{suffix}", pa.table({"v": values, "x": range(len(values))})
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with (pa.ipc.new_stream if suffix == "arrow" else pa.ipc.new_file)(
            path, table.schema
        ) as w:
            w.write_table(table)
    return path


def packed(folder: Path, source: Path, **options: Any) -> PackedReader:
    pack_tables(source, folder / "out", **options)
    return PackedReader(folder / "out")


TEXTS = {
    "string_view": pa.array(["a", "", "b", None, "a"], pa.string_view()),
    "large_string": pa.array(["a", "", "b", None, "a"], pa.large_string()),
    "dictionary": pa.array(["a", "", "b", None, "a"]).dictionary_encode(),
    "dictionary_of_views": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None, 0], pa.int8()), pa.array(["a", "", "b"], pa.string_view())
    ),
}


# A stream of dictionaries is refused, and Parquet takes none of views.
WRITTEN = [
    (name, suffix)
    for name, values in TEXTS.items()
    for suffix in ("feather", "arrow", "parquet")
    if suffix == "feather" or not pa.types.is_dictionary(values.type)
]


@pytest.mark.parametrize(("name", "suffix"), WRITTEN)
@pytest.mark.parametrize("options", [{}, {"categorical": ("v",)}], ids=["guessed", "told"])
def test_texts_of_every_type_are_categories(
    tmp_path: Path, name: str, suffix: str, options: dict[str, Any]
) -> None:
    reader = packed(tmp_path, write(tmp_path, TEXTS[name], suffix), **options)

    field: Any = reader.schema.fields["categories"]
    assert field.vocabularies == (("a", "b"),)
    assert reader.column("categories")[:, 0].tolist() == [1, 0, 2, 0, 1]


@pytest.mark.parametrize("suffix", ["feather", "arrow", "parquet"])
def test_views_of_numbers_are_numbers_and_of_classes_classes(tmp_path: Path, suffix: str) -> None:
    source = write(tmp_path, pa.array(["1", "2.5", "NA"], pa.string_view()), suffix)
    classes = write(tmp_path, pa.array(["a", "b", "a"], pa.string_view()), suffix, "classes")

    rows = packed(tmp_path, source, missing="mean", numeric=("v",)).column("features")[:, 0]
    reader = packed(tmp_path, classes, target=("v",), overwrite=True)

    assert rows.tolist() == [1, 2.5, 1.75]
    assert reader.column("v").tolist() == [0, 1, 0]


REFUSED = {
    "binary_view": pa.array([b"a", b"\xff"], pa.binary_view()),
    "binary": pa.array([b"a", b"\xff"]),
    "large_binary": pa.array([b"a", b"\xff"], pa.large_binary()),
    "list_view": pa.array([[1], [2]], pa.list_view(pa.int64())),
    "struct": pa.array([{"a": 1}, {"a": 2}]),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "run_end_encoded": pc.run_end_encode(pa.array([1, 1])),
    "month_day_nano_interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "extension<arrow.uuid>": pa.array([b"\xff" * 16, None], pa.uuid()),
    "sparse_union": pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    ),
}


@pytest.mark.parametrize(("name", "values"), REFUSED.items(), ids=REFUSED)
def test_a_column_of_another_type_is_named_with_it(
    tmp_path: Path, name: str, values: pa.Array
) -> None:
    source = write(tmp_path, values)
    columns: list[dict[str, Any]] = [{}]
    columns += ({role: ("v",)} for role in ("categorical", "numeric", "target"))

    for options in columns:
        with pytest.raises(SourceError, check=At("t.feather")):
            pack_tables(source, tmp_path / "out", **options)


@pytest.mark.parametrize("like", ["a", "1", "2024-01-01"], ids=["text", "number", "date"])
def test_a_column_of_another_type_than_that_of_like_is_named_with_it(
    tmp_path: Path, like: str
) -> None:
    (tmp_path / "train.csv").write_text(f"v,x\n{like},1\n")
    pack_tables(tmp_path / "train.csv", tmp_path / "train", dates="days")
    for (name, values), on_error in product(REFUSED.items(), ["fail", "skip"]):
        source = write(tmp_path, values)

        with pytest.raises((SourceError, PackError)) as caught:
            pack_tables(source, tmp_path / "out", like=tmp_path / "train", on_error=on_error)
        assert all(each in str(caught.value) for each in ("t.feather", "'v'", name))


# -- what a source declares ------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["feather", "parquet"])
def test_declared_categories_of_numbers_are_categories(tmp_path: Path, suffix: str) -> None:
    values = pa.array([30, 4, 30, None]).dictionary_encode()

    reader = packed(tmp_path, write(tmp_path, values, suffix))

    field: Any = reader.schema.fields["categories"]
    assert field.vocabularies == (("30", "4"),)
    assert reader.column("categories")[:, 0].tolist() == [1, 2, 1, 0]


def test_texts_that_a_dictionary_has_twice_or_lacks_are_one_category_or_none(
    tmp_path: Path,
) -> None:
    words, indices = pa.array(["a", "b", "a", None]), pa.array([0, 1, 2, 3, 0], pa.int8())

    reader = packed(tmp_path, write(tmp_path, pa.DictionaryArray.from_arrays(indices, words)))

    field: Any = reader.schema.fields["categories"]
    assert field.vocabularies == (("a", "b"),)
    assert reader.column("categories")[:, 0].tolist() == [1, 2, 1, 0, 1]


@pytest.mark.parametrize("suffix", ["feather", "parquet"])
def test_declared_names_of_classes_are_the_classes_of_a_target(
    tmp_path: Path, suffix: str
) -> None:
    info = {"info": {"features": {"v": {"_type": "ClassLabel", "names": ["zebra", "ant", "no"]}}}}
    table = pa.table({"v": [1, 0, -1, 1], "x": [0, 1, 2, 3]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)

    reader = packed(tmp_path, path, target=("v",), on_error="skip")

    assert reader.schema.fields["v"].to_json()["classes"] == ["zebra", "ant", "no"]
    assert reader.column("v").tolist() == [1, 0, 1]
    assert len((tmp_path / "out/rejected.jsonl").read_text().splitlines()) == 1  # -1 is no class


def test_a_number_beyond_the_declared_classes_is_named(tmp_path: Path) -> None:
    info = {"info": {"features": {"v": {"_type": "ClassLabel", "names": ["zebra", "ant"]}}}}
    table = pa.table({"v": [1, 7]}).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, tmp_path / "t.parquet")

    with pytest.raises(SourceError, check=At("t.parquet, row 1")):
        packed(tmp_path, tmp_path / "t.parquet", on_error="skip")
