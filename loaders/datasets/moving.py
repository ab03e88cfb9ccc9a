"""Augmentation of pixels on a device: which datasets allow that, and their halves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.datasets.base import SamplesOf
from loaders.datasets.reading.crops import spatial_axes
from loaders.datasets.reading.halves import Finisher, with_groups
from loaders.errors import SchemaError
from loaders.schema import Image, Images, Mask

if TYPE_CHECKING:
    from loaders.datasets.base import Halves
    from loaders.datasets.packed import PackedDataset


def moving_halves(dataset: PackedDataset[Any]) -> Halves:
    """Return the halves of a dataset of pixels of one size, which augmentation moves on a device."""
    check_movable(dataset)
    sizes = picture_sizes(dataset)
    plan = dataset.plan_half(partial(with_groups, dataset.augment, sizes))
    return SamplesOf(dataset, plan), Finisher(dataset.stored_fields, {})


def picture_sizes(dataset: PackedDataset[Any]) -> dict[str, tuple[int, int]]:
    """Return the size of the pictures of each field that augmentation moves."""
    fields = dataset.stored_fields.items()
    return {n: f.size for n, f in fields if isinstance(f, Image | Mask) and f.size is not None}


def check_movable(dataset: PackedDataset) -> None:
    """Raise SchemaError if a device cannot carry out a dataset's augmentation."""
    hint = "; leave augment_on='auto'"
    dataset.check_splits(hint)
    fields = dataset.stored_fields
    for name, field in fields.items():
        if isinstance(field, Image | Mask) and (field.codec != "raw" or field.size is None):
            raise SchemaError(
                f"pictures of field {name!r} are not stored as pixels of one size{hint}"
            )
        if isinstance(field, Images):
            raise SchemaError(
                f"pictures of field {name!r}, of any number, are decoded and moved on the host{hint}"
            )
    check_arrays_stay(dataset, hint)


def check_arrays_stay(dataset: PackedDataset[Any], hint: str) -> None:
    """Raise SchemaError if augmentation moves an array: a device moves images and masks alone."""
    if dataset.augment and (arrays := spatial_axes(dataset.stored_fields)):
        name = next(iter(arrays))
        raise SchemaError(f"augment moves the array {name!r}, which is done on the host{hint}")
