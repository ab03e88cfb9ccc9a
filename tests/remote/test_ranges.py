"""Records by ranges: few samples of a store are read without fetching whole shards."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders import DataLoader, ShardDataset
from loaders.data import sparse
from loaders.data.sparse import Span, coalesced
from loaders.data.view import open_view
from loaders.errors import CacheError, ChecksumError, SampleError
from loaders.remote import origin
from loaders.schema import Bytes, Label
from tests.remote import servers
from tests.remote.conftest import storage
from tests.remote.test_remote import S3, assert_same, batches
from tests.waiting import wait_until


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


@pytest.mark.parametrize(
    "kind", ["flip", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("cut", "503"))]
)
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


def test_who_waits_for_records_says_of_which_shard_and_what_the_store_answered(
    proxy: servers.Proxy, shared: Path
) -> None:
    remote = by_records(shared, proxy)
    store = remote.view.store
    proxy.set(latency_s=0.2, faults=[{"kind": "503", "match": "shard-00003"}])

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(remote.__getitem__, int(store.starts[3]))
        said = ("shard-00003.lmdb", "retries", "503")
        wait_until(lambda: any(all(each in text for each in said) for text in store.waits()))
        assert isinstance(failing.exception(60), SampleError)

    assert not store.waits()


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


def test_what_comes_between_ranges_is_not_written_over_what_is_here(
    packed: Path, proxy: servers.Proxy, shared: Path
) -> None:
    """Another byte of sample 10 comes with samples 8 and 12, and is nobody's."""
    local = ShardDataset(packed / "bucket" / "packed")
    remote = by_records(shared, proxy)
    assert (remote[10].values == local[10].values).all()
    proxy.set(faults=[{"kind": "flip", "match": "shard-00000"}])

    remote.read([8, 12])

    assert len(proxy.requests("shard-00000.lmdb")) == 1
    assert (remote[10].values == local[10].values).all()


def test_places_of_records_that_came_wrong_are_fetched_again(tmp_path: Path, shared: Path) -> None:
    """And their checksums: one byte of what is fetched when the shard is opened is another."""
    samples = [{"data": bytes([i]) * (1 + 400 * (i % 40))} for i in range(150)]
    packdata.pack(samples, tmp_path / "root" / "bucket" / "set", {"data": Bytes()})
    with servers.bucket(tmp_path / "root") as endpoint, servers.proxy(endpoint) as proxy:
        remote = by_records(shared, proxy, "s3://bucket/set")
        proxy.set(faults=[{"kind": "flip", "match": "shard", "at": [0]}])
        for i in range(0, 150, 4):
            assert bytes(remote[i].data) == samples[i]["data"]


def within(seconds: float, call: Any) -> Any:
    """Return what a call returns, which is not to take longer."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((call(), None))
        except Exception as error:
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "it did not end"
    found, error = results[0]
    if error is not None:
        raise error
    return found


def test_more_than_is_kept_is_read_in_one_go(
    packed: Path, proxy: servers.Proxy, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "_KEPT_BYTES", 100_000)
    store = by_records(shared, proxy).view.store
    rows = store.rows(np.arange(0, 600, 40))
    out = np.empty((15, 20_000), np.uint8)

    for _ in range(2):
        within(20, lambda: store.gather("values", rows, out))

    local = ShardDataset(packed / "bucket" / "packed").column("values")
    assert (out.view(np.int32) == np.asarray(local)[::40]).all()


def test_a_cache_in_which_few_shards_fit_serves_whole_ones_beside_ranges(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    limits: dict[str, Any] = {"path": cache, "size": 5_000_000}
    remote = ShardDataset(S3, cache=limits, storage=storage(proxy.endpoint))
    local = ShardDataset(packed / "bucket" / "packed")
    assert int(remote[0].label) == 0

    batch = within(20, lambda: remote.read([65, 125, 185]))

    pairs = zip(batch, (65, 125, 185), strict=True)
    assert all((each.values == local[i].values).all() for each, i in pairs)


@pytest.mark.slow
def test_threads_that_give_up_each_others_records_get_their_own(
    packed: Path, proxy: servers.Proxy, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "_KEPT_BYTES", 150_000)
    wanted = np.asarray(ShardDataset(packed / "bucket" / "packed").column("values"))
    dataset = by_records(shared, proxy)
    before = sys.getswitchinterval()

    def read(seed: int) -> int:
        random, num_right = np.random.default_rng(seed), 0
        for _ in range(8):
            numbers = random.integers(600, size=4)
            found = dataset.view.store.records("values", dataset.view.store.rows(numbers))
            num_right += all(
                (np.frombuffer(each, np.int32) == wanted[i]).all()
                for each, i in zip(found, numbers, strict=True)
            )
        return num_right

    def all_read() -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(read, range(4)))

    sys.setswitchinterval(1e-5)
    try:
        assert within(60, all_read) == [8] * 4
    finally:
        sys.setswitchinterval(before)


def test_ranges_that_lie_close_are_one_request() -> None:
    spans = [Span(start, start + 10) for start in (0, 100, 262_254, 262_255, 600_000)]

    assert coalesced(spans) == [(0, 262_265), (600_000, 600_010)]
    assert coalesced([]) == []
