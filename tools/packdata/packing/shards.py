"""Cutting shards: the records of samples gather here, field by field, until they make a file.

Where a shard ends follows from the records alone, never from the number of workers or from timing:
that is what makes the same input and options the same bytes.
"""

from __future__ import annotations

import sys
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loaders.checks import one_of
from loaders.data.columns import Column, FixedColumn, VarColumn, ends
from loaders.errors import CodecError
from packdata.recipe import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from loaders.data.manifest import ShardInfo
    from loaders.schema import Schema
    from packdata.recipe import Records

Format = Literal["lmdb", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
# Writing 64 MiB at a time takes half as long per byte as 128 MiB, and half the memory.
DEFAULT_SHARD_BYTES = 64 << 20
# Of rows of numbers, of which other tools take several times the bytes while they read a shard.
TABLE_SHARD_BYTES = 32 << 20
# Parquet: other tools load a whole page, here a column of a shard, for one row.
MAX_SHARD_BYTES: dict[Format, int] = {"lmdb": 64 << 30, "parquet": 256 << 20}
# What a shard may exceed that by is its last sample. LMDB: sizes are int32. Parquet: 1 GiB per
# column.
MAX_RECORD_BYTES: dict[Format, int] = {"lmdb": (2 << 30) - 1, "parquet": 512 << 20}
MAX_FIXED_BYTES = (1 << 28) - 1  # Arrow opens no column of bytes with longer rows of one length
# LMDB takes about 560 bytes of memory for each value while it writes a shard: 150 MB.
_MAX_VALUES = 1 << 18
_RECORD_BYTES = 8  # what counts for a record beside its bytes: its length, or its row


def check_shard_options(format: str, shard_bytes: int) -> None:
    """Raise ValueError unless shards of this format can have this size."""
    most = MAX_SHARD_BYTES[one_of("format", format, FORMATS)]
    if not 0 < shard_bytes <= most:
        raise ValueError(f"shard_bytes must be in [1, {most}] for {format}, got {shard_bytes}")


class _GrowingColumn:
    """Records of one field, one after the other, that are joined once the shard is full."""

    def __init__(self, nbytes: int | None) -> None:
        self._nbytes = nbytes  # of each record, if all are alike
        self._pieces: list[Any] = []  # bytes, or arrays of them
        self._lengths = array("q")

    def append(self, record: bytes) -> None:
        self._pieces.append(record)
        self._lengths.append(len(record))

    def extend(self, column: Column, first: int, last: int) -> None:
        """Append rows ``first`` to ``last`` of a column."""
        if isinstance(column, FixedColumn):
            self._pieces.append(np.ascontiguousarray(column.data[first:last]))
            return
        starts, lengths = column.starts[first:last], column.lengths[first:last]
        breaks = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1
        for one, other in pairwise([0, *breaks.tolist(), last - first]):
            end = starts[other - 1] + lengths[other - 1]
            self._pieces.append(column.buffer[starts[one] : end])
        self._lengths.frombytes(lengths.astype(np.int64, copy=False).tobytes())

    def take(self, num_samples: int) -> Column:
        data = np.frombuffer(b"".join(self._pieces), np.uint8)
        lengths = np.array(self._lengths, np.int64)
        self._pieces, self._lengths = [], array("q")
        if self._nbytes is not None:
            return FixedColumn(data.reshape(num_samples, self._nbytes))
        return VarColumn(data, ends(lengths) - lengths, lengths)


class ShardBuilder:
    """Collects the records of a dataset until they fill a shard.

    Args:
        schema: The fields of every sample.
        format: Format of the shards, for their limits.
        shard_bytes: A shard is full once its records have this many bytes; of LMDB, also once it has some 10**5
            records of varying size.
    """

    def __init__(self, schema: Schema, format: Format, shard_bytes: int) -> None:
        self.schema, self.format, self._shard_bytes = schema, format, shard_bytes
        self._rows = {n: _GrowingColumn(each.record_nbytes) for n, each in schema.fields.items()}
        self._num_samples = self._nbytes = 0
        num_varied = sum(field.record_nbytes is None for field in schema.fields.values())
        is_bounded = format == "lmdb" and num_varied > 0
        self._max_samples = max(1, _MAX_VALUES // num_varied) if is_bounded else sys.maxsize

    def add(self, records: Records | Block, first: int = 0) -> Iterable[int]:
        """Add a sample, or those of a block from number ``first`` on, that passed ``check_records``.

        Each time that a shard is full, it is yielded which sample is next: then it is to be taken.
        """
        if isinstance(records, Block):
            return self._add_block(records, first)
        for name, rows in self._rows.items():
            record = records[name]
            rows.append(record)
            self._nbytes += len(record) + _RECORD_BYTES
        self._num_samples += 1
        return (1,) if self._is_full() else ()

    def _add_block(self, block: Block, first: int) -> Iterator[int]:
        ends = _block_ends(block)
        while first < len(block):  # until the block ends or the shard is full
            before = int(ends[first - 1]) if first else 0
            room = self._shard_bytes - self._nbytes
            most = first + self._max_samples - self._num_samples
            last = min(int(np.searchsorted(ends, before + room)) + 1, len(ends), most)
            for name, rows in self._rows.items():
                rows.extend(block.columns[name], first, last)
            self._nbytes += int(ends[last - 1]) - before
            self._num_samples += last - first
            first = last
            if self._is_full():
                yield first

    def _is_full(self) -> bool:
        return self._nbytes >= self._shard_bytes or self._num_samples >= self._max_samples

    def __len__(self) -> int:
        return self._num_samples

    def take(self) -> dict[str, Column]:
        """Return the columns of what was added, and begin anew."""
        num, self._num_samples, self._nbytes = self._num_samples, 0, 0
        return {name: rows.take(num) for name, rows in self._rows.items()}


def check_records(records: Records | Block, schema: Schema, format: Format) -> None:
    """Check the records of one sample, or of a block of them.

    Raises:
        CodecError: A record is larger than the format can hold.
        ValueError: The records contradict the schema, which is a defect of what made them.
    """
    each = records.columns if isinstance(records, Block) else records
    if each.keys() != schema.fields.keys():
        raise ValueError(f"records of {sorted(each)}, the schema has {sorted(schema.fields)}")
    for name, record in each.items():
        fixed, size = schema.fields[name].record_nbytes, _largest(record)
        if fixed is not None and (size != fixed or isinstance(record, VarColumn)):
            raise ValueError(f"records of {name!r} have {size} bytes, in the schema {fixed}")
        most = MAX_RECORD_BYTES[format]
        if format == "parquet" and fixed is not None:
            most = min(most, MAX_FIXED_BYTES)
        if size > most:
            raise CodecError(f"{name!r} takes {size} bytes; a {format} shard holds {most}")


def _largest(record: bytes | Column) -> int:
    if isinstance(record, FixedColumn):
        return int(record.data.shape[1])
    return int(record.lengths.max(initial=0)) if isinstance(record, VarColumn) else len(record)


def _block_ends(block: Block) -> npt.NDArray[np.int64]:
    """Return what the samples of a block count for in a shard's size, added up to each of them."""
    sizes = np.full(len(block), _RECORD_BYTES * len(block.columns), np.int64)
    for column in block.columns.values():
        sizes += column.data.shape[1] if isinstance(column, FixedColumn) else column.lengths
    return np.cumsum(sizes, out=sizes)


def named_by_hash(shard: ShardInfo, name: str) -> ShardInfo:
    """Return a shard under its name in a dataset, which holds its hash: ``NAME-HASH.lmdb``."""
    return shard._replace(file=f"{name}-{shard.xxh3_128}.{shard_format(shard.file)}")


def shard_format(name: str) -> Format:
    """Return the format of a shard by the name of its file."""
    return "lmdb" if name.endswith(".lmdb") else "parquet"
