"""Datasets sent to a store: shards under names that hold their hash, the manifest last, under a condition.

1. A reader sees the old dataset or the new one: shards are never written over, and the manifest is one object.
2. What was sent by a command that was killed is found, and not sent again.
3. Shards that an older manifest names stay: somebody may still read them.
4. Two who publish at one place: the manifest is put only in place of the one that was seen. Where a store ignores
   conditions, it is read again right before and after, and a note says so.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from loaders.errors import PackError, RemoteError
from loaders.manifest import MANIFEST_NAME, Manifest, manifest_bytes, read_manifest
from loaders.remote.origin import origin_of
from packdata.settings import OVERWRITE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loaders.manifest import ShardInfo
    from loaders.remote.origin import Origin

    Tick = Callable[[int], object]
    Note = Callable[[str], object]

_AT_ONCE = 4
_HASH = re.compile(r"-[0-9a-f]{32}$")
_PROBE_NAME = f"{MANIFEST_NAME}.probe"
_IGNORES = (
    "the store ignores conditions on writes: do not publish there from two places at one time"
)


def upload(
    folder: Path,
    url: Path | str,
    *,
    overwrite: bool = False,
    tick: Tick = int,
    note: Note = str,
) -> Manifest:
    """Send a packed dataset to a URL; killed, the same call goes on.

    Args:
        folder: The dataset.
        url: Where it is to be.
        overwrite: Replace the manifest of another dataset there; its shards stay.
        tick: Called with the bytes of each shard when it is there, on another thread.
        note: Called with what deserves a look.

    Returns:
        The manifest at the URL: that of the folder, with other names of shards.

    Raises:
        PackError: Another dataset is there, or was put there meanwhile.
        ChecksumError: A shard is damaged.
        RemoteError: The store does not answer, or refuses.
    """
    origin, manifest = origin_of(url), read_manifest(folder)
    published = replace(manifest, shards=tuple(map(stored_info, manifest.shards)))
    seen = _seen(origin, published, overwrite=overwrite)
    put_shards(origin.url, folder, manifest.shards, tick)
    for name in manifest.schema.files:
        origin.put(name, folder / name)
    if seen is not None:
        _publish(origin, published, seen, note)
    return published


def put_shards(
    url: Path | str, folder: Path, shards: Sequence[ShardInfo], tick: Tick = int
) -> list[ShardInfo]:
    """Send shards of a folder to a URL, those that are not there, some at a time.

    Args:
        url: Of the dataset.
        folder: Where the shards lie, by their names.
        shards: Which.
        tick: Called with the bytes of each shard when it is there, on another thread.

    Returns:
        The shards as a manifest at the URL lists them.

    Raises:
        ChecksumError: A shard is not what its info says, or does not arrive so.
        RemoteError: The store does not answer, or refuses.
    """
    origin = origin_of(url)

    def one(shard: ShardInfo) -> ShardInfo:
        named = stored_info(shard)
        path = (folder / shard.file).resolve()
        origin.put_shard(named.file, path, shard.size_bytes, shard.xxh3_128)
        tick(shard.size_bytes)
        return named

    with ThreadPoolExecutor(_AT_ONCE, "upload") as pool:
        return list(pool.map(one, shards))


def stored_info(shard: ShardInfo) -> ShardInfo:
    """Return a shard under its name in a store, which holds its hash: ``shard-00000-HASH.lmdb``."""
    path = Path(shard.file)
    return replace(shard, file=f"{_HASH.sub('', path.stem)}-{shard.xxh3_128}{path.suffix}")


def publish_at(
    url: Path | str, manifest: Manifest, *, overwrite: bool = False, note: Note = str
) -> None:
    """Put a manifest at a URL when all that it names is there: then it is a dataset.

    Args:
        url: Of the dataset.
        manifest: With the shards that ``put_shards`` returned.
        overwrite: Replace the manifest of another dataset there.
        note: Called with what deserves a look.

    Raises:
        PackError: Another dataset is there, or was put there meanwhile.
        RemoteError: The store does not answer, or refuses.
    """
    origin = origin_of(url)
    seen = _seen(origin, manifest, overwrite=overwrite)
    if seen is not None:
        _publish(origin, manifest, seen, note)


def _seen(origin: Origin, manifest: Manifest, *, overwrite: bool) -> dict[str, Any] | None:
    """Return what is to be replaced, ``{}`` if nothing is there; None if this very manifest is."""
    there, mark = origin.read(MANIFEST_NAME)
    if there is None:
        return {}
    if there == manifest_bytes(manifest):
        return None
    if not overwrite:
        hint = f"{OVERWRITE} replaces its manifest, and keeps its shards"
        raise PackError("a packed dataset is there", origin.url, hint)
    return mark


def _publish(origin: Origin, manifest: Manifest, seen: dict[str, Any], note: Note) -> None:
    """Write the manifest in place of the one that was seen."""
    data = manifest_bytes(manifest)
    with _as_file(data) as path:
        keeps = keeps_conditions(origin, seen)
        if not keeps:
            note(f"{origin.url}: {_IGNORES}")
        is_same = keeps or origin.read(MANIFEST_NAME)[1] == {"etag": None, "version": None} | seen
        is_written = is_same and origin.put(MANIFEST_NAME, path, seen)
    there, _ = origin.read(MANIFEST_NAME)  # also where an answer was lost, and it was sent twice
    if there != data:
        what = (
            "another dataset was published there"
            if is_written is False
            else "what was written is not there"
        )
        raise PackError(what, origin.url, f"Look at it; {OVERWRITE} replaces it")


def keeps_conditions(origin: Origin, seen: dict[str, Any]) -> bool:
    """Tell whether the store refuses a condition that is not fulfilled: that nothing is there, or else an e-tag."""
    with _as_file(b"probe") as path:
        origin.put(_PROBE_NAME, path)
        only = {"etag": '"00000000000000000000000000000000"'} if seen else {}
        is_refused = not origin.put(_PROBE_NAME, path, only)
    with suppress(RemoteError):  # who may write may not delete everywhere
        origin.delete(_PROBE_NAME)
    return is_refused


@contextmanager
def _as_file(data: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="packdata-") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


@contextmanager
def staging(what: str) -> Iterator[Path]:
    """Yield the folder in which a dataset for a URL is made, the same one for the same; deleted when it was sent."""
    print_ = xxhash.xxh3_64_hexdigest(what.encode())
    above = Path(tempfile.gettempdir()) / f"packdata-{os.getuid()}"
    above.mkdir(mode=0o700, exist_ok=True)
    if above.is_symlink() or above.stat().st_uid != os.getuid():
        raise PackError("it belongs to another user", above, "Set TMPDIR to a folder of yours")
    yield above / print_
    shutil.rmtree(above / print_, ignore_errors=True)
