"""Shards that become part of another dataset as they are: linked, or copied and verified."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from loaders.data.formats import hash_file
from loaders.errors import ShardError
from loaders.remote.origin import origin_of
from loaders.remote.url import is_url
from packdata.packing.disk import explained
from packdata.packing.shards import shard_format, shard_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loaders.data.manifest import ShardInfo
    from loaders.data.shards import FileShard

    OnLink = Callable[[Path], object]


def stage_whole(
    folder: Path,
    shards: Sequence[FileShard],
    first: int = 0,
    *,
    link: bool = True,
    on_link: OnLink = str,
) -> list[ShardInfo]:
    """Bring shards to a folder, to be published; return them with their names there.

    Args:
        folder: Where to.
        shards: Which.
        first: Number of the first one there.
        link: Use hard links where the file system has them: no byte is copied. Shards are never changed once
            published, so sharing them is safe; but what damages one damages the other, and what is linked is not
            read. Copies are verified.
        on_link: Called with each shard that was linked.
    """
    staged: list[ShardInfo] = []
    for shard in shards:
        name = shard_name(first + len(staged), shard_format(shard.path.name))
        new = shard.info._replace(file=name)
        (folder / name).unlink(missing_ok=True)  # of a run that was killed
        may_link = link and shard.origin is None  # what a cache holds is the cache's
        if _link_or_copy(shard.fetch(), folder / new.file, shard.info, link=may_link):
            on_link(shard.path)
        shard.check_version()  # last: what replaces the file from here on is not what was linked
        staged.append(new)
    return staged


def _link_or_copy(source: Path, target: Path, info: ShardInfo, *, link: bool) -> bool:
    """Return whether it is linked: a link is not read."""
    what = size_fault(source, info)
    if what is not None:
        raise ShardError(
            what, source, hint="Run 'packdata verify', and copy what it names from a backup"
        )
    if link:
        try:
            os.link(source.resolve(), target)
        except OSError:  # another file system, or one without links
            pass
        else:
            return True
    copy_shard(source, target, info)
    return False


def copy_shard(source: Path, target: Path, info: ShardInfo) -> None:
    """Copy a shard durably, and make sure that what was copied is what the manifest says.

    Raises:
        ShardError: The source is damaged; the target is gone again.
        PackError: The target cannot be written.
    """
    try:
        with explained(target):
            shutil.copyfile(source, target)
            with open(target, "rb+") as file:
                os.fsync(file.fileno())
            digest = hash_file(target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    if digest != info.xxh3_128:
        target.unlink()
        what = f"its xxh3-128 is {digest}, the manifest says {info.xxh3_128}"
        raise ShardError(what, source, hint="Run 'packdata verify' on it")


def size_fault(path: Path, info: ShardInfo) -> str | None:
    """Return why a shard cannot be the recorded one without reading it, or None."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    if not path.is_file():  # opening a pipe would wait for ever
        return "it is not a file"
    if size == info.size_bytes:
        return None
    how = "was cut" if size < info.size_bytes else "has grown"
    return f"it has {size} bytes, the manifest says {info.size_bytes}: it {how}"


def file_beside(folder: Path, name: str) -> Path:
    """Return a file that lies beside the manifest of a dataset; of one at a URL, what the cache has of it."""
    return origin_of(folder).small_file(name) if is_url(folder) else folder / name


def file_fault(path: Path, expected: str) -> str | None:
    """Return why a file beside the manifest is not the recorded one, or None."""
    try:
        digest = hash_file(path) if path.is_file() else None
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    if digest is None:
        return "it is missing"
    return None if digest == expected else f"its xxh3-128 is {digest}, the schema says {expected}"
