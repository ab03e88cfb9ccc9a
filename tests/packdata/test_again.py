"""The same command on what it has made finds itself done; any other command finds it in the way."""

import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.data.manifest import read_manifest
from loaders.errors import PackError
from loaders.schema import Bytes
from packdata import Writer, write
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.inspect.verify import verify
from tests.packdata.packing import pack_samples
from tests.refusals import At

SMALL = ["label", "key", "score"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for i in range(4):
        (folder / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"c{i % 2}" / f"{i}.png"), np.full((20, 20, 3), i))
    return folder


def state_of(folder: Path) -> dict[str, int]:
    """Return when each file and folder below a folder changed last."""
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def run(*argv: object) -> int:
    return main(list(map(str, argv)))


def test_a_packing_that_is_there_is_done_and_neither_read_nor_written(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("images", photos, tmp_path / "out", "--size", 16, "--json")
    assert run(*argv) == 0
    first, before = json.loads(capsys.readouterr().out), state_of(tmp_path / "out")
    picture = photos / "c0" / "0.png"
    stat = picture.stat()
    picture.write_bytes(bytes(stat.st_size))  # whoever read it would say that it is no picture
    os.utime(picture, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert run(*argv, "--workers", 2) == 0

    again = json.loads(capsys.readouterr().out)
    assert state_of(tmp_path / "out") == before
    for what in ("samples", "shards", "bytes", "datasets", "rejected"):
        assert again[what] == first[what]
    assert again["notes"] != first["notes"]


@pytest.mark.parametrize(
    "change", ["option", "item", "size", "time", "shard size", "shard lost", "shard cut"]
)
def test_what_differs_in_any_way_is_in_the_way(tmp_path: Path, photos: Path, change: str) -> None:
    dst, more = tmp_path / "out", []
    assert run("images", photos, dst, "--size", 16) == 0
    shard = dst / read_manifest(dst).shards[0].file
    before = (dst / "manifest.json").read_bytes()
    if change == "option":
        more = ["--quality", "80", "--codec", "jpeg"]
    elif change == "item":
        cv2.imwrite(str(photos / "c1" / "9.png"), np.zeros((9, 9, 3)))
    elif change == "size":
        with open(photos / "c0" / "0.png", "ab") as file:
            file.write(b"\0")
    elif change == "time":
        os.utime(photos / "c0" / "0.png", ns=(1, 1))
    elif change == "shard size":
        more = ["--shard-size", "1k"]
    elif change == "shard lost":
        shard.unlink()
    else:
        os.truncate(shard, shard.stat().st_size - 1)

    assert run("images", photos, dst, "--size", 16, *more) == 1

    assert (dst / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("change", ["picture", "mask", "list"])
def test_what_differs_behind_a_list_is_in_the_way(
    tmp_path: Path, photos: Path, change: str
) -> None:
    rows, dst = photos / "list.csv", tmp_path / "out"
    rows.write_text("path,mask\nc0/0.png,c0/2.png\n")
    assert run("images", rows, dst, "--gray") == 0
    assert run("images", rows, dst, "--gray") == 0

    if change == "list":
        rows.write_text("path,mask\nc0/0.png,c1/3.png\n")
    else:
        os.utime(photos / "c0" / ("2.png" if change == "mask" else "0.png"), ns=(1, 1))

    assert run("images", rows, dst, "--gray") == 1


def test_masks_that_were_taken_for_pictures_are_not_what_is_meant(
    tmp_path: Path, photos: Path
) -> None:
    files = [(photos / "c0" / f"{i}.png").read_bytes() for i in (0, 2)]
    rows, dst = tmp_path / "rows.parquet", tmp_path / "out"
    pq.write_table(pa.table({"a": files[:1], "b": files[1:]}), rows)
    argv = ("images", rows, dst, "--gray", "--image-column")
    assert run(*argv, "a", "--mask-column", "b") == run(*argv, "a", "--mask-column", "b") == 0

    assert run(*argv, "b", "--mask-column", "a") == 1


@pytest.mark.parametrize("change", ["mask", "palette", "annotations"])
def test_what_differs_beside_a_folder_is_in_the_way(
    tmp_path: Path, photos: Path, change: str
) -> None:
    palette, boxes = tmp_path / "palette.txt", tmp_path / "boxes/c0/0.txt"
    shutil.copytree(photos, tmp_path / "masks")
    palette.write_text("0 0 0\n1 1 1\n2 2 2\n3 3 3\n")
    boxes.parent.mkdir(parents=True)
    boxes.write_text("0 .5 .5 .2 .2\n")
    beside = (
        "--masks",
        tmp_path / "masks",
        "--palette",
        palette,
        "--annotations",
        boxes.parents[1],
    )
    argv = ("images", photos, tmp_path / "out", *beside)
    assert run(*argv) == run(*argv) == 0

    if change == "palette":
        palette.write_text("1 1 1\n0 0 0\n2 2 2\n3 3 3\n")
    else:
        os.utime(boxes if change == "annotations" else tmp_path / "masks/c0/0.png", ns=(1, 1))

    assert run(*argv) == 1


def test_where_a_palette_lies_is_no_part_of_what_is_packed(tmp_path: Path, photos: Path) -> None:
    shutil.copytree(photos, tmp_path / "masks")
    palette = tmp_path / "palette.txt"
    palette.write_text("0 0 0\n1 1 1\n2 2 2\n3 3 3\n")
    argv = ("images", photos, tmp_path / "out", "--masks", tmp_path / "masks", "--palette")
    assert run(*argv, palette) == 0

    moved = palette.rename(tmp_path / "colours.txt")

    assert run(*argv, moved) == 0
    assert str(tmp_path) not in (tmp_path / "out/manifest.json").read_text()


def test_it_is_packed_anew_where_that_is_asked_for(tmp_path: Path, photos: Path) -> None:
    argv = ("images", photos, tmp_path / "out")
    assert run(*argv) == 0
    before = state_of(tmp_path / "out")

    assert run(*argv, "--overwrite") == 0

    assert state_of(tmp_path / "out") != before


@pytest.mark.parametrize("command", ["images", "copy", "merge"])
def test_a_damaged_shard_is_replaced_where_that_is_asked_for(
    tmp_path: Path, photos: Path, command: str
) -> None:
    one = pack_samples(tmp_path / "one", 4, fields=SMALL)
    two, dst = pack_samples(tmp_path / "two", 4, first=50, fields=SMALL), tmp_path / "out"
    sources = {"images": [photos], "copy": [one], "merge": [one, two]}[command]
    assert run(command, *sources, dst) == 0
    shard = min(dst.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.unlink()  # may be linked to that of the source
    shard.write_bytes(data)

    assert run(command, *sources, dst, "--overwrite") == 0

    assert verify(dst).ok


def test_what_was_left_out_is_left_out_again_or_an_error(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "c0" / "bad.png").write_bytes(b"no picture")
    argv = ("images", photos, tmp_path / "out", "--json", "--on-error")
    assert run(*argv, "skip") == 3
    first = json.loads(capsys.readouterr().out)

    assert run(*argv, "skip") == 3

    assert json.loads(capsys.readouterr().out)["rejected"] == first["rejected"]
    assert run(*argv, "fail") == 1


def test_a_list_of_rejects_that_somebody_wrote_into_is_named(tmp_path: Path, photos: Path) -> None:
    (photos / "c0" / "bad.png").write_bytes(b"no picture")
    pack_images(photos, tmp_path / "out", on_error="skip")
    rejects = tmp_path / "out" / "rejected.jsonl"

    for line in (b"# seen", b"[]", b'{"item": "a"}', b"\xff"):
        rejects.write_bytes(line)
        with pytest.raises(PackError, check=At("rejected.jsonl")):
            pack_images(photos, tmp_path / "out", on_error="skip")


def test_every_dataset_of_a_packing_has_to_be_there(tmp_path: Path, photos: Path) -> None:
    argv = ("images", photos, tmp_path / "out", "--size", 8, "--size", 16)
    assert run(*argv) == run(*argv) == 0
    one = tmp_path / "out" / "8"
    for path in one.iterdir():
        path.unlink()
    one.rmdir()

    assert run(*argv) == 1


@pytest.mark.parametrize("command", ["copy", "merge", "split", "write"])
def test_what_is_made_of_datasets_is_done_once(tmp_path: Path, command: str) -> None:
    one = pack_samples(tmp_path / "one", 8, fields=SMALL)
    two, dst = pack_samples(tmp_path / "two", 4, first=50, fields=SMALL), tmp_path / "dst"
    words: dict[str, list[object]] = {
        "copy": ["copy", one, dst, "--where", "label != 0"],
        "merge": ["merge", one, two, dst],
        "split": ["split", one, dst, "--parts", "a=0.5", "b=0.5"],
    }

    def make() -> int:
        if command != "write":
            return run(*words[command])
        write(one, dst, add={"x": list(range(8))})
        return 0

    assert make() == 0
    before = state_of(dst)
    assert make() == 0
    assert state_of(dst) == before
    if command in ("copy", "split"):
        assert run(*words[command], "--shard-size", "1k") == 1


def test_samples_are_not_added_twice_by_running_the_command_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = pack_samples(tmp_path / "one", 4, fields=["label"])
    two = pack_samples(tmp_path / "two", 4, fields=["label"])
    assert run("extend", one, two) == 0
    before = sorted(two.iterdir())

    assert run("extend", one, two) == 0

    assert sorted(two.iterdir()) == before
    assert read_manifest(two).num_samples == 8
    assert "nothing was added" in capsys.readouterr().out
    assert run("extend", one, one, two) == 0  # named twice, they are added twice
    assert read_manifest(two).num_samples == 16


def test_what_was_extended_is_not_what_was_packed(tmp_path: Path, photos: Path) -> None:
    argv = ("images", photos, tmp_path / "out")
    assert run(*argv) == 0
    (tmp_path / "more" / "c0").mkdir(parents=True)
    (tmp_path / "more" / "c1").mkdir()
    for name in ("c0/x.png", "c1/y.png"):
        cv2.imwrite(str(tmp_path / "more" / name), np.zeros((20, 20, 3)))
    assert run("images", tmp_path / "more", tmp_path / "packed") == 0
    assert run("extend", tmp_path / "packed", tmp_path / "out") == 0

    assert run(*argv) == 1

    assert read_manifest(tmp_path / "out").num_samples == 6


def test_a_writer_is_never_done(tmp_path: Path) -> None:
    with Writer(tmp_path, {"a": Bytes()}) as writer:
        writer.add(a=b"x")

    with pytest.raises(PackError):
        Writer(tmp_path, {"a": Bytes()})
