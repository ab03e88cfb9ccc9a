"""The random numbers of a sample, in place of the process's own, on the thread that works on it.

What draws from the generators of torch, numpy and Python that a process has once, as most transforms do, is given
numbers of the sample for a while: seen from its thread alone, so that neither other samples nor the trainer notice.

- torch: a function mode, which torch keeps for each thread.
- numpy and Python: their functions, such as ``numpy.random.rand`` and ``random.choice``, are methods of one object.
  ``follow_threads`` puts others in their place, which ask whether their thread works on a sample. The names that a
  module took of these functions before (``from random import choice``) stay the process's.
- albumentations: its objects have generators of their own, under two names, which are asked for in the same way.

One lock around transforms, with the process's generators seeded inside, would be less: threads would wait for each
other, and what the trainer draws meanwhile would be the sample's.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_SYNONYMS = {"ranf": "random_sample", "sample": "random_sample", "seed": "seed"}  # no methods


class _Drawing(threading.local):
    """What a thread works on: the seed of a sample, the generators asked for since, and spare ones of earlier."""

    seed: int | None = None
    draws_as_process = False  # whether it works on a sample with the generators of its process

    def __init__(self) -> None:
        self.used: dict[str, Any] = {}
        self.spare: dict[str, Any] = {}


_here = _Drawing()
_lock = threading.Lock()
_are_followed = False


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Have what this thread draws follow from a seed, while it is entered."""
    follow_threads()
    before = _here.seed, _here.used
    _here.seed, _here.used = seed, {}
    try:
        with _TorchDraws():
            yield
    finally:
        _here.spare |= _here.used
        _here.seed, _here.used = before


@contextmanager
def drawing_as_the_process() -> Iterator[None]:
    """Have what has generators of its own draw from the process's, too, while it is entered: in a worker of torch."""
    follow_threads()
    before, _here.draws_as_process = _here.draws_as_process, True
    try:
        yield
    finally:
        _here.draws_as_process = before


def has_drawn() -> bool:
    """Tell whether this thread has asked for such numbers since it entered ``drawing``."""
    return bool(_here.used)


def _mine(kind: str, make: Callable[[], Any], seed: Callable[[Any, int], Any]) -> Any:
    """Return the generator of a kind that the sample has on this thread."""
    mine = _here.used.get(kind)
    if mine is None:
        mine = _here.used[kind] = _here.spare.pop(kind, None) or make()
        seed(mine, _here.seed or 0)
    return mine


class _TorchDraws(TorchFunctionMode):
    """Gives torch's random functions the generator of a sample, where they were given none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:  # which takes no generator
            return _dropped(*args, **kwargs)
        if func in _LIKE and kwargs.get("generator") is None:
            func, args, kwargs = _sized(func, *args, **kwargs)
        if func in _DRAWING and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": _torchs()}
        return func(*args, **kwargs)


def _torchs() -> torch.Generator:
    made: torch.Generator = _mine("torch", torch.Generator, torch.Generator.manual_seed)
    return made


def _dropped(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Return what ``dropout`` of torch does, and refuse what it refuses."""
    if not training or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    kept = torch.empty_like(input).bernoulli_(1 - p, generator=_torchs()).div_(1 - p)
    return input.mul_(kept) if inplace else input * kept


# They take no generator in every torch.
_LIKE = {
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
    torch.randint_like: torch.randint,
}


def _sized(
    func: Any, input: torch.Tensor, *args: Any, memory_format: Any = None, **kwargs: Any
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the call by size that draws as a call by example."""
    kind = {"dtype": input.dtype, "device": input.device, "size": input.shape}
    return _LIKE[func], args, kind | {k: v for k, v in kwargs.items() if v is not None}


_DRAWING = frozenset(
    [
        *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli),
        *(torch.multinomial, torch.poisson, torch.binomial),
        *(torch._sample_dirichlet, torch._standard_gamma),
        *(torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.random_),
        *(torch.Tensor.bernoulli_, torch.Tensor.bernoulli, torch.Tensor.multinomial),
        *(torch.Tensor.exponential_, torch.Tensor.geometric_, torch.Tensor.cauchy_),
        torch.Tensor.log_normal_,
    ]
)


def follow_threads() -> None:
    """Have the functions of ``random`` and ``numpy.random``, and albumentations once it is there, ask their thread."""
    global _are_followed
    if _are_followed and _is_followed(_albumentations()):
        return
    with _lock:
        if not _are_followed:
            numpys: Any = np.random.mtrand
            _follow(np.random, numpys._rand, np.random.RandomState)
            pythons: Any = random
            _follow(random, pythons._inst, random.Random)
            _are_followed = True
        for kind in _albumentations():
            kind.random_generator = _Generator("random_generator", np.random.default_rng)
            kind.py_random = _Generator("py_random", random.Random)


def _albumentations() -> list[Any]:
    """Return the classes that have generators of their own, if they were imported."""
    names = ("BasicTransform", "BaseCompose")
    kinds = [getattr(sys.modules.get("albumentations"), name, None) for name in names]
    return [kind for kind in kinds if kind is not None]


def _is_followed(kinds: list[Any]) -> bool:
    return all("py_random" in vars(kind) for kind in kinds)


class _Generator:
    """The generator of an object; of a thread that works on a sample the sample's."""

    def __init__(self, name: str, make: Callable[[int], Any]) -> None:
        self.name, self.make = name, make

    def __get__(self, one: Any, kind: Any = None) -> Any:
        if _here.seed is not None:
            if self.name not in _here.used:
                _here.used[self.name] = self.make(_here.seed)
            return _here.used[self.name]
        if _here.draws_as_process:
            own: Any = np.random.mtrand._rand
            return random if self.name == "py_random" else np.random.Generator(own._bit_generator)
        try:
            return vars(one)[self.name]
        except (KeyError, TypeError):
            raise AttributeError(self.name) from None

    def __set__(self, one: Any, value: Any) -> None:
        vars(one)[self.name] = value


def _follow(module: ModuleType, shared: Any, make: Callable[[], Any]) -> None:
    for name, function in list(vars(module).items()):
        is_numpys = module is np.random and name in _SYNONYMS
        if is_numpys or getattr(function, "__self__", None) is shared:
            method = _SYNONYMS[name] if is_numpys else name
            setattr(module, name, _by_thread(module.__name__, name, method, function, make))


def _by_thread(
    module: str, name: str, method: str, shared: Callable[..., Any], make: Callable[[], Any]
) -> Callable[..., Any]:
    @functools.wraps(shared)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if _here.seed is None:
            return shared(*args, **kwargs)
        # numpy takes 32 bits
        mine = _mine(module, make, lambda made, seed: made.seed(seed & 0xFFFFFFFF))
        return getattr(mine, method)(*args, **kwargs)

    draw.__module__, draw.__qualname__ = module, name  # by which it pickles
    return draw
