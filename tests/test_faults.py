"""What happens when something goes wrong: errors with their place, reports of what hangs, and nothing left behind."""

import gc
import logging
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loaders
from loaders import DataLoader, RAMDataset, ShardDataset, dumping
from loaders.errors import LoadersError, SampleError
from tests.packdata.packing import pack_samples
from tests.refusals import At
from tests.waiting import wait_until

NUM = 23
ROOT = Path(__file__).parents[1]
IN_CHILD = pytest.param("subprocess", 2, marks=pytest.mark.slow)
BACKENDS = [("thread", 0), ("thread", 2), ("process", 2), IN_CHILD]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose sample 13 has noise for a picture."""
    folder = pack_samples(tmp_path_factory.mktemp("packed") / "bad", NUM)
    dataset = ShardDataset(folder, fields=["image"])
    record = dataset.store.records("image", dataset.view.rows(np.array([13])))[0].tobytes()
    path, _ = dataset.view.place(13)
    assert isinstance(path, Path)
    data = path.read_bytes()
    assert data.count(record) == 1
    path.write_bytes(data.replace(record, record[:40] + bytes(len(record) - 40)))
    return folder


# -- errors in workers --------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS)
def test_a_bad_sample_keeps_its_type_and_place_on_every_way(
    damaged: Path, backend: Any, num_workers: int
) -> None:
    dataset = ShardDataset(damaged, check="never")
    loader = DataLoader(dataset, 5, num_workers=num_workers, backend=backend)

    iterator = iter(loader)
    with pytest.raises(
        SampleError, check=At("bad/shard-00003.lmdb", row=1, index=13, key="cat/013")
    ) as caught:
        list(iterator)
    iterator.close()

    error = caught.value
    assert (error.index, error.row, error.key) == (13, 1, "cat/013")
    assert str(error.path) == str(dataset.view.place(13)[0])
    assert pickle.loads(pickle.dumps(error)).key == "cat/013"


@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS)
def test_after_an_error_what_was_delivered_is_still_counted_exactly(
    damaged: Path, backend: Any, num_workers: int
) -> None:
    """Who stops at the error resumes at that batch; who goes on has done without it."""
    dataset = ShardDataset(damaged, fields=["image", "sample_id"], check="never")
    loader = DataLoader(dataset, 3, num_workers=num_workers, backend=backend)
    iterator = iter(loader)

    for _ in range(4):
        next(iterator)
    with pytest.raises(SampleError):
        next(iterator)
    stopped = loader.state_dict()["sampler"]["delivered"]
    following = next(iterator).sample_id.tolist()
    went_on = loader.state_dict()["sampler"]["delivered"]
    iterator.close()

    assert (stopped, following, went_on) == (12, [15, 16, 17], 18)


@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS)
def test_small_batches_handed_over_in_groups_are_counted_one_by_one(
    folder: Path, backend: Any, num_workers: int
) -> None:
    loader = DataLoader(
        ShardDataset(folder, fields=["label", "score"]), 2, num_workers=num_workers,
        backend=backend, pad="mark", sampler=Gaps(24),
    )  # fmt: skip
    assert loader._maker().group_size > 1
    iterator = iter(loader)

    delivered = []
    for _ in range(12):
        try:
            batch = next(iterator)
        except IndexError:
            continue
        number = int(4 * batch.score[0].item())
        delivered.append((number, loader.state_dict()["sampler"]["delivered"]))
        assert batch.valid.tolist() == [True, True]
    iterator.close()

    assert delivered == [(i, i + 2) for i in range(0, 24, 2) if i not in (6, 22)]


@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS)
def test_marks_stay_with_their_batch_behind_one_that_failed(
    folder: Path, backend: Any, num_workers: int
) -> None:
    loader = DataLoader(
        ShardDataset(folder, fields=["label"]), 2, num_workers=num_workers, backend=backend,
        pad="mark", sampler=Gaps(23), rank=1, world_size=2,
    )  # fmt: skip
    iterator = iter(loader)

    valid = [next(iterator).valid.tolist()]
    with pytest.raises(IndexError):
        next(iterator)
    valid += [batch.valid.tolist() for batch in iterator]

    assert valid == [[True, True]] * 4 + [[True, False]]


class Gaps:
    """An order of the samples as they lie, with two that do not exist."""

    def __init__(self, length: int) -> None:
        self.length = length

    def at(self, epoch: int, positions: Any) -> tuple[Any, None]:
        return np.where(np.isin(positions, [7, 23]), 1000, positions), None

    def describe(self) -> dict[str, int | str]:
        return {"kind": "gaps", "length": self.length}


def test_a_batch_that_is_late_is_not_counted_as_lost(folder: Path) -> None:
    """After a timeout the same batch can still be had."""
    go = threading.Event()

    def transform(sample: Any) -> Any:
        assert go.wait(60)
        return sample

    dataset = ShardDataset(folder, fields=["sample_id"], transform=transform)
    loader = DataLoader(dataset, 4, num_workers=1, timeout=0.1)
    iterator = iter(loader)
    with pytest.raises(RuntimeError):
        next(iterator)
    go.set()

    assert next(iterator).sample_id.tolist() == [0, 1, 2, 3]
    assert loader.state_dict()["sampler"]["delivered"] == 4


KILL_WORKER = """
import multiprocessing, os, sys, time
from loaders import DataLoader, ShardDataset
from tests.test_faults import Slow

