"""The journal survives torn lines, and the lock belongs to one process."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loaders.data.manifest import Place, ShardInfo
from loaders.errors import PackError
from packdata.claimed import lock_if_free
from packdata.images.plan import pack_images
from packdata.packing.journal import (
    Journal,
    Reached,
    Reject,
    State,
    differences,
    flatten_plan,
    parse_journal,
)
from tests.packdata.command_sources import make_sources
from tests.refusals import At

SHARD = ShardInfo("shard-00000.lmdb", 3, 100, "ff", {"x": Place(8, row_nbytes=4)}, (50, 9))
PLAN = {"format": '"lmdb"'}


def write(path: Path) -> None:
    journal = Journal.create(path, State(PLAN, True, ("",)))
    rejects = [Reject(1, "a.jpg", "cut")]
    for items in (4, 8):
        at = Reached(items, rejects=rejects).to_json()
        journal.append({"target": "", "shard": SHARD.to_json(), "at": at})
        rejects = []
    journal.append({"end": Reached(9, rejects=[Reject(8, "b.jpg", "empty")]).to_json()})
    journal.close()


def read(path: Path) -> State:
    state = parse_journal(path.read_bytes())
    assert state is not None
    return state


def lock(path: Path) -> int:
    fd = lock_if_free(path)
    assert fd is not None
    return fd


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)

    state = read(path)

    assert (state.plan, state.is_kept, state.folders) == (PLAN, True, ("",))
    assert state.shards == {"": [SHARD, SHARD]}
    assert state.reached == {"": Reached(8, rejects=[])}
    assert state.ended[""].items == 9
    assert state.rejects == {"": [Reject(1, "a.jpg", "cut"), Reject(8, "b.jpg", "empty")]}
    assert state.done is None


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_journal_says_whether_it_is_kept(tmp_path: Path, is_kept: bool) -> None:
    path = tmp_path / "journal.jsonl"

    Journal.create(path, State(PLAN, is_kept, ("",))).close()

    assert read(path).is_kept == is_kept


def test_cut_anywhere_whole_lines_count_and_appending_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    data = path.read_bytes()
    header = data.index(b"\n") + 1

    for length in range(len(data)):
        path.write_bytes(data[:length])
        state = parse_journal(path.read_bytes())
        if length < header:
            assert state is None
            continue
        assert state is not None
        journal = Journal(path, state)
        journal.append({"end": Reached(7).to_json()})
        journal.close()
        whole = data[:length].count(b"\n")
        assert path.read_bytes().count(b"\n") == whole + 1
        assert read(path).ended[""].items == 7
        assert len(journal.state.shards.get("", [])) == min(whole - 1, 2)


def test_from_a_flipped_bit_on_nothing_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    good = path.read_bytes()

    for at in range(len(good)):
        state = parse_journal(good[:at] + bytes([good[at] ^ 1 << at % 7]) + good[at + 1 :])
        num = good[:at].count(b"\n")  # lines before that
        assert (state is None) == (num == 0)
        assert state is None or len(state.shards.get("", [])) == min(num - 1, 2)
        assert state is None or not state.ended


@pytest.mark.parametrize("tail", [b"\0" * 50 + b"\n", b'{"half'])
def test_from_a_damaged_line_on_nothing_counts(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    good = path.read_bytes()
    path.write_bytes(good + tail + good.splitlines(keepends=True)[1])

    state = read(path)
    Journal(path, state).close()

    assert len(state.shards[""]) == 2
    assert path.read_bytes() == good


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_journal_of_another_version_is_refused_until_it_is_removed_or_overwritten(
    tmp_path: Path, overwrite: bool
) -> None:
    path = tmp_path / "out" / ".packing" / "journal.jsonl"
    (path.parent / "shards").mkdir(parents=True)
    (path.parent / "shards" / "shard-00000.lmdb").touch()
    path.write_text(json.dumps({"journal": 3, "plan": PLAN}) + "\n")
    make_sources(tmp_path)

    with pytest.raises(PackError, check=At("out")):
        pack_images(tmp_path / "photos", tmp_path / "out")

    if not overwrite:
        shutil.rmtree(path.parent)
    assert pack_images(tmp_path / "photos", tmp_path / "out", overwrite=overwrite).samples
    assert not path.parent.exists()


def test_differences_of_plans_are_named() -> None:
    big = list(range(1000))
    old = flatten_plan({"options": {"quality": 90, "fit": None}, "files": big, "same": 1})
    new = flatten_plan({"options": {"quality": 80}, "files": big[1:], "same": 1, "more": {}})

    found = differences(old, new)

    assert found[0] == "quality was 90, is now 80"
    assert found[1] == "fit was null, is now not there"
    assert found[2] == "files differs"
    assert found[3] == "more was not there, is now {}"
    assert len(found) == 4


def test_what_differs_alike_in_several_splits_is_named_once_and_long_values_are_not_shown() -> (
    None
):
    def plan(codec: str) -> dict[str, str]:
        recipe = {
            "options": {"codec": codec},
            "schemas": [{"codec": codec, "classes": ["a"] * 20}],
        }
        return flatten_plan({"recipe": {"train": recipe, "val": recipe}})

    found = differences(plan("jpeg"), plan("png"))

    assert found == [
        'codec was "jpeg", is now "png"',
        "schemas differs",
    ]


def test_the_lock_is_exclusive_and_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / ".packing" / "lock"
    path.parent.mkdir()
    fd = lock(path)

    assert lock_if_free(path) is None
    os.close(fd)

    os.close(lock(path))


def test_a_lock_that_cannot_be_taken_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / ".packing" / "lock"
    path.parent.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock(path)

    assert len(os.listdir("/proc/self/fd")) == before
    os.close(lock(path))


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / ".packing" / "lock"
    path.parent.mkdir()
    first = lock(path)
    path.unlink()  # what an owner does when it finishes

    second = lock(path)
    os.close(first)

    assert lock_if_free(path) is None
    os.close(second)


def test_a_lock_that_is_removed_while_it_is_taken_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / ".packing" / "lock", fcntl.flock
    removed: list[Path] = []

    def removing(fd: int, operation: int) -> None:
        if not removed:  # its owner finishes between our open and our lock
            removed.append(path)
            path.unlink()
            path.parent.rmdir()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    assert lock_if_free(path) is None

    os.close(lock(path))


def test_a_process_that_dies_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / ".packing" / "lock"
    path.parent.mkdir()
    code = (
        "import os, signal, sys; from pathlib import Path; from packdata.claimed import lock_if_free;"
        "fd = lock_if_free(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)

    assert done.returncode == -9
    assert path.exists()
    os.close(lock(path))


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre is without -o flock, and some network drives."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    make_sources(tmp_path)
    monkeypatch.setattr("fcntl.flock", refuse)

    with pytest.raises(PackError, check=At("out")):
        pack_images(tmp_path / "photos", tmp_path / "out")
