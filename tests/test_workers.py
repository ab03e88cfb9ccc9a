"""The contract at the top of ``loaders/workers.py``, point by point."""

import gc
import hashlib
import logging
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders import workers as workers_module
from loaders.workers import Workers
from tests.refusals import At
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 20.0


class Call:
    """A job of ``num_parts`` calls of a function; its result is what they returned, in order."""

    needs_prefetch = False

    def __init__(
        self,
        function: Callable[[int], Any] = lambda part: part,
        num_parts: int = 1,
        finish: Callable[[list[Any]], Any] = lambda results: results,
        name: str = "a call",
    ) -> None:
        self.function, self.num_parts, self.name, self._finish = function, num_parts, name, finish
        self.results: list[Any] = [None] * num_parts

    def run(self, part: int) -> None:
        self.results[part] = self.function(part)

    def finish(self) -> Any:
        return self._finish(self.results)

    def prefetch(self) -> None:
        raise AssertionError("there is nothing to prefetch")

    def describe(self, part: int) -> str:
        return f"{self.name}, part {part}"


class Gate:
    """A function that waits until it is opened, and tells when it was entered."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Semaphore(0), threading.Event()

    def __call__(self, part: int) -> int:
        self.entered.release()
        assert self.opened.wait(TIMEOUT_S)
        return part

    def wait_until_entered(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.entered.acquire(timeout=TIMEOUT_S)


@pytest.fixture
def pool() -> Iterator[Workers]:
    with_three = Workers(3)
    yield with_three
    with_three.close()
    assert not any(thread.is_alive() for thread in with_three._shared.threads)


def raise_(error: BaseException) -> Any:
    raise error


# -- 1. normal end -----------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    parts=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    num_workers=st.integers(1, 5),
    in_flight=st.integers(1, 5),
)
def test_results_come_in_the_order_of_jobs(
    parts: list[int], num_workers: int, in_flight: int
) -> None:
    pool = Workers(num_workers)
    found = []

    for number, num_parts in enumerate(parts):
        if len(pool) == in_flight:
            found.append(pool.take(timeout_s=TIMEOUT_S))
        pool.put(Call(lambda part, number=number: (number, part), num_parts))  # type: ignore[misc]
    while len(pool):
        found.append(pool.take(timeout_s=TIMEOUT_S))
    pool.close()

    assert found == [[(number, p) for p in range(n)] for number, n in enumerate(parts)]


def test_the_thread_that_completes_a_job_may_take_it() -> None:
    """Once for each job, by a worker, when the job is ready."""
    taken: list[Any] = []

    def take() -> None:
        with lock:
            while pool.is_ready:
                taken.append((pool.take(timeout_s=0), threading.current_thread().name))

    lock = threading.Lock()
    pool = Workers(3, on_done=take, name="maker")
    for number in range(50):
        pool.put(Call(lambda part, number=number: number, 2))  # type: ignore[misc]
    wait_until(lambda: len(taken) == 50)
    pool.close()

    assert [result for result, _ in taken] == [[number, number] for number in range(50)]
    assert {name for _, name in taken} <= {"maker-0", "maker-1", "maker-2"}


@pytest.mark.parametrize("seed", range(5))
def test_order_does_not_depend_on_which_part_ends_when(seed: int) -> None:
    """Every part waits for its own event; the events come in random order."""
    rng = random.Random(seed)
    jobs = [[threading.Event() for _ in range(rng.randint(1, 3))] for _ in range(6)]
    pool = Workers(sum(map(len, jobs)))
    for number, events in enumerate(jobs):

        def wait(part: int, number: int = number, events: Any = events) -> tuple[int, int]:
            assert events[part].wait(TIMEOUT_S)
            return number, part

        pool.put(Call(wait, len(events)))

    shuffled = [event for events in jobs for event in events]
    rng.shuffle(shuffled)
    found: list[Any] = []
    for event in shuffled:
        event.set()
    while len(pool):
        found.append(pool.take(timeout_s=TIMEOUT_S))
    pool.close()

    assert [result[0][0] for result in found] == list(range(6))
    assert [len(result) for result in found] == [len(events) for events in jobs]


def test_a_job_that_is_done_waits_for_its_turn(pool: Workers) -> None:
    gate = Gate()
    pool.put(Call(gate))
    pool.put(Call(lambda _: "second"))
    second_done = threading.Event()
    pool.put(Call(lambda _: second_done.set()))
    assert second_done.wait(TIMEOUT_S)

    with pytest.raises(TimeoutError):
        pool.take(timeout_s=0.05)
    gate.opened.set()

    assert pool.take(timeout_s=TIMEOUT_S) == [0]
    assert pool.take(timeout_s=TIMEOUT_S) == ["second"]


def test_parts_of_a_job_run_at_the_same_time(pool: Workers) -> None:
    together = threading.Barrier(3)

    pool.put(Call(lambda _: together.wait(TIMEOUT_S) >= 0, 3))

    assert pool.take(timeout_s=TIMEOUT_S) == [True] * 3


def test_parts_of_several_jobs_run_at_the_same_time(pool: Workers) -> None:
    together = threading.Barrier(3)

    for _ in range(3):
        pool.put(Call(lambda _: together.wait(TIMEOUT_S) >= 0))

    assert [pool.take(timeout_s=TIMEOUT_S) for _ in range(3)] == [[True]] * 3


def test_finish_runs_once_after_all_parts_on_a_worker(pool: Workers) -> None:
    ended: list[Any] = []

    def finish(results: list[Any]) -> Any:
        ended.append(threading.current_thread())
        return sum(results)

    for _ in range(20):
        pool.put(Call(lambda part: part, 7, finish))
    results = [pool.take(timeout_s=TIMEOUT_S) for _ in range(20)]

    assert results == [21] * 20
    assert len(ended) == 20
    assert set(ended) <= set(pool._shared.threads)


def test_no_part_runs_twice(pool: Workers) -> None:
    ran: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    for number in range(50):
        pool.put(Call(lambda part, number=number: ran.put((number, part)), 5))  # type: ignore[misc]
    for _ in range(50):
        pool.take(timeout_s=TIMEOUT_S)

    assert sorted(ran.get_nowait() for _ in range(250)) == [
        (n, p) for n in range(50) for p in range(5)
    ]
    assert ran.empty()


def test_jobs_are_counted_until_they_are_taken(pool: Workers) -> None:
    gate = Gate()
    assert (len(pool), pool.num_ready) == (0, 0)

    pool.put(Call(gate))
    pool.put(Call())
    assert len(pool) == 2
    assert pool.num_ready <= 1
    gate.opened.set()
    pool.take(timeout_s=TIMEOUT_S)
    assert len(pool) == 1
    pool.take(timeout_s=TIMEOUT_S)

    assert (len(pool), pool.num_ready) == (0, 0)


def test_taking_without_jobs_is_an_error(pool: Workers) -> None:
    with pytest.raises(IndexError):
        pool.take()


@pytest.mark.parametrize("num_workers", [0, -1])
def test_a_pool_has_threads(num_workers: int) -> None:
    with pytest.raises(ValueError):
        Workers(num_workers)


def test_a_job_has_parts(pool: Workers) -> None:
    """With none, nobody would ever finish it."""
    with pytest.raises(ValueError):
        pool.put(Call(num_parts=0))

    assert len(pool) == 0


def test_prepare_runs_once_on_each_thread_before_its_parts() -> None:
    prepared: list[int] = []
    pool = Workers(3, prepare=lambda: prepared.append(threading.get_ident()), name="reader")

    for _ in range(30):
        pool.put(Call(lambda _: threading.get_ident() in prepared))
    found = [pool.take(timeout_s=TIMEOUT_S) for _ in range(30)]
    names = [thread.name for thread in pool._shared.threads]
    pool.close()

    assert found == [[True]] * 30
    assert len(prepared) == len(set(prepared)) == 3
    assert names == ["reader-0", "reader-1", "reader-2"]


def test_threads_begin_with_prepare_not_with_work() -> None:
    """The loader waits for that: what prepare does to a thread is then done."""
    barrier = threading.Barrier(4)

    def prepare() -> None:
        barrier.wait(TIMEOUT_S)

    pool = Workers(3, prepare=prepare)

    assert barrier.wait(TIMEOUT_S) in range(4)  # three threads and we
    pool.close()
    assert not barrier.broken


def test_an_idle_pool_keeps_no_job_alive(pool: Workers) -> None:
    job = Call(num_parts=3)
    gone = weakref.ref(job)

    pool.put(job)
    pool.take(timeout_s=TIMEOUT_S)
    del job
    pool.put(Call(num_parts=9))  # every worker has let go of the first by then
    pool.take(timeout_s=TIMEOUT_S)

    assert gone() is None


def test_words_about_finished_jobs_do_not_pile_up(pool: Workers) -> None:
    for _ in range(500):
        done = threading.Event()
        pool.put(Call(lambda _, done=done: done.set()))  # type: ignore[misc]
        assert done.wait(TIMEOUT_S)
        pool.take(timeout_s=TIMEOUT_S)

    assert pool._shared.finished.qsize() < 10


# -- 2. failure --------------------------------------------------------------------------------

ERRORS = [ValueError("bad"), KeyError("a"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("place", ["run", "finish"])
def test_an_error_comes_in_its_turn_and_touches_no_other_job(
    error: BaseException, place: str, pool: Workers
) -> None:
    bad = Call(lambda _: raise_(error)) if place == "run" else Call(finish=lambda _: raise_(error))
    for job in (Call(), bad, Call(num_parts=2)):
        pool.put(job)

    assert pool.take(timeout_s=TIMEOUT_S) == [0]
    with pytest.raises(type(error)) as caught:
        pool.take(timeout_s=TIMEOUT_S)
    assert caught.value is error
    assert pool.take(timeout_s=TIMEOUT_S) == [0, 1]


def test_workers_survive_their_errors(pool: Workers) -> None:
    for number in range(30):
        pool.put(Call(lambda _, n=number: raise_(ValueError(n)), 3))  # type: ignore[misc]

    for number in range(30):
        with pytest.raises(ValueError, check=At(args=(number,))):
            pool.take(timeout_s=TIMEOUT_S)

    assert all(thread.is_alive() for thread in pool._shared.threads)
    pool.put(Call(num_parts=5))
    assert pool.take(timeout_s=TIMEOUT_S) == list(range(5))


def test_parts_that_had_not_begun_are_skipped_after_an_error() -> None:
    pool = Workers(1)
    ran: list[int | str] = []

    def run(part: int) -> None:
        ran.append(part)
        if part == 2:
            raise ValueError(part)

    pool.put(Call(run, 9, finish=lambda _: ran.append("finish")))
    with pytest.raises(ValueError, check=At(args=(2,))):
        pool.take(timeout_s=TIMEOUT_S)
    pool.close()

    assert ran == [0, 1, 2]


def test_the_first_error_of_several_is_raised() -> None:
    pool, begun = Workers(2), threading.Barrier(2)

    def run(part: int) -> None:
        begun.wait(TIMEOUT_S)
        if part == 1:
            wait_until(lambda: pool._tickets[0].error is not None)
        raise ValueError(part)

    pool.put(Call(run, 2))
    with pytest.raises(ValueError, check=At(args=(0,))):
        pool.take(timeout_s=TIMEOUT_S)
    pool.close()


def test_an_error_waits_for_the_other_parts_of_its_job() -> None:
    """Whoever catches it may free what they write to."""
    pool, gate = Workers(2), Gate()

    def run(part: int) -> int:
        if part == 0:
            return gate(part)
        gate.wait_until_entered()
        raise ValueError(part)

    pool.put(Call(run, 2))
    with pytest.raises(TimeoutError):
        pool.take(timeout_s=0.5)
    gate.opened.set()

    with pytest.raises(ValueError):
        pool.take(timeout_s=TIMEOUT_S)
    pool.close()


def test_an_error_shows_where_it_happened(pool: Workers) -> None:
    def decode_the_picture(part: int) -> None:
        raise ValueError(part)

    pool.put(Call(decode_the_picture))
    with pytest.raises(ValueError, check=At(args=(0,))) as caught:
        pool.take(timeout_s=TIMEOUT_S)

    assert "decode_the_picture" in "".join(traceback.format_exception(caught.value))


def test_an_error_that_was_handled_keeps_nothing_alive(pool: Workers) -> None:
    """Without help of the garbage collector: a batch of 100 MB should not wait for it."""

    def fail(part: int) -> None:
        raise ValueError("bad")

    job = Call(fail)
    gone = weakref.ref(job)
    gc.disable()
    try:
        pool.put(job)
        del job
        try:
            pool.take(timeout_s=TIMEOUT_S)
        except ValueError as error:
            assert error.__traceback__ is not None  # noqa: PT017
        pool.put(Call(num_parts=9))
        pool.take(timeout_s=TIMEOUT_S)
        assert gone() is None
    finally:
        gc.enable()


def test_a_thread_that_ends_before_its_first_job_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where gevent has replaced what threads call."""

    def replaced() -> int:
        raise ProcessLookupError(3, "No such process")

    patched = SimpleNamespace(**vars(threading) | {"get_ident": replaced})
    with monkeypatch.context() as patch:
        patch.setattr(workers_module, "threading", patched)
        pool = Workers(2)
        began = time.monotonic()
        with suppress(RuntimeError):
            pool.put(Call())
        with pytest.raises(RuntimeError) as caught:
            pool.take(timeout_s=TIMEOUT_S)
        pool.close()

    assert isinstance(caught.value.__cause__, ProcessLookupError)
    assert time.monotonic() - began < TIMEOUT_S / 2


