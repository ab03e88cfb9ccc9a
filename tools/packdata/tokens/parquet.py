"""A text column of a Parquet file, in ranges of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loaders.errors import SourceError
from packdata.sources.base import check_name
from packdata.tokens.documents import Documents
from packdata.tokens.jsonl import text_buffers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.tokens.documents import Reject
    from packdata.tokens.files import SourceFile


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """Rows of a column.

    Attributes:
        file: The file.
        first: Number of the first row in the file.
        texts: Arrow array of strings.
    """

    file: SourceFile
    first: int
    texts: Any

    @property
    def where(self) -> str:
        """The file and the rows."""
        return f"{self.file.name}, rows {self.first} to {self.first + len(self.texts) - 1}"

    def read(self) -> Documents:
        """Return each row as a document, less those that are null or not UTF-8."""
        data, ends = text_buffers(self.texts)

        def place(at: int) -> str:
            return self._place_of_row(int(np.searchsorted(ends, at, "right")))

        documents = Documents(data, ends, place)
        try:
            str(data.data, "utf-8")
        except UnicodeDecodeError:
            documents = documents.only_utf8()
        return replace(documents, rejects=(*documents.rejects, *self._nulls()))

    def _nulls(self) -> Iterator[Reject]:
        """Yield the rows without a text: in the buffers they are empty, as are those of empty text."""
        if self.texts.null_count:
            is_null = self.texts.is_null().to_numpy(zero_copy_only=False)
            for where in map(self._place_of_row, np.flatnonzero(is_null).tolist()):
                yield where, SourceError("the text is null", where)

    def _place_of_row(self, row: int) -> str:
        return f"{self.file.name}, row {self.first + row}"


class ParquetColumn:
    """One column of strings of one file; a row group is read when its first rows are asked for.

    Raises:
        SourceError: It is not Parquet, or has no such column.
    """

    def __init__(self, file: SourceFile, column: str) -> None:
        self.file, self.column = file, column
        with self._opened() as parquet:
            schema, self._metadata = parquet.schema_arrow, parquet.metadata
        if column not in schema.names:
            has = ", ".join(schema.names[:12])
            raise SourceError(
                f"it has no column {column!r}", file.path, f"It has {has}: give --text-column"
            )
        kind = schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        if not any(test(kind) for test in tests):
            raise SourceError(f"column {column!r} holds {kind}, not text", file.path)
        rows = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        self._firsts = [sum(rows[:i]) for i in range(len(rows))]
        self._read: tuple[int, Any] = (-1, None)

    def _opened(self) -> Any:
        check_name(str(self.file.path), self.file.path)
        try:
            return pq.ParquetFile(self.file.path)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"it cannot be read as Parquet ({error})", self.file.path) from error

    def ranges(self, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (row group, first row, last row + 1, bytes) of parts of about so many bytes."""
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            chunks = [group.column(i) for i in range(group.num_columns)]
            mine = [c for c in chunks if c.path_in_schema.split(".")[0] == self.column]
            size, rows = max(1, sum(c.total_uncompressed_size for c in mine)), group.num_rows
            step = max(1, rows * nbytes // size)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                yield number, first, last, size * (last - first) // rows

    def part(self, group: int, first: int, last: int) -> ParquetPart:
        """Return rows of a row group."""
        if self._read[0] != group:
            try:
                with self._opened() as parquet:
                    column = parquet.read_row_group(group, columns=[self.column])[self.column]
                    # One array: a column chunk of more than 2 GiB comes in several.
                    self._read = group, column.cast(pa.large_string()).combine_chunks()
            except (OSError, pa.ArrowException) as error:
                what = f"row group {group} cannot be read ({error})"
                raise SourceError(what, self.file.path) from error
        texts = self._read[1].slice(first, last - first)
        if last == self._metadata.row_group(group).num_rows:
            self._read = (-1, None)  # nobody asks for it again
        return ParquetPart(self.file, self._firsts[group] + first, texts)
