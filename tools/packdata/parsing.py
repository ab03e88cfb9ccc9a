"""Parsing JSON, and lines of it: text to objects and columns."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json

if TYPE_CHECKING:
    from collections.abc import Iterator

UTF8_HINT = (
    "Convert the text from the encoding in which it was saved, which only its author knows: "
    "iconv -f UTF-16 -t UTF-8 FILE, -f CP1252 if that was Windows in Western Europe"
)
_MOST_NESTED = 64  # Arrow's parser is recursive, and ends the process where the stack does
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {repeated!r} in one object")
    return value


def parse_json(text: bytes | str) -> Any:
    r"""Return the value of one JSON text; ValueError (or RecursionError) if it is none.

    A duplicate key in an object is an error: readers differ in which value they take.
    Half of a surrogate pair passes for JSON, if it is written as ``\ud800``, but for no text: it can
    be neither a file's name nor stored.
    """
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    value = json.loads(text, object_pairs_hook=_object)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"half of a surrogate pair, {half!r}") from None
    return value


def json_object(line: bytes | str) -> dict[str, Any]:
    """Return the object that a line of JSON holds; ValueError if it is none."""
    try:
        value = parse_json(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"the line is not UTF-8 ({error}). {UTF8_HINT}") from error
    except RecursionError as error:
        raise ValueError("values are nested too deep") from error
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {json.dumps(value)[:40]}")
    return value


def filled_lines(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines that are not blank, each with its number, from 0 on, and where it begins."""
    at = 0
    for number, line in enumerate(data.split(b"\n")):
        if line.strip():
            yield number, at, line
        at += len(line) + 1


def arrow_lines(data: bytes, schema: pa.Schema, *, with_others: bool) -> pa.Table | None:
    """Let Arrow parse whole lines of JSON, without the GIL; None where it refuses one, or cannot be trusted with it.

    None, too, unless each line holds one object: Arrow takes several on a line, one over several lines, and null, of
    which a file of nothing else ends the process.

    Args:
        data: The lines; blank ones become no rows.
        schema: Columns whose type is known.
        with_others: Whether the columns that it lacks are read, too, as what Arrow takes them for.
    """
    num_objects = _num_objects(data)
    if num_objects is None or _is_nested_deep(data, num_objects):
        return None
    unknown = "infer" if with_others else "ignore"
    parsing = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unknown)
    reading = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pa.json.read_json(pa.BufferReader(data), reading, parsing)
    except (pa.ArrowException, ValueError):
        return None
    return table if len(table) == num_objects else None


def _num_objects(data: bytes) -> int | None:
    """Return how many lines are not blank; None if one of them does not begin and end as an object does."""
    if not data or data.isspace():
        return 0
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    ends = ends if data.endswith(b"\n") else np.append(ends, len(data))
    firsts, lasts = codes[np.append(0, ends[:-1] + 1)], codes[ends - 1]
    lasts = np.where(lasts == ord("\r"), codes[ends - 2], lasts)
    if (firsts == ord("{")).all() and (lasts == ord("}")).all():
        return len(ends)
    lines = [line.strip(b" \t\r" + _BOM) for _, _, line in filled_lines(data)]
    return len(lines) if all(line[:1] + line[-1:] == b"{}" for line in lines) else None


def _is_nested_deep(data: bytes, num_objects: int) -> bool:
    """Tell whether a line of JSON may be nested deeper than Arrow can be trusted with."""
    if data.count(b"{") + data.count(b"[") <= num_objects + _MOST_NESTED:
        return False
    codes = np.frombuffer(data, np.uint8)
    steps = ((codes == ord("{")) | (codes == ord("["))).astype(np.int32)
    steps -= (codes == ord("}")) | (codes == ord("]"))
    levels = np.cumsum(steps)
    starts = np.concatenate([[0], np.flatnonzero(codes == ord("\n"))])
    return bool((np.maximum.reduceat(levels, starts) - levels[starts]).max() >= _MOST_NESTED)
