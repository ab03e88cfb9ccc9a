import fcntl
import gc
import mmap
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import RAMDataset, ShardDataset, augment
from loaders.data.columns import FixedColumn
from loaders.datasets.memory import loading, memfile, shared
from loaders.datasets.memory.loading import ColumnToLoad
from loaders.datasets.memory.memfile import Descriptor, fill_memory_file, open_memory_file
from loaders.errors import CacheError, ChecksumError, LoadersError
from loaders.remote.folder import VERSION
from loaders.schema import Array, Field, Image, Label, Text
from tests.datasets.sharing import Rank, digest, memfds
from tests.packdata.packing import FIELDS, pack, sample
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")
NUM = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("packed") / "a", NUM)


@pytest.fixture(autouse=True)
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the files that list who has a copy; no test leaves a copy, or a file in ``/dev/shm``."""
    monkeypatch.setenv("LOADERS_CACHE", str(tmp_path / "cache"))
    files = set(os.listdir("/dev/shm"))
    gc.collect()
    yield tmp_path / "cache" / VERSION / "ram"
    gc.collect()
    assert memfds() == 0
    assert {f for f in set(os.listdir("/dev/shm")) - files if "loaders" in f} == set()


def packed(
    folder: Path, num_samples: int, fields: Sequence[str] = tuple(FIELDS), **options: Any
) -> Path:
    """Pack samples that nobody else has: another run of these tests would share its copy with us."""
    run = uuid.uuid4().hex
    samples = [sample(i) | {"key": f"{i}-{run}"} for i in range(num_samples)]
    return pack(folder, {name: FIELDS[name] for name in [*fields]}, samples, **options)


def shared_copy(folder: Path) -> RAMDataset:
    return RAMDataset(folder, shared=True, progress=False)


def damaged(folder: Path) -> Path:
    packed(folder, 4, ["pixels", "key"], format="parquet")
    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return folder


def holders(listed: Path) -> list[int]:
    """Return the processes that the only file lists."""
    (path,) = listed.iterdir()
    return [int(line.split()[0]) for line in path.read_text().splitlines()]


# -- between processes ----------------------------------------------------------------------------


def test_four_processes_have_one_copy_and_leave_nothing_when_killed(
    tmp_path: Path, listed: Path
) -> None:
    """And serve what a plain RAMDataset does, to the bit."""
    nbytes = 32 << 20
    fields = {"x": Array(dtype="uint8", dims=(nbytes // 16,)), "label": Label()}
    rng = np.random.default_rng(uuid.uuid4().int)  # as in packed()
    samples = [{"x": rng.integers(0, 256, nbytes // 16, np.uint8), "label": i} for i in range(16)]
    folder = pack(tmp_path / "a", fields, samples, format="parquet")
    files = {place: set(os.listdir(place)) for place in ("/dev/shm", "/tmp")}

    ranks = [Rank(folder) for _ in range(4)]
    assert [rank.open() for rank in ranks] == ["loaded"] * 4
    assert set(holders(listed)) == {rank.process.pid for rank in ranks}
    assert {rank.ask("digest") for rank in ranks} == {digest(RAMDataset(folder, progress=False))}
    shares = [rank.ask("pss") for rank in ranks]

    assert nbytes <= sum(share["Pss_Shmem"] for share in shares) < 1.1 * nbytes
    assert all(share["growth"] < nbytes / 2 for share in shares)
    for rank in ranks:
        rank.kill()
    (left,) = listed.iterdir()
    assert left.stat().st_size < 1000
    for place, before in files.items():
        names = set(os.listdir(place)) - before
        assert not [f for f in names if "loaders" in f and "bench" not in f]  # of tests beside it


def test_where_the_one_that_loads_dies_the_next_one_loads(folder: Path) -> None:
    first = Rank(folder, paused=True)
    assert first.hear() == "loading"
    others = [Rank(folder) for _ in range(3)]
    assert [other.hear() for other in others] == ["waiting"] * 3

    first.kill()

    assert [other.hear() for other in others] == ["loaded"] * 3
    assert len({other.ask("digest") for other in others}) == 1
    for other in others:
        other.kill()


def test_processes_that_are_killed_in_any_order_while_others_join_hold_up_nobody(
    folder: Path,
) -> None:
    rng = random.Random(0)
    expected = digest(RAMDataset(folder, progress=False))
    ranks = [Rank(folder) for _ in range(3)]
    for _ in range(8):
        ranks += [Rank(folder) for _ in range(rng.randrange(1, 3))]
        time.sleep(rng.random() / 10)
        ranks.pop(rng.randrange(len(ranks))).kill()

    for rank in ranks:
        assert rank.open() == "loaded"
        assert rank.ask("digest") == expected
        rank.kill()


def test_where_one_fails_to_load_the_next_one_meets_the_same_error(tmp_path: Path) -> None:
    folder = damaged(tmp_path / "a")
    first = Rank(folder, paused=True)
    assert first.hear() == "loading"
    other = Rank(folder)
    assert other.hear() == "waiting"

    kind, text, _ = first.ask("go on")

    assert kind == "ChecksumError"
    assert other.hear()[:2] == ("ChecksumError", text)


def test_the_copy_outlives_the_process_that_loaded_it(tmp_path: Path) -> None:
    """Late comers map what any process has: there is nothing left to load it from."""
    folder = packed(tmp_path / "a", NUM)
    expected = digest(RAMDataset(folder, progress=False))
    ranks = [Rank(folder)]
    assert ranks[0].hear() == "loaded"
    for _ in range(3):
        ranks.append(Rank(folder))
        assert ranks[-1].hear() == "loaded"
        for path in folder.glob("shard-*"):
            path.unlink()
        ranks.pop(0).kill()

    late = Rank(folder)

    assert late.hear() == "loaded"
    assert late.ask("digest") == ranks[0].ask("digest") == expected
    for rank in [*ranks, late]:
        rank.kill()


def test_ctrl_c_while_waiting_leaves_nothing(folder: Path) -> None:
    first = Rank(folder, paused=True)
    assert first.hear() == "loading"
    other = Rank(folder)
    assert other.hear() == "waiting"

    other.kill(signal.SIGINT)

    kind, _, num_open = other.hear()
    assert (kind, num_open) == ("KeyboardInterrupt", 0)
    assert first.ask("go on") == "loaded"
    first.kill()


def test_a_process_that_is_stopped_while_it_loads_is_an_error_to_those_who_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "SILENCE_S", 0.2)
    first = Rank(folder, paused=True)
    assert first.hear() == "loading"
    assert first.process.pid is not None
    os.kill(first.process.pid, signal.SIGSTOP)

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)

    os.kill(first.process.pid, signal.SIGCONT)
    assert first.ask("go on") == "loaded"
    first.kill()


def test_a_copy_that_a_process_has_is_opened_while_its_thread_waits_for_another_one(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held, another = shared_copy(folder), packed(tmp_path / "another", 4)
    first = Rank(another, paused=True)
    assert first.hear() == "loading"
    with caplog.at_level("INFO", shared.logger.name), ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(shared_copy, another)
        wait_until(lambda: bool(caplog.records))
        try:
            same = threads.submit(shared_copy, folder).result(timeout=30)
            assert not waiting.done()
        finally:
            first.kill()  # the one that waits loads it

        assert same.fingerprint == held.fingerprint
        assert len(waiting.result()) == 4
    del held, same, waiting


def test_a_fork_of_a_process_that_died_while_it_loaded_holds_up_nobody(folder: Path) -> None:
    first = Rank(folder, paused=True, forks=True)
    assert first.hear() == "loading"
    forked = first.hear()
    other = Rank(folder)
    assert other.hear() == "waiting"

    first.kill()

    assert other.hear() == "loaded"
    os.kill(forked, signal.SIGKILL)
    other.kill()


def test_threads_that_open_it_at_one_time_load_it_once(folder: Path, listed: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        datasets = [*threads.map(shared_copy, [folder] * 4)]

    assert memfds() == 1
    assert holders(listed) == [os.getpid()]
    del datasets


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "1 2",
        "x y z\n\0\xff",
        "{ours} 0 1\n",
        "{ours} {other} {inode}\n",
        "{ours} 99999 {inode}\n",
        "4194304 3 {inode}\n{ours} {other} 1",
    ],
)
def test_lines_of_what_is_gone_are_struck(folder: Path, listed: Path, lines: str) -> None:
    """Numbers of processes and descriptors come again: here for the memory of another dataset."""
    plan = ColumnToLoad(Label(), np.full(4, 8), lambda column, part: None)
    other = fill_memory_file("another", {"label": plan}, False, "")
    ours, fd, inode = other.place
    RAMDataset(folder, shared=True, progress=False)
    (path,) = listed.iterdir()
    path.write_text(lines.format(ours=ours, other=fd, inode=inode))

    dataset = RAMDataset(folder, shared=True, progress=False)

    assert digest(dataset) == digest(ShardDataset(folder))
    assert holders(listed)[-1] == os.getpid()
    assert "99999" not in path.read_text()
    assert "4194304" not in path.read_text()


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(
    folder: Path, listed: Path
) -> None:
    listed.parent.mkdir(parents=True)
    (listed.parent.parent / "CACHEDIR.TAG").touch()
    listed.write_text("no folder")

    with pytest.raises(CacheError, match="ram"):
        RAMDataset(folder, shared=True, progress=False)


def unshared(*options: str) -> list[str]:
    """Return a command that runs another in namespaces of its own; skip where that is forbidden."""
    command = ["unshare", *options]
    try:
        can = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        can = False
    if not can:
        pytest.skip("namespaces cannot be made here")
    return command


OPENED = """
import sys
from loaders import RAMDataset
from tests.datasets.sharing import digest
print(digest(RAMDataset(sys.argv[1], shared=True, progress=False)))
"""


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (["--pid", "--fork", "--mount-proc"], ""),
        (["--mount"], "umount -l /dev/shm; rmdir /dev/shm 2>/dev/null;"),
    ],
    ids=["another PID namespace", "no /dev/shm"],
)
def test_containers_have_copies_of_their_own_and_need_no_shared_memory(
    folder: Path, listed: Path, options: list[str], first: str
) -> None:
    command = [
        *unshared(*options),
        "sh",
        "-c",
        f"{first} exec {sys.executable} -c '{OPENED}' {folder}",
    ]
    dataset = RAMDataset(folder, shared=True, progress=False)

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.split() == [digest(dataset)], done.stderr
    assert len(list(listed.iterdir())) == (2 if "--pid" in options else 1)


# -- memory files ---------------------------------------------------------------------------------


def test_a_failure_to_load_leaves_no_memory(tmp_path: Path) -> None:
    folder = damaged(tmp_path / "a")

    with pytest.raises(ChecksumError):
        RAMDataset(folder, shared=True, progress=False)

    assert memfds() == 0


def test_a_fork_while_loading_does_not_prevent_sealing() -> None:
    """A child would have the memory writable too, for as long as it lives."""
    ours, theirs = os.pipe()
    children = []

    def fill(column: Any, part: Any) -> None:
        children.append(os.fork())
        if children[-1] == 0:
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
        column.data[:] = 3

    try:
        plan = ColumnToLoad(Label(), np.full(4, 8), fill)
        file = fill_memory_file("any", {"label": plan}, False, "")
        assert file.columns["label"].row(3).tolist() == [3] * 8
    finally:
        os.close(theirs)
        os.close(ours)
        assert os.waitpid(children[0], 0)[1] == 0


def test_seals_hold(folder: Path) -> None:
    dataset = RAMDataset(folder, shared=True, progress=False)
    (file,) = shared._held.values()
    _, fd, _ = file.place

    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert not os.get_inheritable(fd)  # else programs that are started would hold it
    with pytest.raises(ValueError):
        dataset.store.shard(0).columns["image"].row(0)[0] = 1


def test_what_is_not_sealed_is_refused() -> None:
    fd = os.memfd_create("loaders", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, 4096)

    with pytest.raises(LoadersError):
        open_memory_file(Descriptor(os.getpid(), fd, os.fstat(fd).st_ino))

    os.close(fd)


# -- in one process -------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [False, True])
def test_it_equals_the_shards_and_ends_with_its_last_view(folder: Path, decode: bool) -> None:
    settings: dict[str, Any] = {"fields": [*FIELDS], "augment": [augment.RandomResizedCrop(9)]}
    expected = digest(ShardDataset(folder, **settings))

    dataset = RAMDataset(folder, shared=True, decode=decode, progress=False, **settings)
    again = RAMDataset(folder, shared=True, decode=decode, progress=False, **settings)

    assert (
        digest(dataset) == digest(again) == digest(pickle.loads(pickle.dumps(again))) == expected
    )
    assert dataset.fingerprint == ShardDataset(folder).fingerprint
    assert dataset.nbytes == RAMDataset(folder, decode=decode, progress=False, **settings).nbytes
    assert memfds() == 1
    view = dataset[2:4]
    del dataset, again
    assert memfds() == 1
    del view
    assert memfds() == 0


def test_what_decides_the_bytes_makes_another_copy(folder: Path) -> None:
    make: dict[str, Any] = {"shared": True, "progress": False}
    shards = ShardDataset(folder)

    copies = [
        RAMDataset(shards, **make),
        RAMDataset(shards, decode=True, **make),
        RAMDataset(shards[1:], **make),
        RAMDataset(shards, fields=["label"], **make),
    ]
    same = RAMDataset(shards, augment=[augment.RandomResizedCrop(9)], **make)

    assert memfds() == len(copies)
    assert [len(copy) for copy in copies] == [NUM, NUM, NUM - 1, NUM]
    assert same[0].image.shape[1:] == (9, 9)


def test_pixels_at_another_scale_are_another_copy(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"image": Image(codec="dct", size=(32, 32)), "key": Text()}
    row = {"image": np.zeros((32, 32, 3), np.uint8), "key": uuid.uuid4().hex}
    shards = ShardDataset(pack(tmp_path / "a", fields, [row]))

    copies = [
        RAMDataset(shards, scale=scale, decode=True, shared=True, progress=False)
        for scale in (1, 0.5)
    ]

    assert [copy[0].image.shape for copy in copies] == [(3, 32, 32), (3, 16, 16)]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_processes_read_the_copy(folder: Path, method: str) -> None:
    dataset = RAMDataset(folder, shared=True, progress=False)
    options = {"num_workers": 2, "backend": "process", "multiprocessing_context": method}

    assert digest(dataset, **options) == digest(ShardDataset(folder), num_workers=0)


def test_the_plan_is_logged_and_what_does_not_fit_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="loaders"):
        dataset = RAMDataset(folder, shared=True, progress=False)
    assert "GB in one copy for this machine; " in caplog.text
    del dataset
    monkeypatch.setattr(loading, "available_memory", lambda: 1000)

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)


def test_a_pickle_without_its_processes_says_so(folder: Path) -> None:
    pickled = pickle.dumps(RAMDataset(folder, shared=True, progress=False))

    with pytest.raises(LoadersError):
        pickle.loads(pickled)


def test_other_systems_are_told_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)


def test_memory_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all at once nothing is heard for minutes, and Ctrl-C waits as long."""
    taken: list[int] = []
    monkeypatch.setattr(memfile, "_PIECE_BYTES", 4 << 20)
    monkeypatch.setattr(memfile, "collapse", lambda part: taken.append(len(part)))
    plan = loading.copy_plan(FixedColumn(np.ones((9, 1 << 20), np.uint8)))

    file = fill_memory_file("any", {"x": plan}, False, "")

    assert taken[:-1] == [4 << 20] * 2
    assert sum(taken) >= 9 << 20
    assert file.columns["x"].row(8).all()
