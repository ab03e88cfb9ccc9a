"""``packdata.write``: views of packed samples as datasets of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders import RAMDataset, ShardDataset, TokenWindows, augment, concat
from loaders.data.manifest import read_manifest
from loaders.errors import ChecksumError, PackError, SchemaError, StaleDatasetError
from loaders.schema import Array, Image, Mask
from packdata.images.fit import SizeOption
from packdata.inspect.verify import verify
from packdata.packed.derive import CopyOptions, copy_dataset, merge, split
from packdata.packing.store import FolderStore
from tests.packdata.packing import CLASSES, pack_samples, sample
from tests.packdata.reading import PackedReader

SMALL = ["label", "key", "score", "pixels"]


@pytest.fixture(params=["lmdb", "parquet"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return pack_samples(tmp_path / "a", 10, format=request.param)


def records(folder: Path, names: Any = None) -> list[dict[str, bytes]]:
    reader = PackedReader(folder, check=True)
    names = reader.schema.fields if names is None else names
    return [{n: reader.record(i, n).tobytes() for n in names} for i in range(len(reader))]


def hashes(folder: Path) -> list[str]:
    return [shard.xxh3_128 for shard in read_manifest(folder).shards]


def test_any_view_is_written_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    """In its order, with its fields; whatever is augmented."""
    before = records(folder)
    dataset = ShardDataset(folder, augment=[augment.RandomHorizontalFlip()])
    other = ShardDataset(pack_samples(tmp_path / "b", 6, first=20))
    views: dict[str, tuple[Any, list[int]]] = {
        "all": (dataset, [*range(10)]),
        "mask": (dataset.select(dataset.column("label") == 1), [1, 4, 7]),
        "order": (dataset.select([9, 0, 5]), [9, 0, 5]),
        "slice": (dataset[2:9:3], [2, 5, 8]),
        "ram": (RAMDataset(dataset.replace(fields=list(before[0]))).select([3, 1]), [3, 1]),
        "path": (folder, [*range(10)]),
    }

    for name, (view, indices) in views.items():
        made = packdata.write(view, tmp_path / name)
        assert made.samples == len(indices)
        assert records(tmp_path / name) == [before[i] for i in indices]
        assert verify(tmp_path / name).ok
    joined = concat([dataset.replace(augment=[])[:3], other[::2]])
    packdata.write(joined, tmp_path / "joined")
    assert records(tmp_path / "joined") == [*before[:3], *records(tmp_path / "b")[::2]]
    assert ShardDataset(tmp_path / "joined").classes == CLASSES


def test_the_fields_are_those_that_were_chosen(folder: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(folder)
    packdata.write(dataset.replace(fields=["score", "sample_id", "image"]), tmp_path / "b")

    schema = read_manifest(tmp_path / "b").schema
    assert list(schema.fields) == ["score", "image"]
    assert schema.defaults == ("score", "image")
    assert records(tmp_path / "b") == records(folder, ["score", "image"])


def test_commands_write_what_views_of_them_do(folder: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(folder)
    options: Any = {"shard_bytes": 20_000}
    copy_dataset(folder, tmp_path / "copy", CopyOptions(where="label != 0"), shard_bytes=20_000)
    packdata.write(dataset.select(dataset.column("label") != 0), tmp_path / "c", **options)
    split(folder, tmp_path / "parts", {"a": 0.5, "b": 0.5}, seed=3, shard_bytes=20_000)
    for name, part in zip("ab", dataset.split([0.5, 0.5], seed=3), strict=True):
        packdata.write(part, tmp_path / f"part-{name}", **options)
    more = pack_samples(
        tmp_path / "more",
        4,
        first=50,
        format=read_manifest(folder).shards[0].file.rpartition(".")[2],
    )
    merge(tmp_path / "merged", [folder, more])
    packdata.write(concat([dataset, ShardDataset(more)]), tmp_path / "m")

    assert hashes(tmp_path / "copy") == hashes(tmp_path / "c")
    for name in "ab":
        assert hashes(tmp_path / "parts" / name) == hashes(tmp_path / f"part-{name}")
    assert hashes(tmp_path / "merged") == hashes(tmp_path / "m")


def test_whole_shards_are_linked(folder: Path, tmp_path: Path) -> None:
    """As long as nothing is asked of them."""
    files = [folder / shard.file for shard in read_manifest(folder).shards]
    suffix: Any = files[0].suffix[1:]

    packdata.write(ShardDataset(folder), tmp_path / "b", format=suffix)
    links = [tmp_path / "b" / shard.file for shard in read_manifest(tmp_path / "b").shards]
    assert [os.path.samefile(a, b) for a, b in zip(files, links, strict=True)] == [True] * 3

    with pytest.raises(PackError):  # it is another command, which would replace links
        packdata.write(ShardDataset(folder), tmp_path / "b", format=suffix, shard_bytes=64 << 20)

    changes: dict[str, dict[str, Any]] = {
        "size": {"shard_bytes": 1 << 20},
        "add": {"add": {"x": np.arange(10)}},
        "format": {"format": "parquet" if suffix == "lmdb" else "lmdb"},
    }
    for name, options in changes.items():
        packdata.write(ShardDataset(folder), tmp_path / name, **options)
        made = [tmp_path / name / s.file for s in read_manifest(tmp_path / name).shards]
        assert not any(os.path.samefile(a, b) for a in files for b in made)


def test_values_are_added_and_changed(folder: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(folder).select([4, 2, 7])
    add = {
        "age": np.array([1, -2, 3], np.int16),
        "emb": torch.arange(6, dtype=torch.float32).reshape(3, 2),
        "note": ["a", "b", ""],
        "meta": [{"x": 1}, [2], None],
        "blob": [b"1", b"", b"23"],
        "label": ["dog", 1, "bird"],
        "key": ["p", "q", "r"],
    }

    packdata.write(dataset, tmp_path / "b", add=add)

    made = ShardDataset(tmp_path / "b")
    fields = made.schema.fields
    assert fields["age"] == Array(dtype="int16")
    assert fields["emb"] == Array(dtype="float32", dims=(2,))
    assert [fields[n].kind for n in ("note", "meta", "blob")] == ["text", "json", "bytes"]
    assert list(fields)[: len(read_manifest(folder).schema.fields)] == list(
        read_manifest(folder).schema.fields
    )
    assert made.schema.defaults == ("image", "label", "age", "emb", "note", "meta", "blob")
    assert made.column("age").tolist() == [1, -2, 3]
    assert made.column("emb").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert made.column("note").tolist() == ["a", "b", ""]
    reader = PackedReader(tmp_path / "b")
    assert [reader.sample(i)["meta"] for i in range(3)] == [{"x": 1}, [2], None]
    assert made.column("label").tolist() == [2, 1, 0]
    assert made.find("q") == 1
    kept = ["image", "pixels", "score"]
    assert records(tmp_path / "b", kept) == [records(folder, kept)[i] for i in (4, 2, 7)]


def test_pictures_take_the_place_of_others(folder: Path, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (10, 8, 9, 3), np.uint8)

    packdata.write(folder, tmp_path / "b", add={"image": list(pictures)})

    images = [sample.image.numpy() for sample in ShardDataset(tmp_path / "b", fields=["image"])]
    assert np.array_equal(np.stack(images).transpose(0, 2, 3, 1), pictures)


def test_what_was_written_with_other_values_is_not_taken_for_these(
    folder: Path, tmp_path: Path
) -> None:
    for _ in range(2):  # the same again is done
        packdata.write(folder, tmp_path / "b", add={"age": [*range(10)]})

    with pytest.raises(PackError):
        packdata.write(folder, tmp_path / "b", add={"age": [*range(1, 11)]})

    packdata.write(folder, tmp_path / "b", add={"age": [*range(1, 11)]}, overwrite=True)
    assert ShardDataset(tmp_path / "b").column("age").tolist() == [*range(1, 11)]


def test_pictures_get_another_codec_and_size_without_decoding_the_rest(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 6, fields=["image", "pixels", "mask", "label"])
    dataset = ShardDataset(folder)

    packdata.write(dataset, tmp_path / "png", codec="png")
    packdata.write(dataset, tmp_path / "small", size="8x10", fit="stretch")

    fields = read_manifest(tmp_path / "png").schema.fields
    assert (fields["image"].codec, fields["pixels"].codec) == ("png", "png")
    assert records(tmp_path / "png", ["image", "mask"]) == records(folder, ["image", "mask"])
    reader = PackedReader(tmp_path / "png")
    assert all(np.array_equal(reader.sample(i)["pixels"], sample(i)["pixels"]) for i in range(6))
    small = read_manifest(tmp_path / "small").schema.fields
    for name, kind in (("image", Image), ("pixels", Image), ("mask", Mask)):
        field = small[name]
        assert isinstance(field, kind)
        assert field.size == (8, 10)
    packdata.write(dataset.select([0, 1, 2]), tmp_path / "same", size=16, fit="shorter")
    same, before = records(tmp_path / "same"), records(folder)[:3]  # the pictures have 16 lines
    assert [r["image"] for r in same] == [r["image"] for r in before]
    assert [r["mask"] for r in same] == [r["mask"] for r in before]
    assert PackedReader(tmp_path / "same").sample(1)["pixels"].shape == (16, 19, 3)
    made, fit = PackedReader(tmp_path / "small").sample(2), SizeOption(8, 10, "stretch")
    assert made["image"].shape == made["pixels"].shape == (8, 10, 3)
    assert np.array_equal(made["mask"], fit.apply(sample(2)["mask"], nearest=True))


def test_pixels_of_many_sizes_get_another_shorter_side(tmp_path: Path) -> None:
    """Though the field stays as it is, which has no size before and behind that."""
    pictures = [np.zeros((20, width, 3), np.uint8) for width in (30, 40)]
    fields = {"image": Image(codec="raw")}
    packdata.pack(({"image": each} for each in pictures), tmp_path / "a", fields)

    packdata.write(tmp_path / "a", tmp_path / "b", size=10)

    reader = PackedReader(tmp_path / "b")
    assert [reader.sample(i)["image"].shape for i in range(2)] == [(10, 15, 3), (10, 20, 3)]


def test_added_values_are_those_of_their_samples_however_many_there_are(tmp_path: Path) -> None:
    numbers, fields = np.arange(10_000), {"x": Array(dtype="int64")}
    packdata.pack({"x": numbers}, tmp_path / "a", fields)

    packdata.write(tmp_path / "a", tmp_path / "b", add={"y": numbers})

    reader = PackedReader(tmp_path / "b")
    assert reader.column("y").tolist() == reader.column("x").tolist() == numbers.tolist()


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path
) -> None:
    dataset = ShardDataset(folder)
    boxed = dataset.replace(fields=["image", "boxes"])
    wrong: list[tuple[type[Exception], Any, dict[str, Any]]] = [
        (SchemaError, dataset.replace(transform=lambda s: s), {}),
        (SchemaError, boxed, {"size": 8}),
        (SchemaError, dataset.replace(fields=["pixels", "boxes"]), {}),
        (SchemaError, dataset.replace(fields=["label"]), {"codec": "png"}),
        (SchemaError, dataset, {"codec": "dct"}),  # of pictures of any size
        (SchemaError, dataset.select([1, 2, 1]), {}),  # two samples of one key
        (SchemaError, concat([dataset, dataset]), {}),
        (SchemaError, dataset, {"add": {"key": [*"abcdefghi", "a"]}}),
        (SchemaError, dataset, {"add": {"x": [1, 2]}}),
        (SchemaError, dataset, {"add": {"label": ["cow"] * 10}}),
        (SchemaError, dataset, {"add": {"": [1] * 10}}),
        (SchemaError, dataset, {"add": {"x": "0123456789"}}),
        (SchemaError, dataset, {"add": {"x": {*range(10)}}}),
        (SchemaError, dataset, {"add": {"x": dict.fromkeys(range(10))}}),
        (SchemaError, dataset, {"add": {"x": np.array(3)}}),
        (SchemaError, dataset, {"fit": "cover"}),
        (TypeError, [1, 2], {}),
        (TypeError, torch.utils.data.TensorDataset(torch.zeros(3)), {}),
        (ValueError, dataset, {"codec": "png", "quality": 80}),
        (ValueError, dataset, {"format": "zip"}),
        (PackError, dataset.select([]), {}),
    ]

    for error, view, options in wrong:
        with pytest.raises(error):
            packdata.write(view, tmp_path / "b", **options)
        assert not (tmp_path / "b").exists()
    for dst in (folder / "inside", folder):
        with pytest.raises(PackError):
            packdata.write(dataset, dst, overwrite=True)
    packdata.write(dataset.select([1, 2, 1]).replace(fields=["image", "score"]), tmp_path / "b")
    with pytest.raises(PackError):
        packdata.write(dataset, tmp_path / "b")
    assert len(PackedReader(tmp_path / "b")) == 3


def test_of_added_values_the_wrong_one_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"value 7 of 'label'"):
        packdata.write(folder, tmp_path / "b", add={"label": [0] * 7 + ["cow"] + [1, 1]})


def test_a_damaged_record_gets_no_good_checksum(folder: Path, tmp_path: Path) -> None:
    """Also of a dataset that compares nothing itself."""
    shard = read_manifest(folder).shards[1]
    data = bytearray((folder / shard.file).read_bytes())
    data[data.find(sample(5)["pixels"].tobytes()) + 100] ^= 1
    (folder / shard.file).write_bytes(data)

    for check in ("never", "first"):
        dataset = ShardDataset(folder, check=check)
        with pytest.raises(ChecksumError) as caught:
            packdata.write(dataset, tmp_path / "b", shard_bytes=1 << 20)
        assert (caught.value.path, caught.value.field) == (folder / shard.file, "pixels")
        packdata.write(dataset[:4], tmp_path / check)


def test_a_stream_of_tokens_is_written_whole(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat " * 500)
    packdata.pack_tokens([text], tmp_path / "a", packdata.TokenOptions(row_tokens=64))
    dataset = ShardDataset(tmp_path / "a")

    packdata.write(dataset, tmp_path / "b", shard_bytes=1 << 20)

    whole, again = (TokenWindows(ShardDataset(tmp_path / n), length=100) for n in "ab")
    assert len(whole) == len(again)
    assert torch.equal(whole[3].tokens, again[3].tokens)
    for view in (dataset.select([0, 1]), dataset.replace(fields=["tokens"])):
        with pytest.raises(SchemaError):
            packdata.write(view, tmp_path / "c")


_KILLED = """
import os, signal, sys, time
import packdata
from loaders.data.view import open_view
from packdata.packing import packing

