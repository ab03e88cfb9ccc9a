"""Parquet shards: an ordinary Parquet file whose columns can be mapped in place.

Every column is required, PLAIN, uncompressed, without dictionary, in one row group and one v1 data
page: its values then lie contiguous at the end of the column chunk. 8- and 16-bit data is
FIXED_LEN_BYTE_ARRAY (Parquet itself would store it in 4 bytes), 32- and 64-bit numbers have their
own types, rows of varying size are BYTE_ARRAY beside an int32 column ``<field>__nbytes`` from which
their offsets follow.

Source:
    https://parquet.apache.org/docs/file-format/: PLAIN encoding, data pages, page headers (Thrift's
    compact protocol), column chunk metadata.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from loaders.data.columns import Column, FixedColumn, VarColumn, row_views
from loaders.data.manifest import Place
from loaders.errors import ShardError
from loaders.schema import Array, Categories, Field, Label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SUFFIX = ".parquet"
CHECKSUMS_KEY = b"loaders.checksums"
# Pages are counted in int32, and other tools load a whole page for one row.
MAX_COLUMN_BYTES = 1 << 30
_PIECE = 1 << 20
_PREFIX = 4  # bytes before each BYTE_ARRAY value: its length


def write(
    path: Path, columns: Mapping[str, Column], checksums: bytes, fields: Mapping[str, Field]
) -> tuple[dict[str, Place], tuple[int, int]]:
    """Write columns as a Parquet file; fsync is the caller's.

    Return the place of each column, and of the checksums' text. ShardError if this pyarrow lays the file out so that
    it cannot be mapped, ValueError if a column has more than 1 GiB.
    """
    table = _table(columns, fields)
    with (
        _for_arrow(path, "wb") as file,
        pq.ParquetWriter(file, table.schema, **_options(table.num_rows)) as writer,
    ):
        writer.write_table(table, row_group_size=table.num_rows)
        writer.add_key_value_metadata({CHECKSUMS_KEY: checksums})
    places = find_columns(path, columns)
    return places, _find_checksums(path, checksums)


@contextmanager
def _for_arrow(path: Path, mode: str) -> Iterator[Any]:
    """Give pyarrow the path, or the open file where the path is not UTF-8: it takes no other.

    Not always the file: pyarrow would copy each column once more to write it to Python's.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with open(path, mode) as file:
            yield file
    else:
        yield path


def _options(num_rows: int) -> dict[str, Any]:
    """Return the writer's options for one page of plain values in each column."""
    options: dict[str, Any] = {
        "use_dictionary": False,
        "compression": "none",
        "data_page_size": 2**31 - 1,
        "data_page_version": "1.0",
        "write_batch_size": num_rows,
        "write_page_checksum": True,
        "write_statistics": False,
    }
    if int(pa.__version__.split(".")[0]) >= 22:  # since then pages are limited by rows too
        options["max_rows_per_page"] = num_rows
    return options


def _table(columns: Mapping[str, Column], fields: Mapping[str, Field]) -> Any:
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        if column.nbytes + _PREFIX * len(column) > MAX_COLUMN_BYTES:
            what = f"column {name!r} has {column.nbytes} bytes"
            raise ValueError(f"{what}; a Parquet shard holds 1 GiB per column")
        if isinstance(column, FixedColumn):
            arrays[name] = _fixed_array(column, _fixed_type(fields[name], column.data.shape[1]))
        else:
            is_text = fields[name].codec in ("text", "json")
            arrays[name] = _var_array(column, pa.string() if is_text else pa.binary())
            arrays[f"{name}__nbytes"] = pa.array(column.lengths.astype(np.int32))
    schema = [pa.field(name, array.type, nullable=False) for name, array in arrays.items()]
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(schema))


def _fixed_type(field: Field, nbytes: int) -> Any:
    """Return the Arrow type under which other tools read a column of equal rows best."""
    dtype = np.dtype(field.dtype)
    is_number = isinstance(field, Label | Array | Categories) and nbytes == field.record_nbytes
    if not is_number or dtype.itemsize < 4 or len(field.shape or ()) > 1:
        return pa.binary(nbytes)
    number = pa.from_numpy_dtype(dtype)
    if not field.shape:
        return number
    return pa.list_(pa.field("element", number, nullable=False), nbytes // dtype.itemsize)


def _fixed_array(column: FixedColumn, kind: Any) -> Any:
    rows = np.ascontiguousarray(column.data)
    data = pa.py_buffer(rows.copy() if rows.ctypes.data % 8 else rows)  # Arrow wants it aligned
    if pa.types.is_fixed_size_list(kind):
        values = pa.Array.from_buffers(kind.value_type, len(column) * kind.list_size, [None, data])
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    return pa.Array.from_buffers(kind, len(column), [None, data])


def _var_array(column: VarColumn, kind: Any) -> Any:
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(column.lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_end_to_end(column))]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _end_to_end(column: VarColumn) -> Any:
    """Return the bytes of all rows, where they lie if they lie so already."""
    behind = column.starts + column.lengths
    if np.array_equal(column.starts[1:], behind[:-1]):
        return column.buffer[column.starts[0] : behind[-1]]
    return b"".join(row_views(column))


