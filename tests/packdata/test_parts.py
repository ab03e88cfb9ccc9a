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

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import PackError, SourceError
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.packing import packing
from packdata.packing.firstpass import KEY, FirstPass
from packdata.packing.journal import JOURNAL_NAME
from packdata.packing.lock import LOCK_NAME, TargetLock
from packdata.packing.packing import Packing
from packdata.packing.target import PACKING_NAME, PARTS_NAME, REJECTED_NAME
from packdata.parts import joining
from packdata.parts import local as parts_module
from packdata.parts.local import finish
from packdata.parts.part import Part, PartRecipe
from packdata.tables.scan import ColumnScan, Scan
from packdata.tables.shares import joined_scan, scan_to_json
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


def pack_all(photos: Path, dst: Path, of: int, **options: Any) -> None:
    for i in range(of):
        pack_images(photos, dst, part=f"{i}/{of}", **options)


def on_another_machine(photos: Path, dst: Path) -> None:
    """Pack all as one part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_module, "_this_machine", lambda: "another")
        pack_images(photos, dst, part="0/1")


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
    with pytest.raises(SystemExit) as ended:
        main([*argv[1], "--part", "0/1"])
    assert ended.value.code == 2
    capsys.readouterr()
    assert main([*argv[1], "--dry-run", "--json"]) == 0
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)

    assert main([*argv[1], "--part", "0/1", "--plan", str(plan)]) == 0

    assert main(["finish", str(tmp_path / "parts")]) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    other = ["--dtype", "float64"] if line.startswith("tables") else ["--seed", "1"]
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
        "tables plain DST --target kind --missing mean --dates parts --numeric x --on-error skip",
        "tables plain DST --features id,gap,code --standardize --missing nan",
        "tables plain DST --drop x,day --on-error skip --categorical kind",
        "tables rows DST --target a",
        "tokens ids DST",
    ],
)
@pytest.mark.parametrize("of", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7))])
def test_what_all_rows_teach_is_learned_in_shares(
    tables: Path,
    tmp_path: Path,
    line: str,
    of: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tables)
    argv = line.replace("DST", str(tmp_path / "dst")).split()
    asks = ["--dry-run", "--json"]
    plans = []
    for i in range(of):
        assert main([*argv, *asks, "--part", f"{i}/{of}"]) == 0
        plans += ["--plan", str(tmp_path / f"{i}.json")]
        (tmp_path / f"{i}.json").write_text(capsys.readouterr().out)
    assert main([*argv, *asks]) == 0
    whole = json.loads(capsys.readouterr().out)

    assert main([*argv, *asks, *reversed_pairs(plans)]) == 0

    joined = json.loads(capsys.readouterr().out)
    assert_close(joined, whole)
    (tmp_path / "plan.json").write_text(json.dumps(joined))
    parts = [*argv, "--plan", str(tmp_path / "plan.json"), "--part"]
    assert {main([*parts, f"{i}/2"]) for i in range(2)} <= {0, 3}
    assert finish(tmp_path / "dst").samples > 0
    if of > 1:
        assert main([*argv, *asks, *plans[2:]]) == 1  # one is missing
        assert main([*argv, *asks, *plans, *plans[:2]]) == 1  # one is there twice
    other = ["--dtype", "float64"] if line.startswith("tables") else ["--seed", "1"]
    assert main([*argv, *asks, *other, *plans]) == 1


def test_texts_that_may_be_missing_values_are_counted_in_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that the second file has in ``gap`` is NA, which is missing where others are numbers."""
    monkeypatch.chdir(tmp_path)
    for name, gap in (("a", "1"), ("b", "NA")):
        Path(f"{name}.csv").write_text("x,gap\n" + f"1,{gap}\n2,{gap}\n")
    argv = ["tables", "a.csv", "b.csv", "dst", "--missing", "mean", "--dry-run", "--json"]
    assert main(argv) == 0
    whole = json.loads(capsys.readouterr().out)
    for i in range(2):
        assert main([*argv, "--part", f"{i}/2"]) == 0
        Path(f"{i}.json").write_text(capsys.readouterr().out)

    assert main([*argv, "--plan", "0.json", "--plan", "1.json"]) == 0

    assert json.loads(capsys.readouterr().out) == whole
    shares = [json.loads(Path(f"{i}.json").read_text())[KEY]["found"]["rows"] for i in range(2)]
    assert joined_scan(shares).columns["gap"].num_unsure == 2


