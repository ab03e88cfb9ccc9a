"""A dataset at a URL, as a reader of manifests and shards sees it: what it asks for lies in the cache as a file.

Secrets (of ``storage=`` and of the URL) leave this process over the fetcher's socket alone: ``repr`` and pickles are
without them. A copy in another process is served by what the fetcher still knows, or by its own environment.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from loaders.checks import shown
from loaders.errors import CacheError, LoadersError
from loaders.remote.folder import VERSION, Cache, manifest_folder, shard_path
from loaders.remote.mapping import limit_of_each
from loaders.remote.url import (
    PUBLIC_OPTIONS,
    URL,
    check_writable,
    endpoint_of,
    is_url,
    split_secrets,
)
from loaders.remote.wire import Entry
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.remote.client import Client, ReadOnlyCache

# Of an environment, what says how a store is reached; HOME has the profiles.
_ANSWER_BYTES = 64 << 20  # of ranges, at a time
_VARIABLES = re.compile(r"(AWS|GOOGLE|AZURE|HF|ALLUXIO|FSSPEC)_\w+|HOME")


class Origin:
    """A dataset at a URL, and the cache that its files come through.

    Args:
        url: Where it lies.
        cache: Where downloads go, and how many bytes of them are kept.
        storage: How the store is reached, with secrets.

    Thread-safe.
    """

    def __init__(self, url: URL, cache: Cache, storage: Mapping[str, Any]) -> None:
        self.url, self.cache = url, cache
        self._storage = dict(storage)
        self._missing: list[str] = []  # options that were left out of a pickle
        self.id = uuid.uuid4().hex
        self._settle()

    def _settle(self) -> None:
        self._client: Client | ReadOnlyCache | None = None
        self._inside: Path | None = None
        self.max_mapped: int | None = None  # bytes of the cache, by this process
        self._waits: dict[int, dict[str, Any]] = {}
        self.said = set[Any]()  # what was told of it once
        self._lock = ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        public = {n: value for n, value in self._storage.items() if n in PUBLIC_OPTIONS}
        secret = sorted({*self._missing, *self._storage} - {*public})
        return {
            "url": self.url,
            "cache": self.cache,
            "id": self.id,
            "_storage": public,
            "_missing": secret,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._settle()

    def __repr__(self) -> str:
        return f"Origin({str(self.url)!r})"

    @property
    def endpoint(self) -> str:
        """The server, where it is not the provider's own."""
        return endpoint_of(self.url.scheme, self._storage, os.environ)

    def _hello(self) -> dict[str, Any]:
        variables = {n: value for n, value in os.environ.items() if _VARIABLES.fullmatch(n)}
        return {
            "op": "hello",
            "size": self.cache.size_bytes,
            "url": str(self.url),
            "id": self.id,
            "storage": self._storage,
            "missing": self._missing,
            "environment": variables,
        }

    @property
    def client(self) -> Client | ReadOnlyCache:
        """The client of the fetcher; it has connected once, so what a dead fetcher left is gone."""
        with self._lock.plain:
            if self._client is None:
                from loaders.remote.client import Client, check_extra  # needs Linux

                check_extra(self.url)
                try:
                    self._inside = self.cache.open()
                except CacheError as error:
                    self._client = self._read_only(error)
                    return self._client
                client = Client(self._inside, self._hello)
                client.ask({"op": "alive"})
                self._client = client
            return self._client

    def _read_only(self, error: CacheError) -> ReadOnlyCache:
        """Return what serves a cache that cannot be written, where a manifest of the URL lies in it."""
        from loaders.remote.client import ReadOnlyCache

        inside = Path(error.path) / VERSION
        manifest = manifest_folder(inside, self.url, self.endpoint)
        if not isinstance(error.__cause__, OSError) or not manifest.exists():
            raise error
        self._inside = inside
        return ReadOnlyCache(manifest, error)

    def connect(self) -> None:
        """Start the fetcher, or find it; what fails does so again when something is asked."""
        with suppress(OSError, LoadersError):
            _ = self.client

    @property
    def inside(self) -> Path:
        """The cache folder of this version."""
        if self._client is None:
            self.client.ask({"op": "alive"})
        assert self._inside is not None
        return self._inside

    def manifest(self, *, anew: bool = False) -> Path:
        """Return the folder in which the manifest lies as a file.

        Args:
            anew: Download it, whatever is known of it: what came before is damaged.

        Raises:
            ManifestError: There is none at the URL.
            RemoteError: It cannot be fetched.
        """
        message = {"op": "manifest", "anew": anew, "again": self.url in _opened}
        _opened.add(self.url)
        return Path(self.client.ask(message)["folder"])

    def small_file(self, name: str) -> Path:
        """Return a small file that lies beside the manifest, such as a tokenizer, as a file of the cache.

        Raises:
            RemoteError: It cannot be fetched.
        """
        return Path(self.client.ask({"op": "file", "name": name, "optional": False})["path"])

    def read(self, name: str) -> tuple[bytes | None, dict[str, Any]]:
        """Return an object's bytes (None: there is none), and the mark by which ``put`` replaces just this state of it.

        Raises:
            RemoteError: It cannot be fetched.
        """
        found = self.client.ask({"op": "file", "name": name, "optional": True})
        data = found["path"] and Path(found["path"]).read_bytes()
        mark = {"etag": found.get("etag"), "version": found.get("version")}
        return data, mark if data is None else mark | {"size": len(data)}

    def put(self, name: str, path: Path, only: Mapping[str, Any] | None = None) -> bool:
        """Send a small file; tell whether it was written.

        Args:
            name: Of the object, below the URL.
            path: The file, of less than 5 GB.
            only: Write it only in place of what ``read`` has seen (``{}``: of nothing). Some stores ignore that.

        Raises:
            RemoteError: It cannot be sent.
        """
        message = {"op": "put", "name": name, "path": str(path.absolute()), "only": only}
        return bool(self.client.ask(message)["is_written"])

    def put_shard(self, name: str, path: Path, size_bytes: int, digest: str) -> int:
        """Send a file under a name that no other content has; return the bytes that were sent: 0 if it is there.

        It is there when its size, and its e-tag, or else its hash, are those of the file.

        Raises:
            RemoteError: It cannot be sent.
            ChecksumError: The file has another hash, or what arrives is never the same.
        """
        message = {"op": "put", "name": name, "path": str(path.absolute())}
        return int(self._wait_for(message | {"size": size_bytes, "hash": digest})["sent"])

    def delete(self, *names: str) -> None:
        """Delete objects; those that are not there are no error."""
        if names:
            self.client.ask({"op": "delete", "names": names})

    def has(self, file: str, digest: str) -> bool:
        """Tell whether a shard lies in the cache."""
        return shard_path(self.inside, file, digest).exists()

    def shard(self, file: str, size_bytes: int, digest: str) -> Path:
        """Return a shard as a file of the cache, when it is there and verified.

        It may be evicted before it is opened: then ask again.

        Raises:
            RemoteError: It cannot be fetched; the same error for all that wait for it.
            CacheError: There is no room for it.
        """
        path = shard_path(self.inside, file, digest)
        try:
            self._touch(path)
        except FileNotFoundError:
            message = {"op": "shard", "file": file, "size": size_bytes, "hash": digest}
            self.max_mapped = self._wait_for(message)["limit"]
        return path

    @staticmethod
    def _touch(path: Path) -> None:
        """Note when a file was last used; FileNotFoundError if it is not there."""
        try:
            os.utime(path)
        except OSError:  # of a cache that is read-only
            path.stat()

    @property
    def map_limit(self) -> int | None:
        """How many bytes of the cache one reader of this process may map; None: all."""
        return None if self.max_mapped is None else limit_of_each(self.max_mapped)

    def count_hit(self) -> None:
        """Count a shard that is needed and here; the fetcher counts those that are not."""
        self.client.count_hit()

    def _wait_for(self, message: dict[str, Any], nbytes: int = 0) -> dict[str, Any]:
        """Ask for what may take long; ``waits`` has what the fetcher says meanwhile."""
        thread = threading.get_ident()
        try:
            return self.client.ask(
                message, lambda state: self._waits.__setitem__(thread, state), nbytes
            )
        finally:
            self._waits.pop(thread, None)

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """Return ranges of objects: of each its name, and where the range begins and ends. Nothing of them is kept.

        Raises:
            RemoteError: One cannot be fetched.
        """
        got = list[memoryview]()
        for some in _of_bytes(wanted, _ANSWER_BYTES):
            nbytes = sum(end - start for _, start, end in some)
            answer = self._wait_for({"op": "ranges", "ranges": some}, nbytes)
            view, at = memoryview(answer["data"]), 0
            for _, start, end in some:
                got.append(view[at : at + end - start])
                at += end - start
        return got

    def below(self, folder: str = "") -> Iterator[list[Entry]]:
        """Yield the objects below a folder, many at a time, by name.

        Raises:
            RemoteError: They cannot be listed.
        """
        after = ""
        message = {"op": "listing", "of": "below", "folder": folder}
        while found := self.client.ask(message | {"after": after})["objects"]:
            yield [Entry(*each) for each in found]
            after = found[-1][0]

    def in_folder(self, folder: str = "") -> tuple[list[Entry], list[str]]:
        """Return the objects in a folder, and the folders in it.

        Raises:
            RemoteError: They cannot be listed.
        """
        found = self.client.ask({"op": "listing", "of": "inside", "folder": folder})
        return [Entry(*each) for each in found["objects"]], found["folders"]

    def look(self, name: str) -> Entry | None:
        """Return an object as a listing has it; None if there is none.

        Raises:
            RemoteError: The store does not answer, or refuses.
        """
        found = self.client.ask({"op": "listing", "of": "one", "folder": name})["objects"]
        return Entry(*found[0]) if found else None

    def objects(self, wanted: Sequence[tuple[Entry, int, int]]) -> list[memoryview | str]:
        """Return ranges of objects as they were listed; in the place of one that is not there, or is another, why.

        Raises:
            RemoteError: They cannot be fetched.
        """
        answer = self.client.ask({"op": "objects", "wanted": [(*e, i, j) for e, i, j in wanted]})
        view, at, got = memoryview(answer.get("data", b"")), 0, list[memoryview | str]()
        for i, (_, start, end) in enumerate(wanted):
            fault = answer["faults"].get(str(i))
            size = 0 if fault else end - start
            got.append(fault or view[at : at + size])
            at += size
        return got

    def waits(self) -> list[str]:
        """Say what threads of this process wait for."""
        return [str(state.get("what", "")) for state in tuple(self._waits.values())]

    def budget(self) -> int:
        """Return how many bytes the cache may hold."""
        return int(self.client.ask({"op": "alive"})["budget"])

    def counts(self) -> dict[str, Any]:
        """Return what the fetcher has counted for this dataset since it started, and what its cache holds."""
        counts: dict[str, Any] = self.client.ask({"op": "stats"})["stats"]
        return counts


