"""Tables in memory: frames of pandas and polars, tables of Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from loaders.errors import SourceError
from packdata.reading import LocalFile
from packdata.rows import PART_ROWS
from packdata.sources.row_kinds import ArrowRows

# Of pandas, of Arrow and whatever speaks its protocol, of polars' LazyFrame, and of Hugging Face's Dataset.
_FRAME_ATTRIBUTES = ("iloc", "__arrow_c_stream__", "collect_schema", "with_format")


def is_frame(source: Any) -> bool:
    """Tell whether a source is a table in memory, and no path."""
    return any(hasattr(source, name) for name in _FRAME_ATTRIBUTES)


def open_frame(frame: Any) -> tuple[ArrowRows, str]:
    """Return a table in memory as a file, and a hash of its values; the index of a pandas DataFrame is no column."""
    path = Path(type(frame).__name__)
    table = _as_table(frame, path)
    digest = xxhash.xxh3_128(str(table.schema).encode())
    for batch in table.to_batches(PART_ROWS):
        digest.update(batch.serialize())
    return ArrowRows(LocalFile(path.name, path.name), table), digest.hexdigest()


def _as_table(frame: Any, name: Path) -> pa.Table:
    try:
        if hasattr(frame, "iloc"):
            named = frame.set_axis([str(column) for column in frame.columns], axis=1)
            return pa.Table.from_pandas(named, preserve_index=False)
        if hasattr(frame, "with_format"):
            return frame.with_format("arrow")[:]  # of its selection
        return pa.table(frame.collect() if hasattr(frame, "collect") else frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = f"the source cannot be read as a table ({error})"
        raise SourceError(what, name, "Each column takes values of one kind") from error
