"""A dataset at a URL is the same dataset."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loaders import DataLoader, ShardDataset
from loaders.errors import CacheError, ManifestError, RemoteError, SampleError
from loaders.remote.folder import Cache
from loaders.remote.origin import origin_of
from loaders.remote.url import URL, is_url, url_of
from packdata.cli import main
from tests.refusals import without_hash
from tests.remote import servers
from tests.remote.conftest import is_alive, storage
from tests.waiting import wait_until

S3 = "s3://bucket/packed"


def batches(dataset: Any, **options: Any) -> list[Any]:
    options = {"batch_size": 32, "shuffle": True, "num_workers": 2} | options
    return [[field.clone() for field in batch] for batch in DataLoader(dataset, **options)]


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert all((a == b).all() for a, b in zip(left, right, strict=True))


def test_a_url_serves_what_the_folder_serves_and_each_byte_comes_once(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    local = ShardDataset(packed / "bucket" / "packed")
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))

    assert remote.fingerprint == local.fingerprint
    for _ in range(2):
        assert_same(batches(remote), batches(local))
    assert sum(each["bytes"] for each in proxy.requests(".lmdb")) == sum(
        path.stat().st_size for path in (packed / "bucket" / "packed").glob("*.lmdb")
    )
    assert len(proxy.requests("manifest.json")) == 1
    counts = DataLoader(remote, batch_size=32).stats().remote
    assert counts is not None
    assert counts["bytes"] == sum(each["bytes"] for each in proxy.requests())
    assert counts["requests"] == len(proxy.requests())
    assert counts["hits"] + counts["misses"] >= 10  # in two epochs
    assert DataLoader(local).stats().remote is None


def test_requests_are_signed_and_a_wrong_key_is_an_error_without_it(
    signed: str, cache: Path
) -> None:
    options = storage(signed) | servers.SECRET
    del options["skip_signature"]
    remote = ShardDataset(S3, cache=cache, storage=options)
    wrong = options | {"secret_access_key": "not-that-one"}

    with pytest.raises(RemoteError) as caught:
        ShardDataset(S3, cache=cache, storage=wrong)

    assert int(remote[3].label) == 3
    assert "not-that-one" not in str(caught.value)
    log = (cache / "v2" / "fetcher.log").read_text()
    assert "not-that-one" not in log
    assert servers.SECRET["secret_access_key"] not in log


def test_a_web_server_and_a_network_disk_serve_it_too(
    packed: Path, server: str, cache: Path
) -> None:
    places = [f"{server}/bucket/packed", (packed / "bucket" / "packed").as_uri()]

    datasets = [ShardDataset(place, cache=cache) for place in places]

    assert [int(each.read([500])[0].label) for each in datasets] == [500 % 7, 500 % 7]
    assert len(list((cache / "v2" / "shards").glob("??/*"))) == 1  # one content, one file


def test_a_pickle_has_no_secret_and_is_served_by_the_fetcher_that_knows_it(
    signed: str, shared: Path
) -> None:
    options = storage(signed) | servers.SECRET
    del options["skip_signature"]
    remote = ShardDataset(S3, cache=shared, storage=options)

    pickled = pickle.dumps(remote)
    copy = pickle.loads(pickled)

    assert servers.SECRET["secret_access_key"].encode() not in pickled
    assert servers.SECRET["secret_access_key"] not in repr(remote.view.store.shards[0])
    assert int(copy[5].label) == 5


def test_a_copy_of_a_copy_names_the_secrets_that_its_fetcher_does_not_know(cache: Path) -> None:
    secret = {"access_key_id": "nobody", "secret_access_key": "swordfish"}
    closed = {"endpoint": "http://127.0.0.1:1", "retry_timeout": 1}
    origin = origin_of(URL("s3://bucket/elsewhere"), cache, closed | secret)
    for _ in range(2):
        origin = pickle.loads(pickle.dumps(origin))

    with pytest.raises(RemoteError) as raised:
        origin.manifest()

    assert all(name in raised.value.what for name in secret)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["thread", "subprocess", "process"])
def test_every_backend_serves_the_same(
    packed: Path, server: str, cache: Path, backend: str
) -> None:
    local = ShardDataset(packed / "bucket" / "packed")
    remote = ShardDataset(S3, cache=cache, storage=storage(server))

    assert_same(batches(remote, backend=backend), batches(local))


def test_a_missing_dataset_and_a_dead_server_are_errors_with_the_url(
    server: str, shared: Path
) -> None:
    with pytest.raises(ManifestError) as missing:
        ShardDataset("s3://bucket/nothing", cache=shared, storage=storage(server))
    with pytest.raises(RemoteError) as dead:
        ShardDataset(S3, cache=shared, storage=storage("http://127.0.0.1:1", retry_timeout=1))
    with pytest.raises(ManifestError) as fileless:
        ShardDataset(f"file://{shared}/nothing", cache=shared)

    with pytest.raises(ManifestError) as bucketless:
        ShardDataset("s3://nowhere/packed", cache=shared, storage=storage(server))
    with pytest.raises(RemoteError) as asked:
        origin_of(URL("s3://nowhere/packed"), shared, storage(server)).small_file("a")

    assert str(missing.value.path).startswith("s3://bucket/nothing")
    assert "bucket" in bucketless.value.hint != missing.value.hint
    assert asked.value.hint == bucketless.value.hint
    assert fileless.value.hint == missing.value.hint
    assert "NoSuchBucket" in asked.value.what
    assert "<" not in asked.value.what
    assert str(dead.value.path) == S3


def test_a_shard_that_is_missing_names_url_shard_and_row(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    proxy.set(faults=[{"kind": "404", "match": "shard-00002"}])
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))
    first = int(remote.view.store.starts[2])

    with pytest.raises(SampleError) as caught:
        remote[first + 1]

    assert without_hash(caught.value.path) == f"{S3}/shard-00002.lmdb"
    assert caught.value.row == 1


@pytest.mark.slow
def test_nothing_of_a_store_is_imported_by_who_trains(
    packed: Path, server: str, cache: Path
) -> None:
    script = f"""
