"""Shards at URLs that are read from first to last, fetched ahead of who reads them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loaders.data.shards import FileShard
from loaders.remote.ahead import Ahead, Needs
from loaders.remote.wire import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.data.store import Store
    from loaders.remote.origin import Origin

    Indices = npt.NDArray[np.int64]


def files_at(store: Store, origin: Origin) -> tuple[list[File], Indices]:
    """Return the shards at a URL, and for each shard of a store its place among them: -1 if it lies elsewhere."""
    files: list[File] = []
    places = np.full(len(store.shards), -1, np.int64)
    for number, shard in enumerate(store.shards):
        if isinstance(shard, FileShard) and shard.origin is origin:
            places[number] = len(files)
            files.append(File(shard.info.file, shard.info.size_bytes, shard.info.xxh3_128))
    return files, places


@contextmanager
def in_order(store: Store, shards: Indices) -> Iterator[None]:
    """Have shards at URLs fetched ahead while they are read: numbers in the order in which they are read first."""
    place_of = {number: n for n, number in enumerate(shards.tolist())}

    def needs_at(origin: Origin) -> Needs:
        files, places = files_at(store, origin)
        steps = enumerate(places[shards][:, None])
        return Needs.of(files, [(n, place) for n, place in steps if place >= 0])

    def position() -> tuple[int, bool]:
        return place_of.get(store.last_opened, 0), False

    senders = [Ahead(origin, partial(needs_at, origin), position) for origin in store.remotes]
    for each in senders:
        each.start()
    try:
        yield
    finally:
        for each in senders:
            each.close()
