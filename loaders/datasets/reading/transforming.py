"""The user's own function of samples, and the random numbers that belong to each of them."""

from __future__ import annotations

import copy
import inspect
import random
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loaders.datasets.reading.drawing import drawing, has_drawn
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
    there, too, on the thread that they run on; the trainer's generators are left alone (``drawing``). Transforms of
    albumentations, for fields of images, have generators of their own: each thread has a copy, which begins with each
    sample at numbers of the same kind. In a worker process of torch so do those of Python, numpy and torch.

    Args:
        given: A function of a sample, or ``{field: function}``.
    """

    def __init__(self, given: Function | Mapping[str, Function]) -> None:
        self._functions = given if isinstance(given, Mapping) else {"": given}
        self._is_of_sample = not isinstance(given, Mapping)
        self._drawing = {name for name, f in self._functions.items() if takes_generator(f)}
        self._copied = {name for name, f in self._functions.items() if _is_of_albumentations(f)}
        self._copies = threading.local()
        self._has_drawn = False

    def __reduce__(self) -> Any:
        """Leave out what threads have of their own."""
        given = self._functions[""] if self._is_of_sample else self._functions
        return Transforming, (given,)

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
        # One sample at a time has the generators of this process.
        if get_worker_info() is not None:
            if is_reading():  # else its epoch is unknown, and each would draw the same
                _seed_process(seed)
            return self._transformed(sample, seed)
        with drawing(seed):
            made = self._transformed(sample, seed)
            self._has_drawn |= has_drawn() or bool(self._copied)
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
        if name in self._copied and isinstance(value, torch.Tensor):
            return self._albumented(name, value, seed)
        if name not in self._drawing:
            return function(value)
        return function(value, generator=torch.Generator().manual_seed(seed))

    def _albumented(self, name: str, image: torch.Tensor, seed: int) -> torch.Tensor:
        """Apply this thread's copy of a transform of albumentations to an image ``(C, H, W)``, seeded by the sample."""
        copies: dict[str, Any] = self._copies.__dict__.setdefault("by_name", {})
        if name not in copies:
            copies[name] = copy.deepcopy(self._functions[name])
        if get_worker_info() is not None and not is_reading():  # what torch seeds for each epoch
            seed = int(torch.randint(1 << 31, ()))
        copies[name].set_random_seed(seed & 0x7FFFFFFF)
        made = copies[name](image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
        if isinstance(made, torch.Tensor):
            return made
        made = made[:, :, None] if made.ndim == 2 else made
        return torch.from_numpy(np.ascontiguousarray(made.transpose(2, 0, 1)))


def _is_of_albumentations(function: Any) -> bool:
    names = (kind.__module__.partition(".")[0] for kind in type(function).__mro__)
    return "albumentations" in names and hasattr(function, "set_random_seed")


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
