"""What packing a table says of its columns: times that are rounded, zones, and numbers that are written as texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packdata.tables import pack_tables, plan_tables
from tests.packdata.reading import PackedReader

UTC = "dates with a time zone are taken in UTC: "
TEXTS = "texts, though perhaps meant as numbers: "


def notes_of(folder: Path, text: str, name: str = "t.csv", **options: Any) -> list[str]:
    (folder / name).write_text(text)
    return plan_tables([folder / name], **options).notes()


TIMES = "pickup,dropoff,day\n2019-03-23 20:21:09,2019-03-23 20:27:24,2019-03-23\n"


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            {"dates": "days"},
            "float32 rounds times in pickup, dropoff to steps of about 3 minutes: "
            "--dates parts, or --dtype float64",
        ),
        ({"dates": "days", "dtype": "float64"}, None),
        ({"dates": "parts"}, None),
        (
            {"dates": "parts", "dtype": "float16"},
            "float16 rounds times in pickup, dropoff to steps of about 1 minute: --dtype float32",
        ),
    ],
)
def test_times_that_are_rounded_are_named(
    tmp_path: Path, options: dict[str, Any], note: str | None
) -> None:
    assert notes_of(tmp_path, TIMES, **options) == ([] if note is None else [note])


def test_the_step_is_that_of_what_is_stored(tmp_path: Path) -> None:
    """Two neighbours among float32 lie as far apart as the note says."""
    text = "at\n" + "".join(f"2019-03-23 20:{m:02}:{s:02}\n" for m in range(20) for s in range(60))
    (tmp_path / "t.csv").write_text(text)

    packed = pack_tables(tmp_path / "t.csv", tmp_path / "out", dates="days")

    days = PackedReader(tmp_path / "out").column("features")[:, 0].astype(np.float64)
    assert round(float(np.diff(np.unique(days)).min() * 24 * 60)) == 3
    assert any("about 3 minutes" in note for note in packed.notes)


def test_dates_without_a_time_are_named_where_days_are_rounded(tmp_path: Path) -> None:
    text = "day\n2019-03-23\n2019-03-24\n"

    assert notes_of(tmp_path, text, dates="days") == []
    assert notes_of(tmp_path, text, dates="days", dtype="float16") == [
        "float16 rounds dates in day to steps of about 16 days: --dates parts, or --dtype float64"
    ]


def test_standardized_times_are_as_fine_as_their_deviation_allows(tmp_path: Path) -> None:
    close = "at\n2019-03-23 20:21:09\n2019-03-23 20:27:24\n"
    far = "at\n1970-03-23 20:21:09\n2019-03-23 20:27:24\n"

    assert notes_of(tmp_path, close, dates="days", standardize=True) == []
    (note,) = notes_of(tmp_path, far, dates="days", standardize=True)
    assert "rounds times in at to steps of about " in note


@pytest.mark.parametrize(
    ("rest", "dtype", "remedy"),
    [("x", "float32", ": --dtype float64"), ("x", "float64", None), ("kind", "float32", "")],
)
def test_a_target_that_is_a_time_is_named(
    tmp_path: Path, rest: str, dtype: str, remedy: str | None
) -> None:
    text = "at,x,kind\n2019-03-23 20:21:09,1,a\n"
    options: dict[str, Any] = {
        "target": ("at",),
        "features": (rest,),
        "dates": "days",
        "dtype": dtype,
    }
    note = f"float32 rounds times in at to steps of about 3 minutes{remedy}"

    assert notes_of(tmp_path, text, **options) == ([] if remedy is None else [note])


@pytest.mark.parametrize(
    "texts", [["a,b", "5%", "c"], ["$", "%"], ["New York, NY", "Paris"], ["5%", "a", "b"]]
)
def test_other_texts_are_not(tmp_path: Path, texts: list[str]) -> None:
    rows = "".join(f'"{text}"\n' for text in texts)

    assert notes_of(tmp_path, f"x\n{rows}") == []


def test_texts_that_are_meant_are_not_named(tmp_path: Path) -> None:
    assert notes_of(tmp_path, "x\n5%\n6%\n", categorical=("x",)) == []


@pytest.mark.parametrize("dates", ["days", "parts"])
def test_a_date_to_predict_is_days_whatever_other_dates_become(tmp_path: Path, dates: str) -> None:
    (tmp_path / "t.csv").write_text("at,x\n1970-01-02,1970-01-03\n1970-01-03,1970-01-04\n")

    pack_tables(tmp_path / "t.csv", tmp_path / "out", target="at", dates=dates)

    assert PackedReader(tmp_path / "out").column("at").tolist() == [1, 2]


def test_missing_values_are_counted_of_the_rows_that_are_packed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,c,y\n1,a,1\n,,2\nNA,b,3\n,b,\n")

    summary = pack_tables(
        tmp_path / "t.csv", tmp_path / "out", target="y", missing="nan", on_error="skip"
    )

    assert "missing values: c (1), x (2)" in summary.notes
    assert summary.counts["missing:x"] == 2
