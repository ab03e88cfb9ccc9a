"""A shuffle of blocks, then of samples within a window of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaders.checks import whole_number
from loaders.rng import key64
from loaders.sampling.order import (
    BLOCKS,
    SHORT_SLOT,
    WINDOWS,
    Computed,
    keep_count,
    order_key,
)
from loaders.sampling.permutation import check_positions, groups, permute

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class BlockShuffled(Computed):
    """Each sample once, read block by block: for disks and stores that dislike random reads.

    Every epoch shuffles the blocks exactly, then the samples of each ``window`` consecutive blocks
    among themselves. Only those ``window`` blocks are being read at any time, and each once.

    Quality, over epochs: every sample is as likely at every position, and block mates get a new
    company of blocks each time. (Where ``block_size`` does not divide ``n``, the few samples of
    the short last block deviate from this near the epoch's end.) Within an epoch: samples of
    one block are less than ``window * block_size`` positions apart, so a batch mixes at most
    ``window`` blocks, or twice that across a border of windows. In a dataset sorted by class that
    is all the variety it can have: let a window be many batches. A window of all blocks is the
    exact shuffle.

    Args:
        n: Number of samples.
        seed: Selects the shuffles.
        block_size: Samples that lie together; the last block may be shorter.
        window: Blocks that are mixed with each other. Windows below about a thousand samples cost
            more per sample.
    """

    n: int
    seed: int = 0
    block_size: int = 256
    window: int = 64
    _kind = "block_shuffled"

    def __post_init__(self) -> None:
        keep_count(self, "n")
        whole_number("seed", self.seed)
        keep_count(self, "block_size", at_least=1)
        keep_count(self, "window", at_least=1)

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        check_positions(positions, self.n)
        if not positions.size:
            return positions, None
        layout = _BlockLayout.draw(self, epoch)
        places = layout.widen(self._mix(layout, epoch, positions))
        slots, offsets = np.divmod(places, self.block_size)
        return self._blocks(layout, epoch, slots) * self.block_size + offsets, None

    def _mix(self, layout: _BlockLayout, epoch: int, positions: Int64s) -> Int64s:
        """Shuffle positions within their windows."""
        span = self.window * self.block_size
        windows = layout.widen(positions) // span
        mixed = np.empty_like(positions)
        for window, members in groups(windows):
            begin = layout.narrow(window * span)
            size = min(layout.narrow((window + 1) * span), self.n) - begin
            key = key64(order_key(self.seed, epoch, WINDOWS), window)
            mixed[members] = permute(positions[members] - begin, size, key) + begin
        return mixed

    def _blocks(self, layout: _BlockLayout, epoch: int, slots: Int64s) -> Int64s:
        """Say which block lies in each slot: the last one in the short slot, others shuffled."""
        blocks = np.full_like(slots, layout.num_blocks - 1)
        others = slots != layout.short_slot
        ranks = slots[others] - (slots[others] > layout.short_slot)
        blocks[others] = permute(ranks, layout.num_blocks - 1, order_key(self.seed, epoch, BLOCKS))
        return blocks


class _BlockLayout(NamedTuple):
    """Slots of one block each, one of them shorter; widening counts as if it were not."""

    num_blocks: int
    short_slot: int
    short_end: int  # position after the last one of the short slot
    missing: int  # by how many samples it is short

    @classmethod
    def draw(cls, order: BlockShuffled, epoch: int) -> _BlockLayout:
        num_blocks = -(-order.n // order.block_size)
        missing = num_blocks * order.block_size - order.n
        slot = order_key(order.seed, epoch, SHORT_SLOT) % num_blocks
        return cls(num_blocks, slot, (slot + 1) * order.block_size - missing, missing)

    def widen(self, positions: Int64s) -> Int64s:
        return positions + self.missing * (positions >= self.short_end)

    def narrow(self, slot_begin: int) -> int:
        """Undo ``widen`` for the first place of a slot."""
        return slot_begin - self.missing * (slot_begin >= self.short_end + self.missing)
