"""The commands on packed datasets: what each does, its JSON, and what it refuses."""

import argparse
import io
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image as Pictures

from loaders.data.columns import VarColumn
from loaders.data.formats import open_columns
from loaders.data.manifest import read_manifest
from loaders.data.view import open_view
from loaders.errors import (
    ChecksumError,
    CodecError,
    LoadersError,
    ManifestError,
    PackError,
    SampleError,
    SchemaError,
    ShardError,
    SourceError,
)
from loaders.schema import (
    Array,
    Boxes,
    Bytes,
    Categories,
    Features,
    Field,
    Image,
    Json,
    Label,
    Text,
)
from packdata.cli import COMMANDS, main
from packdata.commands import GROUPS
from packdata.inspect.compare import diff
from packdata.inspect.preview import choose, sheet_of, tile_of
from packdata.inspect.stats import stats
from packdata.inspect.verify import verify
from packdata.options import size_from
from packdata.packed import derive
from packdata.packed.derive import CopyOptions, copy_dataset, extend, split
from packdata.packed.rewrite import ViewContent, write_datasets
from packdata.packing import store
from packdata.packing.provenance import PLAN
from packdata.packing.settings import RunSettings
from packdata.packing.target import locked
from tests.packdata.breaking import ROOM, no_links, tmpfs
from tests.packdata.packing import CLASSES, FIELDS, pack, pack_samples, sample
from tests.packdata.reading import PackedReader
from tests.refusals import At, without_hash

FORMATS = ["lmdb", "parquet"]
SMALL = ["label", "key", "score", "width"]


def run(*argv: object) -> int:
    """Run a command as the command line does; errors of ours come through."""
    args = COMMANDS.parse_args([str(arg) for arg in argv])
    return int(args.run(args))


def run_json(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> Any:
    capsys.readouterr()
    assert run(*argv, "--json") == status
    return json.loads(capsys.readouterr().out)


def samples_of(folder: Path) -> list[dict[str, bytes]]:
    reader = PackedReader(folder, check=True)
    return [
        {name: record.tobytes() for name, record in reader.records_of(i).items()}
        for i in range(len(reader))
    ]


def entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def damage(folder: Path, field: str, row: int, shard: int = 1) -> Path:
    """Change the middle byte of a record where it lies in its file; return the file."""
    info = read_manifest(folder).shards[shard]
    path = folder / info.file
    column, place = open_columns(path, info)[field], info.places[field]
    start = place.offset + row * (place.row_nbytes or 0)
    if isinstance(column, VarColumn):
        start = int(column.starts[row])
    data = bytearray(path.read_bytes())
    data[start + len(column.row(row)) // 2] ^= 0x04
    path.write_bytes(data)
    return path


# Writing


@pytest.mark.parametrize("format", FORMATS)
def test_shards_are_cut_by_size(tmp_path: Path, format: Any) -> None:
    folder = pack_samples(tmp_path / "a", 10)
    rows = samples_of(folder)

    made = copy_dataset(folder, tmp_path / "b", format=format, shard_bytes=20_000)

    manifest = read_manifest(tmp_path / "b")
    shards = manifest.shards
    assert made.shards == len(shards) > 1
    assert {*manifest.provenance} == {"command", "source", "options", PLAN}
    assert samples_of(tmp_path / "b") == rows
    assert verify(tmp_path / "b").ok
    assert entries(tmp_path / "b") == ["manifest.json", *(s.file for s in shards)]


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 4, fields=SMALL)
    view = open_view(folder)

    class Failing(ViewContent):
        def items(self, start: int) -> Iterator[range]:
            yield from super().items(start)
            raise RuntimeError("the source broke")

    broken = Failing(view, view.schema)
    settings = RunSettings(format="lmdb", shard_bytes=30)
    replacing = replace(settings, overwrite=True)
    with pytest.raises(RuntimeError):
        write_datasets(tmp_path / "b", "test", [view], {"": broken}, {}, settings)
    before = entries(folder), samples_of(folder)
    with pytest.raises(RuntimeError):
        write_datasets(folder, "test", [view], {"": broken}, {}, replacing)

    assert not (tmp_path / "b").exists()
    assert (entries(folder), samples_of(folder)) == before


def test_a_failure_while_publishing_leaves_the_old_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = (pack_samples(tmp_path / name, 8, fields=SMALL) for name in "ab")
    before = entries(folder), samples_of(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "swap", full)
    with pytest.raises(PackError, check=At("b", hint=ROOM)):
        copy_dataset(source, folder, CopyOptions(where="label == 0"), overwrite=True)

    assert (entries(folder), samples_of(folder)) == before


def test_a_target_that_is_taken_is_refused(tmp_path: Path) -> None:
    source = pack_samples(tmp_path / "a", 4, fields=SMALL)
    taken = pack_samples(tmp_path / "b", 4, fields=SMALL)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    before = samples_of(taken)

    for target in ("b", "full", "file"):
        with pytest.raises(PackError, check=At(target)):
            copy_dataset(source, tmp_path / target)
    with pytest.raises(PackError, check=At("full")):
        copy_dataset(source, tmp_path / "full", overwrite=True)

    assert samples_of(taken) == before
    assert entries(tmp_path / "full") == ["thesis.tex"]


def test_two_commands_on_one_target_do_not_meet(tmp_path: Path) -> None:
    source = pack_samples(tmp_path / "a", 4, fields=SMALL)

    with locked(tmp_path / "b"):
        with pytest.raises(PackError, check=At("b")):
            copy_dataset(source, tmp_path / "b")
        (tmp_path / "b" / ".packing" / "left.tmp").write_text("of a run that was killed")

    assert copy_dataset(source, tmp_path / "b").shards == 1
    names = [shard.file for shard in read_manifest(tmp_path / "b").shards]
    assert entries(tmp_path / "b") == ["manifest.json", *names]


# info


@pytest.mark.parametrize("format", FORMATS)
def test_info_says_what_is_in_a_dataset(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack_samples(tmp_path / "a", 10, format=format)

    assert run("info", folder) == 0
    text = capsys.readouterr().out
    about = run_json(capsys, "info", folder)

    for what in ("10 (", f"3 {format}", "label of 3 classes (bird, cat, dog) (served)", "boxes"):
        assert what in text
    assert about["fingerprint"] in text
    assert about["num_samples"] == 10
    assert about["num_classes"] == {"label": 3, "tags": 2}
    assert about["provenance"] == {"command": "test"}


def test_json_is_json_where_the_output_has_no_bytes_for_a_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"label": Label(("é", "\U0001f431"))}
    folder = pack(tmp_path / "a", fields, [{"label": 0}])
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)

    assert run("info", folder, "--json") == 0

    out.flush()
    about = json.loads(out.buffer.getvalue())
    assert about["fields"]["label"]["classes"] == ["é", "\U0001f431"]