dataset = ShardDataset(sys.argv[1], fields=["sample_id"], transform=Slow())
iterator = iter(DataLoader(dataset, 1, num_workers=2, backend="process", collate_fn=list))
next(iterator)
multiprocessing.active_children().pop().kill()
began = time.monotonic()
try:
    list(iterator)
except (RuntimeError, OSError):  # torch sees it, or what it reads from is gone
    os._exit(3 if time.monotonic() - began < 15 else 4)
"""


def test_a_killed_worker_process_is_an_error_within_seconds(folder: Path) -> None:
    """In a process of its own: torch's signal handler may tell it once more, whatever runs by then."""
    command = [sys.executable, "-c", KILL_WORKER, str(folder)]

    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False)

    assert done.returncode == 3


@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS)
def test_after_an_error_no_garbage_collector_is_needed_to_end_the_workers(
    folder: Path, backend: Any, num_workers: int
) -> None:
    """Those of torch's own loader end ten seconds after it has run, and it runs whenever it likes."""
    dataset = ShardDataset(folder, fields=["sample_id"], transform=refuse)
    iterator: Any = iter(DataLoader(dataset, 1, num_workers=num_workers, backend=backend))
    gc.disable()
    try:
        with pytest.raises(ValueError, match="not this one"):
            next(iterator)
        left = weakref.ref(iterator)
        del iterator

        assert left() is None
    finally:
        gc.enable()


def refuse(sample: Any) -> Any:
    raise ValueError("not this one")


class Slow:
    """A transform that takes a while."""

    def __call__(self, sample: Any) -> Any:
        time.sleep(0.05)
        return sample


def test_no_samples_are_an_empty_batch_of_any_field(folder: Path) -> None:
    dataset = ShardDataset(folder)

    for name in dataset.schema.fields:
        assert len(dataset.replace(fields=[name]).__getitems__([])) == 0


def test_counters_tell_what_happened(folder: Path) -> None:
    loader = DataLoader(ShardDataset(folder, fields=["pixels"]), 6, num_workers=1)
    iterator = iter(loader)

    batches = [next(iterator), next(iterator)]
    stats = loader.stats()

    assert stats.num_batches == 2
    assert 0 < stats.wait_s < 20
    assert stats.slot_bytes >= sum(batch.pixels.nbytes for batch in batches)
    assert stats.num_replaced == 0
    assert list(iterator)
    assert loader.stats().num_batches == 4


