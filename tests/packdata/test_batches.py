"""Columns packed at once are the dataset that their rows make one by one, errors and rejects included."""

from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import packdata
from loaders.data.manifest import read_manifest
from loaders.errors import CodecError, PackError, SchemaError
from loaders.schema import Array, Boxes, Bytes, Field, Image, Json, Label, Mask, MultiLabel, Text
from packdata.inspect.verify import verify
from tests.packdata.reading import PackedReader
from tests.refusals import At

NUM, FEW = 50, 20
RNG = np.random.default_rng(0)
NAMES = ("ant", "bee", "cow")
COLUMNS: dict[str, tuple[Field, Any]] = {
    "array": (Array("float32", dims=(3, 2)), RNG.random((NUM, 3, 2), np.float32)),
    "narrower": (Array("uint8", dims=(4,)), RNG.integers(0, 256, (NUM, 4))),
    "one": (Array("int64"), np.arange(NUM)),
    "rounded": (Array("float16", dims=(2,)), RNG.random((NUM, 2))),
    "reversed": (Array("float64", dims=(2,)), RNG.random((2, NUM)).T[::-1]),
    "big endian": (Array("int32", dims=()), np.arange(NUM, dtype=">i4")),
    "tensor": (Array("float32", dims=(5,)), torch.rand(NUM, 5)),
    "list": (Array("float32", dims=(2,)), [[i, i / 2] for i in range(NUM)]),
    "varying": (Array("int16", dims=(None,)), [np.arange(i % 5, dtype=np.int16) for i in range(NUM)]),
    "free axes": (Array("int16", dims=(None, None)), [np.zeros((i % 3, 2), np.int16) for i in range(NUM)]),
    "label": (Label(classes=NAMES), np.arange(NUM) % 3),
    "label by name": (Label(classes=NAMES), np.array(NAMES)[np.arange(NUM) % 3]),
    "label in a list": (Label(classes=NAMES), [NAMES[i % 3] for i in range(NUM)]),
    "label without names": (Label(), np.arange(NUM, dtype=np.uint8)),
    "multilabel": (MultiLabel(classes=NAMES), RNG.integers(0, 2, (NUM, 3))),
    "multilabel by name": (MultiLabel(classes=NAMES), [NAMES[: i % 4] for i in range(NUM)]),
    "pixels": (Image(codec="raw", size=(4, 5)), RNG.integers(0, 256, (NUM, 4, 5, 3), np.uint8)),
    "gray": (Image(codec="raw", size=(4, 5), channels=1), RNG.integers(0, 256, (NUM, 4, 5), np.uint8)),
    "mask": (Mask(codec="raw", size=(4, 5)), RNG.integers(0, 9, (NUM, 4, 5))),
    "png": (Image(codec="png"), RNG.integers(0, 256, (NUM, 4, 5, 3), np.uint8)),
    "boxes": (Boxes(), [np.array([[0, 0, 1, 2]] * (i % 3)) for i in range(NUM)]),
    "text": (Text(), [f"row {i}" for i in range(NUM)]),
    "texts of an array": (Text(), np.array([f"row {i}" for i in range(NUM)])),
    "json": (Json(), [{"i": i} for i in range(NUM)]),
    "bytes": (Bytes(), [bytes(i) for i in range(NUM)]),
}  # fmt: skip


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    num = len(next(iter(columns.values())))
    return [{name: values[i] for name, values in columns.items()} for i in range(num)]


def fingerprint(folder: Path) -> str:
    return read_manifest(folder).fingerprint


@pytest.mark.parametrize(
    ("name", "format"), [*zip(COLUMNS, cycle(("lmdb", "parquet")), strict=False)]
)
def test_a_column_is_its_rows(tmp_path: Path, name: str, format: Any) -> None:
    field, values = COLUMNS[name]
    size = {"format": format, "shard_bytes": 2_000}

    packdata.pack(rows_of({"x": values}), tmp_path / "rows", {"x": field}, **size)
    packdata.pack({"x": values}, tmp_path / "columns", {"x": field}, **size)

    assert fingerprint(tmp_path / "columns") == fingerprint(tmp_path / "rows")
    assert len(PackedReader(tmp_path / "columns", check=True)) == NUM


def test_all_of_them_with_keys(tmp_path: Path) -> None:
    names = [name for name in COLUMNS if name not in ("png", "gray", "pixels")]
    fields = {f"f{i}": COLUMNS[name][0] for i, name in enumerate(names)}
    columns: dict[str, Any] = {f"f{i}": COLUMNS[name][1] for i, name in enumerate(names)}
    columns["key"] = [f"k{i}" for i in range(NUM)]

    packdata.pack(rows_of(columns), tmp_path / "rows", fields)
    packdata.pack(columns, tmp_path / "columns", fields)

    assert fingerprint(tmp_path / "columns") == fingerprint(tmp_path / "rows")
    assert verify(tmp_path / "columns").ok