import sys
from loaders import ShardDataset
local = ShardDataset({str(packed / "bucket" / "packed")!r})
print(len(local), "loaders.remote.origin" in sys.modules)
remote = ShardDataset({S3!r}, cache={str(cache)!r}, storage={storage(server)!r})
assert remote[0]
print(*{{"obstore", "boto3", "fsspec"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == f"{len(ShardDataset(packed / 'bucket' / 'packed'))} False\n\n"


@pytest.mark.slow
def test_the_fetcher_ends_after_its_last_client(server: str, cache: Path) -> None:
    """And has no pipe of the trainer's: what waits for the end of that would wait for the fetcher, too."""
    script = f"""
import os
from loaders import ShardDataset
assert ShardDataset({S3!r}, cache={str(cache)!r}, storage={storage(server)!r})[0]
pid = open({str(cache / "v2" / "lock")!r}).read()
print(pid, os.readlink(f"/proc/{{pid}}/fd/1"), os.getsid(int(pid)) == os.getsid(0))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, stdout=subprocess.PIPE)
    pid, output, is_of_session = done.stdout.decode().split()

    assert (output, is_of_session) == ("/dev/null", "False")
    wait_until(lambda: not is_alive(int(pid)), 30)
    assert not list((cache / "v2" / "parts").iterdir())


def test_a_folder_with_files_of_somebody_is_refused_and_left_alone(
    packed: Path, server: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")

    for folder in (mine, packed / "bucket" / "packed"):
        before = sorted(os.listdir(folder))
        with pytest.raises(CacheError):
            ShardDataset(S3, cache=folder, storage=storage(server))
        assert sorted(os.listdir(folder)) == before


def test_what_a_cache_can_be() -> None:
    assert Cache.parse("500GB").size_bytes == 500 << 30
    assert Cache.parse("1.5 GiB").size_bytes == 3 << 29
    assert str(Cache.parse("/nvme/cache").folder) == "/nvme/cache"
    both = Cache.parse({"path": "/nvme", "size": "2TB"})
    assert (str(both.folder), both.size_bytes) == ("/nvme", 2 << 40)
    for wrong, error in (
        ("0GB", ValueError),
        ({"place": "/x"}, ValueError),
        (0, ValueError),
        (1.5, TypeError),
    ):
        with pytest.raises(error):
            Cache.parse(wrong)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3:/bucket/a", "s3://bucket/a"),
        ("S3://bucket/a?b#c", "s3://bucket/a?b#c"),
        ("https://host:8/a#b", "https://host:8/a"),
        ("file:///data/a", "file:///data/a"),
        ("file:/data/a", "file:///data/a"),
    ],
)
def test_a_url_may_be_spelled_in_some_ways(given: str, url: str) -> None:
    assert str(url_of(given)) == url
    assert is_url(given)
    assert str((URL(url) / "x.lmdb").parent) == str(pickle.loads(pickle.dumps(URL(url)))) == url


@pytest.mark.parametrize(
    "url", ["https://me:word@host:8/a", "https://host/a?word=1", "s3://word@b"]
)
def test_a_url_with_secrets_is_refused_without_them(url: str) -> None:
    with pytest.raises(RemoteError) as caught:
        url_of(url)

    assert "word=" not in f"{caught.value}"
    assert "word@" not in f"{caught.value}"


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/a//b", "https://host/a/./b", "gs://bucket/a/b//c"),
        *("s3://bucket//a", "s3://bucket/./a", "s3://bucket/a/."),
    ],
)
def test_a_key_that_would_become_another_one_is_refused(url: str) -> None:
    """In a store these are other objects; in a folder they are the same file."""
    with pytest.raises(RemoteError) as caught:
        url_of(url)

    assert str(caught.value.path) == url
    assert str(url_of("file:///a//b")) == "file:///a/b"


def test_a_url_is_joined_as_a_path_and_is_none() -> None:
    """What asks a path for its file, such as open(), is an error: no file lies there."""
    url = url_of("s3://bucket/a")

    assert (repr(url), f"{url / 'b' / 'c.lmdb'}") == (
        "URL('s3://bucket/a')",
        "s3://bucket/a/b/c.lmdb",
    )
    assert (url / "", url / "b" / "..", (url / "b").parent) == (url, URL(f"{url}/b/.."), url)
    assert (url.name, url.parent.name, url.parent.parent) == ("a", "bucket", URL("s3://bucket"))
    assert len({url, url_of("s3://bucket/a/"), pickle.loads(pickle.dumps(url))}) == 1
    assert url.absolute() is url
    assert not isinstance(url, os.PathLike)
    assert not hasattr(url, "exists")
    with pytest.raises(TypeError):
        os.fspath(url)  # type: ignore[call-overload]


@pytest.mark.parametrize("path", ["packed/train", "/a:/b", "C:/data", "./s3", "a/b://c"])
def test_a_path_is_no_url(path: str) -> None:
    assert not is_url(path)


def test_who_opens_a_url_again_gets_what_is_there_by_now(
    packed: Path, cache: Path, tmp_path: Path
) -> None:
    url, few = f"file://{tmp_path}/there", tmp_path / "few"
    shutil.copytree(packed / "bucket" / "packed", tmp_path / "there")
    assert main(["copy", str(tmp_path / "there"), str(few), "--where", "label == 3"]) == 0
    before = ShardDataset(url, cache=cache)

    for path in few.iterdir():
        shutil.copy(path, tmp_path / "there")

    assert len(ShardDataset(url)) == len(ShardDataset(few)) < len(before)
