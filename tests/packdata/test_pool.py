"""Ordered work on threads: results in order, errors in their place, and only so much in flight."""

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


@pytest.mark.parametrize("nbytes", [1 << 20, 64 << 20])
def test_large_results_are_few_in_flight(nbytes: int) -> None:
    """Also where each takes no time, so that chunks would grow."""
    lock, made, most = threading.Lock(), 0, 0

    def work(item: int) -> int:
        nonlocal made
        with lock:
            made += 1
        return item

    with OrderedPool(work, 2, lambda _: nbytes, max_bytes=16 << 20) as pool:
        for taken, _ in enumerate(pool.map(range(400))):
            most = max(most, made - taken)

    # Three chunks are in flight at least, and one may be half taken.
    assert most <= 4 * max(1, (16 << 20) // nbytes // 3) + 3


def test_without_threads_one_result_is_made_at_a_time() -> None:
    made: list[int] = []

    with OrderedPool(made.append, 0) as pool:
        for number, _ in enumerate(pool.map(range(300))):
            assert made == list(range(number + 1))
