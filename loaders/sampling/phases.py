"""Weights of a mixture that change: from which sample on each set of them holds, and what was served before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from loaders.checks import shown, whole_number
from loaders.sampling.order import as_floats, frozen_copy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

Schedule: TypeAlias = Sequence[tuple[int, Sequence[float]]]


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
    """Return weights, which may be a schedule, as phases: it begins at sample 0, and ascends, or is an error."""
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
