"""JSON lines: one object a line. A key that a line lacks is a missing value."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from packdata.readers import arrow_lines, filled_lines, json_object
from packdata.rows import DATES, Rows, TextRows
from packdata.types import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.rows import Part
    from packdata.types import Kind


class JsonRows(TextRows):
    """Rows that name their own columns."""

    columns = None
    guesses = DATES  # JSON has texts, numbers and flags, but no dates

    def parts(self, number: int = 0) -> Iterator[Part]:
        """List pieces of whole lines."""
        return self._cut(number, lambda data: data.rfind(b"\n") + 1)

    def read(
        self,
        part: Part,
        columns: Sequence[str] | None = None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> Iterator[Rows]:
        """Parse a part: by Arrow, or where it refuses a line or reads something else, line by line."""
        data = self._bytes(part.start, part.stop)
        table = _parsed(data, kinds)
        rows = (
            _by_hand(data, part.line, kinds)
            if table is None
            else Rows(table, partial(self._line_of, part))
        )
        yield Rows(_some_of(rows.table, columns), rows.line, rows.bad)

    def _line_of(self, part: Part, row: int) -> int:
        """Return the line of a row of a part: the part is read once more."""
        data = self._bytes(part.start, part.stop)
        return part.line + next(islice(filled_lines(data), row, None))[0]


def _some_of(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """Return these columns of a table; one that it lacks is empty."""
    if columns is None:
        return table
    known = set(table.column_names)
    arrays: list[Any] = [
        table[name] if name in known else pa.nulls(len(table)) for name in columns
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _parsed(data: bytes, kinds: Mapping[str, Kind]) -> pa.Table | None:
    """Let Arrow parse; None where it would not get what JSON says."""
    if (table := arrow_lines(data, pa.schema([]), with_others=True)) is None:
        return None
    names = table.column_names
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if dates:  # texts of which Arrow makes dates
        known = pa.schema([pa.field(name, pa.string()) for name in dates])
        if (table := arrow_lines(data, known, with_others=True)) is None:
            return None
        table = table.select(names)
    texts = [table.schema.field(n).type for n in names if kinds.get(n) == "text"]
    changed = any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in texts)
    return None if changed else table


def _by_hand(data: bytes, first_line: int, kinds: Mapping[str, Kind]) -> Rows:
    """Take what JSON says as it is; lines without an object are bad."""
    rows: list[tuple[int, dict[str, Any]]] = []
    bad: list[tuple[int, str]] = []
    for number, _, text in filled_lines(data):
        try:
            rows.append((first_line + number, _flat(json_object(text))))
        except UnicodeDecodeError as error:
            bad.append((first_line + number, f"it is not UTF-8 ({error})"))
        except ValueError as error:
            bad.append((first_line + number, str(error)))
    names = dict.fromkeys(name for _, row in rows for name in row)
    values = {name: [row.get(name) for _, row in rows] for name in names}
    arrays = {name: _column(column, kinds.get(name)) for name, column in values.items()}
    table = pa.table(arrays) if arrays else pa.table({"": pa.nulls(len(rows))}).select([])
    return Rows(table, [number for number, _ in rows].__getitem__, bad)


class _JsonCell(str):
    """A list or object as JSON writes it, which is no text."""


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    try:
        return {
            name: _JsonCell(json.dumps(value)) if isinstance(value, list | dict) else value
            for name, value in row.items()
        }
    except RecursionError as error:
        raise ValueError("its values are nested too deep") from error


def _column(values: list[Any], kind: Kind | None) -> pa.Array:
    """Return values as one type; lists, objects, and values of several kinds as JSON, which is none that is packed."""
    found = {type(value) for value in values} - {type(None)}
    if kind == "text" or found <= {str}:
        return _texts(values)
    if found <= {int, float}:
        return pa.array(
            [None if v is None else float(str(v)) for v in values], pa.float64()
        )  # also of more digits than float() takes of an int
    if found == {bool}:
        return pa.array(values, pa.bool_())
    if kind is not None and _JsonCell not in found:
        return _texts(values)
    return pa.ExtensionArray.from_storage(pa.json_(pa.string()), _texts(values))


def _texts(values: list[Any]) -> pa.Array:
    """Return whole numbers digit by digit, and others as Arrow writes them in the other parts."""
    is_float = [isinstance(value, float) for value in values]
    floats = pa.array([v if f else None for v, f in zip(values, is_float, strict=True)], "float64")
    rest = [None if f else _text(v) for v, f in zip(values, is_float, strict=True)]
    return pc.coalesce(pa.array(rest, pa.string()), as_text(floats))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
