"""Rows of numbers, also those so large that LMDB gives each a value of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packdata
from loaders.data import view
from loaders.schema import Array, Features
from packdata.cli import main
from packdata.inspect.stats import stats
from tests.packdata.reading import PackedReader

FORMATS = ["lmdb", "parquet"]


@pytest.fixture(params=FORMATS)
def wide(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Eight rows of 1,100 columns: c0 is 0, 0, 1, 1, ..."""
    rows = np.arange(8 * 1100, dtype=np.float32).reshape(8, 1100)
    rows[:, 0] = np.arange(8) // 2
    field = Features(columns=tuple(f"c{i}" for i in range(1100)))
    samples = [{"features": row} for row in rows]
    packdata.pack(samples, tmp_path / "wide", {"features": field}, format=request.param)
    return tmp_path / "wide"


def first_column(folder: Path) -> list[float]:
    return PackedReader(folder).column("features")[:, 0].tolist()  # type: ignore[no-any-return]


def test_the_commands_work_on_wide_tables(wide: Path, tmp_path: Path) -> None:
    where = ["copy", str(wide), str(tmp_path / "some"), "--where", "c0 > 1"]
    parts = ["--parts", "a=0.5", "b=0.5", "--stratify", "c0"]

    assert main(where) == 0
    assert main(["split", str(wide), str(tmp_path / "parts"), *parts]) == 0

    columns = stats(wide).fields["features"]["columns"]
    assert columns["c0"]["mean"] == 1.5
    assert columns["c1099"]["max"] == 8 * 1100 - 1
    assert first_column(tmp_path / "some") == [2, 2, 3, 3]
    assert sorted(first_column(tmp_path / "parts/a")) == [0, 1, 2, 3]


@pytest.mark.parametrize("format", FORMATS)
def test_stats_of_embeddings(tmp_path: Path, format: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 1024)).astype(np.float32)
    fields = {"e": Array(dtype="float32", dims=(1024,))}
    packdata.pack([{"e": row} for row in rows], tmp_path / "p", fields, format=format)

    about = stats(tmp_path / "p").fields["e"]

    assert about["mean"] == pytest.approx(rows.mean(dtype=float))
    assert about["std"] == pytest.approx(rows.std(dtype=float))


@pytest.mark.parametrize("piece_bytes", [1, 10_000])
def test_rows_come_in_pieces(
    wide: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(view, "_PIECE_BYTES", piece_bytes)

    pieces = list(PackedReader(wide).blocks("features"))

    assert [len(piece) for piece in pieces] == [max(1, piece_bytes // 4400)] * len(pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), PackedReader(wide).column("features"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["array", "table"])
def test_a_float_equals_the_number_that_was_packed(tmp_path: Path, dtype: str, kind: str) -> None:
    field: Any = Array(dtype=dtype) if kind == "array" else Features(dtype=dtype, columns=("x",))
    numbers = np.array([0.1, 0.3, 0.7], dtype).reshape(3, *field.dims)
    packdata.pack([{"x": number} for number in numbers], tmp_path / "p", {"x": field})

    for i, where in enumerate(("x == 0.3", "x <= 0.3", "x > 0.1", "x in (0.1, 0.7)")):
        assert main(["copy", str(tmp_path / "p"), str(tmp_path / f"{i}"), "--where", where]) == 0

    assert [len(PackedReader(tmp_path / f"{i}")) for i in range(4)] == [1, 2, 2, 2]
