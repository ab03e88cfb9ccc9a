"""Checking a packed dataset against everything that it says about itself, and naming every fault.

For each shard: it exists, has its size and its hash; each block of rows has its checksum; labels
name a class. For the whole: the manifest is intact, keys are unique, and what else lies in the folder.
That liblmdb or pyarrow reads the same was proved of these bytes when they were written (``write_shard``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.data.formats import hash_file, open_checksums, open_columns
from loaders.data.manifest import MANIFEST_NAME, Manifest, ShardInfo, manifest_bytes, read_manifest
from loaders.data.view import KEY_FIELD
from loaders.errors import CodecError, ManifestError, ShardError
from loaders.schema import Label, MultiLabel, Text, Tokens
from loaders.system.limits import usable_cores
from loaders.system.regular import read_regular
from packdata.packing.links import file_fault, size_fault
from packdata.packing.pool import OrderedPool
from packdata.sources.names import repeated, row_hashes

if TYPE_CHECKING:
    from loaders.data.columns import Column
    from loaders.data.formats.checksums import Checksums

_OWN_FILES = frozenset({MANIFEST_NAME, "rejected.jsonl"})
_MAX_DUPLICATES = 1000
Tick = Callable[[int], object]
_Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    file: str  # the file, inside the dataset's folder
    what: str
    field: str | None = None  # the field, if one is concerned
    rows: tuple[int, int] | None = None  # first and last row concerned
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

    def to_json(self) -> dict[str, Any]:
        """Return the fault as JSON types."""
        return {
            "file": self.file,
            "field": self.field,
            "rows": None if self.rows is None else list(self.rows),
            "keys": list(self.keys),
            "what": self.what,
        }


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
            "faults": [fault.to_json() for fault in self.faults],
            "notes": list(self.notes),
        }


def verify(
    path: Path | str,
    *,
    # Only sizes and hashes of the files: one read, and no row or key is named.
    quick: bool = False,
    # Also decode every record, which takes as long as an epoch without augmentation.
    decode: bool = False,
    # Shards checked at once; by default as many as there are cores.
    workers: int | None = None,
    # Called with the bytes of each shard when it is done, possibly on another thread.
    tick: Tick = int,
) -> Report:
    """Check a packed dataset and return all of its faults.

    The default reads every file once from the disk and hashes it twice, as a file and by rows.
    """
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
    except ManifestError as error:
        what = f"{error.what}. {error.hint}".rstrip(". ")
        return Report(folder, (Fault(MANIFEST_NAME, what),))

    def check(info: ShardInfo) -> tuple[list[Fault], _Hashes]:
        try:
            return _check_shard(folder / info.file, info, manifest, quick=quick, decode=decode)
        finally:
            tick(info.size_bytes)

    workers = max(1, min(workers or usable_cores(), len(manifest.shards)))
    with OrderedPool(check, workers) as pool:
        findings = list(pool.map(manifest.shards))
    faults = [fault for found, _ in findings for fault in found]
    faults += _side_file_faults(folder, manifest)
    faults += _duplicate_keys(folder, manifest, [hashes for _, hashes in findings])
    return Report(folder, tuple(faults), tuple(_notes(folder, manifest)), manifest)


def _check_shard(
    path: Path, info: ShardInfo, manifest: Manifest, *, quick: bool, decode: bool
) -> tuple[list[Fault], _Hashes]:
    """Return what is wrong with a shard, and the hashes of its keys."""
    hashes = np.empty(0, np.uint64)
    if (what := size_fault(path, info)) is not None:
        return [Fault(info.file, what)], hashes
    try:
        digest = hash_file(path)
    except OSError as error:
        return [Fault(info.file, f"it cannot be read ({error.strerror or error})")], hashes
    faults: list[Fault] = []
    if not quick:
        hashes = _check_rows(path, info, manifest, faults, decode)
    if digest != info.xxh3_128:
        what = f"its xxh3-128 is {digest}, the manifest says {info.xxh3_128}"
        if not quick and not faults:
            what += "; all rows are intact: the damage lies between them"
        faults.insert(0, Fault(info.file, what))
    return faults, hashes


def _check_rows(
    path: Path,
    info: ShardInfo,
    manifest: Manifest,
    found: list[Fault],
    decode: bool,
) -> _Hashes:
    """Add what is wrong with the rows of a shard to what was found; return the hashes of its keys."""
    columns = dict(_open_each(path, info, found))
    key_field = manifest.schema.fields.get(KEY_FIELD)
    keys = columns.get(KEY_FIELD) if isinstance(key_field, Text) else None
    checksums: Mapping[str, Checksums] = {}
    try:
        checksums = open_checksums(path, info)
    except ShardError as error:
        found.append(Fault(info.file, error.what))
    for name, column in columns.items():
        faults = list(_checksum_faults(name, column, checksums.get(name)))
        if not faults:
            faults += _value_faults(name, column, manifest)
        if decode:
            faults += _decode_faults(name, column, manifest)
        found += [replace(f, file=info.file, keys=_keys_of(keys, f.rows)) for f in faults]
    return np.empty(0, np.uint64) if keys is None else row_hashes(keys)


def _open_each(path: Path, info: ShardInfo, found: list[Fault]) -> Iterator[tuple[str, Column]]:
    """Yield the columns that can be opened, one by one: a damaged one does not hide the others."""
    for name, place in info.places.items():
        try:
            column = open_columns(path, info._replace(places={name: place}))[name]
        except ShardError as error:
            rows = None if error.row is None else (error.row, error.row)
            found.append(Fault(info.file, error.what, name, rows))
            continue
        if column.nbytes > info.size_bytes:  # hashing them could take for ever
            what = f"its rows have {column.nbytes} bytes, the file {info.size_bytes}: they overlap"
            found.append(Fault(info.file, what, name))
            continue
        yield name, column


def _checksum_faults(name: str, column: Column, checksums: Checksums | None) -> Iterator[Fault]:
    if checksums is None:
        return
    per_block, blocks = checksums.rows_per_block, np.arange(len(checksums.hashes))
    is_bad = [checksums.first_mismatch(column, blocks[b : b + 1]) is not None for b in blocks]
    for first, last in _runs(np.flatnonzero(is_bad)):
        rows = (first * per_block, min((last + 1) * per_block, len(column)) - 1)
        num = last - first + 1
        what = "its checksum differs" if num == 1 else f"{num} checksums in a row differ"
        yield Fault("", what, name, rows)


def _runs(numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of consecutive numbers."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(numbers, breaks):
        if len(run):
            yield int(run[0]), int(run[-1])


def _value_faults(name: str, column: Column, manifest: Manifest) -> Iterator[Fault]:
    kind = manifest.schema.fields[name]
    least = 0
    if isinstance(kind, Label) and kind.classes is not None:
        dtype, num_classes = "<i8", len(kind.classes)
        least = -1  # "not labelled"
        allowed = f"there are classes 0 to {num_classes - 1}"
    elif isinstance(kind, MultiLabel):
        dtype, num_classes, allowed = "u1", 2, "each is 0 or 1"
    elif isinstance(kind, Tokens) and kind.vocab_size is not None:
        dtype, num_classes = f"<u{np.dtype(kind.dtype).itemsize}", kind.vocab_size
        allowed = f"the vocabulary has {num_classes} ids"
    else:
        return
    nbytes = int(kind.record_nbytes or 0)
    if column.nbytes != nbytes * len(column):
        yield Fault("", f"its rows should have {nbytes} bytes each", name, (0, len(column) - 1))
        return
    data = b"".join(column.row(i).tobytes() for i in range(len(column)))
    values = np.frombuffer(data, dtype).reshape(len(column), -1)
    is_bad = (values < least) | (values >= num_classes)
    for first, last in _runs(np.flatnonzero(is_bad.any(axis=1))):
        value = values[first][is_bad[first]][0]
        yield Fault("", f"its value is {value}, {allowed}", name, (first, last))


def _decode_faults(name: str, column: Column, manifest: Manifest) -> Iterator[Fault]:
    try:
        codec = codec_for(manifest.schema.fields[name])
    except CodecError as error:
        yield Fault("", str(error), name)
        return
    for row in range(len(column)):
        try:
            codec.decode(column.row(row))
        except Exception as error:  # whatever a codec makes of damaged bytes is the finding
            yield Fault("", f"it cannot be decoded ({error})", name, (row, row))


def _keys_of(keys: Column | None, rows: tuple[int, int] | None) -> tuple[str, ...]:
    if keys is None or rows is None:
        return ()
    return tuple(_key(keys, row) for row in sorted(set(rows)))


def _key(keys: Column, row: int) -> str:
    return keys.row(row)[:1000].tobytes().decode(errors="backslashreplace")


def _duplicate_keys(
    folder: Path, manifest: Manifest, hashes: Sequence[_Hashes]
) -> Iterator[Fault]:
    """Yield a fault for each sample whose key an earlier one has."""
    shard_of = np.repeat(np.arange(len(hashes)), [len(part) for part in hashes])
    row_of = np.concatenate([np.arange(len(part)) for part in hashes]) if len(hashes) else shard_of
    later, firsts = repeated(np.concatenate([np.empty(0, np.uint64), *hashes]))
    for i, first in zip(later[:_MAX_DUPLICATES], firsts, strict=False):
        info, row = manifest.shards[shard_of[i]], int(row_of[i])
        other = manifest.shards[shard_of[first]]
        keys_only = info._replace(places={KEY_FIELD: info.places[KEY_FIELD]})
        key = _key(open_columns(folder / info.file, keys_only)[KEY_FIELD], row)
        what = f"{other.file}, row {row_of[first]} has the same key"
        yield Fault(info.file, what, KEY_FIELD, (row, row), (key,))
    if len(later) > _MAX_DUPLICATES:
        what = f"{len(later) - _MAX_DUPLICATES} more samples have keys of other samples"
        yield Fault(MANIFEST_NAME, what, KEY_FIELD)


def _side_file_faults(folder: Path, manifest: Manifest) -> Iterator[Fault]:
    for name, expected in manifest.schema.files.items():
        what = file_fault(folder / name, expected)
        if what is not None:
            yield Fault(name, what)


def _notes(folder: Path, manifest: Manifest) -> Iterator[str]:
    if read_regular(folder / MANIFEST_NAME) != manifest_bytes(manifest):
        yield f"{MANIFEST_NAME}: all that it says is right, but its spaces or line ends were changed"
    known = _OWN_FILES | {shard.file for shard in manifest.shards} | set(manifest.schema.files)
    for path in sorted(folder.iterdir()):
        if path.name in known:
            continue
        if path.name.startswith(".packing") or path.name.endswith(".tmp"):
            yield f"{path.name}: left over from an unfinished command"
        else:
            yield f"{path.name}: does not belong to the dataset"
