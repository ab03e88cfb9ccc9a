"""The user's own function of samples, and the random numbers that belong to each of them."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loaders.rng import hash64, key64
from loaders.sampling.context import current_context

if TYPE_CHECKING:
    from loaders.datasets.reading.request import Request

Function = Callable[..., Any]
_DOMAIN = int.from_bytes(b"trans", "big")


class Transforming:
    """Applies a function to samples, or functions to their fields.

    A function with a parameter ``generator``, that has no default, is given a ``torch.Generator`` by that name. Its
    numbers follow from seed, epoch, sample and draw, so they are the same on any thread, worker and rank. In a worker
    process of torch the generators of Python, numpy and torch begin with each sample at numbers of the same kind.

    Args:
        given: A function of a sample, or ``{field: function}``.
    """

    def __init__(self, given: Function | Mapping[str, Function]) -> None:
        self._functions = given if isinstance(given, Mapping) else {"": given}
        self._is_of_sample = not isinstance(given, Mapping)
        self._drawing = {name for name, f in self._functions.items() if takes_generator(f)}

    @property
    def draws(self) -> bool:
        """Whether one of them is given a generator."""
        return bool(self._drawing)

    def seeds(self, request: Request, first: int, last: int) -> list[int]:
        """Return the seed of each of some samples; 0 where nothing is drawn."""
        if not (self._drawing or _seeds_process()):
            return [0] * (last - first)
        draws = np.zeros_like(request.indices) if request.draws is None else request.draws
        key = key64(_DOMAIN, request.seed, request.epoch)
        seeds: list[int] = hash64(key, request.indices[first:last], draws[first:last]).tolist()
        return seeds

    def __call__(self, sample: Any, seed: int) -> Any:
        """Return what the functions make of a sample."""
        if _seeds_process():
            _seed_process(seed)
        if self._is_of_sample:
            return self._apply("", sample, seed)
        made = {
            name: self._apply(name, getattr(sample, name), key64(seed, number))
            for number, name in enumerate(self._functions)
        }
        return sample._replace(**made)

    def _apply(self, name: str, value: Any, seed: int) -> Any:
        function = self._functions[name]
        if name not in self._drawing:
            return function(value)
        return function(value, generator=torch.Generator().manual_seed(seed))


def _seeds_process() -> bool:
    """Tell whether one sample at a time has the generators of this process, and its epoch is known."""
    return get_worker_info() is not None and current_context() is not None


def _seed_process(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  # what third-party transforms draw from
    torch.default_generator.manual_seed(seed)  # torch's own looks for devices, which takes 0.2 ms


def takes_generator(function: Function) -> bool:
    """Tell whether a function wants to be given a generator; one with a default has what it needs."""
    try:
        parameter = inspect.signature(function).parameters.get("generator")
    except (TypeError, ValueError):  # of C, and without a signature
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty
