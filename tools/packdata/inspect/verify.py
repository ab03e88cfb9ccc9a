"""Checking a packed dataset: sizes and hashes of its shards, checksums of their rows, that keys are unique."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.codecs import codec_for
from loaders.data.formats import hash_file, open_checksums, open_columns
from loaders.data.manifest import MANIFEST_NAME, Manifest, ShardInfo, read_manifest
from loaders.data.view import KEY_FIELD, open_view
from loaders.errors import ManifestError, ShardError
from loaders.schema import Field, Text
from loaders.system.limits import usable_cores
from packdata.describe import counted
from packdata.packing.pool import OrderedPool
from packdata.packing.store import size_fault
from packdata.sources.names import repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loaders.data.columns import Column
    from loaders.data.formats.checksums import Checksums

_OWN_FILES = frozenset({MANIFEST_NAME, "rejected.jsonl"})
_MAX_DUPLICATES = 1000
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
        return f"{', '.join([self.file, *self._place()])}: {self.what}"

    def _place(self) -> Iterator[str]:
        if self.field is not None:
            yield f"field {self.field}"
        if self.rows is not None:
            first, last = self.rows
            yield f"row {first}" if first == last else f"rows {first} to {last}"
        if self.keys:
            yield ("key " if len(self.keys) == 1 else "keys ") + " to ".join(map(repr, self.keys))


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    path: Path
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
    path: Path | str,
    *,
    quick: bool = False,
    decode: bool = False,
    workers: int | None = None,
    tick: Callable[[int], object] = int,
) -> Report:
    """Check a packed dataset and return all of its faults.

    Args:
        path: The dataset's folder.
        quick: Check sizes and hashes of the files alone: no row or key is named.
        decode: Also decode every record, which takes as long as an epoch without augmentation.
        workers: Shards checked at once; None for all usable cores.
        tick: Called with the bytes of each shard when it is done, possibly on another thread.
    """
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
    except ManifestError as error:
        what = f"{error.what}. {error.hint}".rstrip(". ")
        return Report(folder, (Fault(MANIFEST_NAME, what),))

    def check(info: ShardInfo) -> list[Fault]:
        try:
            return _check_shard(folder / info.file, info, manifest, quick, decode)
        finally:
            tick(info.size_bytes)

    workers = max(1, min(workers or usable_cores(), len(manifest.shards)))
    with OrderedPool(check, workers) as pool:
        faults = [fault for found in pool.map(manifest.shards) for fault in found]
    for name, expected in manifest.schema.files.items():
        path = folder / name
        if not path.is_file():
            faults.append(Fault(name, "missing"))
        elif (digest := hash_file(path)) != expected:
            faults.append(Fault(name, f"its xxh3-128 is {digest}, the schema says {expected}"))
    if not faults and not quick:
        faults += _duplicate_keys(folder)
    known = _OWN_FILES | {shard.file for shard in manifest.shards} | set(manifest.schema.files)
    others = sorted({each.name for each in folder.iterdir()} - known)
    notes = [f"{name}: not a part of the dataset" for name in others]
    return Report(folder, tuple(faults), tuple(notes), manifest)


def _check_shard(
    path: Path, info: ShardInfo, manifest: Manifest, quick: bool, decode: bool
) -> list[Fault]:
    if (what := size_fault(path, info.size_bytes)) is not None:
        return [Fault(info.file, what)]
    try:
        digest = hash_file(path)
    except OSError as error:
        return [Fault(info.file, f"cannot be read ({error.strerror or error})")]
    faults = []
    if digest != info.xxh3_128:
        about = f"its xxh3-128 is {digest}, the manifest says {info.xxh3_128}"
        faults.append(Fault(info.file, about))
    if quick:
        return faults
    columns = dict(_open_each(path, info, faults))
    is_text = isinstance(manifest.schema.fields.get(KEY_FIELD), Text)
    keys = columns.get(KEY_FIELD) if is_text else None
    checksums = _checksums(path, info, faults)
    for name, column in columns.items():
        found = list(_checksum_faults(column, checksums[name])) if name in checksums else []
        found += _decode_faults(column, manifest.schema.fields[name]) if decode else []
        faults += [Fault(info.file, what, name, at, _keys_of(keys, at)) for what, at in found]
    return faults


def _open_each(path: Path, info: ShardInfo, faults: list[Fault]) -> Iterator[tuple[str, Column]]:
    """Yield the columns that can be opened, one by one: a damaged one does not hide the others."""
    for name, place in info.places.items():
        try:
            yield name, open_columns(path, info._replace(places={name: place}))[name]
        except ShardError as error:
            rows = None if error.row is None else (error.row, error.row)
            faults.append(Fault(info.file, error.what, name, rows))


def _checksums(path: Path, info: ShardInfo, faults: list[Fault]) -> Mapping[str, Checksums]:
    try:
        return open_checksums(path, info)
    except ShardError as error:
        faults.append(Fault(info.file, error.what))
        return {}


def _checksum_faults(column: Column, checksums: Checksums) -> Iterator[tuple[str, _Rows]]:
    per_block, blocks = checksums.rows_per_block, np.arange(len(checksums.hashes))
    if checksums.first_mismatch(column, blocks) is None:
        return
    is_bad = [checksums.first_mismatch(column, blocks[b : b + 1]) is not None for b in blocks]
    bad = np.flatnonzero(is_bad)
    for run in np.split(bad, np.flatnonzero(np.diff(bad) != 1) + 1):
        rows = (int(run[0]) * per_block, min((int(run[-1]) + 1) * per_block, len(column)) - 1)
        yield f"{counted(len(run), 'checksum')} wrong", rows


def _decode_faults(column: Column, field: Field) -> Iterator[tuple[str, _Rows]]:
    codec = codec_for(field)
    for row in range(len(column)):
        try:
            codec.decode(column.row(row))
        except Exception as error:  # whatever a codec makes of damaged bytes is the finding
            yield f"cannot be decoded ({error})", (row, row)


def _keys_of(keys: Column | None, rows: _Rows) -> tuple[str, ...]:
    if keys is None:
        return ()
    return tuple(
        keys.row(row)[:1000].tobytes().decode(errors="backslashreplace")
        for row in sorted(set(rows))
    )


def _duplicate_keys(folder: Path) -> Iterator[Fault]:
    """Yield a fault for each sample whose key an earlier one has."""
    view = open_view(folder)
    later, firsts = repeated(view.key_hashes()) if view.has_keys else ([], [])
    for i, first in zip(later[:_MAX_DUPLICATES], firsts, strict=False):
        (path, row), (other, other_row) = view.place(i), view.place(first)
        what = f"duplicate key, as in {other.name}, row {other_row}"
        yield Fault(path.name, what, KEY_FIELD, (row, row), (str(view.key(i)),))
    if len(later) > _MAX_DUPLICATES:
        what = f"{len(later) - _MAX_DUPLICATES:,} more duplicate keys"
        yield Fault(MANIFEST_NAME, what, KEY_FIELD)
