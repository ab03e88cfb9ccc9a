"""The packer: its result, and what is left after every way to end early."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders.data.columns import FixedColumn
from loaders.data.manifest import read_manifest
from loaders.errors import ManifestError, PackError, SourceError
from loaders.schema import Array, Schema
from packdata import Writer
from packdata.formats import read_back
from packdata.packed import derive
from packdata.packed.derive import copy_dataset
from packdata.packing import packing
from packdata.packing.engine import pack_recipes
from packdata.packing.journal import Journal
from packdata.packing.packing import write_staged
from packdata.packing.progress import Quiet
from packdata.packing.provenance import PACKER
from packdata.packing.target import PACKING_NAME, locked
from packdata.recipe import Records
from tests.packdata.breaking import ROOM, tmpfs
from tests.packdata.recipes import (
    SHARD_BYTES,
    STEPS,
    Job,
    NumbersRecipe,
    contents,
    labels,
)
from tests.refusals import At

FORMATS = ("lmdb", "parquet")


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Any:
    before = set(threading.enumerate())
    yield
    ours = [t for t in threading.enumerate() if t.name.startswith("packdata") and t not in before]
    assert not ours


def pack(dst: Path, num_items: int = 100, **options: Any) -> Any:
    recipe_options = {k: options.pop(k) for k in ("folders", "bad", "seed") if k in options}
    recipe = NumbersRecipe(num_items, **recipe_options)
    defaults: dict[str, Any] = {"format": "lmdb", "shard_bytes": SHARD_BYTES}
    return pack_recipes([("", recipe)], dst, **(defaults | options))


# ------------------------------------------------------------------------------ the result


@pytest.mark.parametrize("format", FORMATS)
def test_samples_come_out_in_order_in_shards_that_their_library_reads(
    tmp_path: Path, format: str
) -> None:
    summary = pack(tmp_path / "out", format=format)

    manifest = read_manifest(tmp_path / "out")
    assert labels(tmp_path / "out") == list(range(100))
    assert len(manifest.shards) == summary.shards > 3
    assert sorted(contents(tmp_path / "out")) == sorted(
        ["manifest.json", *(shard.file for shard in manifest.shards)]
    )
    names = [f"shard-{i:05d}-{s.xxh3_128}.{format}" for i, s in enumerate(manifest.shards)]
    assert [shard.file for shard in manifest.shards] == names
    assert manifest.provenance["source"] == "numbers"
    assert manifest.provenance["packer"] == PACKER
    from loaders.data.formats import open_columns

    for shard in manifest.shards:
        path = tmp_path / "out" / shard.file
        assert read_back(path, open_columns(path, shard)) is None


@pytest.mark.parametrize("format", FORMATS)
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, format: str) -> None:
    for workers in (1, 2, 5):
        job = Job(
            tmp_path / f"{workers}",
            folders=("a", "b"),
            delay_s=0.001,
            options={"workers": workers, "format": format},
        )
        job.run()

    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "5")


def test_each_target_is_cut_by_its_own_size(tmp_path: Path) -> None:
    summary = pack(tmp_path, folders=("big", "small"))

    big, small = (read_manifest(tmp_path / name) for name in ("big", "small"))
    assert labels(tmp_path / "big") == labels(tmp_path / "small") == list(range(100))
    assert len(big.shards) > 2 * len(small.shards) > 2
    assert summary.samples == 200
    assert summary.samples_per_s * summary.seconds == pytest.approx(200)
    assert summary.shards == len(big.shards) + len(small.shards)
    for shard in big.shards[:-1]:
        assert shard.size_bytes > SHARD_BYTES


def test_splits_to_one_folder_are_refused(tmp_path: Path) -> None:
    for parts in ([], [("a", NumbersRecipe(5)), ("a", NumbersRecipe(5))]):
        with pytest.raises(ValueError):
            pack_recipes(parts, tmp_path, format="lmdb")

    assert not [*tmp_path.iterdir()]


def test_splits_are_published_together(tmp_path: Path) -> None:
    parts = [("train", NumbersRecipe(50)), ("val", NumbersRecipe(20, bad=[3]))]

    with pytest.raises(SourceError, check=At("number 3")):
        pack_recipes(parts, tmp_path, format="lmdb", shard_bytes=SHARD_BYTES)

    assert not (tmp_path / "train" / "manifest.json").exists()

    summary = pack_recipes(
        parts, tmp_path, format="lmdb", shard_bytes=SHARD_BYTES, on_error="skip"
    )

    assert labels(tmp_path / "train") == list(range(50))
    assert labels(tmp_path / "val") == [i for i in range(20) if i != 3]
    assert summary.samples == 69
    assert [d.folder for d in summary.datasets] == ["train", "val"]


def test_a_record_larger_than_a_shard_gets_one_of_its_own(tmp_path: Path) -> None:
    pack(tmp_path, 5, shard_bytes=1)

    assert [s.num_samples for s in read_manifest(tmp_path).shards] == [1] * 5


@pytest.mark.parametrize(
    "options",
    [
        {"format": "zip"},
        {"shard_bytes": 0},
        {"shard_bytes": 1 << 29, "format": "parquet"},
        {"workers": 0},
        {"on_error": "ignore"},
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    pack(tmp_path / "right")
    with pytest.raises(ValueError):
        pack(tmp_path / "out", **options)

    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------ bad items


def test_the_first_bad_item_in_order_ends_the_packing(tmp_path: Path) -> None:
    for workers in (1, 4):
        with pytest.raises(SourceError, check=At("number 60")):
            pack(tmp_path, bad=[60, 80], workers=workers)


def test_skipped_items_are_listed_and_the_run_that_failed_continues(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        pack(tmp_path / "a", bad=[60, 80])
    assert not (tmp_path / "a" / "manifest.json").exists()

    summary = pack(tmp_path / "a", bad=[60, 80], on_error="skip")
    pack(tmp_path / "b", bad=[60, 80], on_error="skip")

    assert "continued" in summary.notes[0]
    assert summary.rejected == tuple(
        (f"number {i}", f"number {i}: it is bad luck.") for i in (60, 80)
    )
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    lines = (tmp_path / "a" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"item": "number 60", "error": "number 60: it is bad luck."}
    assert "rejected 2, listed in" in str(summary)


def test_failing_after_skipping_is_refused(tmp_path: Path) -> None:
    Job(
        tmp_path,
        bad=(5,),
        options={"on_error": "skip"},
        kill=("append to the journal", 2, "after"),
    ).run_in_child()

    with pytest.raises(PackError):
        pack(tmp_path, bad=[5])


def test_a_part_of_nothing_but_bad_items_leaves_nothing(tmp_path: Path) -> None:
    parts = [("train", NumbersRecipe(100)), ("val", NumbersRecipe(2, bad=(0, 1)))]
    options: dict[str, Any] = {"format": "lmdb", "shard_bytes": SHARD_BYTES}

    with pytest.raises(PackError, check=At("out")):
        pack_recipes(parts, tmp_path / "out", on_error="skip", **options)
    assert not (tmp_path / "out").exists()

    parts[1] = ("val", NumbersRecipe(3))
    assert pack_recipes(parts, tmp_path / "out", **options).samples == 103


def test_the_rate_is_of_samples_that_were_packed(tmp_path: Path) -> None:
    summary = pack(tmp_path / "a", bad=range(10, 90), on_error="skip")
    with Writer(tmp_path / "b", {"x": Array(dtype="uint8", dims=(2,))}, on_error="skip") as writer:
        for x in ([1, 2], [1, 2, 3], "x"):
            writer.add(x=x)

    assert summary.samples_per_s * summary.seconds == pytest.approx(20)
    assert writer.summary is not None
    assert writer.summary.samples_per_s * writer.summary.seconds == pytest.approx(1)


def test_nothing_but_bad_items_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(PackError, check=At("out")) as caught:
        pack(tmp_path / "out", 3, bad=[0, 1, 2], on_error="skip")
    assert "number 0" in str(caught.value)
    with pytest.raises(PackError, check=At("out")):
        pack(tmp_path / "out", 0)

    assert not (tmp_path / "out").exists()


class BrokenRecipe(NumbersRecipe):
    def encode(self, item: int) -> list[Records]:
        if item == 7:
            raise ZeroDivisionError("a defect")
        return super().encode(item)


def test_a_defect_of_the_recipe_surfaces_with_its_item(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        pack_recipes([("", BrokenRecipe(100))], tmp_path, format="lmdb", on_error="skip")

    assert caught.value.__notes__ == ["while packing number 7"]


class UnreadableRecipe(NumbersRecipe):
    def items(self, start: int) -> Any:
        yield from super().items(start)
        raise SourceError("the tar is cut", "a.tar")


def test_an_error_of_the_listing_surfaces(tmp_path: Path) -> None:
    with pytest.raises(SourceError, check=At("a.tar")):
        pack_recipes([("", UnreadableRecipe(20))], tmp_path, format="lmdb")


class Interrupting(Quiet):
    def __init__(self) -> None:
        self.num_items = 0

    def advance(self, rejected: int, samples: int = 1) -> None:
        self.num_items += 1
        if self.num_items == 90:
            raise KeyboardInterrupt


def test_ctrl_c_ends_at_once_and_the_next_run_continues(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "a", progress=Interrupting())

    assert "continued" in pack(tmp_path / "a").notes[0]
    pack(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# ------------------------------------------------------------------------------ kills


@pytest.mark.parametrize("format", FORMATS)
def test_each_step_is_on_disk_before_the_next_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    """What a machine that loses power finds: no name without its bytes, no journal line without its shard."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        steps.append(f"sync {re.sub('[.][0-9a-f]{32}[.]tmp', '.tmp', name)}")
        fsync(fd)

    def spy_replace(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    link = os.link

    def spy_link(source: Path, target: Path) -> None:
        steps.append(f"link to {target.name}")
        link(source, target)

    monkeypatch.setattr(os, "link", spy_link)
    fields = {"x": Array(dtype="int64", dims=(None,))}

    dst = tmp_path / "new" / "dst"
    with Writer(dst, fields, format=format, shard_bytes=1 << 12) as writer:
        for _ in range(2):
            writer.add(x=np.arange(600))

    shards = [f"shard-00000.{format}", f"shard-00001.{format}"]
    begun = ["sync new", f"sync {tmp_path.name}"]
    begun += ["sync journal.jsonl.tmp", "rename to journal.jsonl", f"sync {PACKING_NAME}"]
    assert steps[: len(begun)] == begun
    named = [f"rename to {shard.file}" for shard in read_manifest(dst).shards]
    lines = [i for i, step in enumerate(steps) if step == "sync journal.jsonl"]
    for shard, name, line in zip(shards, named, lines[:2], strict=True):
        assert steps.index(f"sync {shard}") < steps.index(name) < line
        assert "sync dst" in steps[steps.index(name) : line]
    assert len(lines) == 4  # also that the source is at its end, and that all is done
    assert lines[-1] < len(steps) - 2
    assert steps[-2] in ("rename to manifest.json", "link to manifest.json")
    assert steps[-1] == "sync dst"


@pytest.mark.parametrize("fails", [False, True])
def test_a_shard_that_is_ready_waits_for_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Else the journal of a run that ends early would say that what came before it is there."""
    write, is_second_written, lines = write_staged, threading.Event(), list[str]()
    append = Journal.append

    def first_comes_last(path: Path, *rest: Any) -> Any:
        info = write(path, *rest)
        if path.stem != "shard-00000":
            is_second_written.set()
            return info
        assert is_second_written.wait(20)
        time.sleep(0.1)
        if fails:
            raise OSError(errno.EIO, "the disk is broken")
        return info

    def spy_append(journal: Any, *given: Any) -> None:
        lines.extend(line["shard"]["file"] for line in given if "shard" in line)
        append(journal, *given)

    with monkeypatch.context() as patch:
        patch.setattr(packing, "write_staged", first_comes_last)
        patch.setattr(Journal, "append", spy_append)
        if fails:
            with pytest.raises(PackError):
                pack(tmp_path / "a")
        else:
            pack(tmp_path / "a")
    assert lines == ([] if fails else sorted(lines))
    assert fails or len(lines) > 2

    pack(tmp_path / "a")
    pack(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


KILLED: dict[str, Any] = {
    "num_items": 60,
    "splits": ("train", "val"),
    "folders": ("a", "b"),
    "bad": (7, 59),
    "options": {"on_error": "skip"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What ``KILLED`` makes when it is left alone."""
    folder = tmp_path_factory.mktemp("whole") / "a"
    Job(folder, **KILLED).run()
    return contents(folder)


ONCE = ("start the journal", "clean up")
KILLS = [
    pytest.param(step, nth, marks=[] if nth == (step not in ONCE) else pytest.mark.slow)
    for step in STEPS
    for nth in ((0,) if step in ONCE else (0, 1, 4))
]


@pytest.mark.parametrize(("step", "nth"), KILLS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_step_the_same_command_gives_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes], step: str, nth: int, when: Any
) -> None:
    job = Job(tmp_path / "a", kill=(step, nth, when), **KILLED)

    code = job.run_in_child()

    assert code == -9 or (code == 0 and nth == 4)
    published = [f for f in ("train/a", "val/b") if (job.dst / f / "manifest.json").exists()]
    for folder in published:  # whatever can be seen is whole
        read_manifest(job.dst / folder)
    if code == -9 and not (len(published) == 2 and step == "clean up" and when == "after"):
        Job(job.dst, **KILLED).run()
    assert contents(job.dst) == whole


