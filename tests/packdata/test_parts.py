"""Parts of a packing: the bytes of the whole, whoever packs them, however often they are killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.data.manifest import MANIFEST_NAME, read_manifest
from loaders.errors import PackError, SourceError
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.packing.firstpass import KEY
from packdata.packing.provenance import PLAN
from packdata.packing.store import FolderStore
from packdata.packing.target import JOURNAL_NAME, LOCK_NAME, PACKING_NAME, REJECTED_NAME
from packdata.parts.packing import NUM_PARTS, finish
from packdata.parts.part import Part, PartRecipe
from tests.packdata.command_sources import make_sources
from tests.packdata.reading import PackedReader
from tests.packdata.recipes import contents
from tests.packdata.test_kills import killed_before
from tests.refusals import At

COMMANDS = {
    "images": "images broken DST --on-error skip --size 16 --size 8 --shard-size 1kB",
    "tokens": "tokens a.txt DST --documents line --row-tokens 64 --val-share 0.5 --shard-size 1kB",
    "arrays": "arrays scans DST --shard-size 1kB",
    "tables": "tables like.csv DST --like train --shard-size 1kB",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_sources(folder)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten pictures in two splits: 7 to train, 3 to val."""
    for i in range(10):
        folder = tmp_path / "photos" / ("train" if i < 7 else "val") / f"c{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{i}.png"), np.full((20, 20, 3), i))
    return tmp_path / "photos"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(1, 40))
def test_every_item_is_in_one_part_in_order(lengths: list[int], of: int) -> None:
    recipes = [(str(i), Numbers(i, n)) for i, n in enumerate(lengths)]

    cut = [Part(i, of).cut(recipes) for i in range(of)]

    assert [
        [item for part in cut for item in part[i][1].items(0)] for i in range(len(lengths))
    ] == [list(recipe.items(0)) for _, recipe in recipes]
    sizes = [sum(len(recipe) for _, recipe in part) for part in cut]
    assert max(sizes) - min(sizes) <= 1


class Numbers(PartRecipe):
    """Items that are numbers, and nothing else of a recipe."""

    def __init__(self, split: int, length: int) -> None:
        self.split, self.length = split, length
        self.targets, self.identity, self.provenance = (), {}, {}

    def __len__(self) -> int:
        return self.length

    def items(self, start: int):  # type: ignore[no-untyped-def]
        return iter([(self.split, i) for i in range(start, self.length)])


def test_a_part_that_goes_on_ends_where_the_next_one_begins() -> None:
    ((_, middle),) = Part(1, 3).cut([("", Numbers(0, 11))])
    items = list(middle.items(0))

    assert [list(middle.items(start)) for start in range(len(items) + 1)] == [
        items[start:] for start in range(len(items) + 1)
    ]


