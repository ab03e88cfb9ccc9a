"""What a loader hands to the trainer, in the form it wants, and the count of what was handed over."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import torch
from typing_extensions import TypeVar  # of torch: with a default, before Python 3.13

from loaders.backends.ordered import Interrupted, TimedOut
from loaders.device.nested import map_tensors
from loaders.device.prefetch import Prefetcher
from loaders.errors import BatchError
from loaders.live import since
from loaders.loading.frameworks import tell_accelerate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.backends.ordered import OrderedBatches
    from loaders.backends.process import TorchBatches
    from loaders.device.accelerator import Accelerator
    from loaders.loading.resume import ForeignPass
    from loaders.sampling.cursor import Cursor
    from loaders.sampling.plan import Plan

BatchT = TypeVar("BatchT", covariant=True, default=Any)


@dataclass(slots=True)
class LoaderStats:
    """Counters of a loader since it was made.

    Attributes:
        num_batches: Batches handed to the trainer.
        wait_s: Seconds that the trainer waited for them.
        num_replaced: Samples that ``on_error="replace"`` replaced; with ``backend="process"`` the workers
            log them, but count for themselves.
        num_ready: Batches (or groups of small ones) that are ready now.
        slot_bytes: Memory of all batch slots; page-locked where batches go to a device.
        device_bytes: Device memory of the batches that were copied ahead and not handed over yet.
        backend: Who makes the batches now: ``"inline"`` (there are no workers), ``"thread"``,
            ``"subprocess"`` or ``"process"``.
        gil_share: Share of the time of training steps, in all epochs, that the trainer spent waiting for the GIL beside
            the loader's threads; 0 where little was seen. ``backend="subprocess"`` avoids it.
        remote: Of datasets at URLs, summed over them, else None: ``bytes`` and ``requests`` of this machine since
            its fetcher started, ``retries``, ``evicted`` shards, ``cached_bytes``, ``budget_bytes``, ``bytes_per_s`` of
            the last parts, ``others_bytes`` that loaders of other datasets read now, ``readers``, the processes that
            have datasets open in the cache; and of this process ``hits``, how often a shard was there when it was
            needed, ``misses``, and ``waited_s``, the seconds that threads waited for shards.
    """

    num_batches: int = 0
    wait_s: float = 0.0
    num_replaced: int = 0
    num_ready: int = 0
    slot_bytes: int = 0
    device_bytes: int = 0
    backend: str = ""
    gil_share: float = 0.0
    remote: dict[str, float] | None = None


class Delivery(Generic[BatchT]):
    """Hands batches to the trainer in the form it wants, and counts what was handed over."""

    def __init__(
        self,
        batches: OrderedBatches | TorchBatches,  # yields batches in host memory
        current: Cursor | None,  # the pass over the epoch, where the order is one of this package
        finish: Callable[[Any], Any],  # brings a batch into its form
        stats: LoaderStats,  # counters to go on with
        length: Callable[[], int],  # how many batches there are in all
        *,
        # Begins another pass, if the first was sent elsewhere (``set_epoch``) before it gave a batch.
        again: Callable[[], tuple[Cursor | None, OrderedBatches | TorchBatches]],
        others: ForeignPass
        | None = None,  # counts the batches of an order that is not the loader's
        # Copies them to the device; None leaves them where they are.
        accelerator: Accelerator | None = None,
        ahead: int = 0,  # how many may be copied before they are asked for
        name: str = "",  # of what is served, for who asks what is going on
    ) -> None:
        self._finish, self._again, self._accelerator, self._ahead = (
            finish,
            again,
            accelerator,
            ahead,
        )
        self._stats, self._length, self._name, self._others = stats, length, name, others
        self.on_close: Callable[[], object] = bool  # called when it ends
        self._num_delivered = 0
        # By Ctrl-C, where it is unknown which batch was lost.
        self._broken: Exception | None = None
        self._waiting_since: float | None = None
        self.pid = os.getpid()
        self._told = None if current is None else tell_accelerate(self, current)
        self._take_from(current, batches)

    def _take_from(self, current: Cursor | None, batches: OrderedBatches | TorchBatches) -> None:
        self._pass, self._batches = current, batches
        if self._told is not None and current is not None:
            self._told.current = current
        self._num_failed = 0  # since the last batch that was handed over
        self._num_noted = 0  # batches that errors stood for, in all
        self._is_told = False  # an error said why batches are missing, if any are
        accelerator = self._accelerator
        plan = current.plan if current is not None and current.plan.pad == "mark" else None
        self._source: Iterator[Any] = batches
        self._marked: _Marked | None = None
        self._prefetcher: Prefetcher | None = None
        if plan is not None or accelerator is not None:
            pin = accelerator is not None and accelerator.is_ahead
            self._source = self._marked = _Marked(batches, plan, pin=pin)
        if accelerator is not None:
            self._source = self._prefetcher = Prefetcher(
                self._source,
                accelerator,
                ahead=self._ahead,
                is_ready=lambda: batches.is_ready,
            )

    def __iter__(self) -> Delivery[BatchT]:
        return self

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> BatchT:
        if self._broken is not None:
            self.close()
            error, self._broken = self._broken, StopIteration()
            raise error
        if self._pass is not None and self._pass.is_moved:
            self._close_source()
            self._take_from(*self._again())
        try:
            batch: BatchT = self._next()
            self._count()
        except BaseException as error:
            self._note(error)
            raise
        return batch

    def _note(self, error: BaseException) -> None:
        """Note what an error stands for: the end, a batch that failed, or an interrupt that may have lost one."""
        # Taken, and not waiting to be handed over.
        num_waiting = 0 if self._prefetcher is None else self._prefetcher.num_waiting
        num_out = self._batches.num_taken - num_waiting
        num_lost = num_out - self._num_delivered - self._num_noted
        self._num_noted += num_lost
        if isinstance(error, StopIteration):
            self._end()
        elif isinstance(error, Interrupted):
            self._broken = StopIteration()
        elif isinstance(error, TimedOut):
            pass
        elif isinstance(error, Exception):
            self._num_failed += num_lost  # none, where a signal's handler raised it
            self._is_told = True
        else:
            self._lose(num_lost)

    def _next(self) -> Any:
        if torch.is_inference_mode_enabled():  # batches are made ahead, for steps in other modes
            with torch.inference_mode(False):
                return self._next()
        began = self._waiting_since = time.monotonic()
        try:
            batch = next(self._source)
            if self._marked is None:
                return self._finish(batch)
            batch, valid = batch
            batch = self._finish(batch)
            return batch if valid is None else _with_marks(batch, valid)
        finally:
            self._waiting_since = None
            self._stats.wait_s += time.monotonic() - began

    def _lose(self, num: int) -> None:
        """Count as failed what an interrupt has lost; with copies ahead, which batch that is may be unknown."""
        if self._prefetcher is None:
            self._num_failed += num
        elif self._marked is not None and self._marked.has_failed:
            self._num_failed += max(num, 1)
        else:
            self._broken = Interrupted() if num else None

    def _end(self) -> None:
        """Go on to the next epoch if this one is over; RuntimeError if not, and no error said why."""
        if self._others is not None:
            self._others.end()
        if self._pass is None:
            return
        num_done, num = self._pass.num_steps, self._pass.plan.num_remaining_steps
        is_over = num_done + self._num_failed >= num
        if not is_over and not (self._is_told and self._batches.ends_once):
            self._num_failed += 1
            self._is_told = True
            why = (
                "a worker raised StopIteration, in the dataset, its transform or collate_fn, or another "
                "iteration took over the worker processes that persist"
            )
            raise RuntimeError(f"the epoch ended after {num_done} of {num} batches: {why}")
        if self._told is not None:
            self._told.close()
        if is_over:
            self._pass.end()
        self.on_close()

    def _count(self) -> None:
        """Note that one more batch was handed over.

        A batch that failed counts together with the next one: a run that stops at an error resumes at that batch,
        and one that goes on has left it out.
        """
        self._stats.num_batches += 1
        if self._pass is not None:
            self._pass.count(1 + self._num_failed)
        elif self._others is not None:
            self._others.count(1 + self._num_failed)
        self._num_failed = 0  # nothing that Ctrl-C could come into stands behind what counts
        self._num_delivered += 1

    def describe(self) -> str:
        """Say what is served, how far it came, and what each worker is doing; safe in a signal handler."""
        epoch = "" if self._pass is None else f", epoch {self._pass.epoch}"
        waiting = since(self._waiting_since)
        waits = f"the trainer waits{waiting}" if waiting else "the trainer does not wait"
        workers = self._batches.describe()
        return (
            f"{self._name}{epoch}, {self._num_delivered} batches handed over, {waits}: {workers}"
        )

    @property
    def device_bytes(self) -> int:
        """Bytes of the batches that were copied to the device ahead."""
        return 0 if self._prefetcher is None else self._prefetcher.device_bytes

    def close(self) -> None:
        """End the workers now, or let go of those that persist; otherwise it happens when this iterator is dropped."""
        self._close_source()
        if self._told is not None:
            self._told.close()
        self.on_close()

    def _close_source(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._batches.close()


class TorchsDelivery(Delivery[BatchT]):
    """Has the attributes of torch's iterator (``_workers``), which makes the batches.

    A class of its own: where there is a ``__getattr__``, Python looks up every attribute the slow way.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