def _of_bytes(
    wanted: Sequence[tuple[str, int, int]], most: int
) -> Iterator[list[tuple[str, int, int]]]:
    """Divide ranges into lists of about so many bytes."""
    some, nbytes = list[tuple[str, int, int]](), 0
    for each in wanted:
        some.append(each)
        nbytes += each[2] - each[1]
        if nbytes >= most:
            yield some
            some, nbytes = [], 0
    if some:
        yield some


_origins: WeakValueDictionary[URL, Origin] = WeakValueDictionary()
_opened = set[URL]()  # in this process: who opens one again wants what is there by now
_kept: dict[URL, Origin] = {}  # of URLs with secrets, which are known without them from there on
_defaults: dict[str, Any] = {"cache": None, "storage": None}


def set_defaults(cache: Any = None, storage: Mapping[str, Any] | None = None) -> None:
    """Set what a URL is opened with where nothing else is said, in this process: for commands."""
    _defaults.update(cache=cache, storage=storage)
    _kept.clear()
    _origins.clear()  # which were opened otherwise


def open_early(url: URL) -> None:
    """Connect to the fetcher of a URL on another thread; if that fails, reading the URL raises the error."""
    import threading

    import loaders.remote.client  # noqa: F401  # not on that thread, while this one imports

    with suppress(TypeError, ValueError):
        origin = _kept[url] = origin_of(url)
        threading.Thread(target=origin.connect, daemon=True).start()


