"""Writing shard files: columns of bytes, laid out as LMDB or Parquet, and compared with what its own library reads.

One file per format says how bytes are laid out (``write``) and how another library sees them (``read_back``).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import xxhash

from loaders.data.columns import row_views
from loaders.data.formats import open_columns
from loaders.data.formats.checksums import dump_checksums
from loaders.data.manifest import ShardInfo
from loaders.errors import ShardError
from loaders.schema import Image
from loaders.system.regular import hash_file, regular
from packdata.formats import lmdb, parquet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from loaders.data.columns import Column
    from loaders.schema import Field

_FORMATS: dict[str, ModuleType] = {".lmdb": lmdb, ".parquet": parquet}


def write_shard(
    path: Path, columns: Mapping[str, Column], fields: Mapping[str, Field]
) -> ShardInfo:
    """Write columns as one shard, fsync it, and prove that what can be mapped is what its library reads.

    The suffix chooses the format; columns are those of the fields, of equal length, at least one row. ShardError if
    what was read back differs, ValueError if a column is too large.
    """
    checksums = dump_checksums(columns, _heads(columns, fields))
    places, checksums_at = _FORMATS[path.suffix].write(path, columns, checksums, fields)
    num_samples = len(next(iter(columns.values())))
    size, digest = path.stat().st_size, xxhash.xxh3_64_hexdigest(checksums)
    info = ShardInfo(path.name, num_samples, size, "", places, checksums_at, digest)
    with ThreadPoolExecutor(2, "shard") as helpers:  # the disk writes while we read
        synced, whole = helpers.submit(_sync, path), helpers.submit(hash_file, path)
        difference = read_back(path, open_columns(path, info))
        synced.result()
    if difference is not None:
        hint = "This is a defect of loaders: report it"
        raise ShardError(f"read back: {difference}", path, hint=hint)
    return info._replace(xxh3_128=whole.result())


def _heads(columns: Mapping[str, Column], fields: Mapping[str, Field]) -> dict[str, bytes]:
    """Return what readers keep of the heads of JPEG files, by field."""
    names = [n for n, f in fields.items() if isinstance(f, Image) and f.codec == "jpeg"]
    if not names:
        return {}
    # Loaded with the codec: other data need no decoder.
    from loaders.codecs.heads import kept_heads

    return {name: kept_heads(row_views(columns[name])).tobytes() for name in names}


def _sync(path: Path) -> None:
    with open(path, "rb", opener=regular) as file:
        os.fsync(file.fileno())


def read_back(path: Path, columns: Mapping[str, Column]) -> str | None:
    """Compare columns with what the format's own library reads; return the first difference, or None."""
    difference: str | None = _FORMATS[path.suffix].read_back(path, columns)
    return difference
