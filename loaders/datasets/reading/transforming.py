"""The user's own function of samples, and the random numbers that belong to each of them."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from loaders.rng import hash64, key64
from loaders.sampling.batch import current_batch
from loaders.workers import is_worker

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

Function = Callable[..., Any]
_DOMAIN = int.from_bytes(b"trans", "big")
_log = logging.getLogger(__name__)


class Transforming:
    """Applies a function to samples, or functions to their fields.

    A function with a parameter ``generator`` that has no default is passed a ``torch.Generator``, or a
    ``np.random.Generator`` if it is annotated so. Its numbers follow from seed, epoch, sample and draw, so they are the
    same on any thread, worker and rank. A transform of albumentations in place of a function of an image draws such
    numbers, too. Other functions draw from the generators of their process. Where one thread works on samples (a
    worker process of torch, or the trainer's own thread), these are seeded for each sample; on threads they cannot
    be, and a line in the log says so.
    """

    def __init__(self, given: Function | Mapping[str, Function]) -> None:
        self._given = given
        self._functions = given if isinstance(given, Mapping) else {"": given}
        self._makers = {name: _maker_of(function) for name, function in self._functions.items()}
        self._albumented = {
            name: _Albumented(function)
            for name, function in self._functions.items()
            if any(kind.__module__.startswith("albumentations") for kind in type(function).__mro__)
        }
        unseeded = self._functions.keys() - self._albumented.keys()
        self._may_draw = any(self._makers[name] is None for name in unseeded)
        self._is_watched = self._has_drawn = False

    def __reduce__(self) -> Any:
        return Transforming, (self._given,)

    @property
    def draws(self) -> bool:
        """Whether one of them is passed random numbers, or has drawn here from generators seeded by sample."""
        is_albumented = bool(self._albumented) and not _is_without_epoch()
        return any(self._makers.values()) or is_albumented or self._has_drawn

    def seeds(self, seed: int, epoch: int, indices: Int64s, draws: Int64s | None) -> list[int]:
        """Return the seed of each of some samples, of a run's seed."""
        draws = np.zeros_like(indices) if draws is None else draws
        seeds: list[int] = hash64(key64(_DOMAIN, seed, epoch), indices, draws).tolist()
        return seeds

    @contextmanager
    def process_kept(self) -> Iterator[None]:
        """Put the generators of the process back at the end, where samples seed them."""
        if not self._may_draw or not _is_seeded():
            yield
            return
        before = _states()
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            torch.set_rng_state(torch.from_numpy(before[2]))

    def __call__(self, sample: Any, seed: int) -> Any:
        """Return what the functions make of a sample; within ``process_kept``."""
        if self._may_draw and _is_seeded():
            random.seed(seed & 0xFFFFFFFF)
            np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  # what third-party transforms draw from; it takes 32 bits
            # ``torch.manual_seed`` looks for devices, which takes 0.2 ms.
            torch.default_generator.manual_seed(seed)
        if self._is_watched or not self._may_draw:
            return self._transformed(sample, seed)
        self._is_watched = True
        before = pickle.dumps(_states())
        made = self._transformed(sample, seed)
        is_drawn = pickle.dumps(_states()) != before
        self._has_drawn = is_drawn and _is_seeded()  # else its numbers are new in each epoch
        if is_drawn and is_worker():
            _log.warning(
                "transform=%r draws from the generators of its process, which threads share: its numbers do not "
                "repeat. Add a parameter 'generator' and draw from that, or use backend='process'",
                self._given,
            )
        return made

    def _transformed(self, sample: Any, seed: int) -> Any:
        if not isinstance(self._given, Mapping):
            return self._apply("", sample, seed)
        made = {
            name: self._apply(name, getattr(sample, name), key64(seed, number))
            for number, name in enumerate(self._functions)
        }
        return sample._replace(**made)

    def _apply(self, name: str, value: Any, seed: int) -> Any:
        if name in self._albumented and isinstance(value, torch.Tensor):
            return self._albumented[name](value, seed)
        make = self._makers[name]
        if make is None:
            return self._functions[name](value)
        return self._functions[name](value, generator=make(seed))


def _is_seeded() -> bool:
    """Tell whether this thread may seed the generators of its process: no other one works on samples."""
    return not is_worker() and not _is_without_epoch()


def _is_without_epoch() -> bool:
    """Tell whether this is a worker process of torch that does not know the epoch: its numbers are as torch seeds."""
    return get_worker_info() is not None and current_batch() is None


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().numpy()  # noqa: NPY002


class _Albumented:
    """A transform of albumentations as a function of an image ``(C, H, W)`` and a seed; each thread has a copy."""

    def __init__(self, transform: Any) -> None:
        self._transform, self._here = transform, threading.local()

    def __call__(self, image: torch.Tensor, seed: int) -> torch.Tensor:
        transform = getattr(self._here, "transform", None)
        if transform is None:
            transform = self._here.transform = copy.deepcopy(self._transform)
        if _is_without_epoch():
            seed = random.getrandbits(63)
        transform.set_random_state(np.random.default_rng(seed), random.Random(seed))
        made = transform(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
        if isinstance(made, torch.Tensor):
            return made
        made = made[:, :, None] if made.ndim == 2 else made
        return torch.from_numpy(np.ascontiguousarray(made.transpose(2, 0, 1)))


def _maker_of(function: Function) -> Callable[[int], Any] | None:
    """Return what makes the generator of a seed that a function takes; None if it takes none."""
    try:
        parameter = inspect.signature(function).parameters.get("generator")
    except (TypeError, ValueError):  # of C, and without a signature
        return None
    if parameter is None or parameter.default is not inspect.Parameter.empty:
        return None
    kind = parameter.annotation
    if kind is np.random.Generator or kind in ("np.random.Generator", "numpy.random.Generator"):
        return np.random.default_rng
    return lambda seed: torch.Generator().manual_seed(seed)
