"""Names come from whoever made the files: what a terminal would obey in them is shown, never sent."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from loaders.bench.cli import main as bench
from loaders.data.manifest import read_manifest
from loaders.errors import SampleError, ShardError, SourceError
from loaders.schema import Label
from loaders.text import printable, printable_json
from packdata.cli import main

EVIL = "a\x1b]0;owned\x07\x9b31m\u202eb\npackdata: OK"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder, classes and files with such names, one of which is no picture."""
    folder = tmp_path / f"photos{EVIL}"
    for name in (EVIL, "dog"):
        (folder / name).mkdir(parents=True)
        picture = np.full((8, 8, 3), 9, np.uint8)
        (folder / name / f"1{EVIL}.png").write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    (folder / "dog" / f"2{EVIL}.png").write_bytes(b"no picture")
    (folder / f"more{EVIL}.txt").write_bytes(b"")
    return folder


def check(told: tuple[str, str]) -> None:
    for text in told:
        assert OBEYED.search(text) is None, ascii(text)
        assert "\npackdata: OK" not in text
    assert "\\x1b" in "".join(told) or "\\u001b" in "".join(told)  # and it was shown


def test_every_command_shows_it(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, other = tmp_path / f"p{EVIL}", tmp_path / f"other{EVIL}"
    skip = ["--on-error", "skip"]

    for words, status in (
        (["images", photos, packed, *skip, "--dry-run"], 0),
        (["images", photos, packed], 1),
        (["images", photos, packed, *skip], 3),
        (["images", photos, packed, *skip], 3),  # it is there, without what was left out
        (["info", packed], 0),
        (["info", packed, "--json"], 0),
        (["stats", packed], 0),
        (["stats", packed, "--json"], 0),
        (["preview", packed, "--text"], 0),
        (["preview", packed, "--out", tmp_path / f"s{EVIL}.png"], 0),
        (["verify", packed], 0),
        (["copy", packed, other, "--where", f"label == {EVIL!r}"], 0),
        (["info", other], 0),
        (["merge", packed, other], 1),
        (["copy", packed, tmp_path / f"c{EVIL}", "--where", "key == 'none'"], 1),
    ):
        assert main([str(word) for word in words]) == status, words
        check(capsys.readouterr())

    rejects = (packed / "rejected.jsonl").read_text()
    assert OBEYED.search(rejects) is None
    assert json.loads(rejects)["item"].endswith(f"dog/2{EVIL}.png")
    classes = read_manifest(packed).schema.fields["label"]
    assert isinstance(classes, Label)
    assert classes.classes == (EVIL, "dog")


def test_damage_is_told_without_it(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / f"p{EVIL}"
    assert main(["images", str(photos), str(packed), "--on-error", "skip"]) == 3
    shard = next(packed.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    capsys.readouterr()

    for words in (["verify", packed], ["stats", packed]):
        assert main([str(word) for word in words]) == 1
        check(capsys.readouterr())


def test_the_bench_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["plan", str(tmp_path / EVIL)]) == 1
    check(capsys.readouterr())
    (tmp_path / EVIL).mkdir()
    assert bench(["doctor", str(tmp_path / EVIL)]) == 0
    check(capsys.readouterr())


ERRORS: list[Callable[[Path], Exception]] = [
    lambda path: SourceError("it is none", path),
    lambda path: ShardError("it is none", path, 3, "image"),
    lambda path: SampleError("it is none", 3, path, 4, EVIL),
]


@pytest.mark.parametrize("make", ERRORS, ids=["source", "shard", "sample"])
def test_errors_show_it_and_keep_what_was_found(
    tmp_path: Path, make: Callable[[Path], Exception]
) -> None:
    error = make(tmp_path / EVIL)

    check((str(error), ""))
    assert getattr(error, "path") == tmp_path / EVIL  # noqa: B009  (whichever error it is)


def test_other_letters_stay() -> None:
    names = "日本語 café Ελλάδα e\u0301 👩\u200d🚀 a\xa0b"

    assert printable(names) == names
    assert json.loads(printable_json(json.dumps([names, EVIL], ensure_ascii=False))) == [
        names,
        EVIL,
    ]