def test_who_asks_plan_for_what_is_learned_is_told_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "tables", "a.csv", "dst"])

    assert ended.value.code == 2
    assert "packdata tables SRC... DST --dry-run --json" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["version", "names", "kinds"])
def test_a_plan_of_another_version_is_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x\n1\n")
    argv = ["tables", "a.csv", "dst", "--dry-run", "--json"]
    for number, part in enumerate((["--part", "0/1"], [])):
        assert main([*argv, *part]) == 0
        told = json.loads(capsys.readouterr().out)
        if change == "version":
            told[KEY]["packer"] = "loaders 0.0.9"
        elif change == "names":
            del told[KEY]["found"]["rows"]["columns" if part else "schema"]
        else:
            told[KEY]["found"]["rows"] = 7
        Path(f"{number}.json").write_text(json.dumps(told))

        with pytest.raises(SystemExit) as ended:
            main([*argv, "--plan", f"{number}.json"])

        assert ended.value.code == 2


def test_a_share_tells_that_a_column_has_too_many_texts() -> None:
    full, few = Scan(columns={"a": ColumnScan()}), Scan(columns={"a": ColumnScan()})
    full.columns["a"].words.is_full = True

    for shares in ((full, few), (few, full)):
        joined = joined_scan(json.loads(json.dumps([*map(scan_to_json, shares)])))
        assert joined.columns["a"].words.is_full
        assert joined.columns["a"].other


def reversed_pairs(words: list[str]) -> list[str]:
    """Return options and their values in the other order of pairs."""
    return [word for i in range(len(words) - 2, -1, -2) for word in words[i : i + 2]]


def assert_close(one: Any, other: Any) -> None:
    """Assert that JSON is the same, but for last digits of floats."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            assert_close(each, its)
    else:
        assert one == (pytest.approx(other, rel=1e-12) if isinstance(one, float) else other)


def test_shuffled_by_a_seed_parts_hold_the_order_of_the_whole(
    photos: Path, tmp_path: Path
) -> None:
    def keys(dst: str) -> list[str]:
        reader = PackedReader(tmp_path / dst / "train")
        return [bytes(reader.record(i, "key")).decode() for i in range(len(reader))]

    pack_images(photos, tmp_path / "plain")
    for dst, seed in (("a", "1"), ("b", "2")):
        assert main(["images", str(photos), str(tmp_path / dst), "--shuffle", seed]) == 0
    pack_all(photos, tmp_path / "one", 1, shuffle=1)
    pack_all(photos, tmp_path / "three", 3, shuffle=1)
    for dst in ("one", "three"):
        finish(tmp_path / dst)

    assert sorted(keys("a")) == sorted(keys("b")) == sorted(keys("plain"))
    assert len({tuple(keys(dst)) for dst in ("plain", "a", "b")}) == 3
    assert keys("three") == keys("a")
    assert contents(tmp_path / "one") == contents(tmp_path / "a")


def test_more_parts_than_items_leave_some_empty(photos: Path, tmp_path: Path) -> None:
    pack_all(photos, tmp_path / "dst", 13)

    assert finish(tmp_path / "dst").samples == 10
    assert not (tmp_path / "dst" / PARTS_NAME).exists()


def test_missing_parts_are_named(photos: Path, tmp_path: Path) -> None:
    for i in (0, 2, 4):
        pack_images(photos, tmp_path / "dst", part=f"{i}/5")

    with pytest.raises(PackError, match="1, 3") as raised:
        finish(tmp_path / "dst")

    assert raised.value.path == tmp_path / "dst"
    assert len(list((tmp_path / "dst" / PARTS_NAME).iterdir())) == 3
    pack_images(photos, tmp_path / "many", part="7/100000000000")
    with pytest.raises(PackError, match="8, 9, 10"):  # at once, and in no memory
        finish(tmp_path / "many")


def test_parts_of_different_lists_options_and_versions_are_refused(
    photos: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    pack_images(photos, dst, part="0/2")
    changed = photos / "train" / "c0" / "0.png"
    os.utime(changed, ns=(1, 1))
    pack_images(photos, dst, part="1/2")
    with pytest.raises(PackError, match="list of files"):
        finish(dst)

    pack_images(photos, dst, part="0/2", overwrite=True)
    pack_images(photos, dst, part="1/2", overwrite=True, codec="png", sizes=10)
    with pytest.raises(PackError):
        finish(dst)

    pack_images(photos, dst, part="1/2", overwrite=True)
    journal = dst / PARTS_NAME / Part(1, 2).name / JOURNAL_NAME
    header, *rest = journal.read_text().splitlines()
    plan = json.loads(header)
    plan["plan"]["part.versions.numpy"] = '"1.0"'
    journal.write_text("\n".join([json.dumps(plan), *rest, ""]))
    with pytest.raises(PackError, match="numpy"):
        finish(dst)
    assert not (dst / "train").exists()


def test_parts_of_copies_of_a_source_that_are_called_otherwise_are_joined(
    photos: Path, tmp_path: Path
) -> None:
    """As on machines that each have a copy on a disk of their own; the name that the first part saw is told."""
    source, copied, dst = photos / "train", tmp_path / "node-1", tmp_path / "dst"
    shutil.copytree(source, copied)
    pack_images(source, dst, part="0/2")
    pack_images(copied, dst, part="1/2")
    finish(dst)
    for i in range(2):
        pack_images(source, tmp_path / "one", part=f"{i}/2")
    finish(tmp_path / "one")

    assert contents(dst) == contents(tmp_path / "one")


def test_parts_and_what_else_lies_there_do_not_mix(photos: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack_images(photos, dst, part="0/2")
    before = contents(dst)
    several: list[dict[str, Any]] = [{}, {"part": "0/3"}, {"part": "0/2", "gray": True}]
    for options in several:
        with pytest.raises(PackError):
            pack_images(photos, dst, **options)
    assert contents(dst) == before

    pack_images(photos, dst, overwrite=True)
    assert not (dst / PARTS_NAME).exists()
    with pytest.raises(PackError):
        pack_images(photos, dst, part="0/2")


def test_what_was_finished_is_not_packed_again(photos: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack_all(photos, dst, 2)
    finish(dst)
    before = contents(dst)

    assert pack_images(photos, dst, part="1/2").samples == 0
    assert finish(dst).samples == 0
    assert contents(dst) == before


def test_finish_replaces_a_dataset_only_when_told_to(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dst = tmp_path / "dst"
    pack_images(photos, dst, sizes=8)
    pack_all(photos, dst, 2, overwrite=True)
    with pytest.raises(PackError):
        finish(dst)

    assert main(["finish", str(dst), "--overwrite", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["samples"] == 10
    assert {path.name for path in (dst / "val").iterdir()} == {"manifest.json", "shard-00001.lmdb"}
    assert not (dst / PARTS_NAME).exists()
    assert not (dst / PACKING_NAME).exists()


def pack_on_another_first(photos: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another machine pack the same part right before the next one is complete."""
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        on_another_machine(photos, dst)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)


