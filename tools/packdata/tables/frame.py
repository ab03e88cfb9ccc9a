"""Tables in memory, a DataFrame of pandas or polars or a table of Arrow, read as Parquet files are."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from loaders.data.columns import FixedColumn
from loaders.errors import SourceError
from packdata.tables.spelling import speaking_python
from packdata.tables.typed import BATCH_ROWS, TypedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loaders.schema import Field


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


def frame_columns(
    frame: Any, target: str | Sequence[str] = (), **options: Any
) -> tuple[dict[str, Field], dict[str, FixedColumn]]:
    """Return the fields that ``packdata tables`` makes of a table in memory, and their rows.

    Args:
        frame: The table.
        target: The column to predict, or several.
        **options: As ``plan_tables`` takes them.

    Raises:
        SourceError: Columns or rows cannot be packed.
    """
    from packdata.tables.plan import plan_tables

    with speaking_python():
        recipe = plan_tables(frame, target=target, **options).recipe
        blocks = [block for part in recipe.items(0) for block in recipe.encode(part)]
        for block in blocks:
            if block.rejects and options.get("on_error", "fail") == "fail":
                raise block.rejects[0][1]
    columns = {}
    for name in recipe.schema.fields:
        rows = [block.columns[name] for block in blocks]
        columns[name] = FixedColumn(np.concatenate([each.data for each in rows]))  # type: ignore[union-attr]
    return dict(recipe.schema.fields), columns