# verify


def test_info_and_verify_take_a_folder_of_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [pack_samples(tmp_path / "all" / name) for name in ("train", "val")]

    assert run("info", tmp_path / "all") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if not line.startswith(" ")] == list(map(str, folders))
    assert run("verify", tmp_path / "all") == 0
    assert capsys.readouterr().out.count(": OK") == 2
    both = run_json(capsys, "info", tmp_path / "all")
    assert [about["num_samples"] for about in both] == [10, 10]

    (folders[1] / "shard-00000.lmdb").unlink()
    first, second = run_json(capsys, "verify", tmp_path / "all", status=1)

    assert (first["ok"], second["ok"]) == (True, False)


@pytest.mark.parametrize("below", ["train", "train/64"])
def test_a_split_whose_manifest_is_gone_is_a_fault(
    tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack_samples(tmp_path / "all" / below)
    pack_samples(tmp_path / "all" / "val")
    (folder / "manifest.json").unlink()
    (tmp_path / "all" / "val" / ".packing").mkdir()
    (tmp_path / "all" / "val" / ".packing" / "shard-00000.lmdb").touch()

    assert run("verify", tmp_path / "all") == 1
    assert f"{folder}: 1 fault" in capsys.readouterr().out
    lost, whole = run_json(capsys, "verify", tmp_path / "all", status=1)
    with pytest.raises(ManifestError, check=At(folder)):
        run("info", tmp_path / "all")

    assert "there is no manifest.json" in lost["faults"][0]["what"]
    assert whole["ok"]


def test_stats_of_a_folder_of_splits_asks_to_choose_one(tmp_path: Path) -> None:
    for name in ("train", "val"):
        pack_samples(tmp_path / "all" / name)

    with pytest.raises(ManifestError, check=At("all")):
        run("stats", tmp_path / "all")


def test_verify_exits_1_and_names_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack_samples(tmp_path / "a", 8)
    assert run("verify", folder) == 0
    assert "8 samples in 2 shards" in capsys.readouterr().out
    os.truncate(folder / "shard-00001.lmdb", 10)

    assert run("verify", folder) == 1
    text = capsys.readouterr().out
    report = run_json(capsys, "verify", folder, status=1)

    assert "shard-00001.lmdb: 10 bytes, the manifest says" in text
    assert report["faults"][0]["file"] == "shard-00001.lmdb"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_verify_of_what_is_not_there_is_one_error(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    assert main(["verify", str(tmp_path / "nothere"), *options]) == 1
    assert main(["verify", str(tmp_path / "file"), *options]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"packdata: {tmp_path}/nothere: there is no such folder. "
        "Check the path, or pack a dataset there with 'packdata'.",
        f"packdata: {tmp_path}/file: a file, not a packed dataset. "
        "Pass the folder that holds manifest.json.",
    ]


# preview


@pytest.mark.parametrize(
    ("dims", "shape"),
    [((None,) * 3, (1, 0, 5)), ((None,) * 3, (0, 3, 5)), ((None,) * 4, (1, 0, 3, 5))],
    ids=["rows", "channels", "slices"],
)
def test_preview_of_an_array_without_numbers_shows_its_size(
    tmp_path: Path, dims: tuple[None, ...], shape: tuple[int, ...]
) -> None:
    field = Array("float32", dims, spatial=len(dims) - 1)
    values = [np.zeros(shape, np.float32), np.ones((1,) * len(dims), np.float32)]
    folder = pack(tmp_path / "a", {"scan": field}, [{"scan": value} for value in values])

    sheet = sheet_of([tile_of(PackedReader(folder), i) for i in (0, 1)])

    assert sheet.width > 400  # two tiles
    assert run("preview", folder, "--out", tmp_path / "sheet.png") == 0


def test_preview_draws_a_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack_samples(tmp_path / "a", 10)
    sheets = [tmp_path / "1.png", tmp_path / "2.png"]

    for sheet in sheets:
        assert run("preview", folder, "--out", sheet, "--num", 6) == 0

    assert "6 of 10 samples" in capsys.readouterr().out
    picture = Pictures.open(sheets[0])
    assert picture.mode == "RGB"
    assert picture.width > 600
    assert len(picture.getcolors(1 << 24) or ()) > 500
    assert sheets[0].read_bytes() == sheets[1].read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


def test_preview_replaces_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_samples(tmp_path / "a", 2)
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_text("a figure of somebody")

    for words in (["a"], ["a", "--out", "a.png"]):
        with pytest.raises(PackError, check=At("a.png")):
            run("preview", *words)

    assert Path("a.png").read_text() == "a figure of somebody"
    assert entries(tmp_path) == ["a", "a.png"]


def test_a_preview_that_does_not_fit_on_the_disk_leaves_nothing_there(tmp_path: Path) -> None:
    pack_samples(tmp_path / "a", 20)

    with tmpfs(tmp_path / "disk", "16k") as disk:
        with pytest.raises(OSError):
            run("preview", tmp_path / "a", "--out", disk / "a.png")

        assert entries(disk) == []


def test_captions_are_printed_as_the_sheet_has_no_letters_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"image": Image(), "label": Label(classes=("Äpfel", "猫")), "key": Text()}
    rows = [{"image": np.zeros((8, 9, 3), np.uint8), "label": i, "key": f"{i}"} for i in (1, 0)]
    folder = pack(tmp_path / "a", fields, rows)

    assert run("preview", folder, "--out", tmp_path / "sheet.png") == 0

    assert capsys.readouterr().out.splitlines()[1:] == ["  1, 9 x 8, 猫", "  0, 9 x 8, Äpfel"]


def test_a_caption_is_one_line(tmp_path: Path) -> None:
    """A second one would lie over the row of pictures below."""
    fields = {"image": Image(), "text": Text(), "label": Label(classes=("a\nb",)), "key": Text()}
    row = {"image": np.zeros((8, 9, 3), np.uint8), "text": "one\ntwo", "label": 0, "key": "k\n1"}

    tile = tile_of(open_view(pack(tmp_path / "a", fields, [row])), 0)

    assert tile.caption == "k 1, 9 x 8, one two, a b"


def test_a_sheet_of_another_kind_than_png_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("preview", pack_samples(tmp_path / "p"), "--out", tmp_path / "sheet.jpg")

    assert caught.value.code == 2
    assert "--out" in capsys.readouterr().err
    assert entries(tmp_path) == ["p"]


def test_preview_of_what_cannot_be_decoded_names_the_sample(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"image": b"no picture at all", "label": 7}, sample(1)]
    fields = {"image": Image(codec="png"), "label": Label(classes=CLASSES)}
    folder = pack(tmp_path / "a", fields, rows)

    for option in ([], ["--text"]):
        with pytest.raises(SampleError) as caught:
            run("preview", folder, *option)
        assert caught.value.row == 0


