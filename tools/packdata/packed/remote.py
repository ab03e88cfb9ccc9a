"""Datasets at URLs, for commands: fetched whole, laid out as a folder, and what of them lies in the cache."""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.data.manifest import MANIFEST_NAME, read_manifest
from loaders.data.shards import open_manifest
from loaders.errors import CacheError, ManifestError
from loaders.remote.folder import VERSION, Cache, default_folder, shard_path
from loaders.remote.origin import origin_of
from loaders.remote.url import is_url
from loaders.remote.wire import MAX_CONNECTIONS
from packdata.packing.target import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def fetch(place: Path, tick: Callable[[int], object] = bool) -> tuple[int, int]:
    """Bring all shards of a dataset at a URL to the cache; return how many there are, and their bytes.

    ``tick`` is called with the bytes of each shard when it is there, on another thread.

    Raises:
        CacheError: The cache is too small for all of them.
        RemoteError: One cannot be fetched.
    """
    manifest, shards, _ = open_manifest(place)
    origin = origin_of(place)
    if manifest.size_bytes > (budget := origin.budget()):
        what = f"it may hold {budget:,} bytes, the dataset has {manifest.size_bytes:,}"
        raise CacheError(what, origin.inside.parent, "Pass a larger one: --cache")

    def one(number: int) -> None:
        shards[number].fetch()
        tick(shards[number].info.size_bytes)

    with ThreadPoolExecutor(MAX_CONNECTIONS, "fetch") as pool:
        list(pool.map(one, range(len(shards))))
    return len(shards), manifest.size_bytes


@contextmanager
def as_folder(place: Path) -> Iterator[Path]:
    """Yield the folder of a dataset; of one at a URL a temporary one, whose shards are kept open meanwhile.

    Raises:
        ChecksumError: A shard is not what the manifest says.
        RemoteError: It cannot be fetched.
    """
    if not is_url(place):
        yield place
        return
    manifest, shards, _ = open_manifest(place)
    origin = origin_of(place)
    fetch(place)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="packdata-")))
        for shard in shards:
            file = stack.enter_context(shard.open_file())
            (folder / shard.info.file).symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        for name in manifest.schema.files:
            (folder / name).symlink_to(origin.small_file(name))
        (folder / MANIFEST_NAME).symlink_to(origin.manifest() / MANIFEST_NAME)
        yield folder


class CacheReport(NamedTuple):
    """What lies in a cache."""

    folder: Path
    size_bytes: int  # of all shards
    # Of each dataset its URL, and how many of its shards and bytes are here, of how many.
    datasets: list[dict[str, Any]]
    num_unknown: int  # shards of no dataset whose manifest is here


def cache_folder(given: Any = None) -> Path:
    """Return the folder of a cache, which need not be there."""
    return Cache.parse(given).folder or default_folder()


def cache_report(folder: Path) -> CacheReport:
    """Tell what lies in a cache."""
    inside = folder / VERSION
    files = {path.name: path for path in (inside / "shards").glob("??/*")}
    unknown, datasets = set(files), []
    for about in sorted((inside / "manifests").glob(f"*/{MANIFEST_NAME}")):
        try:
            manifest = read_manifest(about.parent)
        except ManifestError:
            continue
        shards = [
            (shard_path(inside, s.file, s.xxh3_128).name, s.size_bytes) for s in manifest.shards
        ]
        here = [(name, size) for name, size in shards if name in files]
        unknown -= {name for name, _ in here}
        datasets.append(
            {
                "url": _url_of(about.parent),
                "num_shards": len(here),
                "of_shards": len(shards),
                "size_bytes": sum(size for _, size in here),
                "of_bytes": manifest.size_bytes,
            }
        )
    size = sum(size_of(path) or 0 for path in files.values())  # a fetcher may evict some meanwhile
    return CacheReport(folder, size, datasets, len(unknown))


def _url_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / "about.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        return "?"


def clear_cache(folder: Path) -> int:
    """Delete the shards of a cache, of all versions; return how many. Readers keep those that they have mapped."""
    paths = [*folder.glob("v*/shards/??/*"), *folder.glob("v*/unverified/*")]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)
