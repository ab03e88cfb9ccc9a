"""LMDB shards: one file that any LMDB tool opens, and that we read without one.

Keys: for a column with one value per row, the field's name and the row as 8 big-endian bytes; for a
column of small fixed rows, or of any fixed rows in a dataset of tokens, the field's name alone and all rows in one
value. Beside a column of values lie ``<field>__nbytes`` and ``<field>__starts``: the size and the offset in the file
of every value, as int32 and int64. They are what serving reads. The offsets exist only once LMDB has laid
its pages out: the value is reserved, and filled in after the last commit.

Source:
    Page layout: ``mdb.c`` of LMDB 0.9 (data version 1), little-endian, 64-bit.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np

from loaders.data.columns import Column, FixedColumn, row_views
from loaders.data.manifest import Place
from loaders.schema import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from loaders.schema import Field

CHECKSUMS_KEY = b"__checksums"
VALUE_BYTES = 4 << 10  # rows from here on get a value of their own
_MAX_VALUE_BYTES = (1 << 32) - 1  # of any value: LMDB's own limit
_HEADER = 16  # bytes before the body of a page
_BRANCH = 1
_BIG_DATA = 1


def _row_keys(field: str, num_rows: int) -> list[bytes]:
    """Return the key of each row's value, in LMDB's order."""
    name, numbers = field.encode(), np.arange(num_rows, dtype=">u8").tobytes()
    return [name + numbers[8 * row : 8 * row + 8] for row in range(num_rows)]


def write(
    path: Path, columns: Mapping[str, Column], checksums: bytes, fields: Mapping[str, Field]
) -> tuple[dict[str, Place], tuple[int, int]]:
    """Write columns as an LMDB file, in place of any of that name; fsync is the caller's.

    Return the place of each column, and of the checksums' text; ValueError if a value is larger than LMDB's 4 GiB.
    """
    # Rows lie end to end in one value: small ones, to save room; tokens and their labels, to be read across rows.
    has_tokens = any(isinstance(field, Tokens) for field in fields.values())
    joined = {
        name: column.data
        for name, column in columns.items()
        if isinstance(column, FixedColumn) and (has_tokens or column.data.shape[1] < VALUE_BYTES)
    }
    apart = {name: column for name, column in columns.items() if name not in joined}
    items: dict[bytes, Any] = {name.encode(): data.reshape(-1) for name, data in joined.items()}
    items |= {**dict(_rows(apart)), CHECKSUMS_KEY: checksums}
    path.unlink(missing_ok=True)  # liblmdb would add to it
    _write_items(path, items)
    values = dict(find_values(path))
    _fill_in_starts(path, apart, values)
    places = {}
    for name in columns:
        key = name.encode()
        if name in joined:
            places[name] = Place(values[key][0], joined[name].shape[1])
        else:
            lengths, starts = values[key + b"__nbytes"][0], values[key + b"__starts"][0]
            places[name] = Place(lengths=lengths, starts=starts)
    return places, values[CHECKSUMS_KEY]


def _rows(columns: Mapping[str, Column]) -> Iterator[tuple[bytes, Any]]:
    """Yield what is stored of columns with a value for each row, but for where these begin."""
    for name, column in columns.items():
        rows = list(row_views(column))
        yield name.encode() + b"__nbytes", np.array([len(row) for row in rows], "<i4").tobytes()
        yield name.encode() + b"__starts", bytes(8 * len(rows))
        yield from zip(_row_keys(name, len(rows)), rows, strict=True)


def _opened(path: Path, **options: Any) -> Any:
    return lmdb.open(os.fsencode(path), subdir=False, lock=False, **options)


def _write_items(path: Path, items: Mapping[bytes, Any]) -> None:
    sizes = {key: memoryview(value).nbytes for key, value in items.items()}
    for key, nbytes in sizes.items():
        if nbytes > _MAX_VALUE_BYTES:
            raise ValueError(f"value {key!r} has {nbytes} bytes, LMDB holds {_MAX_VALUE_BYTES}")
    # The size of the map is stored in the file: it follows from the contents alone (and the
    # machine's page size), so that the bytes do too.
    pages = sum(2 + (nbytes + _HEADER) // mmap.PAGESIZE for nbytes in sizes.values())
    size = (2 * pages + 64) * mmap.PAGESIZE
    with (
        _opened(path, map_size=size, sync=False, meminit=True) as env,
        env.begin(write=True) as txn,
    ):
        for key in sorted(items):
            txn.put(key, items[key], append=True)


def _fill_in_starts(
    path: Path, columns: Mapping[str, Column], places: Mapping[bytes, tuple[int, int]]
) -> None:
    with open(path, "r+b") as file:
        for name, column in columns.items():
            starts = np.array([places[key][0] for key in _row_keys(name, len(column))], "<i8")
            file.seek(places[name.encode() + b"__starts"][0])
            file.write(starts.tobytes())


def find_values(path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Return the key of every value, and its offset and size in the file, in key order; liblmdb made the file."""
    buffer = memoryview(np.memmap(path, np.uint8, "r"))  # type: ignore[arg-type]
    # The first two pages are meta pages. After the header they have: magic, version, address, map size,
    # two databases of 48 bytes (the first begins with the page size), last page, transaction.
    page_size = struct.unpack_from("<I", buffer, _HEADER + 24)[0]
    metas = (_HEADER, page_size + _HEADER)
    newest = max(metas, key=lambda meta: struct.unpack_from("<Q", buffer, meta + 128))
    return _walk(buffer, page_size, struct.unpack_from("<q", buffer, newest + 24 + 48 + 40)[0])


def _walk(
    buffer: memoryview, page_size: int, page: int
) -> Iterator[tuple[bytes, tuple[int, int]]]:
    base = page * page_size
    flags, lower = struct.unpack_from("<HH", buffer, base + 10)
    for i in range((lower - _HEADER) // 2):
        node = base + struct.unpack_from("<H", buffer, base + _HEADER + 2 * i)[0]
        low, high, node_flags, key_size = struct.unpack_from("<HHHH", buffer, node)
        if flags & _BRANCH:
            yield from _walk(buffer, page_size, low | high << 16 | node_flags << 32)
            continue
        key, start = bytes(buffer[node + 8 : node + 8 + key_size]), node + 8 + key_size
        if node_flags & _BIG_DATA:  # the value lies on pages of its own
            start = struct.unpack_from("<Q", buffer, start)[0] * page_size + _HEADER
        yield key, (start, low | high << 16)


def read_back(path: Path, columns: Mapping[str, Column]) -> str | None:
    """Compare the file, as liblmdb sees it, with columns; return the first difference in words, or None.

    liblmdb trusts its pages: run this in a process of its own on a file that may be damaged.
    """
    with _opened(path, readonly=True, max_readers=1) as env, env.begin(buffers=True) as txn:
        return next(_differences(txn, columns), None)


def _differences(txn: Any, columns: Mapping[str, Column]) -> Iterator[str]:
    for name, column in columns.items():
        if isinstance(column, FixedColumn):  # rows with a value each are found by their starts
            value = txn.get(name.encode())
            if value is None or not np.array_equal(value, column.data.reshape(-1)):
                yield f"the value of column {name!r} differs"
            continue
        keys = _row_keys(name, len(column))
        for i, (key, row) in enumerate(zip(keys, row_views(column), strict=True)):
            if (value := txn.get(key)) is None or bytes(value) != bytes(row):
                yield f"the value of {name!r}, row {i} differs"
