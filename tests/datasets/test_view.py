"""The torch-free reader: records, samples, columns and keys by number, errors with their place."""

from pathlib import Path

import numpy as np
import pytest

from loaders.data import view as view_module
from loaders.data.manifest import read_manifest
from loaders.data.shards import Check
from loaders.data.view import open_view
from loaders.errors import ChecksumError, ManifestError, SampleError, SchemaError, ShardError
from loaders.schema import Image, Text
from tests.packdata.packing import CLASSES, pack, pack_samples, sample
from tests.packdata.reading import PackedReader
from tests.refusals import At

FORMATS = ["lmdb", "parquet"]


@pytest.mark.parametrize("format", FORMATS)
def test_samples_come_back_as_they_were_packed(tmp_path: Path, format: str) -> None:
    reader = PackedReader(pack_samples(tmp_path / "a", 10, format=format))

    assert len(reader) == 10
    for i in [0, 3, 4, 9]:
        found, packed = reader.sample(i), sample(i)
        assert list(found) == list(packed)
        for name, value in packed.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("format", FORMATS)
def test_checked_records_are_the_same_records(tmp_path: Path, format: str) -> None:
    folder = pack_samples(tmp_path / "a", 6, format=format)
    plain, checked = PackedReader(folder), PackedReader(folder, check=True)

    for i in range(6):
        for name, record in plain.records_of(i).items():
            np.testing.assert_array_equal(checked.record(i, name), record)
    np.testing.assert_array_equal(checked.column("pixels"), plain.column("pixels"))


def test_place_finds_shard_and_row(tmp_path: Path) -> None:
    reader = PackedReader(pack_samples(tmp_path / "a", 10, per_shard=4))
    view = reader.select(np.array([9, 0, 4]))

    assert [(path.name, row) for path, row in map(view.place, range(3))] == [
        ("shard-00002.lmdb", 1),
        ("shard-00000.lmdb", 0),
        ("shard-00001.lmdb", 0),
    ]
    for i in (10, -11):
        with pytest.raises(IndexError):
            reader.sample(i)


@pytest.mark.parametrize("format", FORMATS)
def test_columns_of_fixed_fields_hold_every_sample(tmp_path: Path, format: str) -> None:
    reader = PackedReader(pack_samples(tmp_path / "a", 10, format=format))

    assert reader.column("label").tolist() == [i % 3 for i in range(10)]
    assert reader.column("score").dtype == np.float32
    assert reader.column("tags").shape == (10, 2)
    expected = np.stack([sample(i)["pixels"] for i in range(10)])
    np.testing.assert_array_equal(reader.column("pixels"), expected)
    for name in ("image", "boxes", "key"):
        with pytest.raises(SchemaError):
            reader.column(name)


def test_keys_are_listed_or_said_to_be_missing(tmp_path: Path) -> None:
    with_keys = PackedReader(pack_samples(tmp_path / "a", 5))
    without = PackedReader(pack_samples(tmp_path / "b", 5, fields=["label"]))

    assert with_keys.keys() == [f"{CLASSES[i % 3]}/{i:03d}" for i in range(5)]
    assert not without.has_keys
    assert without.key(0) is None
    with pytest.raises(SchemaError):
        without.keys()


def test_a_fingerprint_tells_the_order_of_samples(tmp_path: Path) -> None:
    view = open_view(pack_samples(tmp_path / "a", 6))
    chosen = [[0, 1, 2], [2, 1, 0], [0, 1], [0, 1, 3]]

    prints = [view.select(np.array(numbers)).fingerprint for numbers in chosen]

    assert len({view.fingerprint, *prints}) == 5
    assert view.select(np.arange(3)).fingerprint == prints[0]


def test_an_unknown_field_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    reader = PackedReader(pack_samples(tmp_path / "a", 2, fields=["label", "key"]))

    with pytest.raises(SchemaError):
        reader.sample(0, ["imgae"])


def test_a_record_that_cannot_be_decoded_is_named_with_shard_row_and_key(tmp_path: Path) -> None:
    rows = [{"image": b"\xff\xd8 no picture", "key": f"photo {i}"} for i in range(6)]
    reader = PackedReader(pack(tmp_path / "a", {"image": Image(), "key": Text()}, rows))

    with pytest.raises(SampleError, check=At("a/shard-00001.lmdb", row=1, index=5, key="photo 5")):
        reader.sample(5)


@pytest.mark.parametrize("format", FORMATS)
def test_a_flipped_byte_is_found_only_when_asked(tmp_path: Path, format: str) -> None:
    folder = pack_samples(tmp_path / "a", 6, format=format)
    shard = read_manifest(folder).shards[1]
    data = bytearray((folder / shard.file).read_bytes())
    at = data.find(sample(5)["pixels"].tobytes())
    data[at + 100] ^= 1
    (folder / shard.file).write_bytes(data)

    PackedReader(folder).sample(5)
    checked = PackedReader(folder, check=True)
    checked.record(5, "label")
    with pytest.raises(ChecksumError, check=At(field="pixels")):
        checked.record(5, "pixels")
    with pytest.raises(ChecksumError, check=At(field="pixels")):
        checked.column("pixels")


def test_missing_and_cut_shards_are_said(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 10)
    (folder / "shard-00001.lmdb").unlink()
    (folder / "shard-00002.lmdb").write_bytes(b"short")
    reader = PackedReader(folder)

    reader.sample(0)
    with pytest.raises(ShardError, check=At("shard-00001.lmdb")):
        reader.sample(4)
    with pytest.raises(ShardError, check=At("shard-00002.lmdb")):
        reader.sample(9)
    assert reader.key(9) is None


@pytest.mark.parametrize("check", ["first", "always"])
def test_few_shards_are_open_at_a_time(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: files and maps of a process are limited."""
    monkeypatch.setattr(view_module, "_MAX_OPEN", 8)
    view = open_view(pack_samples(tmp_path / "a", 40, per_shard=1, fields=["key", "score"]), check)

    keys = view.keys()
    scores = view.select(np.arange(40)[::-1]).column("score")

    assert keys == [f"{CLASSES[i % 3]}/{i:03d}" for i in range(40)]
    assert scores.tolist() == [i / 4 for i in range(40)][::-1]
    assert sum(shard is not None for shard in view.store._open) <= 8


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, check=At("none")):
        PackedReader(tmp_path / "none")
