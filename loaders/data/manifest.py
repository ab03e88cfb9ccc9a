"""A packed dataset's table of contents: ``manifest.json``, written last and read first.

A folder without a manifest is not a dataset, so a reader sees all of it or nothing. The manifest
names every shard with its size and checksum, and the place of every column in it: serving opens no
library and parses no shard. FORMAT.md in ``loaders/data/formats`` has the bytes.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from loaders.errors import ManifestError, SchemaError
from loaders.remote.patience import MAX_TRIES
from loaders.remote.url import URL, Location, place_of
from loaders.schema import Schema
from loaders.system.regular import read_regular

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.remote.origin import Origin

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
_MAX_MANIFEST_BYTES = 1 << 30
_NO_JSON = (
    "See what the URL answers (a page to log in?); else restore the manifest there from a copy"
)
_MAX_DATASET_BYTES = (1 << 63) - 1  # offsets are int64
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FILE_HASH = re.compile(r"[0-9a-f]{32}")
_TEXT_HASH = re.compile(r"[0-9a-f]{16}")


class Place(NamedTuple):
    """Where the rows of one column lie in a shard; offsets and sizes in bytes.

    One of three: rows of ``row_nbytes`` (at least 1) each from ``offset`` on; or, with ``lengths``
    (the offset of N little-endian int32 sizes), rows that follow each other from ``offset`` on,
    each behind ``gap`` other bytes; or, with ``starts`` besides (the offset of N little-endian
    int64 offsets), rows anywhere. What does not belong to the one of three stays unset.
    """

    offset: int = 0
    row_nbytes: int | None = None
    lengths: int | None = None
    starts: int | None = None
    gap: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the attributes that are set."""
        options = self._asdict()
        if not self.gap:
            del options["gap"]
        return {name: value for name, value in options.items() if value is not None}


class ShardInfo(NamedTuple):
    """One shard as the manifest knows it."""

    file: str  # its name inside the dataset's folder; the suffix names the format
    num_samples: int  # rows of every column
    size_bytes: int  # size of the file
    xxh3_128: str  # hash of the whole file, hexadecimal
    places: Mapping[str, Place]  # where each field's column lies
    checksums: tuple[int, int]  # offset and size of the JSON text that holds the row checksums
    # xxh3-64 of that text, hexadecimal: a shard of another packing is known by it. None: packed before there was one.
    checksums_xxh3_64: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the shard as JSON types."""
        places = {name: place.to_json() for name, place in self.places.items()}
        data = self._asdict() | {"places": places, "checksums": list(self.checksums)}
        if self.checksums_xxh3_64 is None:
            del data["checksums_xxh3_64"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShardInfo:
        """Return the shard that ``to_json`` described; nothing of it is checked."""
        places = {name: Place(**place) for name, place in data["places"].items()}
        offset, nbytes = data["checksums"]
        numbers = data["num_samples"], data["size_bytes"]
        digest = data.get("checksums_xxh3_64")
        return cls(data["file"], *numbers, data["xxh3_128"], places, (offset, nbytes), digest)


@dataclass(frozen=True)
class Manifest:
    """The contents of one packed dataset."""

    schema: Schema  # what a sample is made of
    shards: tuple[ShardInfo, ...]  # the shards, in sample order
    # What it was packed from and with which options; for people, not for programs.
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Samples of all shards together."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards together."""
        return sum(shard.size_bytes for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """Identify the content: 32 hex digits, a hash of the schema and the shards' checksums."""
        schema = json.dumps(self.schema.to_json(), sort_keys=True)
        shards = ", ".join([f'[{each.num_samples}, "{each.xxh3_128}"]' for each in self.shards])
        text = f"[{FORMAT_VERSION}, {schema}, [{shards}]]"
        return xxhash.xxh3_128_hexdigest(text.encode())

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON types, with a checksum over all of it."""
        data = {
            "format": "loaders",
            "version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "num_samples": self.num_samples,
            "schema": self.schema.to_json(),
            "shards": [shard.to_json() for shard in self.shards],
            "provenance": dict(self.provenance),
        }
        return data | {"checksum": _checksum(json.loads(json.dumps(data)))}


def _checksum(data: Mapping[str, Any]) -> str:
    """Hash what a manifest says, as JSON reads it: also what the fingerprint leaves out."""
    rest = {name: value for name, value in data.items() if name != "checksum"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True).encode())


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the text of a manifest, as it is stored."""
    text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False)
    # A file name that is not UTF-8 is a string with surrogates: what replaces them is JSON, too.
    return text.encode(errors="backslashreplace") + b"\n"