def find_columns(path: Path, columns: Mapping[str, Column]) -> dict[str, Place]:
    """Return where each column's values lie in the file.

    Raises:
        ShardError: The file is not of the shape that can be mapped.
    """
    chunks = _chunks(path)
    places = {}
    for name, column in columns.items():
        if isinstance(column, FixedColumn):
            places[name] = Place(_values(path, chunks[name], column.nbytes), column.data.shape[1])
        else:
            n = len(column)
            first = _values(path, chunks[name], column.nbytes + _PREFIX * n)
            lengths = _values(path, chunks[f"{name}__nbytes"], 4 * n)
            places[name] = Place(first, lengths=lengths, gap=_PREFIX)
    return places


def _chunks(path: Path) -> dict[str, Any]:
    with _for_arrow(path, "rb") as file:
        metadata = pq.read_metadata(file)
    if metadata.num_row_groups != 1:
        raise ShardError(f"it has {metadata.num_row_groups} row groups, a shard has one", path)
    group = metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    return {chunk.path_in_schema.split(".")[0]: chunk for chunk in chunks}


def _values(path: Path, chunk: Any, nbytes: int) -> int:
    """Return the offset of a chunk's values: the last ``nbytes`` of its only page."""
    name, encodings = chunk.path_in_schema, set(chunk.encodings)
    if (
        chunk.compression != "UNCOMPRESSED"
        or chunk.has_dictionary_page
        or encodings - {"PLAIN", "RLE"}
    ):
        raise ShardError(f"column {name} is not plain and uncompressed", path)
    end = chunk.data_page_offset + chunk.total_compressed_size
    if nbytes > chunk.total_compressed_size:
        raise ShardError(f"column {name} has fewer bytes than its rows need", path)
    if _page_nbytes(path, chunk.data_page_offset) < nbytes:
        raise ShardError(f"column {name} is not one data page of version 1", path)
    return int(end - nbytes)


def _page_nbytes(path: Path, offset: int) -> int:
    """Return the size of a v1 data page without its header; 0 if it is none."""
    with open(path, "rb") as file:
        file.seek(offset)
        header = file.read(16)
    if header[:3] != b"\x15\x00\x15":  # an int32, type: data page; an int32, size:
        return 0
    number = 0
    for i, byte in enumerate(header[3:]):
        number |= (byte & 127) << (7 * i)
        if byte < 128:
            break
    return number >> 1  # zigzag: the lowest bit is the sign


def _find_checksums(path: Path, checksums: bytes) -> tuple[int, int]:
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        footer = int.from_bytes(file.read(4), "little") + 8
        file.seek(-footer, os.SEEK_END)
        offset = file.read().find(checksums)
    if offset < 0:
        raise ShardError("its footer does not hold the checksums that were written", path)
    return path.stat().st_size - footer + offset, len(checksums)


def read_back(path: Path, columns: Mapping[str, Column]) -> str | None:
    """Compare the file, as pyarrow sees it, with columns; return the first difference in words, or None."""
    with (
        _for_arrow(path, "rb") as source,
        pq.ParquetFile(source, memory_map=False, page_checksum_verification=True) as file,
    ):
        table = file.read()
    for name, column in columns.items():
        array = table[name].combine_chunks()
        if not _equal(_bytes_of(array), column):
            return f"column {name!r} differs"
        if isinstance(column, VarColumn) and not np.array_equal(_lengths(array), column.lengths):
            return f"the sizes of column {name!r} differ"
    return None


def _equal(data: npt.NDArray[np.uint8], column: Column) -> bool:
    """Compare piece by piece, or by hash: laying all rows end to end would take their bytes again."""
    if isinstance(column, VarColumn):
        state = xxhash.xxh3_128()
        for row in row_views(column):
            state.update(row)
        return len(data) == column.nbytes and state.digest() == xxhash.xxh3_128_digest(data.data)
    rows = column.data.reshape(-1)
    return len(data) == len(rows) and all(
        np.array_equal(data[i : i + _PIECE], rows[i : i + _PIECE])
        for i in range(0, len(data), _PIECE)
    )


def _lengths(array: Any) -> npt.NDArray[np.int32]:
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return np.diff(offsets[array.offset : array.offset + len(array) + 1])


def _bytes_of(array: Any) -> npt.NDArray[np.uint8]:
    if pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    data = np.frombuffer(array.buffers()[-1] or b"", np.uint8)
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        ends = np.frombuffer(array.buffers()[1], np.int32)
        return data[ends[array.offset] : ends[array.offset + len(array)]]
    width = array.type.bit_width // 8
    return data[array.offset * width : (array.offset + len(array)) * width]
