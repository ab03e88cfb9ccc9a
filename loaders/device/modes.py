"""Batches have the same pixels whatever mode they are asked for in.

Autocast computes in half precision. It belongs to a thread, so workers never have it; what is computed on the trainer's
thread leaves it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

_KINDS = ("cpu", "cuda")
_PLAIN = nullcontext()


def without_autocast() -> AbstractContextManager[object]:
    """Return a context in which operations compute as the types of their tensors say."""
    kinds = [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
    if not kinds:
        return _PLAIN
    stack = ExitStack()
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
