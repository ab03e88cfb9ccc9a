"""Batches of similar lengths, so that little of them is padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from loaders.rng import hash64
from loaders.sampling.order import (
    BLOCKS,
    FROM_ONE,
    PLACES,
    Computed,
    as_floats,
    frozen_copy,
    order_key,
)
from loaders.sampling.permutation import check_positions, permute, spans

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

_ALIKE = 0.1  # by which lengths of samples that are mixed may differ


@dataclass(frozen=True, eq=False, repr=False)
class ByLength(Computed):
    """Each sample once, in batches of similar lengths, in random order.

    Every epoch shuffles all samples, sorts those of each ``window`` batches by length, and shuffles the batches.
    The samples that make no whole batch come last.

    With ``max_tokens``, a batch is as many samples as are no more than so many tokens when all are padded to the
    longest. Samples of similar lengths (within a tenth, or a batch) are shuffled among each other every epoch and cut
    into batches, and all batches are shuffled. Their number is the same in every epoch, and ranks take them in turns:
    as many each, with ``pad`` (the epoch's first batches fill what is missing) or ``drop_last``. The loader's
    ``batch_size`` is left out.

    An epoch costs O(n log n) once, and 8 bytes a sample.

    Args:
        lengths: One number from 0 per sample, such as ``dataset.lengths("ids")``.
        batch_size: Samples of a step, on all ranks together: then ranks have batches alike.
        seed: Selects the shuffles.
        window: Batches whose samples are sorted together: of more, less is padding, and of fewer, more is chance.
            With ``max_tokens``, batches whose samples are mixed, at most.
        max_tokens: In place of ``batch_size``: the number of samples of a batch times the length of its longest.
        max_batch: Samples of such a batch, at most.

    Raises:
        ValueError: An argument is out of range, or a sample is longer than ``max_tokens``.

    Example:
        >>> order = ByLength([9, 1, 8, 2, 9, 1], batch_size=2)
        >>> sorted(sorted(pair) for pair in order.at(0, np.arange(6))[0].reshape(3, 2).tolist())
        [[0, 4], [1, 5], [2, 3]]
    """

    lengths: npt.ArrayLike
    batch_size: int | None = None
    seed: int = 0
    window: int = 64
    max_tokens: int | None = None
    max_batch: int | None = None
    _count = "length"
    _numbers: ClassVar = dict.fromkeys(
        ("batch_size", "window", "max_tokens", "max_batch"), FROM_ONE
    )

    def __post_init__(self) -> None:
        lengths = as_floats(frozen_copy(self.lengths, "lengths", "[12, 7, ...]"), "lengths")
        if not np.isfinite(lengths).all() or lengths.min(initial=0) < 0:
            raise ValueError("lengths must be finite and not negative")
        if (self.batch_size is None) == (self.max_tokens is None):
            raise ValueError(
                f"pass either batch_size or max_tokens, got {self.batch_size} and {self.max_tokens}"
            )
        if self.max_batch is not None and self.max_tokens is None:
            raise ValueError("max_batch needs max_tokens: with batch_size it has no effect")
        super().__post_init__()
        if self.max_tokens is not None and lengths.max(initial=0) > self.max_tokens:
            what = f"sample {int(lengths.argmax())} has length {lengths.max():g}"
            raise ValueError(
                f"{what}, above max_tokens={self.max_tokens}: raise that, or leave out such samples"
            )
        object.__setattr__(self, "lengths", lengths)

    @property
    def _kind(self) -> str:  # type: ignore[override]
        return "by_length" if self.max_tokens is None else "by_tokens"

    @property
    def length(self) -> int:
        return int(np.size(self.lengths))

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, None]:
        check_positions(positions, self.length)
        return self._once(epoch, self._lay_out)[0][positions], None

    def batch_starts(self, epoch: int) -> Int64s | None:
        """Return where each batch of an epoch begins, and its end; None: batches are all of one size."""
        return None if self.max_tokens is None else self._once(epoch, self._lay_out)[1]

    def _lay_out(self, epoch: int) -> tuple[Int64s, Int64s | None]:
        """Return the indices of an epoch, position by position, and where its batches begin."""
        if self.batch_size is None:
            return self._lay_out_buckets(epoch)
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
        return mixed, None

    def _lay_out_buckets(self, epoch: int) -> tuple[Int64s, Int64s]:
        members, buckets, sizes = self._buckets
        by_chance = hash64(order_key(self.seed, epoch, PLACES), np.arange(self.length))
        members = members[np.lexsort((by_chance[members], buckets))]
        num = len(sizes)
        batches = permute(np.arange(num), num, order_key(self.seed, epoch, BLOCKS))
        begins = (np.cumsum(sizes) - sizes)[batches]
        sizes = sizes[batches]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return members[spans(begins, sizes)], starts

    @cached_property
    def _buckets(self) -> tuple[Int64s, Int64s, Int64s]:
        """Cut the samples, longest first, into buckets of whole batches: none but the last has a batch with a rest.

        Return the indices, bucket after bucket; the bucket of each; and the sizes of the batches.
        """
        lengths = np.asarray(self.lengths)
        members = np.argsort(-lengths, kind="stable")
        falling, ends, sizes = -lengths[members], [0], []
        while (begin := ends[-1]) < self.length:
            longest = float(-falling[begin])
            most = int(self.max_tokens // max(longest, 1.0))  # type: ignore[operator]  # has max_tokens
            size = min(most, self.max_batch or most)
            alike = int(np.searchsorted(falling, -longest * (1 - _ALIKE), "right")) - begin
            num = min(max(1, -(-alike // size)), self.window)
            ends.append(min(begin + num * size, self.length))
            sizes += [size] * num
        sizes[-1:] = [size - (sum(sizes) - self.length) for size in sizes[-1:]]
        numbers = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        return members, numbers, np.array(sizes, np.int64)
