"""Folders that ``datasets.save_to_disk`` of Hugging Face wrote: pictures, tokens and tables."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loaders import ShardDataset
from loaders.data.manifest import read_manifest
from loaders.errors import SourceError
from packdata.cli import main
from packdata.tokens.plan import plan_tokens
from tests.packdata.pngs import png
from tests.packdata.test_tokens import documents


def save(folder: Path, *tables: pa.Table, features: Any = None, **state: Any) -> Path:
    """Write tables as ``Dataset.save_to_disk`` does, a file each, and a cache that is none of them."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    notes = {"huggingface": json.dumps({"info": {"features": features or {}}})}
    for name, table in zip([*names, "cache-0123.arrow"], [*tables, tables[0]], strict=True):
        with pa.ipc.new_stream(folder / name, table.schema.with_metadata(notes)) as writer:
            writer.write_table(table.replace_schema_metadata(notes), max_chunksize=2)
    listed = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(listed | state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def pictures(labels: Sequence[int]) -> pa.Table:
    images = [
        {"bytes": png(np.zeros((4, 3 + label), np.uint8), 3 + label, 8, 0), "path": None}
        for label in labels
    ]
    return pa.table({"image": images, "label": pa.array(labels, pa.int64())})


FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}


def test_pictures_of_splits_by_any_name_are_packed_with_their_classes(tmp_path: Path) -> None:
    source = tmp_path / "saved"
    save(source / "train", pictures([1, 0, 1]), pictures([0]), features=FEATURES)
    save(source / "held", pictures([1]), features=FEATURES)
    (source / "dataset_dict.json").write_text('{"splits": ["train", "held"]}')

    assert main(["images", str(source), str(tmp_path / "p")]) == 0

    for name, labels in (("train", [1, 0, 1, 0]), ("held", [1])):
        dataset = ShardDataset(tmp_path / "p" / name)
        assert dataset.schema.fields["label"].classes == ("cat", "dog")  # type: ignore[attr-defined]
        assert [int(sample.label) for sample in dataset] == labels
        assert [sample.image.shape[2] for sample in dataset] == [3 + label for label in labels]


def test_ids_are_packed_file_by_file_without_what_a_cache_left(tmp_path: Path) -> None:
    first, second = ([[1, 2], [3]], [[4, 5]])
    source = save(
        tmp_path / "saved",
        *(pa.table({"input_ids": ids, "labels": ids}) for ids in (first, second)),
    )

    assert main(["tokens", str(source), str(tmp_path / "p")]) == 0

    assert documents(tmp_path / "p") == first + second
    assert "labels" in read_manifest(tmp_path / "p").schema.fields


def test_a_table_is_packed_without_what_a_cache_left(tmp_path: Path) -> None:
    source = save(tmp_path / "saved", pa.table({"x": [0.5, 1.5], "y": [1, 2]}))

    assert main(["tables", str(source), str(tmp_path / "p"), "--target", "y"]) == 0

    assert len(ShardDataset(tmp_path / "p")) == 2


@pytest.mark.parametrize("command", ["images", "tokens", "tables"])
def test_a_cache_of_load_dataset_is_refused_and_its_files_are_packed(
    tmp_path: Path, command: str
) -> None:
    table = {"images": pictures([0, 1]), "tokens": pa.table({"input_ids": [[1, 2], [3]]})}
    source = save(tmp_path / "cache", table.get(command, pa.table({"x": [0.5, 1.5]})))
    (source / "state.json").unlink()
    (source / "dataset_info.json").write_text('{"splits": {"train": {}}}')

    assert main([command, str(source), str(tmp_path / "no")]) == 1
    assert main([command, str(source / "data-00000-of-00001.arrow"), str(tmp_path / "p")]) == 0


@pytest.mark.parametrize("command", ["images", "tokens", "tables"])
@pytest.mark.parametrize(
    ("state", "what"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "flatten_indices"),
        ({"_data_files": [{"filename": "lost.arrow"}]}, "is not there"),
        ({"_data_files": [{"filename": "../lost.arrow"}]}, "is not there"),
        ({"_data_files": None}, "save_to_disk"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, state: Any, what: str
) -> None:
    source = save(tmp_path / "saved", pictures([0]), **state)

    assert main([command, str(source), str(tmp_path / "p")]) == 1

    assert what in capsys.readouterr().err


def test_an_arrow_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "saved", pa.table({"input_ids": [list(range(999))]}))
    file = source / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:-600])

    with pytest.raises(SourceError) as caught:
        plan_tokens(source)

    assert caught.value.path == file


@pytest.mark.parametrize("to_file", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize(("command", "column"), [("images", "image"), ("tokens", "text")])
def test_an_offset_beyond_its_buffer_is_refused(
    tmp_path: Path, command: str, column: str, to_file: Callable[..., Any]
) -> None:
    """Reading such a row would end the process by a signal."""
    picture = png(np.zeros((4, 3), np.uint8), 3, 8, 0)
    cells = {"image": [picture] * 3, "text": ["abc", "x" * 7, "y" * 9]}[column]
    table = pa.table({column: cells})
    offsets = np.cumsum([0, *map(len, table.column(0).to_pylist())]).astype(np.int32)
    source = tmp_path / "saved.arrow"
    with to_file(source, table.schema) as writer:
        writer.write_table(table)
    data, bad = source.read_bytes(), offsets.copy()
    bad[2] = 1 << 30
    assert data.count(offsets.tobytes()) == 1
    source.write_bytes(data.replace(offsets.tobytes(), bad.tobytes()))

    done = subprocess.run(  # a signal would end the tests
        [sys.executable, "-m", "packdata", command, source, tmp_path / "p"], capture_output=True
    )

    assert done.returncode == 1
    assert str(source) in done.stderr.decode()