def test_prepare_that_fails_is_the_error_of_the_pool() -> None:
    pool = Workers(2, prepare=lambda: raise_(OSError("no such device")))
    with suppress(RuntimeError):
        pool.put(Call())

    with pytest.raises(RuntimeError) as caught:
        pool.take(timeout_s=TIMEOUT_S)
    pool.close()

    assert isinstance(caught.value.__cause__, OSError)


# -- timeouts ----------------------------------------------------------------------------------


def test_a_job_that_takes_too_long_is_described_and_can_be_taken_later(pool: Workers) -> None:
    gate = Gate()
    pool.put(Call(gate, name="reading shard-00017.lmdb"))
    gate.wait_until_entered()

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        pool.take(timeout_s=0.1)
    assert 0.09 < time.monotonic() - began < 5
    with pytest.raises(TimeoutError):
        pool.take(timeout_s=0)
    assert len(pool) == 1
    gate.opened.set()

    assert pool.take(timeout_s=TIMEOUT_S) == [0]
    assert pool.describe() == "no worker is running"


def test_a_description_names_every_worker(pool: Workers) -> None:
    gate = Gate()
    pool.put(Call(gate, 3, name="job"))
    gate.wait_until_entered(3)

    found = sorted(text.split(" for ")[0] for text in pool.describe().split("; "))
    gate.opened.set()

    assert found == ["job, part 0", "job, part 1", "job, part 2"]


