"""Orders that choose samples: in proportion to weights, or every class equally often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from loaders.rng import hash64, uniform
from loaders.sampling.order import (
    CHOICE,
    CLASSES,
    COUNT,
    MEMBERS,
    PLACES,
    STRATA,
    Computed,
    as_floats,
    frozen_copy,
    order_key,
)
from loaders.sampling.permutation import permute

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Balanced(Computed):
    """Every class equally often, and every sample of a class equally often.

    Both are exact, to within one sample, for each epoch and for all epochs so far together: a
    class is gone through in a shuffled cycle, and every epoch goes on where the one before
    stopped. The classes are mixed by an exact shuffle of the epoch. So no sample comes again before its
    class was gone through; with replacement, that is ``Weighted(1 / np.bincount(labels)[labels], num_samples)``.

    Args:
        labels: The class of each sample, ``(N,)``, of any type that sorts.
        num_samples: Positions in one epoch.
        seed: Selects the order.

    Raises:
        TypeError: ``labels`` are neither numbers nor strings, or another argument is not an integer.
        ValueError: ``labels`` is empty or not one-dimensional, or another argument is out of range.
    """

    labels: npt.ArrayLike
    num_samples: int
    seed: int = 0
    _kind, _count = "balanced", "num_samples"
    _numbers: ClassVar = {"num_samples": COUNT}

    def __post_init__(self) -> None:
        labels = frozen_copy(self.labels, "labels", "dataset.column('label')")
        if not labels.size:
            raise ValueError("labels must have at least one entry, got none")
        object.__setattr__(self, "labels", labels)
        super().__post_init__()

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        ranks = permute(positions, self.num_samples, order_key(self.seed, epoch, PLACES))
        members, begins, sizes, _ = self._classes
        served, quotas = self._quotas(epoch)
        ends = np.cumsum(quotas)
        numbers = np.searchsorted(ends, ranks, side="right")
        turns = ranks - (ends - quotas)[numbers]
        size = sizes[numbers]
        places = begins[numbers] + (served[numbers] + turns) % size
        return members[places], turns // size

    @cached_property
    def _classes(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """The indices, class after class and shuffled within each; where each class begins in them, its size, its turn.

        Turns say which class is next when a quota does not divide.
        """
        _, codes, sizes = np.unique(
            np.asarray(self.labels), return_inverse=True, return_counts=True
        )
        keys = hash64(order_key(self.seed, 0, MEMBERS), np.arange(codes.size))
        turns = permute(np.arange(sizes.size), sizes.size, order_key(self.seed, 0, CLASSES))
        return np.lexsort((keys, codes)), np.cumsum(sizes) - sizes, sizes, turns

    def _quotas(self, epoch: int) -> tuple[Int64s, Int64s]:
        """Return where each class stands in its cycle, and how many samples it gives this epoch.

        After ``t`` samples of all epochs, class ``c`` has given ``(t + turns[c]) // num_classes``.
        As ``turns`` are 0, 1, ..., ``num_classes - 1`` in some order, these add up to ``t``.
        """
        _, _, sizes, turns = self._classes
        served, after = (
            _whole_turns(number * self.num_samples, turns) for number in (epoch, epoch + 1)
        )
        return served % sizes, after - served


def _whole_turns(num_given: int, turns: Int64s) -> Int64s:
    rounds, rest = divmod(num_given, turns.size)
    return rounds + (rest + turns) // turns.size


@dataclass(frozen=True, eq=False, repr=False)
class Weighted(Computed):
    """Samples in proportion to their weights.

    With replacement an index comes ``num_samples * weight / sum(weights)`` times on average, as in
    independent draws, but never 2 or more times off: the cumulative weights are cut into
    ``num_samples`` equal strata and each gets one random point. (Equal weights and as many draws
    as samples give each sample once; neighbours in the dataset compete for their strata.)

    Without replacement the choice is distributed as by drawing one after the other
    (``torch.multinomial``), but then shuffled, so that heavy samples do not come first.

    An epoch costs O(n) once, a position O(log n).

    For a curriculum, make a loader for each epoch, with its weights, and ``set_epoch``. A state that was taken in
    the middle of an epoch needs that epoch's weights; one taken at its end goes on with those of the next.

    Args:
        weights: One finite number from 0 per sample, not all 0; the scale does not matter. A
            sample of weight 0 never comes.
        num_samples: Positions in one epoch.
        seed: Selects the draws.
        replacement: Whether a sample may come more than once per epoch.

    Raises:
        TypeError: ``weights`` are not numbers, or ``num_samples`` is not an integer.
        ValueError: A weight is negative or not finite, all are 0, or too few are above 0 for ``replacement=False``.

    Source:
        Without replacement: Efraimidis, Spirakis, "Weighted random sampling with a reservoir",
        2006.
    """

    weights: npt.ArrayLike
    num_samples: int
    seed: int = 0
    replacement: bool = True
    _kind, _count = "weighted", "num_samples"
    _numbers: ClassVar = {"num_samples": range(1 << 53)}  # counted in float64

    def __post_init__(self) -> None:
        weights = as_floats(frozen_copy(self.weights, "weights", "[0.5, 2.0, ...]"), "weights")
        _check_weights(weights)
        super().__post_init__()
        if not self.replacement and self.num_samples > (num := np.count_nonzero(weights)):
            raise ValueError(
                f"num_samples must be at most {num} without replacement (the weights above 0), "
                f"got {self.num_samples}"
            )
        object.__setattr__(self, "weights", weights)

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s | None]:
        ranks = permute(positions, self.num_samples, order_key(self.seed, epoch, PLACES))
        if not self.replacement:
            return self._once(epoch, self._choose)[ranks], None
        first = self._once(epoch, self._first_ranks)
        indices = _last_at_most(first, ranks)
        return indices, ranks - first[indices]

    def _first_ranks(self, epoch: int) -> Int64s:
        """Return for each index how many points lie before its share: there its ranks begin."""
        total = np.cumsum(self.weights)
        ends = total / total[-1] * self.num_samples  # the last one is exactly num_samples
        begins = np.concatenate([[0.0], ends[:-1]])
        strata = np.floor(begins).astype(np.int64)
        points = uniform(order_key(self.seed, epoch, STRATA), strata, num=1)[:, 0]
        first: Int64s = strata + (points < begins - strata)
        return first

    def _choose(self, epoch: int) -> Int64s:
        """Return indices by weighted sampling without replacement (Efraimidis-Spirakis keys)."""
        candidates = np.flatnonzero(np.asarray(self.weights))
        points = uniform(order_key(self.seed, epoch, CHOICE), candidates, num=1)[:, 0]
        rings = -np.log1p(-points) / np.asarray(self.weights)[candidates]
        first = np.argpartition(rings, self.num_samples - 1)[: self.num_samples]
        chosen: Int64s = candidates[np.sort(first)]  # sorted: argpartition's order may change
        return chosen


def _last_at_most(ascending: Int64s, values: Int64s) -> Int64s:
    """Return for each value the last place that holds no more than it."""
    # In order, a search starts near where the last one ended: 8 times faster for 10**6 places.
    order = np.argsort(values)
    places = np.empty_like(values)
    places[order] = np.searchsorted(ascending, values[order], side="right") - 1
    return places


def _check_weights(weights: npt.NDArray[np.float64]) -> None:
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise ValueError(
            f"weights must be finite and not negative, got {weights[bad[0]]} for sample {bad[0]}"
        )
    with np.errstate(over="ignore"):  # refused below
        total = float(weights.sum())
    if not 0 < total < np.inf:
        raise ValueError(f"weights must have a finite sum above 0, got {total}")
