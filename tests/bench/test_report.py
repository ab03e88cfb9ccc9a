from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

import pytest

from loaders.bench.measure import Config, Result, Run
from loaders.bench.report import (
    aligned,
    as_json,
    conditions,
    cpu_name,
    in_bytes,
    in_seconds,
    last_line,
    number,
    of_error,
    table,
    users_traceback,
)
from loaders.bench.sweep import Sweep
from loaders.errors import LoadersError

if TYPE_CHECKING:
    from pathlib import Path


def a_sweep() -> Sweep:
    slow = [
        Run(rate, 0.25, waits, 80, 4000.0, 2.5, peak_pss_bytes=200_000_000)
        for rate, waits in (
            (900.0, [0.01, 0.03]),
            (1000.0, [0.012, 0.011]),
            (1000.0, [0.01, 0.014]),
        )
    ]
    quick = Run(
        4000.0, 2.0, [4e-6], 80, 4000.0, 0.0, peak_pss_bytes=1_500_000_000, read_bytes=8192
    )
    return Sweep(
        "d",
        [
            Result(Config(0, 8, "thread"), slow),
            Result(Config(2, 8, "process", 4), [quick]),
            Result(
                Config(4, 8, "thread"),
                error="OSError: Caught in a worker.\nTraceback:\nOSError: no room",
            ),
        ],
        notes=["cold: none was dropped"],
    )


def test_the_table_has_every_figure_in_its_unit_and_marks_the_choice() -> None:
    header, *rows, note = (
        re.split(r" {2,}", line.strip()) for line in table(a_sweep()).splitlines()
    )

    assert header == [
        "workers",
        "batch",
        "backend",
        "prefetch",
        "samples/s",
        "range",
        "MB/s",
        "first batch",
        "wait p50",
        "p99",
        "CPU s/1000",
        "peak PSS",
        "read",
    ]
    assert rows == [
        ["0", "8", "thread", "-", "1,000", "900 to 1,000", "0.5", "250 ms",
         "12 ms", "30 ms", "2.5", "200 MB", "-"],
        ["2", "8", "process", "4", "4,000", "4,000 to 4,000", "2", "2 s",
         "4 us", "4 us", "0", "1.5 GB", "8.19 kB", "<- chosen"],
        ["4", "8", "thread", "-", "failed: OSError: no room"],
    ]  # fmt: skip
    assert note == ["note: cold: none was dropped"]


def test_a_setting_that_fails_in_a_later_run_says_so_beside_its_figures() -> None:
    sweep = a_sweep()
    sweep.results[0].error = "OSError: Caught in a worker.\nTraceback:\nOSError: no room"
    sweep.results[1].error = "OSError: gone"

    rows = table(sweep).splitlines()[1:3]

    assert rows[0].endswith("      -  failed in run 4: OSError: no room")
    assert rows[1].endswith("8.19 kB  <- chosen; failed in run 2: OSError: gone")


def test_workers_that_repeat_each_other_say_so() -> None:
    sweep = a_sweep()
    sweep.is_repeated = True

    rows = table(sweep).splitlines()[1:3]

    assert rows[0].endswith("-  <- chosen")
    assert rows[1].endswith("8.19 kB  each sample 2 times")


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


def breaks() -> None:
    json.loads("{")


def test_a_traceback_begins_with_the_users_own_code() -> None:
    with pytest.raises(ValueError, match="Expecting") as users:
        breaks()
    with pytest.raises(TypeError) as ours:
        number(None)  # type: ignore[arg-type]
    trace = ours.value.__traceback__
    assert trace is not None

    said = users_traceback(users.value).splitlines()

    assert said[0] == "Traceback (most recent call last):"
    assert __file__ in said[1]
    assert said[-1].startswith("json.decoder.JSONDecodeError: Expecting")
    assert users_traceback(ours.value.with_traceback(trace.tb_next)) == ""
    assert users_traceback(ValueError("never raised")) == ""


def test_columns_end_below_each_other_and_a_short_row_goes_beyond_them() -> None:
    rows = [("a", "bb", "c"), ("ddd", "e", "f"), ("g", "a long remark")]

    assert aligned(rows) == ["  a  bb  c", "ddd   e  f", "  g  a long remark"]


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "-"), (0.00012345, "0.000123"), (99.96, "100"), (-1234.5, "-1,234")]
)  # fmt: skip
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert number(value) == said


def test_sizes_and_times_have_the_unit_that_suits_them() -> None:
    assert [in_bytes(x) for x in (999, 1e3, 2.5e9)] == ["999 B", "1 kB", "2.5 GB"]
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


def test_the_processor_has_a_name_where_the_kernel_gives_one(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text(
        "processor : 0\nmodel name\t: Fast(R) 9 @ 3 GHz: new\nmodel name\t: other\n"
    )
    (tmp_path / "arm").write_text("processor : 0\nBogoMIPS : 50\n")

    assert cpu_name(tmp_path / "x86") == "Fast(R) 9 @ 3 GHz: new"
    assert cpu_name(tmp_path / "arm") == cpu_name(tmp_path / "none") != ""
