"""Parquet and Arrow as files of rows, for ``packdata images``, ``tokens`` and ``tables``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from loaders.errors import SourceError
from packdata.reading import RemoteFile
from packdata.rows import FEW_ROWS, PART_ROWS, Part, TypedRows
from packdata.sources.arrow import INFO, STATE, open_arrow, read_json, saved_files
from packdata.sources.base import STREAMING_HINT, suffix_of
from packdata.sources.refused import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packdata.reading import File
    from packdata.sources.listed import Listing

_WHOLE_BYTES = 8 << 20  # an object of a store that is fetched whole


class ParquetRows(TypedRows):
    """A Parquet file; its groups are row groups. INT96 dates come as microseconds: nanoseconds do not hold all."""

    _metadata: Any = None

    def __init__(self, file: File) -> None:
        self._file, self.path = file, file.path
        check_name(str(self.path), self.path)
        with self._open() as opened:
            schema, self._metadata = opened.schema_arrow, opened.metadata
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        super().__init__(self.path, schema, [group.num_rows for group in groups])

    def _open(self) -> pq.ParquetFile:
        given = self._file
        try:
            # Of a large object, what is read of it is fetched; a small one is a file, as those are that come ahead.
            is_large = isinstance(given, RemoteFile) and given.size > _WHOLE_BYTES
            file = given.open() if is_large else given.local()
            return pq.ParquetFile(file, metadata=self._metadata, coerce_int96_timestamp_unit="us")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise SourceError(f"cannot be read as Parquet ({error})", self.path) from error

    def nbytes(self, group: Part, columns: Sequence[str]) -> int:
        metadata = self._metadata.row_group(group.start)
        chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        mine = [c for c in chunks if c.path_in_schema.split(".")[0] in columns]
        return sum(c.total_uncompressed_size for c in mine)

    def batches(
        self, part: Part, columns: Sequence[str] | None = None, num_rows: int = FEW_ROWS
    ) -> Iterator[pa.RecordBatch]:
        row = part.line
        try:
            with self._open() as file:
                for batch in file.iter_batches(num_rows, [part.start], columns, use_threads=False):
                    yield batch if columns is None else batch.select(columns)
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"cannot be read ({error})", f"{self.path}, row {row}") from error


class ArrowRows(TypedRows):
    """An Arrow file or stream, mapped, or a table in memory; all rows are one group, and many parts.

    What is read is validated first: an offset beyond its buffer would end the process by a signal.

    Args:
        file: The file, or what to call the table.
        rows: The table, if it is in memory.
    """

    def __init__(self, file: File, rows: pa.Table | None = None) -> None:
        self.rows = open_arrow(file) if rows is None else rows
        super().__init__(file.path, self.rows.schema, [len(self.rows)])

    def nbytes(self, group: Part, columns: Sequence[str]) -> int:
        return int(self.rows.select([*columns]).nbytes)

    def parts(self, number: int = 0) -> Iterator[Part]:
        for row in range(0, self.num_rows, PART_ROWS):
            yield Part(number, 0, min(row + PART_ROWS, self.num_rows), row)

    def batches(
        self, part: Part, columns: Sequence[str] | None = None, num_rows: int = FEW_ROWS
    ) -> Iterator[pa.RecordBatch]:
        rows = self.rows if columns is None else self.rows.select([*columns])
        for batch in rows.slice(part.line, part.stop - part.line).to_batches():
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                what = f"the file is damaged ({error})"
                raise SourceError(what, self.path, "Is it complete?") from error
            for row in range(0, len(batch), num_rows):
                yield batch.slice(row, num_rows)


_KINDS: dict[str, Callable[[File], TypedRows]] = {"parquet": ParquetRows, "arrow": ArrowRows}
ROW_KINDS = frozenset(_KINDS)
_INDEX = "index.json"  # of LitData and of MosaicML Streaming


def row_kind(name: str) -> str | None:
    """Return which kind of file of rows has such a name; None if it is none.

    Example:
        >>> row_kind("train-00000.parquet"), row_kind("a.csv")
        ('parquet', None)
    """
    suffix = suffix_of(name)[1:]
    return suffix if suffix in ROW_KINDS else None


def open_row_file(file: File) -> TypedRows:
    """Open a file of rows as what it is; SourceError if it cannot be read."""
    return _KINDS[row_kind(file.path.name) or ""](file)


def listed_files(listing: Listing, folder: str = "") -> list[File] | None:
    """Return the files that an index in a folder lists, in its order; None if there is no index.

    Raises:
        SourceError: The index is damaged, a file is missing, the folder is a cache of ``load_dataset``, or the index is
            another library's: its chunks would be taken for plain ids.
    """
    state, info, index = (
        listing.find(f"{folder}/{name}".lstrip("/")) for name in (STATE, INFO, _INDEX)
    )
    if state is not None:
        return saved_files(listing, folder, state)
    if info is not None and any(name.endswith(".arrow") for name in listing.names(folder)):
        hint = (
            "Give the files of one split, or save it: load_dataset(...)['train'].save_to_disk(...)"
        )
        raise SourceError("the folder is a cache of load_dataset", listing.root / folder, hint)
    known = None if index is None else read_json(index)
    if isinstance(known, dict) and known.keys() & {"shards", "chunks"}:
        what = "folder of MosaicML Streaming or LitData"
        raise SourceError(what, listing.root / folder, STREAMING_HINT)
    return None