def test_twins_on_two_machines_leave_one_part(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is stopped right before it would be complete, and goes on when the first is."""
    dst = tmp_path / "dst"
    pack_on_another_first(photos, dst, monkeypatch)
    pack_images(photos, dst, part="0/1")

    assert [path.name for path in (dst / PARTS_NAME).iterdir()] == [Part(0, 1).name]
    assert finish(dst).samples == 10


def test_a_twin_that_ends_after_finish_has_nothing_to_do(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dst, rename = tmp_path / "dst", os.rename

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        on_another_machine(photos, dst)
        finish(dst)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert pack_images(photos, dst, part="0/1").samples == 0

    pack_images(photos, tmp_path / "plain")
    assert contents(dst) == contents(tmp_path / "plain")


def test_a_twin_that_writes_after_finish_leaves_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder, which finish removed, comes again with its last shard."""
    dst, write, written = tmp_path / "dst", Packing._write, [0]

    def late(self: Packing, *about: Any) -> None:
        written[0] += 1
        if written[0] == 2:
            on_another_machine(photos, dst)
            finish(dst)
        write(self, *about)

    monkeypatch.setattr(Packing, "_write", late)
    assert pack_images(photos, dst, part="0/1").samples == 0

    assert not (dst / PARTS_NAME).exists()
    pack_images(photos, tmp_path / "plain")
    assert contents(dst) == contents(tmp_path / "plain")


def test_of_two_that_finish_the_late_one_has_nothing_to_do(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dst, check = tmp_path / "dst", joining.check_alike

    def late(*about: Any) -> None:
        monkeypatch.setattr(parts_module, "check_alike", check)
        finish(dst)
        check(*about)

    pack_images(photos, dst, part="0/1")
    monkeypatch.setattr(parts_module, "check_alike", late)

    assert finish(dst).samples == 10
    assert not (dst / PARTS_NAME).exists()


def test_a_twin_with_other_options_is_not_told_that_it_packed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dst = tmp_path / "dst"
    pack_on_another_first(photos, dst, monkeypatch)
    with pytest.raises(PackError):
        pack_images(photos, dst, part="0/1", gray=True)
    assert finish(dst).samples == 10


def test_what_was_left_out_is_told_each_time(photos: Path, tmp_path: Path) -> None:
    (photos / "train" / "c0" / "0.png").write_bytes(b"no picture")
    argv = [str(tmp_path / "dst"), "--on-error", "skip", "--part"]
    assert main(["images", str(photos), *argv, "1/2"]) == 0

    for _ in range(2):
        assert main(["images", str(photos), *argv, "0/2"]) == 3
    for _ in range(2):
        assert main(["finish", argv[0]]) == 3


def test_where_nothing_was_packed_in_parts_finish_does_not_say_that_it_finished(
    photos: Path, tmp_path: Path
) -> None:
    pack_images(photos, tmp_path / "plain")

    for dst in (tmp_path / "plain", tmp_path / "plain" / "train", tmp_path / "none"):
        with pytest.raises(PackError) as raised:
            finish(dst)
        assert raised.value.path == dst


def test_what_was_left_out_is_tried_again_with_overwrite(photos: Path, tmp_path: Path) -> None:
    """As after a network drive that did not answer: size and time of the file are the same."""
    picture, argv = photos / "train" / "c0" / "0.png", ["--on-error", "skip", "--part", "0/1"]
    data, about = picture.read_bytes(), picture.stat()
    picture.write_bytes(b"\0" * len(data))
    os.utime(picture, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert main(["images", str(photos), str(tmp_path / "dst"), *argv]) == 3
    picture.write_bytes(data)
    os.utime(picture, ns=(about.st_atime_ns, about.st_mtime_ns))

    assert main(["images", str(photos), str(tmp_path / "dst"), *argv, "--overwrite"]) == 0
    assert finish(tmp_path / "dst").samples == 10


def test_a_part_that_lost_a_shard_is_missing_and_packed_again(
    photos: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    pack_all(photos, dst, 2)
    next((dst / PARTS_NAME / Part(1, 2).name).rglob("*.lmdb")).unlink()
    with pytest.raises(PackError, check=At("dst")):
        finish(dst)

    assert pack_images(photos, dst, part="1/2").samples == 5
    assert finish(dst).samples == 10


def test_parts_that_begin_beside_another_packing_are_not_dropped(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dst = tmp_path / "dst"
    (dst / PARTS_NAME).mkdir(parents=True)  # of none, which is no obstacle

    def late(path: Path) -> TargetLock:
        monkeypatch.setattr(packing, "TargetLock", TargetLock)
        pack_images(photos, dst, part="0/1")
        return TargetLock(path)

    monkeypatch.setattr(packing, "TargetLock", late)
    with pytest.raises(PackError):
        pack_images(photos, dst)
    assert finish(dst).samples == 10


def test_a_plan_made_with_one_option_more_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = FirstPass()
    made.get("rows", int, "the rows")
    plan.write_text(json.dumps(made.to_json({"files": 1, "bos": 2})))
    FirstPass(plan).check({"files": 1, "bos": 2})

    with pytest.raises(SourceError):
        FirstPass(plan).check({"files": 1})


def test_a_twin_on_the_same_machine_is_told(photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "dst" / PARTS_NAME / f"{Part(0, 2).name}.{parts_module._this_machine()}"
    (own / PACKING_NAME).mkdir(parents=True)
    lock = TargetLock(own / PACKING_NAME / "lock")
    with pytest.raises(PackError):
        pack_images(photos, tmp_path / "dst", part="0/2")
    lock.release()
    assert pack_images(photos, tmp_path / "dst", part="0/2").samples == 5


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/2", "0/0", "1/2/3", "a/b"])
def test_what_is_no_part_is_wrong_usage(text: str) -> None:
    with pytest.raises(ValueError):
        Part.parse(text)
    with pytest.raises(SystemExit) as ended:
        main(["images", "photos", "dst", f"--part={text}"])
    assert ended.value.code == 2


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
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for i in range(60):
        pixels = rng.integers(0, 256, (300, 300, 3), np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / "a" / f"{i:02d}.png"), pixels)
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
