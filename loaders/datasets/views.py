"""Torch's views of our datasets, made into ours: so that threads can serve them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from loaders.datasets.joining import concat
from loaders.datasets.packed import PackedDataset
from loaders.errors import SchemaError


def as_ours(dataset: Any) -> Any:
    """Return ``Subset`` (and so what ``random_split`` gives) and ``ConcatDataset`` as views of ours.

    What is neither, or is not over datasets of ours that ``select`` and ``concat`` take, stays as
    it is.

    Example::

        train, val = torch.utils.data.random_split(ShardDataset("packed/train"), [0.9, 0.1])
        as_ours(train)  # a ShardDataset of those samples
    """
    if type(dataset) is Subset:
        whole = as_ours(dataset.dataset)
        return whole.select(np.asarray(dataset.indices)) if _is_plain(whole) else dataset
    if type(dataset) is ConcatDataset:
        parts = [as_ours(part) for part in dataset.datasets]
        if all(_is_plain(part) for part in parts):
            try:
                return concat(parts)
            except SchemaError:  # they differ in their settings
                return dataset
    return dataset


def _is_plain(dataset: Any) -> bool:
    """Tell whether a dataset serves its samples as ``PackedDataset`` does, whatever its class."""
    served = ("__getitem__", "__getitems__", "__len__", "job")
    return isinstance(dataset, PackedDataset) and all(
        getattr(type(dataset), name) is getattr(PackedDataset, name) for name in served
    )
