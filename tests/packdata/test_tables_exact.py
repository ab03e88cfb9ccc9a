"""Values of tables come out as they went in, however extreme: the right number, or an error that names the row."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from loaders.errors import SourceError
from packdata.tables import pack_tables
from tests.packdata.reading import PackedReader
from tests.refusals import At


def write(folder: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, folder / "t.parquet", **options)
    return folder / "t.parquet"


def write_arrow(folder: Path, table: pa.Table) -> Path:
    with pa.ipc.new_file(folder / "t.feather", table.schema) as writer:
        writer.write_table(table)
    return folder / "t.feather"


def packed(folder: Path, source: Path, **options: Any) -> PackedReader:
    pack_tables(source, folder / "out", **({"dtype": "float64"} | options))
    return PackedReader(folder / "out")


@pytest.mark.parametrize("year", [1, 1677, 2262, 2263, 9999])
def test_int96_holds_every_year_of_a_calendar(tmp_path: Path, year: int) -> None:
    if year < 1678 and int(pa.__version__.split(".")[0]) < 23:
        pytest.skip("Arrow wrote years that nanoseconds do not hold as others, before 23")
    dates = pa.array([datetime.datetime(year, 12, 31, 6)], pa.timestamp("us"))
    source = write(tmp_path, pa.table({"d": dates}), use_deprecated_int96_timestamps=True)

    (day,) = packed(tmp_path, source, dates="days").column("features")[0]

    assert day == datetime.date(year, 12, 31).toordinal() - 719163 + 0.25


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_timestamps_beyond_nanoseconds_are_right(tmp_path: Path, unit: str) -> None:
    dates = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]
    source = write_arrow(tmp_path, pa.table({"d": pa.array(dates, pa.timestamp(unit))}))

    rows = packed(tmp_path, source, dates="days").column("features")

    assert rows[:, 0].tolist() == [-719162, 2932896]


@pytest.mark.parametrize(
    ("dates", "days"),
    [
        (pa.array([2**62], pa.int64()).cast(pa.timestamp("s")), 2**62 / 86400),
        (pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("ms")), -(2**63) / 86400e3),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), 2**31 - 1),
    ],
    ids=["seconds", "milliseconds", "days"],
)
def test_dates_that_microseconds_do_not_hold_are_days(
    tmp_path: Path, dates: pa.Array, days: float
) -> None:
    source = write_arrow(tmp_path, pa.table({"d": dates}))

    (row,) = packed(tmp_path, source, dates="days").column("features")

    np.testing.assert_allclose(row, [days], rtol=1e-15)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_every_unit_are_days(tmp_path: Path, unit: str) -> None:
    dates = [datetime.datetime(1969, 12, 31, 12), datetime.datetime(1970, 1, 3, 6)]
    source = write_arrow(tmp_path, pa.table({"d": pa.array(dates, pa.timestamp(unit))}))

    rows = packed(tmp_path, source, dates="days").column("features")

    assert rows[:, 0].tolist() == [-0.5, 2.25]


def test_decimals_become_the_nearest_float(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cents = rng.integers(0, 10**17, 5000).tolist()
    values = [Decimal(value).scaleb(-7) for value in cents]
    source = write(tmp_path, pa.table({"m": pa.array(values, pa.decimal128(38, 7))}))

    rows = packed(tmp_path, source).column("features")

    assert rows[:, 0].tolist() == [float(value) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1577836800000000001], pa.int64()).cast(pa.timestamp("ns")),
        pa.array([2**60], pa.int64()).cast(pa.timestamp("us")),
        pa.array([0], pa.int64()).cast(pa.timestamp("us", "Mars/Base")),
    ],
    ids=["nanoseconds", "year_38505", "unknown_zone"],
)
@pytest.mark.parametrize("options", [{"dates": "days"}, {"categorical": ("v",)}, {}])
def test_what_python_has_no_value_for_is_packed_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: pa.Array, options: dict[str, Any]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    source = write_arrow(tmp_path, pa.table({"v": values, "x": [1]}))

    if options:
        assert len(packed(tmp_path, source, **options)) == 1
    else:
        with pytest.raises(SourceError, check=At(f"{source}, row 0")):
            pack_tables(source, tmp_path / "out")
