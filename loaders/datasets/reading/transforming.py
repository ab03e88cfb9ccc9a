"""The user's own function of samples, and the random numbers that belong to each of them."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loaders.datasets.reading.drawing import drawing, drawing_as_the_process, has_drawn
from loaders.rng import hash64, key64
from loaders.sampling.context import is_reading

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

Function = Callable[..., Any]
_DOMAIN = int.from_bytes(b"trans", "big")


class Transforming:
    """Applies a function to samples, or functions to their fields.

    A function with a parameter ``generator``, that has no default, is given a ``torch.Generator`` by that name. Its
    numbers follow from seed, epoch, sample and draw, so they are the same on any thread, worker and rank. Functions
    that draw from torch's, numpy's or Python's own generator, as torchvision's transforms do, are given such numbers
    there, too, on the thread that they run on; the trainer's generators are left alone (``drawing``). So are
    transforms of albumentations, which may also stand for a function of an image. In a worker process of torch
    the generators of Python, numpy and torch begin with each sample at such numbers.

    Args:
        given: A function of a sample, or ``{field: function}``.
    """

    def __init__(self, given: Function | Mapping[str, Function]) -> None:
        self._functions = given if isinstance(given, Mapping) else {"": given}
        self._is_of_sample = not isinstance(given, Mapping)
        self._drawing = {name for name, f in self._functions.items() if takes_generator(f)}
        self._of_arrays = {name for name, f in self._functions.items() if _is_of_albumentations(f)}
        self._has_drawn = False

    @property
    def draws(self) -> bool:
        """Whether one of them is given a generator, or has drawn here without one."""
        return bool(self._drawing) or self._has_drawn

    def seeds(self, seed: int, epoch: int, indices: Int64s, draws: Int64s | None) -> list[int]:
        """Return the seed of each of some samples, of a run's seed."""
        draws = np.zeros_like(indices) if draws is None else draws
        seeds: list[int] = hash64(key64(_DOMAIN, seed, epoch), indices, draws).tolist()
        return seeds

    def __call__(self, sample: Any, seed: int) -> Any:
        """Return what the functions make of a sample."""
        if get_worker_info() is not None:
            # Without an epoch, numbers are those that torch seeds for each.
            if not is_reading():
                with drawing_as_the_process():
                    return self._transformed(sample, seed)
            _seed_process(seed)  # which works on one sample at a time: for what else draws from it
        with drawing(seed):
            made = self._transformed(sample, seed)
            self._has_drawn |= has_drawn()
            return made

    def _transformed(self, sample: Any, seed: int) -> Any:
        if self._is_of_sample:
            return self._apply("", sample, seed)
        made = {
            name: self._apply(name, getattr(sample, name), key64(seed, number))
            for number, name in enumerate(self._functions)
        }
        return sample._replace(**made)

    def _apply(self, name: str, value: Any, seed: int) -> Any:
        function = self._functions[name]
        if name in self._of_arrays and isinstance(value, torch.Tensor):
            return _albumented(function, value)
        if name not in self._drawing:
            return function(value)
        return function(value, generator=torch.Generator().manual_seed(seed))


def _albumented(function: Function, image: torch.Tensor) -> torch.Tensor:
    """Apply a transform of albumentations to an image ``(C, H, W)``."""
    made = function(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
    if isinstance(made, torch.Tensor):
        return made
    made = made[:, :, None] if made.ndim == 2 else made
    return torch.from_numpy(np.ascontiguousarray(made.transpose(2, 0, 1)))


def _is_of_albumentations(function: Any) -> bool:
    return any(
        kind.__module__.partition(".")[0] == "albumentations" for kind in type(function).__mro__
    )


def _seed_process(seed: int) -> None:
    random.seed(seed & 0xFFFFFFFF)  # as on threads
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  # what third-party transforms draw from
    torch.default_generator.manual_seed(seed)  # torch's own looks for devices, which takes 0.2 ms


def takes_generator(function: Function) -> bool:
    """Tell whether a function wants to be given a generator; one with a default has what it needs."""
    try:
        parameter = inspect.signature(function).parameters.get("generator")
    except (TypeError, ValueError):  # of C, and without a signature
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty
