"""The command: exit codes, plans, summaries, and every option of ``packdata images``."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import loaders
import packdata.cli
from loaders.data.manifest import read_manifest
from loaders.errors import PackError
from loaders.schema import Image, Label
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.packing.provenance import describe_origin
from packdata.packing.target import PACKING_NAME
from tests.packdata.breaking import deny_looking
from tests.packdata.reading import PackedReader
from tests.packdata.recipes import contents
from tests.refusals import At


def picture(path: Path, seed: int, size: tuple[int, int] = (40, 50)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), cv2.resize(small, size[::-1], interpolation=cv2.INTER_CUBIC))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(6):
        picture(tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i}.jpg", i, (40 + i, 50))
    return tmp_path / "photos"


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


# ------------------------------------------------------------------------------ exit codes


def test_done_is_0_and_says_what_was_done(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("images", photos, tmp_path / "out") == 0

    out, err = capsys.readouterr()
    assert out.startswith(f"packed 6 samples into {tmp_path / 'out'}: 1 shard, ")
    assert "6 pictures kept verbatim" in out
    assert err == ""


def test_the_hint_follows_the_error(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "cat" / "bad.jpg").write_bytes(b"\xff\xd8 no")

    assert run("images", photos, tmp_path / "out") == 1

    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"packdata: {photos}/cat/bad.jpg: ")
    assert hint == (
        "packdata: stopped at the first file that cannot be packed; "
        "on_error='skip' continues and lists such files (option: --on-error)"
    )


def test_done_with_rejects_is_3(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(12):
        (photos / "cat" / f"bad{i:02}.jpg").write_bytes(b"")

    assert run("images", photos, tmp_path / "out", "--on-error", "skip") == 3

    rejected = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected[0])["item"].endswith("cat/bad00.jpg")
    out = capsys.readouterr().out
    assert "rejected 12, listed in" in out
    assert out.endswith("  and 2 more\n")


@pytest.mark.parametrize(
    "options",
    [
        ["--quality", "101"],
        ["--quality", "high"],
        ["--size", "0"],
        ["--size", "big"],
        ["--size", "100x200"],  # needs --fit
        ["--size", "20", "--size", "20"],
        ["--fit", "crop"],
        ["--codec", "raw"],  # needs --size and --fit
        ["--codec", "jpeg", "--keep-depth"],
        ["--format", "zip"],
        ["--shard-size", "lots"],
        ["--shard-size", "0"],
        ["--shard-size", "1GB", "--format", "parquet"],
        ["--workers", "0"],
        ["--on-error", "ignore"],
        ["--unknown"],
    ],
)
def test_wrong_usage_is_2_and_makes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("images", photos, tmp_path / "out", *options)

    assert caught.value.code == 2
    error, *where = capsys.readouterr().err.splitlines()
    assert error.startswith("packdata images: error: ")
    assert where == ["'packdata images --help' lists what it takes."]
    assert not (tmp_path / "out").exists()


def test_a_command_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, check=At(code=2)):
        run("image", "photos", "packed")

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("packdata: error: there is no command 'image': did you mean 'images'?")
    assert err.endswith("'packdata --help' lists what it takes.\n")


def test_no_command_is_wrong_usage_and_prints_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        run()

    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "packdata COMMAND --help" in err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--version")

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"packdata {loaders.__version__}\n"


def test_wrong_usage_is_told_before_the_source_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("tables", tmp_path / "nowhere.csv", tmp_path / "out", "--shard-size", "1GB")

    assert caught.value.code == 2
    assert "(option: --shard-size)" in capsys.readouterr().err


def test_a_target_below_a_file_gets_a_message_of_whole_sentences(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    assert run("images", photos, tmp_path / "file/out") == 1

    err = capsys.readouterr().err
    assert f"{tmp_path}/file/out: cannot be packed into (Not a directory). " in err
    assert "choose a folder" in err


@pytest.mark.parametrize(
    ("before", "after", "there"),
    [
        ([], ["--size", "16", "--size", "8"], ["."]),
        (["--size", "16", "--size", "8"], [], ["16", "8"]),
    ],
)
def test_overwrite_with_other_sizes_says_what_to_remove(
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: list[str],
    after: list[str],
    there: list[str],
) -> None:
    dst = tmp_path / "out"
    assert run("images", photos, dst, *before) == 0
    files = sorted(dst.rglob("*"))
    capsys.readouterr()

    assert run("images", photos, dst, *after, "--overwrite") == 1

    err = capsys.readouterr().err
    assert any(f"{dst / name}: another packed dataset exists. " in err for name in there)
    assert sorted(dst.rglob("*")) == files


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_list_without_a_label_says_so_and_label_column_names_one(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    rows = [{"path": f"{('cat', 'dog')[i % 2]}/{i}.jpg", "species": "ab"[i % 2]} for i in range(6)]
    lines = [f"{row['path']},{row['species']}" for row in rows]
    text = "\n".join(["path,species", *lines] if suffix == "csv" else map(json.dumps, rows))
    (photos / f"list.{suffix}").write_text(text)
    source = photos / f"list.{suffix}"

    assert run("images", source, tmp_path / "text") == 0
    assert "label_column= takes another: species" in capsys.readouterr().out
    assert run("images", source, tmp_path / "label", "--label-column", "species") == 0
    assert "--label-column" not in capsys.readouterr().out
    assert run("images", source, tmp_path / "no", "--label-column", "kind") == 1
    assert run("images", source, tmp_path / "no", "--label-column", "path") == 1

    err = capsys.readouterr().err
    assert "no column 'kind' for labels, but ['path', 'species']" in err
    assert "paths and keys cannot be labels" in err
    assert "label" not in PackedReader(tmp_path / "text").schema.fields
    labelled = PackedReader(tmp_path / "label")
    assert labelled.schema.fields["label"] == Label(classes=("a", "b"))
    assert labelled.column("label").tolist() == [0, 1] * 3


def test_a_folder_has_no_column_to_choose(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("images", photos, tmp_path / "out", "--label-column", "species") == 1

    assert "no columns, so none" in capsys.readouterr().err


@pytest.fixture
def sources(photos: Path, tmp_path: Path) -> dict[str, Path]:
    """Return a folder for each command that packs, and one of splits."""
    for name, file, content in (("texts", "a.txt", "a"), ("tables", "a.csv", "x,y\n1,2\n")):
        (tmp_path / name / "below").mkdir(parents=True)
        (tmp_path / name / file).write_text(content)
    for i in range(2):
        (tmp_path / f"scans/{i}").mkdir(parents=True)
        np.save(tmp_path / f"scans/{i}/a.npy", np.zeros((2, 2)))
        picture(tmp_path / "splits" / ("train", "val")[i] / f"{i}.jpg", i)
    commands = {"images": photos, "tokens": tmp_path / "texts", "tables": tmp_path / "tables"}
    return commands | {"arrays": tmp_path / "scans", "splits": tmp_path / "splits"}


@pytest.mark.parametrize("command", ["images", "tokens", "tables", "arrays", "splits"])
def test_a_target_inside_of_its_source_is_refused(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """It would be a class, a split or a document the next time."""
    source = sources[command]
    (tmp_path / "link").symlink_to(source)
    before = sorted(source.rglob("*"))
    packs = "images" if command == "splits" else command
    inner = next(path for path in before if path.is_dir())
    inside = (source / "out", source / "a/b/out", inner / "out", tmp_path / "link/out")
    places = (*inside, tmp_path / "beside/.." / source.name / "out")
    others = ["--dry-run"], ["--overwrite"]
    for options, place in [*(([], place) for place in places), *zip(others, places, strict=False)]:
        assert run(packs, source, place, *options) == 1
        assert run(packs, tmp_path / "link", place, *options) == 1
        error = f"{place}: same as the source "
        assert capsys.readouterr().err.count(error) == 2
    for options in ([], ["--dry-run"], ["--overwrite"]):
        assert run(packs, source, source, *options) == 1
        assert f"{source}: same as the source " in capsys.readouterr().err

    assert sorted(source.rglob("*")) == before


@pytest.mark.parametrize("command", ["images", "tokens", "tables", "arrays", "splits"])
def test_a_target_beside_its_source_is_not_inside(
    sources: dict[str, Path], tmp_path: Path, command: str
) -> None:
    packs, source = "images" if command == "splits" else command, sources[command]
    alone = tmp_path / "alone" / source.name
    alone.parent.mkdir()
    source.rename(alone)

    assert run(packs, alone, tmp_path / f"alone/{source.name}-packed") == 0
    assert run(packs, alone, alone.parent, "--dry-run") == 1  # it holds the source


def test_functions_refuse_a_target_inside_of_its_source(photos: Path) -> None:
    with pytest.raises(PackError, check=At("photos/cat/out")):
        pack_images(photos, photos / "cat" / "out")

    assert sorted(path.name for path in photos.iterdir()) == ["cat", "dog"]


def test_an_error_of_the_system_is_1_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Parsed:
        def run(self, args: object) -> int:
            raise PermissionError(13, "Permission denied", "secret.jpg")

    class Parser:
        def parse_args(self, argv: object) -> Parsed:
            return Parsed()

    monkeypatch.setattr(packdata.cli, "COMMANDS", Parser())

    assert main(["info"]) == 1
    assert "packdata: secret.jpg: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--masks", "--classes"])
@pytest.mark.parametrize("has_splits", [False, True])
def test_a_path_of_an_option_that_may_not_be_looked_at_is_named(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    has_splits: bool,
) -> None:
    if has_splits:
        shutil.copytree(photos, tmp_path / "splits/train")
        shutil.copytree(photos, tmp_path / "splits/val")
    source, closed = tmp_path / "splits" if has_splits else photos, tmp_path / "closed"
    deny_looking(monkeypatch, closed)

    assert run("images", source, tmp_path / "out", option, closed / "x") == 1

    text = f"{closed / 'x'}: cannot be read (Permission denied)"
    assert text in capsys.readouterr().err


def test_a_source_that_may_not_be_looked_at_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deny_looking(monkeypatch, tmp_path / "closed")

    for command in ("images", "arrays"):
        assert run(command, tmp_path / "closed/x", tmp_path / "out") == 1
        err = capsys.readouterr().err
        assert f"packdata: {tmp_path / 'closed/x'}: cannot be read (Permission denied)" in err


@pytest.mark.parametrize(
    "asked",
    [[], *(pytest.param(["-W", how], marks=pytest.mark.slow) for how in ("default", "error"))],
)
def test_warnings_of_pillow_are_not_printed(
    photos: Path, tmp_path: Path, asked: list[str]
) -> None:
    """What they are about is said by us, with the file's name."""
    (photos / "cat/bad.tif").write_bytes(b"II*\0\x08\0\0\0\x09\0" + bytes(30))
    command = [sys.executable, *asked, "-m", "packdata", "images"]
    command += [str(photos), str(tmp_path / "out"), "--on-error", "skip"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 3
    assert "Warning" not in done.stderr
    assert "bad.tif" in done.stdout


def test_filters_of_warnings_stay_as_they_were(photos: Path, tmp_path: Path) -> None:
    before = list(warnings.filters)

    assert run("images", photos, tmp_path / "out") == 0

    assert list(warnings.filters) == before


def test_as_a_process_it_ends_with_the_same_codes_and_a_closed_pipe_is_quiet(
    photos: Path, tmp_path: Path
) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "packdata", "images", str(photos), str(tmp_path / "out")]

    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
        )
    command += ["--size", "8"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr == b""
    assert done.returncode == 0
    assert len(PackedReader(tmp_path / "out")) == 6
    assert again.returncode == 1
    assert "a packed dataset exists" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.slow
def test_ctrl_c_is_130_and_the_same_command_continues(tmp_path: Path) -> None:
    for i in range(120):
        picture(tmp_path / "many" / f"{i:03d}.png", i, (300, 300))
    out = tmp_path / "out"
    options = ["--size", "280", "--codec", "png", "--shard-size", "100kB", "--workers", "1"]
    command = [
        sys.executable,
        "-m",
        "packdata",
        "images",
        str(tmp_path / "many"),
        str(out),
        *options,
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    journal = out / PACKING_NAME / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
        assert time.monotonic() < deadline
        time.sleep(0.002)

    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=100)

    assert child.returncode == 130
    assert err == "packdata: interrupted, the same command continues\n"
    assert not (out / "manifest.json").exists()
    assert run("images", tmp_path / "many", out, *options) == 0
    assert run("images", tmp_path / "many", tmp_path / "whole", *options) == 0
    assert contents(out) == contents(tmp_path / "whole")


# ------------------------------------------------------------------------------ options


def test_a_dry_run_prints_the_plan_and_makes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "cat" / "notes.txt").write_text("")
    args = ("images", photos, tmp_path / "out", "--size", "20", "--size", "10", "--dry-run")

    assert run(*args) == 0
    text = capsys.readouterr().out
    assert run(*args, "--json") == 0
    plan = json.loads(capsys.readouterr().out)

    assert "6 items of kind 'classes'" in text
    assert "label: label of 2 classes (cat, dog)" in text
    assert "skipped: 1 .txt" in text
    assert plan["items"] == 6
    assert plan["format"] == "lmdb"
    assert list(plan["parts"][0]["targets"]) == ["20", "10"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "format", "codec"),
    [
        ([], "lmdb", "jpeg"),
        (["--size", "16x24", "--fit", "cover", "--codec", "raw"], "parquet", "raw"),
        (
            ["--size", "16", "--fit", "stretch", "--codec", "raw", "--format", "lmdb"],
            "lmdb",
            "raw",
        ),
        (["--codec", "webp", "--format", "parquet", "--quality", "50"], "parquet", "webp"),
        (["--keep-depth", "--gray"], "lmdb", "png"),
    ],
)
def test_format_and_codec_follow_from_the_options(
    photos: Path, tmp_path: Path, options: list[str], format: str, codec: str
) -> None:
    assert run("images", photos, tmp_path / "out", *options) == 0

    manifest = read_manifest(tmp_path / "out")
    image = manifest.schema.fields["image"]
    assert manifest.shards[0].file.endswith(format)
    assert isinstance(image, Image)
    assert image.codec == codec
    assert image.channels == (1 if "--gray" in options else 3)
    assert image.dtype == ("uint16" if "--keep-depth" in options else "uint8")
    assert image.size == (
        (16, 24) if "cover" in options else (16, 16) if "16" in options else None
    )


def test_pictures_of_one_name_keep_their_suffix_in_the_key(tmp_path: Path) -> None:
    for i, name in enumerate(("a/x.png", "a/x.jpg", "a/y.jpg", "b/x.jpg")):
        picture(tmp_path / "src" / name, i)

    for workers in (1, 3):
        out = tmp_path / f"{workers}"
        assert run("images", tmp_path / "src", out, "--workers", workers) == 0
        assert PackedReader(out).keys() == ["a/x.jpg", "a/x.png", "a/y", "b/x"]


def test_pictures_smaller_than_the_size_are_counted(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("images", photos, tmp_path / "a", "--size", "41", "--size", "43") == 0

    shown = capsys.readouterr().out
    assert "1 picture smaller than 41, kept that size" in shown
    assert "3 pictures smaller than 43, kept that size" in shown
    assert run("images", photos, tmp_path / "b", "--size", "43", "--codec", "png") == 0
    assert "3 pictures smaller than 43" in capsys.readouterr().out
    assert run("images", photos, tmp_path / "c", "--size", "43", "--fit", "cover") == 0
    assert "smaller than" not in capsys.readouterr().out


def test_info_and_verify_find_the_sizes_of_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, split in enumerate(("train", "val")):
        picture(tmp_path / "src" / split / f"{i}.jpg", i)
    out = tmp_path / "out"
    assert run("images", tmp_path / "src", out, "--size", "16", "--size", "8") == 0
    (out / ".packing" / "x").mkdir(parents=True)
    (out / ".packing" / "x" / "manifest.json").write_text("{")
    capsys.readouterr()

    assert run("info", out) == 0
    shown = capsys.readouterr().out.splitlines()
    expected = [f"{out}/{split}/{size}" for split in ("train", "val") for size in (16, 8)]
    assert [line for line in shown if not line.startswith(" ")] == expected
    assert run("verify", out) == 0
    assert capsys.readouterr().out.count(": OK") == 4


def test_classes_that_are_empty_in_every_split_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class that one split has keeps its number in all; so does one that --classes names."""
    src = tmp_path / "src"
    for i, split in enumerate(("train", "train", "val")):
        picture(src / split / ("cat", "dog", "dog")[i] / f"{i}.jpg", i)
    for folder in ("train/ant", "val/ant", "val/bee", "val/cat"):
        (src / folder).mkdir()
    (tmp_path / "classes").write_text("bee\ncat\ndog\n")

    assert run("images", src, tmp_path / "a") == 0
    assert run("images", src, tmp_path / "b", "--classes", tmp_path / "classes", "--dry-run") == 0
    fixed = capsys.readouterr().out

    for split in ("train", "val"):
        label = read_manifest(tmp_path / "a" / split).schema.fields["label"]
        assert label == Label(classes=("cat", "dog"))
    assert "3 classes (bee, cat, dog)" in fixed


def test_a_source_that_changes_while_it_is_packed_is_noticed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from packdata.images.recipe import ImagesRecipe

    encode = ImagesRecipe.encode

    def changing(self: ImagesRecipe, item: Any) -> Any:
        beside = tmp_path / f"{threading.get_ident()}.jpg"
        picture(beside, 99)
        beside.replace(photos / "cat" / "0.jpg")  # at once: another thread may be reading it
        return encode(self, item)

    monkeypatch.setattr(ImagesRecipe, "encode", changing)

    assert run("images", photos, tmp_path / "out") == 1
    assert "the source changed while it was packed" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_result_says_nothing_of_time_host_or_place(photos: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "photos"
    assert run("images", photos, tmp_path / "a") == 0
    moved.parent.mkdir()
    photos.rename(moved)
    assert run("images", moved, tmp_path / "b", "--workers", 1) == 0

    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert str(tmp_path) not in (tmp_path / "a" / "manifest.json").read_text()


def test_one_of_a_thing_is_said_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src, packed, other = tmp_path / "src", tmp_path / "packed", tmp_path / "other"
    picture(src / "cat" / "0.jpg", 0)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "classes.txt").write_text("cat\n")

    assert run("images", src, packed, "--classes", tmp_path / "classes.txt", "--dry-run") == 0
    for folder in (packed, other):
        assert run("images", src, folder, "--classes", tmp_path / "classes.txt") == 0
    for name, *args in (
        ("info", packed),
        ("verify", packed),
        ("stats", packed),
        ("diff", packed, other),
        ("preview", packed, "--out", tmp_path / "a.png"),
        ("copy", packed, tmp_path / "c"),
        ("tokens", tmp_path / "a.txt", tmp_path / "t", "--dry-run"),
        ("tables", tmp_path / "a.csv", tmp_path / "u", "--dry-run"),
    ):
        assert run(name, *args) == 0
    text = capsys.readouterr().out

    assert not re.search(r"(?<![\d.,])1 (?!class\b)\w+s\b", text), text
    for said in (
        "1 item of kind", "1 picture kept verbatim", "1 class (cat)", "1 class: cat",
        "1 sample in 1 shard", "1 of 1 sample\n",
        "1 file (text), 1 byte, in 1 piece\n", "1 row in 1 file\n",
    ):  # fmt: skip
        assert said in text, said


def made_from(capsys: pytest.CaptureFixture[str], *folders: Path) -> list[str]:
    """Return what ``info`` says of the origin of datasets."""
    capsys.readouterr()
    for folder in folders:
        assert run("info", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.removeprefix("  made from    ") for line in lines if "made from" in line]


def test_info_says_in_short_what_a_dataset_was_made_from(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree")
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    plain, small, cats = (tmp_path / name for name in ("plain", "small", "cats"))
    halves = tmp_path / "halves"
    assert run("images", photos, plain) == 0
    assert run("images", photos, small, "--size", 32, "--quality", 80, "--gray") == 0
    assert run("copy", plain, cats, "--where", "label == 'cat'") == 0
    assert run("split", plain, halves, "--parts", "a=0.5", "b=0.5") == 0
    assert run("merge", halves / "a", halves / "b", tmp_path / "m") == 0
    assert run("extend", halves / "b", cats) == 1  # keys stand twice
    assert run("tokens", tmp_path / "a.txt", tmp_path / "t", "--documents", "\\n\\n") == 0
    assert run("tables", tmp_path / "a.csv", tmp_path / "u", "--target", "y") == 0

    names = ("t", "u", "m")
    found = made_from(capsys, plain, small, cats, halves / "b", *(tmp_path / n for n in names))

    assert found == [
        "images: photos",
        "images: photos, sizes=['32'], quality=80, gray=True",
        "copy: plain, where=label == 'cat'",
        "split: plain, by=shuffle, parts={'a': 0.5, 'b': 0.5}, part=b",
        r"tokens: a.txt, documents=\n\n, text_column=text, bin_dtype=uint16",
        "tables: a.csv, target=['y']",
        "merge: a, b",
    ]


def test_an_interrupt_while_libraries_are_imported_is_one_line() -> None:
    """As Ctrl-C is later: the first half a second is all imports."""
    code = """
import os, signal, sys, time
from packdata.__main__ import main
class Interrupt:
    def find_spec(self, name, *_):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
sys.meta_path.insert(0, Interrupt())
sys.exit(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "packdata: interrupted\n")


@pytest.mark.parametrize(
    ("provenance", "said"),
    [
        ({}, ""),
        ({"source": {"kind": "python"}, "packer": "loaders 0.1.0"}, "python"),
        ({"from": "a survey", "year": 2024, "none": None}, "from=a survey, year=2024"),
        ({"recipe": "tokens", "source": list("abcdefghijklmnop")}, "tokens: a, b, c, ..."),
        ({"command": ["odd"], "source": 7, "sources": 8, "options": 9}, "['odd']: 8"),
        ({"command": "merge", "sources": [{"name": "a"}, 3, {}]}, "merge: a, 3, ?"),
        ({"source": "x", "a": 1, "appended": [{"name": "y"}]}, "x, a=1, extended by y"),
        ({"source": "n" * 500}, f"{'n' * 299}…"),
    ],
)  # fmt: skip
def test_any_origin_is_a_line(provenance: dict[str, Any], said: str) -> None:
    assert describe_origin(provenance) == said


# ------------------------------------------------------------------------------ help


@pytest.mark.parametrize("command", ["images", "arrays"])
def test_a_name_that_is_no_text_is_not_skipped(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src").mkdir()
    suffix = {"images": b".png", "arrays": b".npy"}[command]
    (tmp_path / "src" / os.fsdecode(b"caf\xe9" + suffix)).write_bytes(b"")

    assert run(command, tmp_path / "src", tmp_path / "out", "--on-error", "skip") == 1
    assert "is not UTF-8" in capsys.readouterr().err