@pytest.mark.parametrize(
    "field",
    [
        Image(channels=1, codec="raw"),
        Image(channels=4, codec="raw"),
        Image(channels=6, codec="raw"),
        Image(channels=2, codec="raw"),
        Image(channels=1, dtype="uint16", codec="png"),
    ],
)
def test_preview_draws_any_kind_of_picture(tmp_path: Path, field: Image) -> None:
    pixels = np.arange(8 * 300 * field.channels).reshape(8, 300, field.channels)
    boxes = np.array([[5, 5, 1, 1], [-9, -9, 900, 900], [np.nan, 0, 1, 1]], np.float32)
    rows = [{"image": (pixels % 256).astype(field.dtype), "boxes": boxes, "label": -1}]
    fields = {"image": field, "boxes": Boxes(), "label": Label(classes=("Straße", "猫"))}

    sheet = sheet_of([tile_of(PackedReader(pack(tmp_path / "a", fields, rows)), 0)])

    assert sheet.size[0] > 208


def test_preview_as_text_has_the_size_of_pictures_not_their_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"x": np.zeros((8, 12, 3), np.uint8)}]
    folder = pack(tmp_path / "a", {"x": Image(codec="png")}, rows)

    assert run("preview", folder, "--text") == 0

    assert capsys.readouterr().out == "sample 0\n  x: 12 x 8\n"


def test_preview_prints_samples_without_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Field] = {
        "text": Text(),
        "tokens": Array(dtype="uint16", dims=(None,)),
        "about": Json(),
        "blob": Bytes(),
    }
    rows = [
        {
            "text": f"story {i}\n" * 40,
            "tokens": np.arange(i, i + 20, dtype=np.uint16),
            "about": [i],
            "blob": b"a\0\xff",
        }
        for i in range(5)
    ]
    folder = pack(tmp_path / "a", fields, rows)

    assert run("preview", folder, "--num", 2) == 0

    text = capsys.readouterr().out
    assert text.count("sample ") == 2
    assert "text: story" in text
    assert "tokens: uint16 (20,):" in text
    assert "blob: 3 bytes: 61 00 ff" in text
    assert text.count(" ...\n") == 2  # there are more than 12 numbers
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize("num_samples", [10, 1 << 20, 10**12])
def test_preview_chooses_the_same_samples_each_time(num_samples: int) -> None:
    chosen = choose(num_samples, 8, seed=3)

    assert chosen == choose(num_samples, 8, seed=3) != choose(num_samples, 8, seed=4)
    assert len(set(chosen)) == 8
    assert 0 <= min(chosen) <= max(chosen) < num_samples


# stats


@pytest.mark.parametrize("format", FORMATS)
def test_stats_are_those_of_all_pixels(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_json(capsys, "stats", pack_samples(tmp_path / "a", 10, format=format))

    pixels = np.concatenate([sample(i)["image"].reshape(-1, 3) for i in range(10)])
    np.testing.assert_allclose(found["mean"], pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["std"], pixels.std(axis=0), rtol=1e-12)
    assert (found["image"], found["max_value"], found["num_samples"]) == ("image", 255, 10)
    fields = found["fields"]
    assert fields["label"]["classes"] == {"bird": 4, "cat": 3, "dog": 3}
    assert fields["tags"]["classes"] == {"day": 5, "night": 5}
    assert fields["image"]["width"] == {"min": 20, "median": 22, "max": 26}
    assert fields["score"] == {
        "kind": "array", "min": 0.0, "mean": 1.125, "std": pytest.approx(0.718070330817),
        "max": 2.25, "num_nan": 0,
    }  # fmt: skip
    assert fields["boxes"]["num_boxes"] == sum(i % 3 for i in range(10))
    masks = np.concatenate([sample(i)["mask"].reshape(-1) for i in range(10)])
    assert fields["mask"]["pixels_by_value"] == {str(v): int((masks == v).sum()) for v in range(3)}


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_stats_of_deep_pictures(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    high = int(np.iinfo(dtype).max)
    rows = [{"image": rng.integers(0, high, (9, 11, 2), dtype, endpoint=True)} for _ in range(5)]
    folder = pack(tmp_path / "a", {"image": Image(channels=2, dtype=dtype, codec="raw")}, rows)

    found = stats(folder, workers=2).fields["image"]

    pixels = np.concatenate([row["image"].reshape(-1, 2) for row in rows]).astype(np.longdouble)
    np.testing.assert_allclose(found["mean"], pixels.mean(axis=0).astype(float), rtol=1e-12)
    np.testing.assert_allclose(found["std"], pixels.std(axis=0).astype(float), rtol=1e-9)
    assert found["max_value"] == high


def test_stats_count_nan_and_write_json_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.array([[1, np.nan], [3, np.inf], [np.nan, np.nan]], np.float32)
    fields = {
        "pair": Array(dims=(2,)),
        "none": Array(dims=(None,)),
        "unknown": Array(dims=(None,)),
        "flag": Array(dtype="bool"),
    }
    empty, unknown = np.empty(0, np.float32), np.array([np.nan], np.float32)
    rows = [
        {"pair": row, "none": empty, "unknown": unknown, "flag": i > 0}
        for i, row in enumerate(values)
    ]
    folder = pack(tmp_path / "a", fields, rows)

    found = run_json(capsys, "stats", folder)["fields"]

    assert (found["pair"]["num_nan"], found["pair"]["min"], found["pair"]["max"]) == (
        3,
        1.0,
        "inf",
    )
    assert (found["none"]["num_nan"], found["none"]["mean"]) == (0, None)
    assert (found["unknown"]["num_nan"], found["unknown"]["mean"]) == (3, None)
    assert found["flag"]["mean"] == pytest.approx(2 / 3)
    assert run("stats", folder) == 0


def test_stats_show_the_lowest_float_in_few_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"x": np.finfo(np.float32).min, "y": 2**62}]
    folder = pack(tmp_path / "a", {"x": Array(dtype="float32"), "y": Array(dtype="int64")}, rows)

    assert run("stats", folder) == 0

    out = capsys.readouterr().out
    assert "min: -3.40282e+38\n" in out
    assert "min: 4,611,686,018,427,387,904\n" in out


def test_stats_of_some_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack_samples(tmp_path / "a", 10)

    found = run_json(capsys, "stats", folder, "--limit", 2)
    assert run("stats", folder, "--limit", 2) == 0

    assert found["num_decoded"] == 2
    pixels = np.concatenate([sample(i)["image"].reshape(-1, 3) for i in (0, 5)])
    np.testing.assert_allclose(found["mean"], pixels.mean(axis=0), rtol=1e-12)
    assert found["fields"]["label"]["classes"]["bird"] == 4
    assert "10 samples, 2 decoded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "format"),
    [
        *((name, "lmdb") for name in ("image", "label", "key", "pixels", "score", "mask")),
        ("image", "parquet"),
        ("label", "parquet"),
    ],
)
def test_stats_and_preview_refuse_damaged_records(tmp_path: Path, format: str, field: str) -> None:
    folder = pack_samples(tmp_path / "a", 10, format=format)
    path = damage(folder, field, 1)

    for command in (
        ["stats"],
        ["preview", "--out", tmp_path / "sheet.png"],
        ["preview", "--text"],
    ):
        with pytest.raises(ChecksumError, check=At(path, field=field)):
            run(*command, folder)

    assert entries(tmp_path) == ["a"]


def test_preview_checks_only_what_it_shows(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 10)
    shown = choose(10, 1, seed=0)[0]
    damage(folder, "pixels", 1, shard=0 if shown >= 4 else 1)

    assert run("preview", folder, "--num", 1, "--out", tmp_path / "sheet.png") == 0


def test_stats_of_a_table_refuse_damaged_rows(tmp_path: Path) -> None:
    features = Features(columns=("x", "y"))
    fields = {
        "features": features,
        "categories": Categories(columns=("c",), vocabularies=(("a",),)),
    }
    rows = [
        {"features": np.arange(2, dtype=np.float32) + i + 100, "categories": np.ones(1, np.uint8)}
        for i in range(8)
    ]
    for field in fields:
        folder = pack(tmp_path / field, fields, rows, format="parquet")
        path = damage(folder, field, 1)
        with pytest.raises(ChecksumError, check=At(path, field=field)):
            run("stats", folder)


# extend and merge


def test_extend_adds_shards_after_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dst = pack_samples(tmp_path / "a", 6, fields=SMALL)
    more = pack_samples(tmp_path / "b", 5, first=6, fields=SMALL, format="parquet")
    old = PackedReader(dst)
    expected = samples_of(dst) + samples_of(more)

    made = run_json(capsys, "extend", more, dst)

    assert (made["samples"], made["amount"]) == (11, "5 more samples")
    assert samples_of(dst) == expected
    assert old.sample(5)["key"] == sample(5)["key"]
    names = [s.file for s in read_manifest(dst).shards]
    plain = ["shard-00000.lmdb", "shard-00001.lmdb", "shard-00002.parquet", "shard-00003.parquet"]
    assert names[:2] == plain[:2]
    assert [without_hash(f"/{name}")[1:] for name in names] == plain
    assert (dst / names[2]).samefile(more / "shard-00000.parquet")
    assert verify(dst).ok
    assert read_manifest(dst).provenance["appended"][0]["name"] == "b"
    assert entries(dst) == ["manifest.json", *names]
    again = extend(dst, [more])
    assert f"packed no more samples into {dst}: 11 samples, 4 shards" in str(again)
    assert (again.samples, again.samples_per_s, len(again.notes)) == (11, 0, 1)
    with pytest.raises(PackError):
        extend(dst, [])


def test_extending_what_is_no_dataset_says_what_is_there_and_touches_nothing(
    tmp_path: Path,
) -> None:
    source = pack_samples(tmp_path / "p")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/notes.txt").write_text("mine")

    with pytest.raises(ManifestError, check=At("plain")):
        run("extend", source, tmp_path / "plain")
    with pytest.raises(ManifestError, check=At("nowhere")):
        run("extend", source, tmp_path / "nowhere")

    assert entries(tmp_path) == ["p", "plain"]
    assert entries(tmp_path / "plain") == ["notes.txt"]


def test_shards_are_copied_where_links_do_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [pack_samples(tmp_path / n, 3, first=i, fields=SMALL) for n, i in (("a", 0), ("b", 3))]

    no_links(monkeypatch)
    derive.merge(tmp_path / "c", parts)

    assert samples_of(tmp_path / "c") == samples_of(parts[0]) + samples_of(parts[1])
    first = tmp_path / "c" / read_manifest(tmp_path / "c").shards[0].file
    assert not first.samefile(parts[0] / "shard-00000.lmdb")


def test_copying_a_damaged_shard_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [pack_samples(tmp_path / n, 3, first=i, fields=SMALL) for n, i in (("a", 0), ("b", 3))]
    shard = parts[1] / "shard-00000.lmdb"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)

    no_links(monkeypatch)
    with pytest.raises(ShardError, check=At(shard)):
        derive.merge(tmp_path / "c", parts)
    os.truncate(shard, 5)
    with pytest.raises(ShardError, check=At(shard)):
        derive.extend(parts[0], parts[1:])
    assert not (tmp_path / "c").exists()
    assert len(PackedReader(parts[0])) == 3


def test_merge_makes_one_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [pack_samples(tmp_path / f"p{i}", 3, first=3 * i, fields=SMALL) for i in range(3)]

    made = run_json(capsys, "merge", *parts, tmp_path / "all")

    assert made["samples"] == 9
    assert samples_of(tmp_path / "all") == [row for part in parts for row in samples_of(part)]
    assert verify(tmp_path / "all").ok
    with pytest.raises(PackError, check=At("all")):
        run("merge", *parts[:2], tmp_path / "all")
    assert run("merge", *parts[:2], tmp_path / "all", "--overwrite") == 0
    assert len(PackedReader(tmp_path / "all")) == 6
    assert verify(tmp_path / "all").notes == ()


@pytest.mark.parametrize(
    "field",
    [
        Label(classes=("bird", "cat", "cow")),
        Label(classes=("cat", "bird", "dog")),
        Label(classes=("bird", "cat")),
        Label(),
        Array(dtype="int64"),
    ],
)
def test_datasets_that_do_not_match_are_not_joined(tmp_path: Path, field: Field) -> None:
    first = pack(tmp_path / "a", {"label": Label(classes=CLASSES)}, [{"label": 0}])
    second = pack(tmp_path / "b", {"label": field}, [{"label": 0}])

    with pytest.raises(SchemaError):
        derive.merge(tmp_path / "c", [first, second])
    with pytest.raises(SchemaError):
        derive.extend(first, [second])
    assert not (tmp_path / "c").exists()


def test_keys_that_would_stand_twice_are_refused(tmp_path: Path) -> None:
    first = pack_samples(tmp_path / "a", 6, fields=SMALL)
    second = pack_samples(tmp_path / "b", 6, first=4, fields=SMALL)

    with pytest.raises(SchemaError):
        derive.merge(tmp_path / "c", [first, second])
    with pytest.raises(SchemaError):
        derive.extend(first, [second])


# split


