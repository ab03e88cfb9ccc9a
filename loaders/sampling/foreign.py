"""Indices of samplers that do not know of epochs, told them: so that crops and flips change from pass to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.sampling.batch import SampleIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt


class NumberedPasses:
    """What a sampler or batch sampler yields, with the epoch: each pass has the next one.

    Who sets the epoch of the dataset, or of this, chooses it for the next pass. What is not made of whole numbers, and
    what has an epoch, is passed on as it is.

    Args:
        batches: Yields indices, or batches of them.
        dataset: Whose indices; has an ``epoch``.
    """

    def __init__(self, batches: Iterable[Any], dataset: Any) -> None:
        self._batches, self._dataset = batches, dataset
        self._next = self._told = dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self._next = self._told = epoch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # TypeError if it has none

    def __iter__(self) -> Iterator[Any]:
        if self._dataset.epoch != self._told:
            self.set_epoch(self._dataset.epoch)
        epoch, self._next = self._next, self._next + 1
        draws = np.zeros(len(self._dataset), np.int32)
        return (_numbered(batch, epoch, draws) for batch in self._batches)


def _numbered(batch: Any, epoch: int, draws: npt.NDArray[np.int32]) -> Any:
    if isinstance(batch, list):
        return [_numbered(index, epoch, draws) for index in batch]
    if hasattr(batch, "epoch") or not isinstance(batch, int | np.integer):
        return batch
    if not -len(draws) <= batch < len(draws):
        return SampleIndex(int(batch), epoch)  # the dataset says what is wrong
    draw = int(draws[batch])
    draws[batch] += 1
    return SampleIndex(int(batch), epoch, draw)
