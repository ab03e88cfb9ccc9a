"""What frameworks need to know of an iteration, as they know only loaders that they have wrapped themselves."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from loaders.errors import LoadersError
from loaders.sampling.sampler import EpochBatches


class AccelerateHook:
    """What accelerate reads of an iteration: whether it is at its end, where accumulated gradients are synced.

    accelerate keeps this object, not the iteration: so one whose loop was left early can be freed.
    """

    current: Any  # the pass over the epoch

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch of the epoch was handed over."""
        return bool(self.current.is_done)

    @property
    def remainder(self) -> int:
        """How many rows of the last batches ``gather_for_metrics`` keeps: behind them is padding. 0: all."""
        return int(self.current.plan.num_before_padding)

    def close(self) -> None:
        """Let accelerate forget it."""
        if (state := _gradient_state()) is not None:
            rest = [each for each in state.dataloader_references if each is not self]
            state.dataloader_references = rest


def register_with_accelerate(iteration: object, hook: AccelerateHook) -> None:
    """Register an iteration with accelerate, where that is in use, until the iteration is closed or dropped."""
    if (state := _gradient_state()) is None:
        return
    state.dataloader_references = [*state.dataloader_references, hook]
    is_seen = state.active_dataloader is hook
    if not is_seen:
        raise LoadersError("accelerate 1.4 or newer is needed to know where an epoch ends")
    weakref.finalize(iteration, hook.close).atexit = False


def _gradient_state() -> Any:
    """Return accelerate's list of loaders; None if accelerate is not in use."""
    state: Any = sys.modules.get("accelerate.state")
    return state.GradientState() if state is not None and state.is_initialized() else None


def check_no_mesh() -> None:
    """Raise LoadersError where accelerate trains with a mesh, in which ranks of one replica need equal batches."""
    state: Any = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
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
