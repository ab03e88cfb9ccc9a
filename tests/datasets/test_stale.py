"""A dataset that is packed anew in its folder while it is open."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset, concat
from loaders.data import formats
from loaders.data.manifest import read_manifest
from loaders.errors import SampleError, StaleDatasetError
from loaders.schema import Array, Field, Label, Text
from packdata.packed.derive import extend
from tests.refusals import without_hash

NUM, WIDTH = 12, 5_000


def pack(folder: Path, value: int, classes: tuple[str, str] = ("cat", "dog")) -> Path:
    """Pack rows of one number: each version has files of the same names and sizes."""
    shutil.rmtree(folder, ignore_errors=True)
    fields: dict[str, Field] = {
        "x": Array(dtype="uint8", dims=(WIDTH,)),
        "label": Label(classes=classes),
    }
    rows = ({"x": np.full(WIDTH, value, np.uint8), "label": i % 2} for i in range(NUM))
    packdata.pack(rows, folder, fields, shard_bytes=4 * WIDTH)
    return folder


def pack_texts(folder: Path, number: int) -> Path:
    """Pack texts, whose places are read from the file that is mapped."""
    shutil.rmtree(folder, ignore_errors=True)
    packdata.pack([{"x": f"text {number}"}], folder, {"x": Text()})
    return folder


def sizes(folder: Path) -> dict[str, int]:
    return {shard.file: shard.size_bytes for shard in read_manifest(folder).shards}


def assert_stale(read: Any, *args: Any) -> StaleDatasetError:
    """Return the error that the dataset was replaced, which is of a sample or of a shard."""
    with pytest.raises((StaleDatasetError, SampleError)) as caught:
        read(*args)
    error = caught.value if isinstance(caught.value, StaleDatasetError) else caught.value.__cause__
    assert isinstance(error, StaleDatasetError)
    return error


@pytest.mark.parametrize("classes", [("cat", "dog"), ("ape", "dog")])
def test_a_shard_that_is_opened_behind_a_new_packing_is_refused(
    tmp_path: Path, classes: tuple[str, str]
) -> None:
    """Also if its bytes are the same, and only the names of the classes are others."""
    folder = pack(tmp_path / "a", 1)
    dataset, before = ShardDataset(folder), sizes(folder)
    assert int(dataset[0].x[0]) == 1

    pack(folder, 1 if classes[0] == "ape" else 2, classes)

    assert [*sizes(folder).values()] == [*before.values()]
    assert len(before) == 3
    assert (
        without_hash(assert_stale(dataset.__getitem__, NUM - 1).path)
        == f"{folder}/shard-00002.lmdb"
    )
    assert int(dataset[1].x[0]) == 1  # of the file that is mapped
    assert ShardDataset(folder)[0].x[0] == (1 if classes[0] == "ape" else 2)


def test_a_dataset_that_is_replaced_while_a_shard_is_opened_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, map_shard = ShardDataset(pack_texts(tmp_path / "a", 1)), formats.map_shard

    def late(*about: Any) -> Any:
        mapped = map_shard(*about)
        monkeypatch.setattr(formats, "map_shard", map_shard)
        pack_texts(tmp_path / "a", 2)
        return mapped

    monkeypatch.setattr(formats, "map_shard", late)
    assert_stale(dataset.__getitem__, 0)


def test_copies_of_a_dataset_meet_the_new_files(tmp_path: Path) -> None:
    """Those that open shards by path: in another process, joined, in memory."""
    folder = pack(tmp_path / "a", 1)
    dataset = ShardDataset(folder)
    dataset[0], dataset[5], dataset[NUM - 1]
    pickled = pickle.dumps(dataset)
    assert int(pickle.loads(pickled)[0].x[0]) == 1
    joined = concat([dataset, ShardDataset(pack(tmp_path / "b", 3))])

    pack(folder, 2)

    assert_stale(pickle.loads(pickled).__getitem__, 0)
    assert_stale(joined.__getitem__, 0)
    assert_stale(RAMDataset, pickle.loads(pickled))
    assert int(joined[NUM].x[0]) == 3


def test_a_loader_says_so_instead_of_replacing_samples(tmp_path: Path) -> None:
    folder = pack(tmp_path / "a", 1)
    dataset = ShardDataset(folder, on_error="replace")
    pack(folder, 2)

    assert_stale(list, DataLoader(dataset, 4, num_workers=1))


@pytest.mark.parametrize("shard_bytes", [None, 1 << 20])
def test_a_dataset_that_was_replaced_is_not_written(
    tmp_path: Path, shard_bytes: int | None
) -> None:
    """Neither linked, nor as what the open shards hold: it would be said to be made from the new one."""
    folder = pack(tmp_path / "a", 1)
    dataset = ShardDataset(folder)
    dataset.column("label")  # all shards are open

    pack(folder, 2)

    assert_stale(lambda: packdata.write(dataset, tmp_path / "b", shard_bytes=shard_bytes))
    assert not (tmp_path / "b").exists()


def test_packing_over_a_dataset_is_no_missing_shard(tmp_path: Path) -> None:
    """``overwrite`` gives shards other names, and deletes the old ones."""
    folder = pack(tmp_path / "a", 1)
    dataset = ShardDataset(folder)
    rows = ({"x": np.full(WIDTH, 2, np.uint8), "label": 0} for _ in range(NUM))
    packdata.pack(rows, folder, dict(dataset.schema.fields), overwrite=True)

    assert_stale(dataset.__getitem__, 0)


def test_a_folder_without_its_manifest_is_refused(tmp_path: Path) -> None:
    """As it is while another dataset is copied there."""
    folder = pack(tmp_path / "a", 1)
    dataset = ShardDataset(folder)
    (folder / "manifest.json").unlink()

    assert_stale(dataset.__getitem__, 0)


def test_a_dataset_that_grows_or_is_restored_goes_on(tmp_path: Path) -> None:
    folder = pack(tmp_path / "a", 1)
    dataset = ShardDataset(folder)
    manifest = (folder / "manifest.json").read_bytes()

    extend(folder, [pack(tmp_path / "b", 2)])
    assert int(dataset[0].x[0]) == 1
    (folder / "new").write_bytes(manifest)
    os.replace(folder / "new", folder / "manifest.json")
    assert int(dataset[NUM - 1].x[0]) == 1
