"""What was parsed of text files, kept between the passes: text is parsed once.

It takes a GiB of memory at most, and no more than a quarter of what is free. What finds no room, or turns out
to be something else than a part seemed to hold, is read from its source again: the result is the same.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from loaders.system.limits import available_memory
from packdata.tables.values import is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.tables.parts import FilePart, Kind, TableFile, TableRows

MOST_BYTES = 1 << 30
_TYPES = {"date": pa.types.is_timestamp, "time": pa.types.is_time}


class TableReader:
    """Reads parts of files; what was parsed of text comes from where it is kept, if that will do.

    Args:
        files: The files.
        keeps: Whether something is kept.
    """

    def __init__(self, files: Sequence[TableFile], *, keeps: bool = False) -> None:
        self.files = files
        self._parts: dict[FilePart, TableRows] = {}
        self._lock = threading.Lock()
        self._room = min(MOST_BYTES, available_memory() // 4) if keeps else 0

    def __reduce__(self) -> tuple[type[TableReader], tuple[Sequence[TableFile]]]:
        """Leave what was kept where it is: who gets this reads the source."""
        return TableReader, (self.files,)

    def read(
        self, part: FilePart, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[TableRows]:
        """Read columns of a part; see ``TableFile.read``."""
        kept = self._parts.get(part)
        if columns is None or kept is None or not _fits(kept.table, columns, kinds):
            yield from self.files[part.file].read(part, columns, kinds)
        else:
            yield replace(kept, table=kept.table.select([*columns]))

    def keep(self, part: FilePart, rows: TableRows, columns: Mapping[str, pa.Array]) -> None:
        """Keep the columns of a part, one array for each of the rows' own."""
        table = pa.table({name: _coded(array) for name, array in columns.items()})
        with self._lock:
            before = self._parts.get(part)  # read a second time, as something else
            room = self._room + (0 if before is None else before.table.nbytes)
            if columns and table.nbytes <= room:
                self._room = room - table.nbytes
                self._parts[part] = replace(rows, table=table)


def _fits(kept: pa.Table, columns: Sequence[str], kinds: Mapping[str, Kind]) -> bool:
    own = dict(zip(kept.column_names, kept.schema.types, strict=True))
    return all(name in own and _is_of(own[name], kinds.get(name)) for name in columns)


def _is_of(own: pa.DataType, kind: Kind | None) -> bool:
    if kind is None:
        return False
    if pa.types.is_null(own) or (pa.types.is_dictionary(own) and is_text(own.value_type)):
        return True
    if kind in _TYPES:
        return bool(_TYPES[kind](own))
    is_number = pa.types.is_integer(own) or pa.types.is_floating(own)
    return bool((kind == "number" and is_number) or (kind == "flag" and pa.types.is_boolean(own)))


def _coded(array: pa.Array) -> pa.Array:
    """Return texts by their dictionary."""
    return array.dictionary_encode() if is_text(array.type) else array
