"""Parquet shards: an ordinary Parquet file whose columns can be mapped in place.

Every column is required, PLAIN, uncompressed, without dictionary, in one row group and one v1 data
page: its values then lie contiguous at the end of the column chunk. 8- and 16-bit data is
FIXED_LEN_BYTE_ARRAY (Parquet itself would store it in 4 bytes), 32- and 64-bit numbers have their
own types, rows of varying size are BYTE_ARRAY beside an int32 column ``<field>__nbytes`` from which
their offsets follow.

The bytes are the same as Arrow's writer makes, which takes five times as long and four times a column's memory: it
encodes the level of every number in a list, where ``levels.py`` encodes one period. Arrow reads back what was written.

Source:
    https://parquet.apache.org/docs/file-format/: PLAIN encoding, data pages, page headers (Thrift's
    compact protocol), column chunk metadata.
"""

from __future__ import annotations

import base64
import zlib
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from loaders.data.columns import Column, FixedColumn, VarColumn, row_views, rows_between
from loaders.data.manifest import Place
from loaders.schema import Array, Categories, Field, Label
from packdata.formats.levels import list_levels
from packdata.formats.thrift import BINARY, I32, I64, STRUCT, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

CHECKSUMS_KEY = b"loaders.checksums"
# Pages are counted in int32, and other tools load a whole page for one row.
MAX_COLUMN_BYTES = 1 << 30
_PIECE = 1 << 20
# Of no bytes; pa.scalar, pa.array and to_numpy() would import pandas where it is installed, on a thread that packs.
_NOTHING = pa.Array.from_buffers(
    pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")]
)[0]
_MAGIC = b"PAR1"
_DATA_PAGE, _PLAIN, _RLE, _UNCOMPRESSED, _REQUIRED, _REPEATED = 0, 0, 3, 0, 0, 2
_UTF8, _LIST, _UINT = 0, 3, {32: 13, 64: 14}  # what values are taken as
_BYTES, _FIXED_BYTES = 6, 7
_PHYSICAL = {"int32": 1, "uint32": 1, "int64": 2, "uint64": 2, "float": 4, "double": 5}
_PREFIX = 4  # bytes before each BYTE_ARRAY value: its length


def write(
    path: Path, columns: Mapping[str, Column], checksums: bytes, fields: Mapping[str, Field]
) -> tuple[dict[str, Place], tuple[int, int]]:
    """Write columns as a Parquet file, as Arrow would, but for its time and memory; fsync is the caller's.

    Return the place of each column, and of the checksums' text. ValueError if a column has more than 1 GiB.
    """
    num_rows, parts = len(next(iter(columns.values()))), [*_parts(columns, fields)]
    offsets, chunks = {}, []
    with open(path, "wb") as file:
        file.write(_MAGIC)
        for part, data in parts:
            begin, size = file.tell(), _size(part.type)
            levels = b"" if size is None else list_levels(num_rows, size)
            file.write(_page_header(num_rows * (size or 1), levels, data) + levels)
            offsets[part.name] = file.tell()
            file.write(data.data)
            chunks.append(_chunk(part, num_rows, len(data), begin, file.tell() - begin))
        footer = _footer([part for part, _ in parts], num_rows, chunks, checksums)
        checksums_at = file.tell() + footer.index(checksums)
        file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)
    places = {}
    for name, column in columns.items():
        if isinstance(column, FixedColumn):
            places[name] = Place(offsets[name], column.data.shape[1])
        else:
            places[name] = Place(offsets[name], lengths=offsets[f"{name}__nbytes"], gap=_PREFIX)
    return places, (checksums_at, len(checksums))


def _parts(
    columns: Mapping[str, Column], fields: Mapping[str, Field]
) -> Iterator[tuple[Any, npt.NDArray[np.uint8]]]:
    """Yield Parquet's columns: the field under which other tools read each, and its values."""
    for name, column in columns.items():
        if column.nbytes + _PREFIX * len(column) > MAX_COLUMN_BYTES:
            what = f"column {name!r} has {column.nbytes} bytes"
            raise ValueError(f"{what}; a Parquet shard holds 1 GiB per column")
        if isinstance(column, FixedColumn):
            kind = _fixed_type(fields[name], column.data.shape[1])
            yield pa.field(name, kind, False), np.ascontiguousarray(column.data).reshape(-1)
        else:
            is_text = fields[name].codec in ("text", "json")
            lengths = column.lengths.astype("<i4")
            yield pa.field(name, pa.string() if is_text else pa.binary(), False), _prefixed(column)
            yield pa.field(f"{name}__nbytes", pa.int32(), False), lengths.view(np.uint8)


