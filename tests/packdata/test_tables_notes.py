"""What packing a table says of its columns: times that are rounded, zones, and numbers that are written as texts."""

from pathlib import Path
from typing import Any

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
    ("options", "names"),
    [
        ({"dates": "days"}, "pickup, dropoff"),
        ({"dates": "days", "dtype": "float64"}, None),
        ({"dates": "parts"}, None),
        ({"dates": "days", "target": ("pickup",), "features": ("day",)}, "pickup"),
    ],
)
def test_times_that_are_rounded_are_named(
    tmp_path: Path, options: dict[str, Any], names: str | None
) -> None:
    notes = notes_of(tmp_path, TIMES, **options)

    assert [note.partition(";")[0] for note in notes] == (
        [] if names is None else [f"float32 rounds values of {names}"]
    )


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