@pytest.mark.parametrize("by", ["shuffle", "key-hash"])
def test_split_parts_hold_each_sample_once(
    tmp_path: Path, by: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack_samples(tmp_path / "a", 60, fields=SMALL, per_shard=25)
    rows = samples_of(folder)

    made = run_json(
        capsys, "split", folder, tmp_path / "s", "--parts", "train=0.7", "val=0.3", "--by", by
    )

    parts = [samples_of(tmp_path / "s" / name) for name in ("train", "val")]
    assert sorted(map(str, parts[0] + parts[1])) == sorted(map(str, rows))
    assert [rows.index(row) for row in parts[0]] == sorted(rows.index(row) for row in parts[0])
    assert (made["dst"], made["samples"]) == (str(tmp_path / "s"), 60)
    told = {each["folder"]: each for each in made["datasets"]}
    if by == "shuffle":
        assert [told[name]["samples"] for name in ("train", "val")] == [42, 18]
    for name in ("train", "val"):
        about = read_manifest(tmp_path / "s" / name)
        assert told[name]["fingerprint"] == about.fingerprint
        assert about.schema == read_manifest(folder).schema
        assert about.provenance["options"]["part"] == name
    assert verify(tmp_path / "s" / "val").ok


def test_a_key_stays_in_its_part_when_samples_are_added(tmp_path: Path) -> None:
    few = PackedReader(pack_samples(tmp_path / "a", 30, first=10, fields=SMALL, per_shard=50))
    many = PackedReader(pack_samples(tmp_path / "b", 60, fields=SMALL, per_shard=50))

    parts = [
        [{reader.key(i) for i in part.tolist()} for part in reader.divide([0.8, 0.2], by_key=True)]
        for reader in (few, many)
    ]

    assert parts[0][0] <= parts[1][0]
    assert parts[0][1] <= parts[1][1]
    assert len(parts[1][1]) in range(4, 22)


def test_split_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack_samples(tmp_path / "a", 5, fields=SMALL)
    bare = pack(tmp_path / "b", {"label": Label()}, [{"label": 0}] * 4)
    with pytest.raises(PackError, check=At("s/val")):
        split(folder, tmp_path / "s", {"train": 0.99, "val": 0.01})
    with pytest.raises(SchemaError):
        split(bare, tmp_path / "s", {"train": 0.5, "val": 0.5}, by="key-hash")
    many = pack_samples(tmp_path / "many", 30, fields=SMALL)
    with pytest.raises(SchemaError):
        split(many, tmp_path / "s", {"a": 0.5, "b": 0.5}, stratify="score")
    with pytest.raises(SchemaError):
        split(folder, tmp_path / "s", {"a": 0.5, "b": 0.5}, stratify="lable")
    for parts in (
        ["a=0.9", "b=0.2"],
        ["a"],
        ["a=x"],
        ["a=0"],
        ["a=.5", "a=.5"],
        ["a=nan"],
        ["../up=1"],
    ):
        with pytest.raises(SystemExit, check=At(code=2)):
            run("split", folder, tmp_path / "s", "--parts", *parts)
    assert "NAME=FRACTION" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_split_by_a_class_of_one_sample_is_refused(tmp_path: Path) -> None:
    """It would come to one part alone, as likely as not to val."""
    fields = {"label": Label(classes=CLASSES)}
    folder = pack(tmp_path / "a", fields, [{"label": i} for i in (0, 0, 1, 2, 2, 2)])

    with pytest.raises(SchemaError, match=f"label '{CLASSES[1]}'"):
        split(folder, tmp_path / "s", {"a": 0.5, "b": 0.5}, stratify="label")

    assert not (tmp_path / "s").exists()


def test_split_may_leave_samples_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack_samples(tmp_path / "a", 10, fields=SMALL)

    assert run("split", folder, tmp_path / "s", "--parts", "train=0.5") == 0
    assert "0.5 of the samples are in no part" in capsys.readouterr().out
    assert entries(tmp_path / "s") == ["train"]
    assert len(PackedReader(tmp_path / "s/train")) == 5


# diff


def test_diff_of_equal_datasets_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = pack_samples(tmp_path / "a", 9, fields=SMALL, per_shard=4)
    second = pack_samples(tmp_path / "b", 9, fields=SMALL, per_shard=4)

    for other in (first, second):
        assert run_json(capsys, "diff", first, other) == {"same": True, "differences": []}


def test_diff_names_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = pack_samples(tmp_path / "a", 8, fields=[*SMALL, "tags"], per_shard=4)
    fields = {name: FIELDS[name] for name in SMALL} | {"label": Label(classes=(*CLASSES, "eel"))}
    second = pack(tmp_path / "b", fields, [sample(i) for i in range(7)], per_shard=3)

    found = run_json(capsys, "diff", first, second, status=1)
    assert run("diff", first, second) == 1
    text = capsys.readouterr().out

    assert not found["same"]
    assert found["differences"] == [
        "only A has field 'tags'",
        "field 'label': classes 3 is None in A, 'eel' in B",
        "default fields is 'label' in A, 'label, key, score, width' in B",
        "number of samples is 8 in A, 7 in B",
        "shards: 2 in A, 3 in B, 0 the same",
    ]
    assert text.splitlines() == found["differences"]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([3, 4, 5, 0, 1, 2], "shards: 2 in A, 2 in B, 2 the same in another order"),
        ([0, 1, 2, 3, 4, 6], "shards: 2 in A, 2 in B, 1 the same"),
        ([1, 0, 2, 3, 4, 5], "shards: 2 in A, 2 in B, 1 the same"),
    ],
    ids=["order of shards", "one sample", "order of samples"],
)
def test_diff_tells_how_many_shards_are_the_same(
    tmp_path: Path, rows: list[int], what: str
) -> None:
    fields = {name: FIELDS[name] for name in SMALL}
    first = pack(tmp_path / "a", fields, [sample(i) for i in range(6)], per_shard=3)
    second = pack(tmp_path / "b", fields, [sample(i) for i in rows], per_shard=3)

    assert diff(first, second) == [what]


