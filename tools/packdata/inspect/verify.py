"""Checking a packed dataset: sizes and hashes of its shards, checksums of their rows, that keys are unique."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.codecs import codec_for
from loaders.data.formats import hash_file, open_checksums, open_columns
from loaders.data.formats.checksums import hash_block
from loaders.data.manifest import MANIFEST_NAME, Manifest
from loaders.data.shards import RemoteShard, open_manifest
from loaders.data.view import KEY_FIELD, View, open_view
from loaders.errors import ManifestError, ShardError
from loaders.remote.origin import file_beside
from loaders.remote.url import Location, place_of
from loaders.schema import Field, Text
from loaders.system.limits import usable_cores
from packdata.describe import counted
from packdata.packing.pool import OrderedPool
from packdata.packing.progress import Quiet
from packdata.packing.store import size_fault
from packdata.packing.target import REJECTED_NAME
from packdata.sources.duplicates import repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loaders.data.columns import Column
    from loaders.data.formats.checksums import Checksums
    from loaders.data.shards import PackedShard
    from packdata.packing.progress import Progress

_OWN_FILES = frozenset({MANIFEST_NAME, REJECTED_NAME})
_Rows = tuple[int, int]  # first and last


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    file: str  # the file, inside the dataset's folder
    what: str
    field: str | None = None  # the field, if one is concerned
    rows: _Rows | None = None
    # Keys of the first and the last of these rows, where they can be read.
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.file if self.field is None else f"{self.file}, field {self.field}"
        for name, ends in (("row", self.rows and sorted({*self.rows})), ("key", self.keys)):
            if ends:
                place += f", {name}{'s' * (len(ends) - 1)} {' to '.join(map(repr, ends))}"
        return f"{place}: {self.what}"


@dataclass(frozen=True, slots=True)
class Report:
    """The faults of a dataset, and what is worth knowing of it."""

    path: Location
    # All that is wrong, in the order of the shards; none if the dataset is whole.
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()  # what is no fault but worth knowing
    manifest: Manifest | None = None  # the contents, if they could be read

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        known = self.manifest
        names = ("fingerprint", "num_samples", "size_bytes")
        return {
            "path": str(self.path),
            "ok": self.ok,
            **{name: getattr(known, name, None) for name in names},
            "num_shards": None if known is None else len(known.shards),
            "faults": [asdict(fault) for fault in self.faults],
            "notes": list(self.notes),
        }


def verify(
    path: Location | str,
    *,
    quick: bool = False,
    decode: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a packed dataset and return all of its faults.

    Args:
        path: The dataset's folder or URL.
        quick: Check sizes and hashes of the files alone: no row or key is named.
        decode: Also decode every record, which takes as long as an epoch without augmentation.
        workers: Shards checked at once; None for all usable cores.
        progress: Counts the bytes.

    Raises:
        RemoteError: What lies at the URL cannot be fetched.
        StaleDatasetError: The dataset was replaced meanwhile.
    """
    folder = place_of(path)
    try:
        manifest, shards, _ = open_manifest(folder)
    except ManifestError as error:
        what = f"{error.what}. {error.hint}".rstrip(". ")
        return Report(folder, (Fault(MANIFEST_NAME, what),))

    def check(shard: PackedShard) -> list[Fault]:
        try:
            with _file_of(shard) as file:
                found = [*_faults(file, shard, quick, decode)]
        except ShardError as error:  # of one that is fetched
            found = [Fault(shard.info.file, error.what)]
        if found:
            shard.check_version()
        return found

    faults, shown = list[Fault](), progress or Quiet()
    workers = max(1, min(workers or usable_cores(), len(shards)))
    with closing(shown), OrderedPool(check, workers) as pool:
        shown.start(manifest.size_bytes, 0)
        for shard, found in zip(shards, pool.map(shards), strict=True):
            faults += found
            shown.advance(0, shard.info.size_bytes)
    for name, expected in manifest.schema.files.items():
        file = file_beside(folder, name)
        if not file.is_file() or hash_file(file) != expected:
            faults.append(Fault(name, "missing, or not the file that the schema names"))
    if not (faults or quick):
        faults += _duplicate_keys(open_view(folder))
    known = _OWN_FILES | {shard.file for shard in manifest.shards} | set(manifest.schema.files)
    there = {each.name for each in folder.iterdir()} if isinstance(folder, Path) else known
    notes = [f"{name}: not a part of the dataset" for name in sorted(there - known)]
    return Report(folder, tuple(faults), tuple(notes), manifest)