write, left = packing.write_staged, [int(sys.argv[3])]

def counted(*args):
    if not left[0]:
        time.sleep(0.5)  # the shards before it are put in their place
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    print("shard", flush=True)
    return write(*args)

packing.write_staged = counted
view = open_view(sys.argv[1])
view = view.select(range(len(view) - 1, -1, -1))
packdata.write(view, sys.argv[2], shard_bytes=6000, add={"x": list(range(len(view)))})
"""


@pytest.mark.slow
def test_killed_the_same_call_continues(tmp_path: Path) -> None:
    """It writes no shard again that is finished; at a kill one more may be under way, beside that which is killed."""
    folder = pack_samples(tmp_path / "a", 12, fields=SMALL)
    wanted = tmp_path / "wanted"
    argv = [sys.executable, "-c", _KILLED, str(folder)]

    def run(dst: Path, num: int) -> tuple[int, int]:
        done = subprocess.run([*argv, str(dst), str(num)], capture_output=True, timeout=60)
        return done.returncode, done.stdout.count(b"shard")

    assert run(wanted, 100) == (0, len(hashes(wanted)))
    num = len(hashes(wanted))
    assert num > 4
    assert run(tmp_path / "b", 2) == (-signal.SIGKILL, 2)
    assert run(tmp_path / "b", 1) == (-signal.SIGKILL, 1)
    status, num_written = run(tmp_path / "b", 100)
    assert status == 0
    assert num - 3 <= num_written <= num - 1
    assert hashes(tmp_path / "b") == hashes(wanted)
    assert sorted(os.listdir(tmp_path / "b")) == sorted(os.listdir(wanted))
    assert run(tmp_path / "b", 100) == (0, 0)  # it is there

    assert run(tmp_path / "c", 2) == (-signal.SIGKILL, 2)  # another call begins anew
    packdata.write(folder, tmp_path / "c", shard_bytes=1 << 20)
    assert records(tmp_path / "c") == records(folder)


def test_a_dataset_that_was_replaced_since_it_was_opened_is_not_written(tmp_path: Path) -> None:
    fields = {"x": Array(dtype="int64")}
    packdata.pack({"x": np.arange(4)}, tmp_path / "a", fields)
    dataset = ShardDataset(tmp_path / "a")
    assert dataset[3].x == 3  # its shard is open, and stays
    packdata.pack({"x": np.arange(4) + 10}, tmp_path / "a", fields, overwrite=True)

    with pytest.raises(StaleDatasetError):
        packdata.write(dataset.select([1, 2]), tmp_path / "b")

    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_dataset_that_is_replaced_while_its_shards_are_linked_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    fields = {"x": Array(dtype="int64")}
    packdata.pack({"x": np.arange(4)}, tmp_path / "a", fields)
    dataset, put_shard = ShardDataset(tmp_path / "a"), FolderStore.put_shard

    def late(self: FolderStore, *about: Any) -> None:
        monkeypatch.setattr(FolderStore, "put_shard", put_shard)
        if is_linked:
            put_shard(self, *about)
        packdata.pack({"x": np.arange(4) + 10}, tmp_path / "a", fields, overwrite=True)
        if not is_linked:
            put_shard(self, *about)

    monkeypatch.setattr(FolderStore, "put_shard", late)
    with pytest.raises(StaleDatasetError):
        packdata.write(dataset, tmp_path / "b")

    assert not (tmp_path / "b").exists()
