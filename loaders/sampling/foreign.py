"""Indices of third-party samplers, with the epoch: so that crops and flips change from pass to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.sampling.batch import IndexBatch, IndexList, SampleIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]


def numbered(
    batches: Iterable[Any],  # indices, or batches of them: lists, arrays, tensors
    epoch: int,  # they are drawn in
    num_samples: int,  # in the dataset; 0 where draws make no difference
    seed: int,  # of the loader
    *,
    # The dataset gets the indices as the sampler yields them; the epoch stands beside them.
    keeps_items: bool = False,
    # The type of a batch does not matter: it becomes a list, which can carry the epoch.
    makes_lists: bool = False,
) -> Iterator[Any]:
    """Wrap a third-party sampler or batch sampler: add the epoch, and a draw number where an index repeats.

    What is not made of whole numbers, and what has an epoch, is passed on as it is.
    """
    repeats = _Repeats(num_samples)
    for batch in batches:
        indices = _whole_numbers(batch)
        if not keeps_items or type(batch) is int:
            yield _known(batch, indices, epoch, repeats, seed)
        elif type(batch) is list or (makes_lists and _is_several(batch, indices)):
            draws = None if indices is None else repeats.of(indices)
            if indices is None or draws is None:
                yield IndexList(list(batch), epoch, seed)
            else:
                yield IndexList.of(IndexBatch(indices, epoch, draws, None, seed))
        else:
            yield batch


def _known(batch: Any, indices: Int64s | None, epoch: int, repeats: _Repeats, seed: int) -> Any:
    """Return indices that know their epoch, in the place of a batch or of a single one."""
    if indices is None:
        return batch
    if indices.ndim:
        return IndexBatch(indices, epoch, repeats.of(indices), None, seed)
    draws = repeats.of(indices[None])
    return SampleIndex(int(indices), epoch, 0 if draws is None else int(draws[0]), seed)


def _is_several(batch: Any, indices: Int64s | None) -> bool:
    return isinstance(batch, tuple) or (indices is not None and indices.ndim > 0)


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


class _Repeats:
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
