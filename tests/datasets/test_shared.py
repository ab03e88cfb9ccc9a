import contextlib
import errno
import fcntl
import gc
import json
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from loaders import RAMDataset, ShardDataset, augment
from loaders.datasets.memory import arena as arenas
from loaders.datasets.memory import keeper as keeping
from loaders.datasets.memory import loading, shared
from loaders.datasets.memory.arena import Arena, open_sealed
from loaders.datasets.memory.keeper import Keeper, MeetingPlace
from loaders.datasets.memory.loading import ColumnToLoad
from loaders.errors import ChecksumError, LoadersError
from loaders.schema import Array, Label
from tests.datasets.sharing import Rank, digest, keepers, names
from tests.packdata.packing import FIELDS, pack, sample
from tests.refusals import At

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")
NUM = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("packed") / "a", NUM)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves a thread, or a file."""
    files = set(os.listdir("/dev/shm"))
    yield
    assert keepers() == []
    assert {f for f in set(os.listdir("/dev/shm")) - files if "loaders" in f} == set()


def packed(
    folder: Path, num_samples: int, fields: Sequence[str] = tuple(FIELDS), **options: Any
) -> Path:
    """Pack samples that nobody else has: another run of these tests would share its copy with us."""
    run = uuid.uuid4().hex
    samples = [sample(i) | {"key": f"{i}-{run}"} for i in range(num_samples)]
    return pack(folder, {name: FIELDS[name] for name in [*fields]}, samples, **options)


def _until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def memfds() -> int:
    """Return how many descriptors of copies are open in this process."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("memfd:loaders" in link for link in links)


def name_of(folder: Path, **settings: Any) -> MeetingPlace:
    return MeetingPlace(shared._identity(ShardDataset(folder, **settings), decode=False))


# -- between processes ----------------------------------------------------------------------------


