"""What frameworks need to know of an iteration, as they know only loaders that they have wrapped themselves."""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError
from loaders.sampling.sampler import EpochBatches

if TYPE_CHECKING:
    from loaders.sampling.cursor import Pass


class AccelerateHook:
    """What accelerate reads of an iteration: whether it is at its end, where accumulated gradients are synced.

    accelerate keeps this object, not the iteration: so one whose loop was left early can be freed.

    Attributes:
        current: The pass over the epoch.
    """

    def __init__(self, current: Pass) -> None:
        self.current = current
        self._is_closed = False

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch of the epoch was handed over."""
        return self.current.is_done

    @property
    def remainder(self) -> int:
        """How many rows of the last batches ``gather_for_metrics`` keeps: behind them is padding. 0: all."""
        return self.current.plan.num_before_padding

    def close(self) -> None:
        """Let accelerate forget it."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(ValueError):  # it has forgotten everything, and accelerate 1.4 says so
                _call_accelerate("_remove_dataloader", self)


def register_with_accelerate(iteration: object, current: Pass) -> AccelerateHook | None:
    """Register an iteration with accelerate, where that is in use, until the iteration is closed or dropped."""
    hook = AccelerateHook(current)
    if not _call_accelerate("_add_dataloader", hook):
        return None
    weakref.finalize(iteration, hook.close).atexit = False
    return hook


def _call_accelerate(method: str, hook: AccelerateHook) -> bool:
    """Call a method of accelerate's state; False if accelerate is not in use."""
    state: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if state is None or not getattr(state, "_shared_state", None):
        return False
    getattr(state(), method, _ignore)(hook)
    return True


def check_no_mesh() -> None:
    """Refuse to divide data by all ranks where accelerate trains with a mesh.

    Raises:
        LoadersError: Several ranks are of one replica of the model, and need equal batches.
    """
    state: Any = sys.modules.get("accelerate.state")
    if state is None or not getattr(state, "is_initialized", bool)():
        return
    config = getattr(state.AcceleratorState(), "parallelism_config", None)
    num = getattr(config, "non_data_parallel_size", 1)
    if num > 1:
        raise LoadersError(
            f"accelerate trains with a mesh in which {num} ranks need equal batches (tensor, context or sequence "
            "parallelism), and this loader would give each rank others: pass rank=mesh['dp'].get_local_rank(), "
            "world_size=mesh['dp'].size(), with mesh = accelerator.torch_device_mesh"
        )


def without_ignite(batch_sampler: Any) -> Any:
    """Return what ignite's ``DeterministicEngine`` has wrapped: these batches can be resumed as they are."""
    is_wrapped = type(batch_sampler).__module__ == "ignite.engine.deterministic"
    inner = getattr(batch_sampler, "batch_sampler", None) if is_wrapped else None
    return inner if isinstance(inner, EpochBatches) else batch_sampler


def _ignore(hook: AccelerateHook) -> None:
    """Stand for a method that a release of accelerate does not have."""
