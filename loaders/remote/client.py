"""Asking the fetcher: it is started where none runs, and asked again where it dies.

1. Each thread that asks has a connection of its own meanwhile; a forked child makes new ones.
2. The fetcher answers, or says each ``BEAT_S`` that it works. One that is silent for ``SILENCE_S`` is an error: it was
   stopped, and holds the folder.
3. A broken connection is a dead fetcher, or one whose folder was removed: another one is started, by one client of the
   machine, and the question is asked again, at most ``_ATTEMPTS`` times.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders import version
from loaders.errors import CacheError, RemoteError
from loaders.remote.folder import VERSION, manifest_folder, prepare, shard_path, small_file
from loaders.remote.url import OBSTORE_SCHEMES
from loaders.remote.wire import Connection
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.remote.folder import Cache
    from loaders.remote.url import URL

START_S = 30.0
_ATTEMPTS = 8
_PAUSE_S = 0.02
_NOBODY = (FileNotFoundError, ConnectionError)
_PASSED = frozenset(  # to the fetcher, which serves several jobs: nothing of one of them
    ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ"]
)


class Client:
    """Asks the fetcher of a folder, for this process; each connection says hello first. Thread-safe."""

    def __init__(self, inside: Path, hello: Callable[[], dict[str, Any]]) -> None:
        self.inside, self._hello = inside, hello
        self._free: list[Connection] = []
        weakref.finalize(self, _hang_up, self._free)
        self._owner = os.getpid()
        self._lock = ForkLock()

    def ask(self, op: str, **about: Any) -> Any:
        """Return the answer to a question, or raise its error; RemoteError if the fetcher is silent."""
        for _ in range(_ATTEMPTS):
            with suppress(*_NOBODY):
                connection = self._take()
                try:
                    return connection.ask(op, **about)
                finally:
                    self._give(connection)
        what = f"the cache's fetcher died {_ATTEMPTS} times during one request"
        raise CacheError(what, self.inside.parent, _look(self.inside))

    def _take(self) -> Connection:
        with self._lock.plain:
            if self._owner != os.getpid():  # a fork: the parent goes on with its own copies
                _hang_up(self._free)
                self._owner = os.getpid()
            if self._free:
                return self._free.pop()
        return self.connect()

    def _give(self, connection: Connection) -> None:
        if connection.is_idle:
            with self._lock.plain:
                self._free.append(connection)
        else:
            connection.close()

    def connect(self) -> Connection:
        """Return a new connection, which has said hello; a fetcher is started if none runs."""
        connection = _connected(self.inside)
        try:
            connection.ask("hello", **self._hello())
        except BaseException:
            connection.close()
            raise
        return connection


@dataclass(frozen=True, slots=True)
class ReadOnlyCache:
    """Answers in the place of a fetcher, for a cache that cannot be written: what lies in it is served."""

    inside: Path  # the cache folder of this version
    manifest: Path  # the folder of the manifest that it has of a URL
    error: CacheError  # that it cannot be written: raised for what does not lie in it

    def ask(self, op: str, **about: Any) -> Any:
        """Return the answer to a question, as ``Client.ask``."""
        match op:
            case "stats":
                return {"cached_bytes": 0, "budget_bytes": 1 << 62}
            case "manifest":
                return self.manifest
            case "file" if (path := small_file(self.manifest, about["name"])).exists():
                return {"path": path}
            case "shard" if shard_path(self.inside, about["file"]).exists():
                return None
        raise self.error

    def connect(self) -> Connection:
        """Raise the error."""
        raise self.error


def client_of(
    cache: Cache, url: URL, endpoint: str, hello: Callable[[], dict[str, Any]]
) -> Client | ReadOnlyCache:
    """Return what asks for a URL's files; they come from a cache that cannot be written where it has a manifest of it.

    Raises:
        CacheError: The folder cannot be used.
        RemoteError: What reads this kind of URL is not installed: nothing of it is imported here.
    """
    needed = "obstore" if url.scheme in OBSTORE_SCHEMES else "fsspec"
    if find_spec(needed) is None:
        what = f"a URL needs {needed}, which is not installed"
        raise RemoteError(what, url, "Run: pip install 'loaders[remote]'")
    if not sys.platform.startswith("linux"):
        raise RemoteError("reading URLs needs Linux", url, "Copy the dataset here first")
    try:
        return Client(cache.open(), hello)
    except CacheError as error:
        inside = Path(error.path) / VERSION
        manifest = manifest_folder(inside, url, endpoint)
        if isinstance(error.__cause__, OSError) and manifest.exists():
            return ReadOnlyCache(inside, manifest, error)
        raise


def _hang_up(connections: list[Connection]) -> None:
    while connections:
        connections.pop().close()


def _connected(inside: Path) -> Connection:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(*_NOBODY):
            return Connection(inside)
        prepare(inside.parent)  # somebody may have removed it
        with open(inside / "start", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another client starts one
                time.sleep(_PAUSE_S)
            else:
                with suppress(*_NOBODY):
                    return Connection(inside)
                _start(inside)
        if time.monotonic() > deadline:
            raise CacheError("no fetcher answers there", inside.parent, _look(inside))


def _start(inside: Path) -> None:
    """Start a fetcher, and wait until it listens, or has found that another one does."""
    packages = str(Path(version.__file__).parents[1])
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH", "")]))
    passed = {n: v for n, v in os.environ.items() if n in _PASSED or n.lower().endswith("_proxy")}
    try:
        with open(inside / "fetcher.log", "ab") as log:
            subprocess.run(
                [sys.executable, "-P", "-m", "loaders.remote.fetcher", str(inside)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,  # no pipe of the trainer's: what waits for its end would wait for the fetcher's
                cwd="/",
                env=passed | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
                timeout=START_S,
                check=True,
            )
    except subprocess.SubprocessError as error:
        what = "the cache's fetcher could not be started"
        raise CacheError(what, inside.parent, _look(inside)) from error


def _look(inside: Path) -> str:
    return f"Look into {inside / 'fetcher.log'}"
