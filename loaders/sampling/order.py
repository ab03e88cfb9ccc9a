"""Which index stands at which position of which epoch: pure functions of (seed, epoch, position).

Nothing of an order is consumed: any rank, thread or resumed run may ask for any positions, and
gets the same indices. ``draws`` tell repeats of an index within one epoch apart (0, 1, 2, ...;
None says there are none), so that a sample drawn twice is augmented twice; they follow from
arithmetic, not from a history, so they need not ascend with position.

Arrays that orders choose by (weights, labels, lengths) are checked, frozen and identified here, too.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from loaders.checks import shown, whole_number
from loaders.rng import key64
from loaders.sampling.permutation import check_positions, permute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

# What a number of an epoch is drawn for, so that no two orders, and nothing else, share a key.
PLACES, BLOCKS, SHORT_SLOT, WINDOWS, STRATA, CHOICE, CLASSES, MEMBERS, MIXTURE, PASSES = range(10)
DEAL, PIECES, LANE_WINDOWS = range(10, 13)
_ORDER = int.from_bytes(b"order", "big")
_T = TypeVar("_T")
COUNT, FROM_ONE = range(1 << 63), range(1, 1 << 63)


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


class Computed(ABC):
    """An order that is a frozen dataclass: its arguments, numbers and arrays, describe it, and they alone are pickled.

    What it derives from them has a name that begins with an underscore, and is derived again.
    """

    _kind = ""  # in descriptions
    _count = "n"  # the argument that says how long an epoch is
    # Arguments that are whole numbers, and what they may be: kept as ints, of which arithmetic and states are made.
    _numbers: ClassVar[dict[str, range]] = {"n": COUNT}

    def __post_init__(self) -> None:
        whole_number("seed", getattr(self, "seed", 0))
        for name, limits in self._numbers.items():
            if (value := getattr(self, name)) is not None:
                number = whole_number(name, value, at_least=limits.start, below=limits.stop)
                object.__setattr__(self, name, number)

    @property
    def length(self) -> int:
        """Positions in one epoch."""
        return int(getattr(self, self._count))

    @abstractmethod
    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s | None]:
        """Return the indices at these positions of an epoch, and their draws."""

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives."""
        return dict(self._description)

    @cached_property
    def _description(self) -> dict[str, int | str]:
        options = {
            name: digest(value) if isinstance(value, np.ndarray) else int(value)
            for name, value in self._arguments()
            if name != self._count
        }
        return {"kind": self._kind, "length": self.length, **options}

    def _arguments(self) -> Iterator[tuple[str, Any]]:
        for each in fields(self):  # type: ignore[arg-type]  # of a dataclass
            if (value := getattr(self, each.name)) is not None:
                yield each.name, value

    def __repr__(self) -> str:
        options = (
            f"{value.size} {name}" if isinstance(value, np.ndarray) else f"{name}={value}"
            for name, value in self._arguments()
        )
        return f"{type(self).__name__}({', '.join(options)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name[0] != "_"}

    def _once(self, epoch: int, compute: Callable[[int], _T]) -> _T:
        """Return what is computed for an epoch; that of the last one is kept."""
        last: tuple[int, _T] | None = self.__dict__.get("_last")
        if last is None or last[0] != epoch:
            last = (epoch, compute(epoch))
            self.__dict__["_last"] = last  # one store: threads may compute twice, never see halves
        return last[1]


@dataclass(frozen=True, repr=False)
class Sequential(Computed):
    """The samples as they lie: position p holds index p, in every epoch.

    Args:
        n: Number of samples.
    """

    n: int
    _kind = "sequential"

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        check_positions(positions, self.n)
        return positions, None


@dataclass(frozen=True, repr=False)
class Shuffled(Computed):
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
    _kind = "shuffled"

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        return permute(positions, self.n, order_key(self.seed, epoch, PLACES)), None


def batch_starts(order: Order, epoch: int) -> Int64s | None:
    """Return where the batches of an epoch begin, and the last one's end; None of an order that makes none."""
    own = getattr(order, "batch_starts", None)
    starts: Int64s | None = None if own is None else own(epoch)
    return starts


def order_key(seed: int, epoch: int, purpose: int) -> int:
    """Return the key of one purpose of one epoch."""
    return key64(_ORDER, int(seed), int(epoch), purpose)


# -- the arrays that orders choose by: weights, labels, lengths -----------------------------------


def frozen_copy(values: npt.ArrayLike, name: str, like: str = "[1, 2, ...]") -> npt.NDArray[Any]:
    """Return a read-only copy, with one axis; TypeError, with what they should be ``like``, for what is no array."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not is_list and not hasattr(values, "__array__"):
        what = f"{name} must have one value for each sample or source, such as {like}"
        raise TypeError(f"{what}, got {shown(values)}")
    array = np.array(np.asarray(values))  # of a tensor, np.array alone warns
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    # Of a table: texts as objects, which have no bytes to tell them by.
    if array.dtype.kind in "OT":
        listed = array.tolist()
        array = np.array(listed)
        if array.dtype.kind not in "biufU" or len({isinstance(v, str) for v in listed}) > 1:
            raise TypeError(f"{name} must be numbers, or all texts, got {shown(values)}")
    array.flags.writeable = False
    return array


def as_floats(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.float64]:
    """Return the numbers as float64; TypeError if they are none."""
    if array.dtype.kind not in "biuf" and array.size:
        raise TypeError(f"{name} must be numbers, got {shown(array.tolist())}")
    return array.astype(np.float64, copy=False)


def digest(array: npt.NDArray[Any]) -> str:
    """Return 32 hexadecimal digits that identify dtype, shape and content."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.blake2b(header + array.tobytes(), digest_size=16).hexdigest()
