"""Datasets written by copy, merge, append and split: what is left where that ends early."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders.data.manifest import read_manifest
from loaders.errors import PackError, SchemaError
from loaders.schema import Boxes, Bytes, Image
from packdata.claimed import lock_if_free
from packdata.inspect.verify import verify
from packdata.packed.derive import CopyOptions, copy_dataset, extend, merge, split
from packdata.packing import packing, store
from packdata.packing.packing import Packing
from packdata.packing.store import FolderStore
from packdata.packing.target import PACKING_NAME
from packdata.writer import Writer
from tests.packdata.breaking import ROOM, tmpfs
from tests.packdata.packing import FIELDS, pack, pack_samples, sample
from tests.packdata.reading import PackedReader
from tests.refusals import At

SMALL = ["label", "key", "score", "width"]
_KILLED = """
import os, signal, sys
from packdata import cli
from packdata.packing import store

step, nth, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
holder, name = {"rename": (os, "replace"), "publish": (store, "swap")}[step]
original, calls = getattr(holder, name), iter(range(1000))

def dying(*args, **kwargs):
    is_counted = step == "publish" or str(args[1]).endswith(".lmdb")
    is_last = is_counted and next(calls) == nth
    if is_last and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    original(*args, **kwargs)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)

setattr(holder, name, dying)
sys.exit(cli.main(sys.argv[4:]))
"""


def killed(step: str, nth: int, when: str, *argv: object) -> None:
    """Run a command that dies at the nth call of a step."""
    args = [sys.executable, "-c", _KILLED, step, str(nth), when, *map(str, argv)]
    done = subprocess.run(args, timeout=60, check=False, capture_output=True)
    assert done.returncode == -9, done.stderr


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files(folder: Path) -> list[str]:
    return [shard.file for shard in read_manifest(folder).shards]


def keys(folder: Path) -> list[str]:
    return PackedReader(folder).keys()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return pack_samples(tmp_path / "source", 8, fields=SMALL)


@pytest.mark.parametrize(
    ("step", "overwrite"),
    [
        ("rename", True),
        ("publish", False),
        *(
            pytest.param(*c, marks=pytest.mark.slow)
            for c in (("rename", False), ("publish", True))
        ),
    ],
)
def test_killed_before_the_manifest_the_next_command_takes_the_folder(
    tmp_path: Path, source: Path, step: str, overwrite: bool
) -> None:
    dst = tmp_path / "dst"
    killed(step, 0, {"rename": "after", "publish": "before"}[step], "copy", source, dst)
    assert any(name.startswith("shard-00000-") for name in entries(dst))
    assert "manifest.json" not in entries(dst)

    copy_dataset(source, dst, overwrite=overwrite)

    assert keys(dst) == keys(source)
    assert entries(dst) == ["manifest.json", *files(dst)]


@pytest.mark.parametrize("command", ["extend", pytest.param("merge", marks=pytest.mark.slow)])
def test_links_of_a_command_that_was_killed_go_and_their_source_stays(
    tmp_path: Path, source: Path, command: str
) -> None:
    dst, more = tmp_path / "dst", pack_samples(tmp_path / "more", 4, first=50, fields=SMALL)
    if command == "extend":
        shutil.copytree(source, dst)
    before = entries(dst) if dst.exists() else []
    killed("publish", 0, "before", command, more, dst)
    assert len(entries(dst)) > len(before)

    if command == "extend":
        extend(dst, [more])
    else:
        merge(dst, [more])

    assert keys(dst) == [*(keys(source) if command == "extend" else []), *keys(more)]
    assert verify(dst).notes == ()
    assert verify(more).ok


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_added_is_not_added_again_though_its_command_was_killed(
    tmp_path: Path, when: str
) -> None:
    dst = pack_samples(tmp_path / "dst", 8, fields=["label"])
    more = pack_samples(tmp_path / "more", 4, fields=["label"])
    killed("publish", 0, when, "extend", more, dst)

    assert extend(dst, [more]).samples == extend(dst, [more]).samples == 8 + 4
    assert entries(dst) == ["manifest.json", *files(dst)]


def test_killed_behind_the_manifest_the_next_command_removes_what_was_replaced(
    tmp_path: Path, source: Path
) -> None:
    dst = tmp_path / "dst"
    copy_dataset(pack_samples(tmp_path / "before", 12, fields=SMALL), dst)
    (old,) = files(dst)
    (dst / "rejected.jsonl").write_text("{}\n")
    killed("publish", 0, "after", "copy", source, dst, "--overwrite")
    assert keys(dst) == keys(source)
    assert old in entries(dst)

    extend(dst, [pack_samples(tmp_path / "more", 4, first=50, fields=SMALL)])

    assert entries(dst) == ["manifest.json", *files(dst)]
    assert verify(dst).ok


def test_a_packing_takes_the_folder_of_a_command_that_was_killed(
    tmp_path: Path, source: Path
) -> None:
    killed("publish", 0, "before", "copy", source, tmp_path / "dst")

    with Writer(tmp_path / "dst", {"a": Bytes()}) as writer:
        writer.add(a=b"x")

    assert entries(tmp_path / "dst") == ["manifest.json", *files(tmp_path / "dst")]
    assert verify(tmp_path / "dst").ok


def test_only_what_a_command_put_there_is_a_leftover(tmp_path: Path, source: Path) -> None:
    dst = tmp_path / "dst"
    killed("publish", 0, "before", "copy", source, dst)
    (dst / "shard-00000.lmdb").write_text("another file, named as those of before")

    copy_dataset(source, dst, overwrite=True)

    assert (dst / "shard-00000.lmdb").read_text() == "another file, named as those of before"
    assert keys(dst) == keys(source)


def test_the_shards_of_a_dataset_whose_manifest_was_lost_stay(
    tmp_path: Path, source: Path
) -> None:
    """They are named as what a killed command leaves."""
    dst = tmp_path / "dst"
    copy_dataset(source, dst)
    (dst / "manifest.json").unlink()
    before = entries(dst)

    for overwrite in (False, True):
        with pytest.raises(PackError, check=At(dst)):
            copy_dataset(source, dst, overwrite=overwrite)

    assert entries(dst) == before


@pytest.mark.parametrize("step", [(FolderStore, "put_shard"), (packing, "publish")])
def test_an_error_while_publishing_leaves_the_target_as_it_was(
    tmp_path: Path, source: Path, step: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    old = pack_samples(tmp_path / "old", 4, fields=SMALL)
    before = entries(old), keys(old)
    monkeypatch.setattr(*step, failing)
    for dst in (tmp_path / "new", old):
        with pytest.raises(PackError):
            copy_dataset(source, dst, overwrite=True)

    assert not (tmp_path / "new").exists()
    assert (entries(old), keys(old)) == before


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Any:
    """A file system of four pages: room for a shard, not for a manifest beside it."""
    with tmpfs(tmp_path / "disk", "16k") as disk:
        yield disk


@pytest.mark.parametrize("taken", [0, 4096, 16384])
def test_a_full_disk_leaves_nothing(tiny_disk: Path, source: Path, taken: int) -> None:
    (tiny_disk / "ballast").write_bytes(bytes(taken))

    with pytest.raises(PackError) as caught:
        copy_dataset(source, tiny_disk / "dst")

    assert str(caught.value.path).startswith(f"{tiny_disk}/dst")
    assert caught.value.hint == ROOM
    assert entries(tiny_disk) == ["ballast"]


def test_shards_of_no_bytes_are_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ValueError):
        merge(tmp_path / "dst", [source], shard_bytes=0)

    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("command", ["copy", "split", "merge"])
@pytest.mark.parametrize("size", ["24k", "32k", "64k"])
def test_every_command_says_what_to_do_about_a_full_disk(
    tmp_path: Path, size: str, command: str
) -> None:
    """At whatever step it is full; lock, shard, or manifest."""
    source = pack_samples(tmp_path / "src", 40)
    written: dict[str, Callable[[Path], object]] = {
        "copy": lambda dst: copy_dataset(source, dst),
        "split": lambda dst: split(source, dst, {"a": 0.5, "b": 0.5}),
        "merge": lambda dst: merge(dst, [source]),
    }

    with tmpfs(tmp_path / "disk", size) as disk:
        with pytest.raises(PackError) as caught:
            written[command](disk / "dst")
        assert entries(disk) == []

    assert caught.value.hint.startswith(ROOM)


_LIMITED = """
import resource, signal, sys
from packdata import cli

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("format", "missing"),
    [
        ("lmdb", 1),
        pytest.param("parquet", 20_000, marks=pytest.mark.slow),
        *(
            pytest.param(format, missing, marks=pytest.mark.slow)
            for format in ("lmdb", "parquet")
            for missing in (4096, 150_000)
        ),
    ],
)
@pytest.mark.usefixtures("uncovered")
def test_a_file_that_may_not_grow_says_what_to_do(
    tmp_path: Path, format: str, missing: int
) -> None:
    source = pack_samples(tmp_path / "src", 40, format=format, per_shard=40)
    copy_dataset(source, tmp_path / "whole")
    limit = read_manifest(tmp_path / "whole").shards[0].size_bytes - missing
    command = [
        sys.executable,
        "-c",
        _LIMITED,
        str(limit),
        "copy",
        str(source),
        str(tmp_path / "dst"),
    ]

    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert "cannot be written (" in done.stderr
    assert done.stderr.endswith(f"). {ROOM}.\n")
    assert not (tmp_path / "dst").exists()


