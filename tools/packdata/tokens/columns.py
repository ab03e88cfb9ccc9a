"""Files of rows, of which columns are documents: CSV, Parquet, Arrow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.delimited import CsvRows
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.contents import Texts
from packdata.tokens.documents import rejected
from packdata.tokens.reading import DocumentFile, Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Documents
    from packdata.tokens.files import SourceFile
    from packdata.tokens.reading import Recent


class CsvFile(DocumentFile):
    """A CSV file, of which a column holds texts."""

    def __init__(self, file: SourceFile, content: DocumentForm) -> None:
        if not isinstance(content, Texts):
            hint = "Save lists and conversations as Parquet or JSON lines"
            raise SourceError("the cells of CSV are texts", file.path, hint)
        self._name, self._content, self._rows = file.name, content, CsvRows(file.path)
        schema = pa.schema([(name, pa.string()) for name in self._rows.columns])
        content.check(schema, file.path)

    def ranges(self) -> Iterator[Range]:
        for part in self._rows.parts():
            where, nbytes = f"{self._name}, from line {part.line}", part.stop - part.start
            yield Range(self, where, part.start, part.stop, nbytes, (self._name, part))

    def read(self, given: Range) -> Documents:
        name = self._content.column
        _, part = given.key
        (rows,) = self._rows.read(part, [name])
        texts = pa.table({name: pc.fill_null(rows.table[name], "").cast(pa.large_string())})
        found = self._content.of_table(texts, lambda row: f"{self._name}, line {rows.line(row)}")
        bad = [rejected(f"{self._name}, line {line}", why) for line, why in rows.bad]
        return replace(found, rejects=(*found.rejects, *bad))


class TableFile(DocumentFile):
    """A file of columns with types; its groups of rows are read as a whole."""

    def __init__(self, file: SourceFile, content: DocumentForm, recent: Recent) -> None:
        self._file, self._content, self._recent = file, content, recent
        self._rows = open_row_file(file.path)
        content.check(self._rows.schema, file.path)
        named = {*self._rows.schema.names}
        self._columns = [name for name in content.types if name in named]

    def ranges(self) -> Iterator[Range]:
        for group in self._rows.groups:
            rows = group.stop - group.line
            size = max(1, self._rows.nbytes(group, self._columns))
            step = max(1, rows * self.piece_bytes // size)
            for start in range(group.line, group.stop, step):
                stop = min(start + step, group.stop)
                where = f"{self._file.name}, rows {start} to {stop - 1}"
                nbytes = size * (stop - start) // rows
                yield Range(self, where, start, stop, nbytes, (self._file.path, group))

    def read(self, given: Range) -> Documents:
        _, group = given.key
        table = self._recent.get(given.key, partial(self._rows.table, group, self._columns))
        table = table.slice(given.start - group.line, given.stop - given.start)
        none = pa.nulls(len(table))  # of tools, which some files lack
        try:
            columns = {
                name: table[name].cast(kind or table[name].type) if name in self._columns else none
                for name, kind in self._content.types.items()
            }
        except pa.ArrowException as error:
            raise SourceError(f"values cannot be read ({error})", given.where) from error
        place = f"{self._file.name}, row "
        return self._content.of_table(pa.table(columns), lambda row: f"{place}{given.start + row}")
