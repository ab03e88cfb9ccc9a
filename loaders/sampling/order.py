"""Which index stands at which position of which epoch: pure functions of (seed, epoch, position).

Nothing of an order is consumed: any rank, thread or resumed run may ask for any positions, and
gets the same indices. ``draws`` tell repeats of an index within one epoch apart (0, 1, 2, ...;
None says there are none), so that a sample drawn twice is augmented twice; they follow from
arithmetic, not from a history, so they need not ascend with position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from loaders.checks import whole_number
from loaders.rng import key64
from loaders.sampling.permutation import check_positions, permute

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

# What a number of an epoch is drawn for, so that no two orders, and nothing else, share a key.
PLACES, BLOCKS, SHORT_SLOT, WINDOWS, STRATA, CHOICE, CLASSES, MEMBERS, MIXTURE, PASSES = range(10)
DEAL, PIECES, LANE_WINDOWS = range(10, 13)
_ORDER = int.from_bytes(b"order", "big")


@runtime_checkable
class Order(Protocol):
    """An epoch's order, for every epoch."""

    @property
    def length(self) -> int:
        """Positions in one epoch."""

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s | None]:
        """Return the indices at positions (in ``[0, length)``) of an epoch, and their draws."""

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives: orders that describe alike are alike."""


@dataclass(frozen=True)
class Sequential:
    """The samples as they lie: position p holds index p, in every epoch.

    Args:
        n: Number of samples.
    """

    n: int

    def __post_init__(self) -> None:
        keep_count(self, "n")

    @property
    def length(self) -> int:
        """Positions in one epoch."""
        return self.n

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        """Return the indices at these positions of an epoch, and their draws."""
        check_positions(positions, self.n)
        return positions, None

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives."""
        return {"kind": "sequential", "length": int(self.n)}


@dataclass(frozen=True)
class Shuffled:
    """Each sample once, in a new exact shuffle every epoch, at O(1) memory for any ``n``.

    Args:
        n: Number of samples, below 2**63.
        seed: Selects the shuffles; another seed gives unrelated ones.

    Example:
        >>> import numpy as np
        >>> order = Shuffled(5, seed=0)
        >>> [order.at(epoch, np.arange(5))[0].tolist() for epoch in range(2)]
        [[2, 0, 3, 4, 1], [0, 4, 3, 2, 1]]
    """

    n: int
    seed: int = 0

    def __post_init__(self) -> None:
        keep_count(self, "n")
        whole_number("seed", self.seed)

    @property
    def length(self) -> int:
        """Positions in one epoch."""
        return self.n

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        """Return the indices at these positions of an epoch, and their draws."""
        return permute(positions, self.n, order_key(self.seed, epoch, PLACES)), None

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives."""
        return {"kind": "shuffled", "length": int(self.n), "seed": int(self.seed)}


def batch_starts(order: Order, epoch: int) -> Int64s | None:
    """Return where the batches of an epoch begin, and the last one's end; None of an order that makes none."""
    own = getattr(order, "batch_starts", None)
    starts: Int64s | None = None if own is None else own(epoch)
    return starts


def order_key(seed: int, epoch: int, purpose: int) -> int:
    """Return the key of one purpose of one epoch."""
    return key64(_ORDER, int(seed), int(epoch), purpose)


def keep_count(order: Order, name: str, *, at_least: int = 0, below: int = 1 << 63) -> None:
    """Keep a count of a frozen order as an int, of which arithmetic and states are made; refuse one out of range."""
    count = whole_number(name, getattr(order, name), at_least=at_least, below=below)
    object.__setattr__(order, name, count)
