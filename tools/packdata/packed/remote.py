"""Datasets at URLs, for commands: fetched whole, and what of them lies in the cache."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from loaders.data.manifest import read_manifest
from loaders.data.shards import open_manifest
from loaders.errors import CacheError, ManifestError, RemoteError
from loaders.remote.folder import VERSION
from loaders.remote.origin import origin_of
from loaders.remote.url import URL, Location, place_of
from loaders.remote.wire import MAX_CONNECTIONS
from packdata.packing.progress import Quiet

if TYPE_CHECKING:
    from pathlib import Path

    from packdata.packing.progress import Progress


def fetch(place: Location, progress: Progress | None = None) -> tuple[int, int]:
    """Bring all shards of a dataset at a URL to the cache; return how many there are, and their bytes.

    ``progress`` counts the bytes.

    Raises:
        CacheError: The cache is too small for all of them.
        RemoteError: One cannot be fetched, or the dataset is in a folder.
    """
    if not isinstance(url := place_of(place), URL):
        raise RemoteError("not a URL", place, "'packdata copy' copies datasets of folders")
    manifest, shards, _ = open_manifest(url)
    origin = origin_of(url)
    if manifest.size_bytes > (budget := origin.budget()):
        what = f"the cache may hold {budget:,} bytes, the dataset has {manifest.size_bytes:,}"
        raise CacheError(what, origin.inside.parent, "Pass a larger cache=")

    shown = progress or Quiet()
    with closing(shown), ThreadPoolExecutor(MAX_CONNECTIONS, "fetch") as pool:
        shown.start(manifest.size_bytes, 0)
        for shard, _ in zip(shards, pool.map(methodcaller("fetch"), shards), strict=True):
            shown.advance(0, shard.info.size_bytes)
    return len(shards), manifest.size_bytes


def cache_report(folder: Path) -> dict[str, Any]:
    """Return what lies in a cache, as JSON types.

    Its folder and the bytes of all shards; of each dataset its URL, and how many of its shards and bytes are here, of
    how many.
    """
    inside = folder / VERSION
    files = {path.stem: path for path in (inside / "shards").glob("??/*")}
    datasets = []
    for about in sorted((inside / "manifests").glob("*/about.json")):
        with suppress(ManifestError, OSError, ValueError, KeyError):  # a fetcher may be writing it
            manifest, url = read_manifest(about.parent), json.loads(about.read_text())["url"]
            shards = {shard.xxh3_128: shard for shard in manifest.shards}
            here = [shard.size_bytes for digest, shard in shards.items() if digest in files]
            described = {"url": url, "num_shards": len(here), "of_shards": len(manifest.shards)}
            described |= {"size_bytes": sum(here), "of_bytes": manifest.size_bytes}
            datasets.append(described)
    size = 0
    for path in files.values():
        with suppress(OSError):  # a fetcher may evict some meanwhile
            size += path.stat().st_size
    return {"folder": str(folder), "size_bytes": size, "datasets": datasets}


def clear_cache(folder: Path) -> int:
    """Delete the shards of a cache, of all versions; return how many. Readers keep those that they have mapped."""
    paths = [*folder.glob("v*/shards/??/*"), *folder.glob("v*/unverified/*")]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)
