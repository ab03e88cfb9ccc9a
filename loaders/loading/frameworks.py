"""What frameworks must be told of an iteration, as they know only loaders that they have wrapped themselves."""

from __future__ import annotations

import sys
from typing import Any

from loaders.sampling.sampler import EpochBatches


def tell_accelerate(delivery: Any, *, is_over: bool = False) -> None:
    """Let accelerate ask an iteration whether it is at its end: there it syncs the gradients that it accumulates.

    It has ``end_of_dataloader`` and ``remainder``; with ``is_over`` it is forgotten.
    """
    state: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if state is None or not getattr(state, "_shared_state", None):
        return  # accelerate is not in use
    tell = "_remove_dataloader" if is_over else "_add_dataloader"
    getattr(state(), tell, _ignore)(delivery)


def without_ignite(batch_sampler: Any) -> Any:
    """Return what ignite's ``DeterministicEngine`` has wrapped: these batches can be resumed as they are."""
    is_wrapped = type(batch_sampler).__module__ == "ignite.engine.deterministic"
    inner = getattr(batch_sampler, "batch_sampler", None) if is_wrapped else None
    return inner if isinstance(inner, EpochBatches) else batch_sampler


def _ignore(delivery: Any) -> None:
    """Stand for a method that a release of accelerate does not have."""
