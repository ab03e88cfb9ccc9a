"""Cells that are cast all at once come out as if each were looked at."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loaders.errors import LoadersError
from packdata import rows as row_files
from packdata.tables import pack_tables
from tests.packdata.reading import PackedReader

ODD = (
    *("007", "00.5", "-07", "+5", "+.5", " 08", "0x10", "1e400", "-1e400", "1e-400", "5.", ".5"),
    *("1e5", "1e", "1_000", "--1", "inf", "-inf", "Infinity", "INF", "nan", "NaN", "nAn", "-nan"),
    *("nan(x)", " nan ", "NA", "N/A", "None", "null", "", " ", " 1", "1 ", "\t3", "-0", "-0.0"),
    *(
        "9007199254740993",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
    ),
    *("true", "False", "2020-02-30", "2020-02-29", "2020-02-29T10", "2020-02-29 10:30:00Z"),
    *(
        "2020-02-29 10:30:00.123456789",
        "2020-02-29T10:30+0200",
        "10:30:00",
        "24:00:00",
        "9999-12-31",
    ),
)
KINDS = {
    "numbers": ("1", "-2.5", "3e2", "0"),
    "dates": ("2020-01-05", "1969-12-31 23:59:59.5"),
    "zoned": ("2020-01-05T00:00:00Z", "1970-01-01T01:00:00+01:00"),
    "texts": ("a", "no 05", "0123"),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"missing": "nan"},
    {"missing": "mean", "missing_values": ("7", "none")},
    {"categorical": ("a",)},
    {"numeric": ("a",), "on_error": "skip", "missing": "nan"},
    {"target": ("a",)},
)


def outcome(source: Path, folder: Path, options: dict[str, Any]) -> Any:
    """Return all that comes of a table: an error in words, or fields, notes and bytes."""
    try:
        notes = pack_tables(source, folder, workers=1, dtype="float64", **options).notes
    except (LoadersError, ValueError) as error:
        return str(error).replace(str(folder), "")
    reader = PackedReader(folder)
    fields = {name: field.to_json() for name, field in reader.schema.fields.items()}
    return fields, notes, {name: reader.column(name).tobytes() for name in fields}


@settings(max_examples=12)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.tuples(st.sampled_from(ODD), st.booleans()), min_size=1, max_size=3),
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 12),
    st.sampled_from([40, 100, 1000]),
    st.sampled_from(OPTIONS),
    st.sampled_from(["days", None]),
)
@example("numbers", [(" nan ", False)], "texts", 9, 1000, OPTIONS[1], "days")
@example("numbers", [("nAn", False)], "texts", 9, 1000, OPTIONS[1], "days")
@example("numbers", [("nAn", False)], "texts", 9, 1000, OPTIONS[4], "days")
@example("dates", [("007", False)], "dates", 0, 40, OPTIONS[0], None)
@example("texts", [("007", False), ("+5", False), ("+5", False)], "dates", 0, 40, OPTIONS[0], None)
@example("numbers", [("NA", True), ("+5", False)], "texts", 9, 100, OPTIONS[1], "days")
@example("dates", [("", False), ("2020-02-30", False)], "numbers", 9, 100, OPTIONS[1], "days")
def test_odd_cells_are_what_they_are_as_texts(
    kind: str,
    odd: list[tuple[str, bool]],
    other: str,
    at: int,
    size: int,
    options: dict[str, Any],
    dates: str | None,
) -> None:
    plain = [KINDS[kind][i % len(KINDS[kind])] for i in range(24)]
    cells = [
        *plain[: 12 + at],
        *(f'"{c}"' if quoted else c for c, quoted in odd),
        *plain[12 + at :],
    ]
    rows = [f"{cell},{KINDS[other][i % len(KINDS[other])]}" for i, cell in enumerate(cells)]
    options = {**options, "dates": dates}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        source, folder = Path(name) / "t.csv", Path(name)
        source.write_text("\n".join(["a,b", *rows]) + "\n")
        patch.setattr(row_files, "PART_BYTES", size)

        typed = outcome(source, folder / "typed", options)
        for module in ("types", "tables.scan"):
            patch.setattr(f"packdata.{module}.all_as_one", lambda *_: None)
        texts = outcome(source, folder / "texts", options)

    assert typed == texts
