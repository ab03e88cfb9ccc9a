"""Shards of a store: mapped files, or columns that are in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

from loaders.data.formats import RESTORE, hash_file, open_checksums, open_columns
from loaders.data.manifest import MANIFEST_NAME, read_manifest, read_remote, without_collections
from loaders.errors import (
    ChecksumError,
    ManifestError,
    SchemaError,
    ShardError,
    StaleDatasetError,
)
from loaders.remote.patience import MAX_EVICTIONS
from loaders.remote.url import URL, Location, place_of
from loaders.remote.wire import File

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loaders.data.columns import Column
    from loaders.data.formats.checksums import Checksums
    from loaders.data.manifest import Manifest, ShardInfo
    from loaders.remote.origin import Origin
    from loaders.schema import Schema

T = TypeVar("T")
Check = Literal["first", "always", "never"]
Version = tuple[int, ...]  # a file's numbers in its file system; none: there is no such file


@dataclass(slots=True, eq=False)
class OpenShard:
    """A shard in use."""

    path: Location  # the file, or its URL
    columns: Mapping[str, Column]  # its columns, by field
    checksums: Mapping[str, Checksums]  # their checksums, where they are to be verified
    remedy: str = RESTORE  # for damage

    def error(self, name: str, block: int) -> ChecksumError:
        """Return the error that a block of a field differs from its checksum."""
        size = self.checksums[name].rows_per_block
        first = block * size
        last = min(first + size, len(self.columns[name])) - 1
        what = "the checksum does not match"
        what += "" if last == first else f" (one of rows {first} to {last})"
        row = first if last == first else None
        return ChecksumError(what, self.path, row, name, self.remedy)


@dataclass(slots=True, eq=False)
class FileShard:
    """A shard that is mapped when it is first touched."""

    folder: Path  # where it lies
    info: ShardInfo  # what the manifest says of it
    schema: Schema  # the dataset's
    version: Version  # which file that manifest was
    # Of a file whose checksums the manifest does not vouch for: which file it was when the dataset was opened.
    identity: Version | None
    remedy = RESTORE  # for damage

    @property
    def path(self) -> Path:
        """The file; made when it is asked for, as a dataset may have 100,000 shards."""
        return self.folder / self.info.file

    @property
    def num_samples(self) -> int:
        """Its rows."""
        return self.info.num_samples

    def open(self, check: Check) -> OpenShard:
        """Map the file; ShardError if it is not what the manifest says, StaleDatasetError if that is another by now."""
        try:
            shard = _opened(self.path, self, check)
        except (ShardError, OSError):
            self.check_version()
            raise
        self.check_version()  # last: what replaces the file from here on is not what is mapped
        return shard

    def fetch(self) -> Path:
        """Return the file, when it is here."""
        return self.path

    def check_version(self) -> None:
        """Raise StaleDatasetError if the manifest was replaced, and the new one has another shard of this name.

        Shards are listed by the hash of their bytes, so a dataset that only grew goes on.
        """
        version = version_of(self.folder / MANIFEST_NAME)
        if version == self.version:
            return
        manifest = _read(self.folder, version)
        is_listed = manifest is not None and any(
            shard.file == self.info.file and shard.xxh3_128 == self.info.xxh3_128
            for shard in manifest.shards
        )
        if manifest is None or not is_listed or manifest.schema != self.schema:
            what = "the dataset was replaced, or its manifest removed, since it was opened"
            raise StaleDatasetError(what, self.path, hint="Open the dataset again")


@dataclass(slots=True, eq=False)
class RemoteShard:
    """A shard at a URL, which is fetched before it is mapped: from a cache that may evict it before it is opened."""

    info: ShardInfo  # what the manifest says of it
    schema: Schema  # the dataset's
    origin: Origin  # what fetches it
    identity = None  # files of a cache are known by their content

    @property
    def path(self) -> URL:
        """Its URL."""
        return self.origin.url / self.info.file

    @property
    def num_samples(self) -> int:
        """Its rows."""
        return self.info.num_samples

    @property
    def file(self) -> File:
        """What the fetcher calls it."""
        return File(self.info.file, self.info.size_bytes, self.info.xxh3_128)

    def open(self, check: Check) -> OpenShard:
        """Map the file, as ``FileShard.open``."""
        return self._when_here(lambda file: _opened(file, self, check))

    @property
    def remedy(self) -> str:
        """What to do about damage: of a file of the cache, as what came from the URL was verified on the way."""
        folder = self.origin.inside.parent
        return f"Run 'packdata cache {folder} --clear': the shard is fetched again"

    def open_file(self) -> BinaryIO:
        """Return the file, opened: it can be read however soon it is evicted."""
        return self._when_here(lambda file: open(file, "rb"))

    def _when_here(self, use: Callable[[Path], T]) -> T:
        """Return what ``use`` makes of the file, when it is here."""
        file = self.origin.place(self.file)
        for _ in range(MAX_EVICTIONS):
            try:
                return use(file)
            except (ShardError, FileNotFoundError) as error:
                if isinstance(error, ShardError) and file.exists():
                    hint = self.remedy if error.hint == RESTORE else error.hint
                    kind = type(error)
                    raise kind(error.what, self.path, error.row, error.field, hint) from error
            self.fetch()
        what = f"the shard was evicted {MAX_EVICTIONS} times before it could be opened"
        raise ShardError(what, self.path, hint="Use a larger cache")

    def fetch(self) -> Path:
        """Return the file, when it is here; it may be evicted before it is opened. Errors as of ``Origin.shard``."""
        return self.origin.shard(self.file)

    @property
    def is_here(self) -> bool:
        """Whether it can be mapped without fetching it first."""
        return self.origin.place(self.file).exists()

    def check_version(self) -> None:
        """Pass: shards at URLs are known by their content."""


PackedShard = FileShard | RemoteShard  # a shard that a manifest lists


def _opened(file: Path, shard: PackedShard, check: Check) -> OpenShard:
    """Map the file of a shard; ShardError if it is not what the manifest says."""
    columns = open_columns(file, shard.info)
    checksums = {} if check == "never" else open_checksums(file, shard.info)
    if shard.identity is not None and shard.identity != _identity_of(file):
        what = "the file was replaced since the dataset was opened"
        raise StaleDatasetError(what, shard.path, hint="Open the dataset again")
    if check == "always" and hash_file(file) != shard.info.xxh3_128:
        what = "the shard's hash (xxh3-128) differs from the manifest"
        raise ChecksumError(what, shard.path, hint=shard.remedy)
    return OpenShard(shard.path, columns, checksums, shard.remedy)


def version_of(file: Path) -> Version:
    """Return what tells a file from one that takes its place; of a manifest, take it before it is read."""
    try:
        stat = os.stat(file)
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _identity_of(file: Path) -> Version:
    """Return which file it is, whatever links and rights it gets."""
    return version_of(file)[:-1]


@lru_cache(maxsize=16)
def _read(folder: Path, version: Version) -> Manifest | None:
    """Return the manifest of that version, or None if there is none; read once for all shards."""
    try:
        return read_manifest(folder)
    except ManifestError:
        return None


@without_collections()
def open_manifest(
    folder: Location | str, cache: Any = None, storage: Mapping[str, Any] | None = None
) -> tuple[Manifest, Sequence[PackedShard], Location]:
    """Read the manifest of a folder or URL; return it with its shards, which are not opened yet, and the place.

    Of a URL: ``cache`` and ``storage`` as ``ShardDataset`` takes them.
    """
    if isinstance(place := place_of(folder), URL):
        from loaders.remote.origin import origin_of

        origin = origin_of(place, cache, storage)
        manifest = read_remote(origin)
        shards = [RemoteShard(each, manifest.schema, origin) for each in manifest.shards]
        return manifest, shards, place
    if cache is not None or storage is not None:
        raise ValueError(f"cache and storage are for URLs, {str(folder)!r} is a folder")
    place = place.absolute()
    version = version_of(place / MANIFEST_NAME)
    manifest, files = read_manifest(place), list[FileShard]()
    for each in manifest.shards:  # packed before 1.0, the manifest has no hash of checksums
        identity = None if each.checksums_xxh3_64 else _identity_of(place / each.file)
        files.append(FileShard(place, each, manifest.schema, version, identity))
    return manifest, files, place


@dataclass(frozen=True, slots=True, eq=False)
class MemoryShard:
    """Columns that are in memory, and where they came from."""

    path: Location
    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:  # a shorter one would be read beyond its end
            raise SchemaError(f"all columns have one row per sample, got {lengths}")

    @property
    def num_samples(self) -> int:
        """Its rows."""
        return len(next(iter(self.columns.values())))

    def open(self, check: Check) -> OpenShard:
        """Return the columns; what is in memory was checked on the way there."""
        return OpenShard(self.path, self.columns, {})


Shard = PackedShard | MemoryShard
