"""Writing to a disk, and errors that tell what helps."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import lmdb

from loaders.errors import LoadersError, PackError
from packdata.formats import write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from loaders.data.columns import Column
    from loaders.data.manifest import ShardInfo
    from loaders.schema import Schema

_HINT = (
    "Make room there, or choose a folder that you may write to. Then run the same command again"
)


def write_staged(path: Path, columns: Mapping[str, Column], schema: Schema) -> ShardInfo:
    """Write a shard that is not published yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # half of it may be left from a run that was killed
    return write_shard(path, columns, schema.fields)


@contextmanager
def explained(path: Path, what: str = "it cannot be written", more: str = "") -> Iterator[None]:
    """Turn an error of the system, or of LMDB, into a PackError; ``more`` follows the hint."""
    try:
        yield
    except LoadersError:
        raise
    except (OSError, lmdb.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PackError(f"{what} ({reason})", path, f"{_HINT}{more}") from error
