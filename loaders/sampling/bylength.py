"""Batches of similar lengths, so that little of them is padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loaders.cached import cached_property
from loaders.checks import whole_number
from loaders.sampling.derived import Derived, as_floats, digest, frozen_copy
from loaders.sampling.order import BLOCKS, PLACES, keep_count, order_key
from loaders.sampling.permutation import check_positions, permute

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ByLength(Derived):
    """Each sample once, in batches of similar lengths, in an order by chance.

    Every epoch shuffles all samples, sorts those of each ``window`` batches by length, and shuffles the batches.
    The samples that make no whole batch come last.

    An epoch costs O(n log n) once, and 8 bytes a sample.

    Args:
        lengths: One number from 0 per sample, such as ``dataset.lengths("ids")``.
        batch_size: Samples of a step, on all ranks together: then ranks have batches alike.
        seed: Selects the shuffles.
        window: Batches whose samples are sorted together: of more, less is padding, and of fewer, more is chance.

    Example:
        >>> order = ByLength([9, 1, 8, 2, 9, 1], batch_size=2)
        >>> sorted(sorted(pair) for pair in order.at(0, np.arange(6))[0].reshape(3, 2).tolist())
        [[0, 4], [1, 5], [2, 3]]
    """

    lengths: npt.ArrayLike
    batch_size: int
    seed: int = 0
    window: int = 64

    def __post_init__(self) -> None:
        lengths = as_floats(frozen_copy(self.lengths, "lengths", "[12, 7, ...]"), "lengths")
        if not np.isfinite(lengths).all() or lengths.min(initial=0) < 0:
            raise ValueError("lengths must be finite and not negative")
        keep_count(self, "batch_size", at_least=1)
        whole_number("seed", self.seed)
        keep_count(self, "window", at_least=1)
        object.__setattr__(self, "lengths", lengths)

    def __repr__(self) -> str:
        options = f"batch_size={self.batch_size}, seed={self.seed}, window={self.window}"
        return f"ByLength({self.length} lengths, {options})"

    @property
    def length(self) -> int:
        """Positions in one epoch."""
        return int(np.size(self.lengths))

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        """Return the indices at these positions of an epoch, and their draws."""
        check_positions(positions, self.length)
        return self._once(epoch, self._lay_out)[positions], None

    def describe(self) -> dict[str, int | str]:
        """Return what makes this order, in primitives."""
        return {
            "kind": "by_length",
            "length": self.length,
            "seed": int(self.seed),
            "batch_size": int(self.batch_size),
            "window": int(self.window),
            "lengths": self._digest,
        }

    @cached_property
    def _digest(self) -> str:
        return digest(np.asarray(self.lengths))

    def _lay_out(self, epoch: int) -> Int64s:
        """Return the indices of an epoch, position by position."""
        places = np.arange(self.length)
        indices = permute(places, self.length, order_key(self.seed, epoch, PLACES))
        windows = places // (self.window * self.batch_size)
        indices = indices[np.lexsort((np.asarray(self.lengths)[indices], windows))]
        num_full = self.length // self.batch_size
        batches = permute(np.arange(num_full), num_full, order_key(self.seed, epoch, BLOCKS))
        full, rest = np.split(indices, [num_full * self.batch_size])
        mixed: Int64s = np.concatenate(
            [full.reshape(num_full, self.batch_size)[batches].reshape(-1), rest]
        )
        return mixed
