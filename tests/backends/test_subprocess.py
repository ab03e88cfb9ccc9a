import gc
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, augment
from loaders.backends import subprocess as backend
from loaders.backends.maker import Chunk, Maker
from loaders.backends.messages import Turn
from loaders.errors import SampleError
from tests.packdata.packing import pack_samples
from tests.refusals import At
from tests.waiting import wait_until

NUM = 23
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM, format="parquet")


def dataset(folder: Path, **settings: Any) -> ShardDataset:
    fields = ["image", "label", "boxes", "key", "pixels", "sample_id"]
    return ShardDataset(folder, fields=fields, **settings)


def child_loader(data: Any, *args: Any, **settings: Any) -> DataLoader:
    given: dict[str, Any] = {"num_workers": 2, "backend": "subprocess"} | settings
    return DataLoader(data, *args, **given)


def pool_of(maker: Maker) -> backend.ChildPool:
    return backend.child_pool(None, maker, None)


def children() -> list[int]:
    """Return the child processes of loaders that this process has, but for those that ended."""
    gc.collect()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_child(pid)]


def is_child(pid: int) -> bool:
    with suppress(OSError):
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return int(parent) == os.getpid() and b"loaders.backends.child" in command
    return False


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


# -- the same batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_child_serves_all_epochs_as_threads_would(folder: Path, kept: bool) -> None:
    data = dataset(folder, augment=[augment.RandomResizedCrop(12)])
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
    plain = DataLoader(data, num_workers=0, **settings)
    loader = child_loader(data, persistent_workers=kept, **settings)
    pids, held = [], []

    for _ in range(3):
        held += list(zip(plain, loader, strict=True))
        pids += children()

    for one, other in held:  # batches that are kept are never overwritten
        assert_same(one, other)
    assert len(pids) == 3
    assert len(set(pids)) == 1
    del loader
    assert not children()


@pytest.mark.slow
def test_small_batches_in_groups_are_the_same(folder: Path) -> None:
    data = ShardDataset(folder, fields=["label", "score"])
    loader = child_loader(data, 2, shuffle=True)
    assert loader._maker().group_size > 1

    plain = list(DataLoader(data, 2, shuffle=True, num_workers=0))

    assert_same(list(loader), plain)


def with_pid(sample: Any) -> Any:
    return sample.sample_id, os.getpid()


def transposed(samples: Any) -> Any:
    return list(zip(*samples, strict=True))


@pytest.mark.slow
def test_a_collate_function_and_a_transform_run_in_the_child(folder: Path) -> None:
    data = dataset(folder, transform=with_pid)

    (ids, pids), *_ = child_loader(data, 6, collate_fn=transposed)

    assert [int(i) for i in ids] == list(range(6))
    assert set(pids).isdisjoint({os.getpid()})