def test_a_part_leaves_an_unfinished_packing_as_it_is(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "dst" / PACKING_NAME / JOURNAL_NAME
    journal.parent.mkdir(parents=True)
    journal.write_text("begun")

    assert main(["images", str(photos), str(tmp_path / "dst"), "--part", "0/2"]) == 1

    assert "dst: unfinished packing" in capsys.readouterr().err
    assert journal.read_text() == "begun"


@pytest.mark.parametrize("name", COMMANDS)
def test_parts_make_what_the_plain_command_makes(
    sources: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has its bytes, three its samples in their order."""
    monkeypatch.chdir(sources)
    plain, one, three = (COMMANDS[name].replace("DST", f"{name}-{n}").split() for n in "013")
    status = main(plain)

    assert main([*one, "--part", "0/1"]) == status
    for i in (2, 0, 1):
        main([*three, "--part", f"{i}/3"])

    assert main(["finish", f"{name}-1"]) == main(["finish", f"{name}-3"]) == status
    made = contents(sources / f"{name}-0")
    assert contents(sources / f"{name}-1") == made
    for file in made:
        if file.endswith(MANIFEST_NAME):
            folder = os.path.dirname(file)
            whole, joined = (PackedReader(sources / f"{name}-{n}" / folder) for n in "03")
            assert len(joined) == len(whole)
            for i in range(len(whole)):
                records = joined.records_of(i)
                assert all((records[n] == each).all() for n, each in whole.records_of(i).items())
        elif file.endswith(REJECTED_NAME):
            assert (sources / f"{name}-3" / file).read_bytes() == made[file]


@pytest.mark.parametrize(
    "line",
    [
        "tables t.csv DST --target kind --standardize --missing-mask --shard-size 1kB",
        "tokens a.txt DST --documents line --train-bpe 270 --row-tokens 64 --shard-size 1kB",
        "tokens rows.jsonl DST --ids-column numbers --shard-size 1kB",
    ],
)
def test_what_all_rows_teach_comes_to_parts_by_a_plan(
    sources: Path,
    tmp_path: Path,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(sources)
    argv = [line.replace("DST", str(tmp_path / name)).split() for name in ("plain", "parts")]
    assert main(argv[0]) == 0
    capsys.readouterr()
    assert main([*argv[1], "--dry-run", "--json"]) == 0
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)

    assert main([*argv[1], "--part", "0/1", "--plan", str(plan)]) == 0

    assert main(["finish", str(tmp_path / "parts")]) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    other = ["--dtype", "float64"] if line.startswith("tables") else ["--row-tokens", "8"]
    assert main([*argv[1], *other, "--part", "0/2", "--plan", str(plan)]) == 1


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of each of some tables, which differ in what their columns seem to be."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    for i in range(5):
        (folder / "plain").mkdir(exist_ok=True)
        lines = [
            f"{k},{x:.4f},{'0' * (i == 3) + str(k % 40)},{('', 'NA')[i % 2] if k % 7 == i or i == 3 else k},"
            f"2024-0{1 + k % 9}-01,{'pqrs'[(k + i) % (i + 1) % 4]}\n"
            for k, x in enumerate(rng.normal(size=60))
        ]
        if i == 2:
            lines[5] = "5,many,1,1,2024-01-01,p\n"
        header = "id,x,code,gap,day,kind\n"
        (folder / "plain" / f"{i}.csv").write_text(header + "".join(lines))
        (folder / "rows").mkdir(exist_ok=True)
        rows = ({"a": k * i, **({"late": f"w{k % i}"} if i > 1 else {})} for k in range(30))
        (folder / "rows" / f"{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        (folder / "ids").mkdir(exist_ok=True)
        lists = ({"input_ids": [i, 9_000 * (i + 4), 3]} for _ in range(8))
        (folder / "ids" / f"{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lists))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "tables plain DST --target kind --missing mean --dates days --numeric x --on-error skip",
        "tables plain DST --features id,gap,code --standardize --missing nan",
        "tables rows DST --target a",
        "tokens ids DST",
    ],
)
def test_parts_without_a_plan_learn_what_all_rows_teach(
    tables: Path, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tables)
    argv = line.replace("DST", str(tmp_path / "plain")).split()
    parts = line.replace("DST", str(tmp_path / "parts")).split()
    assert main(argv) in (0, 3)

    assert {main([*parts, "--part", f"{i}/2"]) for i in range(2)} <= {0, 3}

    assert finish(tmp_path / "parts").samples > 0
    whole, joined = (PackedReader(tmp_path / name) for name in ("plain", "parts"))
    assert joined.schema == whole.schema
    assert len(joined) == len(whole)
    for i in range(len(whole)):
        records = joined.records_of(i)
        assert all((records[n] == each).all() for n, each in whole.records_of(i).items())


def test_a_plan_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x\n1\n")
    argv = ["tables", "a.csv", "dst", "--dry-run", "--json"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    told[KEY]["identity"]["packer"] = "loaders 0.0.9"
    Path("plan.json").write_text(json.dumps(told))

    assert main([*argv, "--plan", "plan.json"]) == 1

    assert "plan.json" in capsys.readouterr().err


def test_a_plan_that_was_made_with_an_option_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x\n1\n2\n")
    argv = ["tables", "a.csv", "dst"]
    assert main([*argv, "--skip-rows", "1", "--dry-run", "--json"]) == 0
    Path("plan.json").write_text(capsys.readouterr().out)

    assert main([*argv, "--plan", "plan.json"]) == 1

    assert "plan.json" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/2", "0/0", "1/2/3", "a/b"])
def test_what_is_no_part_is_wrong_usage(text: str) -> None:
    with pytest.raises(ValueError):
        Part.parse(text)
    with pytest.raises(SystemExit) as ended:
        main(["images", "photos", "dst", f"--part={text}"])
    assert ended.value.code == 2


def test_a_part_with_rejects_is_packed_again_where_that_is_asked_for(
    photos: Path, tmp_path: Path
) -> None:
    """And no other part: a picture that was unreadable for a moment is of the same size and time."""
    bad, dst = photos / "train/c0/0.png", tmp_path / "dst"
    good, state = bad.read_bytes(), bad.stat()
    bad.write_bytes(bytes(len(good)))
    os.utime(bad, ns=(state.st_atime_ns, state.st_mtime_ns))
    found = [pack_images(photos, dst, part=f"{i}/2", on_error="skip") for i in range(2)]
    bad.write_bytes(good)
    os.utime(bad, ns=(state.st_atime_ns, state.st_mtime_ns))

    again = [pack_images(photos, dst, part=f"{i}/2", overwrite=True) for i in range(2)]

    assert [len(each.rejected) for each in found] == [1, 0]
    assert [each.samples for each in again] == [5, 0]
    assert finish(dst).samples == 10


def test_a_damaged_part_of_a_finished_dataset_is_packed_again_where_that_is_asked_for(
    photos: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    for i in range(2):
        pack_images(photos, dst, part=f"{i}/2")
    finish(dst)
    made = contents(dst)
    shard = min(dst.rglob("shard-*"))
    shard.write_bytes(bytes(shard.stat().st_size))

    assert pack_images(photos, dst, part="0/2").samples == 0
    assert pack_images(photos, dst, part="0/2", overwrite=True).samples == 5
    finish(dst)

    assert contents(dst) == made


def test_a_part_that_fails_leaves_the_shards_of_others(photos: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack_images(photos, dst, part="0/2")
    made = contents(dst)
    bad = photos / "train/c1/3.png"
    good, state = bad.read_bytes(), bad.stat()
    bad.write_bytes(bytes(len(good)))
    os.utime(bad, ns=(state.st_atime_ns, state.st_mtime_ns))

    with pytest.raises(SourceError):
        pack_images(photos, dst, part="1/2")

    assert contents(dst) == made
    bad.write_bytes(good)
    os.utime(bad, ns=(state.st_atime_ns, state.st_mtime_ns))
    pack_images(photos, dst, part="1/2")
    assert finish(dst).samples == 10
    assert [*read_manifest(dst / "val").provenance][-2:] == [NUM_PARTS, PLAN]


def test_a_packing_of_all_drops_parts_where_that_is_asked_for(
    photos: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    pack_images(photos, dst, part="0/2")
    with pytest.raises(PackError, check=At("dst")):
        pack_images(photos, dst)

    pack_images(photos, dst, overwrite=True)

    assert not (dst / ".parts").exists()


def test_parts_stay_where_a_packing_is_refused_though_a_lock_was_left_by_a_kill(
    photos: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    for i in range(2):
        pack_images(photos, dst, part=f"{i}/2")
    lock = dst / PACKING_NAME / LOCK_NAME
    lock.parent.mkdir()
    lock.touch()

    with pytest.raises(PackError, check=At("dst")):
        pack_images(photos, dst)

    assert finish(dst).samples == 10


def test_overwriting_parts_of_another_count_drops_them(photos: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    for i in range(3):
        pack_images(photos, dst, part=f"{i}/3")

    for i in range(2):
        pack_images(photos, dst, part=f"{i}/2", overwrite=True)

    assert finish(dst).samples == 10


def test_a_dataset_that_came_before_parts_were_joined_is_replaced_on_demand(
    photos: Path, tmp_path: Path
) -> None:
    source, dst, other = photos / "train", tmp_path / "dst", tmp_path / "other"
    pack_images(source, dst, part="0/1")
    pack_images(source, other, sizes=8)
    shutil.copytree(other, dst, dirs_exist_ok=True)
    there = (dst / MANIFEST_NAME).read_bytes()

    with pytest.raises(PackError, check=At("dst")):
        finish(dst)

    assert (dst / MANIFEST_NAME).read_bytes() == there
    assert finish(dst, overwrite=True).samples == 7
    pack_images(source, tmp_path / "plain")
    assert contents(dst) == contents(tmp_path / "plain")


def test_parts_of_several_counts_are_not_joined(photos: Path, tmp_path: Path) -> None:
    """Of 2 and 3, made at one time, some would hold the same items."""
    dst, other = tmp_path / "dst", tmp_path / "other"
    for i in range(2):
        pack_images(photos, dst, part=f"{i}/2")
    for i in range(3):
        pack_images(photos, other, part=f"{i}/3")
    with pytest.raises(PackError, check=At("dst")):
        pack_images(photos, dst, part="0/3")
    shutil.copytree(other, dst, dirs_exist_ok=True)  # as of machines that do not see each other

    with pytest.raises(PackError, check=At("dst")):
        finish(dst)

    assert not [*dst.rglob(MANIFEST_NAME)]
    for path in (dst / ".parts").glob("*-of-00003*"):
        path.unlink()
    assert finish(dst).samples == 10


def test_a_tokenizer_that_is_gone_is_told_before_parts_are_joined(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts put it beside their shards, and one that is packed again puts it there again."""
    monkeypatch.chdir(sources)
    dst = tmp_path / "dst"
    line = f"tokens a.txt {dst} --documents line --train-bpe 270 --row-tokens 64"
    for i in range(2):
        assert main([*line.split(), "--part", f"{i}/2"]) == 0
    (tokenizer,) = dst.glob("tokenizer-*.json")
    tokenizer.unlink()
    with pytest.raises(PackError, match=tokenizer.name):
        finish(dst)
    assert not (dst / MANIFEST_NAME).exists()

    assert main([*line.split(), "--part", "0/2"]) == 0
    finish(dst)

    assert read_manifest(dst).schema.files.keys() == {tokenizer.name}
    assert not (dst / ".parts").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_that_pack_a_part_differently_at_once_the_later_replaces_it_or_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    dst, other, put = tmp_path / "dst", tmp_path / "other", FolderStore.put
    pack_images(photos, other, part="0/2", sizes=8)

    def later(store: FolderStore, *args: Any) -> bool:
        shutil.copytree(other / ".parts", dst / ".parts", dirs_exist_ok=True)
        return put(store, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "put", later)
        if overwrite:
            pack_images(photos, dst, part="0/2", overwrite=True)
        else:
            with pytest.raises(PackError, match="sizes"):
                pack_images(photos, dst, part="0/2")

    pack_images(photos, dst, part="0/2", overwrite=True)
    pack_images(photos, dst, part="1/2")
    assert finish(dst).samples == 10
    pack_images(photos, tmp_path / "plain")
    fields = [read_manifest(each / "val").schema for each in (dst, tmp_path / "plain")]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("kind", ["journal", "folder"])
def test_a_part_of_another_version_counts_as_missing(
    photos: Path, tmp_path: Path, kind: str
) -> None:
    """Development versions packed a part in a folder of its name."""
    dst = tmp_path / "dst"
    for i in range(2):
        pack_images(photos, dst, part=f"{i}/2")
    record = dst / ".parts" / "part-00001-of-00002"
    other = record.read_bytes().replace(b'"journal":9', b'"journal":3', 1)
    record.unlink()
    if kind == "folder":
        record.mkdir()
    else:
        record.write_bytes(other)
    with pytest.raises(PackError, match="missing: 1"):
        finish(dst)

    pack_images(photos, dst, part="1/2")

    assert finish(dst).samples == 10


def test_a_part_that_lost_a_shard_is_packed_again(photos: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack_images(photos, dst, part="1/2")
    made = contents(dst)
    next(dst.rglob("shard-*")).unlink()

    pack_images(photos, dst, part="1/2")

    assert contents(dst) == made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("there", ["nothing", "a part", "all parts", "a dataset"])
def test_killed_before_any_change_the_same_command_goes_on(
    photos: Path, tmp_path: Path, there: str
) -> None:
    """Of packing a part into nothing, or beside another; of finish, also over a dataset."""
    start = tmp_path / "start"
    start.mkdir()
    if there == "a dataset":
        pack_images(photos, start, sizes=8)
    for i in {"nothing": (), "a part": (1,)}.get(there, (0, 1)):
        pack_images(photos, start, part=f"{i}/2", overwrite=there == "a dataset")
    whole = tmp_path / "whole"
    shutil.copytree(start, whole)
    pack_images(photos, whole, part="0/2", overwrite=there == "a dataset")
    pack_images(photos, whole, part="1/2", overwrite=there == "a dataset")
    finish(whole, overwrite=there == "a dataset")
    for nth in range(1000):
        dst = tmp_path / f"at{nth}"
        shutil.copytree(start, dst)
        if there in ("nothing", "a part"):
            argv = ["images", str(photos), str(dst), "--part", "0/2", "--workers", "1"]
        else:
            argv = ["finish", str(dst), *(["--overwrite"] if there == "a dataset" else [])]
        was_killed = killed_before(nth, dst, argv)
        assert main(argv) == 0, nth
        if there == "nothing":
            pack_images(photos, dst, part="1/2")
        if there in ("nothing", "a part"):
            finish(dst)
        made = contents(dst)
        made.pop(f"{PACKING_NAME}/{LOCK_NAME}", None)  # killed when nothing else was left
        assert made == contents(whole), nth
        shutil.rmtree(dst)
        if not was_killed:
            break
    assert nth > 10


@pytest.mark.slow
def test_killed_at_random_moments_parts_make_the_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for i in range(60):
        folder = tmp_path / "photos" / "ab"[i // 30]
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{i:02d}.png"), rng.integers(0, 256, (300, 300, 3), np.uint8))
    options = ["--size", "128", "--shard-size", "100kB", "--codec", "png"]
    command = [sys.executable, "-m", "packdata", "images", str(tmp_path / "photos")]
    for dst in ("calm", "stormy"):
        for i in range(2):
            for kill_after in rng.uniform(0.3, 1.2, 3) if dst == "stormy" else ():
                argv = [*command, str(tmp_path / dst), *options, "--part", f"{i}/2"]
                with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
                    time.sleep(kill_after)
                    process.send_signal(signal.SIGKILL)
            assert main([*command[3:], str(tmp_path / dst), *options, "--part", f"{i}/2"]) == 0
        finish(tmp_path / dst)

    assert contents(tmp_path / "stormy") == contents(tmp_path / "calm")
