import pickle
import threading
from typing import Any

import pytest

from loaders.backends.portable import portable


class NeedsTwo(Exception):
    def __init__(self, what: str, row: int) -> None:
        super().__init__(f"{what} at {row}")
        self.row = row


class HoldsLock(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.lock = what, threading.Lock()


class LockIsArgument(Exception):
    def __str__(self) -> str:
        return "locked" if isinstance(self.args[0], str) else f"{type(self.args[0]).__name__}"


class NeedsItsLock(HoldsLock):
    def __str__(self) -> str:
        return f"{self.what}: {self.lock.locked()}"


class NotFound(FileNotFoundError):
    def __init__(self, path: str, *, row: int) -> None:
        super().__init__(2, "no such file", path)
        self.row = row


class SaysNothing(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    def __reduce__(self) -> Any:
        raise ValueError("no pickle")


class OddNotes(Exception):
    __notes__ = 5  # type: ignore[assignment]


def arrived(error: BaseException) -> BaseException:
    """Send an error as the child does."""
    copy = pickle.loads(pickle.dumps(portable(error)))
    assert isinstance(copy, BaseException)
    return copy


@pytest.mark.parametrize(
    "error", [NeedsTwo("no image", 7), HoldsLock("busy"), NotFound("a.jpg", row=3), OddNotes("x")]
)
def test_an_error_keeps_its_type_and_text_though_it_does_not_pickle(error: Exception) -> None:
    if not isinstance(error, OddNotes):
        error.add_note("in row 7")

    copy = arrived(error)

    assert type(copy) is type(error)
    assert (str(copy), copy.args) == (str(error), error.args)
    assert "In the loader's child process" in copy.__notes__[-1]
    assert isinstance(error, OddNotes) or copy.__notes__[0] == "in row 7"
    assert getattr(copy, "row", None) == getattr(error, "row", None)


def test_an_error_that_has_no_text_arrives() -> None:
    copy = arrived(SaysNothing())

    assert type(copy) is SaysNothing
    assert "In the loader's child process" in copy.__notes__[-1]


def test_an_error_of_a_type_that_does_not_pickle_and_without_text_arrives_as_text() -> None:
    class Local(SaysNothing):
        pass

    copy = arrived(Local())

    assert type(copy) is RuntimeError
    assert str(copy) == "Local: (its text cannot be had: ValueError)"


@pytest.mark.parametrize("error", [NeedsItsLock("busy"), LockIsArgument(threading.Lock())])
def test_an_error_whose_text_needs_what_does_not_pickle_arrives_as_text(error: Exception) -> None:
    copy = arrived(error)

    assert type(copy) is RuntimeError
    assert str(copy) == f"{type(error).__name__}: {error}"