# -- what hangs, said when it hangs -------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
def test_a_stall_names_stage_shard_row_key_and_seconds(
    folder: Path,
    backend: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A child process writes what its workers do to stderr."""
    dataset = ShardDataset(folder, fields=["label"], transform=Waits(tmp_path / "go", 6))
    loader = DataLoader(
        dataset, 4, num_workers=1, backend=backend, stall_warning_s=0.05, collate_fn=list
    )

    with caplog.at_level(logging.WARNING, "loaders"):
        iterator = iter(loader)
        next(iterator)
        threading.Timer(0.4, (tmp_path / "go").touch).start()
        next(iterator)

    path, _ = dataset.view.place(6)
    expected = rf": transforming {path}, row 2 for 0\.\d s"
    texts = [capfd.readouterr().err] if backend == "subprocess" else caplog.messages
    assert any(re.search(expected, text) for text in texts)


class Waits:
    """A transform that waits, at one sample, until a file appears."""

    def __init__(self, file: Path, position: int) -> None:
        self.file, self.position, self.num = file, position, 0

    def __call__(self, sample: Any) -> Any:
        if self.num == self.position:
            wait_until(self.file.exists, 60)
        self.num += 1
        return sample


def test_stages_are_told_apart(folder: Path) -> None:
    """Reading, and collating what was read; small batches by their number in the group."""
    go, in_collate = threading.Event(), threading.Event()

    def collate_fn(samples: Any) -> Any:
        in_collate.set()
        assert go.wait(60)
        return samples

    loader = DataLoader(ShardDataset(folder), 4, num_workers=1, collate_fn=collate_fn)
    iterator = iter(loader)
    reader = threading.Thread(target=next, args=(iterator,))
    reader.start()
    assert in_collate.wait(20)
    text = loaders.dump()
    go.set()
    reader.join()

    assert "collating what came from reading and decoding 4 samples" in text
    assert "row 0 on for 0." in text
    assert "ShardDataset, epoch 0, 0 batches handed over, the trainer waits for 0." in text


def test_iterations_that_ended_are_forgotten(folder: Path) -> None:
    loader = DataLoader(ShardDataset(folder), 4, num_workers=0)
    for _ in range(20):
        list(loader)
    gc.collect()

    list(loader)

    assert sum(reference() is None for reference in dumping._live._references.values()) <= 1


def hangs(sample: Any) -> Any:
    if sample.sample_id == 6:
        os.write(1, b"hangs\n")
        time.sleep(60)
    return sample


_HANGING = """
import multiprocessing, os, signal, sys, time
from loaders import DataLoader, ShardDataset
from tests.test_faults import hangs
def previous(*_): os.write(2, b"previous handler\\n")
if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, previous)
    folder, backend, num_workers = sys.argv[1:]
    if backend == "process":
        multiprocessing.set_start_method("fork")  # Python 3.14 would pickle what hangs
    dataset = ShardDataset(folder, fields=["sample_id"], transform=hangs)
    loader = DataLoader(dataset, 4, num_workers=int(num_workers), backend=backend)
    for batch in loader:
        pass
"""


@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [
        ("thread", 2),
        IN_CHILD,
        pytest.param("thread", 0, marks=pytest.mark.slow),
        pytest.param("process", 2, marks=pytest.mark.slow),
    ],
)
def test_a_signal_makes_a_hanging_run_say_where(
    folder: Path, backend: str, num_workers: int
) -> None:
    """The handler that was there before is called, too, and nothing ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", _HANGING, str(folder), backend, str(num_workers)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LOADERS_DUMP": "SIGUSR1"}, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "hangs\n"
        time.sleep(0.2)  # the first batch is taken, and the trainer waits for the second
        child.send_signal(signal.SIGUSR1)
        lines = [child.stderr.readline() for _ in range(4 if backend == "subprocess" else 3)]
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=100)

    text = "".join(lines)
    assert f"loaders: 1 being iterated in process {child.pid}" in text
    assert "ShardDataset, epoch 0, 1 batches handed over, the trainer waits for" in text
    assert "previous handler\n" in lines
    if backend == "process":
        assert "2 worker processes of torch" in text
    else:
        path, row = ShardDataset(folder).view.place(6)
        assert f"transforming {path}, row {row} for" in text


def test_a_signal_that_does_not_exist_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(ShardDataset(folder), num_workers=0)
    iter(loader)
    monkeypatch.setenv("LOADERS_DUMP", "SIGNOTHING")

    with pytest.raises(ValueError):
        iter(loader)


# -- Ctrl-C ---------------------------------------------------------------------------------------------

