"""How one epoch is cut into steps and ranks: arithmetic on positions, nothing else.

With G = ``batch_size * world_size``, global batch k is the positions ``[k * G, (k + 1) * G)`` of
the epoch's order, and ranks take consecutive slices of it. A resumed epoch is its rest, cut anew
from ``start``. What G does not divide is the tail::

    drop_last=True  left out: every rank has the same number of full steps
    pad=True        one more step, of equal slices; the epoch's first positions fill what is
                    missing, over and over if need be
    pad="mark"      the same, and ``valid`` is False where a row is such padding
    pad=False       one more step of slices as equal as can be, each position on exactly one
                    rank; a rank may have a row less than another, or none and so a step less

Of an order of L lanes, position p is of lane ``L - 1 - p % L``, and a global batch, tail and padding included, lies
lane by lane before it is cut into slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import numpy as np

from loaders.checks import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

# How ranks come to equal lengths: True wraps around, False leaves them uneven, ``"mark"`` wraps and tells real rows.
Pad: TypeAlias = bool | Literal["mark"]
# Positions that an order evaluates at once: enough to hide a call's cost, 0.5 MiB of indices.
CHUNK = 1 << 16
_SPAN = 1 << 20  # positions of all ranks that these are spread over
_FIRST_CHUNK = 1 << 10  # takes an order hardly longer than one position does


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one rank in one epoch, or in the rest of one.

    Args:
        length: Positions in the epoch's order.
        batch_size: Samples per rank and step.
        rank: This process among ``world_size``.
        world_size: Number of processes that share the epoch.
        drop_last: Leave out the tail; ``pad`` then has no effect.
        pad: What to do about ranks that have less of the tail (table above).
        start: Positions already delivered, on all ranks together; steps count from there.
        unit: Positions that belong together: the tail is divided by whole units, if batches are.
        num_lanes: Of an order of lanes.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> plan = Plan(10, batch_size=3, rank=1, world_size=2, pad="mark")
        >>> [plan.positions(step) for step in range(plan.num_steps)]
        [(array([3, 4, 5]), array([ True,  True,  True])), (array([8, 9]), array([ True,  True]))]
    """

    length: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: Pad = True
    start: int = 0
    unit: int = 1
    num_lanes: int = 1

    def __post_init__(self) -> None:
        whole_number("length", self.length, at_least=0)
        whole_number("batch_size", self.batch_size, at_least=1)
        whole_number("world_size", self.world_size, at_least=1)
        whole_number("rank", self.rank, at_least=0, below=self.world_size)
        whole_number("start", self.start, at_least=0, below=self.length + 1)
        if self.pad not in (True, False, "mark"):
            raise ValueError(f'pad must be True, False or "mark", got {self.pad!r}')
        # Full steps cut units: those of the tail would be too large.
        if self.batch_size % self.unit:
            object.__setattr__(self, "unit", 1)

    @property
    def global_batch_size(self) -> int:
        """Samples per step, on all ranks together."""
        return self.batch_size * self.world_size

    @property
    def num_steps(self) -> int:
        """Steps of this rank in a full epoch, wherever this plan starts."""
        return replace(self, start=0).num_remaining_steps

    @property
    def num_remaining_steps(self) -> int:
        """Steps of this rank from ``start`` on."""
        return self.num_full_steps + (self._tail[1] > 0)

    @property
    def num_steps_of_all(self) -> int:
        """Remaining steps of the rank that has most of them, which is the first."""
        return replace(self, rank=0).num_remaining_steps

    @property
    def num_full_steps(self) -> int:
        """Remaining steps that have ``batch_size`` rows on every rank, none of them padding."""
        return (self.length - self.start) // self.global_batch_size

    @property
    def num_samples(self) -> int:
        """Rows of this rank in a full epoch, padding included."""
        whole = replace(self, start=0)
        return whole.num_full_steps * self.batch_size + whole._tail[1]

    @property
    def num_before_padding(self) -> int:
        """Real rows of the last step, over all ranks, if padding follows them; 0 if the epoch ends without padding."""
        is_padded = self.pad and not self.drop_last and self.num_lanes == 1
        return self.length - self._tail_begin if is_padded else 0

    def of_node(self, ranks_per_node: int) -> Self:
        """Return what the ranks of this rank's node read together, as the plan of one; they divide all ranks."""
        num_nodes, rest = divmod(self.world_size, ranks_per_node)
        if rest:
            what = f"ranks_per_node must divide {self.world_size} ranks"
            raise ValueError(f"{what}, got {ranks_per_node}")
        size, rank = self.batch_size * ranks_per_node, self.rank // ranks_per_node
        return replace(self, batch_size=size, rank=rank, world_size=num_nodes)

    def delivered(self, num_steps: int) -> int:
        """Return how many positions are done after these steps: the next plan's ``start``."""
        return int(min(self.start + num_steps * self.global_batch_size, self.length))

    def positions(self, step: int) -> tuple[Int64s, Bools | None]:
        """Return the positions of one step, and which are real (None unless ``pad="mark"``).

        Raises:
            IndexError: ``step`` is not one of the remaining steps.
        """
        if not 0 <= step < self.num_remaining_steps:
            raise IndexError(f"step must be in [0, {self.num_remaining_steps}), got {step}")
        if step < self.num_full_steps:
            return self.full_steps(step, 1)[0], self._all_valid(self.batch_size)
        begin, size = self._tail
        reach = np.arange(begin, begin + size)
        if self.num_lanes > 1:
            reach = self._tail_by_lanes()[begin - self._tail_begin :][:size]
        return reach % self.length, self._valid(reach < self.length)

    def full_steps(self, first: int, num: int) -> Int64s:
        """Return ``(num, batch_size)`` positions: full steps ``first``, ``first + 1``, ..."""
        steps = np.arange(first, first + num, dtype=np.int64) * self.global_batch_size
        steps += self.start
        slots = np.arange(self.batch_size, dtype=np.int64) + self.rank * self.batch_size
        if self.num_lanes == 1:
            return steps[:, None] + slots
        phases, which = np.unique(steps % self.num_lanes, return_inverse=True)
        return steps[:, None] + self._lane_offsets(phases, slots)[which]

    def chunks(self, multiple: int = 1) -> Iterator[tuple[Int64s, Bools | None]]:
        """Yield the positions of all remaining steps, and which are real, as ``(steps, rows)`` arrays.

        Few rows at first, then twice as many each time, up to ``CHUNK`` rows (of fewer than ``_SPAN`` on all ranks);
        at least one step. If as many as ``multiple`` fit, a number of steps that it divides.
        """
        first, num_full = 0, self.num_full_steps
        most = max(1, min(CHUNK // self.batch_size, _SPAN // self.global_batch_size))
        num = max(min(multiple, most), _FIRST_CHUNK // self.batch_size)
        while first < num_full:
            num = min(num - num % multiple or num, num_full - first)
            yield self.full_steps(first, num), self._all_valid((num, self.batch_size))
            first += num
            num = min(2 * num, most)
        for step in range(num_full, self.num_remaining_steps):
            positions, valid = self.positions(step)
            yield positions[None], None if valid is None else valid[None]

    def _lane_offsets(self, phases: Int64s, slots: Int64s) -> Int64s:
        """Return the offsets ``(K, slots)`` of ascending slots of K global batches by lane, given where these begin."""
        lanes, size = np.arange(self.num_lanes, dtype=np.int64), self.global_batch_size
        firsts = (-1 - lanes - phases[:, None]) % self.num_lanes  # of each lane in the batch
        counts = np.maximum(size - firsts + self.num_lanes - 1, 0) // self.num_lanes
        ends = np.cumsum(counts, axis=1)
        rows = np.arange(len(phases), dtype=np.int64)[:, None] * size
        found = np.searchsorted((ends + rows).ravel(), (slots + rows).ravel(), "right")
        inside = (slots + rows).ravel() - (ends - counts + rows).ravel()[found]
        behind: Int64s = firsts.ravel()[found] + inside * self.num_lanes
        return behind.reshape(len(phases), -1)

    def _tail_by_lanes(self) -> Int64s:
        """Return the positions of the tail on all ranks, lane by lane; padding lies beyond ``length``."""
        last = replace(self, rank=self.world_size - 1)._tail
        reach = np.arange(self._tail_begin, max(self.length, sum(last)))
        lanes = self.num_lanes - 1 - reach % self.length % self.num_lanes
        return reach[np.argsort(lanes, kind="stable")]

    @property
    def _tail_begin(self) -> int:
        return self.length - (self.length - self.start) % self.global_batch_size

    def _valid(self, real: Bools) -> Bools | None:
        return real if self.pad == "mark" else None

    def _all_valid(self, shape: int | tuple[int, int]) -> Bools | None:
        return np.ones(shape, np.bool_) if self.pad == "mark" else None

    @property
    def _tail(self) -> tuple[int, int]:
        """Begin and size of this rank's slice of the tail; padding lies beyond ``length``."""
        begin = self._tail_begin
        tail = self.length - begin
        if self.drop_last:
            return begin, 0
        num_units = -(-tail // self.unit)
        if self.pad:
            size = -(-num_units // self.world_size) * self.unit
            return begin + self.rank * size, size
        share, rest = divmod(num_units, self.world_size)
        first = begin + (self.rank * share + min(self.rank, rest)) * self.unit
        end = first + (share + (self.rank < rest)) * self.unit
        return first, max(0, min(end, self.length) - first)


@dataclass(frozen=True, slots=True)
class BatchPlan(Plan):
    """The steps of one rank where the order makes the batches: in turns, whole ones, of any sizes.

    Of the last turn, ``drop_last`` leaves out what not every rank has; ``pad`` takes the epoch's first batches again,
    which ``"mark"`` marks whole; with ``pad=False`` some ranks have a step less.
    """

    starts: Int64s | tuple[int, ...] = (0,)  # where each batch begins, and the end of the last one

    def __post_init__(self) -> None:
        super(BatchPlan, self).__post_init__()
        if self.batch_size != 1:
            what = "the order makes batches of its own"
            raise ValueError(f"{what}: leave out batch_size, got {self.batch_size}")

    @property
    def num_full_steps(self) -> int:
        """0: each step is of its own size."""
        return 0

    @property
    def num_remaining_steps(self) -> int:
        num = len(self.starts) - 1 - self._first
        num_turns, rest = divmod(num, self.world_size)
        if self.drop_last or not rest:
            return num_turns
        return num_turns + (bool(self.pad) or self.rank < rest)

    @property
    def num_samples(self) -> int:
        whole = replace(self, start=0)
        return sum(len(whole.positions(step)[0]) for step in range(whole.num_remaining_steps))

    def delivered(self, num_steps: int) -> int:
        if not num_steps:
            return int(self.start)
        return int(
            self.starts[min(self._first + num_steps * self.world_size, len(self.starts) - 1)]
        )

    def positions(self, step: int) -> tuple[Int64s, Bools | None]:
        if not 0 <= step < self.num_remaining_steps:
            raise IndexError(f"step must be in [0, {self.num_remaining_steps}), got {step}")
        number = self._first + step * self.world_size + self.rank
        num = len(self.starts) - 1
        begin, end = self.starts[number % num], self.starts[number % num + 1]
        is_cut = number < num and begin < self.start  # the state was taken within a batch
        places = np.arange(max(begin, self.start) if is_cut else begin, end, dtype=np.int64)
        return places, self._valid(np.full(len(places), number < num))

    @property
    def _first(self) -> int:
        """The batch that ``start`` lies in."""
        return int(np.searchsorted(self.starts, self.start, "right")) - 1
