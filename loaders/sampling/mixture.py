"""Several sources in given proportions, spread evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from loaders.cached import cached_property
from loaders.checks import did_you_mean, whole_number
from loaders.rng import key64, uniform
from loaders.sampling.derived import Derived, as_floats, digest, frozen_copy
from loaders.sampling.order import MIXTURE, PASSES, keep_count, order_key
from loaders.sampling.permutation import check_positions, permute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

Stop: TypeAlias = int | Literal["first_exhausted", "all_exhausted"]
_STOPS = ("first_exhausted", "all_exhausted")
_TURNS_AT_ONCE = 1 << 17  # that are computed together: bounds the memory of scattered positions
_FUZZ = 1e-9  # by which a quotient of weights may miss the whole number that it means


@dataclass(frozen=True, eq=False)
class MixtureOrder(Derived):
    """Samples of several sources, each source as often as its weight says.

    Sources take turns, each of ``block_size`` positions. How many turns a source has is the same
    in every epoch (``quotas``), and they are spread evenly: the ``j``-th of ``q`` turns lies at
    random in the ``j``-th of ``q`` equal parts of the epoch. So after any number ``t`` of turns a
    source with share ``s`` has had ``s * t`` of them, to within ``1 + s * num_sources``, in no
    regular pattern; independent draws would be off by ``sqrt(t)``.

    Each source is gone through pass by pass, every pass an exact shuffle of its own; every epoch
    goes on where the one before stopped. So no sample comes twice before all of its source came
    once, over all epochs. A position costs the work of a few hundred turns at worst, nothing is
    stored.

    Args:
        sizes: Number of samples of each source. Indices number them source after source.
        weights: One finite number from 0 per source, not all 0; the scale does not matter.
        stop: Where an epoch ends: ``"first_exhausted"``: the source that is gone through first
            has had exactly one pass, the others no more than one; ``"all_exhausted"``: the one
            that is gone through last has, the others one or more (with blocks, each to within
            one of them); or a number of samples.
        seed: Selects the order.
        block_size: Positions of one turn. With the batch size of every rank, each batch comes
            from one source.

    Raises:
        ValueError: An argument is out of range, or the epoch is too short for a source to have a
            turn.
    """

    sizes: npt.ArrayLike
    weights: npt.ArrayLike
    stop: Stop = "first_exhausted"
    seed: int = 0
    block_size: int = 1

    def __post_init__(self) -> None:
        sizes = frozen_copy(self.sizes, "sizes").astype(np.int64, copy=False)
        weights = as_floats(frozen_copy(self.weights, "weights", "[0.7, 0.3]"), "weights")
        if sizes.shape != weights.shape or not sizes.size:
            raise ValueError(f"there are {sizes.size} sources and {weights.size} weights")
        if not (np.isfinite(weights) & (weights >= 0)).all() or not 0 < weights.sum() < np.inf:
            raise ValueError(
                f"weights must be finite, not negative, and not all 0, got {weights.tolist()}"
            )
        if (empty := (sizes < 1) & (weights > 0)).any():
            raise ValueError(f"source {int(empty.argmax())} has no samples, but a weight above 0")
        keep_count(self, "block_size", at_least=1, below=1 << 40)
        whole_number("seed", self.seed)
        check_stop(self.stop)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "weights", weights)
        whole_number("the samples of an epoch", self.length, at_least=0, below=1 << 40)

    def __repr__(self) -> str:
        what = f"sizes={_few(self.sizes)}, weights={_few(self.weights)}, stop={self.stop!r}"
        return f"MixtureOrder({what}, seed={self.seed}, block_size={self.block_size})"

    @property
    def unit(self) -> int:
        """Positions that are of one source: ranks divide them whole."""
        return self.block_size

    @property
    def length(self) -> int:
        """Positions in one epoch."""
        return self._layout.num_turns * self.block_size

    @property
    def quotas(self) -> tuple[int, ...]:
        """Samples of each source in one epoch."""
        return tuple((self._layout.turns * self.block_size).tolist())

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the indices at these positions of an epoch, and their draws."""
        check_positions(positions, self.length)
        flat = positions.ravel()
        turns = flat // self.block_size
        sources, numbers = self._turns(epoch, turns)
        if self.block_size > 1:
            numbers = numbers * self.block_size + (flat - turns * self.block_size)
        indices, draws = np.empty_like(flat), np.empty_like(flat)
        for source, rows in _groups(sources):
            indices[rows], draws[rows] = self._walk(source, epoch, numbers[rows])
        return indices.reshape(positions.shape), draws.reshape(positions.shape)

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives."""
        return {
            "kind": "mixture",
            "length": int(self.length),
            "seed": int(self.seed),
            "sizes": _told(np.asarray(self.sizes).tolist()),
            "quotas": _told(self.quotas),
            "block_size": int(self.block_size),
        }

    @cached_property
    def _layout(self) -> _Layout:
        sizes, weights = np.asarray(self.sizes), np.asarray(self.weights)
        turns = _quotas(sizes, weights, self.stop, self.block_size)
        starved = np.flatnonzero((weights > 0) & (turns == 0))
        if starved.size:
            share = weights[starved[0]] / weights.sum()
            raise ValueError(
                f"an epoch of {turns.sum()} turns is too short for source {starved[0]}, whose "
                f"share is {share:.3g}: raise its weight, or let stop be a larger number"
            )
        num_turns = int(turns.sum())
        # Large beside the number of sources: then a turn is no further than one window from where
        # its number alone would place it.
        window = max(128, 4 * sizes.size)
        return _Layout(turns, num_turns, max(1, -(-num_turns // window)))

    def _turns(self, epoch: int, turns: Int64s) -> tuple[Int64s, Int64s]:
        """Say whose each turn of an epoch is, and which of that source's."""
        schedule = _Schedule(self._layout, order_key(self.seed, epoch, MIXTURE))
        sources, numbers = np.empty_like(turns), np.empty_like(turns)
        windows, where = _distinct(schedule.windows_of(turns))
        at_once = max(1, _TURNS_AT_ONCE * self._layout.num_windows // self._layout.num_turns)
        if len(windows) <= at_once:
            return schedule.look_up(turns, windows, where)
        by_window = np.argsort(where, kind="stable")
        for first in range(0, len(windows), at_once):
            begin, end = np.searchsorted(where[by_window], [first, first + at_once])
            some = by_window[begin:end]
            sources[some], numbers[some] = schedule.look_up(
                turns[some], windows[first : first + at_once], where[some] - first
            )
        return sources, numbers

    def _walk(self, source: int, epoch: int, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the index of each sample that a source gives in an epoch, and how many passes before it."""
        size = int(np.asarray(self.sizes)[source])
        begin = int(np.asarray(self.sizes)[:source].sum())
        before = epoch * int(self._layout.turns[source]) * self.block_size
        places = numbers + before
        passes = places // size
        places -= passes * size
        for number, rows in _groups(passes):
            key = key64(order_key(self.seed, 0, PASSES), source, number)
            places[rows] = permute(places[rows], size, key)
        return places + begin, passes - before // size


def _few(numbers: npt.ArrayLike) -> str:
    form: dict[str, Any] = {"separator": ", ", "threshold": 8, "max_line_width": 1000}
    return np.array2string(np.asarray(numbers), edgeitems=2, **form)


def _distinct(values: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct values and where each one is among them; quick where they ascend, as they mostly do."""
    steps = np.diff(values, prepend=values[:1] - 1)
    if (steps < 0).any():
        distinct, where = np.unique(values, return_inverse=True)
        return distinct, where
    new = steps > 0
    return values[new], np.cumsum(new) - 1


def _groups(values: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
    """Yield each distinct value, and where it stands."""
    if not values.size:
        return
    low, high = int(values.min()), int(values.max())
    if low == high:
        yield low, slice(None)
    elif high - low < 8:
        for value in range(low, high + 1):
            rows = np.flatnonzero(values == value)
            if rows.size:
                yield value, rows
    else:
        by_value = np.argsort(values, kind="stable")
        edges = np.flatnonzero(np.diff(values[by_value])) + 1
        for rows in np.split(by_value, edges):
            yield int(values[rows[0]]), rows


def check_stop(stop: Any) -> None:
    """Raise unless it says where an epoch can end: TypeError or ValueError."""
    if not isinstance(stop, str):
        whole_number("stop", stop, at_least=1, below=1 << 40)
    elif stop not in _STOPS:
        what = "stop must be 'first_exhausted', 'all_exhausted' or a number of samples"
        raise ValueError(f"{what}, got {stop!r}{did_you_mean(stop, _STOPS)}")


class _Layout(NamedTuple):
    turns: Int64s  # of each source in an epoch
    num_turns: int
    num_windows: int  # equal parts of an epoch that are computed each on its own


class _Schedule(NamedTuple):
    """Who has which turn of one epoch.

    The epoch is the time from 0 to 1; turn ``j`` of a source with ``q`` turns comes at
    ``(j + u) / q``, with ``u`` random in [0, 1). So the number that came before any time is known
    without looking at them, and the windows between two times can be worked out each on its own.
    Their number has no influence on the order.
    """

    layout: _Layout
    key: int

    def counts(self, windows: Int64s) -> tuple[Int64s, npt.NDArray[np.float64], Int64s]:
        """Return ``(windows, sources)``: turns due before a window, whole and rest, and had."""
        num = self.layout.num_windows
        whole, part = np.divmod(self.layout.turns, num)  # apart: their product would overflow
        more, rest = np.divmod(windows[:, None] * part, num)
        due = windows[:, None] * whole + more
        sources = np.broadcast_to(np.arange(len(part)), due.shape)
        return due, rest / num, due + (self._jitter(sources, due) < rest / num)

    def _jitter(self, sources: Int64s, numbers: Int64s) -> npt.NDArray[np.float64]:
        flat = uniform(self.key, sources.ravel(), numbers.ravel(), num=1)
        return flat.reshape(numbers.shape)

    def windows_of(self, turns: Int64s) -> Int64s:
        """Return the window that each turn lies in."""
        _, num_turns, num = self.layout
        guess = np.minimum((turns * (num / num_turns)).astype(np.int64), num - 1)
        near, where = _distinct(guess)
        first, last = (self.counts(w)[2].sum(axis=1)[where] for w in (near, near + 1))
        found: Int64s = guess - (turns < first) + (turns >= last)
        return found

    def look_up(self, turns: Int64s, windows: Int64s, where: Int64s) -> tuple[Int64s, Int64s]:
        """Return source and number of some turns, which lie in ``windows[where]``."""
        due, rest, had = self.counts(windows)
        sizes = self.counts(windows + 1)[2] - had
        starts = np.cumsum(sizes.ravel()) - sizes.ravel()
        cells = np.repeat(np.arange(sizes.size), sizes.ravel())  # a window's turns of one source
        ahead = np.arange(cells.size) - starts[cells]
        numbers = ahead + had.ravel()[cells]
        window, source = (
            np.repeat(np.broadcast_to(each, sizes.shape).ravel(), sizes.ravel())
            for each in (np.arange(len(windows))[:, None], np.arange(sizes.shape[1]))
        )
        late = (had - due - rest).ravel()[cells] + ahead + self._jitter(source, numbers)
        turns_of = np.maximum(self.layout.turns, 1)
        times = late * (self.layout.num_windows / turns_of)[source]
        order = np.argsort(window + np.clip(times, 0.0, 1 - 1e-9), kind="stable")
        before = starts[:: sizes.shape[1]] - had.sum(axis=1)
        picked = order[before[where] + turns]
        return source[picked], numbers[picked]


def _told(numbers: Sequence[int]) -> str:
    """Return a few numbers as they are, more of them as a digest."""
    return " ".join(map(str, numbers)) if len(numbers) <= 16 else digest(np.array(numbers))


def _quotas(
    sizes: Int64s, weights: npt.NDArray[np.float64], stop: Stop, block_size: int
) -> Int64s:
    """Return how many turns each source has in an epoch."""
    if isinstance(stop, str):
        return _quotas_of_passes(sizes, weights, stop, block_size)
    num_turns, rest = divmod(int(stop), block_size)
    if rest:
        raise ValueError(f"stop must be a multiple of block_size ({block_size}), got {stop}")
    exact = weights / weights.sum() * num_turns
    turns: Int64s = np.floor(exact + _FUZZ).astype(np.int64)
    missing = num_turns - int(turns.sum())
    turns[np.argsort(turns - exact, kind="stable")[:missing]] += 1  # where most is cut off
    return turns


def _quotas_of_passes(
    sizes: Int64s, weights: npt.NDArray[np.float64], stop: str, block_size: int
) -> Int64s:
    """Return how many turns each source has until one source, or all, were gone through."""
    drawn = weights > 0
    passes = np.where(drawn, sizes, 1) / np.where(drawn, weights, 1)
    if stop == "first_exhausted":
        blocks = sizes // block_size
        leader = int(np.where(drawn, passes, np.inf).argmin())
        if not blocks[leader]:
            raise ValueError(
                f"source {leader} has {sizes[leader]} samples, block_size is {block_size}"
            )
        exact = blocks[leader] * (weights / weights[leader])
        return np.minimum(_whole(np.floor(exact * (1 + _FUZZ))), blocks)
    blocks = -(-sizes // block_size)
    leader = int(np.where(drawn, passes, 0).argmax())
    exact = blocks[leader] * (weights / weights[leader])
    return np.maximum(_whole(np.ceil(exact * (1 - _FUZZ))), np.where(drawn, blocks, 0))


def _whole(numbers: npt.NDArray[np.float64]) -> Int64s:
    """Return int64; what is too large for an epoch stays so."""
    return np.minimum(numbers, 2.0**62).astype(np.int64)
