"""What a loader hands to the trainer, in the form it wants, and the count of what was handed over."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from loaders.device.nested import map_tensors
from loaders.device.prefetch import Prefetcher
from loaders.errors import BatchError
from loaders.live import since
from loaders.sampling.batch import IndexBatch, index_batches
from loaders.sampling.sampler import EpochBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaders.device.accelerator import Accelerator
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
        """Tell which rows of the next batch are real; None if all are."""
        valid = self.plan.positions(self.num_steps)[1]
        return None if valid is None else torch.from_numpy(valid)


class Delivery:
    """Hands batches to the trainer in the form it wants, and counts what was handed over.

    Args:
        loader: Whose settings and counters these are.
        batches: Yields batches in host memory.
        position: How far the trainer has come, where batches are of ours.
        accelerator: Copies them to the device; None leaves them where they are.
    """

    def __init__(
        self,
        loader: DataLoader,
        batches: Iterator[Any],
        position: Position | None,
        accelerator: Accelerator | None = None,
    ) -> None:
        self._loader, self._batches, self._position = loader, batches, position
        self._num_failed = self._num_delivered = 0
        self._is_resume_used = False
        self._waiting_since: float | None = None
        self.pid = os.getpid()
        pin = accelerator is not None and accelerator.is_ahead
        self._source: _Marked | Prefetcher = _Marked(batches, position, pin=pin)
        if accelerator is not None:
            self._source = Prefetcher(
                self._source,
                accelerator,
                ahead=loader.device_prefetch,
                is_ready=lambda: getattr(batches, "is_ready", False),
            )

    def __iter__(self) -> Delivery:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        stats = self._loader._stats
        began = self._waiting_since = time.monotonic()
        try:
            batch = self._finish(*next(self._source))
        except StopIteration:
            self._end()
            raise
        except Exception as error:
            self._num_failed += _is_of_a_batch(error)
            raise
        finally:
            self._waiting_since = None
            stats.wait_s += time.monotonic() - began
        stats.num_batches += 1
        self._num_delivered += 1
        if self._position is not None:
            self._count(self._position)
        return batch

    def _count(self, position: Position) -> None:
        """Note that one more batch was handed over.

        One that failed counts from the next one on: who stops at an error resumes at that batch, and
        who goes on has done without it.
        """
        position.num_steps += 1 + self._num_failed
        self._num_failed = 0
        if not self._is_resume_used:
            self._use_resume(position)

    def _use_resume(self, position: Position) -> None:
        """Let the next iteration begin at the start, unless told otherwise: something was taken from this one."""
        sampler = self._loader._own_sampler()
        if self._loader._position is position and sampler.epoch == position.epoch:
            sampler.start = 0
            self._is_resume_used = True

    def _end(self) -> None:
        """A full pass advances the epoch, unless someone chose another one or began anew meanwhile."""
        loader, position = self._loader, self._position
        if position is not None and loader._position is position:
            loader._own_sampler().set_epoch(position.epoch + 1)
            loader._position = None

    def _finish(self, batch: Any, valid: torch.Tensor | None) -> Any:
        if self._loader.finisher is not None:
            batch = self._loader.finisher(batch)
        if self._loader.as_dict and hasattr(batch, "_asdict"):
            batch = batch._asdict()
        return batch if valid is None else _with_marks(batch, valid)

    def describe(self) -> str:
        """Say what is served, how far it came, and what each worker is doing; safe in a signal handler."""
        what = type(self._loader.dataset).__name__
        epoch = "" if self._position is None else f", epoch {self._position.epoch}"
        waiting = since(self._waiting_since)
        waits = f"the trainer waits{waiting}" if waiting else "the trainer does not wait"
        workers = _workers_of(self._batches)
        return f"{what}{epoch}, {self._num_delivered} batches handed over, {waits}: {workers}"

    @property
    def device_bytes(self) -> int:
        """Bytes of the batches that were copied to the device ahead."""
        return getattr(self._source, "device_bytes", 0)

    def close(self) -> None:
        """End the workers now, or let go of those that persist; otherwise it happens when this iterator is dropped."""
        if isinstance(self._source, Prefetcher):
            self._source.close()
        if hasattr(self._batches, "close"):
            self._batches.close()
        elif hasattr(self._batches, "_shutdown_workers") and not self._loader.persistent_workers:
            self._batches._shutdown_workers()  # torch's own


class _Marked:
    """Yields each batch beside the marks of its rows: the two travel together."""

    def __init__(self, batches: Iterator[Any], position: Position | None, *, pin: bool) -> None:
        self._batches, self._pin = batches, pin
        self._fetched: Position | None = None  # counts on by itself
        if position is not None and position.plan.pad == "mark":
            self._fetched = replace(position)

    def __iter__(self) -> _Marked:
        return self

    def __next__(self) -> tuple[Any, torch.Tensor | None]:
        try:
            batch = next(self._batches)
        except Exception as error:
            if self._fetched is not None:
                self._fetched.num_steps += _is_of_a_batch(error)
            raise
        valid = None
        if self._fetched is not None:
            valid = self._fetched.valid()
            self._fetched.num_steps += 1
        return map_tensors((batch, valid), _pinned) if self._pin else (batch, valid)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Page-lock what does not lie in a slot: a copy from elsewhere would wait for those before it."""
    return tensor if tensor.is_pinned() or tensor.device.type != "cpu" else tensor.pin_memory()


def _workers_of(batches: Any) -> str:
    if hasattr(batches, "describe_aside"):
        return str(batches.describe_aside())
    processes = getattr(batches, "_workers", ())  # of torch's own loader
    states = [f"worker process {p.pid} {'runs' if p.is_alive() else 'ended'}" for p in processes]
    return "; ".join(states) or "batches are made when they are asked for"


def _is_of_a_batch(error: Exception) -> bool:
    """Tell whether an error stands for a batch; one that is merely late can still be had."""
    return not str(error).startswith("DataLoader timed out")


def _with_marks(batch: Any, valid: torch.Tensor) -> Any:
    """Tell real rows from padding: ``batch.valid``, or ``batch["valid"]`` in a mapping."""
    if isinstance(batch, dict):
        return batch | {"valid": valid}
    try:
        batch.valid = valid
    except AttributeError as error:
        what = f"pad='mark' has no place for its marks in a {type(batch).__name__}"
        raise BatchError(f"{what}: let collate_fn return a dict") from error
    return batch
