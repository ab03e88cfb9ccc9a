"""Tables in memory, a DataFrame of pandas or polars or a table of Arrow, read as Parquet files are."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from packdata.tables.typed import BATCH_ROWS, TypedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def is_frame(source: Any) -> bool:
    """Tell whether a source is a table in memory, and no path."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "iloc")


class FrameTable(TypedTable):
    """A table in memory; the index of a pandas DataFrame is no column of it.

    Args:
        frame: The table.
        missing: Texts that stand for no value, as null does.
    """

    def __init__(self, frame: Any, missing: Sequence[str] = ()) -> None:
        path = Path(type(frame).__name__)
        self._table = table = _as_table(frame, path)

        def tables(start: int, names: list[str]) -> Iterator[pa.Table]:
            yield table.slice(start, BATCH_ROWS).select(names)

        firsts = range(0, len(table), BATCH_ROWS)
        sizes = [(first, min(BATCH_ROWS, len(table) - first)) for first in firsts]
        super().__init__(path, table.column_names, lambda: sizes, tables, missing)

    @cached_property
    def digest(self) -> str:
        """Hash of all values."""
        digest = xxhash.xxh3_128(str(self._table.schema).encode())
        for batch in self._table.to_batches(BATCH_ROWS):
            digest.update(batch.serialize())
        return digest.hexdigest()


def _as_table(frame: Any, name: Path) -> pa.Table:
    try:
        if hasattr(frame, "iloc"):
            named = frame.set_axis([str(column) for column in frame.columns], axis=1)
            return pa.Table.from_pandas(named, preserve_index=False)
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = f"it cannot be read as a table ({error})"
        raise SourceError(what, name, "Each column takes values of one kind") from error
