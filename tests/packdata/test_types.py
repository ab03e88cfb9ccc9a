"""What the text of a cell stands for: the rules that lists, tables and tokens share."""

import pyarrow as pa
import pytest

from packdata.types import KINDS, all_as_one, kinds_of, parsed, type_of


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", " 2", "+3 ", "-4", ""], "int"),
        (["1", "NA", "nan", "null"], "int"),
        (["1", "3.0", ".5", "5.", "-1e3"], "float"),
        (["1", "inf", "-Infinity"], "float"),
        (["true", "False", "NA"], "flag"),
        (["007", "12", ""], "text"),
        (["+07", "-1.5"], "text"),
        (["0", "0.5", "-0"], "float"),
        (["9" * 18], "int"),
        (["9" * 19, "1"], "text"),
        (["NA", "DE", ""], "text"),
        (["1", "x"], "text"),
        (["1", "true"], "text"),
        (["2024-01-05", "2024-01-05 10:00"], "text"),
        (["0x1A", "1_000", "1,5"], "text"),
        (["12:30:00"], "text"),
        (["", ""], "text"),
        ([None, "1"], "int"),
        ([None, "a"], "text"),
        ([], "text"),
    ],
)
def test_a_column_is_what_all_of_its_cells_are(cells: list[str | None], kind: str) -> None:
    assert type_of(pa.chunked_array([pa.array(cells, pa.string())])) == kind
    assert type_of(pa.array(cells, pa.large_string())) == kind


def test_dates_with_a_zone_are_told_from_those_without() -> None:
    zoned, local = "2024-01-05T10:00+02:00", "2024-01-05T10:00"

    kinds = [KINDS[code] for code in kinds_of(pa.array([zoned, local]))]

    assert kinds == ["zoned", "date"]
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
@pytest.mark.parametrize("times", [1, 1000])
def test_zeros_in_front_and_long_numbers_are_found(
    cells: list[str], expected: bool, times: int
) -> None:
    texts = pa.array([cell or None for cell in cells] * times, pa.string())

    assert (all_as_one(texts, ["number", "code"]) is None) is expected
    assert all_as_one(texts, ["number"]) == ("number", texts.cast(pa.float64()))


def test_all_texts_are_cast_or_none() -> None:
    found = all_as_one(pa.array(["1", None, "2.5"]), ["number"])

    assert found == ("number", pa.array([1, None, 2.5]))
    for cells in (["1", "x"], ["1", "nan"], ["1", ""]):
        assert all_as_one(pa.array(cells), ["number"]) is None
