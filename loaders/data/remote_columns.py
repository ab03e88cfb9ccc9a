"""A column of shards at URLs, fetched by ranges: where its rows lie, the rows, and their checksums.

It is verified, and held in memory. Of each shard that is at most three requests: it is for columns that are a small
part of their shards, such as labels, keys and counts of tokens.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from loaders.data.formats import columns_in, parse_checksums
from loaders.data.shards import MemoryShard, RemoteShard
from loaders.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.data.shards import Shard
    from loaders.remote.origin import Origin

_MAX_BYTES = 128 << 20  # of a column, in memory
_SHARE = 1 / 4  # of the shards; for more, they are fetched whole
_REQUEST_BYTES = 128 << 10  # fetching so many bytes more costs less than another request


def with_column(shards: Sequence[Shard], numbers: Sequence[int], field: str) -> list[Shard] | None:
    """Return shards, with just one column of those that are not in the cache; None if whole shards are to be fetched.

    What comes damaged stays a whole shard: it is fetched, and verified, as such. ``numbers`` are the shards that are
    read. RemoteError if a range cannot be fetched.
    """
    read = [shards[n] for n in numbers]
    away = [each for each in read if isinstance(each, RemoteShard) and not each.is_here]
    found: dict[int, Shard] = {}
    for origin in dict.fromkeys(each.origin for each in away):
        some = [each for each in away if each.origin is origin]
        if (parts := _fetched(origin, some, field)) is None:
            return None
        for shard, part in zip(some, parts, strict=True):
            with suppress(ShardError):
                found[id(shard)] = _verified(shard, field, *part)
    return [found.get(id(each), each) for each in shards]


def _fetched(
    origin: Origin, shards: Sequence[RemoteShard], field: str
) -> list[tuple[bytes, bytes, bytes]] | None:
    """Return lengths, rows and checksums of a column of each shard; None if it is too large, or its rows lie apart."""
    infos = [(each.info, each.info.places[field]) for each in shards]
    if any(place.starts is not None for _, place in infos):
        return None
    most = min(_SHARE * sum(info.size_bytes for info, _ in infos), _MAX_BYTES)
    most -= _REQUEST_BYTES * sum(2 if place.lengths is None else 3 for _, place in infos)

    def fetch(spans: list[tuple[int, int]]) -> list[bytes]:
        pairs = zip(infos, spans, strict=True)
        return origin.ranges([(info.file, *span) for (info, _), span in pairs])

    starts = [(place.lengths, info.num_samples) for info, place in infos]
    spans = [(0, 0) if at is None else (at, at + 4 * num) for at, num in starts]
    if _size(spans) > most:
        return None
    lengths, spans = fetch(spans), []
    for (info, place), sizes in zip(infos, lengths, strict=True):
        nbytes = (place.row_nbytes or place.gap) * info.num_samples
        nbytes += int(np.frombuffer(sizes, "<i4").clip(0).sum(dtype=np.int64))
        end = min(place.offset + nbytes, info.size_bytes)  # sizes are not verified yet
        spans.append((place.offset, end))
    if _size(spans) > most:
        return None
    sums = [(info.checksums[0], sum(info.checksums)) for info, _ in infos]
    return list(zip(lengths, fetch(spans), fetch(sums), strict=True))


def _size(spans: Sequence[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


def _verified(
    shard: RemoteShard, field: str, lengths: bytes, rows: bytes, checksums: bytes
) -> MemoryShard:
    """Return the column of a shard; ShardError if what came is damaged."""
    info, path = shard.info, shard.path
    place = info.places[field]._replace(offset=len(lengths))
    place = place if place.lengths is None else place._replace(lengths=0)
    data = np.frombuffer(lengths + rows, np.uint8)
    columns = columns_in(data, info._replace(places={field: place}), path)
    sums = parse_checksums(checksums, path, info)[field]
    if sums.first_mismatch(columns[field], np.arange(len(sums.hashes))) is not None:
        raise ShardError("the column's checksum does not match", path, None, field)
    return MemoryShard(path, columns)