def test_killed_at_random_moments_again_and_again(tmp_path: Path) -> None:
    common: dict[str, Any] = {"num_items": 150, "folders": ("a", "b"), "bad": (40,)}
    options = {"on_error": "skip", "workers": 3}
    Job(tmp_path / "whole", options=options, **common).run()
    rng = random.Random(0)

    num_killed = 0
    for run in range(2):
        dst = tmp_path / f"{run}"
        for _ in range(4):
            child = Job(dst, options=options, delay_s=0.006, **common).start()
            child.join(rng.uniform(0.03, 0.35))
            if child.exitcode is None:
                child.kill()
                num_killed += 1
            child.join(60)
            if child.exitcode == 0:
                break
        if not (dst / "b" / "manifest.json").exists() or (dst / PACKING_NAME).exists():
            Job(dst, options=options, **common).run()
        assert contents(dst) == contents(tmp_path / "whole")
    assert num_killed >= 1


@pytest.mark.parametrize("step", ["rename", "publish a manifest", "unlink", "clean up"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_killed_while_overwriting_there_is_always_a_whole_dataset(
    tmp_path: Path, step: str, when: Any, nth: int
) -> None:
    pack(tmp_path / "old", 50, seed=1)
    dst, options = tmp_path / "old", {"overwrite": True}
    code = Job(dst, options=options, kill=(step, nth, when)).run_in_child()

    assert labels(dst) in (list(range(50)), list(range(100)))
    for shard in read_manifest(dst).shards:
        assert (dst / shard.file).stat().st_size == shard.size_bytes

    if code == -9:
        Job(dst, options=options).run()
    assert labels(dst) == list(range(100))
    files = {shard.file for shard in read_manifest(dst).shards}
    assert set(contents(dst)) == files | {"manifest.json"}


def _leave_unpublished(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Let a packing fail where all that is left is to publish it."""
    with monkeypatch.context() as patch:
        patch.setattr(packing, "publish", _fail)
        with pytest.raises(PackError):
            run()


def test_a_command_that_is_refused_drops_no_packing_that_only_has_to_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dst = tmp_path / "dst"
    _leave_unpublished(monkeypatch, partial(pack, dst))
    pack(tmp_path / "other", 7)
    shutil.copytree(tmp_path / "other", dst, dirs_exist_ok=True)
    before = contents(dst / PACKING_NAME)

    with pytest.raises(PackError, check=At("dst")):
        copy_dataset(tmp_path / "other", dst)

    assert contents(dst / PACKING_NAME) == before


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "the disk is broken")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files as Linux does")
def test_a_packing_that_is_refused_leaves_no_file_open(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        pack(tmp_path, bad=[60])
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        with pytest.raises(PackError):  # as another one was begun there
            pack(tmp_path, 7, seed=3)

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_packing_touches_nothing_before_it_is_entered(tmp_path: Path) -> None:
    packing.Packing(tmp_path / "dst", [""], {})

    assert not (tmp_path / "dst").exists()


# ------------------------------------------------------------------------------ neighbours


SPLITS: dict[str, Any] = {"splits": ("train", "val"), "num_items": 20}


def test_what_adds_to_a_dataset_leaves_an_unfinished_packing_of_it(tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack(dst, 20)
    pack(tmp_path / "more", 7)
    with pytest.raises(SourceError):
        Job(dst, bad=(90,), options={"overwrite": True}).run()
    before = contents(dst)

    with pytest.raises(PackError, check=At("dst")):
        derive.extend(dst, [tmp_path / "more"])

    assert contents(dst) == before


def test_what_changes_a_split_waits_for_the_packing_of_all(tmp_path: Path) -> None:
    Job(tmp_path / "all", **SPLITS).run()
    pack(tmp_path / "more", 7)
    refused: list[str] = []

    def meanwhile() -> bool:
        with pytest.raises(PackError, check=At("all/train")):
            derive.extend(tmp_path / "all" / "train", [tmp_path / "more"])
        refused.append("extend")
        with pytest.raises(PackError, check=At("all/val")):
            pack(tmp_path / "all" / "val", overwrite=True)
        return True

    Job(tmp_path / "all", options={"overwrite": True, "is_unchanged": meanwhile}, **SPLITS).run()

    assert refused == ["extend"]
    assert labels(tmp_path / "all" / "train") == list(range(20))
    names = [path.name for path in (tmp_path / "all").rglob("*") if path.name == PACKING_NAME]
    assert names == []


def test_packing_all_waits_for_what_changes_a_split(tmp_path: Path) -> None:
    Job(tmp_path, **SPLITS).run()
    with locked(tmp_path / "train"), pytest.raises(PackError, check=At("train")):
        Job(tmp_path, options={"overwrite": True}, **SPLITS).run()

    assert not (tmp_path / PACKING_NAME).exists()


def test_a_dataset_beside_the_splits_is_nobody_elses_matter(tmp_path: Path) -> None:
    Job(tmp_path / "all", **SPLITS).run()
    pack(tmp_path / "more", 7)

    def meanwhile() -> bool:
        return bool(derive.merge(tmp_path / "all" / "extra", [tmp_path / "more"]))

    Job(tmp_path / "all", options={"overwrite": True, "is_unchanged": meanwhile}, **SPLITS).run()

    assert labels(tmp_path / "all" / "extra") == list(range(7))


def test_no_file_that_came_meanwhile_is_replaced(tmp_path: Path) -> None:
    def meanwhile() -> bool:
        (tmp_path / "shard-00001.lmdb").write_text("mine")
        return True

    pack(tmp_path, is_unchanged=meanwhile)

    assert contents(tmp_path)["shard-00001.lmdb"] == b"mine"
    assert labels(tmp_path) == list(range(100))


def test_a_finished_shard_that_was_lost_is_packed_again(tmp_path: Path) -> None:
    for name, damage in (("gone", Path.unlink), ("cut", lambda path: os.truncate(path, 100))):
        job = Job(tmp_path / name, kill=("append to the journal", 4, "after"))
        assert job.run_in_child() == -9
        finished = sorted((tmp_path / name).glob("shard-*.lmdb"))
        damage(finished[1])

        pack(tmp_path / name)
    pack(tmp_path / "whole")

    assert contents(tmp_path / "gone") == contents(tmp_path / "whole")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


# ------------------------------------------------------------------------------ the target


def interrupted(dst: Path, **options: Any) -> None:
    job = Job(dst, kill=("append to the journal", 3, "after"), **options)
    assert job.run_in_child() == -9


def test_a_run_that_continues_says_so_also_while_a_target_is_empty(tmp_path: Path) -> None:
    job = Job(tmp_path, kill=("append to the journal", 0, "after"), folders=("big", "small"))
    assert job.run_in_child() == -9

    assert "packed earlier" in pack(tmp_path, folders=("big", "small")).notes[0]


def test_another_plan_is_refused_and_named_until_overwrite(tmp_path: Path) -> None:
    interrupted(tmp_path / "a")

    with pytest.raises(PackError, check=At("a")):
        pack(tmp_path / "a", seed=9)
    with pytest.raises(PackError, check=At("a")):
        pack(tmp_path / "a", shard_bytes=10_000)
    pack(tmp_path / "a", seed=9, overwrite=True)
    pack(tmp_path / "b", seed=9)

    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_another_plan_is_refused_too_where_it_fills_other_folders(tmp_path: Path) -> None:
    interrupted(tmp_path, folders=("small", "large"))
    before = contents(tmp_path)

    with pytest.raises(PackError, check=At(tmp_path.name)):
        Job(tmp_path, folders=("middle",)).run()

    assert contents(tmp_path) | {".packing/lock": b""} == before


def test_an_interrupted_packing_without_a_shard_is_forgotten(tmp_path: Path) -> None:
    job = Job(tmp_path, kill=("write a shard", 0, "before"))
    assert job.run_in_child() == -9
    assert (tmp_path / PACKING_NAME).exists()

    pack(tmp_path, seed=9)

    assert labels(tmp_path) == list(range(100))


def test_a_published_dataset_is_replaced_on_request_only(tmp_path: Path) -> None:
    pack(tmp_path, 30)
    before = contents(tmp_path)

    with pytest.raises(PackError):
        pack(tmp_path)
    assert contents(tmp_path) == before
    with pytest.raises(SourceError):
        pack(tmp_path, bad=[60], overwrite=True)
    assert labels(tmp_path) == list(range(30))  # a new one that fails costs nothing
    (tmp_path / "notes.txt").write_text("mine")

    pack(tmp_path, overwrite=True)

    assert labels(tmp_path) == list(range(100))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    shards = [name for name in contents(tmp_path) if name.startswith("shard")]
    assert len(shards) == len(read_manifest(tmp_path).shards)


def test_an_interrupted_overwrite_continues_with_overwrite_only(tmp_path: Path) -> None:
    pack(tmp_path, 30)
    interrupted(tmp_path, options={"overwrite": True})

    with pytest.raises(PackError):
        pack(tmp_path)
    summary = pack(tmp_path, overwrite=True)

    assert "continued" in summary.notes[0]
    assert labels(tmp_path) == list(range(100))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("folders", [("",), ("a", "b")])
def test_a_foreign_folder_is_left_alone(
    tmp_path: Path, overwrite: bool, folders: tuple[str, ...]
) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")

    with pytest.raises(PackError):
        pack(tmp_path, folders=folders, overwrite=overwrite)

    assert contents(tmp_path) == {"thesis.txt": b"ten years of work"}


def test_foreign_files_beside_an_unfinished_packing_leave_what_is_finished(
    tmp_path: Path,
) -> None:
    interrupted(tmp_path)
    (tmp_path / "thesis.txt").write_text("ten years of work")
    before = contents(tmp_path)

    with pytest.raises(PackError):
        pack(tmp_path, seed=9, overwrite=True)

    assert contents(tmp_path).items() >= before.items() - {(f"{PACKING_NAME}/lock", b"")}


def test_folders_of_splits_that_were_killed_are_no_obstacle_to_others(tmp_path: Path) -> None:
    interrupted(tmp_path, folders=("a", "b"))
    for folder in "ab":  # as kill -9 leaves it
        (tmp_path / folder / PACKING_NAME).mkdir(exist_ok=True)
        (tmp_path / folder / PACKING_NAME / "lock").touch()

    pack(tmp_path, overwrite=True)
    pack(tmp_path, seed=9, overwrite=True)

    assert not (tmp_path / "a").exists()
    assert labels(tmp_path) == list(range(100))


def test_a_folder_of_other_datasets_is_left_alone(tmp_path: Path) -> None:
    pack(tmp_path / "other", 10)
    before = contents(tmp_path)

    for folders in (("",), ("a", "b")):
        with pytest.raises(PackError, check=At("other")):
            pack(tmp_path, folders=folders, overwrite=True)

    assert contents(tmp_path) == before


def test_a_damaged_dataset_is_not_replaced_blindly(tmp_path: Path) -> None:
    pack(tmp_path, 10)
    (tmp_path / "manifest.json").write_text("{}")

    with pytest.raises(ManifestError):
        pack(tmp_path, overwrite=True)


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")

    with pytest.raises(PackError):
        pack(tmp_path / "out")
    with pytest.raises(PackError):
        pack(tmp_path / "out" / "below")


def test_the_second_packer_stops(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert Job(tmp_path).run_in_child() == 1
        with pytest.raises(PackError, check=At(tmp_path)):
            pack(tmp_path)

    pack(tmp_path)


def test_two_packers_at_once_give_one_dataset(tmp_path: Path) -> None:
    children = [Job(tmp_path / "a", delay_s=0.001).start() for _ in range(3)]
    for child in children:
        child.join(60)
    pack(tmp_path / "b")

    codes = [child.exitcode for child in children]
    assert 0 in codes  # and of one that came when that was done
    assert {*codes} <= {0, 1}
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_source_that_changed_is_noticed(tmp_path: Path) -> None:
    interrupted(tmp_path, options={"on_error": "skip"}, folders=("a", "b"))

    with pytest.raises(PackError):
        # Good and bad items must be the same for all shards of one dataset.
        pack(tmp_path, folders=("a", "b"), bad=range(1, 100, 2), on_error="skip")
    with pytest.raises(PackError, check=At("out")):
        pack_recipes(
            [("", NumbersRecipe(10))],
            tmp_path / "out",
            format="lmdb",
            shard_bytes=SHARD_BYTES,
            is_unchanged=lambda: False,
        )

    assert not (tmp_path / "out" / "manifest.json").exists()


class ShortRecipe(NumbersRecipe):
    def items(self, start: int) -> Any:
        yield from range(start, 90)


def test_a_listing_that_gives_fewer_items_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(PackError):
        pack_recipes([("", ShortRecipe(100))], tmp_path, format="lmdb")


# ------------------------------------------------------------------------------ the disk


LIMITED = """
import resource, sys
from pathlib import Path
from tests.packdata.recipes import Job
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    Job(Path(sys.argv[1]), options={"format": sys.argv[3]}).run()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("format", "limit"),
    [
        ("lmdb", 3000),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in (("lmdb", 8000), ("parquet", 3000))),
    ],
)
def test_a_file_that_cannot_grow_is_a_clear_error(tmp_path: Path, format: str, limit: int) -> None:
    dst = tmp_path / "a"
    command = [sys.executable, "-c", LIMITED, str(dst), str(limit), format]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("PackError:")
    assert "cannot be written" in done.stderr
    assert "Make room" in done.stderr
    pack(dst, format=format)
    pack(tmp_path / "b", format=format)
    assert contents(dst) == contents(tmp_path / "b")


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of a megabyte."""
    with tmpfs(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_costs_nothing_that_was_finished(
    tmp_path: Path, small_disk: Path, format: str
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(640_000))  # room for more shards than are under way at once
    dst = small_disk / "out"

    with pytest.raises(PackError):
        pack(dst, 400, format=format)
    ballast.unlink()
    summary = pack(dst, 400, format=format)
    pack(tmp_path / "b", 400, format=format)

    assert "continued" in summary.notes[0]
    assert contents(dst) == contents(tmp_path / "b")


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_called_so(small_disk: Path, format: str) -> None:
    """Also by LMDB, whose own error is another."""
    columns = {"x": FixedColumn(np.zeros((400, 5000), np.uint8))}
    schema = Schema({"x": Array(dtype="uint8", dims=(5000,))})

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_staged(small_disk / f"shard.{format}", columns, schema)

    assert not [*small_disk.iterdir()]


def test_a_full_disk_while_overwriting_leaves_the_old_dataset(small_disk: Path) -> None:
    dst = small_disk / "out"
    pack(dst, 30)
    (small_disk / "ballast").write_bytes(bytes(900_000))

    with pytest.raises(PackError) as error:
        pack(dst, 400, overwrite=True)

    # Two are written at a time: either may be the first that has no room.
    assert Path(str(error.value.path)).parent == dst
    assert error.value.hint.startswith(ROOM)
    assert labels(dst) == list(range(30))


@pytest.mark.parametrize("nth", range(0, 12, 2))
def test_a_journal_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    write, calls = os.write, iter(range(1000))

    def full(fd: int, data: Any) -> int:
        if next(calls) == nth:
            write(fd, bytes(data)[:7])  # torn
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    message = ""
    try:
        pack(tmp_path / "a", 50)
    except PackError as error:
        message = str(error)
    monkeypatch.undo()
    if message or not (tmp_path / "a" / "manifest.json").exists():
        assert "No space left" in message
        pack(tmp_path / "a", 50)
    pack(tmp_path / "b", 50)

    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_target_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    dst = Path("/proc/packed")  # nobody may create that
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
        dst = tmp_path / "out"

    with pytest.raises(PackError, check=At(dst)):
        pack(dst)


def test_a_jump_of_the_clock_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path / "a")
    monkeypatch.setattr(time, "time", lambda: 0.0)

    pack(tmp_path / "a")
    pack(tmp_path / "b")

    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_open_files_and_threads_stay_flat(tmp_path: Path) -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for format in FORMATS:  # Arrow keeps threads of its own
        pack(tmp_path / f"first {format}", 20, format=format)
    num_files, num_threads = count()
    for i in range(3):
        with pytest.raises(SourceError):
            pack(tmp_path / f"{i}", 50, bad=[30])
        pack(tmp_path / f"{i}-good", 20, format="parquet")

    files_after, threads_after = count()
    assert files_after <= num_files
    assert threads_after <= num_threads


def test_sigint_to_a_process_that_packs_ends_it_soon(tmp_path: Path) -> None:
    child = Job(tmp_path / "a", num_items=4000, delay_s=0.002).start()
    journal = tmp_path / "a" / PACKING_NAME / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert child.pid is not None

    os.kill(child.pid, signal.SIGINT)
    began = time.monotonic()
    child.join(60)

    assert child.exitcode not in (None, 0)
    assert time.monotonic() - began < 3
    assert not (tmp_path / "a" / "manifest.json").exists()
