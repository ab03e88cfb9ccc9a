"""Tensors inside batches: named tuples, mappings and lists of them, at any depth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """Return the same batch with every tensor replaced by what ``fn`` makes of it.

    Named tuples (with attributes such as ``valid``), tuples, lists and mappings keep their type;
    anything else is passed on as it is.

    Example:
        >>> map_tensors({"a": torch.tensor([1]), "b": ["text"]}, lambda tensor: tensor + 1)
        {'a': tensor([2]), 'b': ['text']}
    """
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, tuple | list):
        items = [map_tensors(item, fn) for item in value]
        if not hasattr(value, "_fields"):
            return type(value)(items)
        record = type(value)(*items)
        for name, attribute in getattr(value, "__dict__", {}).items():
            setattr(record, name, map_tensors(attribute, fn))
        return record
    if not isinstance(value, Mapping):
        return value
    mapped = {name: map_tensors(item, fn) for name, item in value.items()}
    if type(value) is dict or not isinstance(value, MutableMapping):
        return mapped
    clone = copy.copy(value)  # a tokenizer's batch, say, which has more than its items
    clone.update(mapped)
    return clone


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return every tensor of a batch."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor  # a mapping may refuse other values

    map_tensors(value, note)
    return found


def holds(dtype: torch.dtype, value: float) -> bool:
    """Tell whether a tensor of a dtype can have a value; floats may round it."""
    if dtype.is_floating_point:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return isinstance(value, int) and limits.min <= value <= limits.max
