"""LMDB shards: one file that any LMDB tool opens, and that we read without one.

Keys: for a column with one value per row, the field's name and the row as 8 big-endian bytes; for a column of small
fixed rows, the field's name alone and all rows in one value. Beside a column of values lie ``<field>__nbytes`` and
``<field>__starts``: the size and the offset in the file of every value, as int32 and int64. They are what serving reads.
The offsets exist only once LMDB has laid its pages out: the value is reserved, and filled in after the last commit.

Source:
    Page layout: ``mdb.c`` of LMDB 0.9 (data version 1), little-endian, 64-bit.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from loaders.columns import Column, FixedColumn
from loaders.errors import ShardError
from loaders.manifest import Place

SUFFIX = ".lmdb"
CHECKSUMS_KEY = b"__checksums"
VALUE_BYTES = 4 << 10  # rows from here on get a value of their own
_PAGE = 4096
_HEADER = 16  # bytes before the body of a page
_BRANCH, _LEAF = 1, 2
_BIG_DATA = 1


def row_key(field: str, row: int) -> bytes:
    """Return the key of one row's value."""
    return field.encode() + struct.pack(">Q", row)


def write(path: Path, columns: Mapping[str, Column], checksums: bytes) -> tuple[dict[str, Place], tuple[int, int]]:
    """Write columns as an LMDB file and fsync it.

    Returns:
        The place of each column, and of the checksums' text.
    """
    items = dict(_items(columns)) | {CHECKSUMS_KEY: checksums}
    _write_items(path, items)
    places = dict(find_values(path))
    _fill_in_starts(path, columns, places)
    return {name: _place(name, column, places) for name, column in columns.items()}, places[CHECKSUMS_KEY]


def _items(columns: Mapping[str, Column]) -> Iterator[tuple[bytes, Any]]:
    for name, column in columns.items():
        key = name.encode()
        if _is_one_value(column):
            yield key, column.data  # type: ignore[union-attr]
            continue
        lengths = [len(column.row(i)) for i in range(len(column))]
        yield key + b"__nbytes", np.array(lengths, "<i4").tobytes()
        yield key + b"__starts", bytes(8 * len(column))
        for i in range(len(column)):
            yield row_key(name, i), column.row(i)


def _is_one_value(column: Column) -> bool:
    return isinstance(column, FixedColumn) and column.data.shape[1] < VALUE_BYTES


def _write_items(path: Path, items: Mapping[bytes, Any]) -> None:
    # The size of the map is stored in the file: it follows from the contents alone, so that the bytes do too.
    pages = sum(2 + (len(memoryview(value).cast("B")) + _HEADER) // _PAGE for value in items.values())
    map_size = (2 * pages + 64) * _PAGE
    env = lmdb.open(str(path), map_size=map_size, subdir=False, lock=False, sync=False, meminit=True)
    try:
        with env.begin(write=True) as txn:
            for key in sorted(items):
                txn.put(key, items[key], append=True)
        env.sync(True)
    finally:
        env.close()


def _fill_in_starts(
    path: Path, columns: Mapping[str, Column], places: Mapping[bytes, tuple[int, int]]
) -> None:
    with open(path, "r+b") as file:
        for name, column in columns.items():
            if not _is_one_value(column):
                starts = np.array([places[row_key(name, i)][0] for i in range(len(column))], "<i8")
                file.seek(places[name.encode() + b"__starts"][0])
                file.write(starts.tobytes())
        file.flush()
        os.fsync(file.fileno())


def _place(name: str, column: Column, places: Mapping[bytes, tuple[int, int]]) -> Place:
    key = name.encode()
    row_nbytes = column.data.shape[1] if isinstance(column, FixedColumn) else None
    if _is_one_value(column):
        return Place(places[key][0], row_nbytes)
    return Place(lengths=places[key + b"__nbytes"][0], starts=places[key + b"__starts"][0])


def find_values(path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the key of every value, and its offset and size in the file, in key order.

    Raises:
        ShardError: The pages are not those of an LMDB file, or lead outside of it.
    """
    try:
        buffer = memoryview(np.memmap(path, np.uint8, "r"))  # type: ignore[arg-type]
        yield from _walk(buffer, _root_page(buffer), 0, set())
    except (struct.error, IndexError, ValueError) as error:
        raise ShardError(f"it is not a well-formed LMDB file ({error})", path) from error


def _root_page(buffer: memoryview) -> int:
    # A meta page after its header: magic, version, address, map size, two databases of 48 bytes, last page, transaction.
    newest = max((0, 1), key=lambda page: struct.unpack_from("<Q", buffer, page * _PAGE + _HEADER + 128)[0])
    magic, version = struct.unpack_from("<II", buffer, newest * _PAGE + _HEADER)
    if (magic, version) != (0xBEEFC0DE, 1):
        raise ValueError(f"magic {magic:#x}, version {version}")
    return int(struct.unpack_from("<q", buffer, newest * _PAGE + _HEADER + 24 + 48 + 40)[0])


def _walk(
    buffer: memoryview, page: int, depth: int, seen: set[int]
) -> Iterator[tuple[bytes, tuple[int, int]]]:
    if page == -1:  # an empty database
        return
    if depth > 32 or page in seen or not 2 <= page < len(buffer) // _PAGE:
        raise ValueError(f"a branch at depth {depth} leads to page {page}")
    seen.add(page)
    base = page * _PAGE
    flags, lower = struct.unpack_from("<HH", buffer, base + 10)
    for i in range((lower - _HEADER) // 2):
        node = base + struct.unpack_from("<H", buffer, base + _HEADER + 2 * i)[0]
        low, high, node_flags, key_size = struct.unpack_from("<HHHH", buffer, node)
        if flags & _BRANCH:
            yield from _walk(buffer, low | high << 16 | node_flags << 32, depth + 1, seen)
        elif flags & _LEAF:
            yield _leaf_value(buffer, node, node_flags, key_size, low | high << 16)
        else:
            raise ValueError(f"page {page} has flags {flags}")


def _leaf_value(
    buffer: memoryview, node: int, flags: int, key_size: int, size: int
) -> tuple[bytes, tuple[int, int]]:
    key, start = bytes(buffer[node + 8 : node + 8 + key_size]), node + 8 + key_size
    if flags & _BIG_DATA:  # the value lies on pages of its own
        start = struct.unpack_from("<Q", buffer, start)[0] * _PAGE + _HEADER
    if start + size > len(buffer):
        raise ValueError(f"value {key!r} ends at byte {start + size}")
    return key, (start, size)


def read_back(path: Path, columns: Mapping[str, Column]) -> str | None:
    """Compare the file, as liblmdb sees it, with columns; return the first difference in words, or None.

    liblmdb trusts its pages: run this in a process of its own on a file that may be damaged.
    """
    env = lmdb.open(str(path), subdir=False, lock=False, readonly=True, max_readers=1)
    try:
        with env.begin(buffers=True) as txn:
            return next(_differences(txn, columns), None)
    finally:
        env.close()


def _differences(txn: Any, columns: Mapping[str, Column]) -> Iterator[str]:
    for name, column in columns.items():
        if _is_one_value(column):
            if not _same(txn.get(name.encode()), column.data):  # type: ignore[union-attr]
                yield f"the value of column {name!r} differs"
            continue
        for i in range(len(column)):
            if not _same(txn.get(row_key(name, i)), column.row(i)):
                yield f"the value of {name!r}, row {i} differs"


def _same(value: memoryview | None, row: npt.NDArray[np.uint8]) -> bool:
    return value is not None and np.array_equal(np.frombuffer(value, np.uint8), row.reshape(-1))
