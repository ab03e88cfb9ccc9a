"""Batches of torch's own loader, whose workers are processes, behind what our backends offer."""

from __future__ import annotations

import atexit
import os
import time
import traceback
import weakref
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.queues import Queue
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from loaders.backends.ordered import TimedOut
from loaders.backends.subprocess import killed_by
from loaders.live import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEATH_TIMEOUT_S = 1.0  # from the end of a worker's connection to its own
_EXIT_TIMEOUT_S = 2.0
_GET_DATA = _MultiProcessingDataLoaderIter._get_data.__code__
_with_workers: weakref.WeakSet[Any] = weakref.WeakSet()  # torch's iterators
_interrupted: weakref.WeakSet[Any] = weakref.WeakSet()  # of these: Ctrl-C left them out of step


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
        if self._workers:
            _with_workers.add(batches)
        for worker in self._workers:  # torch calls it as the last resort
            worker.terminate = partial(_end, worker._popen)

    def __iter__(self) -> ProcessBatches:
        return self

    def __next__(self) -> Any:
        if self._workers and os.getpid() != self._pid:
            what = "these worker processes belong to the parent of this forked process"
            raise RuntimeError(what)
        try:
            with unusable_after_ctrl_c(self._batches):
                batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            # Torch keeps the error in a frame of its traceback, and by that its iterator. Workers of one
            # that the garbage collector finds end ten seconds later.
            traceback.clear_frames(error.__traceback__)
            if str(error).startswith("DataLoader timed out"):
                raise TimedOut(str(error)) from None
            self.num_taken += 1
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
    if given is not None:
        given(worker_id)


def _end_unsendable(error: BaseException, item: Any) -> None:
    what = "what the dataset or collate_fn returned, or raised, cannot be sent to the trainer"
    write(f"{''.join(traceback.format_exception(error))}loaders: {what}: {error}\n")
    os._exit(1)


@contextmanager
def unusable_after_ctrl_c(batches: Any) -> Iterator[None]:
    """Note of torch's iterator where it was interrupted: what was read of a message, it does not read again."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        _interrupted.add(batches)
        raise


def are_usable(batches: Any) -> bool:
    """Tell whether the workers that an iterator of torch keeps are of this process, and can serve another epoch.

    They are ended if Ctrl-C came in a wait for them.
    """
    pid = os.getpid()
    if not all(worker._parent_pid == pid and worker.is_alive() for worker in batches._workers):
        return False
    if batches in _interrupted:
        batches._shutdown_workers()
    return batches not in _interrupted


def _end(popen: Any) -> None:
    """End a worker: by SIGTERM, or else, as a stopped process takes no other, by SIGKILL."""
    popen.terminate()
    if popen.wait(_DEATH_TIMEOUT_S) is None:
        popen.kill()


def _leave_to_parent() -> None:
    """In a fork, let torch's iterators do nothing when they are dropped: they would end the parent's workers."""
    for batches in list(_with_workers):
        batches._shutdown = True


os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _end_before_exit() -> None:
    """Let workers end by themselves: who is killed by ``multiprocessing`` leaves $TMPDIR/pymp-* behind."""
    ending = [batches for batches in list(_with_workers) if not batches._shutdown]
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