_ENDLESS = """
import sys, time
from loaders import DataLoader, ShardDataset
if __name__ == "__main__":
    folder, backend, num_workers = sys.argv[1:]
    loader = DataLoader(ShardDataset(folder), 4, num_workers=int(num_workers), backend=backend, shuffle=True)
    print("begins", flush=True)
    while True:
        for batch in loader:
            time.sleep(0.001)
"""


def assert_interrupt_leaves_nothing(
    folder: Path, tmp: Path, backend: str, num_workers: int, delay_s: float
) -> None:
    """Start a run, interrupt it as a terminal does, and look for what is left of it."""
    shared_before = set(os.listdir("/dev/shm"))
    child = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(folder), backend, str(num_workers)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        time.sleep(delay_s)
        began = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)  # the whole foreground group gets it
        try:
            _, errors = child.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            if backend != "process":
                raise
            # Python drops an interrupt that comes into what it calls around a fork: it takes a second one.
            began = time.monotonic()
            os.killpg(child.pid, signal.SIGINT)
            _, errors = child.communicate(timeout=15)
        took_s = time.monotonic() - began
        wait_until(lambda: not is_alive(child.pid), 10)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise

    assert "KeyboardInterrupt" in errors
    assert child.returncode not in (0, None)
    assert took_s < 10
    # In torch's processes an interrupt may cut what Python itself clears: sockets, a file that tries the folder.
    ours = [path for path in tmp.iterdir() if backend != "process" or "loaders" in path.name]
    assert not ours
    left = {name for name in set(os.listdir("/dev/shm")) - shared_before if str(child.pid) in name}
    assert not left


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("uncovered")
@pytest.mark.parametrize(("backend", "num_workers"), [("thread", 2), IN_CHILD])
def test_ctrl_c_leaves_no_process_and_no_file(
    folder: Path, tmp_path: Path, backend: str, num_workers: int
) -> None:
    assert_interrupt_leaves_nothing(folder, tmp_path, backend, num_workers, delay_s=0.3)


@pytest.mark.usefixtures("uncovered")
@pytest.mark.slow
@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS[:-1])
def test_ctrl_c_at_any_moment_leaves_nothing(
    folder: Path, tmp_path: Path, backend: str, num_workers: int
) -> None:
    """From before the first batch to the middle of some epoch, ten moments from a seed."""
    moments = random.Random(f"{backend} {num_workers}")

    for _ in range(10):
        assert_interrupt_leaves_nothing(
            folder, tmp_path, backend, num_workers, delay_s=moments.uniform(0, 0.5)
        )


# -- handles under fork, spawn, threads and pickle ---------------------------------------------------


def labels(dataset: Any) -> list[int]:
    loader = DataLoader(dataset, 4, num_workers=1, backend="thread")
    return [label for batch in loader for label in batch.label.tolist()]


def put_labels(dataset: Any, queue: Any) -> None:
    queue.put(labels(dataset))


def start(context: Any, dataset: Any) -> tuple[Any, Any]:
    queue = context.SimpleQueue()
    process = context.Process(target=put_labels, args=(dataset, queue))
    process.start()
    return process, queue


@pytest.fixture(params=["shards", "ram"])
def opened(request: pytest.FixtureRequest, folder: Path) -> Any:
    """A dataset that was read from already."""
    shards = ShardDataset(folder, fields=["image", "label", "key"])
    dataset = shards if request.param == "shards" else RAMDataset(shards, progress=False)
    assert dataset[20].key == "dog/020"
    return dataset


@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))],
)
def test_an_open_dataset_works_in_a_child(opened: Any, method: str) -> None:
    """Here while threads of the parent read it at the same time."""
    expected = labels(opened)
    iterator = iter(DataLoader(opened, 4, num_workers=2))
    next(iterator)

    process, queue = start(multiprocessing.get_context(method), opened)

    assert queue.get() == expected
    process.join(60)
    assert process.exitcode == 0
    assert [b.label.tolist() for b in iterator] == [expected[i : i + 4] for i in range(4, NUM, 4)]


def test_a_child_forked_by_a_thread_can_read(opened: Any) -> None:
    results: list[list[int]] = []

    def fork() -> None:
        process, queue = start(multiprocessing.get_context("fork"), opened)
        results.append(queue.get())
        process.join(60)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join(60)

    assert results == [labels(opened)]


