"""JSON lines: one object a line. A key that a line lacks is a missing value."""

from __future__ import annotations

import json
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from loaders.errors import SourceError
from packdata.sources.base import parse_json
from packdata.tables.parts import PART_BYTES, Kind, Part, Rows, read_bytes
from packdata.tables.values import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_MAX_ROW_BYTES = 64 << 20


class JsonLinesFile:
    """Rows that name their own columns.

    Args:
        path: The file, UTF-8.
    """

    unit = "line"
    columns = None

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.stat().st_size:
            raise SourceError("it is empty", path, "It takes one JSON object a line")

    def parts(self, number: int) -> Iterator[Part]:
        """List pieces of whole lines."""
        with open(self.path, "rb") as file:
            start, line, rest = 0, 1, b""
            while block := file.read(PART_BYTES):
                data = rest + block
                length = data.rfind(b"\n") + 1
                if length:
                    yield Part(number, start, start + length, line)
                    start, line = start + length, line + data.count(b"\n", 0, length)
                elif len(data) > _MAX_ROW_BYTES:
                    what = f"the line has more than {_MAX_ROW_BYTES >> 20} MiB"
                    raise SourceError(what, f"{self.path}, line {line}")
                rest = data[length:]
            if rest.strip():
                yield Part(number, start, start + len(rest), line)

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Parse a piece."""
        piece = _Piece(part, read_bytes(self.path, part.start, part.stop))
        yield Rows(_chosen(piece.table(kinds), columns), piece.line, piece.bad)


def _chosen(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """Return these columns; one that no line has is empty."""
    if columns is None:
        return table
    absent = {name: pa.nulls(len(table)) for name in columns if name not in table.column_names}
    for name, values in absent.items():
        table = table.append_column(name, values)
    return table.select(list(columns))


class _Piece:
    """The lines of a part: by Arrow, or where it refuses them, one by one."""

    def __init__(self, part: Part, data: bytes) -> None:
        self._part, self._data = part, data
        self.bad: list[tuple[int, str]] = []

    def table(self, kinds: Mapping[str, Kind]) -> pa.Table:
        try:
            table = self._parse()
            dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
            if dates:  # as they are written: Arrow forgets their zones
                table = self._parse(dates).select(table.column_names)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return self._slow_table(kinds)
        wanted = [name for name, kind in kinds.items() if kind == "text"]
        if any(_was_changed(table, name) for name in wanted):
            return self._slow_table(kinds)
        return table

    def _parse(self, texts: Sequence[str] = ()) -> pa.Table:
        reading = pa.json.ReadOptions(use_threads=False, block_size=len(self._data) + 1)
        schema = pa.schema([pa.field(name, pa.string()) for name in texts])
        parsing = pa.json.ParseOptions(explicit_schema=schema)
        return pa.json.read_json(pa.BufferReader(self._data), reading, parsing)

    def _slow_table(self, kinds: Mapping[str, Kind]) -> pa.Table:
        """Take what JSON says as it is; other values than numbers, flags and texts as JSON text."""
        rows = [row for _, row in self._rows]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {
            name: _column([row.get(name) for row in rows], kinds.get(name)) for name in names
        }
        if not columns:
            return pa.table({"": pa.nulls(len(rows))}).select([])
        return pa.table(columns)

    @cached_property
    def _rows(self) -> list[tuple[int, dict[str, Any]]]:
        """The lines that hold an object, by number; the others are bad."""
        rows = []
        for number, text in enumerate(self._data.split(b"\n"), self._part.line):
            if text.strip():
                try:
                    value = parse_json(text)
                except UnicodeDecodeError as error:
                    self.bad.append((number, f"it is not UTF-8 ({error})"))
                except (ValueError, RecursionError) as error:
                    self.bad.append((number, f"it is not JSON ({error})"))
                else:
                    if isinstance(value, dict):
                        rows.append((number, value))
                    else:
                        what = f"it is not a JSON object but {json.dumps(value)[:40]}"
                        self.bad.append((number, what))
        return rows

    def line(self, row: int) -> int:
        """Return the line of a row of the table."""
        return self._rows[row][0]


def _was_changed(table: pa.Table, name: str) -> bool:
    """Tell whether Arrow read something else into texts."""
    if name not in table.column_names:
        return False
    kind = table.schema.field(name).type
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _column(values: list[Any], kind: Kind | None) -> pa.Array:
    known = [value for value in values if value is not None]
    is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
    if kind == "text":
        return _texts(values)
    if known and is_number:
        return pa.array([_float(value) for value in values], pa.float64())
    if known and all(isinstance(v, bool) for v in known):
        return pa.array(values, pa.bool_())
    return _texts(values)


def _float(value: float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if value and value > 0 else -math.inf


def _texts(values: list[Any]) -> pa.Array:
    """Return whole numbers digit by digit, and others as Arrow writes them in the other parts."""
    is_float = [isinstance(value, float) for value in values]
    floats = pa.array([v if f else None for v, f in zip(values, is_float, strict=True)], "float64")
    rest = [None if f else _text(v) for v, f in zip(values, is_float, strict=True)]
    return pc.coalesce(pa.array(rest, pa.string()), as_text(floats))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
