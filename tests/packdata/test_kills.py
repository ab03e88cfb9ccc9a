"""Commands that change datasets, killed before each change of the file system: run again, each finishes.

An audit hook sees every file that is opened for writing, moved, linked or deleted, also in what is
not ours to patch.
"""

import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from loaders.data.manifest import MANIFEST_NAME, read_manifest
from loaders.schema import Array, Label
from packdata import Writer
from packdata.cli import main
from packdata.packing import store
from packdata.packing.journal import Journal, parse_journal
from packdata.packing.target import JOURNAL_NAME, PACKING_NAME
from tests.packdata.packing import pack, pack_samples
from tests.packdata.reading import PackedReader

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

Made = dict[str, tuple[list[str], list[bytes]]]

SMALL = ["label", "key", "score"]
PLACES = ("one", "two", "bare", "photos", "dst")
CHANGES = ("os.remove", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.truncate")


def killed_before(nth: int, place: Path, argv: list[str]) -> bool:
    """Run a command in a fork that dies before its nth change below a place; False if it made fewer."""
    pid = os.fork()
    if pid == 0:
        try:
            die_before(nth, str(place))
            os._exit(main(argv))
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -9)
    return code == -9


def die_before(nth: int, place: str) -> None:
    seen = 0

    def hook(event: str, args: Any) -> None:
        nonlocal seen
        if event not in CHANGES and not (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if any(str(arg).startswith(place) for arg in args[:2]):
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(hook)


COMMANDS: dict[str, tuple[str, list[str]]] = {  # what is there at the target, and the command
    "copy": ("", ["copy", "one", "dst", "--where", "label != 0"]),
    "copy over another": ("merged", ["copy", "one", "dst", "--overwrite"]),
    "merge": ("", ["merge", "one", "two", "dst"]),
    "merge over another": ("merged", ["merge", "one", "two", "dst", "--overwrite"]),
    "extend": ("one", ["extend", "two", "dst"]),
    "extend without keys": ("bare", ["extend", "bare", "dst"]),
    "images": ("", ["images", "photos", "dst", "--size", "16", "--workers", "1"]),
    "split over others": (
        "parts",
        ["split", "one", "dst", "--parts", "a=0.5", "b=0.5", "--format", "lmdb", "--overwrite"],
    ),
    "split": ("", ["split", "one", "dst", "--parts", "a=0.5", "b=0.25", "c=0.25"]),
}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    pack_samples(folder / "one", 8, fields=SMALL)
    pack_samples(folder / "two", 4, first=50, fields=SMALL)
    for i in range(6):
        (folder / "photos" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "photos" / f"c{i % 2}" / f"{i}.png"), np.full((20, 20, 3), i))
    parts = ["--parts", "a=0.5", "b=0.5", "--format", "parquet"]
    assert main(["merge", str(folder / "two"), str(folder / "merged")]) == 0
    assert main(["split", str(folder / "one"), str(folder / "parts"), *parts]) == 0
    bare = [{"label": np.int64(i)} for i in range(6)]
    pack(folder / "bare", {"label": Label()}, bare)
    return folder


