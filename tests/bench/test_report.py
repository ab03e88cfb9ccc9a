import json
import math
import re

import pytest

from loaders.bench.measure import Config, Result, TimedPass
from loaders.bench.report import (
    as_json,
    conditions,
    last_line,
    of_error,
    table,
)
from loaders.bench.sweep import Sweep
from loaders.errors import LoadersError
from loaders.text import in_seconds, number


def a_sweep() -> Sweep:
    slow = [
        TimedPass(rate, 0.25, waits, 80, pss_bytes=200 << 20)
        for rate, waits in ((900.0, [0.01, 0.03]), (1000.0, [0.012, 0.011]), (1000.0, [0.01]))
    ]
    quick = TimedPass(4000.0, 2.0, [4e-6], 80, pss_bytes=3 << 29)
    error = "OSError: Caught in a worker.\nTraceback:\nOSError: no room"
    return Sweep(
        "d",
        [
            Result(Config(0, 8, "thread"), slow),
            Result(Config(2, 8, "process", 4), [quick]),
            Result(Config(4, 8, "thread"), error=error),
        ],
        num_samples=100,
    )


def test_the_table_has_every_figure_in_its_unit_and_marks_the_choice() -> None:
    """What all settings share stands above; what failed and what is to be known below."""
    head, columns, *rows = table(a_sweep()).splitlines()

    assert head.startswith("batch 8, range")
    assert re.split(r" {2,}", columns.strip()) == [
        "workers", "backend", "prefetch", "samples/s", "range", "first", "p99 wait", "memory",
    ]  # fmt: skip
    cells = [re.split(r" {2,}", row.strip()) for row in rows[:3]]
    assert cells == [
        ["0", "thread", "-", "1,000", "900-1,000", "250 ms", "30 ms", "200.0 MiB"],
        ["*", "2", "process", "4", "4,000", "4,000-4,000", "2 s", "4 us", "1.5 GiB"],
        ["4", "thread", "-", "-", "-", "-", "-", "0 bytes"],
    ]
    assert rows[3].startswith("* chosen: num_workers=2")
    assert "OSError: no room" in rows[4]
    assert rows[5].startswith("note: 100 samples are too few to measure")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no good"), "ValueError: no good"),
        (OSError("Caught in a worker.\nTraceback:\nOSError: no room\n"), "OSError: OSError: no room"),
        (KeyError(), "KeyError: "),
        (LoadersError("the shard is gone"), "the shard is gone"),
    ],
)  # fmt: skip
def test_an_error_is_told_in_a_line(error: Exception, said: str) -> None:
    assert of_error(error) == said
    assert last_line("") == ""


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "-"), (0.00012345, "0.000123"), (99.96, "100"), (-1234.5, "-1,234")]
)  # fmt: skip
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert number(value) == said


def test_times_have_the_unit_that_suits_them() -> None:
    assert [in_seconds(x) for x in (math.nan, 2e-6, 1e-3, 1.0)] == ["-", "2 us", "1 ms", "1 s"]


def test_what_is_no_number_is_null_in_json() -> None:
    """Also deep inside: NaN and infinity are no JSON."""
    value = {"a": [math.nan, (1.5, math.inf)], 2: {"b": "x"}}

    assert json.loads(as_json(value)) == {"a": [None, [1.5, None]], "2": {"b": "x"}}


def test_conditions_say_where_and_with_what() -> None:
    found = conditions()

    assert list(found) == [
        "machine", "cores_usable", "cores", "load_average", "gpu", "python", "torch",
    ]  # fmt: skip
    assert 1 <= found["cores_usable"] <= found["cores"]