def read_manifest(folder: Location | str) -> Manifest:
    """Read and check the manifest of a packed dataset, in a folder or at a URL.

    Raises:
        ManifestError: It is missing, damaged, newer, or names files outside the folder.
        RemoteError: It cannot be fetched.
    """
    if isinstance(place := place_of(folder), URL):
        from loaders.remote.origin import origin_of

        return read_remote(origin_of(place))
    return _read_manifest(place / MANIFEST_NAME)


def read_remote(origin: Origin) -> Manifest:
    """Read the manifest at a URL, as ``read_manifest``; what came damaged is fetched again."""
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return _read_manifest(origin.manifest() / MANIFEST_NAME)
        except ManifestError as error:
            if isinstance(error.path, URL):  # there is none
                raise
            if attempt == MAX_TRIES:
                is_json = not isinstance(error.__cause__, json.JSONDecodeError)
                hint = error.hint if is_json else _NO_JSON
                path = origin.url / MANIFEST_NAME
                raise ManifestError(error.what, path, hint) from error.__cause__
    raise AssertionError


@contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage meanwhile: of 100,000 shards, that would be most of the time, and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_manifest(path: Path) -> Manifest:
    try:
        return parse_manifest(read_regular(path, _MAX_MANIFEST_BYTES), path)
    except FileNotFoundError:
        raise _missing(path.parent) from None
    except NotADirectoryError:
        hint = "Pass the folder that holds manifest.json"
        raise ManifestError("a file, not a packed dataset", path.parent, hint) from None
    except OSError as error:
        raise ManifestError(
            f"the manifest cannot be read ({error.strerror or error})", path
        ) from error


