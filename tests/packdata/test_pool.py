"""Ordered work on threads: results in order, errors in their place, and only so much in flight."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from packdata.packing.pool import OrderedPool
from tests.refusals import At


def collect(results: Iterator[int], taken: list[int]) -> None:
    for result in results:
        taken.append(result)  # noqa: PERF402  (an error would lose them)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
def test_results_come_in_the_order_of_items(num_workers: int) -> None:
    def work(item: int) -> int:
        time.sleep(0.003 * (item % 7 == 0))
        return 2 * item

    with OrderedPool(work, num_workers) as pool:
        assert list(pool.map(range(200))) == list(range(0, 400, 2))


def test_what_was_done_before_an_error_comes_before_it() -> None:
    def work(item: int) -> int:
        if item == 57:
            raise ValueError(item)
        return item

    taken: list[int] = []
    with OrderedPool(work, 2) as pool, pytest.raises(ValueError, check=At(args=(57,))):
        collect(pool.map(range(500)), taken)

    assert taken == list(range(57))


@pytest.mark.parametrize("num_small", [0, 3000])
@pytest.mark.parametrize("nbytes", [1 << 20, 64 << 20])
def test_large_results_are_few_in_flight(nbytes: int, num_small: int) -> None:
    """Also where each takes no time, so that chunks would grow, and where those before were small."""
    lock, made, most = threading.Lock(), 0, 0

    def size_of(item: int) -> int:
        return nbytes if item >= num_small else 1

    def work(item: int) -> int:
        nonlocal made
        with lock:
            made += size_of(item)
        return item

    with OrderedPool(work, 2, size_of, max_bytes=16 << 20) as pool:
        for result in pool.map(range(num_small + 400)):
            most = max(most, made)
            made -= size_of(result)
            time.sleep(0.0005 * (result >= num_small))

    # Each thread makes its share of the memory once there is room, and one is taken.
    assert most <= (16 << 20) + 3 * max(nbytes, (16 << 20) // 3 + nbytes)


def test_it_ends_while_threads_wait_for_room() -> None:
    with OrderedPool(int, 3, lambda _: 1 << 20, max_bytes=4 << 20) as pool:
        results = pool.map(range(1000))
        assert next(results) == 0
        began = time.monotonic()

    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_a_program_ends_that_closed_no_pool_whose_threads_wait_for_room() -> None:
    program = """
from packdata.packing.pool import OrderedPool
pool = OrderedPool(int, 2, lambda _: 100, max_bytes=200)
for item in range(100):
    pool.put(item)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=30)

    assert done.returncode == 0


def test_without_threads_one_result_is_made_at_a_time() -> None:
    made: list[int] = []

    with OrderedPool(made.append, 0) as pool:
        for number, _ in enumerate(pool.map(range(300))):
            assert made == list(range(number + 1))