# copy


@pytest.mark.parametrize("format", FORMATS)
def test_copy_keeps_every_byte(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack_samples(tmp_path / "a", 10)

    made = run_json(capsys, "copy", folder, tmp_path / "b", "--format", format)

    assert made["samples"] == 10
    assert samples_of(tmp_path / "b") == samples_of(folder)
    assert read_manifest(tmp_path / "b").schema == read_manifest(folder).schema
    assert verify(tmp_path / "b").ok


def test_copy_chooses_fields(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 4)

    copy_dataset(folder, tmp_path / "b", CopyOptions(fields=["key", "image"]))
    copy_dataset(folder, tmp_path / "c", CopyOptions(fields=["score"]))

    schema = read_manifest(tmp_path / "b").schema
    assert (list(schema.fields), schema.defaults) == (["key", "image"], ("image",))
    assert read_manifest(tmp_path / "c").schema.defaults == ("score",)
    with pytest.raises(SchemaError):
        copy_dataset(folder, tmp_path / "d", CopyOptions(fields=["nope"]))
    for fields in (["key", "key"], []):
        with pytest.raises(SchemaError):
            copy_dataset(folder, tmp_path / "d", CopyOptions(fields=fields))


@pytest.mark.parametrize(("codec", "in_one"), [(None, True), ("png", False)])
def test_threads_encode_and_what_is_only_copied_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str | None, in_one: bool
) -> None:
    threads, encode = set[threading.Thread](), ViewContent.encode

    def noted(content: ViewContent, item: range) -> Any:
        threads.add(threading.current_thread())
        return encode(content, item)

    monkeypatch.setattr(ViewContent, "encode", noted)

    copy_dataset(pack_samples(tmp_path / "a", 12), tmp_path / "b", CopyOptions(codec=codec))

    assert (threads == {threading.current_thread()}) is in_one


@pytest.mark.parametrize("codec", ["jpeg", "webp", "raw", "png"])
def test_copy_encodes_pictures_anew(tmp_path: Path, codec: str) -> None:
    folder = pack_samples(tmp_path / "a", 12)

    for workers in (1, 3):
        target = tmp_path / f"b{workers}"
        copy_dataset(folder, target, CopyOptions(codec=codec), workers=workers)

    assert samples_of(tmp_path / "b1") == samples_of(tmp_path / "b3")
    old, new = PackedReader(folder), PackedReader(tmp_path / "b1")
    assert {f.codec for f in new.schema.fields.values() if isinstance(f, Image)} == {codec}
    for i in range(12):
        one, other = old.sample(i), new.sample(i)
        assert one["image"].shape == other["image"].shape
        if codec in ("raw", "png"):
            np.testing.assert_array_equal(one["image"], other["image"])
        for name in ("mask", "label", "key", "boxes"):
            np.testing.assert_array_equal(one[name], other[name])
    kept = {"png": "image", "raw": "pixels"}.get(codec)
    if kept is not None:
        assert [s[kept] for s in samples_of(folder)] == [
            s[kept] for s in samples_of(tmp_path / "b1")
        ]