class Squares(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index**2

    def __len__(self) -> int:
        return 10


@pytest.mark.slow
def test_the_epoch_of_a_foreign_sampler_reaches_the_child(folder: Path) -> None:
    data = dataset(folder, augment=[augment.RandomCrop(8)])
    order = list(range(10))
    data.set_epoch(4)

    assert_same(
        list(child_loader(data, 5, sampler=order)), list(DataLoader(data, 5, sampler=order))
    )


@pytest.mark.slow
def test_it_resumes_where_another_backend_stopped(folder: Path) -> None:
    data = dataset(folder)
    everything = [b.sample_id.tolist() for b in DataLoader(data, 4, shuffle=True, num_workers=0)]
    loader = child_loader(data, 4, shuffle=True)
    iterator = iter(loader)
    delivered = [next(iterator).sample_id.tolist() for _ in range(2)]
    state = loader.state_dict()

    other = DataLoader(data, 4, shuffle=True, num_workers=1, backend="thread")
    other.load_state_dict(state)

    assert delivered + [b.sample_id.tolist() for b in other] == everything


# -- slots --------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> ShardDataset:
    folder = pack_samples(tmp_path / "large", 64, fields=["pixels", "label"], per_shard=20)
    return ShardDataset(folder, fields=["pixels", "sample_id"])


@pytest.mark.slow
def test_slots_are_used_again(large: ShardDataset) -> None:
    loader = child_loader(large, 8, num_workers=1, sampler=[i % 64 for i in range(8000)])
    iterator = iter(loader)

    for _ in range(900):
        batch = next(iterator)
        del batch

    group_bytes = loader._maker().group_size * 8 * 40 * 48 * 3
    assert (
        0 < loader.stats().slot_bytes <= 6 * group_bytes
    )  # three in flight, one made, one handed over
    assert loader.stats().num_batches == 900


# -- errors ---------------------------------------------------------------------------------------------


def damaged(folder: Path, index: int) -> Path:
    path = pack_samples(folder, 12, format="parquet", per_shard=12)
    data = ShardDataset(path, fields=["image"])
    record = data.store.records("image", data.view.rows(np.array([index])))[0].tobytes()
    shard, _ = data.view.place(index)
    assert isinstance(shard, Path)
    content = shard.read_bytes()
    shard.write_bytes(content.replace(record, b"\x00" * len(record)))
    return path


@pytest.mark.slow
def test_a_bad_sample_is_named_with_its_type_and_place(tmp_path: Path) -> None:
    data = ShardDataset(damaged(tmp_path / "d", 7), fields=["image"], check="never")
    iterator = iter(child_loader(data, 3))
    next(iterator), next(iterator)

    with pytest.raises(
        SampleError, check=At("d/shard-00000.parquet", row=7, index=7, key="cat/007")
    ) as caught:
        next(iterator)

    assert caught.value.index == 7
    assert "in the loader's child process" in "".join(caught.value.__notes__).lower()
    assert len(next(iterator).image) == 3


class Odd(Dataset[Any]):
    """Its samples 2, 5 and 8 are trouble."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise _unpicklable_error()("two")
        return (lambda: index) if index == 5 else index

    def __len__(self) -> int:
        return 12


def _unpicklable_error() -> type[Exception]:
    class Local(Exception):  # pickle cannot find it by its name
        pass

    return Local


@pytest.mark.slow
def test_what_does_not_pickle_is_an_error_in_its_place() -> None:
    iterator = iter(child_loader(Odd(), 3, collate_fn=list))

    with pytest.raises(RuntimeError):
        next(iterator)
    with pytest.raises(Exception, match=r"(?i)pickle"):
        next(iterator)

    assert next(iterator) == [6, 7, 8]


class Sealed(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__notes__":
            raise AttributeError(f"{name} is not to be set")
        super().__setattr__(name, value)


class Seals(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        raise Sealed("closed")

    def __len__(self) -> int:
        return 2


@pytest.mark.slow
def test_an_error_that_takes_no_notes_arrives_as_text() -> None:
    with pytest.raises(RuntimeError) as caught:
        list(child_loader(Seals(), 1))

    assert "in __getitem__" in "".join(caught.value.__notes__)


@pytest.mark.slow
def test_one_small_batch_that_fails_leaves_its_neighbours(tmp_path: Path) -> None:
    path = pack_samples(tmp_path / "a", 12, format="parquet", per_shard=12)
    loader = child_loader(ShardDataset(path, fields=["score"]), 2, sampler=[0, 1, 99, 4, 2, 3])
    assert loader._maker().group_size > 2
    iterator = iter(loader)

    assert next(iterator).score.tolist() == [0, 0.25]
    with pytest.raises(IndexError):
        next(iterator)
    assert next(iterator).score.tolist() == [0.5, 0.75]


# -- death, hangs, early ends ------------------------------------------------------------------------------


class Waiting(Dataset[int]):
    """Waits in sample 2, until a file is there."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def __getitem__(self, index: int) -> int:
        if index == 2:
            wait_until(self.go.exists)
        return index

    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize("is_waiting", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_child_is_an_error_at_once(tmp_path: Path, is_waiting: bool) -> None:
    loader = child_loader(Waiting(tmp_path / "go"), 1, num_workers=1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    (pid,) = children()

    if is_waiting:
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    else:
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=str(pid)):
        next(iterator)

    assert time.monotonic() - began < 10
    for _ in range(3):
        with suppress(RuntimeError):
            assert next(iterator, None) is None
    assert loader.state_dict()["sampler"]["delivered"] == 2  # the rest was not served
    assert not children()


@pytest.mark.slow
def test_who_waits_is_told_that_another_thread_closed_the_iterator(tmp_path: Path) -> None:
    iterator: Any = iter(child_loader(Waiting(tmp_path / "go"), 1, num_workers=1, timeout=15))
    next(iterator), next(iterator)
    closing = threading.Timer(0.3, iterator.close)
    closing.start()
    began = time.monotonic()

    with pytest.raises(RuntimeError):
        next(iterator)

    assert time.monotonic() - began < 10
    closing.join(60)
    del iterator, closing  # the timer holds the iterator, which keeps the child
    assert not children()


@pytest.mark.slow
def test_timeout_and_stall_say_what_the_child_is_doing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    data = Waiting(tmp_path / "go")
    iterator: Any = iter(child_loader(data, 1, num_workers=1, timeout=0.2))
    next(iterator), next(iterator)
    with pytest.raises(RuntimeError):
        next(iterator)
    iterator.close()

    iterator = iter(child_loader(data, 1, num_workers=1, stall_warning_s=0.1))
    next(iterator), next(iterator)
    threading.Timer(0.5, data.go.touch).start()
    with caplog.at_level(logging.WARNING):
        assert next(iterator).tolist() == [2]

    assert "child process" in caplog.text
    assert "reading 1 batch of Waiting" in capfd.readouterr().err
    assert [b.tolist() for b in iterator] == [[3], [4], [5], [6], [7]]


@pytest.mark.slow
def test_leaving_in_the_middle_leaves_no_process(folder: Path) -> None:
    loader = child_loader(dataset(folder), 2)
    assert not children()
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        for _ in loader:
            break
        assert len(children()) == 1
    iterator: Any = iter(loader)
    next(iterator)
    assert len(children()) == 1
    iterator.close()
    iterator.close()

    del iterator, loader
    assert not children()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_child_that_cannot_understand_ends_with_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Or its parent would wait for it."""
    pool = pool_of(Maker(Squares(), list, 2, True, 1))
    pool.put(Chunk([[1, 2]]), 0)
    pool.child.send(Turn([], 0, []))  # which is for the trainer
    pool.put(Chunk([[3, 4]]), 0)

    with pytest.raises(RuntimeError):
        pool.take(20), pool.take(20)

    assert "Traceback" in capfd.readouterr().err


class Stops(Dataset[int]):
    """Stops its process in sample 2: there it hears neither the socket nor SIGTERM."""

    def __getitem__(self, index: int) -> int:
        if index == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return index

    def __len__(self) -> int:
        return 8


@pytest.mark.slow
def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_END_TIMEOUT_S", 0.2)
    iterator: Any = iter(child_loader(Stops(), 1, num_workers=1))
    next(iterator)
    (pid,) = children()
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")

    del iterator

    assert not children()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_closing_does_not_wait_though_another_process_holds_the_socket_open() -> None:
    iterator: Any = iter(child_loader(Squares(), 2))
    next(iterator)
    ours, theirs = os.pipe()
    other = os.fork()
    if other == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)

    began = time.monotonic()
    del iterator
    gc.collect()
    took_s = time.monotonic() - began

    os.close(theirs)
    os.close(ours)
    assert os.waitpid(other, 0)[1] == 0
    assert not children()
    assert took_s < 4  # a signal would come after 5


# -- a child that is kept ---------------------------------------------------------------------------


def kept_loader(data: Any, *args: Any, **settings: Any) -> DataLoader:
    return child_loader(data, *args, persistent_workers=True, **settings)


class Slow(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.05)
        return index

    def __len__(self) -> int:
        return 8


@pytest.mark.slow
@pytest.mark.parametrize("num_taken", [0, 1, 2])
def test_what_a_kept_child_owes_to_an_epoch_that_was_left_is_dropped(num_taken: int) -> None:
    loader = kept_loader(Slow(), 2, prefetch_factor=3)

    pids = []
    for _ in range(4):
        left: Any = iter(loader)
        taken = [next(left).tolist() for _ in range(num_taken)]
        assert taken == [[0, 1], [2, 3]][:num_taken]
        pids += children()
        del left
    whole = [batch.tolist() for batch in loader]

    assert whole == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert set(pids) == set(children())


@pytest.mark.slow
def test_slots_of_an_epoch_that_was_left_are_used_again(folder: Path) -> None:
    loader = kept_loader(ShardDataset(folder, fields=["pixels"]), 5, prefetch_factor=2)
    for _ in loader:
        pass
    most = 5 * loader._maker().group_size * 40 * 48 * 3 * 5

    for _ in range(20):
        for _ in loader:
            break

    assert loader.stats().slot_bytes <= most


@pytest.mark.slow
def test_who_asks_an_iterator_that_ended_takes_nothing_from_the_next_epoch(folder: Path) -> None:
    loader = kept_loader(dataset(folder), 5)
    ended = iter(loader)
    for _ in ended:
        pass
    closed: Any = iter(loader)
    closed.close()
    count = 0

    for _ in loader:
        count += 1
        assert next(ended, None) is None
        with pytest.raises((RuntimeError, StopIteration)):
            next(closed)

    assert count == len(loader)


@pytest.mark.slow
def test_after_the_death_of_a_kept_child_the_next_epoch_has_another(folder: Path) -> None:
    loader = kept_loader(dataset(folder), 5)
    expected = list(loader)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    # Until all of its threads have ended it can be a zombie that is not yet dead.
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    wait_until(lambda: os.waitid(os.P_PID, pid, ended) is not None)

    assert_same(list(loader), expected)
    (pid,) = children()
    iterator = iter(loader)
    next(iterator)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError):
        list(iterator)

    assert_same(list(loader), expected)


@pytest.mark.slow
def test_samples_are_replaced_and_counted_in_every_epoch(tmp_path: Path) -> None:
    path = damaged(tmp_path / "d", 7)
    data = ShardDataset(path, fields=["image"], check="never", on_error="replace")
    loader = kept_loader(data, 3)

    for num_epochs in (1, 2, 3):
        list(loader)
        assert loader.stats().num_replaced == num_epochs


@pytest.mark.slow
def test_a_kept_child_verifies_in_its_first_epoch_only(tmp_path: Path) -> None:
    """What is damaged later goes unseen, as beside threads; a new child looks again."""
    path = pack_samples(tmp_path / "d", 12, format="parquet", per_shard=12)
    data = ShardDataset(path, fields=["pixels"])
    kept = kept_loader(data, 3)
    list(kept)

    again = ShardDataset(
        path, fields=["pixels"]
    )  # not the one of the loaders: it would know the sample
    shard, _ = again.view.place(7)
    record = again[7].pixels.permute(1, 2, 0).numpy().tobytes()
    assert isinstance(shard, Path)
    at = shard.read_bytes().index(record)
    with shard.open("r+b") as file:
        file.seek(at)
        file.write(bytes([record[0] ^ 1]))

    list(kept)
    with pytest.raises(
        SampleError, check=At("d/shard-00000.parquet", row=0, index=0, key="bird/000")
    ):
        list(child_loader(data, 3))


def growing(samples: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors a little larger with every batch, as of texts sorted by their length."""
    length = 20_000 + 20 * samples[0]
    return torch.full((length,), samples[0]), torch.full((length + 7,), -samples[0])


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 300


@pytest.mark.slow
def test_batches_that_grow_are_right_and_their_slots_few() -> None:
    loader = child_loader(Numbers(), 1, collate_fn=growing)

    for i, (one, other) in enumerate(loader):
        assert one.eq(i).all()
        assert other.eq(-i).all()
        assert len(one) == len(other) - 7 == 20_000 + 20 * i
        assert loader.stats().slot_bytes < 40 * 8 * 26_100


@pytest.mark.slow
def test_replaced_samples_of_a_mixture_are_counted(tmp_path: Path) -> None:
    bad = ShardDataset(
        damaged(tmp_path / "d", 7), fields=["image"], check="never", on_error="replace"
    )
    loader = child_loader(Mixture([bad, bad], [1, 1]), 3, num_workers=1)

    list(loader)

    assert loader.stats().num_replaced >= 1


class Exits(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        raise SystemExit(3)

    def __len__(self) -> int:
        return 3


@pytest.mark.slow
def test_an_exit_in_the_child_is_the_trainers() -> None:
    with pytest.raises(SystemExit):
        list(child_loader(Exits(), 1))


@pytest.mark.slow
def test_an_error_of_asking_for_more_comes_behind_what_is_ready() -> None:
    loader = child_loader(RAMDataset.from_arrays(x=torch.arange(400)), 1)
    assert loader._maker().group_size > 1
    iterator: Any = iter(loader)
    first = next(iterator)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")

    seen = [first[0].item()]
    with pytest.raises(RuntimeError):
        seen.extend(batch[0].item() for batch in iterator)

    assert seen == list(range(len(seen)))
    assert loader.state_dict()["sampler"]["delivered"] == len(seen)
