"""A dataset at a URL, as a reader of manifests and shards sees it: what it asks for lies in the cache as a file.

Secrets (of ``storage=`` and of the URL) leave this process over the fetcher's socket alone: ``repr`` and pickles are
without them. A copy in another process is served by what the fetcher still knows, or by its own environment.

Each thread that asks has a connection of its own meanwhile; a forked child makes new ones. If the fetcher dies, the
question is asked again.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import uuid
import weakref
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from loaders.checks import shown
from loaders.errors import CacheError, RemoteError
from loaders.remote.folder import VERSION, Cache, manifest_folder, shard_path, small_file
from loaders.remote.patience import MAX_DEATHS
from loaders.remote.url import OBSTORE_SCHEMES, PUBLIC_OPTIONS, URL, Location, endpoint_of
from loaders.system.locks import ForkLock
from loaders.system.registry import WeakRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.remote.wire import Connection, File

# Of an environment, what says how a store is reached; HOME has the profiles.
_VARIABLES = re.compile(r"(AWS|GOOGLE|AZURE|HF)_\w+|HOME")


class Origin:
    """A dataset at a URL, and the cache that its files come through. Thread-safe."""

    def __init__(
        self,
        url: URL,
        cache: Cache,  # where downloads go, and how many bytes of them are kept
        storage: Mapping[str, Any],  # how the store is reached, with secrets
        missing: Sequence[str] = (),  # options that were left out of a pickle
        number: str = "",  # of all copies, for the fetcher; default: a new one
    ) -> None:
        self.url, self.cache = url, cache
        self._storage, self._missing = dict(storage), missing
        self._id = number or uuid.uuid4().hex
        self.max_mapped: int | None = None  # bytes of the cache, by this process; None: all
        self._waits: dict[int, str] = {}  # by thread
        self.said = set[Any]()  # warnings that were logged, once
        self._refusal: CacheError | None = None  # of a cache that cannot be written
        self._idle: list[Connection] = []
        weakref.finalize(self, _hang_up, self._idle)
        self._owner, self._lock = os.getpid(), ForkLock()

    def __reduce__(self) -> Any:
        public = _public(self._storage)
        missing = sorted({*self._missing, *self._storage} - {*public})
        return Origin, (self.url, self.cache, public, missing, self._id)

    def __repr__(self) -> str:
        return f"Origin({str(self.url)!r})"

    @cached_property
    def inside(self) -> Path:
        """The cache folder of this version; one that cannot be written, if it has a manifest of the URL.

        Raises:
            CacheError: The folder cannot be used.
            RemoteError: What reads this kind of URL is not installed: nothing of it is imported here.
        """
        needed = "obstore" if self.url.scheme in OBSTORE_SCHEMES else "fsspec"
        if find_spec(needed) is None:
            what = f"a URL needs {needed}, which is not installed"
            raise RemoteError(what, self.url, "Run: pip install 'loaders[remote]'")
        if not sys.platform.startswith("linux"):
            raise RemoteError("reading URLs needs Linux", self.url, "Copy the dataset here first")
        try:
            return self.cache.open()
        except CacheError as error:
            inside = Path(str(error.path)) / VERSION
            if not (isinstance(error.__cause__, OSError) and self._manifest_in(inside).exists()):
                raise
            self._refusal = error
            return inside

    def _manifest_in(self, inside: Path) -> Path:
        endpoint = endpoint_of(self.url.scheme, self._storage, os.environ)
        return manifest_folder(inside, self.url, endpoint)

    # -- asking ------------------------------------------------------------------------------------

    def ask(self, what: str, op: str, **about: Any) -> Any:
        """Return the fetcher's answer, or raise its error; ``waits`` says meanwhile ``what`` is waited for."""
        thread = threading.get_ident()
        self._waits[thread] = what
        try:
            return self._ask(op, **about)
        finally:
            self._waits.pop(thread, None)

    def _ask(self, op: str, **about: Any) -> Any:
        inside = self.inside
        if self._refusal is not None:
            return self._stored(self._refusal, op, **about)
        from loaders.remote.client import NOBODY, failure  # needs Linux

        for _ in range(MAX_DEATHS):
            with suppress(*NOBODY), self._connection() as connection:
                return connection.ask(op, **about)
        what = f"the cache's fetcher died {MAX_DEATHS} times during one request"
        raise failure(what, inside)

    def _stored(self, refusal: CacheError, op: str, **about: Any) -> Any:
        """Return what a cache that cannot be written has to answer with; that error for the rest."""
        manifest = self._manifest_in(self.inside)
        match op:
            case "stats":
                return {"cached_bytes": 0, "budget_bytes": 1 << 62}
            case "manifest":
                return manifest
            case "file" if (path := small_file(manifest, about["name"])).exists():
                return {"path": path}
            case "shard" if self.place(about["file"]).exists():
                return None
        raise refusal

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Yield a connection that no other thread uses meanwhile."""
        with self._lock.plain:
            if self._owner != os.getpid():  # a fork: the parent goes on with its own copies
                _hang_up(self._idle)
                self._owner = os.getpid()
            idle = self._idle.pop() if self._idle else None
        connection = idle or self.connect()
        try:
            yield connection
        finally:
            if connection.is_idle:
                with self._lock.plain:
                    self._idle.append(connection)
            else:
                connection.close()

    def connect(self) -> Connection:
        """Return a new connection to the fetcher, which is started if none runs."""
        from loaders.remote.client import connect

        inside = self.inside
        if self._refusal is not None:
            raise self._refusal
        variables = {n: value for n, value in os.environ.items() if _VARIABLES.fullmatch(n)}
        hello = {"id": self._id, "missing": self._missing, "size": self.cache.size_bytes}
        return connect(inside, hello | {"reached": (self.url, self._storage, variables)})

    def waits(self) -> list[str]:
        """Say what threads of this process wait for."""
        return [*self._waits.values()]

    def manifest(self) -> Path:
        """Return the folder in which the manifest lies as a file, as it is by now.

        ManifestError if there is none at the URL, RemoteError if it cannot be fetched.
        """
        folder: Path = self.ask(f"fetching the manifest of {self.url}", "manifest")
        return folder

    def small_file(self, name: str) -> Path:
        """Return a small file that lies beside the manifest, as a file of the cache; RemoteError if there is none."""
        found = self.ask(f"fetching {self.url / name}", "file", name=name)
        if found["path"] is None:
            raise RemoteError(f"missing ({found['answer']})", self.url / name, found["hint"])
        path: Path = found["path"]
        return path

    def place(self, file: File) -> Path:
        """Return where a shard lies in the cache, if it does."""
        return shard_path(self.inside, file)

    def shard(self, file: File) -> Path:
        """Return a shard as a file of the cache, when it is there and verified.

        It may be evicted before it is opened: then ask again. RemoteError if it cannot be fetched, ChecksumError if it
        is not what the manifest says, CacheError if there is no room; the same for all that wait for it.
        """
        self.max_mapped = self.ask(f"fetching {self.url / file.file}", "shard", file=file)
        return self.place(file)

    def map_limit(self, store: Any) -> int | None:
        """Return how many bytes of the cache a store of this process may map from now on; None: all."""
        _mappers.add(store)
        return None if self.max_mapped is None else _limit_of_each(self.max_mapped)

    def limit_maps(self, max_bytes: int | None) -> None:
        """Note how many bytes this process may map; if they are others, stores close what is beyond their part."""
        before, self.max_mapped = self.max_mapped, max_bytes
        if max_bytes is not None and max_bytes != before:
            for store in _mappers.all():
                store.close_beyond(_limit_of_each(max_bytes))

    def ranges(self, wanted: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return ranges of objects, as bytes, of which nothing is kept.

        Of each is wanted: its name, where the range begins and ends, and of an object that was listed its mark: in the
        place of one that is another by now is a text that says so. RemoteError if one cannot be fetched.
        """
        what = f"fetching {len(wanted)} ranges of {self.url}"
        got: list[Any] = self.ask(what, "ranges", wanted=wanted)
        return got

    def budget(self) -> int:
        """Return how many bytes the cache may hold."""
        return int(self.counts()["budget_bytes"])

    def counts(self) -> dict[str, Any]:
        """Return what the fetcher has counted for this dataset since it started, and what its cache holds."""
        counts: dict[str, Any] = self.ask(f"counts of {self.url}", "stats")
        return counts