def test_a_full_disk_leaves_no_lock_in_a_dataset(
    tmp_path: Path, tiny_disk: Path, source: Path
) -> None:
    dataset = tiny_disk / "dst"
    shutil.copytree(pack_samples(tmp_path / "a", 4, fields=["label"]), dataset)
    before = entries(dataset)
    with suppress(OSError):  # it is full in the end
        (tiny_disk / "ballast").write_bytes(bytes(16384))

    with pytest.raises(PackError):
        copy_dataset(source, dataset, overwrite=True)

    assert entries(dataset) == before
    assert verify(dataset).notes == ()


def test_the_target_is_looked_at_again_once_it_is_locked(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path) -> int | None:
        shutil.copy(source / "manifest.json", path.parent.parent)  # another was faster
        return lock_if_free(path)

    monkeypatch.setattr("packdata.packing.target.lock_if_free", late)

    with (
        pytest.raises(PackError, check=At("dst")),
        Packing(tmp_path / "dst", [""], {"command": "test"}, of_packed=True),
    ):
        pass

    assert entries(tmp_path / "dst") == ["manifest.json"]


@pytest.mark.parametrize("after", ["copy", "writer"])
def test_a_writer_that_was_killed_does_not_stand_in_the_way(
    tmp_path: Path, source: Path, after: str
) -> None:
    code = (
        "import os, signal, sys; from packdata import Writer; from loaders.schema import Bytes\n"
        "w = Writer(sys.argv[1], {'a': Bytes()}, shard_bytes=50_000)\n"
        "w.add_batch(a=[bytes(500)] * 1000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    dst = tmp_path / "dst"
    done = subprocess.run([sys.executable, "-c", code, str(dst)], timeout=60, check=False)
    assert done.returncode == -9
    assert '"shard"' in (dst / PACKING_NAME / "journal.jsonl").read_text()

    if after == "copy":
        copy_dataset(source, dst)
    else:
        with Writer(dst, {"a": Bytes()}) as writer:
            writer.add(a=b"x")

    assert entries(dst) == ["manifest.json", *files(dst)]
    assert read_manifest(dst).num_samples == (8 if after == "copy" else 1)


# Splits


def test_a_split_has_nothing_of_the_rejects_of_what_lies_beside_it(
    tmp_path: Path, source: Path
) -> None:
    dst = tmp_path / "dst"
    dst.mkdir()
    (dst / "rejected.jsonl").write_text('{"item": "a.jpg", "error": "cut"}\n')

    for _ in range(2):  # the second time it is there already
        assert split(source, dst, {"a": 0.5, "b": 0.5}).rejected == ()

    assert (dst / "rejected.jsonl").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_part_does_not_replace_what_is_divided(
    tmp_path: Path, source: Path, overwrite: bool
) -> None:
    before = entries(source), keys(source)

    with pytest.raises(PackError, check=At(source)):
        split(source, tmp_path, {"val": 0.5, "source": 0.5}, overwrite=overwrite)

    assert (entries(source), keys(source)) == before
    assert not (tmp_path / "val").exists()


@pytest.mark.slow
def test_a_split_that_was_killed_between_two_parts_is_done_again(
    tmp_path: Path, source: Path
) -> None:
    dst, parts = tmp_path / "s", {"train": 0.5, "val": 0.5}
    split(source, dst, parts)
    command = ("split", source, dst, "--parts", "train=0.5", "val=0.5", "--seed", 1, "--overwrite")
    killed("publish", 1, "before", *command)
    for name in parts:  # whatever can be seen is whole
        assert verify(dst / name).ok

    split(source, dst, parts, seed=1, overwrite=True)

    assert sorted(keys(dst / "train") + keys(dst / "val")) == sorted(keys(source))
    assert all(verify(dst / name).notes == () for name in parts)


def test_a_split_that_was_killed_is_not_continued_with_its_parts_in_another_order(
    tmp_path: Path, source: Path
) -> None:
    killed("rename", 1, "before", "split", source, tmp_path / "s", "--parts", "a=0.5", "b=0.5")

    split(source, tmp_path / "s", {"b": 0.5, "a": 0.5})

    assert sorted(keys(tmp_path / "s" / "a") + keys(tmp_path / "s" / "b")) == sorted(keys(source))


def test_a_command_that_is_refused_leaves_what_a_killed_split_has_published(
    tmp_path: Path, source: Path
) -> None:
    dst, parts = tmp_path / "s", {"a": 0.5, "b": 0.5}
    killed("publish", 0, "behind", "split", source, dst, "--parts", "a=0.5", "b=0.5")
    there = {*dst.rglob("shard-*"), *dst.rglob("manifest.json"), *dst.rglob("*.jsonl")}

    with pytest.raises(PackError, check=At("s/a")):
        copy_dataset(source, dst)

    assert there <= {*dst.rglob("*")}
    split(source, dst, parts)
    assert sorted(keys(dst / "a") + keys(dst / "b")) == sorted(keys(source))


@pytest.mark.parametrize(("parts", "notes"), [((0.5, 0.2), 1), ((0.9, 0.1), 0)])
def test_a_split_says_what_comes_to_no_part(
    tmp_path: Path, source: Path, parts: tuple[float, float], notes: int
) -> None:
    said = split(source, tmp_path, dict(zip("ab", parts, strict=True))).notes
    assert len(said) == notes
    assert all("0.3" in text for text in said)


def test_no_part_is_published_if_one_cannot_be_prepared(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "swap", failing)
    with pytest.raises(PackError, check=At("s")):
        split(source, tmp_path / "s", {"train": 0.5, "val": 0.5})

    assert not (tmp_path / "s").exists()


def test_what_a_manifest_names_is_on_disk_before_it(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def spy_fsync(fd: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def spied(move: Callable[[Path, Path], None], what: str) -> Callable[[Path, Path], None]:
        def spy(source: Path, target: Path) -> None:
            steps.append(f"{what} to {target.name}")
            move(source, target)

        return spy

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "link", spied(link, "link"))
    monkeypatch.setattr(os, "replace", spied(replace, "rename"))
    copy_dataset(source, tmp_path / "new" / "dst")

    assert steps[:2] == ["sync new", f"sync {tmp_path.name}"]
    (name,) = files(tmp_path / "new" / "dst")
    assert steps[-2:] == ["link to manifest.json", "sync dst"]
    placed = steps.index(f"rename to {name}")
    assert steps.index("sync shard-00000.lmdb") < placed < steps.index("sync dst") < len(steps) - 2


# Provenance


def origins(described: Any) -> list[Any]:
    """Return what a provenance tells of the datasets before it, the last first."""
    found = []
    while isinstance(described, dict) and "provenance" in described:
        found.append(described)
        described = described["provenance"].get("source")
    return found


def test_the_provenance_of_copies_of_copies_keeps_the_last(tmp_path: Path) -> None:
    folder = pack(tmp_path / "a", {"label": FIELDS["label"]}, [sample(0)])
    sizes = []
    for i in range(24):
        copy_dataset(folder, tmp_path / f"{i}", CopyOptions(where=f"label != {i + 5}"))
        folder = tmp_path / f"{i}"
        sizes.append((folder / "manifest.json").stat().st_size)

    provenance = dict(read_manifest(folder).provenance)
    made_from = origins(provenance["source"])

    wheres = [o["provenance"]["options"]["where"] for o in made_from]
    assert wheres == [f"label != {i + 5}" for i in range(22, 6, -1)]
    assert max(sizes[17:]) - min(sizes[17:]) < 100


def test_a_provenance_of_any_form_may_be_copied(tmp_path: Path) -> None:
    odd: Any = {"source": {"provenance": 3}, "sources": "abc", "appended": 7, "more": None}
    fields = {"label": FIELDS["label"]}
    folder = pack(tmp_path / "a", fields, [sample(0)], provenance=odd)

    copy_dataset(folder, tmp_path / "b")

    assert read_manifest(tmp_path / "b").provenance["source"]["provenance"] == odd


@pytest.mark.parametrize("fields", [["thumb", "image", "boxes"], ["thumb", "boxes"]])
def test_a_copy_gives_boxes_no_other_image_to_follow(tmp_path: Path, fields: list[str]) -> None:
    """They are in pixels of the first image of the schema, and only in order would stay so."""
    kinds = {"image": Image(codec="png"), "thumb": Image(codec="png"), "boxes": Boxes()}
    with Writer(tmp_path / "a", kinds) as writer:
        images = {name: np.zeros((n, n, 3), np.uint8) for name, n in (("image", 9), ("thumb", 3))}
        writer.add(**images, boxes=[[1, 1, 2, 2]])

    with pytest.raises(SchemaError):
        copy_dataset(tmp_path / "a", tmp_path / "b", CopyOptions(fields=fields))

    assert not (tmp_path / "b").exists()
    copy_dataset(tmp_path / "a", tmp_path / "c", CopyOptions(fields=["boxes", "image", "thumb"]))
    copy_dataset(tmp_path / "a", tmp_path / "d", CopyOptions(fields=["thumb", "image"]))
