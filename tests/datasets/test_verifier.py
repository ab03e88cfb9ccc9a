import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.data import verify as module
from loaders.data.columns import FixedColumn
from loaders.data.finder import Rows
from loaders.data.formats.checksums import checksum_column, hash_block
from loaders.data.shards import OpenShard
from loaders.data.verify import Verifier
from loaders.errors import ChecksumError

LARGE, SMALL = 20_000, 3_000  # bytes a row: hashed one by one, and 21 together


class Shards:
    """Shards in memory, of which some have no checksums."""

    def __init__(self, sizes: list[int], nbytes: int, unchecked: tuple[int, ...] = ()) -> None:
        rng = np.random.default_rng(0)
        self.columns = [
            FixedColumn(rng.integers(0, 256, (size, nbytes), np.uint8)) for size in sizes
        ]
        self.ends = np.cumsum(sizes, dtype=np.int64)
        self.starts = self.ends - np.array(sizes, np.int64)
        self.opened = Counter[int]()
        self.open = [
            OpenShard(Path(f"{i}"), {"x": c}, {} if i in unchecked else {"x": checksum_column(c)})
            for i, c in enumerate(self.columns)
        ]

    def verifier(self, *, always: bool = False) -> Verifier:
        return Verifier("x", self.starts, self.open.__getitem__, always=always)

    def of(self, indices: Any) -> Rows:
        indices = np.asarray(indices, np.int64)
        return Rows(indices, np.searchsorted(self.ends, indices, "right"))


def verify(shards: Shards, verifier: Verifier, indices: Any) -> None:
    unknown = verifier.unknown(shards.of(indices))
    if unknown is not None:
        verifier.verify(unknown)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Count what is hashed, by its first bytes."""
    counts, lock = Counter[bytes](), threading.Lock()

    def count(data: Any) -> None:
        with lock:
            counts[bytes(memoryview(data).cast("B")[:16])] += 1

    def block_of(column: FixedColumn, block: int, rows: int) -> int:
        count(np.ascontiguousarray(column.data[block * rows]).data)
        return hash_block(column, block, rows)

    monkeypatch.setattr(module, "hash_block", block_of)
    return counts


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    data=st.data(),
)
def test_every_block_is_verified_when_it_is_first_read_and_not_again(
    sizes: list[int], data: st.DataObject
) -> None:
    shards = Shards(sizes, LARGE)
    verifier, seen = shards.verifier(), set[int]()
    for _ in range(4):
        indices = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=40))
        found = verifier.unknown(shards.of(indices))
        new = sorted(set(indices) - seen)
        places = [] if found is None else found[1]
        assert sorted(int(shards.starts[n]) + row for n, row, _ in places) == new
        verify(shards, verifier, indices)
        seen |= set(indices)
    verify(shards, verifier, range(sum(sizes)))

    assert verifier.unknown(shards.of(range(sum(sizes)))) is None


@pytest.mark.parametrize("nbytes", [LARGE, SMALL])
def test_an_epoch_hashes_every_block_once(hashed: Counter[bytes], nbytes: int) -> None:
    shards = Shards([50, 7, 30], nbytes)
    verifier = shards.verifier()
    order = np.random.default_rng(1).permutation(87)

    for _ in range(2):
        for first in range(0, 87, 10):
            verify(shards, verifier, order[first : first + 10])

    rows = 1 if nbytes == LARGE else 21
    blocks = [
        c.data[first, :16].tobytes() for c in shards.columns for first in range(0, len(c), rows)
    ]
    assert hashed == Counter(blocks)


def test_a_shard_that_comes_twice_is_hashed_once(hashed: Counter[bytes]) -> None:
    """As where a dataset is joined to itself."""
    shards = Shards([4, 4], LARGE)
    shards.open[1] = shards.open[0]
    verifier = shards.verifier()

    verify(shards, verifier, range(6))
    verify(shards, verifier, range(8))

    assert list(hashed.values()) == [1, 1, 1, 1]
    assert verifier.is_done


def test_always_is_every_time(hashed: Counter[bytes]) -> None:
    shards = Shards([4], LARGE)
    verifier = shards.verifier(always=True)

    for _ in range(3):
        verify(shards, verifier, [2, 2, 1])

    assert sorted(hashed.values()) == [3, 3]


@pytest.mark.parametrize(
    ("nbytes", "row", "said"), [(LARGE, 17, "row 17"), (SMALL, None, " (one of rows 0 to 20)")]
)
def test_damage_is_told_with_its_place_and_is_not_forgotten(
    nbytes: int, row: int | None, said: str
) -> None:
    shards = Shards([9, 30, 9], nbytes)
    shards.columns[1].data[17, 5] ^= 1
    verifier = shards.verifier()

    for _ in range(2):
        with pytest.raises(ChecksumError) as caught:
            verify(shards, verifier, [3, 26, 40])
        assert (caught.value.path, caught.value.row, caught.value.field) == (Path("1"), row, "x")
        assert said in str(caught.value)
        assert str(caught.value).count("row") == 1
    verify(shards, verifier, [3, 40])


def test_what_two_found_at_once_counts_once() -> None:
    shards = Shards([4], LARGE)
    verifier = shards.verifier()
    found = [verifier.unknown(shards.of([0, 1])) for _ in range(2)]

    for each in found:
        assert each is not None
        verifier.verify(each)

    assert verifier.unknown(shards.of([0, 1])) is None
    left = verifier.unknown(shards.of([1, 2, 3]))
    assert left is not None
    assert [row for _, row, _ in left[1]] == [2, 3]


def test_a_shard_that_two_open_at_once_is_counted_once() -> None:
    shards = Shards([4], LARGE)
    verifier = shards.verifier()

    verifier._open([0])
    verifier._open([0])
    verify(shards, verifier, range(4))

    assert verifier.unknown(shards.of(range(4))) is None
    assert (verifier._known.are_all(), verifier._num_closed) == (True, 0)


def test_shards_without_checksums_are_taken_as_they_are() -> None:
    shards = Shards([5, 5], LARGE, unchecked=(0,))
    shards.columns[0].data[:] = 0
    verifier = shards.verifier()

    assert verifier.unknown(shards.of(range(5))) is None
    verify(shards, verifier, range(10))
    assert verifier.unknown(shards.of(range(10))) is None
    assert verifier.is_done


def test_many_threads_leave_nothing_unverified() -> None:
    """Shards are opened, and their blocks numbered, by whoever comes first."""
    shards = Shards([6] * 30, SMALL)
    shards.columns[23].data[5, 0] ^= 1
    verifier, barrier = shards.verifier(), threading.Barrier(4)

    def work(number: int) -> int:
        barrier.wait(60)
        failed = 0
        for row in np.random.default_rng(number).permutation(180).tolist():
            try:
                verify(shards, verifier, [row])
            except ChecksumError:
                failed += 1
                assert row // 6 == 23
        return failed

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [6] * 4
    found = verifier.unknown(shards.of(range(180)))
    assert found is not None
    assert [shard for shard, _, _ in found[1]] == [23]
