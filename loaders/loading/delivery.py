"""What a loader hands to the trainer, in the form it wants, and the count of what was handed over."""

from __future__ import annotations

import copy
import os
import time
import weakref
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import torch
from typing_extensions import TypeVar  # of torch: with a default, before Python 3.13

from loaders.device.nested import map_tensors
from loaders.device.pinned import pinned
from loaders.device.prefetch import Prefetcher
from loaders.dumping import since
from loaders.errors import BatchError
from loaders.loading.frameworks import AccelerateHook, register_with_accelerate
from loaders.sampling.cursor import Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loaders.backends.ordered import OrderedBatches
    from loaders.backends.process import TorchBatches
    from loaders.device.accelerator import Accelerator
    from loaders.loading.resume import ForeignPass
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
        num_ready: Batches (or groups of small ones) that are ready now; of a child process no more than one is seen.
        slot_bytes: Memory of all batch slots; page-locked where batches go to a device.
        device_bytes: Device memory of the batches that were copied ahead and not handed over yet.
        backend: Who makes the batches now: ``"inline"`` (there are no workers), ``"thread"``,
            ``"subprocess"`` or ``"process"``.
        gil_share: Share of the time of training steps, in all epochs, that the trainer spent waiting for the GIL beside
            the loader's threads; 0 where little was seen. ``backend="subprocess"`` avoids it.
        remote: Of datasets at URLs, else None: ``bytes``, ``requests`` and ``retries`` of this machine since its
            fetcher started; of this dataset, whichever process read it, ``hits``, how often a shard was there when it
            was needed, ``misses``, and ``waited_s``, the seconds waited for shards, all summed over URLs; and of the
            caches ``cached_bytes`` and ``budget_bytes``.
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


class Started(NamedTuple):
    """A pass over an epoch that has begun, with all that was asked for until then."""

    current: Pass | ForeignPass  # foreign: in an order that is not of this package
    batches: OrderedBatches | TorchBatches  # in host memory
    finish: Callable[[Any], Any]  # brings a batch into its form
    close: Callable[[], object]  # called when it ends


class Delivery(Generic[BatchT]):
    """Hands batches to the trainer in the form it wants, and counts what was handed over.

    An interrupt inside ``next`` (whatever is no ``Exception``) closes it, and so does the next ``iter`` of the loader:
    the state is that of the last batch that was handed over.
    """

    def __init__(
        self,
        start: Callable[[], Started],
        stats: LoaderStats,  # counters to go on with
        length: Callable[[], int],  # how many batches there are in all
        *,
        # Copies them to the device; None leaves them where they are.
        accelerator: Accelerator | None = None,
        ahead: int = 0,  # how many may be copied before they are asked for
        name: str = "",  # of what is served, for reports
    ) -> None:
        self._start, self._stats, self._length = start, stats, length
        self._accelerator, self._ahead, self._name = accelerator, ahead, name
        self._is_over = False
        self._closed = ""  # why there is no next batch, if it was closed before its end
        self._num_delivered = 0
        self._waiting_since: float | None = None
        self.pid = os.getpid()
        self._hook = AccelerateHook()
        self._begin()
        if isinstance(self._pass, Pass):
            register_with_accelerate(self, self._hook)

    def _begin(self) -> None:
        """Begin a pass: the first, or another where that was sent elsewhere (``set_epoch``) before it gave a batch."""
        current, batches, self._finish, close = self._start()
        self._on_close = weakref.finalize(self, close)
        self._pass, self._batches, self._num_counted = current, batches, 0
        self._hook.current, accelerator = current, self._accelerator
        plan = current.plan if getattr(current.plan, "pad", None) == "mark" else None
        self._source: Iterator[Any] = batches
        self._is_marked = plan is not None or accelerator is not None
        self._prefetcher: Prefetcher | None = None
        if self._is_marked:
            pin = accelerator is not None and accelerator.is_ahead
            self._source = map(partial(_marked, batches, plan, pin), batches)
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
        if self._closed:
            raise RuntimeError(self._closed)
        if self._pass.is_moved and not self._is_over:
            self._close_source()
            self._on_close()
            self._begin()
        try:
            batch: BatchT = self._next()
        except StopIteration:
            self._end()
            raise
        except Exception:
            # Of a batch, which counts with the next one that is handed over; or of the wait. A traceback may keep this
            # for long; an iteration that goes on has shards fetched on demand.
            self._on_close()
            raise
        except BaseException:
            self.close("this iteration was interrupted: begin a new one")
            raise
        self._count()
        return batch

    def _next(self) -> Any:
        if torch.is_inference_mode_enabled():  # batches are made ahead, for steps in other modes
            with torch.inference_mode(False):
                return self._next()
        began = self._waiting_since = time.monotonic()
        try:
            batch = next(self._source)
            if not self._is_marked:
                return self._finish(batch)
            batch, valid = batch
            batch = self._finish(batch)
            return batch if valid is None else _with_marks(batch, valid)
        finally:
            self._waiting_since = None
            self._stats.wait_s += time.monotonic() - began

    def _end(self) -> None:
        """Go on to the next epoch, if all of this one was handed over, or failed."""
        self._is_over = True
        self._hook.close()
        plan = self._pass.plan
        is_whole = plan is None or self._batches.num_taken >= plan.num_remaining_steps
        if is_whole and not self._batches.is_lost:
            self._pass.end()
        self._on_close()

    def _count(self) -> None:
        """Note that one more batch was handed over.

        A batch that failed counts together with the next one: a run that stops at an error resumes at that batch,
        and one that goes on has left it out.
        """
        num_waiting = 0 if self._prefetcher is None else self._prefetcher.num_waiting
        num_taken = self._batches.num_taken - num_waiting
        self._stats.num_batches += 1
        self._pass.count(num_taken - self._num_counted)
        self._num_counted = num_taken
        self._num_delivered += 1

    def describe(self) -> str:
        """Say what is served, how far it came, and what each worker is doing; safe in a signal handler."""
        epoch = "" if self._pass.plan is None else f", epoch {self._pass.epoch}"
        waiting = since(self._waiting_since)
        waits = f"the trainer waits{waiting}" if waiting else "the trainer does not wait"
        workers = self._batches.describe()
        return (
            f"{self._name}{epoch}, {self._num_delivered} batches handed over, {waits}: {workers}"
        )

    @property
    def num_ready(self) -> int:
        """Batches (or groups of small ones) that could be taken without waiting."""
        return self._batches.num_ready

    @property
    def device_bytes(self) -> int:
        """Bytes of the batches that were copied to the device ahead."""
        return 0 if self._prefetcher is None else self._prefetcher.device_bytes

    def close(self, why: str = "this iteration was closed: begin a new one") -> None:
        """End the workers now, or let go of those that persist; otherwise it happens when this iterator is dropped."""
        if not self._is_over:
            self._closed = self._closed or why
        self._close_source()
        self._hook.close()
        self._on_close()

    def _close_source(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._batches.close()


def _marked(
    batches: OrderedBatches | TorchBatches, plan: Plan | None, pin: bool, batch: Any
) -> tuple[Any, Any]:
    """Return a batch, and which rows are real (None without ``pad="mark"``): both go to the device together."""
    valid = None if plan is None else plan.positions(batches.num_taken - 1)[1]
    marked = batch, None if valid is None else torch.from_numpy(valid)
    return map_tensors(marked, pinned) if pin else marked


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