def test_seconds_count_anew_with_each_step_of_a_part(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    gate = Gate()

    def in_steps(part: int) -> int:
        now[0] = 100.0
        workers_module.begin_step()
        now[0] = 107.0
        return gate(part)

    monkeypatch.setattr(
        workers_module,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], thread_time=time.thread_time),
    )
    pool.put(Call(in_steps))
    gate.wait_until_entered()
    text = pool.describe()
    gate.opened.set()

    assert text == "a call, part 0 for 7.0 s"
    assert pool.take() == [0]


def test_a_step_outside_of_any_part_is_none() -> None:
    workers_module.begin_step()

    assert not hasattr(workers_module._here, "running")


def test_what_is_done_is_taken_however_short_the_time(pool: Workers) -> None:
    done = threading.Event()
    pool.put(Call())
    pool.put(Call(lambda _: done.set()))
    assert done.wait(TIMEOUT_S)
    wait_until(lambda: pool.num_ready == 2)

    assert pool.take(timeout_s=0) == [0]
    assert pool.take(timeout_s=-1) == [None]


# -- 3. early close ----------------------------------------------------------------------------


def test_close_drops_what_has_not_begun_and_waits_for_what_has() -> None:
    pool, gate, ran = Workers(1), Gate(), threading.Event()
    pool.put(Call(gate))
    pool.put(Call(lambda _: ran.set()))
    gate.wait_until_entered()

    closing = threading.Thread(target=pool.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()  # it waits for the running part
    gate.opened.set()
    closing.join(TIMEOUT_S)

    assert not closing.is_alive()
    assert not ran.is_set()
    assert not any(thread.is_alive() for thread in pool._shared.threads)


def test_a_closed_pool_refuses_and_closes_again() -> None:
    pool = Workers(2)
    pool.put(Call())
    pool.close()
    pool.close()

    assert len(pool) == 0
    with pytest.raises(RuntimeError):
        pool.take()
    with pytest.raises(RuntimeError):
        pool.take(timeout_s=0)
    with pytest.raises(RuntimeError):
        pool.put(Call())


def test_a_result_that_was_not_taken_is_dropped_with_the_pool() -> None:
    pool, job = Workers(1), Call(lambda _: None)
    gone = weakref.ref(job)
    pool.put(job)
    del job

    pool.close()

    assert gone() is None


@pytest.mark.parametrize("num_closers", [1, 4])
def test_close_wakes_an_owner_that_waits(num_closers: int) -> None:
    pool, gate, found = Workers(1), Gate(), queue.SimpleQueue[Any]()
    pool.put(Call(gate))

    def take() -> None:
        try:
            found.put(pool.take())
        except RuntimeError as error:
            found.put((error, time.monotonic()))

    owner = threading.Thread(target=take)
    owner.start()
    gate.wait_until_entered()
    closers = [threading.Thread(target=pool.close) for _ in range(num_closers)]
    began = time.monotonic()
    for closer in closers:
        closer.start()
    error, ended = found.get(timeout=TIMEOUT_S)
    gate.opened.set()
    for thread in (owner, *closers):
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()

    assert "closed" in str(error)
    assert ended - began < 3


def test_a_job_may_close_its_own_pool() -> None:
    """As when a callback of the user's ends the loader."""
    pool = Workers(2)
    done = threading.Event()

    def run(part: int) -> None:
        pool.close()
        done.set()

    pool.put(Call(run))
    assert done.wait(TIMEOUT_S)
    for thread in pool._shared.threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_a_pool_that_is_dropped_ends_its_threads() -> None:
    pool = Workers(3)
    threads = pool._shared.threads
    for _ in range(5):
        pool.put(Call(num_parts=4))

    del pool  # no garbage collection needed

    assert not any(thread.is_alive() for thread in threads)


def test_a_pool_that_is_dropped_with_work_running_waits_for_it() -> None:
    pool, gate, ended = Workers(2), Gate(), threading.Event()

    def run(part: int) -> None:
        gate(part)
        ended.set()

    pool.put(Call(run))
    gate.wait_until_entered()
    threading.Timer(0.05, gate.opened.set).start()
    threads = pool._shared.threads
    del pool

    assert ended.is_set()
    assert not any(thread.is_alive() for thread in threads)


def test_a_pool_in_a_cycle_is_collected() -> None:
    pool = Workers(1)
    threads = pool._shared.threads
    pool.itself = pool  # type: ignore[attr-defined]

    del pool
    gc.collect()

    assert not any(thread.is_alive() for thread in threads)


def test_no_thread_is_left_of_many_pools() -> None:
    before = threading.active_count()

    for number in range(30):
        pool = Workers(4)
        pool.put(Call(num_parts=8))
        if number % 2:
            pool.close()
        del pool

    assert threading.active_count() == before


def test_a_part_that_never_ends_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers_module, "_JOIN_TIMEOUT_S", 0.1)
    pool, gate = Workers(2, name="reader"), Gate()
    pool.put(Call(gate))
    gate.wait_until_entered()

    with caplog.at_level(logging.WARNING, "loaders.workers"):
        pool.close()
    gate.opened.set()
    for thread in pool._shared.threads:
        thread.join(TIMEOUT_S)

    assert "did not end within" in caplog.text
    assert "reader-" in caplog.text


