"""Lists of sources at URLs, kept beside the target of a packing in parts: made once, read by every part."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from loaders.errors import PackError
from loaders.remote.url import URL, is_url, place_of, url_of
from loaders.remote.wire import Entry
from packdata.bucket import bucket_at, target_at
from packdata.packing.store import store_of
from packdata.packing.target import PARTS_NAME
from packdata.packing.upload import as_file
from packdata.parts.local import holds_datasets
from packdata.rows import suffix_inside
from packdata.sources.listed import kept_entries, list_origin, one_object
from packdata.sources.lists import LIST_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_LINE = 1_000  # objects


def keep_list(source: Path | str, dst: Path | str, *, overwrite: bool = False) -> tuple[int, int]:
    """List a source, and keep the list beside a target.

    Args:
        source: A URL.
        dst: A folder or URL that parts will be packed into.
        overwrite: Replace a list that is there: parts that were packed by it will be refused.

    Returns:
        How many objects there are, and their bytes.

    Raises:
        PackError: A list is there, or it cannot be kept.
        SourceError, RemoteError: The source cannot be listed.
    """
    origin, place, name = bucket_at(source), target_at(dst), _name(source)
    if not overwrite and _read(place, name) is not None:
        hint = "Pass overwrite=True to make it anew; what was packed by it is then refused"
        raise PackError(f"a list of {origin.url} is there", place, hint)
    tree = list_origin(origin)
    if one_object(origin, tree) is not None and _is_list(origin.url):
        # One object, and the pictures that it names lie beside it, and below.
        _keep(place, _name(origin.url.parent), list_origin(bucket_at(origin.url.parent)))
    _keep(place, name, kept_entries(origin, tree))
    return len(tree), tree.num_bytes


def _is_list(url: URL) -> bool:
    return suffix_inside(url.name) in LIST_SUFFIXES


def _keep(place: Path, name: str, entries: Iterable[Entry]) -> None:
    with as_file(_packed(entries)) as path:
        store_of(place).put(name, path)


def kept_lists(
    sources: Sequence[Path | str], dst: Path | str, *, overwrite: bool = False
) -> dict[URL, Iterator[Entry]]:
    """Return the lists beside a target of those sources that are URLs.

    Where all parts were joined, the lists are gone: there are none then. Who lists the sources anew finds out
    whether what is there was made of them, and packs nothing.

    Raises:
        PackError: There is none of one.
    """
    lists, place = {}, target_at(dst)
    for source in filter(is_url, sources):
        data = _read(place, _name(source))
        url = url_of(source)
        if data is None and not overwrite and holds_datasets(place):
            return {}
        if data is None:
            hint = f"'packdata plan {url} {place}' makes it, once for all parts"
            raise PackError(f"no list of {url} is there", place, hint)
        lists[url] = _unpacked(data)
        if _is_list(url) and (data := _read(place, _name(url.parent))):
            lists[url.parent] = _unpacked(data)
    return lists


def _name(source: Path | str) -> str:
    digest = xxhash.xxh3_64_hexdigest(str(place_of(source)).encode())
    return f"{PARTS_NAME}/list-{digest}.zst"


def _read(place: Path, name: str) -> bytes | None:
    return store_of(place).read(name)[0]


def _packed(entries: Iterable[Entry]) -> bytes:
    sink, left = pa.BufferOutputStream(), iter(entries)
    with pa.CompressedOutputStream(sink, "zstd") as file:
        while some := list(islice(left, _LINE)):
            file.write(json.dumps(some).encode() + b"\n")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _unpacked(data: bytes) -> Iterator[Entry]:
    stream: Any = pa.CompressedInputStream(pa.BufferReader(data), "zstd")
    rest = b""
    while some := stream.read(1 << 20):
        *lines, rest = (rest + some).split(b"\n")
        for line in lines:
            yield from (Entry(*each) for each in json.loads(line))
