"""What a store may answer: the same bits, or one error that says what to do, in bounded time."""

import asyncio
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loaders import DataLoader, ShardDataset
from loaders.data.shards import RemoteShard
from loaders.errors import ChecksumError, LoadersError, RemoteError, SampleError, ShardError
from loaders.remote.faults import fault_of
from loaders.remote.served import ServedURL
from loaders.remote.url import URL
from tests.refusals import without_hash
from tests.remote import servers
from tests.remote.conftest import storage
from tests.remote.test_remote import S3, assert_same, batches
from tests.waiting import wait_until

TRANSIENT = ["503", "503-after", "reset", "cut", "short", "flip", "200", "hang", "slow"]
TRANSIENT += ["400-expired", "403-expired", "403-throttled", "412", "500"]
STAYING = ["301", "403", "404", "416", "503", "cut", "short", "flip", "reset", "hang"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRANSIENT)
def test_an_answer_that_is_bad_once_changes_no_bit(
    packed: Path, proxy: servers.Proxy, cache: Path, kind: str
) -> None:
    """At each third request, the manifest's among them, and once."""
    local = ShardDataset(packed / "bucket" / "packed")
    for at in ([0], [1], [2, 5, 8]):
        proxy.set(faults=[{"kind": kind, "at": at}])
        remote = ShardDataset(S3, cache=cache / str(at[0]), storage=storage(proxy.endpoint))
        assert_same(batches(remote, batch_size=100), batches(local, batch_size=100))
        del remote


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAYING)
def test_an_answer_that_stays_bad_is_one_error_in_bounded_time(
    proxy: servers.Proxy, cache: Path, kind: str
) -> None:
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))
    proxy.set(faults=[{"kind": kind, "match": r"shard-0000[3-9]"}])
    began = time.monotonic()

    loader = DataLoader(remote, batch_size=60, num_workers=2)
    with pytest.raises(SampleError) as caught:
        for _ in loader:
            pass

    assert time.monotonic() - began < 90
    loader.close()  # who still waits would start the fetcher again when it is ended
    cause = caught.value.__cause__
    assert isinstance(cause, LoadersError)
    assert without_hash(getattr(cause, "path", "")) == f"{S3}/shard-00003.lmdb"
    assert getattr(cause, "hint", "") or kind in ("503", "reset", "hang")


def test_a_link_on_which_bytes_come_slowly_is_no_error(proxy: servers.Proxy, cache: Path) -> None:
    """A shard of 1.2 MB takes three times as long as a byte is waited for."""
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint, timeout=1))
    proxy.set(rate=400_000)

    remote[0]

    assert remote.stores[0].remotes[0].counts()["retries"] == 0


@pytest.mark.slow
def test_a_link_on_which_no_answer_is_whole_brings_a_shard(
    packed: Path, proxy: servers.Proxy, cache: Path
) -> None:
    proxy.set(faults=[{"kind": "drop"}])

    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))

    local = ShardDataset(packed / "bucket" / "packed")
    assert_same(batches(remote.select([0])), batches(local.select([0])))


