"""What was parsed of text files, kept between the passes in a nameless file: text is parsed once.

The file vanishes with the process, however that ends. Where there is no room for it, or a column turns out to be
something else than a part seemed to hold, the part is read from its source again: the result is the same.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from loaders.remote.url import is_url
from packdata.tables.parts import TableRows
from packdata.tables.values import is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.tables.parts import FilePart, Kind, TableFile

_SPARE = 3  # times the size of the sources that must be free
_TYPES = {"date": pa.types.is_timestamp, "time": pa.types.is_time}


class TableReader:
    """Reads parts of files; what was parsed of text comes from where it is kept, if that will do.

    Args:
        files: The files.
        beside: What is parsed is kept in the first folder above that exists; None: nowhere.
    """

    def __init__(self, files: Sequence[TableFile], beside: Path | str | None = None) -> None:
        self.files = files
        self._parts: dict[FilePart, _Kept] = {}
        self._lock, self._end, self._fd = threading.Lock(), 0, -1
        size = sum(file.path.stat().st_size for file in files if file.is_text)
        if beside is None or not size:
            return
        place = Path(tempfile.gettempdir(), "kept") if is_url(beside) else Path(beside)
        folder = next(path for path in place.absolute().parents if path.is_dir())
        with suppress(OSError):  # of a folder without rights, packing says so itself
            if shutil.disk_usage(folder).free > _SPARE * size:
                with tempfile.TemporaryFile(dir=folder) as file:
                    self._fd = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._fd)

    def __reduce__(self) -> tuple[type[TableReader], tuple[Sequence[TableFile]]]:
        """Leave what was kept where it is: who gets this reads the source."""
        return TableReader, (self.files,)

    def read(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[TableRows]:
        """Read columns of a part; see ``TableFile.read``."""
        rows = self._kept(part, columns, kinds)
        if rows is None:
            yield from self.files[part.file].read(part, columns, kinds)
        else:
            yield rows

    def keep(self, part: FilePart, rows: TableRows, columns: Mapping[str, pa.Array]) -> None:
        """Keep the columns of a part, one array for each of the rows' own."""
        if self._fd < 0 or not columns:
            return
        pieces: list[pickle.PickleBuffer] = []
        coded = {name: _coded(array) for name, array in columns.items()}
        frame = pickle.dumps(coded, 5, buffer_callback=pieces.append)  # all but the values
        values = [piece.raw() for piece in pieces]
        sizes = [len(each) for each in values]
        with self._lock:
            start, self._end = self._end, self._end + sum(map(_aligned, sizes))
        at = start
        for each, size in zip(values, sizes, strict=True):
            with suppress(OSError):
                if os.pwrite(self._fd, each, at) == size:
                    at += _aligned(size)
                    continue
            return  # no room: this part is read again
        schema = pa.schema([(name, array.type) for name, array in coded.items()])
        about = TableRows(schema.empty_table(), rows.line, rows.bad, cell=rows.cell)
        self._parts[part] = _Kept(start, sizes, frame, about)

    def _kept(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> TableRows | None:
        """Return columns of a part, None where they were not kept, or not as what they are."""
        if part not in self._parts or columns is None:
            return None
        kept = self._parts[part]
        schema = kept.about.table.schema
        if not all(_fits(schema, name, kinds.get(name)) for name in columns):
            return None
        data, at, pieces = memoryview(os.pread(self._fd, kept.size, kept.start)), 0, []
        for size in kept.sizes:
            pieces.append(data[at : at + size])
            at += _aligned(size)
        arrays = pickle.loads(kept.frame, buffers=pieces)  # noqa: S301  (never left this process)
        return replace(kept.about, table=pa.table({name: arrays[name] for name in columns}))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where the columns of a part lie: ``frame`` puts them together of pieces of these sizes."""

    start: int
    sizes: list[int]
    frame: bytes
    about: TableRows

    @property
    def size(self) -> int:
        return sum(map(_aligned, self.sizes))


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _fits(schema: pa.Schema, name: str, kind: Kind | None) -> bool:
    place = schema.get_field_index(name)
    if place < 0 or kind is None:
        return False
    own = schema.types[place]
    if pa.types.is_null(own) or (pa.types.is_dictionary(own) and is_text(own.value_type)):
        return True
    if kind in _TYPES:
        return bool(_TYPES[kind](own))
    is_number = pa.types.is_integer(own) or pa.types.is_floating(own)
    return bool((kind == "number" and is_number) or (kind == "flag" and pa.types.is_boolean(own)))


def _coded(array: pa.Array) -> pa.Array:
    """Return texts by their dictionary."""
    return array.dictionary_encode() if is_text(array.type) else array