def test_copy_encodes_files_of_another_codec_and_keeps_the_others(tmp_path: Path) -> None:
    """A field has files of any of the three codecs."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 20, 3), np.uint8)
    files = [cv2.imencode(suffix, pixels)[1].tobytes() for suffix in (".jpg", ".png")]
    folder = pack(tmp_path / "a", {"image": Image()}, [{"image": file} for file in files])

    for kept, codec in enumerate(("jpeg", "png")):
        copy_dataset(folder, tmp_path / codec, CopyOptions(codec=codec))
        made = [row["image"] for row in samples_of(tmp_path / codec)]
        assert made[kept] == files[kept]
        assert made[1 - kept][:2] == files[kept][:2]


def test_a_field_that_a_codec_cannot_hold_is_named(tmp_path: Path) -> None:
    fields = {"image": Image(codec="png"), "deep": Image(codec="png", dtype="uint16")}
    rows = [{name: np.zeros((8, 8, 3), field.dtype) for name, field in fields.items()}]
    folder = pack(tmp_path / "a", fields, rows)

    with pytest.raises(SchemaError):
        copy_dataset(folder, tmp_path / "b", CopyOptions(codec="webp"))
    copy_dataset(folder, tmp_path / "b", CopyOptions(codec="webp", fields=["image"]))


def test_a_picture_that_a_codec_cannot_hold_is_named(tmp_path: Path) -> None:
    rows = [{"image": np.zeros((8, width, 3), np.uint8)} for width in (8, 9, 17_000, 8)]
    folder = pack(tmp_path / "a", {"image": Image(codec="png")}, rows)

    with pytest.raises(SourceError, check=At("shard-00000.lmdb, row 2", cause=CodecError)):
        copy_dataset(folder, tmp_path / "b", CopyOptions(codec="webp"))

    assert not (tmp_path / "b").exists()


def test_quality_encodes_what_has_the_codec_already(tmp_path: Path) -> None:
    smooth = cv2.resize(np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8), (96, 96))
    rows = [{"image": smooth}]
    folder = pack(tmp_path / "a", {"image": Image(codec="jpeg")}, rows)

    copy_dataset(folder, tmp_path / "same", CopyOptions(codec="jpeg"))
    copy_dataset(folder, tmp_path / "small", CopyOptions(codec="jpeg", quality=20))

    assert samples_of(tmp_path / "same") == samples_of(folder)
    sizes = [len(samples_of(path)[0]["image"]) for path in (folder, tmp_path / "small")]
    assert sizes[1] < sizes[0] * 0.7
    for options in (
        {"quality": 50},
        {"quality": 101, "codec": "jpeg"},
        {"quality": 5, "codec": "png"},
    ):
        with pytest.raises(ValueError):
            CopyOptions(**options)
    with pytest.raises(TypeError, match="resize"):  # which is of packdata.write
        CopyOptions(codec="jpeg", resize=16)  # type: ignore[call-arg]
    with pytest.raises(SystemExit, check=At(code=2)):
        run("copy", folder, tmp_path / "x", "--quality", 50)


@pytest.mark.parametrize("format", FORMATS)
def test_damage_is_not_copied_under_a_good_checksum(tmp_path: Path, format: str) -> None:
    folder = pack_samples(tmp_path / "a", 6, format=format)
    path = folder / f"shard-00001.{format}"
    data = bytearray(path.read_bytes())
    data[data.find(sample(5)["pixels"].tobytes()) + 7] ^= 1
    path.write_bytes(data)

    for options in (CopyOptions(), CopyOptions(codec="webp", fields=["pixels"])):
        with pytest.raises(ChecksumError, check=At(field="pixels")):
            copy_dataset(folder, tmp_path / "b", options)
    with pytest.raises(ChecksumError, check=At(field="pixels")):
        split(folder, tmp_path / "s", {"all": 1.0})
    assert not (tmp_path / "b").exists()
    copy_dataset(folder, tmp_path / "b", CopyOptions(fields=["key", "label"]))


@pytest.mark.parametrize("command", ["copy", "merge", "extend"])
def test_the_rejects_of_a_packing_go_with_what_it_packed(tmp_path: Path, command: str) -> None:
    """They stay where that is only added to."""
    old = pack_samples(tmp_path / "old", 4, fields=SMALL)
    new = pack(tmp_path / "new", {name: FIELDS[name] for name in SMALL}, [sample(7)])
    if command == "merge":
        shutil.rmtree(old)
        derive.merge(old, [pack_samples(tmp_path / "first", 4, fields=SMALL)])
    (old / "rejected.jsonl").write_text('{"item": "a.jpg", "error": "it is none"}\n')

    assert run(command, new, old, *([] if command == "extend" else ["--overwrite"])) == 0

    assert ("rejected.jsonl" in entries(old)) is (command == "extend")
    assert verify(old).ok


def test_a_condition_that_nothing_fulfils_writes_nothing(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 3, fields=SMALL)

    with pytest.raises(PackError, check=At("b", hint="")):  # none of documents
        copy_dataset(folder, tmp_path / "b", CopyOptions(where="width > 1000"))
    assert not (tmp_path / "b").exists()


def test_a_codec_that_cannot_hold_the_pictures_writes_nothing(tmp_path: Path) -> None:
    fields = {"image": Image(channels=1, dtype="uint16", codec="png")}
    folder = pack(tmp_path / "a", fields, [{"image": np.zeros((4, 4, 1), np.uint16)}])

    for codec in ("jpeg", "nonsense"):
        with pytest.raises(LoadersError):
            copy_dataset(folder, tmp_path / "b", CopyOptions(codec=codec))
    assert not (tmp_path / "b").exists()


def test_options_for_the_copy_are_in_its_provenance_without_paths(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 3, fields=SMALL)

    copy_dataset(folder, tmp_path / "b", CopyOptions(where="label < 2"))

    text = json.dumps(dict(read_manifest(tmp_path / "b").provenance))
    assert str(tmp_path) not in text
    assert json.loads(text)["options"] == {"where": "label < 2"}


# All of them


@pytest.mark.parametrize("command", [*chain(*GROUPS.values())])
def test_every_command_has_help_with_an_example(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = command.name

    with pytest.raises(SystemExit, check=At(code=0)):
        run(name, "--help")

    text = capsys.readouterr().out
    assert re.search(rf"examples?:\n  packdata {name}\b", text)
    assert "%" not in text


@pytest.mark.parametrize(
    "argv",
    [
        ["info", "none"],
        ["stats", "none"],
        ["preview", "none"],
        ["extend", "none", "a"],
        ["extend", "a", "none"],
        ["merge", "a", "none", "b"],
        ["split", "none", "b", "--parts", "x=1"],
        ["diff", "a", "none"],
        ["copy", "none", "b"],
    ],
)
def test_a_dataset_that_is_not_there_is_named(
    tmp_path: Path, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_samples(tmp_path / "a", 2, fields=SMALL)
    monkeypatch.chdir(tmp_path)
    before = entries(tmp_path / "a")

    with pytest.raises(LoadersError, check=At("none")):
        run(*argv)

    assert sorted(os.listdir(tmp_path)) == ["a"]
    assert entries(tmp_path / "a") == before


def test_sizes_have_units() -> None:
    assert [size_from(text) for text in ("1B", "2K", "3 MiB", "0.5gb")] == [
        1,
        2048,
        3 << 20,
        1 << 29,
    ]
    for text in ("", "x", "-1", "0", "1PB", "1", "64"):
        with pytest.raises(argparse.ArgumentTypeError):
            size_from(text)
