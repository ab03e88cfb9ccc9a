"""Messages name arguments, and the command line their options; what newcomers meet on the way to batches."""

import argparse
import inspect
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.errors import PackError, SourceError
from loaders.schema import Array, Boxes, Image, Images, Text, Tokens
from packdata.cli import main
from packdata.commands.common import with_options
from packdata.tokens.plan import TokenOptions
from tests.packdata.test_tokens import documents, write


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("row_tokens must be 2 or more", "--row-tokens"),
        ("Pass overwrite=True to replace it", "--overwrite"),
        ("shard_bytes was 1, is now 2; the list of files differs", "--shard-size"),
        ("column 'row_tokens' of /a/row_tokens", ""),
        ("it would overwrite 2 files", ""),
        ("Run 'packdata extend --overwrite'", ""),
    ],
)
def test_the_command_line_adds_the_options_of_arguments_that_a_message_names(
    text: str, named: str
) -> None:
    declared = {"shard_bytes": "--shard-size"}
    options = argparse.Namespace(row_tokens=2, overwrite=False, shard_bytes=1, declared=declared)

    expected = f"{text} (option: {named})" if named else text
    assert with_options(text, options) == expected


def test_an_error_keeps_its_type_and_place_in_other_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "--fit ids.npy"
    np.save(path, np.array([1, 70_000]))
    options = TokenOptions(vocab_size=300)

    with pytest.raises(SourceError) as caught:
        packdata.pack_tokens(path, tmp_path / "a", options)
    status = main(["tokens", str(path), str(tmp_path / "b"), "--vocab-size", "300"])

    told = capsys.readouterr().err
    assert status == 1
    assert "(options: --vocab-size, --bin-dtype)" in told
    assert "--bin-dtype" not in str(caught.value)
    assert "bin_dtype" in str(caught.value)
    assert "--fit ids.npy" in str(caught.value.path)
    assert "Give" not in caught.value.hint  # it was given
    assert str(inspect.signature(packdata.pack_tokens)).startswith("(sources")


def test_what_a_run_that_is_continued_was_given_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first shard is written, then a picture is bad."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for n in range(4):
        torch_free = rng.integers(0, 256, (64, 64, 3), np.uint8)
        _save(torch_free, tmp_path / "in" / f"{n}.png")
    (tmp_path / "in" / "9.png").write_bytes(b"no picture")
    command = ["images", str(tmp_path / "in"), str(tmp_path / "out")]
    assert main([*command, "--size", "64", "--shard-size", "4K", "--workers", "1"]) == 1
    capsys.readouterr()

    assert main([*command, "--size", "32", "--shard-size", "8K"]) == 1
    told = capsys.readouterr().err
    with pytest.raises(PackError) as caught:
        packdata.pack_images(tmp_path / "in", tmp_path / "out", sizes=32, shard_bytes=8192)

    assert str(caught.value) in told
    assert "sizes was" in told
    assert "shard_bytes was" in told
    assert "(options: --shard-size, --overwrite)" in told
    assert "--" not in str(caught.value)


def _save(pixels: np.ndarray[Any, Any], path: Path) -> None:
    from PIL import Image as Pil

    Pil.fromarray(pixels).save(path)


@pytest.mark.parametrize(
    ("largest", "dtype", "expected"),
    [(200, "int64", "uint16"), (65_535, "uint32", "uint16"), (65_536, "int64", "uint32")],
)
def test_ids_without_a_vocabulary_are_as_wide_as_the_largest_needs(
    tmp_path: Path, largest: int, dtype: str, expected: str
) -> None:
    ids = np.array([3, largest, 5], dtype)
    np.save(tmp_path / "a.npy", ids)

    packdata.pack_tokens(tmp_path / "a.npy", tmp_path / "out")

    field = ShardDataset(tmp_path / "out").schema.fields["tokens"]
    assert isinstance(field, Tokens)
    assert (field.dtype, field.vocab_size) == (expected, None)
    assert documents(tmp_path / "out") == [ids.tolist()]


def test_so_are_lists_of_ids_and_an_id_that_ends_them_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"input_ids": [1, 2]}\n{"input_ids": [3]}\n')

    packdata.pack_tokens(path, tmp_path / "small")
    packdata.pack_tokens(path, tmp_path / "large", TokenOptions(eod=70_000))

    assert ShardDataset(tmp_path / "small").schema.fields["tokens"].dtype == "uint16"
    assert ShardDataset(tmp_path / "large").schema.fields["tokens"].dtype == "uint32"
    assert documents(tmp_path / "large") == [[1, 2, 70_000], [3, 70_000]]


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a,b", 'a"b', "it's", "ä b"])
def test_a_column_of_any_name_can_be_left_out_as_the_error_says(tmp_path: Path, name: str) -> None:
    table = pd.DataFrame({name: [[1], [2]], "c": [1, 2]})

    with pytest.raises(SourceError) as caught:
        packdata.pack_tables(table, tmp_path / "out")

    assert f"drop={[name]}" in caught.value.hint


FIELDS: dict[str, Any] = {
    "image": Image(codec="png"),
    "images": Images(codec="png"),
    "ids": Array(dtype="int64", dims=(None,)),
    "boxes": Boxes(),
    "text": Text(),
}


@pytest.mark.parametrize("form", [{}, {"ids": "pad", "boxes": "offsets", "images": "offsets"}])
def test_batches_and_samples_load_as_weights(tmp_path: Path, form: dict[str, str]) -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    rows = [
        {"image": picture, "images": [picture] * i, "ids": np.arange(i), "boxes": [], "text": "a"}
        for i in range(3)
    ]
    packdata.pack(rows, tmp_path / "a", FIELDS)
    dataset = ShardDataset(tmp_path / "a", batching=form)
    (batch,) = DataLoader(dataset, batch_size=3)

    for value in (batch, dataset[1]):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        again = torch.load(file, weights_only=True)
        assert type(again) is type(value)
        assert repr(again) == repr(value)


def test_an_epoch_is_no_setting() -> None:
    loader = DataLoader(RAMDataset.from_arrays(x=np.zeros((8, 2), np.float32)), batch_size=4)

    with pytest.raises(AttributeError):
        loader.epoch = 3  # type: ignore[misc]
    loader.set_epoch(3)