def _fixed_type(field: Field, nbytes: int) -> Any:
    """Return the Arrow type under which other tools read a column of equal rows best."""
    if _is_of_bytes(field, nbytes):
        return pa.binary(nbytes)
    number = pa.from_numpy_dtype(dtype := np.dtype(field.dtype))
    if not field.shape:
        return number
    return pa.list_(pa.field("element", number, nullable=False), nbytes // dtype.itemsize)


def _is_of_bytes(field: Field, nbytes: int) -> bool:
    """Tell whether equal rows of a field are bytes to other tools, and not numbers or a list of them."""
    is_number = isinstance(field, Label | Array | Categories) and nbytes == field.record_nbytes
    return not is_number or np.dtype(field.dtype).itemsize < 4 or len(field.shape or ()) > 1


def _prefixed(column: VarColumn) -> npt.NDArray[np.uint8]:
    """Return the rows end to end, each behind its length."""
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(column.lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_end_to_end(column))]
    rows = pa.Array.from_buffers(pa.binary(), len(column), buffers)
    sizes = pa.py_buffer(column.lengths.astype("<i4"))
    prefixes = pa.Array.from_buffers(pa.binary(_PREFIX), len(column), [None, sizes])
    joined = pc.binary_join_element_wise(prefixes.cast(pa.binary()), rows, _NOTHING)
    return np.frombuffer(joined.buffers()[2], np.uint8, int(offsets[-1]) + _PREFIX * len(column))


def _end_to_end(column: VarColumn) -> Any:
    """Return the bytes of all rows, where they lie if they lie so already."""
    behind = column.starts + column.lengths
    if np.array_equal(column.starts[1:], behind[:-1]):
        return column.buffer[column.starts[0] : behind[-1]]
    return b"".join(row_views(column))


def _size(kind: Any) -> int | None:
    """Return how many items the lists of a column have, None where it has numbers or bytes."""
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def _page_header(num_values: int, levels: bytes, data: npt.NDArray[np.uint8]) -> bytes:
    nbytes = len(levels) + len(data)
    crc = np.uint32(zlib.crc32(data.data, zlib.crc32(levels))).astype(np.int32)
    page = {1: num_values, 2: _PLAIN, 3: _RLE, 4: _RLE, 5: {}}
    return packed({1: _DATA_PAGE, 2: nbytes, 3: nbytes, 4: int(crc), 5: page})


def _chunk(part: Any, num_rows: int, data_nbytes: int, offset: int, nbytes: int) -> dict[int, Any]:
    """Return what the footer says of a column: its place, and how many values and levels it has."""
    size, names = _size(part.type), [part.name]
    num_values, levels = num_rows * (size or 1), dict[int, Any]()
    if size is not None:
        names += ["list", "element"]
        repeated = (np.int64(num_rows), np.int64(num_values - num_rows))
        levels = {2: (I64, repeated), 3: (I64, (np.int64(0), np.int64(num_values)))}
    elif _physical(part.type) == _BYTES:
        levels = {1: np.int64(data_nbytes - _PREFIX * num_rows), 2: (I64, ()), 3: (I64, ())}
    column = {
        1: _physical(part.type),
        2: (I32, (_RLE, _PLAIN)),
        3: (BINARY, [name.encode() for name in names]),
        4: _UNCOMPRESSED,
        5: np.int64(num_values),
        6: np.int64(nbytes),
        7: np.int64(nbytes),
        9: np.int64(offset),
        13: (STRUCT, [{1: _DATA_PAGE, 2: _PLAIN, 3: 1}]),
        16: levels or None,
    }
    return {2: np.int64(0), 3: column}


