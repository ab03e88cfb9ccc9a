"""Parts of files, and what was parsed of text between the passes: text is parsed once.

That takes a GiB of memory at most, and no more than a quarter of what is free; what finds no room is read again.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from loaders.system.limits import available_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packdata.rows import Part, RowFile, Rows
    from packdata.types import Kind

MOST_BYTES = 1 << 30


class TableReader:
    """Reads parts of files; what was parsed of text comes from where it is kept, if that will do.

    Args:
        files: The files.
        keeps: Whether something is kept.
    """

    def __init__(self, files: Sequence[RowFile], *, keeps: bool = False) -> None:
        self.files = files
        self._parts: dict[Part, Rows] = {}
        self._lock = threading.Lock()
        self._room = min(MOST_BYTES, available_memory() // 4) if keeps else 0

    def __reduce__(self) -> tuple[type[TableReader], tuple[Sequence[RowFile]]]:
        """Leave what was kept where it is: another process reads the source."""
        return TableReader, (self.files,)

    def read(
        self, part: Part, columns: Sequence[str] | None, kinds: Mapping[str, Kind]
    ) -> Iterator[Rows]:
        """Read columns of a part; see ``RowFile.read``."""
        kept = self._parts.get(part)
        if columns is None or kept is None or not _fits(kept.table.schema, columns, kinds):
            yield from self.files[part.file].read(part, columns, kinds)
        else:
            yield replace(kept, table=kept.table.select([*columns]))

    def keep(self, part: Part, rows: Rows, columns: Mapping[str, pa.Array]) -> None:
        """Keep the columns of a part, one array for each of the rows' own."""
        table = pa.table(dict(columns))
        with self._lock:
            before = self._parts.get(part)  # read a second time, as something else
            room = self._room + (0 if before is None else before.table.nbytes)
            if columns and table.nbytes <= room:
                self._room = room - table.nbytes
                self._parts[part] = replace(rows, table=table)


def _fits(kept: pa.Schema, columns: Sequence[str], kinds: Mapping[str, Kind]) -> bool:
    """Tell whether columns were kept, and what shall be text as text."""
    own = dict(zip(kept.names, kept.types, strict=True))
    return all(
        name in own and (kinds.get(name) != "text" or pa.types.is_dictionary(own[name]))
        for name in columns
    )