@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, FEW), max_size=6), shard=st.integers(90, 900), data=st.data())
def test_any_mixture_of_rows_and_batches_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], shard: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("mixture")
    columns: dict[str, Any] = {name: COLUMNS[name][1][:FEW] for name in ("array", "label", "text")}
    codec = data.draw(st.sampled_from(["png", "raw"]))
    columns["picture"] = COLUMNS["png" if codec == "png" else "pixels"][1][:FEW]
    fields = {name: COLUMNS[name][0] for name in ("array", "label", "text")}
    fields["picture"] = Image(codec=codec, size=(4, 5))
    packdata.pack(rows_of(columns), folder / "rows", fields, shard_bytes=shard)

    with packdata.Writer(folder / "mixed", fields, shard_bytes=shard) as writer:
        bounds = sorted({0, FEW, *cuts})
        for first, last in pairwise(bounds):
            piece = {name: values[first:last] for name, values in columns.items()}
            if data.draw(st.booleans()):
                writer.add_batch(**piece)
            else:
                for row in rows_of(piece):
                    writer.add(**row)

    assert fingerprint(folder / "mixed") == fingerprint(folder / "rows")
    assert len(writer) == FEW


def test_arrays_may_change_once_they_were_added(tmp_path: Path) -> None:
    array = np.zeros((NUM, 3), np.float32)
    with packdata.Writer(tmp_path / "out", {"x": Array("float32", dims=(3,))}) as writer:
        for i in range(3):
            array[:] = i
            writer.add_batch(x=array)

    stored = PackedReader(tmp_path / "out").column("x")
    assert stored[:, 0].tolist() == [0.0] * NUM + [1.0] * NUM + [2.0] * NUM


BAD: list[tuple[str, Field, Any, int]] = [
    ("a class number", Label(classes=NAMES), [0, 1, 3, 2], 2),
    ("a class name", Label(classes=NAMES), ["ant", "bee", "cat", "cow"], 2),
    ("a whole number", Array("uint8"), [1, 2, 256, 3], 2),
    ("a missing value", Array("float32"), [1.0, None, 2.0, 3.0], 1),
    ("a shape", Array("float32", dims=(2,)), [[1, 2], [1, 2], [1, 2], [1]], 3),
    ("a flag", MultiLabel(classes=("a", "b")), [[0, 1], [2, 0], [1, 1], [0, 0]], 1),
    ("a text", Text(), ["a", "b", 3, "d"], 2),
    ("a box", Boxes(), [[[0, 0, 1, 1]], [], [[2, 0, 1, 1]], []], 2),
]


def test_a_class_of_an_array_that_is_unknown_is_named_as_text(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match=r"class 'cow' is unknown \(known: cat, dog\)"):
        packdata.pack(
            {"x": np.array(["cat", "cow"])}, tmp_path / "out", {"x": Label(classes=("cat", "dog"))}
        )


@pytest.mark.parametrize(("field", "values", "bad"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_wrong_row_is_named_or_left_out(
    tmp_path: Path, field: Field, values: list[Any], bad: int
) -> None:
    with pytest.raises(CodecError, match=f"^sample {bad}, field 'x'"):
        packdata.pack({"x": values}, tmp_path / "out", {"x": field})
    assert not (tmp_path / "out").exists()

    packed = packdata.pack({"x": values}, tmp_path / "out", {"x": field}, on_error="skip")

    assert packed.samples == 3
    assert [item for item, _ in packed.rejected] == [f"sample {bad}"]


def test_columns_that_are_added_piece_by_piece_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packdata.writer._PIECE_BYTES", 100)  # of 400

    packdata.pack({"x": np.arange(NUM)}, tmp_path / "a", {"x": Array("int64")})

    assert PackedReader(tmp_path / "a").column("x").tolist() == [*range(NUM)]


@pytest.mark.parametrize("index", [[3, 2, 0, 1], [7, 8, 9, 10]], ids=["shuffled", "filtered"])
def test_rows_of_a_series_are_taken_in_their_order(tmp_path: Path, index: list[int]) -> None:
    """Pictures go to threads row by row; the labels beside them are not looked up by pandas' index."""
    pictures = [np.full((2, 2, 3), i, np.uint8) for i in range(4)]
    labels = pd.Series(["ant", "cow", "bee", "bee"], index=index)
    fields: dict[str, Field] = {"picture": Image(codec="png"), "label": Label(classes=NAMES)}

    packdata.pack({"picture": pictures, "label": labels}, tmp_path / "out", fields)

    packed = PackedReader(tmp_path / "out")
    assert packed.column("label").tolist() == [0, 2, 1, 1]
    assert [int(packed.sample(i)["picture"].max()) for i in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (Array("int64"), [2**53 + 1, 1.0]),
        (Array("uint64"), [np.uint64(2**63 + 1), np.int64(1)]),
        (Array("uint64", dims=(1,)), [np.array([2**63 + 1], np.uint64), np.array([1])]),
    ],
    ids=["numbers", "scalars", "arrays"],
)
def test_values_of_several_types_are_stored_as_they_are(
    tmp_path: Path, field: Field, values: list[Any]
) -> None:
    packdata.pack({"x": values}, tmp_path / "out", {"x": field})

    stored = PackedReader(tmp_path / "out").column("x").ravel()
    assert stored.tolist() == [int(np.ravel(value)[0]) for value in values]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (Label(classes=NAMES), [True, 2]),
        (Array("float32"), [np.ma.masked, 1.0]),
        (Array("float32", dims=(2,)), [np.ma.masked_array([1.0, 2.0], [True, False])]),
    ],
    ids=["a flag", "a masked number", "a masked array"],
)
def test_a_column_holds_what_a_single_sample_may(
    tmp_path: Path, field: Field, values: list[Any]
) -> None:
    with packdata.Writer(tmp_path / "one", {"x": field}) as writer:
        with pytest.raises(CodecError):
            writer.add(x=values[0])
        writer.abort()

    with pytest.raises(CodecError):
        packdata.pack({"x": values}, tmp_path / "out", {"x": field})


