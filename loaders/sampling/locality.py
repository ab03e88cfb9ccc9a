"""Orders that read what lies together: blocks of samples, or lanes of shards, of which each node reads its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from loaders.checks import shown, whole_number
from loaders.rng import hash64, key64
from loaders.sampling.order import (
    BLOCKS,
    COUNT,
    DEAL,
    FROM_ONE,
    LANE_WINDOWS,
    PIECES,
    SHORT_SLOT,
    WINDOWS,
    Computed,
    frozen_copy,
    order_key,
)
from loaders.sampling.permutation import Permutations, check_positions, groups, permute

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

_MAX_LANES, _SHARDS_PER_LANE = 64, 4


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

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is out of range.
    """

    n: int
    seed: int = 0
    block_size: int = 256
    window: int = 64
    _kind = "block_shuffled"
    _numbers: ClassVar = {"n": COUNT, "block_size": FROM_ONE, "window": FROM_ONE}

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


@dataclass(frozen=True, eq=False, repr=False)
class Lanes(Computed):
    """Each sample once, in an order of which a node reads its own lanes only: for remote data, and many nodes.

    The shards are put in an order that the seed draws, and their samples, end to end, are cut into ``num_lanes`` lanes
    of equal length (give or take a sample). This deal is the same in every epoch. An epoch shuffles the shards of each
    lane, then the samples of each ``window`` consecutive shards of it.

    Lanes give samples in turns: after n samples of an epoch lane c has given ``(n + c) // num_lanes``, so any batch
    size and any number of ranks goes on exactly. Within a global batch samples lie lane by lane, and ranks take
    consecutive slices of it. Where ``num_lanes`` divides the global batch, and the number of nodes divides
    ``num_lanes``, each node therefore takes whole lanes: its share of the samples, from the same shards in every epoch,
    of which it shares at most one at either end with another node. Any other numbers are right, too, and read more.

    Quality: a global batch mixes ``num_lanes * window`` shards. A rank's own batch mixes those of its lanes: samples of
    other lanes never meet there, which gradients that are averaged over ranks do not see (batch statistics that are
    not synchronized do).

    Args:
        shards: A dataset of this package, or the number of samples of each shard, in order.
        seed: Selects the deal and the shuffles.
        num_lanes: Default: the largest power of two, up to 64, that leaves each lane four shards.
        window: Shards of a lane that are mixed with each other.
        members: The samples shard by shard, where they do not lie so; of a dataset it is known.

    Raises:
        ValueError: An argument is out of range.
        TypeError: The dataset has no shards.

    Example:
        >>> order = Lanes([4, 4, 4, 4], num_lanes=2)
        >>> batches = order.at(0, np.arange(16))[0].reshape(4, 4)
        >>> [len(set(lane.ravel() // 4)) for lane in (batches[:, ::2], batches[:, 1::2])]
        [2, 2]
    """

    shards: Any
    seed: int = 0
    num_lanes: Any = None
    window: int = 2
    members: npt.ArrayLike | None = None
    _kind, _count = "lanes", "length"
    _numbers: ClassVar = {"window": FROM_ONE, "num_lanes": range(1, 1 << 16)}

    def __post_init__(self) -> None:
        sizes, members = _shards_of(self.shards, self.members)
        if sizes.size and (sizes.dtype.kind not in "iu" or sizes.min() < 0):
            raise ValueError(f"shards must be numbers of samples, got {shown(self.shards)}")
        if members is not None and len(members) != sizes.sum():
            raise ValueError(f"shards have {sizes.sum()} samples, members are {len(members)}")
        object.__setattr__(self, "shards", sizes.astype(np.int64))
        object.__setattr__(self, "members", members)
        if self.num_lanes is None:
            object.__setattr__(self, "num_lanes", default_lanes(int(np.count_nonzero(sizes))))
        super().__post_init__()
        whole_number("the number of samples", self.length, below=1 << 53)

    @cached_property
    def length(self) -> int:
        return int(self.shards.sum())

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        check_positions(positions, self.length)
        if not positions.size:
            return positions, None
        turns, which = np.divmod(positions.ravel(), self.num_lanes)
        slots = self._turn_begins[which] + turns
        ends, shifts, window_begins, permutations = self._once(epoch, self._lay_out)
        windows = np.searchsorted(window_begins, slots, "right") - 1
        begins = window_begins[windows]
        slots = permutations.at(windows, slots - begins) + begins
        places = slots + shifts[np.searchsorted(ends, slots, "right")]
        indices = places if self.members is None else np.asarray(self.members)[places]
        return indices.reshape(positions.shape), None

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives: the members stand with the shards."""
        options = super().describe()
        members = options.pop("members", None)
        return (
            options if members is None else options | {"shards": f"{options['shards']} {members}"}
        )

    @cached_property
    def _turn_begins(self) -> Int64s:
        """Where the lane begins, among all slots, whose turn it is at each position modulo ``num_lanes``."""
        ends = lane_ends(self.length, self.num_lanes)
        return np.concatenate([np.zeros(1, np.int64), ends[:-1]])[::-1].copy()

    @cached_property
    def deal(self) -> tuple[Int64s, Int64s, Int64s]:
        """The pieces of shards, lane by lane: a shard is one, or cut in several at the borders of lanes.

        The lane of each, ascending; its first sample, counted shard by shard; its samples.
        """
        num = len(self.shards)
        dealt = permute(np.arange(num), num, order_key(self.seed, 0, DEAL))
        shard_ends = np.cumsum(self.shards[dealt])
        ends_of_lanes = lane_ends(self.length, self.num_lanes)
        cuts = np.unique(np.concatenate([np.zeros(1, np.int64), shard_ends, ends_of_lanes]))
        begins, sizes = cuts[:-1], np.diff(cuts)
        places = np.searchsorted(shard_ends, begins, "right")
        shards = dealt[places]
        inside = begins - (shard_ends - self.shards[dealt])[places]
        first = (np.cumsum(self.shards) - self.shards)[shards] + inside
        return np.searchsorted(ends_of_lanes, begins, "right"), first, sizes

    def _lay_out(self, epoch: int) -> tuple[Int64s, Int64s, Int64s, Permutations]:
        """Lay out an epoch in slots, its samples lane by lane, shuffled by pieces.

        Return where pieces end, in slots; the shift from the slots of each to its samples, counted shard by shard;
        where windows begin, in slots; and the permutations of these.
        """
        lanes, firsts, sizes = self.deal
        by_chance = hash64(order_key(self.seed, epoch, PIECES), np.arange(len(lanes)))
        mixed = np.lexsort((by_chance, lanes))  # lanes ascend, and still do
        ends = np.cumsum(sizes[mixed])
        begins = ends - sizes[mixed]
        numbers = np.arange(len(lanes)) - np.searchsorted(lanes, lanes)  # in its lane
        window_begins = begins[numbers % self.window == 0]
        keys = hash64(order_key(self.seed, epoch, LANE_WINDOWS), np.arange(len(window_begins)))
        permutations = Permutations(np.diff(window_begins, append=self.length), keys)
        return ends, firsts[mixed] - begins, window_begins, permutations


def default_lanes(num_shards: int) -> int:
    """Return the largest power of two, up to 64, that leaves each lane four shards; at least 1.

    Example:
        >>> [default_lanes(num) for num in (1, 7, 8, 100, 10_000)]
        [1, 1, 2, 16, 64]
    """
    return min(_MAX_LANES, 1 << max(num_shards // _SHARDS_PER_LANE, 1).bit_length() - 1)


def lane_ends(length: int, num_lanes: int) -> Int64s:
    """Return where each lane ends when lanes lie one after the other: their lengths differ by one at most."""
    return np.cumsum((length + np.arange(num_lanes, dtype=np.int64)) // num_lanes)


def _shards_of(shards: Any, members: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    by_shard = getattr(shards, "by_shard", None)
    if by_shard is not None:
        return by_shard()  # type: ignore[no-any-return]
    if not isinstance(shards, Sequence) and not hasattr(shards, "__array__"):
        what = "shuffle='lanes' needs a packed dataset, whose shards it deals"
        raise TypeError(f"{what}, got {shown(shards)}: shuffle=True and 'block' need none")
    sizes = frozen_copy(shards, "shards", "[1000, 1000, 731]")
    return sizes, None if members is None else frozen_copy(members, "members")
