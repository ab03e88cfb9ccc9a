import gc
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import RAMDataset
from loaders.bench.measure import Config, in_flight
from loaders.bench.planner import (
    fits,
    plan,
    ram_bytes_of,
    sample_bytes_of,
    table,
)
from loaders.bench.targets import load
from loaders.errors import LoadersError
from loaders.schema import Image
from tests.bench.constructed import Instant, Stream
from tests.packdata.packing import pack

PHOTOS = Path(__file__).parents[1] / "data/photos"


class EmptyStream(Stream):
    """It ends at once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(())


ROWS = RAMDataset.from_arrays(x=np.zeros((100_000, 16), np.uint8))


def test_batches_in_flight_are_counted_once_for_threads_and_per_worker_for_processes() -> None:
    """Small ones in groups, which each thread makes by itself."""
    some = Instant()
    assert in_flight(some, Config(0, 8, "thread")) == 0
    assert in_flight(some, Config(16, 8, "thread")) == 2
    assert in_flight(some, Config(16, 8, "thread", 4)) == 4
    assert in_flight(some, Config(16, 8, "process", 4)) == 64
    assert in_flight(ROWS, Config(1, 8, "thread")) == 64 * 3
    assert in_flight(ROWS, Config(2, 8, "thread")) == 64 * 4
    assert in_flight(ROWS, Config(2, 8, "thread", 7)) == 64 * 7


def test_a_cache_counts_once_per_rank_unless_it_is_shared() -> None:
    config = Config(4, 256, "thread")

    alone = plan(Instant(), 100, config, cache_bytes=10**9, ranks=8)
    shared = plan(Instant(), 100, config, cache_bytes=10**9, ranks=8, shared=True)

    assert alone["node_bytes"] - shared["node_bytes"] == 7 * 10**9
    assert shared["node_bytes"] == 8 * shared["rank_bytes"] + 10**9


def test_pinned_memory_comes_on_top() -> None:
    config, grouped = Config(4, 64, "thread"), Config(2, 8, "thread")

    pinned, pageable = (
        plan(Instant(), 100, config, pinned=p)["rank_bytes"] for p in (True, False)
    )

    assert pinned == pageable + 3 * 6400
    assert plan(ROWS, 16, grouped)["batches"] == 4 * 64 + 2
    assert plan(ROWS, 16, grouped, pinned=True)["pinned_bytes"] == (4 + 1) * 64 * 128


def test_the_table_has_a_row_for_each_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    config, data = Config(2, 8, "process"), Instant()
    node = plan(data, 128, config, pinned=True, cache_bytes=1 << 30, ranks=2)

    assert table(node) == [
        ("one batch", "1.0 KiB"),
        ("6 batches at a time", "6.0 KiB"),
        ("pinned copies", "5.0 KiB"),
        ("workers", "40.0 MiB"),
        ("one rank", "40.0 MiB"),
        ("dataset in RAM, 2 copies", "1.0 GiB"),
        ("all of the node, 2 ranks", "2.1 GiB"),
    ]
    plain = [row[0] for row in table(plan(data, 128, config))]
    assert plain == [
        "one batch",
        "6 batches at a time",
        "workers",
        "one rank",
        "all of the node, 1 rank",
    ]


@pytest.mark.parametrize(("available", "first"), [(1 << 40, "fits"), (1 << 20, "does not fit")])
def test_a_plan_says_plainly_whether_it_fits_and_what_to_do_if_not(
    available: int, first: str
) -> None:
    said = fits(plan(Instant(), 1 << 20, Config(2, 8, "thread")), available)

    assert said.split(":")[0] == first
    assert ("\nDo: " in said) is (first != "fits")


@pytest.mark.parametrize("decode", [False, True])
def test_what_is_held_in_memory_is_told_of_some_samples_by_their_records_or_whole_pixels(
    tmp_path: Path, decode: bool
) -> None:
    """Whatever is cropped from them later. Records take a few bytes more, to say where each begins."""
    records = [{"image": file.read_bytes()} for file in sorted(PHOTOS.rglob("*.jpg"))]
    pack(tmp_path / "d", {"image": Image(codec="jpeg")}, records, defaults=["image"])
    packed = load(str(tmp_path / "d"), size=64)

    held = RAMDataset(tmp_path / "d", decode=decode, progress=False).nbytes

    assert ram_bytes_of(packed, decode=decode) == pytest.approx(held, rel=0.01)
    assert ram_bytes_of(packed, decode=decode, count=4) == pytest.approx(held, rel=0.3)


@pytest.mark.parametrize("name", ["tests.bench.constructed:instant", str(PHOTOS)])
def test_how_any_dataset_would_be_held_in_memory_is_not_known(name: str) -> None:
    with pytest.raises(LoadersError):
        ram_bytes_of(load(name), decode=True)


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


def test_a_stream_without_samples_has_no_bytes_of_one() -> None:
    with pytest.raises(LoadersError):
        sample_bytes_of(EmptyStream())


MEASURED = """
import gc, multiprocessing, sys
import numpy as np
from loaders import RAMDataset
from loaders.bench.measure import Config, family, make_loader, own_memory
from loaders.bench.planner import plan, sample_bytes_of
backend, workers = sys.argv[1], int(sys.argv[2])
multiprocessing.set_start_method(sys.argv[3])
dataset = RAMDataset.from_arrays(image=np.ones((2000, 3, 128, 128), np.uint8))
config = Config(workers, 200, backend)
predicted = plan(dataset, sample_bytes_of(dataset), config)["rank_bytes"]
iter(make_loader(dataset, Config(0, 2, "thread"))).close()
dataset[0]
gc.collect()
before, peak = own_memory(family()), 0
batches = iter(make_loader(dataset, config))
for _ in range(12):
    batch = next(batches)
    peak = max(peak, own_memory(family()))
print(predicted, peak - before)
batches.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "method"),
    [
        ("thread", "fork"),
        ("process", "fork"),
        ("process", "forkserver"),
    ],
)
def test_the_prediction_is_near_what_is_measured(backend: str, method: str) -> None:
    """Enough, and not twice too much: PSS of all processes without mapped files, in a fresh process."""
    gc.collect()
    command = [sys.executable, "-c", MEASURED, backend, "2", method]

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    predicted, measured = map(int, done.stdout.split())
    assert 0.45 * predicted < measured < 1.15 * predicted
