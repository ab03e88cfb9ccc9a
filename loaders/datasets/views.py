"""Torch's views of packed datasets as views of this package, which threads can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import xxhash
from torch.utils.data import ConcatDataset, Subset

from loaders.datasets.base import BatchDataset
from loaders.datasets.joining import check_meaning
from loaders.datasets.memory.resident import ResidentDataset
from loaders.datasets.packed import PackedDataset, concat
from loaders.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_PARTS = 64  # of a list, in which datasets are looked for


def unwrap(dataset: Any) -> Any:
    """Return ``Subset`` (as ``random_split`` gives) and ``ConcatDataset`` over packed datasets as views of them.

    What is neither, or is not over datasets that ``select`` and ``concat`` take, stays as
    it is; SchemaError where values of one field stand for different things.

    Example::

        train, val = torch.utils.data.random_split(ShardDataset("packed/train"), [0.9, 0.1])
        unwrap(train)  # a ShardDataset of those samples
    """
    if type(dataset) is Subset:
        whole = unwrap(dataset.dataset)
        if not serves_stored(whole):
            return dataset
        indices = np.asarray(dataset.indices)
        return whole.select(indices.astype(np.int64) if indices.dtype == bool else indices)
    if type(dataset) is ConcatDataset:
        parts = [unwrap(part) for part in dataset.datasets]
        if all(serves_stored(part) for part in parts):
            try:
                return concat(parts)
            except SchemaError:  # they differ in their settings
                first = parts[0]
                for number, part in enumerate(parts):
                    if part.names == first.names and part.transform is first.transform is None:
                        check_meaning(first, part, number)
    return dataset


def ours_in(dataset: Any, depth: int = 4) -> Iterator[BatchDataset]:
    """Yield the datasets of this package that a dataset is, or is made of, as far as its attributes show."""
    if isinstance(dataset, BatchDataset):
        yield dataset
    elif depth and hasattr(dataset, "__getitem__") and hasattr(dataset, "__dict__"):
        for value in vars(dataset).values():
            for part in value[:_MAX_PARTS] if isinstance(value, list | tuple) else (value,):
                yield from ours_in(part, depth - 1)


def fingerprint_of(dataset: Any) -> str | None:
    """Return the fingerprint of a dataset that has one, or of torch's view of such a dataset; else None."""
    if type(dataset) is Subset:
        indices = np.asarray(dataset.indices, order="C")
        which = xxhash.xxh3_128_hexdigest(indices.data)
        return _joined([fingerprint_of(dataset.dataset), which])
    if type(dataset) is ConcatDataset:
        return _joined([fingerprint_of(part) for part in dataset.datasets])
    found = getattr(dataset, "fingerprint", None)  # what others call so may be anything
    return found if isinstance(found, str) else None


def _joined(parts: list[Any]) -> str | None:
    return None if None in parts else xxhash.xxh3_128_hexdigest(" ".join(parts).encode())


def serves_stored(dataset: Any) -> TypeGuard[PackedDataset]:
    """Tell whether a dataset serves its samples as ``PackedDataset`` does, whatever its class."""
    if not isinstance(dataset, PackedDataset) or dataset.has_own_samples:
        return False
    kind = type(dataset)
    return kind.__len__ is PackedDataset.__len__ and kind.request in (
        PackedDataset.request,
        ResidentDataset.request,
    )
