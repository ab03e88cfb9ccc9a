"""Batches of torch's own loader, whose workers are processes, behind what our backends offer."""

from __future__ import annotations

import atexit
import os
import time
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.queues import Queue
from multiprocessing.util import get_temp_dir
from queue import Queue as ThreadQueue
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from loaders.backends.ordered import Interrupted, TimedOut
from loaders.backends.subprocess import killed_by
from loaders.live import write
from loaders.signals import Living, handlers_later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEATH_TIMEOUT_S = 1.0  # from the end of a worker's connection to its own
_EXIT_TIMEOUT_S = 5.0  # as long as torch waits for each
_INSIST_S = 2.0  # from one Ctrl-C to another that is not held back
_LOOK_S = 5.0  # how often torch looks whether its workers are alive
_GET_DATA = _MultiProcessingDataLoaderIter._get_data.__code__
_with_workers: Living[Any] = Living()  # torch's iterators


class ProcessBatches:
    """The batches of one epoch, fetched by an iterator of torch: in its worker processes, or here if it has none.

    Attributes:
        is_ready: False: torch does not tell.
        num_ready: 0, as above.
        slot_bytes: 0: its batches lie in memory of their own.
        num_taken: Batches that were returned, or whose error was raised.
        ends_once: False: a ``StopIteration`` of the dataset looks like the end.
    """

    is_ready = ends_once = False
    num_ready = slot_bytes = 0

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.num_taken = 0
        self._pid = os.getpid()

    def __iter__(self) -> ProcessBatches:
        return self

    def __next__(self) -> Any:
        if self._workers and os.getpid() != self._pid:
            what = "these worker processes belong to the parent of this forked process"
            raise RuntimeError(what)
        try:
            batch = next(self._batches)
        except (StopIteration, Interrupted):
            raise
        except Exception as error:
            # Torch keeps the error in a frame of its traceback, and by that its iterator, until the
            # garbage is collected.
            traceback.clear_frames(error.__traceback__)
            if str(error).startswith("DataLoader timed out"):
                raise TimedOut(str(error)) from None
            self.num_taken += not getattr(self._batches, "is_waiting", False)
            if death := self._death(error):
                raise RuntimeError(death) from error
            raise
        except BaseException:
            if not self._workers:  # what was being made here, torch does not make again
                self.num_taken += 1
            raise
        self.num_taken += 1
        return batch

    @property
    def _workers(self) -> list[Any]:
        workers: list[Any] = getattr(self._batches, "_workers", [])
        return workers

    def _death(self, error: Exception) -> str:
        """Say which worker died, if an error of fetching a batch came of that; the dataset's errors come elsewhere."""
        if all(
            frame.f_code is not _GET_DATA for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            return ""
        if isinstance(error, RuntimeError) and "exited unexpectedly" not in str(error):
            return ""
        with suppress(RuntimeError):  # of torch's handler, which may see the death now
            sentinels = {worker.sentinel: worker for worker in self._workers}
            for sentinel in connection.wait([*sentinels], _DEATH_TIMEOUT_S):
                sentinels[sentinel].join(_DEATH_TIMEOUT_S)  # it closes its files before it ends
        codes = {worker.pid: worker.exitcode for worker in self._workers if not worker.is_alive()}
        if not codes:
            return ""
        pid, code = max(codes.items(), key=lambda item: item[1] != 0)  # 0 may be a regular end
        how = (
            f"was killed by {killed_by(-code)}"
            if code < 0
            else f"ended ({code}), and may have printed why"
        )
        return f"DataLoader worker (pid {pid}) exited unexpectedly: it {how}"

    def describe(self) -> str:
        """Say which workers are alive."""
        states = [
            f"worker process {worker.pid} {'runs' if worker.is_alive() else 'ended'}"
            for worker in self._workers
        ]
        return "; ".join(states) or "batches are made when they are asked for"

    def close(self) -> None:
        """End the workers now, unless they persist."""
        if self._workers and not self._batches._persistent_workers:
            self._batches._shutdown_workers()


class WorkerBatches(_MultiProcessingDataLoaderIter):
    """Torch's iterator over batches of worker processes, which Ctrl-C leaves whole: it comes in the waits alone.

    Elsewhere it would leave a lock of a queue taken for ever, half of a message, or workers behind. Who insists,
    where a worker was stopped in the middle of a message, ends the workers.

    Attributes:
        is_waiting: Whether what was raised last came in the wait for a batch, and so is not that batch's.
    """

    def __init__(self, loader: Any) -> None:
        self.is_waiting = self._is_lost = False
        self._came: list[Any] = []
        self._shutdown, self._pid = True, os.getpid()  # nothing to end yet
        _with_workers.add(self)
        with handlers_later() as self._at_once:
            super().__init__(loader)
            workers: list[Any] = self._workers
            for worker in workers:  # torch calls it as the last resort
                worker.terminate = partial(_end, worker._popen)
            for queue in self._index_queues:
                _close_by_hand(queue)

    def __next__(self) -> Any:
        if self._is_lost:
            self._is_lost = False
            raise Interrupted
        self.is_waiting = False
        if not self._came:  # else Ctrl-C came when there was a batch
            with handlers_later(_INSIST_S) as self._at_once:
                self._come()
        return self._came.pop()

    def _come(self) -> None:
        try:
            self._came.append(super().__next__())
        except Exception:
            raise
        except BaseException:
            self._is_lost = not self.is_waiting
            if self._is_lost:
                self._shutdown_workers()
            raise

    def begin(self, loader: Any) -> None:
        """Begin another epoch; whoever is interrupted here ends the workers, which are out of step."""
        self._is_lost = False
        self._came.clear()
        try:
            with handlers_later(_INSIST_S) as self._at_once:
                self._reset(loader)
        except BaseException:
            self._shutdown_workers()
            raise

    def _try_get_data(self, timeout: float = _LOOK_S) -> tuple[bool, Any]:
        self.is_waiting = True
        with self._at_once():
            _wait(self._data_queue, timeout)
        self.is_waiting = False
        found: tuple[bool, Any] = super()._try_get_data(0)  # type: ignore[no-untyped-call]
        return found

    def _shutdown_workers(self) -> None:
        if os.getpid() != self._pid:  # in a fork: they are the parent's
            return
        with handlers_later():  # torch tries it once
            super()._shutdown_workers()

    def __del__(self) -> None:
        try:
            self._shutdown_workers()
        except BaseException:  # Ctrl-C, perhaps before it was held back; nobody else can try again
            self._shutdown_workers()
            raise


def _wait(queue: Any, timeout_s: float) -> None:
    """Wait until something is in a queue of processes, or of the thread that pins."""
    if isinstance(queue, ThreadQueue):
        with queue.not_empty:
            queue.not_empty.wait_for(queue._qsize, timeout_s)
    else:
        connection.wait([queue._reader], timeout_s)


def _close_by_hand(queue: Any) -> None:
    """Leave it to torch to close a queue: the garbage collector would do so before torch says goodbye through it."""
    if queue._close is not None:
        queue._close.cancel()
        queue._close = partial(Queue._finalize_close, queue._buffer, queue._notempty)  # type: ignore[attr-defined]


@contextmanager
def ending_if_unsendable(loader: Any) -> Iterator[None]:
    """Start workers that end where what they made does not pickle: torch waits for it for ever."""
    given = loader.worker_init_fn
    loader.worker_init_fn = partial(_begin_worker, given)
    try:
        yield
    finally:
        loader.worker_init_fn = given


def _begin_worker(given: Callable[[int], None] | None, worker_id: int) -> None:
    Queue._on_queue_feeder_error = staticmethod(_end_unsendable)  # type: ignore[attr-defined]
    get_temp_dir()  # else the thread that sends makes it, which the worker's end may leave in the middle of that
    if given is not None:
        given(worker_id)


def _end_unsendable(error: BaseException, item: Any) -> None:
    what = "what the dataset or collate_fn returned, or raised, cannot be sent to the trainer"
    write(f"{''.join(traceback.format_exception(error))}loaders: {what}: {error}\n")
    os._exit(1)


def are_usable(batches: Any) -> bool:
    """Tell whether the workers that an iterator of torch keeps are of this process, and run."""
    pid = os.getpid()
    return all(worker._parent_pid == pid and worker.is_alive() for worker in batches._workers)


def _end(popen: Any) -> None:
    """End a worker: by SIGTERM, or else, as a stopped process takes no other, by SIGKILL."""
    popen.terminate()
    if popen.wait(_DEATH_TIMEOUT_S) is None:
        popen.kill()


@atexit.register
def _end_before_exit() -> None:
    """Let workers end by themselves: who is killed by ``multiprocessing`` leaves $TMPDIR/pymp-* behind."""
    with handlers_later():
        pid = os.getpid()
        _end_all([each for each in _with_workers.all() if each._pid == pid and not each._shutdown])


def _end_all(ending: list[Any]) -> None:
    for batches in ending:
        # One that died may hold the lock of the event.
        if all(worker.is_alive() for worker in batches._workers):
            batches._workers_done_event.set()
            for queue in batches._index_queues:
                queue.put(None)
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    workers = [worker for batches in ending for worker in batches._workers]
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            worker.terminate()  # multiprocessing would wait for one that is stopped, for ever
