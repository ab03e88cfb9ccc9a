"""Several sources in given proportions, spread evenly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from loaders.checks import did_you_mean, whole_number
from loaders.errors import StateError
from loaders.rng import key64, uniform
from loaders.sampling.order import (
    MIXTURE,
    PASSES,
    Computed,
    digest,
    frozen_copy,
    order_key,
)
from loaders.sampling.permutation import check_positions, distinct, groups, permute
from loaders.sampling.phases import History, TurnsOfPhase, as_phases, is_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from loaders.sampling.phases import Phase, Schedule

    Int64s = npt.NDArray[np.int64]

Stop: TypeAlias = int | Literal["first_exhausted", "all_exhausted"]
_STOPS = ("first_exhausted", "all_exhausted")
_FOR_EVER = 1 << 80  # more turns than any run has
_FEW = 16  # sources whose numbers are listed one by one
_FUZZ = 1e-9  # by which a quotient of weights may miss the whole number that it means


@dataclass(frozen=True, eq=False, repr=False)
class MixtureOrder(Computed):
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

    Weights may change: ``[(0, [0.7, 0.3]), (10_000, [0.5, 0.5])]`` holds the second ones from sample 10,000 on, counted
    over all ranks and epochs. Epochs keep one length: the least (``"first_exhausted"``) or greatest of all weights.

    Args:
        sizes: Number of samples of each source. Indices number them source after source.
        weights: One finite number from 0 per source, not all 0; the scale does not matter. Or pairs of a sample and
            weights that hold from there, ascending from 0.
        stop: Where an epoch ends: ``"first_exhausted"``: the source that is gone through first
            has had exactly one pass, the others no more than one; ``"all_exhausted"``: the one
            that is gone through last has, the others one or more (with blocks, each to within
            one of them); or a number of samples.
        seed: Selects the order.
        block_size: Positions of one turn. With the batch size of every rank, each batch comes
            from one source.
        history: What other weights served before these.

    Raises:
        ValueError: An argument is out of range, or the epoch is too short for a source to have a
            turn.
    """

    sizes: npt.ArrayLike
    weights: npt.ArrayLike | Schedule
    stop: Stop = "first_exhausted"
    seed: int = 0
    block_size: int = 1
    history: History | None = None
    _numbers: ClassVar = {"block_size": range(1, 1 << 40)}

    def __post_init__(self) -> None:
        sizes = frozen_copy(self.sizes, "sizes").astype(np.int64, copy=False)
        phases = as_phases(self.weights)
        for phase in phases:
            _check_weights(sizes, phase.weights)
        weights: Any = [(phase.begin, tuple(phase.weights.tolist())) for phase in phases]
        weights = tuple(weights) if is_schedule(self.weights) else phases[0].weights
        super().__post_init__()
        check_stop(self.stop)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "weights", weights)
        whole_number("the samples of an epoch", self.length, at_least=0, below=1 << 40)
        assert self._runs  # made now, which says whose turn never comes

    @property
    def unit(self) -> int:
        """Positions that are of one source: ranks divide them whole."""
        return self.block_size

    @property
    def length(self) -> int:
        return self._num_turns * self.block_size

    @property
    def quotas(self) -> tuple[int, ...]:
        """Samples of each source in one epoch, by the last weights if they change."""
        return tuple((self._runs[-1].turns * self.block_size).tolist())

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        check_positions(positions, self.length)
        flat = positions.ravel()
        indices, draws = np.empty_like(flat), np.empty_like(flat)
        pieces = self._once(epoch, self._pieces)
        ends, at_begin = [piece.begin for piece in pieces[1:]], pieces[0].given
        if self.history is not None and self.history.position and self.history.epoch == epoch:
            at_begin = (0,) * len(at_begin)  # what was given when the epoch began is not known
        for number, rows in groups(np.searchsorted(ends, flat // self.block_size, "right")):
            found = self._of_piece(epoch, pieces[number], at_begin, flat[rows])
            indices[rows], draws[rows] = found
        return indices.reshape(positions.shape), draws.reshape(positions.shape)

    def _of_piece(
        self, epoch: int, piece: TurnsOfPhase, at_begin: tuple[int, ...], flat: Int64s
    ) -> tuple[Int64s, Int64s]:
        turns = flat // self.block_size
        sources, numbers = self._schedule(epoch, piece).at(turns - piece.begin)
        if self.block_size > 1:
            numbers = numbers * self.block_size + (flat - turns * self.block_size)
        indices, draws = np.empty_like(flat), np.empty_like(flat)
        for source, rows in groups(sources):
            found = self._walk(source, numbers[rows], piece.given[source], at_begin[source])
            indices[rows], draws[rows] = found
        return indices, draws

    def given(self, epoch: int, position: int) -> tuple[int, ...]:
        """Return how many samples each source has given before a position, which begins a turn, in all epochs."""
        turn = position // self.block_size
        piece = [p for p in self._pieces(epoch) if p.begin <= turn][-1]
        counts = self._schedule(epoch, piece).counts_before(turn - piece.begin) * self.block_size
        return tuple(g + n for g, n in zip(piece.given, counts.tolist(), strict=True))

    def describe(self) -> dict[str, int | str]:
        return {
            "kind": "mixture",
            "length": int(self.length),
            "seed": int(self.seed),
            "sizes": _in_brief(np.asarray(self.sizes).tolist()),
            "quotas": _in_brief(self.quotas),
            "block_size": int(self.block_size),
            **self._changes(),
        }

    def _changes(self) -> dict[str, str]:
        """Return the weights, where they change or changed."""
        changes = {} if self.history is None else {"history": str(self.history)}
        if changes or is_schedule(self.weights):
            phases = [[phase.begin, phase.weights.tolist()] for phase in self._phases]
            changes |= {"weights": json.dumps(phases), "stop": str(self.stop)}
        return changes

    def details(self) -> dict[str, str]:
        """Return what a state has beside ``describe``: quotas that are too many to be listed there."""
        return {"turns": " ".join(map(str, self.quotas))} if len(self.quotas) > _FEW else {}

    def continued(
        self, state: Mapping[str, Any], weights: Literal["new"] | None
    ) -> tuple[MixtureOrder, tuple[int, int]]:
        """Return the order that a state is of; or, with ``weights="new"``, this one from where the state was taken.

        Beside it, epoch and position there.

        Raises:
            StateError: The state is of other sources, or another seed; or lies within a turn.
        """
        epoch, position, here = state["epoch"], state["delivered"], self.describe()
        for name in ("kind", "sizes", "seed"):
            if state.get(name) != here[name]:
                raise StateError(
                    f"the state has {name} {state.get(name)!r}, this mixture has {here[name]!r}"
                )
        if weights is None:
            return replace(self, history=_history_of(state)), (epoch, position)
        given = self._of_state(state).given(epoch, position)
        if position % self.block_size:
            what = f"the state was taken at sample {position} of its epoch"
            raise StateError(f"{what}, within one of the blocks of {self.block_size} samples here")
        if position >= self.length:
            epoch, position = epoch + 1, 0
        history = History(epoch, position, sum(given), given)
        return replace(self, history=history), (epoch, position)

    def _of_state(self, state: Mapping[str, Any]) -> MixtureOrder:
        """Return the order that a state is of; its quotas are weights, too, where these never changed."""
        weights: Any = list(map(int, str(state.get("turns", state["quotas"])).split()))
        stop: Any = state["length"]
        if "weights" in state:
            phases = json.loads(state["weights"])
            weights = phases if len(phases) > 1 else phases[0][1]
            stop = int(state["stop"]) if state["stop"].isdecimal() else state["stop"]
        block_size, history = state["block_size"], _history_of(state)
        return MixtureOrder(self.sizes, weights, stop, self.seed, block_size, history)

    @cached_property
    def _phases(self) -> tuple[Phase, ...]:
        return as_phases(self.weights)

    @cached_property
    def _num_turns(self) -> int:
        """Turns of an epoch."""
        sizes = np.asarray(self.sizes)
        nums = [
            int(_quotas(sizes, phase.weights, self.stop, self.block_size).sum())
            for phase in self._phases
        ]
        return max(nums) if self.stop == "all_exhausted" else min(nums)

    @cached_property
    def _runs(self) -> list[TurnsOfPhase]:
        """Which weights hold in which turns, and what each source has given until then."""
        return list(self._make_runs())

    def _make_runs(self) -> Iterator[TurnsOfPhase]:
        phases, num_turns, size = self._phases, self._num_turns, self.block_size
        history = self.history or History(0, 0, 0, (0,) * len(phases[0].weights))
        start, given = history.epoch * num_turns + history.position // size, history.given
        now = start
        for number, phase in enumerate(phases):
            end = start + _FOR_EVER
            if number + 1 < len(phases):
                end = start + max(0, -(-(phases[number + 1].begin - history.total) // size))
            while now < end:
                left = num_turns - now % num_turns
                is_whole = left == num_turns and end - now >= left
                repeats = (end - now) // left if is_whole else 1
                num = min(left, end - now)
                run = TurnsOfPhase(now, self._share(phase.weights, num), given, repeats)
                yield run
                if end - now >= _FOR_EVER // 2 and is_whole:
                    return
                now, given = now + num * repeats, run.given_after(repeats, size)

    def _pieces(self, epoch: int) -> list[TurnsOfPhase]:
        """Return the parts of an epoch; what lies before the history is as if these weights had begun there."""
        begin = epoch * self._num_turns
        end = begin + self._num_turns
        found = []
        for run in self._runs:
            first = max(0, (begin - run.begin) // self._num_turns) if run.repeats > 1 else 0
            at = run.begin + first * self._num_turns
            if begin <= at < end and first < run.repeats:
                given = run.given_after(first, self.block_size)
                found.append(TurnsOfPhase(at - begin, run.turns, given))
        if not found or found[0].begin:  # before the history: what padding takes again
            run = self._runs[0]
            num = found[0].begin if found else self._num_turns
            turns = self._share(run.turns.astype(np.float64), num)
            found.insert(0, TurnsOfPhase(0, turns, run.given))
        return found

    def _share(self, weights: npt.NDArray[np.float64], num_turns: int) -> Int64s:
        """Return how many of some turns each source has."""
        is_epoch = num_turns == self._num_turns
        stop = self.stop if is_epoch and len(self._phases) == 1 else num_turns * self.block_size
        turns = _quotas(np.asarray(self.sizes), weights, stop, self.block_size)
        starved = np.flatnonzero((weights > 0) & (turns == 0))
        if is_epoch and starved.size:
            share = weights[starved[0]] / weights.sum()
            raise ValueError(
                f"an epoch of {turns.sum()} turns is too short for source {starved[0]}, whose "
                f"share is {share:.3g}: raise its weight, or let stop be a larger number"
            )
        return turns

    def _schedule(self, epoch: int, piece: TurnsOfPhase) -> _Schedule:
        key = order_key(self.seed, epoch, MIXTURE)
        is_whole = int(piece.turns.sum()) == self._num_turns
        return _Schedule.of(piece.turns, key if is_whole else key64(key, piece.begin + 1))

    def _walk(
        self, source: int, numbers: Int64s, before: int, at_begin: int
    ) -> tuple[Int64s, Int64s]:
        """Return the index of each sample that a source gives, and how many passes before it since the epoch began."""
        size = int(np.asarray(self.sizes)[source])
        begin = int(np.asarray(self.sizes)[:source].sum())
        places = numbers + before
        passes = places // size
        places -= passes * size
        for number, rows in groups(passes):
            key = key64(order_key(self.seed, 0, PASSES), source, number)
            places[rows] = permute(places[rows], size, key)
        return places + begin, passes - at_begin // size


def _history_of(state: Mapping[str, Any]) -> History | None:
    return History.parse(state["history"]) if "history" in state else None


def check_stop(stop: Any) -> None:
    """Raise unless it says where an epoch can end: TypeError or ValueError."""
    if not isinstance(stop, str):
        whole_number("stop", stop, at_least=1, below=1 << 40)
    elif stop not in _STOPS:
        what = "stop must be 'first_exhausted', 'all_exhausted' or a number of samples"
        raise ValueError(f"{what}, got {stop!r}{did_you_mean(stop, _STOPS)}")


class _Schedule(NamedTuple):
    """Which source has which turn of one epoch.

    The epoch is the time from 0 to 1; turn ``j`` of a source with ``q`` turns comes at
    ``(j + u) / q``, with ``u`` random in [0, 1). So the number that came before any time is known
    without looking at them, and the windows between two times can be worked out each on its own.
    Their number has no influence on the order.
    """

    turns: Int64s  # of each source
    num_turns: int  # of all of them
    num_windows: int  # equal parts of the epoch that are computed each on its own
    key: int  # of the random numbers

    @classmethod
    def of(cls, turns: Int64s, key: int) -> _Schedule:
        num_turns = int(turns.sum())
        # Large beside the number of sources: then a turn is no further than one window from where
        # its number alone would place it.
        window = max(128, 4 * len(turns))
        return cls(turns, num_turns, max(1, -(-num_turns // window)), key)

    def at(self, turns: Int64s) -> tuple[Int64s, Int64s]:
        """Say whose each turn is, and which of that source's."""
        return self.look_up(turns, *distinct(self.windows_of(turns)))

    def counts_before(self, turn: int) -> Int64s:
        """Return how many of the turns before one each source has."""
        if not turn:
            return np.zeros_like(self.turns)
        window = self.windows_of(np.array([turn - 1]))
        had = self.counts(window)[2][0]
        last = np.arange(int(had.sum()), turn)
        sources = self.look_up(last, window, np.zeros_like(last))[0]
        counts: Int64s = had + np.bincount(sources, minlength=len(had))
        return counts

    def counts(self, windows: Int64s) -> tuple[Int64s, npt.NDArray[np.float64], Int64s]:
        """Return ``(windows, sources)``: turns due before a window, whole and rest, and had."""
        num = self.num_windows
        whole, part = np.divmod(self.turns, num)  # apart: their product would overflow
        more, rest = np.divmod(windows[:, None] * part, num)
        due = windows[:, None] * whole + more
        sources = np.broadcast_to(np.arange(len(part)), due.shape)
        return due, rest / num, due + (self._jitter(sources, due) < rest / num)

    def _jitter(self, sources: Int64s, numbers: Int64s) -> npt.NDArray[np.float64]:
        flat = uniform(self.key, sources.ravel(), numbers.ravel(), num=1)
        return flat.reshape(numbers.shape)

    def windows_of(self, turns: Int64s) -> Int64s:
        """Return the window that each turn lies in."""
        num = self.num_windows
        guess = np.minimum((turns * (num / self.num_turns)).astype(np.int64), num - 1)
        near, where = distinct(guess)
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
        turns_of = np.maximum(self.turns, 1)
        times = late * (self.num_windows / turns_of)[source]
        order = np.argsort(window + np.clip(times, 0.0, 1 - 1e-9), kind="stable")
        before = starts[:: sizes.shape[1]] - had.sum(axis=1)
        picked = order[before[where] + turns]
        return source[picked], numbers[picked]


def _in_brief(numbers: Sequence[int]) -> str:
    """Return a few numbers as they are, more of them as a digest."""
    return " ".join(map(str, numbers)) if len(numbers) <= _FEW else digest(np.array(numbers))


def _check_weights(sizes: Int64s, weights: npt.NDArray[np.float64]) -> None:
    if sizes.shape != weights.shape or not sizes.size:
        raise ValueError(f"there are {sizes.size} sources and {weights.size} weights")
    if not (np.isfinite(weights) & (weights >= 0)).all() or not 0 < weights.sum() < np.inf:
        raise ValueError(
            f"weights must be finite, not negative, and not all 0, got {weights.tolist()}"
        )
    if (empty := (sizes < 1) & (weights > 0)).any():
        raise ValueError(f"source {int(empty.argmax())} has no samples, but a weight above 0")


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