@without_collections()
def parse_manifest(text: bytes, path: Location) -> Manifest:
    """Read and check what a manifest says, which lies at ``path``; ManifestError as of ``read_manifest``."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != "loaders":
            what = "not the manifest of a packed dataset"
            raise ManifestError(what, path, "Pack one with 'packdata'")
        return _parse(data)
    except ManifestError as error:
        raise ManifestError(error.what, path, error.hint) from error.__cause__
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"the manifest is damaged ({type(error).__name__}: {error})"
        raise ManifestError(
            what, path, "Restore the manifest from a copy, or remove the dataset and pack again"
        ) from error


def _missing(folder: Path) -> ManifestError:
    """Return what is wrong with a folder that has no manifest."""
    # Of splits, of sizes or of both; what is hidden is unfinished, and not found so.
    inside = [*glob(f"*/{MANIFEST_NAME}", root_dir=folder)]
    inside += glob(f"*/*/{MANIFEST_NAME}", root_dir=folder)
    what = "not a packed dataset: there is no manifest.json"
    hint = "Pack one with 'packdata', or copy the file from a backup"
    if not folder.exists():
        what = "there is no such folder"
        hint = "Check the path, or pack a dataset there with 'packdata'"
    elif inside:
        names = sorted(map(os.path.dirname, inside))
        what = "the folder holds several datasets"
        hint = f"Choose one of its folders: {', '.join(names[:8])}"
    elif any(folder.glob(".packing*")):
        what = "packing was not finished"
        hint = (
            "Run the same 'packdata' command again, it continues; a Writer, or pack(), begins anew"
        )
    return ManifestError(what, folder, hint)


def _parse(data: Mapping[str, Any]) -> Manifest:
    version = data["version"]
    if type(version) is not int or version != FORMAT_VERSION:
        what = f"the format version is {version}, this release reads version {FORMAT_VERSION}"
        raise ManifestError(
            what, "", "Update loaders" if version > FORMAT_VERSION else "Pack again"
        )
    try:
        schema = Schema.from_json(data["schema"])
    except SchemaError as error:
        raise ManifestError(str(error), "", "Restore a copy, or update loaders") from error
    sizes = {name: each.record_nbytes for name, each in schema.fields.items()}
    shards = _take_shards(data["shards"], sizes)
    if not isinstance(data["provenance"], Mapping):
        raise ValueError(f"the provenance is {data['provenance']!r}")
    manifest = Manifest(schema, tuple(shards), data["provenance"])
    _check_sum("fingerprint", data, manifest.fingerprint)
    _check_sum("checksum", data, _checksum(data))
    if data["num_samples"] != manifest.num_samples:
        what = f"num_samples is {data['num_samples']}, the shards have {manifest.num_samples}"
        raise ValueError(what)
    return manifest


def _check_sum(name: str, data: Mapping[str, Any], expected: str) -> None:
    if data[name] != expected:
        what = f"the {name} is {data[name]}, the contents say {expected}"
        raise ManifestError(what, "", "The manifest was edited or damaged: restore a copy")


def _take_shards(data: list[Any], sizes: Mapping[str, int | None]) -> list[ShardInfo]:
    """Read and check shards, given the size of the records of each field, where all have one."""
    if not data:
        raise ValueError("there is no shard")
    shards: list[ShardInfo] = []
    for number, described in enumerate(data):
        try:
            shard = ShardInfo.from_json(described)
            _check_shard(shard, sizes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ValueError(f"shard {number}, {str(described)[:200]}: {why}") from error
        shards.append(shard)
    twice = [file for file, n in Counter(shard.file for shard in shards).items() if n > 1]
    if twice:
        raise ValueError(f"shards {sorted(twice)[:5]} are listed more than once")
    total = sum(shard.size_bytes for shard in shards)
    if total > _MAX_DATASET_BYTES:  # then samples, of a byte each at least, fit int64 as well
        raise ValueError(f"the shards have {total} bytes together")
    return shards


def _check_shard(shard: ShardInfo, sizes: Mapping[str, int | None]) -> None:
    """Raise ValueError unless a shard is a plain file, with everything inside it."""
    file, n, size_bytes, digest, places, (start, nbytes), text_digest = shard
    texts = [(file, _FILE_NAME), (digest, _FILE_HASH)]
    if text_digest is not None:
        texts.append((text_digest, _TEXT_HASH))
    for text, pattern in texts:
        if type(text) is not str or not pattern.fullmatch(text):
            raise ValueError(f"{text!r} does not match {pattern.pattern}")
    _check_offsets(n, size_bytes, start, nbytes)
    if not 1 <= n <= size_bytes:  # every sample needs a byte: that bounds what readers allocate
        raise ValueError(f"{n} samples take {size_bytes} bytes, a sample has a byte at least")
    if start + nbytes > size_bytes:
        raise ValueError("the checksums end behind the file")
    if places.keys() != sizes.keys():
        raise ValueError(f"the shard has {sorted(places)}, the schema has {sorted(sizes)}")
    for name, place in places.items():
        offset, row, lengths, starts, gap = place
        _check_offsets(*[number for number in place if number is not None])
        if row is not None:
            end = offset + n * row
            is_one = gap == 0 and lengths is starts is None and row == (sizes[name] or row) > 0
        else:
            is_one = lengths is not None and (starts is None or not (offset or gap))
            end = max(offset + n * gap, (lengths or 0) + 4 * n)
            end = end if starts is None else max(end, starts + 8 * n)
        if not is_one or end > size_bytes:
            what = f"column {name!r} cannot lie at {place} in {size_bytes} bytes"
            raise ValueError(f"{what}, {n} rows of {sizes[name] or 'any'} bytes each")


def _check_offsets(*numbers: Any) -> None:
    for each in numbers:
        if type(each) is not int or not 0 <= each <= _MAX_DATASET_BYTES:
            raise ValueError(f"offsets and sizes are whole numbers, got {numbers}")
