"""Comparing records with their checksums, each block of rows when it is first read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.data.formats.checksums import hash_block
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.data.finder import Rows
    from loaders.data.shards import OpenShard

UInt8Array = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class Unknown(NamedTuple):
    """Samples whose blocks are not known to be right."""

    blocks: Indices  # the block of each, as the verifier numbers them; no block comes twice
    at: Indices  # their positions among the samples that were asked for, ascending
    shards: list[int]  # the shard of each
    local: list[int]  # the block's number there
    sizes: list[int]  # the rows of such a block
    hashes: list[int]  # what they should have


class Verifier:
    """Verifies the records of one field.

    The blocks of all shards are numbered in the order in which shards are opened, so that one look at one array finds
    what a batch has of new blocks, however many shards it is spread over.

    Args:
        field: Name of the field.
        starts: The number of the first sample of each shard.
        shard: Opens a shard, by number.
        always: Verify what was found right before, too.

    Thread-safe. In a forked child it goes on with what was known at the fork.
    """

    def __init__(
        self, field: str, starts: Indices, shard: Callable[[int], OpenShard], *, always: bool
    ) -> None:
        self._field, self._starts, self._shard, self._always = field, starts, shard, always
        self._rows_per_block = np.zeros(len(starts), np.int64)  # 0: the shard is not open yet
        self._first_block = np.zeros(len(starts), np.int64)
        self._num_blocks = 0
        self._hashes = np.zeros(64, np.uint64)  # by block, and room for those of the next shards
        self._known = np.zeros(64, bool)
        self._num_unknown, self._num_closed = 0, len(starts)
        self._lock = ForkLock()

    def unknown(self, rows: Rows) -> Unknown | None:
        """Return which of some samples are still to be verified; None if none is."""
        indices, shards = rows.indices, rows.shards
        if not (self._num_unknown or self._num_closed) or not len(indices):
            return None
        sizes = self._rows_per_block.take(shards)
        if not sizes.all():
            self._open(np.unique(shards[sizes == 0]).tolist())
            sizes = self._rows_per_block.take(shards)
        local = (indices - self._starts.take(shards)) // sizes
        blocks, at = np.unique(self._first_block.take(shards) + local, return_index=True)
        new = ~self._known.take(blocks)
        blocks, at = blocks[new], at[new]
        if not len(at):
            return None
        order = np.argsort(at)
        blocks, at = blocks[order], at[order]
        shards, local, sizes = shards.take(at), local.take(at), sizes.take(at)
        hashes = self._hashes.take(blocks).tolist()
        return Unknown(blocks, at, shards.tolist(), local.tolist(), sizes.tolist(), hashes)

    def _open(self, numbers: list[int]) -> None:
        for number in numbers:
            shard = self._shard(number)
            with self._lock.plain:
                if not self._rows_per_block[number]:
                    self._add(number, shard)

    def _add(self, number: int, shard: OpenShard) -> None:
        sums, rows = shard.checksums.get(self._field), len(shard.columns[self._field])
        # Without checksums: one block, which is known.
        hashes = np.zeros(1, np.uint64) if sums is None else sums.hashes
        size = max(1, rows) if sums is None else sums.rows_per_block
        first, end = self._num_blocks, self._num_blocks + len(hashes)
        if end > len(self._known):
            room = max(end, len(self._known))
            self._hashes = np.append(self._hashes, np.zeros(room, np.uint64))
            self._known = np.append(self._known, np.zeros(room, bool))
        self._hashes[first:end], self._known[first:end] = hashes, sums is None
        self._num_unknown += 0 if sums is None else len(hashes)
        self._num_closed -= 1
        self._first_block[number], self._num_blocks = first, end
        self._rows_per_block[number] = size  # last: who sees it takes the rest for granted

    def verify(self, found: Unknown, copies: UInt8Array | None = None) -> None:
        """Hash the blocks; those of one row in ``copies``, ``(N, nbytes)``, if they were copied: it is in the cache.

        Raises:
            ChecksumError: One of them is damaged.
        """
        for i, wanted in enumerate(found.hashes):
            if copies is not None and found.sizes[i] == 1:
                is_right = xxhash.xxh3_64_intdigest(copies[found.at[i]].data) == wanted
            else:
                column = self._shard(found.shards[i]).columns[self._field]
                is_right = hash_block(column, found.local[i], found.sizes[i]) == wanted
            if not is_right:
                raise self._shard(found.shards[i]).error(self._field, found.local[i])
        if not self._always:
            self._note(found)

    def _note(self, found: Unknown) -> None:
        with self._lock.plain:
            self._num_unknown -= int(np.count_nonzero(~self._known[found.blocks]))
            self._known[found.blocks] = True
