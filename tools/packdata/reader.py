"""A packed dataset without torch: records by number, decoded samples, columns, keys.

Shards are mapped on first use and a few stay mapped, so a dataset may have more of them than the
process may have open files.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import Codec, codec_for
from loaders.codecs.raw import RawCodec
from loaders.columns import Column, FixedColumn
from loaders.errors import ChecksumError, CodecError, SampleError, SchemaError, ShardError
from loaders.formats import hash_file, open_checksums, open_columns
from loaders.manifest import Manifest, ShardInfo, read_manifest
from loaders.schema import Schema, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

UInt8Array = npt.NDArray[np.uint8]
KEY_FIELD = "key"
_MAX_MAPPED = 32
_PIECE_BYTES = 32 << 20
_VERIFY = "Run 'packdata verify' on it; 'packdata repair' restores shards from a copy"


class PackedReader:
    """The records and samples of a packed dataset, by number; may be shared by threads.

    Args:
        path: The dataset's folder.
        check: Compare each block of rows with its checksum when its first record is asked for.
            Whoever writes records anew needs it: a damaged one must not get a good checksum.

    Raises:
        ManifestError: The folder is not a packed dataset, or its manifest is damaged.
    """

    def __init__(self, path: Path | str, *, check: bool = False) -> None:
        self.path, self.check = Path(path), check
        self.manifest: Manifest = read_manifest(self.path)
        self.schema: Schema = self.manifest.schema
        sizes = [shard.num_samples for shard in self.manifest.shards]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._codecs: dict[str, Codec] = {}
        self._mapped: dict[int, _Shard] = {}  # in order of first use
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def has_keys(self) -> bool:
        """True if every sample has a key."""
        return isinstance(self.schema.fields.get(KEY_FIELD), Text)

    def locate(self, i: int) -> tuple[ShardInfo, int]:
        """Return the shard of sample ``i`` (negative: from the end) and its row there."""
        number, row = self._locate(i)
        return self.manifest.shards[number], row

    def _locate(self, i: int) -> tuple[int, int]:
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"sample index must be in [{-n}, {n}), got {i}")
        i %= n
        number = int(np.searchsorted(self._ends, i, side="right"))
        return number, i - self.first_sample(number)

    def first_sample(self, number: int) -> int:
        """Return the index of the first sample of shard ``number``."""
        return int(self._ends[number]) - self.manifest.shards[number].num_samples

    def columns(self, number: int) -> Mapping[str, Column]:
        """Return the columns of shard ``number``, mapped.

        Raises:
            ShardError: The shard is missing, has another size, or is damaged.
        """
        return self._shard(number).columns

    def _shard(self, number: int) -> _Shard:
        with self._lock:
            if number not in self._mapped:
                info = self.manifest.shards[number]
                self._mapped[number] = _Shard(self.path / info.file, info, check=self.check)
                if len(self._mapped) > _MAX_MAPPED:
                    del self._mapped[next(iter(self._mapped))]
            return self._mapped[number]

    def shards(self) -> Iterator[tuple[ShardInfo, Mapping[str, Column]]]:
        """Yield every shard and its columns, in sample order."""
        for number, shard in enumerate(self.manifest.shards):
            yield shard, self.columns(number)

    def column_parts(self, field: str) -> Iterator[Column]:
        """Yield the column of a field, shard by shard.

        Raises:
            ShardError: A shard is damaged; with ``check``, ChecksumError if a row of the field is.
        """
        for number in range(len(self.manifest.shards)):
            yield self._shard(number).column(field)

    def check_shard(self, number: int) -> None:
        """Compare the whole file of a shard with its hash in the manifest, whatever ``check`` is.

        Raises:
            ShardError: It differs; with row and field where the damage lies in a row.
        """
        info = self.manifest.shards[number]
        shard = _Shard(self.path / info.file, info, check=True)
        digest = hash_file(shard.path)
        if digest == info.xxh3_128:
            return
        for field in info.places:
            shard.column(field)
        what = f"its xxh3-128 is {digest}, the manifest says {info.xxh3_128}"
        raise ShardError(f"{what}; the damage lies between rows", shard.path, hint=_VERIFY)

    def record(self, i: int, field: str) -> UInt8Array:
        """Return the stored bytes of one field of sample ``i``: a read-only view of the shard.

        Raises:
            ShardError: The shard is damaged; with ``check``, ChecksumError if the record is.
        """
        return self.records(i, [field])[field]

    def records(self, i: int, fields: Sequence[str] | None = None) -> dict[str, UInt8Array]:
        """Return the stored bytes of the named fields (default: all) of sample ``i``, as views."""
        names = self.check_fields(fields)
        number, row = self._locate(i)
        shard = self._shard(number)
        return {name: shard.row(name, row) for name in names}

    def sample(self, i: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the decoded values of the named fields (default: all) of sample ``i``.

        Pictures are H x W x C here, not channels first.

        Raises:
            SampleError: A record cannot be decoded; the message has shard, row and key.
        """
        records = self.records(i, fields)
        return {name: self.decode(i, name, record) for name, record in records.items()}

    def decode(self, i: int, field: str, record: UInt8Array) -> Any:
        """Return the value of a record that sample ``i`` stores; SampleError if it has none."""
        try:
            return self.codec(field).decode(record)
        except CodecError as error:
            shard, row = self.locate(i)
            what = f"field {field!r}: {error}"
            raise SampleError(what, i, self.path / shard.file, row, self.key(i)) from error

    def codec(self, field: str) -> Codec:
        """Return the codec of a field; one instance serves all threads."""
        if field not in self._codecs:
            self._codecs[field] = codec_for(self.schema.fields[field])
        return self._codecs[field]

    def key(self, i: int) -> str | None:
        """Return the key of sample ``i``, or None where there is none that can be read."""
        if not self.has_keys:
            return None
        try:
            return self.record(i, KEY_FIELD).tobytes().decode(errors="backslashreplace")
        except ShardError:
            return None

    def keys(self) -> list[str]:
        """Return the keys of all samples, in order.

        Raises:
            SchemaError: The dataset was packed without keys.
        """
        if not self.has_keys:
            raise SchemaError(f"{self.path} has no field 'key': its samples have no names")
        keys: list[str] = []
        for column in self.column_parts(KEY_FIELD):
            rows = (column.row(row).tobytes() for row in range(len(column)))
            keys += [row.decode(errors="backslashreplace") for row in rows]
        return keys

    def column(self, field: str) -> npt.NDArray[Any]:
        """Return the values of a field of fixed shape, for all samples: ``(N, *shape)``, a copy.

        Raises:
            SchemaError: The field is not an array of fixed shape, stored raw.
        """
        nbytes, codec = self._row_nbytes(field), self.codec(field)
        assert isinstance(codec, RawCodec)
        rows, end = np.empty((len(self), nbytes), np.uint8), 0
        for part in self.rows(field):
            start, end = end, end + len(part)
            rows[start:end] = part
        return rows.reshape(-1).view(codec.dtype).reshape(len(self), *codec.shape)

    def rows(self, field: str) -> Iterator[UInt8Array]:
        """Yield the records of a field of fixed shape, some megabytes at a time: ``(N, nbytes)``.

        They are views of the shard, or copies where it holds each by itself, as LMDB holds large
        ones.

        Raises:
            SchemaError: The field is not an array of fixed shape, stored raw.
            ShardError: A shard is damaged; with ``check``, ChecksumError if a row of the field is.
        """
        nbytes = self._row_nbytes(field)
        for number in range(len(self.manifest.shards)):
            yield from self._shard(number).rows(field, nbytes)

    def _row_nbytes(self, field: str) -> int:
        self.check_fields([field])
        nbytes = self.schema.fields[field].record_nbytes
        if nbytes is None or not isinstance(self.codec(field), RawCodec):
            raise SchemaError(f"field {field!r} has no column: its records vary, or are encoded")
        return nbytes

    def check_fields(self, fields: Sequence[str] | None) -> Sequence[str]:
        """Return the names (default: of all fields); SchemaError if one is not a stored field."""
        names = list(self.schema.fields) if fields is None else fields
        for name in names:
            if name not in self.schema.fields:
                known = ", ".join(self.schema.fields)
                raise SchemaError(f"{self.path} has no field {name!r}; it has {known}")
        return names