def get_defaults() -> dict[str, Any]:
    """Return what ``set_defaults`` was given, for another process: secrets come from its own environment."""
    storage = _defaults["storage"]
    public = storage and {n: value for n, value in storage.items() if n in PUBLIC_OPTIONS}
    return {"cache": _defaults["cache"], "storage": public}


def target_at(place: Path | str) -> Path:
    """Return a path, or a URL without its secrets, which this process remembers.

    Raises:
        RemoteError: Nothing is written to such URLs.
    """
    if not is_url(place):
        return Path(place)
    url, secrets = split_secrets(place)
    check_writable(url)
    if secrets:
        _kept[url] = origin_of(place)
    return url


def origin_of(place: Path | str, cache: Any = None, storage: Any = None) -> Origin:
    """Return the origin of a URL: the one that this process has already, unless other options are given.

    Raises:
        TypeError: ``cache`` or ``storage`` is of another kind.
        ValueError: ``cache`` makes no sense.
    """
    url, secrets = split_secrets(place)
    if cache is None and storage is None and not secrets and (found := _origins.get(url)):
        return found
    storage = _defaults["storage"] if storage is None else storage
    if storage is not None and not isinstance(storage, Mapping):
        raise TypeError(f"storage must be a mapping of options, got a {type(storage).__name__}")
    if odd := [name for name in storage or () if not isinstance(name, str)]:
        raise TypeError(f"names of options of storage are texts, got {shown(odd[0])}")
    options = {**(storage or {}), **{f"url_{name}": value for name, value in secrets.items()}}
    cache = Cache.parse(_defaults["cache"] if cache is None else cache)
    origin = _origins[url] = Origin(url, cache, options)
    return origin
