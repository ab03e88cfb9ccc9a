"""Weights of a mixture that change: from which sample on each set of them holds, and what that makes of each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from loaders.checks import shown, whole_number
from loaders.sampling.order import as_floats, frozen_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

Schedule: TypeAlias = Sequence[tuple[int, Sequence[float]]]
_FOR_EVER = 1 << 80  # more turns than any run has


class Phase(NamedTuple):
    """Weights, and the sample that they hold from, counted over all ranks and epochs."""

    begin: int
    weights: npt.NDArray[np.float64]


class History(NamedTuple):
    """What was served by other weights before."""

    epoch: int  # the epoch in which these weights begin
    position: int  # where in it
    total: int  # samples of all epochs before
    given: tuple[int, ...]  # samples that each source has given of them

    @classmethod
    def parse(cls, text: str) -> History:
        """Return what ``str`` wrote."""
        epoch, position, total, *given = map(int, text.split())
        return cls(epoch, position, total, tuple(given))

    def __str__(self) -> str:
        return " ".join(map(str, (self.epoch, self.position, self.total, *self.given)))


class TurnsOfPhase(NamedTuple):
    """Turns that are laid out by one set of weights: a part of an epoch, or whole epochs that are alike."""

    begin: int  # its first turn: in the epoch, or since the beginning of epoch 0
    turns: Int64s  # how many each source has
    given: tuple[int, ...]  # samples that each source gave before, since the beginning
    repeats: int = 1  # how many such epochs follow each other

    def given_after(self, repeats: int, block_size: int) -> tuple[int, ...]:
        """Return what each source has given after some of them."""
        turns = self.turns.tolist()
        return tuple(g + repeats * n * block_size for g, n in zip(self.given, turns, strict=True))


def is_schedule(weights: Any) -> bool:
    """Tell whether weights are pairs of a sample and weights."""
    if not isinstance(weights, Sequence) or isinstance(weights, str) or not weights:
        return False
    return isinstance(weights[0], Sequence) and not isinstance(weights[0], str)


def as_phases(weights: Any) -> tuple[Phase, ...]:
    """Return weights, which may be a schedule, as phases.

    Raises:
        TypeError: An item of a schedule is no pair of a sample and weights.
        ValueError: A schedule does not begin at sample 0, or does not ascend; or weights are out of range.
    """
    pairs = list(weights) if is_schedule(weights) else [(0, weights)]
    phases: list[Phase] = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            what = "a schedule is pairs of a sample and weights, such as (10_000, [0.5, 0.5])"
            raise TypeError(f"weights[{number}]: {what}, got {shown(pair)}")
        least = phases[-1].begin + 1 if phases else 0
        begin = whole_number(f"weights[{number}][0]", pair[0], at_least=least)
        if not phases and begin:
            raise ValueError(f"the first weights hold from sample 0 on, got {begin}")
        phases.append(
            Phase(begin, as_floats(frozen_copy(pair[1], "weights", "[0.7, 0.3]"), "weights"))
        )
    return tuple(phases)


class Timeline:
    """Which weights hold in which part of which epoch, and what each source has given until then."""

    def __init__(
        self,
        phases: Sequence[Phase],  # in turns, not in samples
        num_turns: int,  # of an epoch
        block_size: int,  # samples of a turn
        # How many turns each source has of some.
        quotas: Callable[[npt.NDArray[np.float64], int], Int64s],
        history: History | None,  # what other weights served before
    ) -> None:
        self._num_turns, self._block_size, self._quotas = num_turns, block_size, quotas
        nothing = (0,) * len(phases[0].weights)
        start, total, given = 0, 0, nothing
        if history is not None:
            start = history.epoch * num_turns + history.position // block_size
            total, given = history.total, history.given
        self.runs = list(self._make_runs(phases, start, total, given))

    def _make_runs(
        self, phases: Sequence[Phase], start: int, total: int, given: tuple[int, ...]
    ) -> Iterator[TurnsOfPhase]:
        now = start
        for number, phase in enumerate(phases):
            end = start + _FOR_EVER
            if number + 1 < len(phases):
                end = start + max(0, -(-(phases[number + 1].begin - total) // self._block_size))
            while now < end:
                left = self._num_turns - now % self._num_turns
                is_whole = left == self._num_turns and end - now >= left
                repeats = (end - now) // left if is_whole else 1
                num = min(left, end - now)
                run = TurnsOfPhase(now, self._quotas(phase.weights, num), given, repeats)
                yield run
                if end - now >= _FOR_EVER // 2 and is_whole:
                    return
                now, given = now + num * repeats, run.given_after(repeats, self._block_size)

    def pieces(self, epoch: int) -> list[TurnsOfPhase]:
        """Return the parts of an epoch; what lies before the history is as if these weights had begun there."""
        begin = epoch * self._num_turns
        end = begin + self._num_turns
        found = []
        for run in self.runs:
            first = max(0, (begin - run.begin) // self._num_turns) if run.repeats > 1 else 0
            at = run.begin + first * self._num_turns
            if begin <= at < end and first < run.repeats:
                given = run.given_after(first, self._block_size)
                found.append(TurnsOfPhase(at - begin, run.turns, given))
        if not found or found[0].begin:  # before the history: what padding takes again
            run = self.runs[0]
            num = found[0].begin if found else self._num_turns
            turns = self._quotas(run.turns.astype(np.float64), num)
            found.insert(0, TurnsOfPhase(0, turns, run.given))
        return found
