"""Shards of a store: mapped files, or columns that are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from loaders.errors import SchemaError, ShardError
from loaders.formats import hash_file, open_checksums, open_columns
from loaders.formats.checksums import hash_block

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loaders.columns import Column
    from loaders.formats.checksums import Checksums
    from loaders.manifest import ShardInfo

Check = Literal["first", "always", "never"]


@dataclass(slots=True)
class OpenShard:
    """A shard in use: its columns, and their checksums where they are to be verified."""

    path: Path
    columns: Mapping[str, Column]
    checksums: Mapping[str, Checksums]


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
            self._check_damage(columns, checksums)
        return OpenShard(self.path, columns, checksums)

    def _check_damage(
        self, columns: Mapping[str, Column], checksums: Mapping[str, Checksums]
    ) -> None:
        """Refuse a file that is not the one of the manifest, unless records of it will tell where it is damaged.

        They hold their checksums themselves: two shards that were swapped have nothing wrong in them.
        """
        for name, sums in checksums.items():
            for block, wanted in enumerate(sums.hashes.tolist()):
                if hash_block(columns[name], block, sums.rows_per_block) != wanted:
                    return
        what = "its xxh3-128 is not that of the manifest, though its records are whole: was it swapped?"
        hint = "Run 'packdata verify', and restore the shard"
        raise ShardError(what, self.path, hint=hint)


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
