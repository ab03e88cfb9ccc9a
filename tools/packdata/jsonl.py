"""JSON lines: one object a line. A key that a line lacks is a missing value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from packdata.parsing import arrow_lines, filled_lines, json_object
from packdata.rows import TextRows
from packdata.types import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.rows import Names, Part


class JsonRows(TextRows):
    """Rows that name their own columns."""

    columns = None
    guesses = frozenset[Kind](("date", "zoned"))  # JSON has texts, numbers and flags, but no dates

    def parts(self) -> Iterator[Part]:
        """List pieces of whole lines."""
        return self._cut(lambda data: data.rfind(b"\n") + 1)

    def records(self, part: Part) -> Iterator[tuple[int, dict[str, Any], str]]:
        """Yield the object of each line that is not blank."""
        for number, _, text in filled_lines(self._bytes(part)):
            try:
                yield part.line + number, json_object(text), ""
            except ValueError as error:
                yield part.line + number, {}, str(error)

    def _parsed(self, data: bytes, columns: Names) -> pa.Table | None:
        """Let Arrow parse; None where it would not get what JSON says."""
        if (table := _as_written(data)) is None or columns is None:
            return table
        known = {*table.column_names}
        arrays = [table[name] if name in known else pa.nulls(len(table)) for name in columns]
        return pa.Table.from_arrays(arrays, names=[*columns])

    def _table(self, rows: Sequence[dict[str, Any]], columns: Names) -> pa.Table:
        """Take what JSON says as it is."""
        if columns is None:
            columns = [*dict.fromkeys(name for row in rows for name in row)]
        if not columns:  # rows there may be
            return pa.table({"": pa.nulls(len(rows))}).select([])
        arrays = [_column([row.get(name) for row in rows]) for name in columns]
        return pa.Table.from_arrays(arrays, names=columns)


def _as_written(data: bytes) -> pa.Table | None:
    """Let Arrow parse; None where it refuses a line, or reads something else."""
    if (table := arrow_lines(data, pa.schema([]), with_others=True)) is None:
        return None
    try:
        table.validate(full=True)
    except ValueError:  # texts that are not UTF-8, which Arrow's parser takes
        return None
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not dates:
        return table
    known = pa.schema([pa.field(name, pa.string()) for name in dates])
    texts = arrow_lines(data, known, with_others=True)  # of which Arrow made dates
    return None if texts is None else texts.select(table.column_names)


def _column(values: list[Any]) -> pa.Array:
    """Return values as one type; lists, objects, and values of several kinds as one that is not packed."""
    found = {type(value) for value in values} - {type(None)}
    if found <= {str}:
        return pa.array(values, pa.string())
    if found == {bool}:
        return pa.array(values, pa.bool_())
    if found == {int} and all(value is None or abs(value) < 1 << 63 for value in values):
        return pa.array(values, pa.int64())
    if found <= {int, float}:
        # By their text: float() raises for an int above 1e308.
        return pa.array([None if v is None else float(str(v)) for v in values], pa.float64())
    return pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.nulls(len(values), "string"))