def test_four_processes_have_one_copy_and_leave_nothing_when_killed(tmp_path: Path) -> None:
    """And serve what a plain RAMDataset does, to the bit."""
    nbytes = 32 << 20
    fields = {"x": Array(dtype="uint8", dims=(nbytes // 16,)), "label": Label()}
    rng = np.random.default_rng(uuid.uuid4().int)  # as in packed()
    samples = [{"x": rng.integers(0, 256, nbytes // 16, np.uint8), "label": i} for i in range(16)]
    folder = pack(tmp_path / "a", fields, samples, format="parquet")
    files = {place: set(os.listdir(place)) for place in ("/dev/shm", "/tmp")}
    identity = name_of(folder).identity

    ranks = [Rank(folder) for _ in range(4)]
    assert [rank.open() for rank in ranks] == ["loaded"] * 4
    assert len(names(identity)) == 1
    assert {rank.ask("digest") for rank in ranks} == {digest(RAMDataset(folder, progress=False))}
    shares = [rank.ask("pss") for rank in ranks]

    assert nbytes <= sum(share["Pss_Shmem"] for share in shares) < 1.1 * nbytes
    assert all(share["growth"] < nbytes / 2 for share in shares)
    for rank in ranks:
        rank.kill()
    assert not names(identity)
    for place, listed in files.items():
        left = set(os.listdir(place)) - listed
        assert not [f for f in left if "loaders" in f and "bench" not in f]  # of tests beside it


def test_one_that_dies_while_loading_is_an_error_to_those_who_wait(folder: Path) -> None:
    first = Rank(folder, paused=True)
    assert first.hear() == "loading"
    others = [Rank(folder) for _ in range(2)]
    assert [other.hear() for other in others] == ["waiting"] * 2

    first.kill()
    began = time.monotonic()

    for other in others:
        kind, text, threads = other.hear()
        assert kind == "LoadersError"
        assert f"process {first.process.pid}, which was to load the shared copy, died" in text
        assert threads == []
    assert time.monotonic() - began < 10
    again = Rank(folder)
    assert again.hear() == "loaded"  # nothing is in the way of a new start
    again.kill()


def test_one_that_fails_to_load_tells_those_who_wait(tmp_path: Path) -> None:
    folder = packed(tmp_path / "a", 4, ["pixels", "key"], format="parquet")
    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    first = Rank(folder, paused=True)
    assert first.hear() == "loading"
    other = Rank(folder)
    assert other.hear() == "waiting"

    kind, text, _ = first.ask("go on")

    assert kind == "ChecksumError"
    assert other.hear()[1].endswith(f"failed: ChecksumError: {text}")


def test_the_copy_outlives_the_process_that_loaded_it(tmp_path: Path) -> None:
    """Late comers attach to whoever has it: there is nothing left to load it from."""
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
        _until(lambda: names(name_of(folder).identity))

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

    kind, _, threads = other.hear()
    assert (kind, threads) == ("KeyboardInterrupt", [])
    assert first.ask("go on") == "loaded"
    first.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
def test_users_have_their_own_copies_unless_they_say_otherwise() -> None:
    with tempfile.TemporaryDirectory() as shown:  # pytest's own are for one user
        folder = packed(Path(shown) / "a", NUM)
        for path in [folder.parent, folder, *folder.iterdir()]:
            path.chmod(0o755)

        for who, number in ((True, 2), ("all_users", 1)):
            ranks = [Rank(folder, user=user, shared=who) for user in (None, 12345)]
            assert [rank.open() for rank in ranks] == ["loaded"] * 2
            assert len(names(name_of(folder).identity)) == number
            for rank in ranks:
                rank.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
def test_another_user_under_our_name_is_not_trusted(folder: Path) -> None:
    bind = (
        "import os, socket, sys; os.setuid(12345)\n"
        "listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "listener.bind(chr(0) + sys.argv[1]); listener.listen()\n"
        "print('bound', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", bind, name_of(folder).address[1:]]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "bound\n"

        with pytest.raises(LoadersError, match=str(other.pid)):
            RAMDataset(folder, shared=True, progress=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
def test_strangers_who_hang_up_do_not_end_the_sharing(folder: Path) -> None:
    name = name_of(folder)
    knock = (
        "import os, socket, sys; os.setuid(12345)\n"
        "for _ in range(100):\n"
        "    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:\n"
        "        client.connect(chr(0) + sys.argv[1])\n"
    )
    dataset = RAMDataset(folder, shared=True, progress=False)

    subprocess.run([sys.executable, "-c", knock, name.address[1:]], check=True, timeout=60)

    assert len(names(name.identity)) == 1  # it goes on
    assert keepers() == ["loaders-keeper"]
    del dataset


def test_a_descriptor_that_is_received_is_not_inherited() -> None:
    """A program that a rank starts would keep the dataset's memory."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, tempfile.TemporaryFile() as file:
        socket.send_fds(theirs, [b'{"state": "ready"}'], [file.fileno()])

        _, fd = keeping.receive(ours)

        assert fd is not None
        assert not os.get_inheritable(fd)
        os.close(fd)


# -- what is received is checked ------------------------------------------------------------------


def _offer(name: MeetingPlace, fd: int | None, message: dict[str, Any]) -> threading.Thread:
    """Offer something under a name, to one process."""
    listener = name.bind()
    assert listener is not None

    def serve() -> None:
        with listener, listener.accept()[0] as client:
            fds = [] if fd is None else [fd]
            socket.send_fds(client, [json.dumps(message).encode()], fds)
            client.recv(1)

    listener.settimeout(30)  # should nobody come
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


READY = {"state": "ready", "pid": 1}


def _arena(identity: str) -> Arena:
    plan = ColumnToLoad(Label(), np.full(4, 8), lambda column, report: None)
    return Arena(identity, {"label": plan}, {"label": Label().to_json()})


def _half_sealed(arena: Arena) -> int:
    """Leave its bytes to be changed."""
    fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return arena.fd


def _damaged(arena: Arena) -> int:
    arena._bytes(40, 1)[:] ^= 1
    return arena.seal()


def _cut(arena: Arena) -> int:
    os.ftruncate(arena.fd, 4096)
    return arena.seal()


@pytest.mark.parametrize(
    "make",
    [
        lambda identity: _damaged(_arena(identity)),
        lambda identity: _arena(identity).fd,
        lambda identity: _half_sealed(_arena(identity)),
        lambda identity: os.memfd_create("x"),
        lambda identity: os.open("/dev/null", os.O_RDONLY),
        lambda identity: _arena("0" * 32).seal(),
        lambda identity: _cut(_arena(identity)),
    ],
    ids=["damaged", "unsealed", "half sealed", "unsealable", "no file", "another", "cut"],
)
def test_what_is_no_sealed_copy_of_this_dataset_is_refused(folder: Path, make: Any) -> None:
    name = name_of(folder)
    fd = make(name.identity)
    impostor = _offer(name, fd, READY)

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)

    impostor.join(60)
    os.close(fd)


def _forged(columns: dict[str, Any], data: bytes) -> int:
    """Return a sealed copy whose layout may say anything."""
    layout = json.dumps({"identity": "f" * 32, "meta": {}, "columns": columns}).encode()
    preamble = arenas._PREAMBLE.pack(arenas._MAGIC, len(layout), xxhash.xxh3_128_digest(layout))
    head = preamble + layout
    fd = os.memfd_create("loaders", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, head.ljust(arenas._whole_pages(len(head)), b"\0") + data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, arenas._seals())
    return fd


@pytest.mark.parametrize("first", [-8, 1, 1 << 40])
def test_arrays_are_looked_for_in_the_copy_alone(first: int) -> None:
    columns = {"x": {"rows": 1, "row_nbytes": 8, "arrays": [[8, first]]}}
    fd = _forged(columns, bytes(8))

    with pytest.raises(LoadersError, match="'x'"):
        open_sealed(fd, "f" * 32)

    os.close(fd)


@pytest.mark.parametrize(
    ("starts", "lengths", "is_inside"),
    [
        ([0, 90], [10, 10], True),
        ([0, 90], [10, 11], False),
        ([0, 101], [10, 0], False),
        ([-1, 0], [10, 10], False),
        ([20, 0], [-1, 10], False),
        ([0, 1 << 62], [10, 1 << 62], False),
    ],
)
def test_records_are_looked_for_in_their_column_alone(
    starts: list[int], lengths: list[int], is_inside: bool
) -> None:
    arrays = [[100, 0], [16, 104], [16, 120]]
    columns = {"x": {"rows": 2, "row_nbytes": None, "arrays": arrays}}
    fd = _forged(columns, bytes(104) + np.array([starts, lengths], np.int64).tobytes())

    if is_inside:
        assert len(open_sealed(fd, "f" * 32).columns["x"].row(1)) == 10
    else:
        with pytest.raises(LoadersError):
            open_sealed(fd, "f" * 32)

    os.close(fd)


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_rows_that_the_layout_does_not_count_are_refused(num_rows: int) -> None:
    """They would be read though nobody has looked where they lie."""
    columns = {"x": {"rows": num_rows, "row_nbytes": None, "arrays": [[8, 0], [16, 8], [16, 24]]}}
    fd = _forged(columns, bytes(8) + np.array([[0, 1 << 40], [8, 8]], np.int64).tobytes())

    with pytest.raises(LoadersError):
        open_sealed(fd, "f" * 32)

    os.close(fd)


def test_a_copy_that_is_shorter_than_its_header_is_refused() -> None:
    fd = os.memfd_create("loaders", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, b"loaders1")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, arenas._seals())

    with pytest.raises(LoadersError):
        open_sealed(fd, "f" * 32)

    os.close(fd)


def test_silence_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "SILENCE_S", 0.2)
    loading_ = {"state": "loading", "done": 1, "total": 2, "pid": 1}
    impostor = _offer(name_of(folder), None, loading_)

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)

    impostor.join(60)


@pytest.mark.parametrize(
    "data",
    [
        b'{"state": "rea',
        b"[]",
        b"\xff",
        b"[" * 9000,
        b"{}",
        b'{"status": "ready"}',
        b'{"state": ["ready"]}',
        b'{"state": "loading"}',
        b'{"state": "loading", "done": 1, "total": "2"}',
        b'{"state": "failed", "pid": 1}',
        b'{"state": "failed", "why": 3}',
    ],
)
def test_what_is_no_message_is_an_error_of_ours(data: bytes) -> None:
    """And what came with it is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before, fd = memfds(), os.memfd_create("loaders")
    socket.send_fds(theirs, [data], [fd])
    os.close(fd)

    with ours, theirs, pytest.raises(LoadersError):
        keeping.receive(ours)

    assert memfds() == before


def test_a_copy_that_is_ready_and_does_not_come_is_an_error(folder: Path) -> None:
    impostor = _offer(name_of(folder), None, READY)

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)

    impostor.join(60)


@pytest.mark.parametrize("why", ["plain", "ü" * 4000, "\x01" * 9000, "\udcff" * 4000, "漢" * 9000])
def test_a_reason_of_any_length_and_script_arrives(why: str) -> None:
    name = MeetingPlace(uuid.uuid4().hex)
    keeper = Keeper(name, listener=name.bind())
    connection = name.connect()
    assert connection is not None
    with connection:
        assert keeping.receive(connection)[0] == {"state": "loading", "done": 0, "total": 0} | {
            "pid": os.getpid()
        }

        keeper.fail(why)

        message, _ = keeping.receive(connection)
    assert message is not None
    assert message["state"] == "failed"
    assert message["why"]
    assert why.encode(errors="backslashreplace").startswith(message["why"].encode())


def test_one_who_hangs_up_without_a_word_is_an_error_in_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not asked again without a pause."""
    monkeypatch.setattr(shared, "SILENCE_S", 0.3)
    listener, hung_up = name_of(folder).bind(), 0
    assert listener is not None
    listener.settimeout(0.1)
    done, end = threading.Event(), time.monotonic() + 5

    def hang_up() -> None:
        nonlocal hung_up
        with listener:
            while not done.is_set() and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    listener.accept()[0].close()
                    hung_up += 1

    impostor = threading.Thread(target=hang_up, daemon=True)
    impostor.start()

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)

    done.set()
    impostor.join(60)
    assert 1 <= hung_up <= 40


def test_a_copy_that_cannot_be_opened_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas, "_MAX_LAYOUT_BYTES", 1)
    gc.collect()  # what other tests left
    before = memfds()

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)

    gc.collect()
    assert memfds() <= before


def test_a_failure_to_load_leaves_no_memory(tmp_path: Path) -> None:
    folder = packed(tmp_path / "a", 4, ["pixels"], format="parquet")
    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    gc.collect()  # what other tests left
    before = memfds()

    with pytest.raises(ChecksumError):
        RAMDataset(folder, shared=True, progress=False)

    assert memfds() <= before


def test_a_fork_while_loading_does_not_prevent_sealing() -> None:
    """A child would have the memory writable too, for as long as it lives."""
    identity = "f" * 32
    arena = _arena(identity)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)

    try:
        fd = arena.seal()
        assert len(open_sealed(fd, identity).columns["label"]) == 4
        os.close(fd)
    finally:
        os.close(theirs)
        os.close(ours)
        assert os.waitpid(child, 0)[1] == 0


def test_seals_hold(folder: Path) -> None:
    dataset = RAMDataset(folder, shared=True, progress=False)
    (keeper,) = [k for k in keeping._keepers if k._thread.is_alive() and k.fd is not None]
    fd = keeper.fd
    assert fd is not None

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
    assert len(keepers()) == 1
    view = dataset[2:4]
    del dataset, again
    assert len(keepers()) == 1
    del view
    assert keepers() == []


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

    assert len(keepers()) == len(copies)
    assert [len(copy) for copy in copies] == [NUM, NUM, NUM - 1, NUM]
    assert same[0].image.shape[1:] == (9, 9)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_processes_read_the_copy(folder: Path, method: str) -> None:
    dataset = RAMDataset(folder, shared=True, progress=False)
    options = {"num_workers": 2, "backend": "process", "multiprocessing_context": method}

    assert digest(dataset, **options) == digest(ShardDataset(folder), num_workers=0)


def test_a_forked_child_does_not_keep_the_name(folder: Path) -> None:
    """Else late comers would wait for a process that never answers."""
    dataset = RAMDataset(folder, shared=True, progress=False)
    identity = name_of(folder).identity
    assert names(identity)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        ok = os.read(ours, 1) == b"" and torch.equal(dataset[3].image, dataset[3].image)
        os._exit(0 if ok else 1)

    expected = dataset[3]
    del dataset

    _until(lambda: not names(identity))  # the child lets go of it when it comes to run
    assert torch.equal(RAMDataset(folder, progress=False)[3].image, expected.image)
    os.close(theirs)
    os.close(ours)
    assert os.waitpid(child, 0)[1] == 0


def test_the_plan_is_logged_and_what_does_not_fit_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with caplog.at_level("INFO", logger="loaders"):
        dataset = RAMDataset(folder, shared=True, progress=False)
    assert "GB in one copy for this machine's 8 ranks and their workers; " in caplog.text
    del dataset
    monkeypatch.setattr(loading, "available_memory", lambda: 1000)

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)


def test_a_pickle_without_its_processes_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = pickle.dumps(RAMDataset(folder, shared=True, progress=False))
    monkeypatch.setattr(shared, "ATTACH_S", 0.05)

    with pytest.raises(LoadersError):
        pickle.loads(pickled)


def test_other_systems_are_told_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(LoadersError):
        RAMDataset(folder, shared=True, progress=False)


def test_a_keeper_that_cannot_begin_lets_go_of_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = MeetingPlace(uuid.uuid4().hex)
    listener = name.bind()
    ours, theirs = socket.socketpair()
    fd = os.memfd_create("loaders")

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        Keeper(name, listener=listener, connection=ours, fd=fd)

    assert listener is not None
    assert (listener.fileno(), ours.fileno()) == (-1, -1)
    with pytest.raises(OSError, check=At(errno=errno.EBADF)):
        os.fstat(fd)
    theirs.close()


def test_huge_pages_are_asked_for_a_little_ahead_of_what_is_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All at once they would take long, without a word; behind what is filled they would have to be copied."""
    monkeypatch.setattr(arenas, "_PIECE_BYTES", 4 << 20)
    monkeypatch.setattr(arenas, "_AHEAD_BYTES", 2 << 20)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        arenas, "collapse", lambda array: seen.append((int(array.ctypes.data), len(array)))
    )
    plan = ColumnToLoad(Label(), np.full(2 << 20, 8), lambda column, report: None)
    arena = Arena("0" * 32, {"label": plan}, {})
    data = arena.columns["label"].data  # type: ignore[union-attr]
    first, nbytes = int(data.ctypes.data) - 4096, data.nbytes + 4096
    asked = []

    del data
    for _ in range(4):
        asked.append(sum(size for _, size in seen))
        arena.filled(4 << 20)

    assert asked == [4 << 20, 8 << 20, 12 << 20, 16 << 20]
    assert sum(size for _, size in seen) == nbytes
    assert [at for at, _ in seen] == [first + piece * (4 << 20) for piece in range(5)]
    os.close(arena.seal())
