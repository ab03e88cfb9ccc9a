"""Tar files of texts, as WebDataset has them: of each sample ``.txt`` is the text, ``.json`` its columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.rowfile import RowFile
from packdata.sources.tars import open_tar, read_value, scan_tar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_GROUP_BYTES = 16 << 20
TEXT = "text"


class TarRows(RowFile):
    """One tar file. The columns are those of its first samples; pictures and the like are passed over.

    Raises:
        SourceError: It is damaged, or holds neither ``.txt`` nor ``.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        samples = scan_tar(path, 0, Counter())
        self._samples = [s for s in samples if "txt" in s.members or "json" in s.members]
        if not self._samples:
            raise SourceError("it holds neither .txt nor .json", path)
        self._starts = list(self._cut())
        ends = [*self._starts[1:], len(self._samples)]
        self.groups = [end - start for start, end in zip(self._starts, ends, strict=True)]
        self.schema: pa.Schema = None  # of the first group
        self.schema = self._table(0).schema

    def _cut(self) -> Iterator[int]:
        """Yield where groups begin."""
        size = _GROUP_BYTES
        for number in range(len(self._samples)):
            if size >= _GROUP_BYTES:
                yield number
                size = 0
            size += self._size(number)

    def _size(self, number: int) -> int:
        members = self._samples[number].members
        return sum(members[role][2] for role in ("txt", "json") if role in members)

    def _table(self, group: int) -> pa.Table:
        start = self._starts[group]
        with open_tar(self.path) as file:
            rows = [self._row(file, number) for number in range(start, start + self.groups[group])]
        try:
            return pa.Table.from_pylist(rows, self.schema)
        except (pa.ArrowException, OverflowError) as error:
            where = f"{self.path}, samples from {self._samples[start].key} on"
            raise SourceError(f"its .json are not alike ({error})", where) from error

    def _row(self, file: Any, number: int) -> dict[str, Any]:
        sample = self._samples[number]
        row: dict[str, Any] = {}
        if "json" in sample.members:
            value = read_value(file, sample, "json", self.path)
            row |= value if isinstance(value, dict) else {}
        if "txt" in sample.members:
            row[TEXT] = read_value(file, sample, "txt", self.path)
        return row

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        start = self._starts[group]
        return sum(self._size(number) for number in range(start, start + self.groups[group]))
