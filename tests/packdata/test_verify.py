"""Damage: each byte of a dataset that changes, each cut, each swap is found and repaired."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import packdata
from loaders.data.formats import hash_file, open_checksums, open_columns
from loaders.data.manifest import MANIFEST_NAME, read_manifest
from loaders.errors import ManifestError, ShardError, StaleDatasetError
from loaders.progress import Meter
from loaders.schema import Array, Field, Image, Label, Text
from packdata.cli import main
from packdata.inspect import verify as verifying
from packdata.inspect.stats import stats
from packdata.inspect.verify import Fault, Report, verify
from tests.packdata.packing import pack, pack_samples, sample
from tests.packdata.reading import PackedReader
from tests.refusals import At

FORMATS = ["lmdb", "parquet"]
FIELDS = ["image", "label", "key", "pixels"]


def flip(path: Path, at: int, mask: int = 0x04) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def faults_of(report: Report, file: str) -> list[Fault]:
    return [fault for fault in report.faults if fault.file == file]


@pytest.mark.parametrize("format", FORMATS)
def test_a_whole_dataset_has_no_fault(tmp_path: Path, format: str) -> None:
    report = verify(pack_samples(tmp_path / "a", 10, format=format), decode=True)

    assert report.ok
    assert report.notes == ()


@pytest.mark.parametrize("format", FORMATS)
def test_a_flipped_byte_anywhere_is_found(tmp_path: Path, format: str) -> None:
    """One flip in each of many shards, spread over the whole file: one run finds them all."""
    num = 24
    folder = pack_samples(tmp_path / "a", 2 * num, format=format, fields=FIELDS, per_shard=2)
    shards = read_manifest(folder).shards
    for k, shard in enumerate(shards[:-1]):
        flip(folder / shard.file, k * shard.size_bytes // num, 1 << k % 8)

    report = verify(folder)

    assert {fault.file for fault in report.faults} == {shard.file for shard in shards[:-1]}
    for shard in shards[:-1]:
        assert faults_of(report, shard.file)[0].what.startswith("xxh3-128 is")


def regions(folder: Path, number: int) -> dict[str, int]:
    """Return a byte in each region of a shard, by the region's name."""
    shard = read_manifest(folder).shards[number]
    columns = open_columns(folder / shard.file, shard)
    data = np.memmap(folder / shard.file, np.uint8, "r")
    base = data.ctypes.data
    found = {}
    for name, place in shard.places.items():
        row = columns[name].row(1)
        text, whole = row.tobytes(), data.tobytes()
        found[f"row of {name}"] = whole.index(text) + len(text) // 2 if len(text) > 8 else -1
        if len(text) <= 8:
            found[f"row of {name}"] = (
                place.offset + 8 + 1 if name == "label" else whole.index(text)
            )
        if place.lengths is not None:
            found[f"lengths of {name}"] = place.lengths + 4
        if place.starts is not None:
            found[f"starts of {name}"] = place.starts + 8 + 1
    found["checksums"] = shard.checksums[0] + shard.checksums[1] - 10
    found["first byte"] = 0
    found["last byte"] = shard.size_bytes - 1
    assert base
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_a_flip_in_every_region_is_named_with_its_place(tmp_path: Path, format: str) -> None:
    first = pack_samples(tmp_path / "probe", 4, format=format, fields=FIELDS, per_shard=4)
    names = list(regions(first, 0))
    folder = pack_samples(
        tmp_path / "a", 4 * len(names), format=format, fields=FIELDS, per_shard=4
    )
    for number, name in enumerate(names):
        flip(folder / f"shard-{number:05d}.{format}", regions(folder, number)[name], 0x10)

    report = verify(folder)

    for number, name in enumerate(names):
        file = f"shard-{number:05d}.{format}"
        found = faults_of(report, file)
        assert found[0].what.startswith("xxh3-128 is"), name
        kind, _, field = name.rpartition(" of ")
        rows = [fault for fault in found if fault.field == field and fault.rows is not None]
        if kind == "row":
            assert rows, (name, found)
            assert all(fault.rows and fault.rows[0] <= 1 <= fault.rows[1] for fault in rows)
        elif kind in ("lengths", "starts"):
            assert [fault for fault in found if fault.field == field], (name, found)
        if kind == "row" and field == "pixels":
            key = sample(4 * number + 1)["key"]
            assert rows[0].keys[0] == key or rows[0].rows == (0, 3)
            assert f"{file}, field pixels, row" in str(rows[0])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("decode", [False, True])
