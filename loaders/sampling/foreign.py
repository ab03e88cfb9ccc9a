"""Indices of third-party samplers, with the epoch: so that crops and flips change from pass to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.sampling.batch import IndexBatch

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
    as_lists: bool = False,  # of single indices, for third-party datasets
) -> Iterator[Any]:
    """Wrap a third-party sampler or batch sampler: add the epoch, and a draw number where an index repeats.

    What is not made of whole numbers, and what has an epoch, is passed on as it is.
    """
    counts = np.zeros(num_samples, np.uint32)
    for batch in batches:
        numbers = _whole_numbers(batch)
        if numbers is None:
            yield batch
            continue
        flat = numbers.reshape(-1)
        indices = IndexBatch(flat, epoch, _draws(counts, flat), None, seed)
        if as_lists or not numbers.ndim:
            yield indices.samples() if numbers.ndim else indices.samples()[0]
        else:
            yield indices


def _whole_numbers(batch: Any) -> Int64s | None:
    """Return an index, or a list of them, as an array; None if it is neither, or has an epoch.

    A copy: a sampler may fill the same array again, while the batch before is still being made.
    """
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if hasattr(first, "epoch"):
        return None
    try:
        array = np.asarray(batch)
    except (TypeError, ValueError):  # of lists of different lengths
        return None
    return array.astype(np.int64) if array.dtype.kind in "iu" and array.ndim < 2 else None


def _draws(counts: npt.NDArray[np.uint32], indices: Int64s) -> Int64s | None:
    """Count some indices; return how often each came before, None where the dataset refuses some, or all are new."""
    n = len(counts)
    if not len(indices) or indices.min() < -n or indices.max() >= n:
        return None
    order = np.argsort(indices % n, kind="stable")
    ordered = (indices % n)[order]
    draws = np.empty(len(indices), np.int64)
    draws[order] = counts[ordered] + np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    np.add.at(counts, ordered, 1)
    return draws if draws.any() else None
