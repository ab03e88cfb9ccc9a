"""Every class equally often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaders.checks import whole_number
from loaders.rng import hash64
from loaders.sampling.order import (
    CLASSES,
    MEMBERS,
    PLACES,
    Computed,
    frozen_copy,
    keep_count,
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
        labels: The class of each sample, of any type that sorts.
        num_samples: Positions in one epoch.
        seed: Selects the order.
    """

    labels: npt.ArrayLike
    num_samples: int
    seed: int = 0
    _kind, _count = "balanced", "num_samples"

    def __post_init__(self) -> None:
        labels = frozen_copy(self.labels, "labels", "dataset.column('label')")
        if not labels.size:
            raise ValueError("labels must have at least one entry, got none")
        keep_count(self, "num_samples")
        whole_number("seed", self.seed)
        object.__setattr__(self, "labels", labels)

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        ranks = permute(positions, self.num_samples, order_key(self.seed, epoch, PLACES))
        classes = self._classes
        served, quotas = self._quotas(epoch)
        ends = np.cumsum(quotas)
        numbers = np.searchsorted(ends, ranks, side="right")
        turns = ranks - (ends - quotas)[numbers]
        sizes = classes.sizes[numbers]
        places = classes.begins[numbers] + (served[numbers] + turns) % sizes
        return classes.members[places], turns // sizes

    @cached_property
    def _classes(self) -> _Classes:
        _, codes, sizes = np.unique(
            np.asarray(self.labels), return_inverse=True, return_counts=True
        )
        keys = hash64(order_key(self.seed, 0, MEMBERS), np.arange(codes.size))
        turns = permute(np.arange(sizes.size), sizes.size, order_key(self.seed, 0, CLASSES))
        return _Classes(np.lexsort((keys, codes)), np.cumsum(sizes) - sizes, sizes, turns)

    def _quotas(self, epoch: int) -> tuple[Int64s, Int64s]:
        """Return where each class stands in its cycle, and how many samples it gives this epoch.

        After ``t`` samples of all epochs, class ``c`` has given ``(t + turns[c]) // num_classes``.
        As ``turns`` are 0, 1, ..., ``num_classes - 1`` in some order, these add up to ``t``.
        """
        classes = self._classes
        served, after = (
            _whole_turns(number * self.num_samples, classes.turns) for number in (epoch, epoch + 1)
        )
        return served % classes.sizes, after - served


class _Classes(NamedTuple):
    members: Int64s  # indices, class after class, shuffled within each
    begins: Int64s  # where each class begins in them
    sizes: Int64s
    turns: Int64s  # which class is next when a quota does not divide


def _whole_turns(num_given: int, turns: Int64s) -> Int64s:
    rounds, rest = divmod(num_given, turns.size)
    return rounds + (rest + turns) // turns.size