def test_keys_stay_unique(tmp_path: Path) -> None:
    fields = {"x": Array("int64")}
    with packdata.Writer(tmp_path / "out", fields, on_error="skip") as writer:
        writer.add_batch(x=[1, 2], key=["a", "b"])
        writer.add_batch(x=[3, 4, 5], key=["c", "a", "c"])
    with packdata.Writer(tmp_path / "strict", fields) as writer:
        writer.add_batch(x=[1, 2], key=["a", "b"])
        with pytest.raises(CodecError):
            writer.add_batch(x=[3, 4], key=["c", "a"])

    assert PackedReader(tmp_path / "out").keys() == ["a", "b", "c"]
    assert PackedReader(tmp_path / "strict").keys() == ["a", "b", "c"]


def test_of_rows_of_one_batch_that_share_a_key_the_first_one_is_packed(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"x": Array("int64")}
    with packdata.Writer(tmp_path / "out", fields, on_error="skip") as writer:
        writer.add_batch(x=[1, 2, 3], key=["a", "b", "b"])

    assert PackedReader(tmp_path / "out").keys() == ["a", "b"]


def test_keys_of_rows_that_are_under_way_are_taken(tmp_path: Path) -> None:
    with packdata.Writer(tmp_path / "out", {"x": Array("int64")}, on_error="skip") as writer:
        for i in range(NUM):
            writer.add(x=i, key=f"k{i}")
        writer.add_batch(x=[NUM, 0, 0], key=["new", f"k{NUM - 1}", f"k{NUM - 2}"])

    assert PackedReader(tmp_path / "out").keys() == [*(f"k{i}" for i in range(NUM)), "new"]
    assert writer.num_rejected == 2


def test_a_batch_has_every_field_once_and_one_length(tmp_path: Path) -> None:
    fields = {"x": Array("int64"), "y": Array("int64")}
    writer = packdata.Writer(tmp_path / "out", fields)

    with pytest.raises(SchemaError):
        writer.add_batch(x=[1])
    with pytest.raises(SchemaError):
        writer.add_batch(x=[1], y=[1], z=[1])
    with pytest.raises(SchemaError):
        writer.add_batch(x=[1, 2], y=[1])
    writer.add_batch(x=[], y=[])
    writer.add_batch(x=[1], y=[2])

    assert writer.close().samples == 1
    with pytest.raises(PackError, check=At("out")):
        writer.add_batch(x=[1], y=[2])


@pytest.mark.parametrize("values", [3, "text", None])
def test_a_single_sample_is_no_column(tmp_path: Path, values: Any) -> None:
    with pytest.raises(TypeError):
        packdata.pack({"x": values}, tmp_path / "out", {"x": Json()})
    assert not (tmp_path / "out").exists()


def test_masks_of_another_size_than_the_image_are_refused(tmp_path: Path) -> None:
    fields = {"image": Image(codec="raw", size=(4, 5)), "mask": Mask(codec="raw", size=(4, 4))}
    columns = {"image": np.zeros((3, 4, 5, 3), np.uint8), "mask": np.zeros((3, 4, 4), np.uint8)}

    with pytest.raises(CodecError):
        packdata.pack(columns, tmp_path / "out", fields)
