"""Datasets sent to a store: shards under names that hold their hash, the manifest last, under a condition.

1. A reader sees the old dataset or the new one: shards are never written over, and the manifest is one object.
2. What was sent by a command that was killed is found, and not sent again.
3. Shards that an older manifest names stay: somebody may still read them.
4. Two who publish at one place: the manifest is put only in place of the one that was seen. It is
   read again right before and after, as some stores ignore conditions.
"""

from __future__ import annotations

import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loaders.data.manifest import MANIFEST_NAME, Manifest, manifest_bytes, parse_manifest
from loaders.errors import ManifestError, PackError
from packdata.packing.provenance import PLAN
from packdata.packing.target import is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from loaders.data.manifest import ShardInfo
    from packdata.packing.store import Store

    Tick = Callable[[int], object]

_AT_ONCE = 4


def put_shards(
    origin: Store, below: str, shards: Sequence[tuple[Path, ShardInfo]], tick: Tick = int
) -> None:
    """Send the shards that are not there yet, some at a time.

    Args:
        origin: Of the target.
        below: The folder of their dataset there.
        shards: Of each the file, and the shard as the manifest at the target is to list it.
        tick: Called with the bytes of each shard when it is there, on another thread.

    Raises:
        ChecksumError: A shard is not what its info says, or does not arrive so.
        RemoteError: The store does not answer, or refuses.
    """

    def one(path: Path, shard: ShardInfo) -> None:
        name = name_at(below, shard.file)
        origin.put_shard(name, path.resolve(), shard.size_bytes, shard.xxh3_128)
        tick(shard.size_bytes)

    with ThreadPoolExecutor(_AT_ONCE, "upload") as pool:
        for _ in pool.map(one, *zip(*shards, strict=True)):
            pass


class ShardSender:
    """Sends shards while others are packed. One that was sent is deleted here; an empty ``NAME.sent`` takes its place.

    Args:
        origin: Of the target.
        stored: Returns a shard as the manifest at the target is to list it.
    """

    def __init__(self, origin: Store, stored: Callable[[ShardInfo], ShardInfo]) -> None:
        self._origin, self._stored = origin, stored
        self._pool = ThreadPoolExecutor(_AT_ONCE, "upload")
        self._sending: deque[Future[None]] = deque()
        self._there: dict[str, dict[str, int]] = {}

    def send(self, folder: str, path: Path, shard: ShardInfo) -> None:
        """Begin to send a shard, when few enough others are on their way.

        Raises:
            ChecksumError, RemoteError: One before it could not be sent.
        """
        self._wait_for_all_but(_AT_ONCE - 1)
        self._sending.append(self._pool.submit(self._send, folder, path, shard))

    def _send(self, folder: str, path: Path, shard: ShardInfo) -> None:
        put_shards(self._origin, folder, [(path, self._stored(shard))])
        _sent_mark(path).touch()
        path.unlink(missing_ok=True)

    def has(self, folder: str, path: Path, shard: ShardInfo) -> bool:
        """Tell whether a shard was sent by a command that was killed, and is there still."""
        if not _sent_mark(path).exists():
            return False
        if folder not in self._there:
            entries, _ = self._origin.in_folder(folder)
            self._there[folder] = {entry.name: entry.size for entry in entries}
        name = name_at(folder, self._stored(shard).file)
        return self._there[folder].get(name) == shard.size_bytes

    def _wait_for_all_but(self, num: int) -> None:
        while len(self._sending) > num:
            self._sending.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._wait_for_all_but(0)
        finally:
            self._pool.shutdown(cancel_futures=True)


def _sent_mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.sent")


def name_at(below: str, name: str) -> str:
    """Return the name of an object in a folder of a target."""
    return f"{below}/{name}".lstrip("/")


def lost_at(origin: Store, below: str, shards: Iterable[ShardInfo]) -> list[str]:
    """Return which of these shards are missing in a folder of a target."""
    sizes = {entry.name: entry.size for entry in origin.in_folder(below)[0]}
    return [s.file for s in shards if sizes.get(name_at(below, s.file)) != s.size_bytes]


def manifest_at(origin: Store, below: str) -> Manifest | None:
    """Return the manifest in a folder of a target, as it is by now; None if there is none."""
    data, _ = origin.read(name_at(below, MANIFEST_NAME))
    return None if data is None else parse_manifest(data, origin.url / below / MANIFEST_NAME)


def is_made(store: Store, folders: Iterable[str], digest: str) -> bool:
    """Tell whether the datasets are there, whole, as the plan of this hash has made them."""
    for folder in folders:
        try:
            there = manifest_at(store, folder)
        except ManifestError:
            return False
        if there is None or there.provenance.get(PLAN) != digest:
            return False
        if lost_at(store, folder, there.shards):
            return False
    return True


def seen_at(
    origin: Store, below: str, manifest: Manifest, *, overwrite: bool
) -> dict[str, Any] | None:
    """Return the mark of the manifest that is to be replaced: ``{}`` if there is none, None if it is this very one.

    Raises:
        PackError: Another dataset is there, and is not to be replaced.
        RemoteError: The store does not answer, or refuses.
    """
    there, mark = origin.read(name_at(below, MANIFEST_NAME))
    if there is None:
        return {}
    if there == manifest_bytes(manifest):
        return None
    if not overwrite:
        raise is_there(origin.url / below)
    return mark


def publish_at(
    origin: Store,
    below: str,
    manifest: Manifest,
    seen: dict[str, Any],
    hint: str = "Look at it; pass overwrite=True to replace it",
) -> None:
    """Put a manifest in place of the one that ``seen_at`` found; the shards that it names must be there before.

    Raises:
        PackError: Another dataset was put there meanwhile.
        RemoteError: The store does not answer, or refuses.
    """
    data, name, place = manifest_bytes(manifest), name_at(below, MANIFEST_NAME), origin.url / below
    with as_file(data) as path:
        is_same = origin.read(name)[1] == {"etag": None, "version": None} | seen
        is_written = is_same and origin.put(name, path, seen)
    there, _ = origin.read(name)  # also where an answer was lost, and it was sent twice
    if there != data:
        what = (
            "another dataset was published there"
            if is_written is False
            else "what was written is not there"
        )
        raise PackError(what, place, hint)


@contextmanager
def as_file(data: bytes) -> Iterator[Path]:
    """Yield a file with these bytes: the fetcher, which sends them, reads files."""
    with tempfile.NamedTemporaryFile(prefix="packdata-") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
