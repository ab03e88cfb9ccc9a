"""What a loader hands to the trainer, in the form it wants, and the count of what was handed over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from loaders.errors import BatchError
from loaders.sampling.batch import IndexBatch, index_batches
from loaders.sampling.sampler import EpochBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.loader import DataLoader
    from loaders.sampling.plan import Plan


class LoaderBatches(EpochBatches):
    """Batches for a loader, which itself counts what was delivered: prefetching takes more than that."""

    seed = 0

    def __iter__(self) -> Iterator[IndexBatch]:  # type: ignore[override]  # sequences, not lists
        return index_batches(self.sampler.order, self.plan(), self.sampler.epoch, self.seed)


@dataclass(slots=True)
class Position:
    """How far the trainer has come in an epoch."""

    epoch: int
    plan: Plan
    num_steps: int = 0

    def state_dict(self) -> dict[str, int]:
        """Return what changes a sampler's state while its epoch is served."""
        return {"epoch": self.epoch, "delivered": self.plan.delivered(self.num_steps)}

    def valid(self) -> torch.Tensor | None:
        """Tell which rows of the next batch are real, if that was asked for."""
        if self.plan.pad != "mark":
            return None
        valid = self.plan.positions(self.num_steps)[1]
        return None if valid is None else torch.from_numpy(valid)


class Delivery:
    """Hands batches to the trainer in the form it wants, and counts what was handed over."""

    def __init__(
        self, loader: DataLoader, batches: Iterator[Any], position: Position | None
    ) -> None:
        self._loader, self._batches, self._position = loader, batches, position

    def __iter__(self) -> Delivery:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        stats = self._loader._stats
        began = time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        stats.wait_s += time.perf_counter() - began
        stats.num_batches += 1
        valid = None
        if self._position is not None:
            valid = self._position.valid()
            self._position.num_steps += 1
        return self._finish(batch, valid)

    def _end(self) -> None:
        """A full pass advances the epoch, unless someone chose another one or began anew meanwhile."""
        loader, position = self._loader, self._position
        if position is not None and loader._position is position:
            loader._own_sampler().set_epoch(position.epoch + 1)
            loader._position = None

    def _finish(self, batch: Any, valid: torch.Tensor | None) -> Any:
        if self._loader.as_dict and hasattr(batch, "_asdict"):
            batch = batch._asdict()
        if self._loader.device is not None:
            batch = _to_device(batch, self._loader.device)
            valid = _to_device(valid, self._loader.device)
        return batch if valid is None else _marked(batch, valid)

    def close(self) -> None:
        """End the workers now; otherwise they end when this iterator is dropped."""
        if hasattr(self._batches, "close"):
            self._batches.close()


def _to_device(value: Any, device: torch.device) -> Any:
    """Move every tensor of a batch; lists, named tuples and mappings keep their form."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to_device(v, device) for v in value))
    if isinstance(value, dict):
        return {name: _to_device(v, device) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_device(v, device) for v in value)
    return value


def _marked(batch: Any, valid: torch.Tensor) -> Any:
    """Tell real rows from padding: ``batch.valid``, or ``batch["valid"]`` in a mapping."""
    if isinstance(batch, dict):
        return batch | {"valid": valid}
    try:
        batch.valid = valid
    except AttributeError as error:
        what = f"pad='mark' has no place for its marks in a {type(batch).__name__}"
        raise BatchError(f"{what}: let collate_fn return a dict") from error
    return batch