def test_threads_that_cannot_be_started_leave_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def fail_at_the_third(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_the_third)
    with pytest.raises(RuntimeError):
        Workers(5)
    gc.collect()

    for thread in started:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


# -- processes ---------------------------------------------------------------------------------


def run_python(code: str, **options: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    head = "import os, signal, sys, threading, time\nfrom loaders.workers import Workers\n" + JOB
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", head + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )
    return done, time.monotonic() - began


JOB = """
class Job:
    num_parts, needs_prefetch = 4, False
    def __init__(self, function):
        self.function = function
    def run(self, part):
        self.function()
    def finish(self):
        return "done"
    def describe(self, part):
        return "a job"

entered = threading.Event()
def slow():
    entered.set()
    time.sleep(0.2)
pool = Workers(2)
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_the_interpreter_exits_with_work_in_flight() -> None:
    done, seconds = run_python("for _ in range(50): pool.put(Job(slow))\nentered.wait(5)\n")

    assert (done.returncode, done.stderr) == (0, "")
    assert seconds < 10  # and not 50 * 4 * 0.2 / 2 = 20


def test_the_interpreter_exits_with_an_idle_pool_in_a_global() -> None:
    done, seconds = run_python("pool.put(Job(int)); print(pool.take())\n")

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert seconds < 10


def test_the_interpreter_exits_by_an_error_with_work_in_flight() -> None:
    done, _ = run_python(
        "pool.put(Job(slow)); entered.wait(5); raise ValueError('of the trainer')\n"
    )

    assert done.returncode == 1
    assert done.stderr.strip().endswith("ValueError: of the trainer")


def test_a_part_that_never_ends_does_not_keep_the_interpreter() -> None:
    done, seconds = run_python(
        "import loaders.workers; loaders.workers._JOIN_TIMEOUT_S = 0.3\n"
        "def stuck():\n    entered.set(); time.sleep(1000)\n"
        "pool.put(Job(stuck)); entered.wait(5)\n"
    )

    assert done.returncode == 0
    assert seconds < 10
    assert "did not end within" in done.stderr


@needs_fork
def test_a_forked_child_gets_an_error_not_a_hang() -> None:
    done, seconds = run_python("""
pool.put(Job(int))
pool.take()
pool.put(Job(slow))
entered.wait(5)
pid = os.fork()
if not pid:
    for call in (pool.take, lambda: pool.take(timeout_s=1), lambda: pool.put(Job(int))):
        try:
            call()
        except RuntimeError as error:
            print(error, flush=True)
    pool.close()
    print(len(pool), flush=True)
    sys.exit(0)
print(os.waitpid(pid, 0)[1], pool.take())
""")

    assert done.returncode == 0
    *child, parent = done.stdout.splitlines()
    assert child == ["these workers are threads of the parent of this forked process"] * 3 + ["0"]
    assert parent == "0 done"
    assert seconds < 10


@needs_fork
def test_a_forked_child_exits_and_leaves_the_parents_pool_alone() -> None:
    done, seconds = run_python("""
for _ in range(5):
    pool.put(Job(slow))
entered.wait(5)
pid = os.fork()
if not pid:
    del pool
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print([pool.take() for _ in range(5)])
""")

    assert done.stdout.split("\n")[:2] == ["7", str(["done"] * 5)]
    assert (done.returncode, done.stderr) == (0, "")
    assert seconds < 15


@needs_fork
def test_a_forked_child_may_have_a_pool_of_its_own() -> None:
    done, _ = run_python("""
pool.put(Job(slow))
pid = os.fork()
if not pid:
    mine = Workers(2)
    mine.put(Job(int))
    print(mine.take(), flush=True)
    mine.close()
    sys.exit(0)
print(os.waitpid(pid, 0)[1])
""")

    assert done.stdout.split() == ["done", "0"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_control_c_interrupts_the_wait_and_the_pool_goes_on() -> None:
    done, seconds = run_python("""
gate = threading.Event()
def wait():
    entered.set()
    gate.wait(60)
pool.put(Job(wait))
entered.wait(5)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    pool.take()
except KeyboardInterrupt:
    print("interrupted")
gate.set()
print(pool.take(timeout_s=10))
""")

    assert done.stdout.split() == ["interrupted", "done"]
    assert (done.returncode, done.stderr) == (0, "")
    assert seconds < 10


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_control_c_ends_a_process_that_waits() -> None:
    done, seconds = run_python("""
pool.put(Job(slow))
pool.put(Job(lambda: time.sleep(1)))
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
while True:
    pool.take()
    pool.put(Job(slow))
""")

    assert done.returncode in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    assert seconds < 15


# -- prefetch ----------------------------------------------------------------------------------


class ReadsAhead(Call):
    """Calls another function when it is to ask."""

    needs_prefetch = True

    def __init__(self, ask: Callable[[], Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ask = ask

    def prefetch(self) -> None:
        self._ask()


def test_jobs_ask_while_all_workers_are_busy_with_earlier_ones() -> None:
    pool, gate, asked = Workers(2), Gate(), Gate()
    asked.opened.set()

    for number in range(4):
        pool.put(ReadsAhead(partial(asked, number), gate, num_parts=2))
    asked.wait_until_entered(4)
    assert pool.num_ready == 0
    gate.opened.set()
    found = [pool.take(timeout_s=TIMEOUT_S) for _ in range(4)]
    pool.close()

    assert found == [[0, 1]] * 4


def test_jobs_ask_in_order_and_only_those_that_have_something_to_ask_for() -> None:
    noted: list[int] = []
    pool, gate = Workers(1), Gate()
    for number in range(6):
        job = ReadsAhead(partial(noted.append, number), gate)
        job.needs_prefetch = number % 2 == 0
        pool.put(job)
    wait_until(lambda: len(noted) == 3)
    gate.opened.set()
    for _ in range(6):
        pool.take(timeout_s=TIMEOUT_S)
    pool.close()

    assert noted == [0, 2, 4]


def test_an_error_in_reading_ahead_is_left_to_the_part_that_meets_it() -> None:
    pool = Workers(2)
    for number in range(20):
        ask = partial(raise_, SystemExit() if number % 2 else OSError("no storage"))
        pool.put(ReadsAhead(ask, lambda part, number=number: number))
    found = [pool.take(timeout_s=TIMEOUT_S) for _ in range(20)]
    pool.close()

    assert found == [[number] for number in range(20)]


def test_reading_ahead_that_hangs_holds_nothing_back_and_is_in_the_report() -> None:
    pool, gate = Workers(1), Gate()

    pool.put(ReadsAhead(partial(gate, 0), name="a slow disk"))
    gate.wait_until_entered()
    assert "prefetching for a slow disk, part 0 for" in pool.describe()
    assert pool.take(timeout_s=TIMEOUT_S) == [0]
    late = ReadsAhead(partial(gate, 0))
    reference = weakref.ref(late)
    pool.put(late)
    del late
    assert pool.take(timeout_s=TIMEOUT_S) == [0]

    wait_until(lambda: reference() is None)  # its batch is not kept until it can ask
    gate.opened.set()
    pool.close()
    assert not gate.entered.acquire(blocking=False)


def test_reading_ahead_makes_no_worker_busy() -> None:
    pool, asked = Workers(1), Gate()
    pool.put(ReadsAhead(partial(asked, 0)))
    asked.wait_until_entered()
    pool.take(timeout_s=TIMEOUT_S)
    pool.put(Call())

    assert pool.take(timeout_s=TIMEOUT_S) == [0]
    assert "prefetching" in pool.describe()  # it still does
    asked.opened.set()
    pool.close()


def test_who_asked_keeps_no_batch_alive() -> None:
    """Neither where the worker was faster, and there is nothing left to ask for."""
    pool = Workers(1)
    for still_has in (True, False):
        job = ReadsAhead(lambda: None)
        pool.put(job)
        assert pool.take(timeout_s=TIMEOUT_S) == [0]
        job.needs_prefetch = still_has
        reference = weakref.ref(job)
        del job
        wait_until(lambda: reference() is None)  # noqa: B023
    pool.close()


def test_closing_drops_what_has_not_asked() -> None:
    noted: list[int] = []
    pool, gate = Workers(1), Gate()
    pool.put(ReadsAhead(partial(gate, 0), gate))
    pool.put(ReadsAhead(partial(noted.append, 1), gate))
    gate.wait_until_entered(2)
    closing = threading.Thread(target=pool.close)
    closing.start()
    wait_until(lambda: not pool._close.alive)
    gate.opened.set()
    closing.join(TIMEOUT_S)

    assert not closing.is_alive()
    assert noted == []
    assert not any(thread.is_alive() for thread in pool._shared.threads)


class _Holds:
    """A job whose second part waits for what the first one holds, while that one lets the pool go."""

    num_parts, needs_prefetch = 2, False

    def __init__(self, pools: list[Workers]) -> None:
        self._pools, self._lock = pools, threading.Lock()
        self._is_held = threading.Event()

    def run(self, part: int) -> None:
        if part:
            assert self._is_held.wait(10)
            with self._lock:
                return
        with self._lock:
            self._is_held.set()
            time.sleep(0.2)  # the other part is at the lock
            self._pools.clear()  # as a collection of garbage would, which may begin anywhere

    def prefetch(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def describe(self, part: int) -> str:
        return f"part {part}"


def test_a_pool_that_ends_on_one_of_its_own_threads_waits_for_no_other() -> None:
    """Garbage may be collected in the middle of a job, by a thread that holds what the others wait for."""
    pools = [Workers(2)]
    threads = [*pools[0]._shared.threads]
    pools[0].put(_Holds(pools))

    began = time.monotonic()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    assert time.monotonic() - began < 10


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="the system does not say")
def test_what_the_threads_took_of_the_processor_is_told() -> None:
    pool = Workers(1)
    hashlib.sha256(bytes(64 << 20))  # of this thread
    before = pool.cpu_s
    pool.put(Call(lambda _: hashlib.sha256(bytes(64 << 20)).digest()))
    pool.take()
    after = pool.cpu_s
    pool.close()

    assert before < 0.01 < after
