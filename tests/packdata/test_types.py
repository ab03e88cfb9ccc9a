"""What the text of a cell stands for: the rules that lists, tables and tokens share."""

from typing import Any

import pyarrow as pa
import pytest

from packdata.types import are_names, cast_all, kind_of, kinds_of, parsed, typed


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", " 2", "+3 ", "-4", ""], "int64", [1, 2, 3, -4, None]),
        (["1", "NA", "nan", "null"], "int64", [1, None, None, None]),
        (["1", "3.0", ".5", "5.", "-1e3"], "double", [1, 3, 0.5, 5, -1000]),
        (["1", "inf", "-Infinity"], "double", [1, float("inf"), float("-inf")]),
        (["true", "False", "NA"], "bool", [True, False, None]),
        (["007", "12", ""], "string", ["007", "12", None]),
        (["+07", "-1.5"], "string", ["+07", "-1.5"]),
        (["0", "0.5", "-0"], "double", [0, 0.5, 0]),
        (["9" * 18], "int64", [int("9" * 18)]),
        (["9" * 19, "1"], "string", ["9" * 19, "1"]),
        (["NA", "DE", ""], "string", ["NA", "DE", None]),
        (["1", "x"], "string", ["1", "x"]),
        (["1", "true"], "string", ["1", "true"]),
        (["2024-01-05", "2024-01-05 10:00"], "string", ["2024-01-05", "2024-01-05 10:00"]),
        (["0x1A", "1_000", "1,5"], "string", ["0x1A", "1_000", "1,5"]),
        (["12:30:00"], "string", ["12:30:00"]),
        (["", ""], "string", [None, None]),
        ([], "string", []),
    ],
)
def test_a_column_is_what_all_of_its_cells_are(
    cells: list[str], kind: str, values: list[Any]
) -> None:
    found = typed(pa.chunked_array([pa.array(cells, pa.string())]))

    assert str(found.type) == kind
    assert found.to_pylist() == values


def test_missing_cells_are_missing_whatever_the_others_are() -> None:
    assert typed(pa.array([None, "1"], pa.string())).to_pylist() == [None, 1]
    assert typed(pa.array([None, "a"], pa.large_string())).to_pylist() == [None, "a"]


def test_dates_with_a_zone_are_told_from_those_without() -> None:
    zoned, local = "2024-01-05T10:00+02:00", "2024-01-05T10:00"

    zones = [kind_of({kind}) for kind in ("zoned", "date")]

    assert len({*kinds_of(pa.array([zoned, local])).tolist()}) == 2
    assert zones == ["zoned", "date"]
    assert parsed(pa.array([zoned]), "zoned").cast("timestamp[us]")[0].as_py().hour == 8
    assert parsed(pa.array(["2024-02-30", local]), "date").null_count == 1


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0", "10", "0.5"], False),
        (["1", "01"], True),
        (["-01"], True),
        (["1" * 19], True),
        (["1" * 18, "1.0000000000000000000"], False),
        ([], False),
        (["", "7"], False),
    ],
)
@pytest.mark.parametrize("times", [1, 1000])  # few are matched, many looked at where they begin
def test_zeros_in_front_and_long_numbers_are_found(
    cells: list[str], expected: bool, times: int
) -> None:
    texts = pa.array([cell or None for cell in cells] * times, pa.string())

    assert are_names(texts, texts.cast(pa.float64())) is expected


def test_all_texts_are_cast_or_none() -> None:
    assert cast_all(pa.array(["1", None, "2.5"]), pa.float64()) == pa.array([1, None, 2.5])
    for cells in (["1", "x"], ["1", "nan"], ["1", ""]):
        assert cast_all(pa.array(cells), pa.float64()) is None
