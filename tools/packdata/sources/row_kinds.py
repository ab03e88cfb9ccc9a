"""Parquet and Arrow as files of rows, and the folders of them that ``datasets.save_to_disk`` writes.

Source:
    Hugging Face datasets, ``Dataset.save_to_disk``: ``state.json`` lists the files (streams of
    Arrow), ``dataset_dict.json`` the splits, each a folder of that form.
"""

from __future__ import annotations

import base64
import json
import os
from abc import abstractmethod
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loaders.errors import SourceError
from packdata.reading import RemoteFile
from packdata.rows import Part, RowFile, Rows
from packdata.sources.names import STREAMING_HINT, suffix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loaders.remote.url import Location
    from packdata.reading import File
    from packdata.rows import Names
    from packdata.sources.listed import Listing

PART_ROWS = 1 << 16
FEW_ROWS = 32  # of pictures, say
_WHOLE_BYTES = 8 << 20  # an object of a store that is fetched whole
_LISTS = ("Sequence", "List", "LargeList")  # of Hugging Face's features


class TypedRows(RowFile):
    """A file that declares its columns; its groups of rows are read by themselves.

    Attributes:
        schema: Its columns, with what Hugging Face's ``datasets`` wrote of them.
        groups: Its groups, each a part.
        num_rows: Rows of all groups.
        categories: Columns that were written as categories, also where they are not given back as such.
    """

    categories = frozenset[str]()

    def __init__(self, path: Location, schema: pa.Schema, sizes: Sequence[int]) -> None:
        self.path, self.schema = path, schema
        self.columns: tuple[str, ...] = tuple(schema.names)
        self.classes = _class_names(schema)
        sized = enumerate(zip(sizes, accumulate(sizes), strict=True))
        self.groups = [Part(0, group, end, end - size) for group, (size, end) in sized]
        self.num_rows = sum(sizes)

    @abstractmethod
    def nbytes(self, group: Part, columns: Sequence[str]) -> int:
        """Return about how many bytes some columns of a group take."""

    @abstractmethod
    def batches(
        self, part: Part, columns: Sequence[str], num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, so many at a time; SourceError where they cannot be read."""

    def table(self, part: Part, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a part; SourceError if they cannot be read."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        batches = self.batches(part, columns, max(1, part.stop - part.line))
        return pa.Table.from_batches(batches, schema)

    def parts(self) -> Iterator[Part]:
        """List the groups."""
        yield from self.groups

    def read(self, part: Part, columns: Names = None) -> Iterator[Rows]:
        """Read a part, ``PART_ROWS`` rows at a time; numbers of classes become their names."""
        names, row = list(self.columns if columns is None else columns), part.line
        # A small part is read as a whole, however many batches an Arrow file has of it.
        is_small = part.stop - part.line <= PART_ROWS
        whole = self.table(part, names).combine_chunks().to_batches() if is_small else ()
        for batch in whole or self.batches(part, names, PART_ROWS):
            named = zip(names, batch.columns, strict=True)
            arrays = [self._named(name, array, row) for name, array in named]
            yield Rows(pa.Table.from_arrays(arrays, names=names), partial(int.__add__, row))
            row += len(batch)

    def _named(self, name: str, array: pa.Array, row: int) -> pa.Array:
        """Return numbers of classes by their names; -1 stands for none. SourceError if another number has no name."""
        classes = self.classes.get(name)
        if classes is None or not pa.types.is_integer(array.type):
            is_plain = name in self.categories and not pa.types.is_dictionary(array.type)
            return array.dictionary_encode() if is_plain else array
        try:
            numbers = pc.if_else(pc.equal(array, -1), pa.scalar(None, array.type), array)
            names = pa.array(classes, pa.string())
            return pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), names)
        except pa.ArrowException as error:
            values = array.fill_null(0).to_numpy()
            row += int(((values < -1) | (values >= len(classes))).argmax())
            what = f"column {name!r} has a number of no class: there are {len(classes)}, from 0 ({error})"
            raise SourceError(what, self.place(row)) from error


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes by column or member, as Hugging Face's ``datasets`` wrote them into the schema."""
    try:
        return dict(_labels_in(json.loads(schema.metadata[b"huggingface"])["info"]["features"]))
    except (TypeError, LookupError, ValueError, AttributeError):  # none, or of another tool
        return {}


def _labels_in(feature: Any, name: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(feature, list):  # as older versions wrote one; or a shape, or languages
        feature = {"_type": "List", "feature": next(iter(feature), None)}
    kind = feature.get("_type") if isinstance(feature, dict) else None
    if kind in _LISTS:
        yield from _labels_in(feature.get("feature"), name)
    elif kind == "ClassLabel" and feature.get("names"):
        yield name, tuple(map(str, feature["names"]))
    elif isinstance(feature, dict):
        for member, each in feature.items():
            yield from _labels_in(each, f"{name}.{member}" if name else member)


def _categories(written: bytes) -> frozenset[str]:
    """Return the columns that Arrow wrote to Parquet as categories: it gives those that are no texts back as plain."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written)))
    except (ValueError, pa.ArrowException):  # none
        return frozenset()
    return frozenset(field.name for field in schema if pa.types.is_dictionary(field.type))


class ParquetRows(TypedRows):
    """A Parquet file; its groups are row groups. INT96 dates come as microseconds: nanoseconds do not hold all."""

    def __init__(self, file: File) -> None:
        self._file = file
        with _open_parquet(file) as opened:
            schema, self._metadata = opened.schema_arrow, opened.metadata
        self.categories = _categories((self._metadata.metadata or {}).get(b"ARROW:schema", b""))
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        super().__init__(file.path, schema, [group.num_rows for group in groups])

    def nbytes(self, group: Part, columns: Sequence[str]) -> int:
        metadata = self._metadata.row_group(group.start)
        chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        inside = tuple(f"{name}." for name in columns)  # of lists and structs
        mine = (c for c in chunks if f"{c.path_in_schema}.".startswith(inside))
        return sum(c.total_uncompressed_size for c in mine)

    def batches(
        self, part: Part, columns: Sequence[str], num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        row = part.line
        try:
            with _open_parquet(self._file, self._metadata) as file:
                for batch in file.iter_batches(num_rows, [part.start], columns, use_threads=False):
                    yield batch.select(columns)
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"cannot be read ({error})", f"{self.path}, row {row}") from error


def _open_parquet(file: File, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    # Of a large object, what is read of it is fetched; a small one is a file, as those are that come ahead.
    is_large = isinstance(file, RemoteFile) and file.size > _WHOLE_BYTES
    opened = file.open() if is_large else file.local()
    try:
        return pq.ParquetFile(opened, metadata=metadata, coerce_int96_timestamp_unit="us")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"cannot be read as Parquet ({error})", file.path) from error


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

    def parts(self) -> Iterator[Part]:
        for row in range(0, self.num_rows, PART_ROWS):
            yield Part(0, 0, min(row + PART_ROWS, self.num_rows), row)

    def batches(
        self, part: Part, columns: Sequence[str], num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        rows = self.rows.select([*columns]).slice(part.line, part.stop - part.line)
        for batch in rows.to_batches():
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                what = f"the file is damaged ({error})"
                raise SourceError(what, self.path, "Is the file complete?") from error
            for row in range(0, len(batch), num_rows):
                yield batch.slice(row, num_rows)


def open_arrow(file: File) -> pa.Table:
    """Map an Arrow file or stream as a table: nothing is read before it is used. SourceError if it is neither."""
    path = os.fspath(file.local())
    try:
        source = pa.memory_map(path)
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()
    except (OSError, ValueError, pa.ArrowException) as error:
        hint = "Is the file complete?"
        raise SourceError(f"cannot be read as Arrow ({error})", file.path, hint) from error


_KINDS: dict[str, Callable[[File], TypedRows]] = {"parquet": ParquetRows, "arrow": ArrowRows}
# By suffix.
ROW_KINDS = {".parquet": "parquet", **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow")}


def row_kind(name: str) -> str:
    """Return which kind of file of rows has such a name; "" if it is none.

    Example:
        >>> row_kind("train-00000.parquet"), row_kind("a.csv")
        ('parquet', '')
    """
    return ROW_KINDS.get(suffix_of(name), "")


def open_row_file(file: File) -> TypedRows:
    """Open a file of rows as what it is; SourceError if it cannot be read."""
    return _KINDS[row_kind(file.path.name)](file)


def saved_splits(listing: Listing) -> dict[str, Listing]:
    """Return the folders of splits, in their order; none if it is one dataset."""
    file = listing.find("dataset_dict.json")
    return {} if file is None else {name: listing.below(name) for name in _known(file, "splits")}


def listed_files(listing: Listing, folder: str = "") -> list[File] | None:
    """Return the files that an index in a folder lists, in its order; None if there is no index.

    Raises:
        SourceError: The index is damaged, a file is missing, rows were chosen that are only listed, the folder is a
            cache of ``load_dataset``, or the index is another library's: its chunks would be taken for plain ids.
    """
    names = ("state.json", "dataset_info.json", "index.json")
    state, info, index = (listing.find(f"{folder}/{name}".lstrip("/")) for name in names)
    root = listing.root / folder
    if state is not None:
        if _known(state, "_indices_data_files", []):
            hint = "Save the rows again: dataset.flatten_indices().save_to_disk(...)"
            raise SourceError("the rows are chosen by a list of indices", state.path, hint)
        files = [file["filename"] for file in _known(state, "_data_files")]
        found = listing.files(f"{folder}/{name}".lstrip("/") for name in files)
        if lost := {*files} - {file.path.name for file in found}:
            what = "a file that state.json lists is not there"
            raise SourceError(what, root / min(lost), "Copy that file again")
        return found
    if info is not None and any(name.endswith(".arrow") for name in listing.names(folder)):
        hint = "Give the files of a split, or load_dataset(...)['train'].save_to_disk(...)"
        raise SourceError("the folder is a cache of load_dataset", root, hint)
    if index is not None and any(mark in index() for mark in (b'"shards"', b'"chunks"')):
        raise SourceError("folder of MosaicML Streaming or LitData", root, STREAMING_HINT)
    return None


def _known(file: File, key: str, default: Any = None) -> list[Any]:
    """Return a list of an index; SourceError if the index has none."""
    try:
        return [*(json.loads(file()).get(key, default) or default)]
    except (ValueError, AttributeError, TypeError) as error:
        what = f"not as datasets.save_to_disk writes it ({error})"
        raise SourceError(what, file.path, "Save the dataset again") from error
