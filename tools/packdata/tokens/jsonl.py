"""JSON lines: one object a line, of which one value is the text."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from loaders.errors import SourceError
from packdata.tokens.documents import Documents, not_utf8

if TYPE_CHECKING:
    from packdata.tokens.documents import Place, Reject


def parse_jsonl(data: bytes, column: str, place: Place, *, is_utf8: bool = True) -> Documents:
    """Return the texts of whole lines; blank lines are passed over.

    Args:
        data: Lines.
        column: The key of the text.
        place: Says where a byte of ``data`` stands.
        is_utf8: False if some bytes are known not to be text.
    """
    found = _parse_at_once(data, column) if is_utf8 else None
    if found is not None:
        return Documents(*found, lambda at: place(0))
    return _parse_lines(data, column, place)


def _parse_at_once(data: bytes, column: str) -> tuple[Any, Any] | None:
    """Let Arrow parse, without the GIL; None where something is not as it should be."""
    schema = pa.schema([pa.field(column, pa.string())])
    parsing = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pa.json.ReadOptions(use_threads=False, block_size=max(1, len(data)) + 1)
    try:
        table = pa.json.read_json(io.BytesIO(data), reading, parsing)
    except (pa.ArrowException, ValueError):
        return None
    texts = table[column].combine_chunks()
    if texts.null_count or len(texts) == 0:
        return None
    return text_buffers(texts)


def text_buffers(texts: Any) -> tuple[Any, Any]:
    """Return the bytes of an Arrow array of strings as uint8, and where each ends; nothing is copied."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    offsets = np.frombuffer(texts.buffers()[1], width)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[1:].astype(np.int64) - offsets[0]


def _parse_lines(data: bytes, column: str, place: Place) -> Documents:
    texts: list[bytes] = []
    rejects: list[Reject] = []
    at = 0
    for line in data.split(b"\n"):
        if line.strip():
            try:
                texts.append(_text_of(line, column))
            except UnicodeDecodeError as error:
                rejects.append(not_utf8(line[error.start], place(at)))
            except ValueError as error:
                rejects.append((place(at), SourceError(str(error), place(at))))
        at += len(line) + 1
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), dtype=np.int64)
    joined = np.frombuffer(b"".join(texts), np.uint8)
    return Documents(joined, ends, lambda at: place(0), tuple(rejects))


def _text_of(line: bytes, column: str) -> bytes:
    text = line.decode()
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"it is a {type(row).__name__}, not an object")
    if column not in row:
        raise ValueError(f"it has no {column!r}; it has {sorted(row)[:8]} (see --text-column)")
    value = row[column]
    if not isinstance(value, str):
        what = "null" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{column!r} is {what}, not a text")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{column!r} holds half a surrogate pair ({error})") from error