class _Marked:
    """Yields (batch, marks): which rows are real, or None without ``pad="mark"``. Both go to the device together."""

    def __init__(
        self, batches: OrderedBatches | TorchBatches, plan: Plan | None, *, pin: bool
    ) -> None:
        self._batches, self._pin = batches, pin
        self._plan = plan  # where its rows are marked
        self._step = 0
        self.has_failed = False  # whether what was raised last stands for a batch

    def __iter__(self) -> _Marked:
        return self

    def __next__(self) -> tuple[Any, torch.Tensor | None]:
        num_taken, self.has_failed = self._batches.num_taken, False
        try:
            batch = next(self._batches)
        except BaseException:
            self.has_failed = self._batches.num_taken > num_taken
            self._step += self.has_failed
            raise
        valid = None if self._plan is None else self._valid(self._plan)
        return map_tensors((batch, valid), _pinned) if self._pin else (batch, valid)

    def _valid(self, plan: Plan) -> torch.Tensor | None:
        valid = plan.positions(self._step)[1]
        self._step += 1
        return None if valid is None else torch.from_numpy(valid)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Page-lock what does not lie in a slot: a copy from elsewhere would wait for those before it."""
    return tensor if tensor.is_pinned() or tensor.device.type != "cpu" else tensor.pin_memory()


def _with_marks(batch: Any, valid: torch.Tensor) -> Any:
    """Tell real rows from padding: ``batch.valid``, or ``batch["valid"]`` in a mapping."""
    if isinstance(batch, MutableMapping):
        if "valid" in batch:
            raise BatchError(
                "pad='mark' adds the key 'valid', which collate_fn returned already: rename that one"
            )
        marked = copy.copy(batch)
        marked["valid"] = valid
        return marked
    try:
        batch.valid = valid
    except AttributeError as error:
        what = f"pad='mark' cannot add its marks to a {type(batch).__name__}"
        raise BatchError(f"{what}: let collate_fn return a dict") from error
    return batch
