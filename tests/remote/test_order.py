"""Shards are fetched in the order in which they will be read, whatever reads them."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders import DataLoader, JpegOnDevice, Mixture, RAMDataset, ShardDataset, TokenWindows
from loaders.codecs.picture import encode_jpeg
from loaders.data.shards import RemoteShard
from loaders.errors import CacheError, SampleError
from loaders.loading.fetching import LoaderPass
from loaders.remote.ahead import Ahead
from loaders.sampling.order import Sequential
from loaders.sampling.plan import Plan
from loaders.schema import Array, Image, Label, Tokens
from tests.remote import servers
from tests.remote.conftest import signal_fetcher, storage
from tests.remote.test_remote import S3
from tests.waiting import wait_until

ROW, ROWS, NUM_SHARDS = 16_384, 640, 4  # 2.6 MB a shard: a column by ranges is less


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of tokens; each row ends a document."""
    folder = tmp_path_factory.mktemp("tokens") / "packed"
    fields = {
        "tokens": Tokens(dtype="uint8", row_tokens=ROW, vocab_size=256),
        "num_tokens": Array(dtype="int32"),
        "document_ends": Array(dtype="uint16", dims=(None,)),
    }
    rng = np.random.default_rng(0)

    def rows() -> Iterator[dict[str, Any]]:
        for _ in range(ROWS):
            ids, ends = rng.integers(0, 256, ROW, np.uint8), np.array([ROW // 2, ROW], np.uint16)
            yield {"tokens": ids, "num_tokens": ROW, "document_ends": ends}

    packdata.pack(rows(), folder, fields, shard_bytes=ROW * ROWS // NUM_SHARDS, format="parquet")
    return folder


def remote(folder: Path, cache: Path) -> ShardDataset:
    return ShardDataset(f"file://{folder}", cache=cache)


def num_here(cache: Path) -> int:
    return len([*cache.glob("v2/shards/??/*")])


def _windows(dataset: ShardDataset) -> Any:
    return TokenWindows(dataset, 100)


def _documents(dataset: ShardDataset) -> Any:
    return TokenWindows(dataset, 100, by="document")


def _mixed(dataset: ShardDataset) -> Any:
    return Mixture([TokenWindows(dataset, 100), TokenWindows(dataset, 100, stride=50)])


@pytest.mark.parametrize(
    "make", [_windows, _documents, pytest.param(_mixed, marks=pytest.mark.slow)]
)
def test_windows_fetch_no_shard_until_they_are_read_and_then_ahead(
    tokens: Path, cache: Path, make: Any
) -> None:
    windows, local = make(remote(tokens, cache)), make(ShardDataset(tokens))
    assert num_here(cache) == 0

    options: dict[str, Any] = {} if make is _mixed else {"shuffle": "block", "seed": 3}
    loaders = [DataLoader(each, batch_size=8, **options) for each in (windows, local)]
    one, other = (iter(each) for each in loaders)
    assert all(np.array_equal(a, b) for a, b in zip(next(one), next(other), strict=True))

    wait_until(lambda: num_here(cache) == NUM_SHARDS)


def test_of_the_epoch_behind_one_that_was_resumed_all_is_needed(tokens: Path, cache: Path) -> None:
    dataset = remote(tokens, cache)
    (origin,) = dataset.store.remotes
    plan = Plan(len(dataset), batch_size=8, start=len(dataset) - 8)

    reading = LoaderPass(dataset, origin, Sequential(len(dataset)), plan, epoch=0)

    assert reading.needs().upcoming() == [NUM_SHARDS - 1, *range(NUM_SHARDS - 1)]


def test_samples_one_after_the_other_are_fetched_ahead(tokens: Path, cache: Path) -> None:
    samples = iter(remote(tokens, cache))

    assert num_here(cache) == 0
    next(samples)

    wait_until(lambda: num_here(cache) == NUM_SHARDS)


@pytest.mark.parametrize("moves", [False, True])
def test_who_tells_the_fetcher_ends_with_the_iteration(
    tokens: Path, cache: Path, moves: bool
) -> None:
    """Also where an epoch was set after it began: its first batch begins another order."""
    loader = DataLoader(TokenWindows(remote(tokens, cache), 100), 8, shuffle=True, num_workers=1)
    batches = iter(loader)
    if moves:
        loader.set_epoch(1)
    next(batches)
    assert any(thread.name == "loaders-ahead" for thread in threading.enumerate())

    batches.close()

    wait_until(lambda: all(t.name != "loaders-ahead" for t in threading.enumerate()), 20)


def test_the_fetcher_is_told_nothing_more_when_a_batch_failed_and_the_rest_is_served(
    tokens: Path, cache: Path
) -> None:
    """The traceback keeps the iterator; its shards are fetched on demand from there on."""
    dataset = remote(tokens, cache)
    shard = dataset.store.shards[0]
    assert isinstance(shard, RemoteShard)
    shard.fetch().chmod(0o600)
    shard.fetch().write_bytes(b"damaged")
    loader = DataLoader(dataset, shard.num_samples, num_workers=1)
    batches = iter(loader)

    with pytest.raises(SampleError) as caught:
        next(batches)

    wait_until(lambda: all(t.name != "loaders-ahead" for t in threading.enumerate()), 20)
    assert caught.tb is not None
    assert len([*batches]) == len(loader) - 1


def test_files_that_a_device_decodes_are_fetched_ahead(tmp_path: Path, cache: Path) -> None:
    """As those of the dataset that ``JpegOnDevice`` is over."""
    file = encode_jpeg(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    samples = ({"image": file, "label": i} for i in range(64))
    shard_bytes = 16 * len(file)
    packdata.pack(
        samples, tmp_path / "a", {"image": Image(), "label": Label()}, shard_bytes=shard_bytes
    )
    num_shards = len([*(tmp_path / "a").glob("*.lmdb")])
    assert num_shards >= NUM_SHARDS
    loader = DataLoader(JpegOnDevice(remote(tmp_path / "a", cache)), batch_size=2, num_workers=1)

    batches = iter(loader)
    next(batches)

    assert loader.stats().remote is not None
    wait_until(lambda: num_here(cache) == num_shards)


def test_a_loader_may_be_collected_on_the_thread_that_tells_its_fetcher(
    tokens: Path, cache: Path
) -> None:
    """A finalizer runs wherever garbage is collected; that thread cannot wait for itself."""
    (origin,) = remote(tokens, cache).stores[0].remotes
    made: queue.Queue[Ahead] = queue.Queue()
    closed: queue.Queue[Exception | None] = queue.Queue()

    def make_needs() -> Any:
        try:
            made.get(timeout=10).close()
            closed.put(None)
        except RuntimeError as error:
            closed.put(error)
        raise CacheError("ended", cache)

    ahead = Ahead(origin, make_needs, lambda: (0, False))
    ahead.start()
    made.put(ahead)
    del ahead

    assert closed.get(timeout=10) is None


def test_a_column_that_is_a_small_part_is_read_by_ranges(tokens: Path, cache: Path) -> None:
    dataset = remote(tokens, cache)

    counts = dataset.column("num_tokens")

    assert counts.tolist() == [ROW] * ROWS
    assert num_here(cache) == 0
    np.testing.assert_array_equal(dataset.column("tokens"), ShardDataset(tokens).column("tokens"))
    assert num_here(cache) == NUM_SHARDS


def test_memory_is_loaded_from_several_shards_at_a_time(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    dataset = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))
    proxy.set(latency_s=0.1)

    memory = RAMDataset(dataset, progress=False)

    requests = proxy.requests(".lmdb")
    assert max(each["beside"] for each in requests) >= 4
    assert sum(each["bytes"] for each in requests) == memory_bytes(packed)
    np.testing.assert_array_equal(
        memory.column("values"), ShardDataset(packed / "bucket/packed").column("values")
    )


def memory_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "bucket/packed").glob("*.lmdb"))


def test_a_shard_that_is_waited_for_is_a_miss_and_one_that_is_here_a_hit(
    tokens: Path, cache: Path
) -> None:
    for counts in ({"hits": 0, "misses": 1}, {"hits": 1, "misses": 0}):
        dataset = remote(tokens, cache)
        dataset.read([5, 6])

        told = DataLoader(dataset, batch_size=8).stats().remote

        assert told is not None
        assert {name: told[name] for name in counts} == counts


@pytest.mark.parametrize("batch_size", [4, 32])
def test_what_is_read_at_once_fits_into_the_cache_or_is_refused_before_the_first_batch(
    tmp_path: Path, cache: Path, batch_size: int
) -> None:
    """Small batches are read many at once: of 24 shards of 20 samples the cache holds half."""
    rows = ({"values": np.full(20_000, n % 251, np.uint8)} for n in range(480))
    fields = {"values": Array(dtype="uint8", dims=(20_000,))}
    packdata.pack(rows, tmp_path / "packed", fields, shard_bytes=399_000)
    sizes = [path.stat().st_size for path in (tmp_path / "packed").glob("*.lmdb")]
    limits = {"path": cache, "size": sum(sizes) // 2}
    loader = DataLoader(
        ShardDataset(f"file://{tmp_path}/packed", cache=limits), batch_size, num_workers=1
    )

    num = 0
    try:
        num = sum(len(batch.values) for batch in loader)
    except CacheError:
        assert num_here(cache) == num == 0
    else:
        assert num == 480


def test_ranks_of_a_machine_share_what_is_read_at_once_of_a_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else four ranks in step map more shards than half a cache holds, and download each three times."""
    rows = ({"values": np.zeros(20_000, np.uint8)} for _ in range(480))
    fields = {"values": Array(dtype="uint8", dims=(20_000,))}
    packdata.pack(rows, tmp_path / "packed", fields, shard_bytes=399_000)
    limits = {"path": cache, "size": 4_800_000}
    dataset = ShardDataset(f"file://{tmp_path}/packed", cache=limits)

    groups = []
    for ranks in "1", "4":
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        groups.append(DataLoader(dataset, 4, num_workers=1)._maker().group_size)

    assert groups == [4_800_000 // 8 // 80_000, 4_800_000 // 32 // 80_000]


def test_a_pass_over_what_is_mapped_needs_no_fetcher_and_no_cache(
    tmp_path: Path, cache: Path
) -> None:
    rows = ({"values": np.full(1_000, n % 251, np.uint8)} for n in range(48))
    fields = {"values": Array(dtype="uint8", dims=(1_000,))}
    packdata.pack(rows, tmp_path / "packed", fields, shard_bytes=20_000)
    dataset = ShardDataset(f"file://{tmp_path}/packed", cache=cache)
    loader = DataLoader(dataset, 16, num_workers=1, backend="thread")
    assert sum(len(batch.values) for batch in loader) == 48

    signal_fetcher(cache)
    cache.rename(tmp_path / "gone")
    cache.write_bytes(b"")  # where no fetcher can be started

    assert sum(len(batch.values) for batch in loader) == 48