QUICK = ("extend",)  # the others take longer


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in COMMANDS],
)
def test_killed_before_any_change_the_same_command_finishes_and_does_it_once(
    world: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there, words = COMMANDS[name]
    wanted: Made | None = None
    for nth in range(1000):
        place = place_for(world, tmp_path / f"at{nth}", words, there)
        argv = [str(place / word) if word in PLACES else word for word in words]
        if wanted is None:
            assert main(argv) == 0
            wanted = made_in(place / "dst")
        elif not killed_before(nth - 1, place, argv):
            assert made_in(place / "dst") == wanted
            break
        else:
            assert main(argv) == 0, (nth, capsys.readouterr().err)
            assert made_in(place / "dst") == wanted, nth
            assert is_tidy(place / "dst"), nth
    assert nth > 10


@pytest.mark.slow
def test_killed_between_its_parts_and_again_at_any_change_a_split_finishes(
    world: Path, tmp_path: Path
) -> None:
    _, words = COMMANDS["split"]
    wanted: Made | None = None
    first = 0  # the change before which it is killed: some of its parts are there by then, not all
    for nth in range(1000):
        place = place_for(world, tmp_path / f"at{nth}", words)
        argv = [str(place / word) if word in PLACES else word for word in words]
        if wanted is None:
            assert main(argv) == 0
            wanted = made_in(place / "dst")
        elif not first:
            assert killed_before(nth, place, argv)
            first = nth if 0 < len(datasets(place / "dst")) < len(wanted) else 0
        else:
            assert killed_before(first, place, argv)
            if not killed_before(nth - first - 1, place, argv):
                assert made_in(place / "dst") == wanted
                break
            assert main(argv) == 0, nth
            assert is_tidy(place / "dst"), nth
            assert made_in(place / "dst") == wanted, nth
    assert nth > first + 10


def killed_behind(num_lines: int, argv: list[str]) -> None:
    """Run a command in a fork that dies when so many lines are in its journal."""
    pid = os.fork()
    if pid == 0:
        append, numbers = Journal.append, count(1)

        def dying(journal: Journal, line: Any) -> None:
            append(journal, line)
            if next(numbers) == num_lines:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            Journal.append = dying  # type: ignore[assignment, method-assign]
            os._exit(main(argv))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9


@pytest.mark.parametrize("num_lines", [2, 3, 7])
@pytest.mark.parametrize("kind", ["copy", "split", "split of tokens"])
def test_killed_between_shards_the_same_command_goes_on_behind_them(
    tmp_path: Path, kind: str, num_lines: int
) -> None:
    """The sources have several blocks, which shards cut."""
    source, words = tmp_path / "src", ["--shard-size", "60KB"]
    if kind == "split of tokens":
        text = "".join(f'{{"text": "{"word " * (i % 90)}{i}"}}\n' for i in range(1500))
        (tmp_path / "a.jsonl").write_text(text)
        packing = [str(tmp_path / "a.jsonl"), str(source), "--shard-size", "70KB"]
        assert main(["tokens", *packing, "--tokenizer", "bytes", "--row-tokens", "64"]) == 0
    else:
        with Writer(source, {"x": Array(dtype="int64", dims=(4,))}) as writer:
            writer.add_batch(x=np.arange(40_000).reshape(-1, 4))
    words += ["--parts", "a=0.6", "b=0.3"] if kind.startswith("split") else []
    argv = [[kind.split()[0], str(source), str(tmp_path / dst), *words] for dst in ("a", "b")]

    assert main(argv[0]) == 0
    killed_behind(num_lines, argv[1])
    state = parse_journal((tmp_path / "b" / PACKING_NAME / JOURNAL_NAME).read_bytes())
    assert state is not None
    paths = [tmp_path / "b" / n / shard.file for n, some in state.shards.items() for shard in some]
    before = {path: path.stat().st_ino for path in paths}
    assert main(argv[1]) == 0

    after = {path: path.stat().st_ino for path in (tmp_path / "b").rglob("shard-*-*.*")}
    assert before.items() <= after.items()
    assert len(before) >= num_lines - 1 - len(state.ended)
    assert hashes_in(tmp_path / "a") == hashes_in(tmp_path / "b")
    assert is_tidy(tmp_path / "b")


def test_the_tokenizer_of_a_killed_packing_goes_with_the_next_one(tmp_path: Path) -> None:
    """It is put there before the manifest is, as shards are, by one that replaces a dataset, or is the first."""
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 50)
    words = ["tokens", str(tmp_path / "a.txt"), "--documents", "line", "--row-tokens", "64"]
    for there in (True, False):
        dst = tmp_path / f"dst {there}"
        argv = [*words, str(dst), "--overwrite", "--train-bpe"]
        if there:
            assert main([*argv, "258"]) == 0
        killed_before_manifests([*argv, "259"])
        assert len([*dst.glob("tokenizer-*")]) == 1 + there

        assert main([*argv, "260"]) == 0

        files = {*read_manifest(dst).schema.files}
        assert {path.name for path in dst.glob("tokenizer-*")} == files
        assert len(files) == 1


def killed_before_manifests(argv: list[str]) -> None:
    """Run a command in a fork that dies when all but the manifests is in its place."""
    pid = os.fork()
    if pid == 0:
        try:
            store.swap = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            os._exit(main(argv))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9


def hashes_in(dst: Path) -> dict[str, list[str]]:
    return {
        each.name if each != dst else "": [s.xxh3_128 for s in read_manifest(each).shards]
        for each in datasets(dst)
    }


def place_for(world: Path, place: Path, words: list[str], there: str = "") -> Path:
    """Make a folder with what a command is given, and what is there at its target."""
    place.mkdir()
    for word in {*PLACES[:-1]}.intersection(words):
        shutil.copytree(world / word, place / word)
    if there:
        shutil.copytree(world / there, place / "dst")
    return place


def datasets(dst: Path) -> list[Path]:
    return (
        [dst]
        if (dst / MANIFEST_NAME).exists()
        else [path.parent for path in dst.glob("*/" + MANIFEST_NAME)]
    )


def made_in(dst: Path) -> Made:
    """Return the shards' hashes and the labels of each dataset."""
    made: Made = {}
    for folder in datasets(dst):
        reader = PackedReader(folder)
        hashes = [shard.xxh3_128 for shard in reader.manifest.shards]
        made[folder.name] = (
            hashes,
            [reader.records_of(i)["label"].tobytes() for i in range(len(reader))],
        )
    return made


def is_tidy(dst: Path) -> bool:
    """Tell whether nothing lies there but datasets."""
    there = {path for path in dst.rglob("*") if path.is_file()}
    files = {f / s.file for f in datasets(dst) for s in read_manifest(f).shards}
    return there == files | {folder / MANIFEST_NAME for folder in datasets(dst)}