@contextmanager
def _file_of(shard: PackedShard) -> Iterator[Path]:
    """Yield the file of a shard: of one from a URL an open one, which can be read when it is evicted."""
    if isinstance(shard, RemoteShard):
        with shard.open_file() as file:
            yield Path(f"/proc/self/fd/{file.fileno()}")
    else:
        yield shard.path


def _faults(path: Path, shard: PackedShard, quick: bool, decode: bool) -> Iterator[Fault]:
    """Yield the faults of a shard."""
    info, fields = shard.info, shard.schema.fields
    if (what := size_fault(path, info.size_bytes)) is not None:
        yield Fault(info.file, what)
        return
    try:
        digest = hash_file(path)
    except OSError as error:
        yield Fault(info.file, f"cannot be read ({error.strerror})")
        return
    if digest != info.xxh3_128:
        yield Fault(info.file, f"xxh3-128 is {digest}, the manifest says {info.xxh3_128}")
    if quick:
        return
    columns: dict[str, Column] = {}
    checksums: Mapping[str, Checksums] = {}
    for name, place in info.places.items():  # one by one: a damaged one does not hide the others
        try:
            columns |= open_columns(path, info._replace(places={name: place}))
        except ShardError as error:
            yield Fault(info.file, error.what, name)
    try:
        checksums = open_checksums(path, info)
    except ShardError as error:
        yield Fault(info.file, error.what)
    keys = columns.get(KEY_FIELD) if isinstance(fields.get(KEY_FIELD), Text) else None
    for name, column in columns.items():
        found = [*_wrong_checksums(column, checksums[name])] if name in checksums else []
        found += _undecodable(column, fields[name]) if decode else []
        for what, rows in found:
            yield Fault(info.file, what, name, rows, _keys_of(keys, rows))


def _wrong_checksums(column: Column, checksums: Checksums) -> Iterator[tuple[str, _Rows]]:
    per_block, hashes = checksums.rows_per_block, checksums.hashes
    found = (hash_block(column, block, per_block) for block in range(len(hashes)))
    bad = np.flatnonzero(np.fromiter(found, np.uint64, len(hashes)) != hashes)
    for run in filter(len, np.split(bad, np.flatnonzero(np.diff(bad) != 1) + 1)):
        last = min((int(run[-1]) + 1) * per_block, len(column)) - 1
        yield f"{counted(len(run), 'checksum')} wrong", (int(run[0]) * per_block, last)


def _undecodable(column: Column, field: Field) -> Iterator[tuple[str, _Rows]]:
    codec = codec_for(field)
    for row in range(len(column)):
        try:
            codec.decode(column.row(row))
        except Exception as error:  # whatever a codec makes of damaged bytes is the finding
            yield f"cannot be decoded ({error})", (row, row)


def _keys_of(keys: Column | None, rows: _Rows) -> tuple[str, ...]:
    """Return the keys of the first and the last of some rows, where there are any."""
    records = () if keys is None else [keys.row(row)[:1000] for row in sorted({*rows})]
    return tuple(record.tobytes().decode(errors="backslashreplace") for record in records)


def _duplicate_keys(view: View) -> Iterator[Fault]:
    """Yield a fault for the first sample whose key an earlier one has."""
    later, firsts = repeated(view.key_hashes()) if view.has_keys else ([], [])
    if later:
        (path, row), (other, other_row) = view.place(later[0]), view.place(firsts[0])
        what = f"the first of {counted(len(later), 'duplicate key')}, as in {other.name}, row {other_row}"
        yield Fault(path.name, what, KEY_FIELD, (row, row), (str(view.key(later[0])),))
