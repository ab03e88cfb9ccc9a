import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import loaders
from loaders.cached import cached_property


class Numbers:
    """Something whose property takes a while if it is told to wait."""

    def __init__(self) -> None:
        self.num_computed = 0
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    @cached_property
    def numbers(self) -> list[int]:
        """Three of them."""
        self.begun.set()
        assert self.go.wait(60)
        self.num_computed += 1
        return [1, 2, 3]


def test_it_is_computed_once_and_can_be_dropped() -> None:
    one = Numbers()

    assert one.numbers is one.numbers
    del one.__dict__["numbers"]
    assert one.numbers == [1, 2, 3]
    assert one.num_computed == 2
    described: Any = Numbers.numbers
    assert described.__doc__ == "Three of them."


def test_a_process_that_is_forked_while_a_thread_computes_it_can_compute_its_own() -> None:
    slow = Numbers()
    slow.go.clear()
    thread = threading.Thread(target=lambda: slow.numbers)
    thread.start()
    assert slow.begun.wait(60)

    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        os._exit(len(Numbers().numbers))
    _, status = os.waitpid(pid, 0)
    slow.go.set()
    thread.join()

    assert os.waitstatus_to_exitcode(status) == 3


def test_no_other_is_used() -> None:
    """That of ``functools`` has a lock until Python 3.12, which a fork may have for good."""
    files = Path(loaders.__file__).parent.rglob("*.py")
    imports = re.compile(r"^from functools import .*cached_property", re.MULTILINE)

    assert [str(file) for file in files if imports.search(file.read_text())] == []
