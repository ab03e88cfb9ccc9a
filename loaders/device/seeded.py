"""Seeds torch's generators for a batch, so that third-party modules (kornia, say) repeat their draws."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from loaders.checks import whole_number
from loaders.rng import key64

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def seeded(*words: int) -> Iterator[None]:
    """Draw from torch's generators what follows from some numbers; behind the block they go on as before it.

    Modules that draw for a batch, such as kornia's, then draw the same for it after a resume. Both the generator of the
    CPU and that of the current CUDA device are seeded; nothing waits for the device.

    Args:
        *words: Whole numbers, such as seed, epoch, step and rank.

    Example:
        >>> def drawn(epoch: int, step: int) -> torch.Tensor:
        ...     with seeded(0, epoch, step):
        ...         return torch.rand(3)
        >>> torch.equal(drawn(1, 5), drawn(1, 5)), torch.equal(drawn(1, 5), drawn(1, 6))
        (True, False)
    """
    key = key64(*(whole_number("words", word) for word in words))
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(key)
        if devices:
            torch.cuda.manual_seed(key)
        yield
