"""Objects of a store, by obstore (S3, GCS, Azure, HTTP); datasets of any other scheme are read by fsspec.

Imported by the fetcher alone: a client of a store does not live through a fork.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import xxhash

from loaders.remote.credentials import (
    WAYS,
    ProfileCredentials,
    from_environment,
    has_credentials,
)
from loaders.remote.faults import StoreFault, fault_of, text_of
from loaders.remote.patience import ANSWER_S, DEADLINE_S
from loaders.remote.url import KINDS, OBSTORE_SCHEMES, URL, endpoint_of
from loaders.remote.wire import PUT_BYTES, Entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

_CLIENT_OPTIONS = frozenset(
    (
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_headers"),
        *("http1_only", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url"),
        *("proxy_ca_certificate", "proxy_excludes", "root_certificate", "user_agent"),
    )
)
_PAGE, _LISTED = 1_000, 20_000  # objects of a listing: asked for, and given, at a time
# Of an answer, at a time: sixteen of them come in time over a link of 1 Mbit/s. Larger ones cost as much CPU a byte.
_PIECE_BYTES = 1 << 17
_PUTS_AT_ONCE = 4  # of one object
_DELETES_AT_ONCE = 64
_ENCODINGS = ("gzip", "x-gzip", "deflate", "br", "zstd")
Buffer = Any  # what has the buffer protocol
T = TypeVar("T")


@dataclass(slots=True)
class Got:
    """Bytes of an object, in pieces, and its e-tag where the store gives one; what is missing is asked for again."""

    pieces: list[Buffer] = field(default_factory=list)
    etag: str | None = None
    version: str | None = None
    size: int | None = None  # of all of the object

    @property
    def data(self) -> bytes:
        """All of them."""
        return b"".join(self.pieces)


class ObstoreObjects:
    """The objects below a URL of S3, GCS, Azure or a web server, by their names there; errors are ``StoreFault``."""

    def __init__(
        self,
        open_store: Callable[[bool], Any],  # to write or to read: then it does not ask again
        kind: str,
        timeout_s: float,  # for a byte of one answer
        deadline_s: float,  # for all answers to a question, since the last byte
        credentials: ProfileCredentials | None = None,  # where the store asks for them
    ) -> None:
        import obstore

        self._api: Any = obstore
        self._open_store, self._kind, self._credentials = open_store, kind, credentials
        self._timeout_s, self.deadline_s = timeout_s, deadline_s
        self._store = open_store(False)
        self._streams: dict[tuple[str, str], Any] = {}  # listings that go on, by the last name

    @cached_property
    def _writing(self) -> Any:
        return self._open_store(True)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            fault = self._credentials and self._credentials.fault
            raise fault or fault_of(error, WAYS.get(self._kind, "")) from None

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            raise StoreFault("network", f"no byte came for {self._timeout_s:.0f} s") from None

    async def below(self, name: str, after: str) -> list[Entry]:
        """Return the next objects below a folder, in order of name, that come after a name; none at the end."""
        found: list[Entry] = []
        with self._asking():
            pages = self._streams.pop((name, after), None) or self._api.list(
                self._store, name or None, offset=after or None, chunk_size=_PAGE
            )
            while len(found) < _LISTED and (page := await self._in_time(anext(pages, None))):
                found += map(_entry, page)
        self._streams = {(name, found[-1].name): pages} if found else {}
        return found

    async def in_folder(self, name: str) -> tuple[list[Entry], list[str]]:
        """Return the objects in a folder, and the folders in it."""
        with self._asking():
            asked = self._api.list_with_delimiter_async(self._store, name or None)
            found = await self._in_time(asked)
        return [*map(_entry, found["objects"])], [*found["common_prefixes"]]

    async def look(self, name: str) -> tuple[Entry, str | None]:
        """Return an object, and its e-tag."""
        with self._asking():
            found = await self._in_time(self._api.head_async(self._store, name))
        etag = found.get("e_tag")
        mark = mark_of(etag, found.get("version"))
        return Entry(name, int(found["size"]), mark), etag

    async def get(
        self, name: str, start: int, end: int | None, on_bytes: Callable[[int], object], got: Got
    ) -> Got:
        """Return bytes from ``start`` to ``end``, or all, behind what broken answers gave.

        ``on_bytes`` is called with how many have come.
        """
        had, end = sum(map(len, got.pieces)), got.size if end is None else end
        options: dict[str, Any] = {} if end is None else {"range": (start + had, end)}
        if had and start + had == end:
            return got
        with self._asking():
            asked = self._api.get_async(self._store, name, options=options)
            found = await self._in_time(asked)
            encoding = str(found.attributes.get("Content-Encoding", ""))
            if encoding in _ENCODINGS:
                raise StoreFault("encoded", f"the answer is compressed ({encoding})")
            meta, before = found.meta, got.etag
            got.etag, got.version, got.size = meta.get("e_tag"), meta.get("version"), meta["size"]
            if had and got.etag != before:
                got.pieces.clear()
                raise StoreFault("network", "the object was replaced while it came")
            stream = found.stream(min_chunk_size=_PIECE_BYTES)
            while (piece := await self._in_time(anext(stream, None))) is not None:
                got.pieces.append(piece)
                on_bytes(len(piece))
        end = meta["size"] if end is None else end
        nbytes, wanted = sum(map(len, got.pieces)), end - start
        if nbytes > wanted:
            got.pieces.clear()
        if nbytes != wanted:
            kind = "short" if meta["size"] < end else "unranged" if nbytes > wanted else "network"
            raise StoreFault(kind, f"{nbytes} bytes came where {wanted} were asked")
        return got

    async def put(self, name: str, data: Buffer | Path, only: Mapping[str, Any] | None) -> bool:
        """Write an object; with ``only`` just in place of that state of it ({}: of nothing), or return False.

        A state is an e-tag, a version and a size, of which a store may give no more than the last.
        """
        how: dict[str, Any] = {"chunk_size": PUT_BYTES, "max_concurrency": _PUTS_AT_ONCE}
        if only is not None:  # such a put is in one piece
            known = {"e_tag": only.get("etag"), "version": only.get("version")}
            mode: Any = {each: value for each, value in known.items() if value}
            mode = mode or ("create" if only.get("size") is None else "overwrite")
            how = {"mode": mode, "use_multipart": False}
        refused = self._api.exceptions.AlreadyExistsError, self._api.exceptions.PreconditionError
        with self._asking():
            try:
                await self._api.put_async(self._writing, name, data, **how)
            except refused as error:
                if only is None:
                    raise StoreFault(
                        "denied", f"the store refuses to write ({text_of(error)})"
                    ) from None
                return False
        return True

    async def delete(self, names: Sequence[str]) -> None:
        """Delete those of some objects that are there."""
        limit = asyncio.Semaphore(_DELETES_AT_ONCE)

        async def one(name: str) -> None:
            async with limit:
                try:
                    with self._asking():
                        await self._api.delete_async(self._writing, name)
                except StoreFault as fault:
                    if fault.kind != "missing":
                        raise

        await asyncio.gather(*map(one, names))


def mark_of(etag: str | None, written: object = None) -> int:
    """Return what a listing has for an object's e-tag, or for when it was written."""
    plain = etag and etag.removeprefix("W/").strip('"')  # some stores quote it in answers alone
    digest = xxhash.xxh3_64_intdigest(str(plain or written).encode())
    return digest | 1 if etag else digest & ~1


