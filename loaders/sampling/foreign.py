"""Indices of samplers that do not know of epochs, told them: so that crops and flips change from pass to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.sampling.batch import IndexBatch, SampleIndex
from loaders.sampling.context import begin_in_worker, one_by_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


class Passes:
    """Counts passes: each is the next epoch, unless the epoch of the dataset, or of this, is set.

    Args:
        dataset: Has an ``epoch``, and counts how often it was told one; or has not.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.set_epoch(getattr(dataset, "epoch", 0))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self._next, self._num_told = epoch, self._times_told

    @property
    def _times_told(self) -> int:
        return getattr(self._dataset, "num_epochs_told", 0)

    def begin(self) -> int:
        """Return the epoch of a pass that begins."""
        if self._times_told != self._num_told:
            self.set_epoch(self._dataset.epoch)
        epoch, self._next = self._next, self._next + 1
        return epoch


class KeptIndices(list[Any]):
    """The list that a third-party sampler yields, for a third-party dataset that wraps one of loaders.

    Args:
        items: The indices.
        epoch: The epoch they are drawn in.
        draws: As in ``IndexBatch``.
        seed: Of the run.
    """

    def __init__(self, items: list[Any], epoch: int, draws: Int64s | None, seed: int) -> None:
        super().__init__(items)
        self.epoch, self.draws, self.seed = epoch, draws, seed

    def __iter__(self) -> Iterator[Any]:
        items = super().__iter__()
        return items if self.draws is None else one_by_one(items, self.draws)

    def __reduce__(self) -> Any:
        return _kept_indices, (self[:], self.epoch, self.draws, self.seed)


def kept(indices: IndexBatch) -> KeptIndices:
    """Return the indices of a batch as a list that knows what they are read for."""
    return KeptIndices(indices.indices.tolist(), indices.epoch, indices.draws, indices.seed)


def single(indices: IndexBatch) -> SampleIndex:
    """Return the index of a batch of one."""
    draw = 0 if indices.draws is None else int(indices.draws[0])
    return SampleIndex(indices[0], indices.epoch, draw, indices.seed)


def listed(indices: Any) -> list[Any]:
    """Return the indices of a batch as a list; those that know their draws tell them as one goes through it."""
    if getattr(indices, "draws", None) is None:
        return list(indices)
    return KeptIndices(list(indices), indices.epoch, indices.draws, indices.seed)


def _kept_indices(*values: Any) -> KeptIndices:
    batch = KeptIndices(*values)
    begin_in_worker(batch)
    return batch


class NumberedBatches:
    """What a sampler or batch sampler yields, with the epoch, and with draws where an index comes again.

    What is not made of whole numbers, and what has an epoch, is passed on as it is.

    Args:
        batches: Yields indices, or batches of them: lists, arrays, tensors.
        passes: Counts; a pass begins with its first batch, as torch makes iterators that it does not use.
        num_samples: In the dataset; 0 where draws make no difference.
        seed: Of the loader.
        keeps_items: The dataset gets the indices as the sampler yields them; the epoch stands beside them.
        makes_lists: Nobody sees in what they come: it is made a list, beside which the epoch can stand.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        passes: Passes,
        num_samples: int,
        seed: int,
        *,
        keeps_items: bool = False,
        makes_lists: bool = False,
    ) -> None:
        self._batches, self._passes, self._makes_lists = batches, passes, makes_lists
        self._num_samples, self._seed, self._keeps_items = num_samples, seed, keeps_items

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # TypeError if it has none

    def __iter__(self) -> Iterator[Any]:
        return self._numbered(iter(self._batches))

    def _numbered(self, batches: Iterator[Any]) -> Iterator[Any]:
        epoch, draws = self._passes.begin(), _Draws(self._num_samples)
        number = self._kept if self._keeps_items else self._known
        for batch in batches:
            yield number(batch, _whole_numbers(batch), epoch, draws)

    def _known(self, batch: Any, indices: Int64s | None, epoch: int, draws: _Draws) -> Any:
        """Return indices that know their epoch, in the place of a batch or of a single one."""
        if indices is None:
            return batch
        if indices.ndim:
            return IndexBatch(indices, epoch, draws.of(indices), None, self._seed)
        found = draws.of(indices[None])
        draw = 0 if found is None else int(found[0])
        return SampleIndex(int(indices), epoch, draw, self._seed)

    def _kept(self, batch: Any, indices: Int64s | None, epoch: int, draws: _Draws) -> Any:
        """Return lists of anything, and single ints, with the epoch beside them."""
        if type(batch) is int:
            return self._known(batch, indices, epoch, draws)
        is_several = isinstance(batch, tuple) or (indices is not None and indices.ndim > 0)
        if type(batch) is not list and not (self._makes_lists and is_several):
            return batch
        found = None if indices is None else draws.of(indices)
        return KeptIndices(list(batch), epoch, found, self._seed)


def _whole_numbers(batch: Any) -> Int64s | None:
    """Return an index, or a list of them, as an array; None if it is neither, or has an epoch.

    A copy: a sampler may fill the same array again, while the batch before is still being made.
    """
    is_list = isinstance(batch, list | tuple | range)
    first = batch[0] if is_list and len(batch) else batch
    if hasattr(first, "epoch") or not (
        is_list or isinstance(batch, int) or hasattr(batch, "__array__")
    ):
        return None
    try:
        array = np.asarray(batch)
    except (TypeError, ValueError):  # of nothing that makes an array
        return None
    is_index = array.dtype.kind in "iu" and array.ndim < 2
    return array.astype(np.int64) if is_index else None


class _Draws:
    """How often indices came before in a pass: a bit for each sample, and a count for those that came again."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._seen = np.zeros(0, np.uint8)
        self._counts: dict[int, int] = {}

    def of(self, indices: Int64s) -> Int64s | None:
        """Return the draw of each; None where all come for the first time, and where the dataset refuses some."""
        n = self._num_samples
        if not len(indices) or indices.min() < -n or indices.max() >= n:
            return None
        if not len(self._seen):
            self._seen = np.zeros(-(-n // 8), np.uint8)
        indices = np.where(indices < 0, indices + n, indices)
        places, bits = indices >> 3, np.left_shift(1, indices & 7).astype(np.uint8)
        if (self._seen[places] & bits).any() or len(np.unique(indices)) < len(indices):
            return np.array([self._draw(index) for index in indices.tolist()], np.int64)
        np.bitwise_or.at(self._seen, places, bits)
        return None

    def _draw(self, index: int) -> int:
        place, bit = index >> 3, 1 << (index & 7)
        if not self._seen[place] & bit:
            self._seen[place] |= bit
            return 0
        draw = self._counts[index] = self._counts.get(index, 0) + 1
        return draw