def _hang_up(connections: list[Connection]) -> None:
    while connections:
        connections.pop().close()


def _public(storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are no secrets."""
    return {name: value for name, value in storage.items() if name in PUBLIC_OPTIONS}


_mappers: WeakRegistry[Any] = WeakRegistry()  # stores of this process: they have ``close_beyond``


def _limit_of_each(max_bytes: int) -> int:
    """Return how many bytes each may map, where this process may map so many: half, as batches hold some, too."""
    return max_bytes // (2 * max(1, len(_mappers.all())))


_origins: WeakValueDictionary[URL, Origin] = WeakValueDictionary()
_defaults: dict[str, Any] = {"cache": None, "storage": None}


def set_defaults(cache: Any = None, storage: Mapping[str, Any] | None = None) -> None:
    """Set what a URL is opened with where nothing else is said, in this process: for commands."""
    _defaults.update(cache=cache, storage=storage)
    _origins.clear()  # which were opened otherwise


def get_defaults() -> dict[str, Any]:
    """Return what ``set_defaults`` was given, for another process: secrets come from its own environment."""
    storage = _defaults["storage"]
    return {"cache": _defaults["cache"], "storage": storage and _public(storage)}


def origin_of(url: URL, cache: Any = None, storage: Any = None) -> Origin:
    """Return the origin of a URL: the one that this process has already, unless other options are given.

    TypeError or ValueError for what ``Cache.parse`` refuses.
    """
    if cache is None and storage is None and (found := _origins.get(url)):
        return found
    storage = _defaults["storage"] if storage is None else storage
    if storage is not None and not isinstance(storage, Mapping):
        raise TypeError(f"storage must be a mapping of options, got a {type(storage).__name__}")
    if odd := [name for name in storage or () if not isinstance(name, str)]:
        raise TypeError(f"names of options of storage are texts, got {shown(odd[0])}")
    cache = Cache.parse(_defaults["cache"] if cache is None else cache)
    origin = _origins[url] = Origin(url, cache, storage or {})
    return origin


def file_beside(folder: Location, name: str) -> Path:
    """Return a small file that lies beside a manifest; RemoteError if it cannot be fetched."""
    return origin_of(folder).small_file(name) if isinstance(folder, URL) else folder / name
