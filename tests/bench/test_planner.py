from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loaders import RAMDataset
from loaders.bench.measure import Config
from loaders.bench.planner import (
    group_size_of,
    in_flight,
    plan,
    ram_bytes_of,
    rank_samples_of,
    sample_bytes_of,
    table,
)
from loaders.bench.sweep import make_loader
from loaders.bench.targets import load
from loaders.errors import LoadersError
from loaders.schema import Image, Mask
from tests.bench.constructed import Stream
from tests.packdata.packing import pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

PHOTOS = Path(__file__).parents[1] / "data/photos"


class LongStream(Stream):
    """It knows how much there is of it."""

    def __len__(self) -> int:
        return 4096


class EmptyStream(Stream):
    """It ends at once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(())


def test_batches_in_flight_are_counted_once_for_threads_and_per_worker_for_processes() -> None:
    assert in_flight(Config(0, 8, "thread")) == 0
    assert in_flight(Config(16, 8, "thread")) == 2
    assert in_flight(Config(16, 8, "thread", 4)) == 4
    assert in_flight(Config(16, 8, "process", 4)) == 64
    assert in_flight(Config(1, 8, "thread"), group_size=4) == 3
    assert in_flight(Config(2, 8, "thread"), group_size=4) == 4  # each makes its own
    assert in_flight(Config(2, 8, "thread", 7), group_size=4) == 7


def test_floats_take_four_times_the_bytes_of_uint8_and_no_more_of_others() -> None:
    images = np.zeros((20, 3, 32, 32), np.uint8)
    dataset = RAMDataset.from_arrays(image=images, x=np.zeros((20, 5), np.float32))
    config = Config(4, 256, "thread")

    small, large = (plan(sample_bytes_of(dataset, as_trained=f), config) for f in (False, True))

    assert small.batch_bytes == 256 * (3072 + 20)
    assert large.batch_bytes == 256 * (4 * 3072 + 20)


def test_masks_are_int64_when_they_are_trained_on() -> None:
    images, masks = np.zeros((20, 8, 8, 3), np.uint8), np.zeros((20, 8, 8), np.uint8)
    schema = {"mask": Mask(size=(8, 8), codec="raw")}
    dataset = RAMDataset.from_arrays(image=images, mask=masks, schema=schema)

    assert sample_bytes_of(dataset) == 4 * 64
    assert sample_bytes_of(dataset, as_trained=True) == 4 * 3 * 64 + 8 * 64


def test_of_large_samples_one_is_enough() -> None:
    """Eight volumes of a gigabyte are not loaded to know the size of one."""
    asked = []

    class Volumes(Sequence[np.ndarray]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return np.zeros(65 << 20, np.uint8)

    assert sample_bytes_of(Volumes()) == 65 << 20
    assert len(asked) == 1


def test_a_cache_counts_once_per_rank_unless_it_is_shared() -> None:
    config = Config(4, 256, "thread")

    alone = plan(100, config, cache_bytes=10**9, ranks=8)
    shared = plan(100, config, cache_bytes=10**9, ranks=8, shared=True)

    assert alone.node_bytes - shared.node_bytes == 7 * 10**9
    assert shared.node_bytes == 8 * shared.rank_bytes + 10**9


def test_pinned_memory_comes_on_top() -> None:
    config = Config(4, 256, "thread")

    assert plan(100, config, pinned=True).rank_bytes == plan(100, config).rank_bytes + 3 * 25_600


def test_groups_of_small_batches_exist_and_are_pinned_whole() -> None:
    grouped = plan(100, Config(2, 8, "thread"), group_size=4, pinned=True)

    assert grouped.batches == 4 * 4 + 2
    assert grouped.pinned_bytes == (4 + 1) * 4 * 800


@pytest.mark.parametrize("backend", ["thread", "subprocess", "process"])
def test_groups_are_those_of_the_loader(backend: str) -> None:
    dataset = RAMDataset.from_arrays(x=np.zeros((2, 1 << 20), np.uint8))
    config = Config(1, 1, backend)

    of_loader = make_loader(dataset, config)._maker().group_size if backend != "process" else 1

    assert group_size_of(dataset, config) == of_loader


def test_no_more_batches_exist_than_an_epoch_of_the_rank_has() -> None:
    config = Config(2, 8, "thread")
    dataset = np.zeros(100)

    few = plan(100, config, group_size=64, pinned=True, rank_samples=rank_samples_of(dataset))

    assert [rank_samples_of(dataset, ranks) for ranks in (1, 2, 8, 99)] == [100, 50, 13, 2]
    assert rank_samples_of(Stream()) is rank_samples_of(LongStream()) is None
    assert (few.batches, few.slots_bytes, few.pinned_bytes) == (13, 13 * 800, 13 * 800)
    assert plan(100, config, group_size=64, rank_samples=10**6).batches == 4 * 64 + 2
    assert table({"": plan(100, config, rank_samples=8)})[2][0] == "1 batch at a time"


def test_no_batch_has_more_samples_than_the_rank() -> None:
    config = Config(2, 256, "thread")

    assert plan(100, config, rank_samples=50).batch_bytes == 50 * 100
    assert plan(100, config, rank_samples=300).batch_bytes == 256 * 100
    assert plan(100, config).batch_bytes == 256 * 100


def test_the_table_has_a_row_for_each_part_and_a_column_per_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    config = Config(2, 8, "process")
    node = plan(100, config, pinned=True, cache_bytes=10**9, ranks=2)

    assert table({"one": node, "other": plan(1000, config, ranks=2)}) == [
        ("", "one", "other"),
        ("one batch", "800 B", "8 kB"),
        ("6 batches at a time", "4.8 kB", "48 kB"),
        ("pinned copies", "4 kB", "0 B"),
        ("workers", "41.9 MB", "41.9 MB"),
        ("one rank", "42 MB", "42 MB"),
        ("dataset in RAM, 2 copies", "1 GB", "0 B"),
        ("all of the node, 2 ranks", "2.08 GB", "84 MB"),
    ]


@pytest.mark.parametrize("decode", [False, True])
def test_what_is_held_in_memory_is_told_of_some_samples_by_their_records_or_whole_pixels(
    tmp_path: Path, decode: bool
) -> None:
    """Whatever is cropped from them later. Records take a few bytes more, to say where each begins."""
    files = load(str(PHOTOS), size=64)
    records = [{"image": file.read_bytes()} for file in files.files]
    pack(tmp_path / "d", {"image": Image(codec="jpeg")}, records, defaults=["image"])
    packed = load(str(tmp_path / "d"), size=64)

    held = RAMDataset(tmp_path / "d", decode=decode, progress=False).nbytes

    assert ram_bytes_of(files, decode=decode) == pytest.approx(held, rel=0.01)
    assert ram_bytes_of(packed, decode=decode) == pytest.approx(held, rel=0.01)
    for target in (files, packed):
        assert ram_bytes_of(target, decode=decode, count=4) == pytest.approx(held, rel=0.3)


def test_how_any_dataset_would_be_held_in_memory_is_not_known() -> None:
    with pytest.raises(LoadersError, match="constructed:instant' is no packed dataset"):
        ram_bytes_of(load("tests.bench.constructed:instant"), decode=True)


def test_bytes_of_a_sample_are_those_in_a_batch() -> None:
    images = np.zeros((20, 3, 32, 32), np.uint8)

    assert sample_bytes_of(RAMDataset.from_arrays(image=images, label=np.arange(20))) == 3072 + 8
    assert sample_bytes_of(Stream()) == 4


@pytest.mark.parametrize(
    ("sample", "num_bytes"),
    [
        ("x" * 1000, 1000),
        (b"x" * 1000, 1000),
        ({"text": "x" * 10, "ids": np.zeros(3, np.int32)}, 22),
        (("x" * 10, {"name": b"xy"}), 12),
    ],
)
def test_texts_and_bytes_of_a_sample_count(sample: Any, num_bytes: int) -> None:
    assert sample_bytes_of([sample] * 20) == num_bytes


def test_a_stream_with_a_length_is_read_as_a_stream() -> None:
    assert sample_bytes_of(LongStream()) == 4


def test_a_stream_without_samples_has_no_bytes_of_one() -> None:
    with pytest.raises(LoadersError, match="the stream has no samples"):
        sample_bytes_of(EmptyStream())


MEASURED = """
import gc, multiprocessing, sys
import numpy as np
from loaders import RAMDataset
from loaders.bench.measure import Config, end
from loaders.bench.planner import group_size_of, plan, sample_bytes_of
from loaders.bench.processes import family, memory
from loaders.bench.sweep import make_loader
backend, workers = sys.argv[1], int(sys.argv[2])
multiprocessing.set_start_method(sys.argv[3])
dataset = RAMDataset.from_arrays(image=np.ones((400, 3, 128, 128), np.uint8))
config = Config(workers, 200, backend)
predicted = plan(sample_bytes_of(dataset), config, group_size=group_size_of(dataset, config)).rank_bytes
end(iter(make_loader(dataset, Config(0, 2, "thread"))))
dataset[0]
gc.collect()
before, peak = memory(family()).own_bytes, 0
batches = iter(make_loader(dataset, config))
for _ in range(12):
    batch = next(batches)
    peak = max(peak, memory(family()).own_bytes)
print(predicted, peak - before)
end(batches)
"""


@pytest.mark.parametrize(
    ("backend", "method"),
    [
        ("thread", "fork"),
        pytest.param("process", "fork", marks=pytest.mark.slow),
        pytest.param("process", "forkserver", marks=pytest.mark.slow),
    ],
)
def test_the_prediction_is_near_what_is_measured(backend: str, method: str) -> None:
    """Enough, and not twice too much: PSS of all processes without mapped files, in a fresh process."""
    gc.collect()
    command = [sys.executable, "-c", MEASURED, backend, "2", method]

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    predicted, measured = map(int, done.stdout.split())
    assert 0.45 * predicted < measured < 1.15 * predicted
