"""Comparing records with their checksums, each block of rows when it is first read; ``Seen`` keeps which were."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.data.formats.checksums import hash_block
from loaders.system.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.data.finder import Rows
    from loaders.data.shards import OpenShard

Indices = npt.NDArray[np.int64]


class Seen:
    """A bit for each item, by number, and how many are not set.

    Thread-safe. In a forked child it goes on with what was seen at the fork; at worst an item is looked at again.
    """

    def __init__(self, num: int = 0) -> None:
        self._bits = np.zeros(num, bool)
        self._num, self._num_new = num, num
        self._lock = ForkLock()

    def are_all(self) -> bool:
        """Tell whether no item is new."""
        return not self._num_new

    def new(self, numbers: Indices) -> npt.NDArray[np.bool_] | None:
        """Return which of some items are new, or None if none is."""
        if not self._num_new:
            return None
        known = self._bits.take(numbers)
        return None if known.all() else ~known

    def add(self, num: int, *, is_seen: bool = False) -> int:
        """Make room for more items; return the number of the first one."""
        with self._lock.plain:
            first, self._num = self._num, self._num + num
            if self._num > len(self._bits):
                self._bits = np.append(self._bits, np.zeros(max(self._num, 64), bool))
            self._bits[first : self._num] = is_seen
            self._num_new += 0 if is_seen else num
            return first

    def note(self, numbers: Indices) -> None:
        """Note that some items were seen, once or several times."""
        with self._lock.plain:
            fresh = len(np.unique(numbers[~self._bits.take(numbers)]))
            self._bits[numbers] = True
            self._num_new -= fresh  # last: a child forked in between then counts too many


class Block(NamedTuple):
    """Rows of a shard that have one checksum."""

    shard: int  # its number
    number: int  # of the block there
    size: int  # rows, of which the last block may have fewer


class Unknown(NamedTuple):
    """Blocks that are not known to be right, without repeats."""

    numbers: Indices  # as the verifier counts
    blocks: list[Block]


class Verifier:
    """Verifies the records of one field. Thread-safe; in a forked child it goes on with what was known at the fork.

    The blocks of all shards are numbered in the order in which shards are opened, so that one look at one array finds
    what a batch has of new blocks, however many shards it is spread over.
    """

    def __init__(
        self,
        field: str,
        starts: Indices,  # the number of the first sample of each shard
        shard: Callable[[int], OpenShard],  # opens one, by number
        *,
        always: bool,  # verify again what was right before
    ) -> None:
        self._field, self._starts, self._shard, self._always = field, starts, shard, always
        self._rows_per_block = np.zeros(len(starts), np.int64)  # 0: the shard is not open yet
        self._first_block = np.zeros(len(starts), np.int64)
        # Of a dataset that is joined to itself, each shard counts once.
        self._first_of: dict[OpenShard, int] = {}
        self._known = Seen()  # blocks
        self._num_closed = len(starts)
        self._lock = ForkLock()

    @property
    def is_done(self) -> bool:
        """Whether all blocks of all shards are known."""
        return not self._num_closed and self._known.are_all()

    def unknown(self, rows: Rows) -> Unknown | None:
        """Return the blocks of some samples that are still to be verified; None if all were."""
        indices, shards = rows.indices, rows.shards
        if not len(indices) or self.is_done:
            return None
        sizes = self._rows_per_block.take(shards)
        if not sizes.all():
            self._open(np.unique(shards[sizes == 0]).tolist())
            sizes = self._rows_per_block.take(shards)
        local = (indices - self._starts.take(shards)) // sizes
        numbers = self._first_block.take(shards) + local
        new = self._known.new(numbers)
        if new is None:
            return None
        numbers, first = np.unique(numbers[new], return_index=True)
        at = np.flatnonzero(new).take(first)
        places = [part.take(at).tolist() for part in (shards, local, sizes)]
        return Unknown(numbers, [*map(Block, *places)])

    def _open(self, numbers: list[int]) -> None:
        for number in numbers:
            shard = self._shard(number)
            with self._lock.plain:
                if not self._rows_per_block[number]:
                    self._add(number, shard)

    def _add(self, number: int, shard: OpenShard) -> None:
        sums, rows = shard.checksums.get(self._field), len(shard.columns[self._field])
        # Without checksums: one block, which is known.
        size, num = (max(1, rows), 1) if sums is None else (sums.rows_per_block, len(sums.hashes))
        if (first := self._first_of.get(shard)) is None:
            first = self._first_of[shard] = self._known.add(num, is_seen=sums is None)
        self._first_block[number] = first
        self._num_closed -= 1
        # Last: a reader that sees it takes the rest for granted.
        self._rows_per_block[number] = size

    def verify(self, unknown: Unknown) -> None:
        """Hash the blocks; ChecksumError if one of them is damaged."""
        field = self._field
        for block in unknown.blocks:
            shard = self._shard(block.shard)
            found = hash_block(shard.columns[field], block.number, block.size)
            if found != shard.checksums[field].hashes[block.number]:
                raise shard.error(field, block.number)
        if not self._always:
            self._known.note(unknown.numbers)
