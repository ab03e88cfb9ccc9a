"""Shards of a store: mapped files, or columns that are in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from loaders.errors import ChecksumError, SchemaError, ShardError
from loaders.formats import hash_file, open_checksums, open_columns
from loaders.formats.checksums import hash_block

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loaders.columns import Column
    from loaders.formats.checksums import Checksums
    from loaders.manifest import ShardInfo

Check = Literal["first", "always", "never"]
Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class OpenShard:
    """A shard in use.

    Attributes:
        path: The file.
        columns: Its columns, by field.
        checksums: Their checksums, where they are to be verified.
        damage: The blocks, by field, that differed when all of them were compared.
    """

    path: Path
    columns: Mapping[str, Column]
    checksums: Mapping[str, Checksums]
    damage: Mapping[str, Indices] = field(default_factory=dict)

    def check_rows(self, rows: Indices) -> None:
        """Raise ChecksumError if a field of one of some rows is known to be damaged, whoever reads that field."""
        for name, damaged in self.damage.items():
            blocks = rows // self.checksums[name].rows_per_block
            bad = np.isin(blocks, damaged)
            if bad.any():
                raise self.error(name, int(blocks[bad.argmax()]))

    def error(self, name: str, block: int) -> ChecksumError:
        """Return the error that a block of a field differs from its checksum."""
        size = self.checksums[name].rows_per_block
        first = block * size
        last = min(first + size, len(self.columns[name])) - 1
        what = "its checksum does not match"
        what += "" if last == first else f" (one of rows {first} to {last})"
        remedy = "Run 'packdata verify', and restore the shard"
        row = first if last == first else None
        return ChecksumError(what, self.path, row, name, remedy)


@dataclass(frozen=True, slots=True)
class FileShard:
    """A shard that is mapped when it is first touched."""

    path: Path
    info: ShardInfo

    @property
    def num_samples(self) -> int:
        """Its rows."""
        return self.info.num_samples

    def open(self, check: Check) -> OpenShard:
        """Map the file; ShardError if it is not what the manifest says."""
        columns = open_columns(self.path, self.info)
        checksums = {} if check == "never" else open_checksums(self.path, self.info)
        if check == "always" and hash_file(self.path) != self.info.xxh3_128:
            return OpenShard(self.path, columns, checksums, self._damage(columns, checksums))
        return OpenShard(self.path, columns, checksums)

    def _damage(
        self, columns: Mapping[str, Column], checksums: Mapping[str, Checksums]
    ) -> dict[str, Indices]:
        """Return where a file is damaged that is not the one of the manifest.

        It is an error of these rows alone: the others can be served. Where all are whole, the file is refused. It has
        its checksums in it: in two shards that were swapped nothing is wrong.
        """
        damage = {name: _damaged(columns[name], sums) for name, sums in checksums.items()}
        damage = {name: blocks for name, blocks in damage.items() if len(blocks)}
        if damage:
            return damage
        what = "its xxh3-128 is not that of the manifest, though its records are whole: was it swapped?"
        hint = "Run 'packdata verify', and restore the shard"
        raise ShardError(what, self.path, hint=hint)


def _damaged(column: Column, sums: Checksums) -> Indices:
    size, wanted = sums.rows_per_block, sums.hashes.tolist()
    bad = [
        block for block, digest in enumerate(wanted) if hash_block(column, block, size) != digest
    ]
    return np.array(bad, np.int64)


@dataclass(frozen=True, slots=True)
class MemoryShard:
    """Columns that are in memory, and where they came from."""

    path: Path
    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:  # a shorter one would be read beyond its end
            raise SchemaError(f"all columns have one row per sample, got {lengths}")

    @property
    def num_samples(self) -> int:
        """Its rows."""
        return len(next(iter(self.columns.values())))

    def open(self, check: Check) -> OpenShard:
        """Return the columns; what is in memory was checked on the way there."""
        return OpenShard(self.path, self.columns, {})