def _entry(found: Any) -> Entry:
    mark = mark_of(found.get("e_tag"), found["last_modified"])
    return Entry(found["path"], int(found["size"]), mark)


_KINDS = {FileNotFoundError: "missing", PermissionError: "denied"}
_HUB = {"HF_TOKEN": "token", "HF_ENDPOINT": "endpoint"}  # variables of the client, as options


class FsspecObjects:
    """Reads the objects below any other URL, by fsspec, on threads; errors are ``StoreFault``."""

    deadline_s = DEADLINE_S

    def __init__(
        self, url: URL, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        import fsspec

        hub, self._reading = dict[str, str](), dict[str, Any]()
        if url.scheme == "hf":
            hub = {_HUB[name]: value for name, value in environment.items() if name in _HUB}
            # By default fsspec requests 5 MB more of a file on the hub than it is asked to read.
            self._reading = {"cache_type": "none"}
        try:
            self._files, self._root = fsspec.core.url_to_fs(str(url), **hub, **options)
        except Exception as error:  # of whichever package
            raise StoreFault("unusable", f"{type(error).__name__}: {error}") from None

    async def get(
        self, name: str, start: int, end: int | None, on_bytes: Callable[[int], object], got: Got
    ) -> Got:
        """Return bytes, as ``ObstoreObjects.get``."""
        how = self._reading
        if end is None:  # a small file, such as a manifest, after which all may be another
            self._files.invalidate_cache()
        else:
            how = how | {"start": start, "end": end}
        path = f"{self._root.rstrip('/')}/{name}".rstrip("/")
        try:
            reading = asyncio.to_thread(self._files.cat_file, path, **how)
            data = await asyncio.wait_for(reading, DEADLINE_S)
        except TimeoutError:
            raise StoreFault("network", f"no answer for {DEADLINE_S:.0f} s") from None
        except Exception as error:  # of whichever package
            known = (kind for each, kind in _KINDS.items() if isinstance(error, each))
            raise StoreFault(next(known, "network"), f"{type(error).__name__}: {error}") from None
        on_bytes(len(data))
        if end is not None and len(data) != end - start:
            raise StoreFault("short", f"{len(data)} bytes came where {end - start} were asked")
        got.pieces.append(data)
        return got


Objects = ObstoreObjects | FsspecObjects


def open_objects(url: URL, storage: Mapping[str, Any], environment: Mapping[str, str]) -> Objects:
    """Return what reads the objects below a URL, with options, and the variables of the process that gave them."""
    if url.scheme not in OBSTORE_SCHEMES:
        return FsspecObjects(url, storage, environment)
    try:
        return _open_obstore(url, dict(storage), environment)
    except Exception as error:  # an option that obstore does not take, a file that is not there
        hint = WAYS["az"] if "Account must be" in str(error) else "See storage= of ShardDataset"
        raise StoreFault("unusable", str(error).partition("\n")[0], hint) from None


def _open_obstore(
    url: URL, options: dict[str, Any], environment: Mapping[str, str]
) -> ObstoreObjects:
    from obstore.store import from_url

    kind, place = KINDS.get(url.scheme, url.scheme), str(url)
    timeout_s = float(options.pop("timeout", ANSWER_S))
    deadline_s = float(options.pop("retry_timeout", DEADLINE_S))
    client: dict[str, Any] = {"connect_timeout": "5s"}
    given = {name: options.pop(name) for name in _CLIENT_OPTIONS & {*options}}
    client |= {name: str(value) if type(value) is int else value for name, value in given.items()}
    endpoint = endpoint_of(url.scheme, options, environment)
    if kind == "http" or endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    if bundle := environment.get("AWS_CA_BUNDLE"):
        client.setdefault("root_certificate", Path(bundle).read_bytes())
    more = {}
    if kind in WAYS:  # of buckets, whose keys are meant as they are written
        place = place.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
        more = _bucket_options(kind, options, environment)
    elif options:
        raise ValueError(f"http(s) knows no option {sorted(options)}")

    def open_store(to_write: bool) -> Any:
        # To read, ``ServedURL`` asks again, and looks at each byte.
        seconds = 3 * timeout_s if to_write else 3600
        num, within = 10 if to_write else 0, timedelta(seconds=deadline_s)
        limits: Any = client | {"timeout": f"{seconds:.0f}s"}
        again: Any = {"max_retries": num, "retry_timeout": within}
        return from_url(place, client_options=limits, retry_config=again, **more)

    credentials = more.get("credential_provider")
    return ObstoreObjects(open_store, kind, timeout_s, deadline_s, credentials)


def _bucket_options(
    kind: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return what obstore opens a bucket with, beside limits."""
    more, found = dict[str, Any](), from_environment(kind, options, environment)
    if kind == "s3":
        profile = found.pop("profile", None)
        if not {"region", "default_region"} & {*found}:
            found["region"] = "us-east-1"
        found.setdefault("disable_bulk_delete", True)  # other servers do not know it
        if profile or not has_credentials("s3", found):
            more["credential_provider"] = ProfileCredentials(profile, environment)
    if kind == "gs" and "endpoint" in found:
        found["base_url"] = found.pop("endpoint")
    texts = {name: str(value) for name, value in found.items()}
    return more | {
        "config": {n: t.lower() if t in ("True", "False") else t for n, t in texts.items()}
    }