def test_of_an_object_that_is_replaced_while_it_comes_all_bytes_are_of_one_state() -> None:
    size, num_asked = 600_000, 0

    class Replaced(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal num_asked
            num_asked += 1
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            data = (b"a" if num_asked == 1 else b"b") * (last + 1 - first)
            self.send_response(206)
            self.send_header("ETag", f'"{data[:1].decode()}"')
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            self.wfile.write(data[: size // 2 if num_asked == 1 else size])
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    async def read(url: str) -> bytes:
        return (await ServedURL(URL(url), {}, {}).get("x", 0, size)).data

    server = ThreadingHTTPServer(("127.0.0.1", 0), Replaced)
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    try:
        data = asyncio.run(read(f"http://127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()

    assert data == b"b" * size
    assert num_asked == 3


@pytest.mark.slow
def test_an_object_that_is_replaced_by_one_of_the_same_size_is_found(
    packed: Path, cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(packed / "bucket", tmp_path / "bucket")
    shard = next((tmp_path / "bucket/packed").glob("shard-00001-*"))
    with servers.bucket(tmp_path) as endpoint:
        remote = ShardDataset(S3, cache=cache, storage=storage(endpoint))
        data = bytearray(shard.read_bytes())
        data[5000] ^= 255
        shard.chmod(0o600)
        shard.write_bytes(data)

        with pytest.raises(SampleError) as caught:
            remote.read([int(remote.view.store.starts[1])])

    assert str(caught.value.path).endswith(shard.name)


@pytest.mark.parametrize("damage", ["end", "cut", "record"])
def test_a_shard_that_was_damaged_in_the_cache_is_an_error_that_says_how_it_is_fetched_again(
    server: str, cache: Path, damage: str
) -> None:
    remote = ShardDataset(S3, cache=cache, storage=storage(server), check="always")
    shard = remote.store.shards[3]
    assert isinstance(shard, RemoteShard)
    path = shard.fetch()
    path.chmod(0o600)
    whole = path.read_bytes()
    if damage == "record":
        remote = ShardDataset(S3, cache=cache, storage=storage(server))
        at = shard.info.places["label"].offset
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    else:
        path.write_bytes(whole[:-1] + (b"?" if damage == "end" else b""))

    with pytest.raises(ShardError) as caught:
        remote.store.record("label", remote.store.rows(remote.store.starts[3:4]))

    assert isinstance(caught.value, ChecksumError) == (damage != "cut")
    assert caught.value.path == shard.path
    assert f"packdata cache {cache} --clear" in caught.value.hint


@pytest.mark.slow
def test_a_server_that_is_started_anew_is_waited_for(packed: Path, cache: Path) -> None:
    port = servers.free_port()
    with servers.bucket(packed, port) as endpoint:
        patient = storage(endpoint, retry_timeout=60)
        remote = ShardDataset(S3, cache=cache, storage=patient)
    later = subprocess.Popen(
        ["sh", "-c", f"sleep 1; exec {servers._BIN}/localbucket {packed} --port {port}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        assert int(remote[9].label) == 2
    finally:
        later.kill()
        later.wait()


@pytest.mark.slow
def test_offline_a_dataset_that_is_all_in_the_cache_is_served(packed: Path, cache: Path) -> None:
    port = servers.free_port()
    options: dict[str, Any] = storage(f"http://127.0.0.1:{port}", retry_timeout=1)
    with servers.bucket(packed, port):
        remote = ShardDataset(S3, cache=cache, storage=options)
        whole = batches(remote)

    assert_same(batches(ShardDataset(S3, cache=cache, storage=options)), whole)
    with pytest.raises(RemoteError):
        ShardDataset("s3://bucket/other", cache=cache, storage=options)


def test_a_name_that_does_not_resolve_is_an_error_in_bounded_time(shared: Path) -> None:
    began = time.monotonic()

    with pytest.raises(RemoteError) as caught:
        ShardDataset(S3, cache=shared, storage=storage("http://no-such-host.invalid:80"))

    assert str(caught.value.path) == S3
    assert time.monotonic() - began < 30


def test_all_that_wait_for_a_shard_get_the_same_error(proxy: servers.Proxy, cache: Path) -> None:
    """As ranks do, also one that comes later: each has its own connection to the fetcher, which asked once.

    It asks again for an answer that takes longer than ``timeout``. A reader of another test may still ask the proxy.
    """
    proxy.set(faults=[{"kind": "404", "match": "shard-00003"}], latency_s=0.3)
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint, timeout=30))
    (origin,) = remote.store.remotes
    before = origin.counts()["requests"]

    def fetch(_: int) -> LoadersError:
        with pytest.raises(LoadersError) as caught:
            remote.store.shards[3].fetch()  # type: ignore[union-attr]
        return caught.value

    with ThreadPoolExecutor(4) as pool:
        errors = [*pool.map(fetch, range(4)), fetch(4)]

    assert {(type(error), error.args) for error in errors} == {(type(errors[0]), errors[0].args)}
    assert origin.counts()["requests"] == before + 1


def test_who_waits_says_for_which_shard(proxy: servers.Proxy, cache: Path) -> None:
    remote = ShardDataset(S3, cache=cache, storage=storage(proxy.endpoint))
    proxy.set(faults=[{"kind": "503", "match": "shard-00003"}])
    (origin,) = remote.store.remotes

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(remote.store.shards[3].fetch)  # type: ignore[union-attr]
        wait_until(lambda: any("shard-00003-" in text for text in origin.waits()))
        assert isinstance(failing.exception(60), RemoteError)

    assert not origin.waits()


@pytest.mark.parametrize("place", ["run-404/redirect/shard-412.lmdb", "expired-InvalidToken/403"])
@pytest.mark.parametrize(
    "seconds", ["308.078µs", "404ms, after 4 retries, max_retries: 4, retry_timeout: 416s "]
)
def test_what_was_asked_for_and_how_long_it_took_is_no_answer(place: str, seconds: str) -> None:
    asked = f"Generic S3 error: Error performing GET http://host:301/{place} in {seconds}"

    late = fault_of(Exception(f"{asked} - HTTP error: error sending request"))
    refused, gone, busy = (
        fault_of(Exception(f"{asked} - Server returned non-2xx status code: {answer}: "))
        for answer in ("403 Forbidden", "410 Gone", "429 Too Many Requests")
    )

    assert (late.kind, refused.kind, gone.kind) == ("network", "denied", "missing")
    assert busy.kind == "network"
    assert "what it answers" in busy.hint
    assert place in late.text
