"""JSON lines: one object a line. A key that a line lacks is a missing value."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json

from loaders.errors import SourceError
from packdata.tables.parts import PART_BYTES, Kind, Part, Rows, read_bytes

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
        options = pa.json.ReadOptions(use_threads=False, block_size=len(self._data) + 1)
        try:
            table = pa.json.read_json(pa.BufferReader(self._data), read_options=options)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return self._slow_table()
        wanted = [name for name, kind in kinds.items() if kind == "text"]
        if any(_was_changed(table, name) for name in wanted):  # dates that were texts
            return self._slow_table()
        return table

    def _slow_table(self) -> pa.Table:
        """Take what JSON says as it is; other values than numbers, flags and texts as JSON text."""
        rows = [row for _, row in self._rows]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: _column([row.get(name) for row in rows]) for name in names}
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
                    value = json.loads(text)
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
    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_floating(kind) or pa.types.is_nested(kind)
    )


def _column(values: list[Any]) -> pa.Array:
    known = [value for value in values if value is not None]
    is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
    if known and is_number:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    if known and all(isinstance(v, bool) for v in known):
        return pa.array(values, pa.bool_())
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
