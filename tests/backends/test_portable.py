import pickle
from typing import Any

import pytest

from loaders.backends.payload import portable
from loaders.errors import SampleError


class NeedsTwo(Exception):
    def __init__(self, what: str, row: int) -> None:
        super().__init__(f"{what} at {row}")
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
    "error",
    [
        SampleError("no image", 7, "a", 3, "k"),
        FileNotFoundError(2, "no such file", "a.jpg"),
        OddNotes("x"),
    ],
)
def test_an_error_keeps_its_type_and_text_and_brings_its_traceback(error: Exception) -> None:
    if not isinstance(error, OddNotes):
        error.add_note("in row 7")

    copy = arrived(error)

    assert str(error) in str(copy)
    if not isinstance(error, OddNotes):
        assert (type(copy), copy.args, vars(copy).keys()) == (
            type(error),
            error.args,
            vars(error).keys(),
        )
        assert copy.__notes__[0] == "in row 7"
    assert "In the loader's child process" in copy.__notes__[-1]


@pytest.mark.parametrize(
    ("error", "text"),
    [(NeedsTwo("no image", 7), "NeedsTwo: no image at 7"), (SaysNothing(), "SaysNothing")],
)
def test_an_error_that_does_not_pickle_arrives_as_text(error: Exception, text: str) -> None:
    copy = arrived(error)

    assert type(copy) is RuntimeError
    assert text in str(copy)
    assert "In the loader's child process" in copy.__notes__[-1]