def test_cut_extended_swapped_and_missing_shards(
    tmp_path: Path, format: str, decode: bool
) -> None:
    folder = pack_samples(tmp_path / "a", 24, format=format, fields=FIELDS, per_shard=2)
    files = [shard.file for shard in read_manifest(folder).shards]
    size = (folder / files[0]).stat().st_size
    cuts = [0, 1, 7, 4096, size // 2, size - 8, size - 1]
    for file, cut in zip(files, cuts, strict=False):
        os.truncate(folder / file, cut)
    with open(folder / files[7], "ab") as longer:
        longer.write(b"\0" * 4096)
    (folder / files[8]).unlink()
    (folder / "swap").write_bytes((folder / files[9]).read_bytes())
    (folder / files[9]).write_bytes((folder / files[10]).read_bytes())
    (folder / "swap").replace(folder / files[10])

    report = verify(folder, decode=decode)

    assert {fault.file for fault in report.faults} == set(files[:11])
    for file in files[:7]:
        assert "the manifest says" in faults_of(report, file)[0].what
    assert "the manifest says" in faults_of(report, files[7])[0].what
    assert faults_of(report, files[8])[0].what == "missing"
    for file in files[9:11]:
        what = faults_of(report, file)[0].what
        assert "xxh3-128" in what or "bytes, the manifest says" in what


@pytest.mark.parametrize("format", FORMATS)
def test_each_large_row_is_told_apart(tmp_path: Path, format: str) -> None:
    """They are hashed one by one; damaged neighbours are one finding."""
    rows = [np.random.default_rng(i).integers(0, 256, 20_000, np.uint8) for i in range(6)]
    fields: dict[str, Field] = {"x": Array(dtype="uint8", dims=(20_000,))}
    folder = pack(tmp_path / "a", fields, [{"x": row} for row in rows], format=format, per_shard=6)
    (info,) = read_manifest(folder).shards
    content = (folder / info.file).read_bytes()
    for bad in (1, 2, 5):
        flip(folder / info.file, content.index(rows[bad].tobytes()) + 9)

    faults = verify(folder).faults

    assert [fault.rows for fault in faults if fault.field == "x"] == [(1, 2), (5, 5)]


def test_a_block_of_small_rows_is_named_by_its_first_and_last_key(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 6, fields=["key", "score"], per_shard=6)
    (info,) = read_manifest(folder).shards
    flip(folder / info.file, info.places["score"].offset)

    (fault,) = (fault for fault in verify(folder).faults if fault.field == "score")

    assert (fault.rows, fault.keys) == ((0, 5), ("bird/000", "dog/005"))
    assert f"{info.file}, field score, rows 0 to 5, keys 'bird/000' to 'dog/005': " in str(fault)


def test_quick_finds_what_changed_but_not_where(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 8, fields=FIELDS)
    flip(folder / "shard-00001.lmdb", regions(folder, 1)["row of pixels"])

    quick = verify(folder, quick=True)

    assert [(fault.file, fault.rows) for fault in quick.faults] == [("shard-00001.lmdb", None)]


def test_a_folder_or_pipe_in_place_of_a_shard_is_a_fault(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 8, fields=["label"])
    for number, make in enumerate((os.mkdir, os.mkfifo)):
        path = folder / f"shard-{number:05d}.lmdb"
        path.unlink()
        make(path)

    report = verify(folder)

    assert [fault.what for fault in report.faults] == ["not a file"] * 2


def test_what_else_lies_in_the_folder_is_noted(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 2)
    (folder / ".packing").mkdir()
    for name in ("rejected.jsonl", "shard-00007.lmdb", "shard-00001.lmdb.tmp"):
        (folder / name).write_text("")

    report = verify(folder)

    assert report.ok
    assert report.notes == (
        ".packing: not a part of the dataset",
        "shard-00001.lmdb.tmp: not a part of the dataset",
        "shard-00007.lmdb: not a part of the dataset",
    )


@pytest.mark.parametrize("format", FORMATS)
def test_keys_that_stand_twice(tmp_path: Path, format: str) -> None:
    rows = [{"key": f"k{i % 6}"} for i in range(7)]
    folder = pack(tmp_path / "a", {"key": Text()}, rows, format=format)

    (fault,) = verify(folder).faults

    assert (fault.field, fault.rows, fault.keys) == ("key", (2, 2), ("k0",))
    assert f"shard-00000.{format}, row 0" in fault.what


def test_samples_without_a_label_are_no_fault_and_the_commands_know_them(tmp_path: Path) -> None:
    labels = [0, -1, 1, -1, 0, 1]
    rows = [{"label": label} for label in labels]
    folder = pack(tmp_path / "a", {"label": Label(classes=("ant", "bee"))}, rows)
    parts = ["--parts", "a=0.5", "b=0.5", "--stratify", "label"]

    assert main(["verify", str(folder)]) == 0
    assert main(["info", str(folder)]) == 0
    assert main(["copy", str(folder), str(tmp_path / "b"), "--where", "label == -1"]) == 0
    assert main(["split", str(folder), str(tmp_path / "c"), *parts]) == 0

    assert stats(folder).fields["label"]["classes"] == {"-1": 2, "ant": 2, "bee": 2}
    assert PackedReader(tmp_path / "b").column("label").tolist() == [-1, -1]
    assert sorted(PackedReader(tmp_path / "c/a").column("label").tolist()) == [-1, 0, 1]


def test_decode_finds_records_that_are_whole_but_wrong(tmp_path: Path) -> None:
    bad = [b"\xff\xd8\xff broken", b"", b"GIF89a"]
    rows = [{"image": sample(i)["image"] if i > 2 else bad[i], "key": f"k{i}"} for i in range(5)]
    folder = pack(tmp_path / "a", {"image": Image(codec="png"), "key": Text()}, rows)

    report = verify(folder, decode=True)

    assert verify(folder).ok
    assert [(f.field, f.rows, f.keys) for f in report.faults] == [
        ("image", (i, i), (f"k{i}",)) for i in range(3)
    ]


def test_a_dataset_that_is_replaced_while_it_is_verified_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    packdata.pack([{"x": "one"}], folder, {"x": Text()})

    def late(path: Path) -> str:
        monkeypatch.undo()
        packdata.pack([{"x": "two"}], folder, {"x": Text()}, overwrite=True)
        return hash_file(path)

    monkeypatch.setattr(verifying, "hash_file", late)
    with pytest.raises(StaleDatasetError):
        verify(folder)

    assert verify(folder).ok


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 10)
    meter = Meter("verifying", "bytes")

    report = verify(folder, progress=meter)

    assert report.manifest is not None
    assert meter.done == report.manifest.size_bytes


# The manifest


@pytest.mark.parametrize("mask", [0x01, 0x20])
def test_every_flipped_byte_of_the_manifest_is_found(tmp_path: Path, mask: int) -> None:
    folder = pack_samples(tmp_path / "a", 4, fields=["label", "key"])
    path = folder / MANIFEST_NAME
    good = path.read_bytes()

    undetected = []
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :])
        try:
            read_manifest(folder)
        except ManifestError:
            continue
        undetected.append(at)

    assert undetected == []


def test_a_manifest_that_cannot_be_used_is_a_fault(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 2, fields=["label"])
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))

    assert [fault.file for fault in verify(folder).faults] == [MANIFEST_NAME]


def test_checksums_nested_too_deep_are_a_shard_error(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 2, fields=["pixels"])
    shard = read_manifest(folder).shards[0]
    (folder / shard.file).write_bytes(b"[" * shard.size_bytes)
    wide = shard._replace(checksums=(0, shard.size_bytes))

    with pytest.raises(ShardError, check=At("a/shard-00000.lmdb")):
        open_checksums(folder / shard.file, wide)
