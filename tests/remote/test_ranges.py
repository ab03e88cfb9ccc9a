"""Small columns of shards at URLs are fetched by ranges; samples, by whole shards."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import packdata
from loaders import DataLoader, ShardDataset
from loaders.data.view import open_view
from loaders.errors import ShardError
from loaders.remote import origin
from loaders.schema import Bytes, Label, Text
from packdata.inspect.stats import stats
from tests.refusals import without_hash
from tests.remote import servers
from tests.remote.conftest import storage

NUM, ROW, SHARD = 240, 100_000, 6_000_000
NUM_SHARDS = 4
FIELDS = {"data": Bytes(), "label": Label(), "key": Text()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket with one dataset in each format, of four shards."""
    random, root = np.random.default_rng(0), tmp_path_factory.mktemp("ranges")
    data = random.bytes(ROW + NUM)
    for format in ("lmdb", "parquet"):
        samples = (
            {"data": data[i : i + ROW], "label": i % 7, "key": "é" * (20 + i * i % 7) + str(i)}
            for i in range(NUM)
        )
        folder = root / "bucket" / format
        packdata.pack(samples, folder, FIELDS, shard_bytes=SHARD, format=format)
    return root


@pytest.fixture(scope="module")
def _front(root: Path) -> Iterator[servers.Proxy]:
    with servers.bucket(root) as endpoint, servers.proxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def front(_front: servers.Proxy) -> servers.Proxy:
    _front.set()
    return _front


def remote(front: servers.Proxy, cache: Path, format: str = "parquet") -> ShardDataset:
    url = f"s3://bucket/{format}"
    return ShardDataset(url, cache=cache, storage=storage(front.endpoint))


def shards_in(cache: Path) -> int:
    return len(list((cache / "v2" / "shards").glob("??/*")))


@pytest.mark.parametrize("format", ["lmdb", "parquet"])
def test_a_fixed_column_takes_two_ranges_of_each_shard(
    root: Path, front: servers.Proxy, cache: Path, format: str
) -> None:
    dataset, local = remote(front, cache, format), ShardDataset(root / "bucket" / format)

    np.testing.assert_array_equal(dataset.column("label"), local.column("label"))

    assert shards_in(cache) == 0
    assert len(front.requests(f".{format}")) == 2 * NUM_SHARDS


def test_a_varying_column_of_parquet_takes_three(
    root: Path, front: servers.Proxy, cache: Path
) -> None:
    dataset, local = remote(front, cache), ShardDataset(root / "bucket" / "parquet")

    np.testing.assert_array_equal(dataset.column("key"), local.column("key"))

    assert len(front.requests(".parquet")) == 3 * NUM_SHARDS
    np.testing.assert_array_equal(dataset.lengths("key"), local.lengths("key"))
    some = [5, 200, 6]
    np.testing.assert_array_equal(dataset.select(some).column("key"), local.column("key")[some])
    assert dataset.select(some).view.keys() == list(local.column("key")[some])
    assert shards_in(cache) == 0


def test_other_reads_fetch_whole_shards(root: Path, front: servers.Proxy, cache: Path) -> None:
    """Rows that lie apart, most of the bytes, and samples."""
    lmdb, parquet = remote(front, cache, "lmdb"), remote(front, cache)

    assert parquet[70].data == ShardDataset(root / "bucket/parquet")[70].data
    assert shards_in(cache) == 1
    assert parquet.lengths("data").tolist() == [ROW] * NUM
    assert shards_in(cache) == NUM_SHARDS
    assert lmdb.column("key")[0] == "é" * 20 + "0"
    assert shards_in(cache) == 2 * NUM_SHARDS


def test_what_is_in_the_cache_is_not_fetched_again(
    root: Path, front: servers.Proxy, cache: Path
) -> None:
    dataset = remote(front, cache)
    _ = dataset[0]
    front.set()

    labels = dataset.column("label")

    np.testing.assert_array_equal(labels, ShardDataset(root / "bucket/parquet").column("label"))
    assert len(front.requests(".parquet")) == 2 * (NUM_SHARDS - 1)


@pytest.mark.parametrize("at", range(3))
def test_a_shard_of_which_a_range_came_damaged_is_fetched_whole(
    root: Path, front: servers.Proxy, cache: Path, at: int
) -> None:
    """The lengths, the rows, or the checksums."""
    dataset, local = remote(front, cache), ShardDataset(root / "bucket" / "parquet")
    front.set(faults=[{"kind": "flip", "match": "shard-00002", "at": [at]}])

    np.testing.assert_array_equal(dataset.column("key"), local.column("key"))

    assert shards_in(cache) == 1


def test_what_is_damaged_in_the_store_is_an_error(front: servers.Proxy, cache: Path) -> None:
    dataset = remote(front, cache)
    front.set(faults=[{"kind": "flip", "match": "shard-00002"}])

    with pytest.raises(ShardError) as caught:
        dataset.column("label")

    assert without_hash(caught.value.path) == "s3://bucket/parquet/shard-00002.parquet"


def test_a_view_of_few_samples_of_many_shards_is_told_what_it_costs(
    front: servers.Proxy, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; a view of most of the samples of its shards is not."""
    dataset = remote(front, cache)
    few, most = dataset.select(range(0, NUM, 10)), dataset.select(range(NUM // 2))

    with caplog.at_level(logging.WARNING, "loaders"):
        for _ in DataLoader(most, batch_size=60, num_workers=1):
            pass
        assert not caplog.records
        for _ in range(2):
            for _ in DataLoader(few, batch_size=6, num_workers=1):
                pass

    assert sum("packdata.write" in record.getMessage() for record in caplog.records) == 1


def test_looking_at_samples_takes_those_of_the_first_two_shards(
    front: servers.Proxy, cache: Path
) -> None:
    origin.set_defaults(cache, storage(front.endpoint))
    try:
        view = open_view("s3://bucket/parquet")
        found = stats("s3://bucket/parquet", limit=3)
    finally:
        origin.set_defaults()

    assert len(view.first_at_url()) == view.store.ends[1] < len(view) == found.num_samples
    assert shards_in(cache) <= 2


def test_reading_records_alone_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"packdata\.write"):
        ShardDataset("s3://bucket/parquet", cache={"path": tmp_path, "mode": "records"})
