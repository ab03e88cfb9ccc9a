"""Writing to a disk, and what it says when it cannot: errors that tell what helps."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import lmdb

from loaders.errors import LoadersError, PackError
from packdata.formats import write_shard

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from loaders.data.columns import Column
    from loaders.data.manifest import ShardInfo
    from loaders.schema import Schema

ANEW = "run the same command again"
GO_ON = f"{ANEW}: it continues"


def write_staged(path: Path, columns: Mapping[str, Column], schema: Schema) -> ShardInfo:
    """Write a shard that is not published yet, or nothing; OSError, which tells why, also where LMDB does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # half of it may be left from a run that was killed
    try:
        return write_shard(path, columns, schema.fields)
    except lmdb.Error as error:  # of a write that ended early it says EIO, whatever the reason
        code = _lack_of_room(path, sum(column.nbytes for column in columns.values()))
        _remove(path)
        if code is None:
            raise
        raise OSError(code, os.strerror(code)) from error
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _lack_of_room(path: Path, nbytes: int) -> int | None:
    """Return the error number of a disk that is full, or of a file that may not grow; None if it is neither."""
    with suppress(OSError):
        if shutil.disk_usage(path.parent).free < nbytes:
            return errno.ENOSPC
    if resource is None:
        return None
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    reached = most != resource.RLIM_INFINITY and path.exists() and path.stat().st_size >= most
    return errno.EFBIG if reached else None


@contextmanager
def explained(path: Path, what: str = "it cannot be written", again: str = ANEW) -> Iterator[None]:
    """Turn what the system says into a PackError; ``again`` is what helps once there is room."""
    try:
        yield
    except LoadersError:
        raise
    except (OSError, lmdb.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PackError(f"{what} ({reason})", path, remedy_of(error, path, again)) from error


def remedy_of(error: Exception, path: Path, again: str = ANEW) -> str:
    """Say what helps against what the system said of a path."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space" in str(error):
        return f"Make room there. Then {again}"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder that may be written to"
    if code in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
        where = "The file system there has no locks (flock)"
        return f"{where}: write to another and copy the folder, or mount it with them (Lustre: -o flock)"
    if code == errno.ENOTDIR:
        file = next((above for above in path.parents if above.is_file()), None)
        found = "A part of this path" if file is None else str(file)
        return f"{found} is a file: choose another folder"
    broken = next((each for each in (path, *path.parents) if each.is_symlink()), None)
    if code == errno.EEXIST and broken is not None and not broken.exists():
        return f"{broken} is a link to nothing: remove it, or make what it points to"
    return again.capitalize()
