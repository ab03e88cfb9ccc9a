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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.cached import cached_property
from loaders.errors import ManifestError, SchemaError
from loaders.remote.url import is_url
from loaders.schema import Schema
from loaders.system.regular import read_regular

if TYPE_CHECKING:
    from loaders.remote.origin import Origin

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
_MAX_MANIFEST_BYTES = 1 << 30
_MAX_DATASET_BYTES = (1 << 63) - 1  # offsets are int64
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FILE_HASH = re.compile(r"[0-9a-f]{32}")
# np.dtype() parses more, as Python source
_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")


@dataclass(frozen=True, slots=True)
class Place:
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
        options = {name: getattr(self, name) for name in self.__slots__}
        if not self.gap:
            del options["gap"]
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as the manifest knows it."""

    file: str  # its name inside the dataset's folder; the suffix names the format
    num_samples: int  # rows of every column
    size_bytes: int  # size of the file
    xxh3_128: str  # hash of the whole file, hexadecimal
    places: Mapping[str, Place]  # where each field's column lies
    checksums: tuple[int, int]  # offset and size of the JSON text that holds the row checksums

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", MappingProxyType(dict(self.places)))

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = (self.num_samples, self.size_bytes)
        args = (self.file, *numbers, self.xxh3_128, dict(self.places), self.checksums)
        return ShardInfo, args

    def to_json(self) -> dict[str, Any]:
        """Return the shard as JSON types."""
        return {
            "file": self.file,
            "num_samples": self.num_samples,
            "size_bytes": self.size_bytes,
            "xxh3_128": self.xxh3_128,
            "places": {name: place.to_json() for name, place in self.places.items()},
            "checksums": list(self.checksums),
        }


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
        shards = [[shard.num_samples, shard.xxh3_128] for shard in self.shards]
        text = json.dumps([FORMAT_VERSION, self.schema.to_json(), shards], sort_keys=True)
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


def publish_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the folder a dataset, atomically and durably; call it after every shard is on disk."""
    publish_bytes(folder / MANIFEST_NAME, manifest_bytes(manifest))


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the text of a manifest, as it is stored."""
    text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False)
    # A file name that is not UTF-8 is a string with surrogates: what replaces them is JSON, too.
    return text.encode(errors="backslashreplace") + b"\n"


def publish_bytes(path: Path, data: bytes) -> None:
    """Write a file so that other processes, and a machine that lost power, see all or nothing."""
    beside = path.with_name(f"{path.name}.tmp")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish_file(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def publish_file(beside: Path, path: Path) -> None:
    """Rename a finished, fsynced file into place and make the name durable."""
    os.replace(beside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; Windows cannot open one, and does so by itself."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_manifest(folder: Path | str) -> Manifest:
    """Read and check the manifest of a packed dataset, in a folder or at a URL.

    Raises:
        ManifestError: It is missing, damaged, newer, or names files outside the folder.
        RemoteError: It cannot be fetched.
    """
    if is_url(folder):
        from loaders.remote.origin import origin_of

        return read_remote(origin_of(folder))
    return _read_manifest(Path(folder) / MANIFEST_NAME)


def read_remote(origin: Origin) -> Manifest:
    """Read the manifest at a URL; what came damaged is fetched again, twice.

    Raises:
        ManifestError: It is missing, or damaged there.
        RemoteError: It cannot be fetched.
    """
    for is_last in (False, False, True):
        try:
            return _read_manifest(origin.manifest() / MANIFEST_NAME)
        except ManifestError as error:
            if is_last or is_url(error.path):
                path = error.path if is_url(error.path) else origin.url / MANIFEST_NAME
                raise ManifestError(error.what, path, error.hint) from error.__cause__
        with suppress(ManifestError):
            origin.manifest(anew=True)
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
        raise ManifestError(*_missing(path.parent)) from None
    except NotADirectoryError:
        hint = "Give the folder that holds manifest.json"
        raise ManifestError("it is a file, not a packed dataset", path.parent, hint) from None
    except OSError as error:
        raise ManifestError(f"it cannot be read ({error.strerror or error})", path) from error


@without_collections()
def parse_manifest(text: bytes, path: Path) -> Manifest:
    """Read and check what a manifest says, which lies at ``path``.

    Raises:
        ManifestError: It is damaged, newer, or names files outside the folder.
    """
    data = _json_of(text, path)
    try:
        return _parse(data)
    except ManifestError as error:
        raise ManifestError(error.what, path, error.hint) from error.__cause__
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"it is damaged ({type(error).__name__}: {error})"
        raise ManifestError(what, path, "Restore it from a copy, or pack again") from error


def _json_of(text: bytes, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "Restore it from a copy, or pack again"
        raise ManifestError(f"it is not JSON ({error})", path, hint) from error
    if not isinstance(data, dict) or data.get("format") != "loaders":
        raise ManifestError(
            "it does not describe a packed dataset", path, "Pack one with 'packdata'"
        )
    return data


def _missing(folder: Path) -> tuple[str, Path, str]:
    if not folder.exists():
        hint = "Check the path, or pack a dataset there with 'packdata'"
        if (folder.parent / MANIFEST_NAME).exists():
            hint = f"{folder.parent} is a dataset that is not divided ('packdata split' does it)"
        return "there is no such folder", folder, hint
    inside = _datasets_in(folder)
    if inside:
        hint = f"Choose one of its folders: {', '.join(inside[:8])}"
        return "it holds several datasets", folder, hint
    if any(folder.glob(".packing*")):
        hint = "Run the same 'packdata' command again; it continues"
        return "packing was not finished", folder, hint
    if any(folder.glob("shard-*")):
        hint = "Restore it from a copy ('packdata repair --manifest'), or pack again"
        return "its manifest.json is missing, though shards lie there", folder, hint
    what = "it has no manifest.json, so it is not a packed dataset"
    return what, folder, "Pack one with 'packdata'"


def _datasets_in(folder: Path) -> list[str]:
    """Name the datasets of a folder of splits, of sizes or of both; what is hidden is unfinished."""
    globs = (f"{below}/{MANIFEST_NAME}" for below in ("*", "*/*"))
    found = [path.parent.relative_to(folder) for each in globs for path in folder.glob(each)]
    hidden = {path for path in found if any(part.startswith(".") for part in path.parts)}
    return sorted(str(path) for path in found if path not in hidden)


def _parse(data: Mapping[str, Any]) -> Manifest:
    version = data["version"]
    if type(version) is not int or version != FORMAT_VERSION:
        what = f"its format version is {version}, this release reads version {FORMAT_VERSION}"
        raise ManifestError(
            what, "", "Update loaders" if version > FORMAT_VERSION else "Pack again"
        )
    try:
        _check_dtypes(data["schema"]["fields"])
        schema = Schema.from_json(data["schema"])
    except SchemaError as error:
        raise ManifestError(str(error), "", "Restore it from a copy, or update loaders") from error
    sizes = {name: each.record_nbytes for name, each in schema.fields.items()}
    shards = tuple(_parse_shard(shard, sizes) for shard in data["shards"])
    _check_together(shards)
    if not isinstance(data["provenance"], Mapping):
        raise ValueError(f"the provenance is {data['provenance']!r}")
    manifest = Manifest(schema, shards, data["provenance"])
    _check_sum("fingerprint", data, manifest.fingerprint)
    _check_sum("checksum", data, _checksum(data))
    if data["num_samples"] != manifest.num_samples:
        what = f"num_samples is {data['num_samples']}, the shards have {manifest.num_samples}"
        raise ValueError(what)
    return manifest


def _check_sum(name: str, data: Mapping[str, Any], expected: str) -> None:
    if data[name] != expected:
        what = f"its {name} is {data[name]}, its contents say {expected}"
        raise ManifestError(what, "", "It was edited or damaged: restore it from a copy")


def _check_together(shards: Sequence[ShardInfo]) -> None:
    files = [shard.file for shard in shards]
    if len(set(files)) != len(files):
        twice = sorted(file for file, count in Counter(files).items() if count > 1)
        raise ValueError(f"shards {twice[:5]} are listed more than once")
    total = sum(shard.size_bytes for shard in shards)
    if total > _MAX_DATASET_BYTES:  # then samples, of a byte each at least, fit int64 as well
        raise ValueError(f"the shards have {total} bytes together")


def _check_dtypes(described: Mapping[str, Mapping[str, Any]]) -> None:
    for name, options in described.items():
        dtype = options.get("dtype", "uint8")
        if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
            raise SchemaError(f"field {name!r} has dtype {dtype!r}, which is not a number's")


def _parse_shard(data: Mapping[str, Any], sizes: Mapping[str, int | None]) -> ShardInfo:
    """Read a shard, given the size of the records of each field, where all have one."""
    for name in ("file", "xxh3_128"):
        if not isinstance(data[name], str):
            raise ManifestError(f"a shard's {name} is {data[name]!r}, not a string", "")
    places = {name: Place(**place) for name, place in data["places"].items()}
    offset, nbytes = data["checksums"]
    shard = ShardInfo(
        file=data["file"],
        num_samples=data["num_samples"],
        size_bytes=data["size_bytes"],
        xxh3_128=data["xxh3_128"],
        places=places,
        checksums=(offset, nbytes),
    )
    _check_shard(shard, sizes)
    return shard


def _check_shard(shard: ShardInfo, sizes: Mapping[str, int | None]) -> None:
    if not _FILE_NAME.fullmatch(shard.file):
        what = f"shard file {shard.file!r} is not a plain name inside the folder"
        raise ManifestError(what, "")
    if shard.places.keys() != sizes.keys():
        what = f"columns {sorted(shard.places)}, the schema {sorted(sizes)}"
        raise ValueError(f"{shard.file} has {what}")
    if not _FILE_HASH.fullmatch(shard.xxh3_128):
        what = f"the hash of the file is {shard.xxh3_128!r}, not 32 hexadecimal digits"
        raise ValueError(f"{shard.file}: {what}")
    # Every sample needs a byte: that bounds what readers allocate.
    _check_span(0, shard.num_samples, shard.file, shard)
    if shard.num_samples == 0:
        raise ValueError(f"{shard.file}: a shard has at least one sample")
    for name, place in shard.places.items():
        _check_place(place, f"{shard.file}, {name}", shard, sizes[name])
    _check_span(*shard.checksums, f"{shard.file}, checksums", shard)


def _check_place(place: Place, where: str, shard: ShardInfo, record_nbytes: int | None) -> None:
    n = shard.num_samples
    _check_span(place.offset, 0, where, shard)
    _check_span(place.gap, 0, where, shard)
    if place.row_nbytes is not None:
        _check_rows(place, where, shard, record_nbytes)
    elif place.lengths is None:
        raise ValueError(f"{where}: neither row_nbytes nor lengths")
    else:
        _check_span(place.lengths, 4 * n, where, shard)
        _check_span(place.offset, n * place.gap, where, shard)
    if place.starts is not None:
        if place.row_nbytes is not None or place.offset or place.gap:
            raise ValueError(f"{where}: starts go with lengths alone")
        _check_span(place.starts, 8 * n, where, shard)


def _check_rows(place: Place, where: str, shard: ShardInfo, record_nbytes: int | None) -> None:
    row_nbytes = place.row_nbytes
    if type(row_nbytes) is not int or row_nbytes < 1:
        raise ValueError(f"{where}: row_nbytes must be at least 1, got {row_nbytes!r}")
    if record_nbytes is not None and row_nbytes != record_nbytes:
        raise ValueError(f"{where}: rows of {row_nbytes} bytes, the schema needs {record_nbytes}")
    if place.lengths is not None or place.gap:
        raise ValueError(f"{where}: row_nbytes goes with an offset alone")
    _check_span(place.offset, shard.num_samples * row_nbytes, where, shard)


def _check_span(offset: int, nbytes: int, where: str, shard: ShardInfo) -> None:
    size = shard.size_bytes
    if not (type(offset) is type(nbytes) is type(size) is int and min(offset, nbytes, size) >= 0):
        numbers = (offset, nbytes, shard.num_samples, size)
        raise ValueError(f"{where}: offsets and sizes must be whole numbers, got {numbers}")
    if offset + nbytes > size:
        end = offset + nbytes
        raise ValueError(f"{where}: ends at byte {end}, the file at {shard.size_bytes}")