def _footer(
    parts: Sequence[Any], num_rows: int, chunks: Sequence[dict[int, Any]], checksums: bytes
) -> bytes:
    """Return the metadata of a file."""
    elements = [{3: _REQUIRED, 4: b"schema", 5: len(parts)}, *chain(*map(_elements, parts))]
    nbytes = np.int64(sum(chunk[3][6] for chunk in chunks))
    group = {
        1: (STRUCT, chunks),
        2: nbytes,
        3: np.int64(num_rows),
        5: np.int64(len(_MAGIC)),
        6: nbytes,
    }
    schema = base64.b64encode(pa.schema(parts).serialize())
    about = [{1: CHECKSUMS_KEY, 2: checksums}, {1: b"ARROW:schema", 2: schema}]
    writer = f"parquet-cpp-arrow version {pa.cpp_version}"  # what is true of its files is of these
    return packed(
        {
            1: 2,
            2: (STRUCT, elements),
            3: np.int64(num_rows),
            4: (STRUCT, [group]),
            5: (STRUCT, about),
            6: writer.encode(),
            7: (STRUCT, [{1: {}}] * len(parts)),
        }
    )


def _elements(part: Any) -> list[dict[int, Any]]:
    """Return a column as the schema of a file has it."""
    kind, name = part.type, part.name.encode()
    if _size(kind) is None:
        return [_element(kind, name)]
    of_lists = {3: _REQUIRED, 4: name, 5: 1, 6: _LIST, 10: {3: {}}}
    return [of_lists, {3: _REPEATED, 4: b"list", 5: 1}, _element(kind.value_type, b"element")]


def _element(kind: Any, name: bytes) -> dict[int, Any]:
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    about: dict[int, Any] = {}
    if pa.types.is_unsigned_integer(kind):
        about = {6: _UINT[kind.bit_width], 10: {10: {1: np.int8(kind.bit_width), 2: False}}}
    elif pa.types.is_string(kind):
        about = {6: _UTF8, 10: {1: {}}}
    return {1: _physical(kind), 2: width, 3: _REQUIRED, 4: name, **about}


def _physical(kind: Any) -> int:
    """Return as what Parquet stores values."""
    kind = kind.value_type if _size(kind) is not None else kind
    if pa.types.is_fixed_size_binary(kind):
        return _FIXED_BYTES
    return _PHYSICAL.get(str(kind), _BYTES)


def read_back(path: Path, columns: Mapping[str, Column]) -> str | None:
    """Compare the file, as pyarrow sees it, with columns; return the first difference in words, or None."""
    nbytes = sum(column.nbytes for column in columns.values())
    # Not by its path, which pyarrow takes only where that is UTF-8.
    source = pa.BufferReader(pa.py_buffer(np.memmap(path, np.uint8, "r")))
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        num_rows, first = file.metadata.num_rows, 0
        if any(len(column) != num_rows for column in columns.values()):
            return f"the file has {num_rows} rows"
        at_once = max(1, num_rows * _PIECE // max(nbytes, 1))  # which the cache holds
        for batch in file.iter_batches(at_once, use_threads=False):
            for name, column in columns.items():
                rows = rows_between(column, first, first + len(batch))
                if _digest_of_arrow(batch[name]) != _digest(rows):
                    return f"values of column {name!r} differ"
                if isinstance(rows, VarColumn):
                    lengths = np.from_dlpack(pc.binary_length(batch[name]))
                    if not np.array_equal(lengths, rows.lengths):
                        return f"the sizes of column {name!r} differ"
            first += len(batch)
    return None


def _digest(column: Column) -> bytes:
    """Hash the rows end to end: laying those of varying size so would take their bytes again."""
    if isinstance(column, FixedColumn):
        return xxhash.xxh3_128_digest(column.data.reshape(-1).data)
    state = xxhash.xxh3_128()
    for row in row_views(column):
        state.update(row)
    return state.digest()


def _digest_of_arrow(array: Any) -> bytes:
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        array, kind = array.flatten(), kind.value_type
    data = np.frombuffer(array.buffers()[-1] or b"", np.uint8)
    start, end = array.offset, array.offset + len(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        places = np.frombuffer(array.buffers()[1], np.int32)
        start, end = places[start], places[end]
    else:
        start, end = start * kind.bit_width // 8, end * kind.bit_width // 8
    return xxhash.xxh3_128_digest(data[start:end].data)
