"""A dataset in a bucket, servers before it, and caches that leave nothing behind."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import packdata
from loaders.remote import origin
from loaders.schema import Array, Label
from tests.remote import servers
from tests.waiting import wait_until

NUM_SAMPLES, ROW = 600, 5_000  # of 20 kB: 10 shards of 1.2 MB
SETTINGS: dict[str, Any] = {
    "skip_signature": True,
    "retry_timeout": 4,
    "timeout": 1.5,
}


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``root``, with a packed dataset in its bucket: ``bucket/packed``."""
    root = tmp_path_factory.mktemp("store")
    rows = np.random.default_rng(0).integers(0, 2**31, (NUM_SAMPLES, ROW), np.int32)
    samples = ({"values": row, "label": i % 7} for i, row in enumerate(rows))
    fields = {"values": Array(dtype="int32", dims=(ROW,)), "label": Label()}
    packdata.pack(samples, root / "bucket" / "packed", fields, shard_bytes=1_200_000)
    return root


@pytest.fixture(scope="session")
def server(packed: Path) -> Iterator[str]:
    """The endpoint of a server of the bucket."""
    with servers.bucket(packed) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def signed(packed: Path) -> Iterator[str]:
    """The endpoint of a server of the bucket that wants requests to be signed by ``servers.SECRET``."""
    with servers.signed_bucket(packed) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache, and one fetcher, for tests of which no shard comes to lie in it."""
    with ended(tmp_path_factory.mktemp("of") / "cache") as folder:
        yield folder


@pytest.fixture(scope="session")
def _proxy(server: str) -> Iterator[servers.Proxy]:
    with servers.proxy(server) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: servers.Proxy) -> servers.Proxy:
    """The fault proxy before that server, which does no harm yet."""
    _proxy.set()
    return _proxy


class Store(NamedTuple):
    """An empty bucket ``out`` behind a fault proxy, where URLs are looked up meanwhile.

    Attributes:
        root: The folder that is served.
        proxy: The proxy.
        cache: The cache of all tests of it: nothing of what is sent lies there.
    """

    root: Path
    proxy: servers.Proxy
    cache: Path

    @property
    def options(self) -> list[str]:
        """How a command reaches it."""
        given = [f"--storage={name}={value}" for name, value in SETTINGS.items()]
        return [*given, f"--storage=endpoint={self.proxy.endpoint}", f"--cache={self.cache}"]


@pytest.fixture(scope="session")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    root, cache = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("of") / "cache"
    with servers.bucket(root) as endpoint, servers.proxy(endpoint) as proxy, ended(cache):
        yield Store(root, proxy, cache)


@pytest.fixture
def store(_store: Store) -> Iterator[Store]:
    """A bucket to write to."""
    _store.proxy.set()
    for path in _store.root.iterdir():
        shutil.rmtree(path)
    (_store.root / "out").mkdir()
    origin.set_defaults(_store.cache, storage(_store.proxy.endpoint))
    yield _store
    origin.set_defaults()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A folder for a cache; at the end its fetcher is gone, and nothing is half done there."""
    with ended(tmp_path / "cache") as folder:
        yield folder


@contextlib.contextmanager
def ended(folder: Path) -> Iterator[Path]:
    """A cache folder, whose fetcher is gone at the end."""
    yield folder
    pid = fetcher_of(folder)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid))
    shutil.rmtree(folder, ignore_errors=True)


def fetcher_of(folder: Path) -> int:
    """The process id of a cache's fetcher; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "v2" / "lock").read_text())
        return pid if is_alive(pid) else 0
    return 0


def signal_fetcher(folder: Path, number: signal.Signals = signal.SIGKILL) -> int:
    """Send a cache's fetcher a signal; return its process id."""
    pid = fetcher_of(folder)
    assert pid, f"no fetcher of {folder}"  # 0 would be all processes of this group
    os.kill(pid, number)
    return pid


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


def storage(endpoint: str, **more: Any) -> dict[str, Any]:
    """Options of the test server."""
    return SETTINGS | {"endpoint": endpoint} | more
