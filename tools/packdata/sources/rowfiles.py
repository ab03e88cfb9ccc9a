"""Files of rows with named columns, whichever library wrote them: Arrow's types, read in order.

``packdata images`` and ``tokens`` read Parquet, Arrow, MDS, LitData, TFRecord and tars through this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.arrow import STATE, open_arrow, read_json, saved_files
from packdata.sources.base import suffix_of
from packdata.sources.litdata import LitDataRows, is_litdata
from packdata.sources.mds import COMPRESSED as MDS_COMPRESSED
from packdata.sources.mds import INDEX, MdsRows, mds_files
from packdata.sources.mds import SUFFIX as MDS_SUFFIX
from packdata.sources.readers import open_parquet
from packdata.sources.tar_rows import TarRows
from packdata.sources.tars import TAR_SUFFIXES
from packdata.sources.tfrecord import TfrecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from pathlib import Path

BATCH_ROWS = 32  # of pictures, say


class RowFile(Protocol):
    """One file.

    Attributes:
        path: Where it is.
        schema: Its columns, with Hugging Face's notes on them where there are some.
        groups: Rows of each part that can be read by itself.
    """

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    @property
    def groups(self) -> Sequence[int]:
        """Rows of each part."""

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return about how many bytes some columns of a group take."""

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a group; SourceError if they cannot be read."""

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group, few at a time; SourceError where they cannot be read."""


class ParquetRows:
    """A Parquet file; its groups are row groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_parquet(path) as file:
            self.schema, self._metadata = file.schema_arrow, file.metadata
        numbers = range(self._metadata.num_row_groups)
        self.groups = [self._metadata.row_group(i).num_rows for i in numbers]

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return the uncompressed bytes of some columns."""
        metadata = self._metadata.row_group(group)
        chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        mine = [c for c in chunks if c.path_in_schema.split(".")[0] in columns]
        return sum(c.total_uncompressed_size for c in mine)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a row group."""
        try:
            with open_parquet(self.path, self._metadata) as file:
                return file.read_row_group(group, columns=[*columns], use_threads=False)
        except (OSError, pa.ArrowException) as error:
            what = f"row group {group} cannot be read ({error})"
            raise SourceError(what, self.path) from error

    def batches(
        self, group: int, columns: Sequence[str] | None = None, num_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, so many at a time; of all columns, or some in their order."""
        row = sum(self.groups[:group])
        try:
            with open_parquet(self.path, self._metadata) as file:
                for batch in file.iter_batches(num_rows, [group], columns, use_threads=False):
                    yield batch if columns is None else batch.select(columns)
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"it cannot be read ({error})", f"{self.path}, row {row}") from error


class ArrowRows:
    """An Arrow file or stream, mapped; all rows are one group."""

    def __init__(self, path: Path) -> None:
        self.path, self._table = path, open_arrow(path)
        self.schema, self.groups = self._table.schema, [len(self._table)]

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        """Return the bytes of some columns."""
        return int(self._table.select([*columns]).nbytes)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns."""
        return self._table.select([*columns])

    def batches(self, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield from self._table.to_batches(BATCH_ROWS)


_KINDS: dict[str, Callable[[Path], RowFile]] = {
    "parquet": ParquetRows,
    "arrow": ArrowRows,
    "mds": MdsRows,
    "tfrecord": TfrecordRows,
    "tar": TarRows,
    "litdata": LitDataRows,
}
ROW_KINDS = frozenset(_KINDS)


def row_kind(name: str) -> str | None:
    """Return which kind of file of rows has such a name; None if it is none.

    Example:
        >>> row_kind("train.tfrecord-00000-of-00010"), row_kind("shard.00000.mds.zstd"), row_kind("a.csv")
        ('tfrecord', 'mds', None)
    """
    name = name.lower()
    if name.endswith((MDS_SUFFIX, *MDS_COMPRESSED)):
        return "mds"
    if ".tfrecord" in name:
        return "tfrecord"
    if name.endswith(TAR_SUFFIXES):
        return "tar"
    suffix = suffix_of(name)[1:]
    return suffix if suffix in ROW_KINDS else None


def open_row_file(path: Path) -> RowFile:
    """Open a file as what its name says.

    Raises:
        SourceError: It cannot be read.
    """
    return _KINDS["litdata" if path.name == INDEX else row_kind(path.name) or ""](path)


def listed_files(folder: Path, names: Container[str]) -> list[Path] | None:
    """Return the files that an index in a folder lists, in its order; None if there is none.

    Of LitData it is the index itself, which stands for its chunks.

    Args:
        folder: The folder.
        names: What lies in it.

    Raises:
        SourceError: The index is damaged, or a file is missing.
    """
    if STATE in names:
        return saved_files(folder)
    index = read_json(folder / INDEX) if INDEX in names else None
    if isinstance(index, dict) and "shards" in index:
        return mds_files(folder, index)
    return [folder / INDEX] if index is not None and is_litdata(folder / INDEX) else None