def test_an_iterator_is_refused_in_a_forked_child(folder: Path) -> None:
    """Its threads are not there: an error, and not a wait without end."""
    loader = DataLoader(ShardDataset(folder), 4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def use() -> None:
        try:
            for _ in range(NUM):
                next(iterator)
        except RuntimeError as error:
            queue.put(str(error))
        except BaseException as error:
            queue.put(repr(error))

    process = context.Process(target=use)
    process.start()

    assert "threads of the parent of this forked process" in queue.get()
    process.join(60)
    assert process.exitcode == 0


def test_a_loader_works_anew_in_a_forked_child(folder: Path) -> None:
    """The loader itself, unlike an iterator of it, may be used on both sides."""
    loader = DataLoader(ShardDataset(folder, fields=["label"]), 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put([b.label.tolist() for b in loader]))

    process.start()

    assert list(chain.from_iterable(queue.get())) == [i % 3 for i in range(NUM)]
    process.join(60)


def test_twice_opened_and_pickled_datasets_are_alike(opened: Any, folder: Path) -> None:
    copies = [pickle.loads(pickle.dumps(opened)), ShardDataset(folder)]

    assert [labels(copy) for copy in copies] == [labels(opened)] * 2
    assert copies[0].fingerprint == opened.fingerprint


def test_many_threads_may_use_one_dataset(opened: Any) -> None:
    expected, results = labels(opened), []
    threads = [threading.Thread(target=lambda: results.append(labels(opened))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert results == [expected] * 4


def test_a_loader_pickles_with_its_settings(folder: Path) -> None:
    loader = DataLoader(ShardDataset(folder, fields=["sample_id"]), 4, shuffle=True, seed=3)
    copy = pickle.loads(pickle.dumps(loader))

    assert [b.sample_id.tolist() for b in copy] == [b.sample_id.tolist() for b in loader]
    assert (copy.seed, copy.batch_size, copy.num_workers) == (3, 4, loader.num_workers)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No thread and no child process outlives a test."""
    yield
    gc.collect()  # an error's traceback and the frame that caught it hold each other
    wait_until(lambda: not multiprocessing.active_children())
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("loaders-")])


def test_a_batch_that_the_device_half_failed_on_is_not_counted(folder: Path) -> None:
    loader = DataLoader(ShardDataset(folder, fields=["label"]), 2, num_workers=0)
    calls = iter([False, True, False])

    def finish(batch: Any) -> Any:
        if next(calls):
            raise RuntimeError("out of memory")
        return batch

    loader._finisher = finish
    iterator = iter(loader)
    next(iterator)

    with pytest.raises(RuntimeError, check=At(args=("out of memory",))):
        next(iterator)

    assert loader.state_dict()["sampler"]["delivered"] == 2
    next(iterator)
    assert loader.state_dict()["sampler"]["delivered"] == 6


@pytest.mark.parametrize("what", ["a record", "records in a group", "a shard", "an index"])
def test_no_thread_waits_for_the_garbage_collector_after_an_error(
    damaged: Path, tmp_path: Path, what: str
) -> None:
    """A traceback that could reach its own error again would keep the loader, and its workers, until then."""
    settings: dict[str, Any] = {"batch_size": 4}
    dataset = ShardDataset(damaged)
    if what == "records in a group":  # small rows, of which each is bad
        folder = pack_samples(tmp_path / "a", NUM, format="parquet")
        dataset = ShardDataset(folder, fields=["label"], check="always")
        shutil.copy(next(damaged.glob("shard-*")), next(folder.glob("shard-*")))
    elif what == "a shard":
        folder = pack_samples(tmp_path / "a", NUM)
        dataset = ShardDataset(folder)
        next(folder.glob("shard-*")).unlink()
    elif what == "an index":
        settings = {"batch_sampler": [[0], [NUM]]}
    gc.collect()
    gc.disable()
    try:
        before = threading.active_count()
        with pytest.raises((LoadersError, IndexError)) as caught:
            list(DataLoader(dataset, num_workers=2, backend="thread", **settings))
        del caught
        wait_until(lambda: threading.active_count() == before, 5)
    finally:
        gc.enable()
