"""Row checksums: which rows are hashed together, and the JSON text in which a shard keeps the hashes.

Rows of 16 KiB and more (on average) are hashed one by one, smaller ones in blocks of about 64 KiB:
so the hashes stay below 0.1 % of the data, and the first read of a row costs one block. Rows of 1
MiB and more are also hashed in chunks of 32 KiB: a crop out of one is verified by the chunks that
it touches.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from loaders.data.columns import Column, FixedColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

ROW_BYTES = 16 << 10
BLOCK_BYTES = 64 << 10
CHUNKED_ROW_BYTES = 1 << 20
CHUNK_BYTES = 32 << 10
HEAD_BYTES = 16
_MAX_ROWS = (1 << 63) - 1  # row numbers are int64


@dataclass(frozen=True, slots=True)
class Checksums:
    """The hashes of one column."""

    rows_per_block: int  # rows hashed together; block ``b`` is rows ``b * rows_per_block`` and up
    # xxh3-64 of each block: of its rows' bytes, one after the other.
    hashes: npt.NDArray[np.uint64]
    # Size of the chunks of each row, of which the last one may be shorter; 0: none.
    chunk_bytes: int = 0
    # xxh3-64 of the chunks of the first row, then of the second, and so on.
    chunks: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    # The heads of JPEG files, row by row, as ``codecs.heads`` keeps them, so that no reader parses any; empty: none.
    heads: bytes = b""

    def first_mismatch(self, column: Column, blocks: npt.NDArray[np.int64]) -> int | None:
        """Return the first of the blocks whose bytes differ from their hash, or None."""
        for block in blocks.tolist():
            if hash_block(column, block, self.rows_per_block) != self.hashes[block]:
                return int(block)
        return None


def checksum_column(column: Column) -> Checksums:
    """Hash every block of a column."""
    n = len(column)
    mean = column.nbytes // max(n, 1)
    rows = 1 if mean >= ROW_BYTES else max(1, BLOCK_BYTES // max(mean, 1))
    blocks = range(-(-n // rows))
    hashes = np.fromiter((hash_block(column, b, rows) for b in blocks), np.uint64, len(blocks))
    if mean < CHUNKED_ROW_BYTES:
        return Checksums(rows, hashes)
    return Checksums(rows, hashes, CHUNK_BYTES, _hash_chunks(column, CHUNK_BYTES))


def _hash_chunks(column: Column, chunk_bytes: int) -> npt.NDArray[np.uint64]:
    parts = (
        xxhash.xxh3_64_intdigest(row[first : first + chunk_bytes].data)
        for row in map(column.row, range(len(column)))
        for first in range(0, len(row), chunk_bytes)
    )
    return np.fromiter(parts, np.uint64, int(num_chunks(column, chunk_bytes).sum()))


def num_chunks(column: Column, chunk_bytes: int) -> npt.NDArray[np.int64]:
    """Return the number of chunks of each row."""
    return -(-column.lengths // chunk_bytes)


def hash_block(column: Column, block: int, rows_per_block: int) -> int:
    """Return the xxh3-64 of one block's rows."""
    first, last = block * rows_per_block, min((block + 1) * rows_per_block, len(column))
    if isinstance(column, FixedColumn):
        return xxhash.xxh3_64_intdigest(column.data[first:last].data)
    if rows_per_block == 1:
        return xxhash.xxh3_64_intdigest(column.row(block).data)
    state = xxhash.xxh3_64()
    for row in range(first, last):
        state.update(column.row(row).data)
    return state.intdigest()


def dump_checksums(
    columns: Mapping[str, Column], heads: Mapping[str, bytes] | None = None
) -> bytes:
    """Hash the columns and return the text that a shard keeps, with the heads of those that have some."""
    fields: dict[str, dict[str, object]] = {}
    for name, column in columns.items():
        sums = checksum_column(column)
        fields[name] = {"rows_per_block": sums.rows_per_block, "xxh3_64": _to_text(sums.hashes)}
        if sums.chunk_bytes:
            fields[name] |= {"chunk_bytes": sums.chunk_bytes, "chunks": _to_text(sums.chunks)}
    for name, rows in (heads or {}).items():
        fields[name]["heads"] = base64.b64encode(rows).decode()
    return json.dumps(fields, separators=(",", ":")).encode()


def _to_text(hashes: npt.NDArray[np.uint64]) -> str:
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def _from_text(text: object) -> npt.NDArray[np.uint64]:
    return np.frombuffer(base64.b64decode(str(text), validate=True), "<u8").astype(np.uint64)


def load_checksums(text: bytes, num_rows: int) -> dict[str, Checksums]:
    """Read what ``dump_checksums`` wrote; ValueError if it is not that."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("the checksums are not a JSON object")
    return {name: _load_one(entry, name, num_rows) for name, entry in data.items()}


def _load_one(entry: object, name: str, num_rows: int) -> Checksums:
    rows = entry.get("rows_per_block") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or type(rows) is not int or not 1 <= rows <= _MAX_ROWS:
        raise ValueError(f"the checksums of {name!r} have no block size")
    hashes = _from_text(entry.get("xxh3_64"))
    if len(hashes) != -(-num_rows // rows):
        raise ValueError(
            f"{name!r} has {len(hashes)} checksums for {num_rows} rows in blocks of {rows}"
        )
    chunk_bytes = entry.get("chunk_bytes", 0)
    if type(chunk_bytes) is not int or not 0 <= chunk_bytes <= _MAX_ROWS:
        raise ValueError(f"the checksums of {name!r} have chunks of {chunk_bytes!r} bytes")
    chunks = _from_text(entry.get("chunks", "")) if chunk_bytes else np.empty(0, np.uint64)
    heads = base64.b64decode(str(entry.get("heads", "")), validate=True)
    if len(heads) not in (0, HEAD_BYTES * num_rows):
        raise ValueError(f"{name!r} has {len(heads)} bytes of heads for {num_rows} rows")
    return Checksums(rows, hashes, chunk_bytes, chunks, heads)
