"""Statistics: those of all numbers, whatever their size and however they are stored."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import packdata
from loaders.data.manifest import read_manifest
from loaders.schema import Array, Features, Field
from packdata.inspect.stats import stats
from packdata.moments import Moments
from packdata.tables import pack_tables


def found(folder: Path, field: Field, rows: npt.NDArray[Any]) -> dict[str, Any]:
    packdata.pack([{"x": row} for row in rows], folder / "p", {"x": field})
    return stats(folder / "p").fields["x"]


@pytest.mark.parametrize("num_parts", [1, 2, 7])
@pytest.mark.parametrize("mean", [0.0, 1.7e9, -1e10])
def test_floats_far_from_0_keep_their_deviation(num_parts: int, mean: float) -> None:
    values = mean + np.random.default_rng(0).normal(size=1000)

    moments = Moments()
    for part in np.array_split(values, num_parts):
        moments.add(Moments.of(part))

    assert moments.mean == pytest.approx(values.mean())
    assert moments.std == pytest.approx(values.std(), rel=1e-6)
    assert (moments.count, moments.least, moments.most) == (1000, values.min(), values.max())


def test_parts_of_nothing_change_nothing() -> None:
    moments = Moments.of(np.empty(0))

    for part in ([], [1.0, 2.0], [], [3.0]):
        moments.add(Moments.of(np.array(part)))

    assert moments == Moments(3, 2.0, 2.0, 1.0, 3.0)


@pytest.mark.parametrize("parts", [[[1, np.inf]], [[1], [np.inf]], [[np.inf], [1], [2, 3]]])
def test_infinite_numbers_have_no_deviation(parts: list[list[float]]) -> None:
    moments = Moments()

    for part in parts:
        moments.add(Moments.of(np.array(part)))

    assert moments.mean == np.inf
    assert np.isnan(moments.std)
    assert (moments.least, moments.most) == (1, np.inf)


def test_numbers_whose_squares_no_float_holds_are_no_error() -> None:
    moments = Moments.of(np.array([1e200]))

    moments.add(Moments.of(np.array([-1e200])))

    assert (moments.mean, moments.std) == (0.0, np.inf)


@pytest.mark.parametrize("dims", [(), (2,)])
def test_numbers_of_samples_keep_their_deviation(tmp_path: Path, dims: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    times = 1.7e9 + rng.normal(size=(100, *dims))

    about = found(tmp_path / "times", Array(dtype="float64", dims=dims), times)

    assert about["std"] == pytest.approx(times.std(), rel=1e-6)


def test_a_limit_holds_for_arrays_of_several_axes(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(4, 2, 3)
    packdata.pack({"e": values}, tmp_path / "a", {"e": Array(dtype="float32", dims=(2, 3))})

    assert stats(tmp_path / "a", limit=1).fields["e"]["max"] == 5
    assert stats(tmp_path / "a").fields["e"]["max"] == 23


def test_channels_of_volumes_keep_their_deviation(tmp_path: Path) -> None:
    volumes = 1e6 + 0.01 * np.random.default_rng(0).normal(size=(3, 1, 4, 5, 6))
    field = Array(dtype="float64", dims=(1, 4, 5, 6), spatial=3)

    about = found(tmp_path, field, volumes)

    assert about["std"] == pytest.approx([volumes.std()])


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
@pytest.mark.parametrize(
    "counts", [(1, 3), (3, 1, 3), (0, 2)], ids=["more", "fewer", "none at first"]
)
def test_volumes_of_several_numbers_of_channels_are_summed_up_together(
    tmp_path: Path, counts: tuple[int, ...], dtype: Any
) -> None:
    rng = np.random.default_rng(0)
    volumes = [rng.integers(0, 1000, (num, 4, 5, 6)).astype(dtype) for num in counts]
    if dtype == "float32":
        for volume in volumes:
            volume[-1:, 0, 0, 0] = np.nan
    numbers = np.concatenate([volume.reshape(-1) for volume in volumes])
    known = numbers[~np.isnan(numbers)].astype("f8")
    packdata.pack(
        [{"x": volume} for volume in volumes],
        tmp_path / "p",
        {"x": Array(dtype=dtype, dims=(None, 4, 5, 6), spatial=3)},
    )

    about = stats(tmp_path / "p").fields["x"]

    assert about == {
        "kind": "array",
        "min": known.min(),
        "mean": pytest.approx(known.mean()),
        "std": pytest.approx(known.std()),
        "max": known.max(),
        "num_nan": len(numbers) - len(known),
    }


def test_an_infinite_number_makes_the_deviation_nan(tmp_path: Path) -> None:
    about = found(tmp_path, Array(dtype="float32"), np.array([1, 2, np.inf], np.float32))

    assert (about["mean"], about["std"], about["max"]) == ("inf", "nan", "inf")


def test_columns_of_tables_keep_their_deviation(tmp_path: Path) -> None:
    rows = np.array([[1.7e9, 5.0], [1.7e9 + 2, np.nan]])
    field = Features(dtype="float64", columns=("when", "x"))

    about = found(tmp_path, field, rows)["columns"]

    assert about["when"] == {
        "min": 1.7e9, "mean": 1.7e9 + 1, "std": 1.0, "max": 1.7e9 + 2, "num_nan": 0
    }  # fmt: skip
    assert about["x"] == {"min": 5.0, "mean": 5.0, "std": 0.0, "max": 5.0, "num_nan": 1}


def test_more_categories_than_a_byte_counts_are_counted(tmp_path: Path) -> None:
    words = [f"{i:03}" for i in range(300)]
    pack_tables(pa.table({"word": [*words, *words[256:258]], "x": range(302)}), tmp_path / "a")

    (found,) = stats(tmp_path / "a").fields["categories"]["columns"].values()

    assert (found["num_categories"], found["num_unknown"]) == (300, 0)
    assert found["most_frequent"] == {"256": 2, "257": 2} | {f"{i:03}": 1 for i in range(6)}


def test_categories_of_several_shards_are_counted_together(tmp_path: Path) -> None:
    table = pa.table({"word": ["a", "b", "b", "c"] * 5})
    pack_tables(table, tmp_path / "a", shard_bytes=50)

    (found,) = stats(tmp_path / "a").fields["categories"]["columns"].values()

    assert len(read_manifest(tmp_path / "a").shards) > 2
    assert found["most_frequent"] == {"b": 10, "a": 5, "c": 5}
