"""Batches are made ahead, for steps in other modes than the one in which they are asked for.

A tensor that is made under ``torch.inference_mode()`` can never be trained on, and autocast computes pixels in half
precision. Both belong to a thread, so workers have neither; what is done on the trainer's thread leaves them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

_AUTOCAST = ("cpu", "cuda")
_PLAIN = nullcontext()


def without_modes() -> AbstractContextManager[object]:
    """Return a context in which tensors are normal ones, and computed as their types say."""
    kinds = [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
    if not kinds and not torch.is_inference_mode_enabled():
        return _PLAIN
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
