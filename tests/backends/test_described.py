"""What workers say that they are doing, and for how long."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaders import DataLoader, Mixture, ShardDataset, workers
from loaders.backends import subprocess as backend
from loaders.backends.maker import Chunk, Maker
from tests.backends.test_subprocess import Waiting
from tests.packdata.packing import pack_samples
from tests.waiting import wait_until

TIMEOUT_S = 20.0


@pytest.mark.slow
def test_a_child_says_what_it_is_doing_before_its_first_batch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = Maker(Waiting(tmp_path / "go"), list, 1, True, 1)
    pool = backend.child_pool(None, maker, None)
    pool.put(Chunk([[2]]), 0)
    told: list[str] = []

    def tells() -> bool:
        told.append(pool.describe())
        return "reading 1 batch of Waiting" in capfd.readouterr().err

    wait_until(tells, 40)
    (tmp_path / "go").touch()

    assert "child process" in told[-1]
    assert pool.take(TIMEOUT_S) == [[2]]
    pool.close()


class Clocked:
    """Advances the workers' clock by 100 s for each sample, and waits at one."""

    def __init__(self, sample_id: int) -> None:
        self.sample_id, self.now = sample_id, 0.0
        self.entered, self.may_go = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.entered.set()
        assert self.may_go.wait(TIMEOUT_S)

    def __call__(self, sample: Any) -> Any:
        if int(sample.sample_id) == self.sample_id:
            self.wait()
        self.now += 100
        return sample


def described(
    folder: Path, clock: Clocked, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> str:
    """Return what the worker is doing when the clock's time stands still."""
    time = SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: 0.0)
    monkeypatch.setattr(workers, "time", time)
    data = ShardDataset(folder, fields=["label", "sample_id"], transform=clock)
    iterator: Any = iter(
        DataLoader(data, 4, num_workers=1, backend="thread", prefetch_factor=1, **settings)
    )
    trainer = threading.Thread(target=next, args=(iterator,))
    trainer.start()
    assert clock.entered.wait(TIMEOUT_S)
    text: str = iterator.describe()
    clock.may_go.set()
    trainer.join(TIMEOUT_S)
    iterator.close()
    return text


def test_seconds_are_those_of_the_sample_that_is_transformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pack_samples(tmp_path / "a", 4, format="parquet", per_shard=4)

    text = described(folder, Clocked(2), monkeypatch)

    assert "row 2" in text
    assert text.endswith(" for 0.0 s")


def test_seconds_of_collating_are_not_those_of_the_transform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pack_samples(tmp_path / "a", 4, format="parquet", per_shard=4)
    clock = Clocked(-1)

    def collate(samples: list[Any]) -> int:
        clock.wait()
        return len(samples)

    text = described(folder, clock, monkeypatch, collate_fn=collate)

    assert "collating what came from reading and decoding 4 samples" in text
    assert text.endswith(" for 0.0 s")


def test_a_mixture_says_that_it_is_collating(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 4, format="parquet", per_shard=4)
    sources = [ShardDataset(folder), ShardDataset(folder, check="always")]
    told: list[str] = []

    def collate(samples: Any) -> int:
        told.append(iterator.describe())
        return len(samples)

    iterator: Any = iter(DataLoader(Mixture(sources), 4, num_workers=1, collate_fn=collate))

    assert next(iterator) == 4
    assert "collating what came from reading and decoding" in told[0]
