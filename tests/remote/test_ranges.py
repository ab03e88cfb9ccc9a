"""Records by ranges: few samples of a store are read without fetching whole shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import packdata
from loaders import DataLoader, ShardDataset
from loaders.data.sparse import Span, coalesced
from loaders.data.view import open_view
from loaders.errors import CacheError, ChecksumError, SampleError
from loaders.remote import origin
from loaders.schema import Bytes, Label
from tests.remote import servers
from tests.remote.conftest import ended, storage
from tests.remote.test_remote import S3, assert_same, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for tests whose data never come to lie in it."""
    with ended(tmp_path_factory.mktemp("of") / "cache") as folder:
        yield folder


def by_records(folder: Path, proxy: servers.Proxy, url: str = S3) -> ShardDataset:
    limits = {"path": folder, "mode": "records"}
    return ShardDataset(url, cache=limits, storage=storage(proxy.endpoint))


def shards_in(cache: Path) -> int:
    return len(list((cache / "v1" / "shards").glob("??/*")))


def test_one_sample_costs_its_records_and_many_of_a_shard_all_of_it(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    """The shard is fetched whole when its ranges have cost half as much."""
    local = ShardDataset(packed / "bucket" / "packed")
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))

    assert (remote[250].values == local[250].values).all()
    assert int(remote[250].label) == int(local[250].label)

    came = sum(each["bytes"] for each in proxy.requests(".lmdb"))
    assert 20_000 <= came < 100_000
    assert shards_in(cache) == 0
    first = int(remote.view.store.starts[4])
    assert all((remote[i].values == local[i].values).all() for i in range(first, first + 20))
    assert shards_in(cache) == 1


def test_records_of_every_kind_are_those_of_the_folder_and_nothing_is_kept(
    tmp_path: Path, shared: Path
) -> None:
    """Of one size and of several, in both formats."""
    random = np.random.default_rng(0)
    fields = {"data": Bytes(), "label": Label()}
    for format in ("lmdb", "parquet"):
        samples = ({"data": random.bytes(1 + 700 * i), "label": i % 3} for i in range(90))
        folder = tmp_path / "root" / "bucket" / format
        packdata.pack(samples, folder, fields, shard_bytes=900_000, format=format)
    with servers.bucket(tmp_path / "root") as endpoint, servers.proxy(endpoint) as proxy:
        for format in ("lmdb", "parquet"):
            local = ShardDataset(tmp_path / "root" / "bucket" / format)
            remote = by_records(shared, proxy, f"s3://bucket/{format}")
            for shuffle in (True, False):
                pairs = zip(_pass(remote, shuffle), _pass(local, shuffle), strict=True)
                assert all(one == other for one, other in pairs)
            view = open_view(tmp_path / "root" / "bucket" / format)
            assert list(remote.view.lengths("data")) == list(view.lengths("data"))
    assert shards_in(shared) == 0


def _pass(dataset: ShardDataset, shuffle: bool) -> list[Any]:
    loader = DataLoader(dataset, 20, shuffle=shuffle, num_workers=2)
    return [(list(map(bytes, batch.data)), batch.label.tolist()) for batch in loader]


@pytest.mark.parametrize("kind", ["flip", "cut", "503"])
def test_bad_answers_change_no_bit_and_those_that_stay_bad_are_an_error(
    packed: Path, proxy: servers.Proxy, shared: Path, kind: str
) -> None:
    local = ShardDataset(packed / "bucket" / "packed")
    remote = by_records(shared, proxy)
    proxy.set(faults=[{"kind": kind, "match": "shard", "at": [0, 12, 24, 36, 48]}])
    assert_same(batches(remote, batch_size=100), batches(local, batch_size=100))
    if kind != "flip":
        return
    remote = by_records(shared, proxy)
    first = int(remote.view.store.starts[3])
    assert int(remote[first].label) == int(local[first].label)
    proxy.set(faults=[{"kind": "flip", "match": "shard-00003"}])

    with pytest.raises(SampleError) as caught:
        remote[first + 2]

    assert isinstance(caught.value.__cause__, ChecksumError)
    assert str(caught.value.path) == f"{S3}/shard-00003.lmdb"
    assert caught.value.row == 2


def test_a_loader_of_few_samples_of_many_shards_reads_ranges_and_a_whole_pass_shards(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    local = ShardDataset(packed / "bucket" / "packed")
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))
    few = [int(start) + 5 for start in local.view.store.starts[:9]]

    for shuffle in (False, True):
        ours, theirs = ([int(b.label[0]) for b in _few(d, few, shuffle)] for d in (remote, local))
        assert ours == theirs

    assert shards_in(cache) == 0
    assert_same(batches(remote), batches(local))
    assert shards_in(cache) == len(local.view.store.shards)


def _few(dataset: ShardDataset, rows: list[int], shuffle: bool) -> DataLoader:
    return DataLoader(dataset.select(rows), 1, shuffle=shuffle, num_workers=1)


def test_preview_and_a_cache_that_is_too_small_are_served_by_ranges(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    limits: dict[str, Any] = {"path": cache, "size": 2_500_000}
    remote = ShardDataset(S3, cache=limits, storage=storage(proxy.endpoint))
    with pytest.raises(CacheError) as caught:
        next(iter(DataLoader(remote, 100, shuffle=True)))
    assert "records" in caught.value.hint

    remote = by_records(cache, proxy)
    assert len(batches(remote, batch_size=100)) == 6
    origin.set_defaults(cache, storage(proxy.endpoint))
    try:
        assert open_view(S3).sample(77)["label"] == 0
    finally:
        origin.set_defaults()
    assert shards_in(cache) == 0


def test_ranges_that_lie_close_are_one_request() -> None:
    spans = [Span(start, start + 10) for start in (0, 100, 262_254, 262_255, 600_000)]

    assert coalesced(spans) == [(0, 262_265), (600_000, 600_010)]
    assert coalesced([]) == []
