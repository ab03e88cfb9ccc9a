from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders import RAMDataset, ShardDataset
from loaders.checks import shares as checked_shares
from loaders.division import _deal, check_strata, divide, divide_by_key
from loaders.errors import SchemaError
from loaders.rng import hash64, key64
from loaders.schema import Label, Text
from tests.packdata.packing import pack
from tests.packdata.reading import PackedReader

SHARES = [[0.7, 0.3], [0.5, 0.3, 0.2], [1 / 3] * 3, [0.1], [1.0], [0.25, 0.5]]


def assert_apart(parts: list[Any], num: int) -> None:
    """Every sample is in one part at most, and parts are sorted."""
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert everything.size == 0 or 0 <= everything.min() <= everything.max() < num
    assert all((np.diff(part) > 0).all() for part in parts)


def test_shares_that_are_rounded_leave_no_sample_out() -> None:
    parts = [0.3333331, 0.333333, 0.333333]
    hashes = hash64(key64(1), np.arange(2_000_000))

    shares = checked_shares(parts)

    assert sum(map(len, divide(1_000_000, shares, seed=0))) == 1_000_000
    assert sum(map(len, divide_by_key(hashes, shares, seed=0))) == len(hashes)


@pytest.mark.parametrize("parts", [[0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0]], ids=str)
def test_what_is_no_share_is_refused(parts: list[float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        checked_shares(parts)


@pytest.mark.parametrize("parts", [[0.7, 0.2, 0.1, 0.0], [0.1] * 10 + [0.0], [0.0, 0.7, 0.3, 0.0]])
def test_a_part_without_a_share_gets_nothing(parts: list[float]) -> None:
    found = divide(1_000, checked_shares(parts), seed=0)

    assert [len(part) for part in found] == [round(1_000 * part) for part in parts]
    dataset = RAMDataset.from_arrays(label=np.arange(1_000))
    assert list(map(len, dataset.split(parts))) == [len(part) for part in found]


def test_all_of_a_large_order_is_dealt_out() -> None:
    assert sum(map(len, _deal(np.arange(5_000_000), [0.2, 0.2, 0.6], 0))) == 5_000_000


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("num", [0, 1, 7, 500])
def test_sizes_are_right_to_a_sample(shares: list[float], num: int) -> None:
    strata = np.arange(num) % 3
    for parts in (divide(num, shares, seed=1), divide(num, shares, seed=1, strata=strata)):
        assert_apart(parts, num)
        for part, share in zip(parts, shares, strict=True):
            assert abs(len(part) - num * share) <= 1.01


@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_each_part_has_its_share_of_every_value(shares: list[float]) -> None:
    values = np.random.default_rng(0).choice(12, 500, p=np.arange(1, 13) / 78).astype(np.float32)
    values[values == 3] = np.nan

    parts = divide(500, shares, seed=5, strata=values)

    for part, share in zip(parts, shares, strict=True):
        of_part, of_all = (np.unique(v, return_counts=True) for v in (values[part], values))
        counts = dict(zip(of_part[0].astype(str), of_part[1], strict=True))
        for value, num in zip(of_all[0].astype(str), of_all[1], strict=True):
            assert abs(counts.get(value, 0) - share * num) <= 2


def test_small_strata_are_not_all_rounded_the_same_way() -> None:
    """100 classes of 3: a tenth of each would be none of any."""
    classes = np.arange(300) // 3

    train, val = divide(300, [0.9, 0.1], 0, classes)
    others = [divide(300, [0.9, 0.1], seed, classes)[1] for seed in range(6)]

    assert (len(train), len(val)) == (270, 30)
    assert len({tuple(classes[part].tolist()) for part in others}) > 1, "always the same classes"


def test_a_division_is_the_same_in_every_release() -> None:
    keys = np.arange(12, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    plain, strata = divide(8, [0.5, 0.25], 0), divide(12, [0.5, 0.25], 7, np.arange(12) % 3)
    by_key = divide_by_key(keys, [0.5, 0.5], 7)

    assert [part.tolist() for part in plain] == [[1, 2, 4, 5], [3, 6]]
    assert [part.tolist() for part in strata] == [[0, 1, 5, 6, 10, 11], [4, 8, 9]]
    assert [part.tolist() for part in by_key] == [[0, 3, 4, 5, 7, 8], [1, 2, 6, 9, 10, 11]]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({}, {}),
        ({"stratify": "label"}, {"stratify": "label"}),
        ({"by": "key"}, {"by_key": True}),
    ],
)
def test_a_dataset_divides_as_the_command_does(tmp_path: Path, here: Any, there: Any) -> None:
    rows = [{"label": i % 4, "key": f"k{i}"} for i in range(60)]
    pack(tmp_path / "a", {"label": Label(), "key": Text()}, rows)

    views = ShardDataset(tmp_path / "a", fields=["sample_id"]).split([0.6, 0.4], seed=3, **here)
    parts = PackedReader(tmp_path / "a").divide([0.6, 0.4], seed=3, **there)

    for view, part in zip(views, parts, strict=True):
        assert view.view.numbers_of(np.arange(len(view))).tolist() == part.tolist()


@pytest.mark.parametrize("values", [np.zeros((5, 2)), np.linspace(0, 1, 50)], ids=["two", "many"])
def test_what_divides_nothing_alike_is_refused(values: Any) -> None:
    with pytest.raises(SchemaError):
        check_strata(values, "x")
    with pytest.raises(SchemaError):
        check_strata(np.arange(50), "x")
    check_strata(np.arange(50) // 2, "x")