class _Shard:
    """One mapped shard, and which blocks of its rows have been checked."""

    def __init__(self, path: Path, info: ShardInfo, *, check: bool) -> None:
        self.path, self.num_samples = path, info.num_samples
        self.columns = open_columns(path, info)
        self._checksums = open_checksums(path, info) if check else {}
        self._checked = {
            name: np.zeros(len(c.hashes), bool) for name, c in self._checksums.items()
        }

    def row(self, field: str, row: int) -> UInt8Array:
        """Return one record, checked if that is asked for."""
        if field in self._checksums:
            block = row // self._checksums[field].rows_per_block
            if not self._checked[field][block]:
                self._check(field, block)
        return self.columns[field].row(row)

    def _check(self, field: str, block: int) -> None:
        checksums = self._checksums[field]
        if checksums.first_mismatch(self.columns[field], np.array([block])) is not None:
            first = block * checksums.rows_per_block
            last = min(first + checksums.rows_per_block, self.num_samples) - 1
            # Small rows are hashed together: which of them is damaged, nobody knows.
            what = "its checksum differs" + (
                "" if first == last else f", of rows {first} to {last}"
            )
            raise ChecksumError(what, self.path, first, field, _VERIFY)
        self._checked[field][block] = True

    def column(self, field: str) -> Column:
        """Return a column, checked if that is asked for."""
        for block in np.flatnonzero(~self._checked.get(field, np.ones(0, bool))).tolist():
            self._check(field, block)
        return self.columns[field]

    def rows(self, field: str, nbytes: int) -> Iterator[UInt8Array]:
        """Yield a column of records of one size in pieces, checked if that is asked for."""
        column = self.column(field)
        step = max(1, _PIECE_BYTES // max(1, nbytes))
        if isinstance(column, FixedColumn):
            yield from (column.data[i : i + step] for i in range(0, len(column), step))
            return
        wrong = column.lengths != nbytes
        if wrong.any():
            row = int(wrong.argmax())
            what = f"its record has {column.lengths[row]} bytes, the schema needs {nbytes}"
            raise ShardError(what, self.path, row, field, _VERIFY)
        for first in range(0, len(column), step):
            numbers = range(first, min(first + step, len(column)))
            yield np.stack([column.row(row) for row in numbers])
