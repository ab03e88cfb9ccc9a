import mmap
import tempfile
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packdata
from loaders import ShardDataset, concat
from loaders.buffers import Memory
from loaders.data import gather as module
from loaders.data.columns import Column, FixedColumn, VarColumn
from loaders.data.gather import Gather, Take
from loaders.data.gather import take_rows as numpy_take
from loaders.data.shards import Check
from loaders.data.store import Store
from loaders.datasets.reading.fixed import FixedReader
from loaders.datasets.reading.fixed import take_rows as torch_take
from loaders.datasets.reading.samples import SampleBatch
from loaders.schema import Array
from tests.packdata.packing import pack_samples
from tests.refusals import At

MAP_NORESERVE = 0x4000  # of Linux


@st.composite
def shards(draw: st.DrawFn) -> tuple[int, list[Column]]:
    """Return a row size, and shards of either kind, some of them empty."""
    nbytes = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    columns: list[Column] = []
    for num in draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)):
        if draw(st.booleans()):
            columns.append(FixedColumn(rng.integers(0, 256, (num, nbytes), np.uint8)))
        else:
            buffer = rng.integers(0, 256, 300, np.uint8)
            starts = rng.integers(0, 300 - nbytes + 1, num)
            columns.append(VarColumn(buffer, starts, np.full(num, nbytes)))
    return nbytes, columns


@given(shards(), st.integers(0, 99), st.sampled_from([1 << 63, 1 << 30, 0]))
def test_gather_equals_reading_row_by_row(
    case: tuple[int, list[Column]], seed: int, most: int
) -> None:
    """Also where shards of several kinds are mixed, are opened one after the other, or lie far apart."""
    with patch.object(module, "_MAX_ELEMENTS", most):
        check_gather(case, seed, numpy_take)
        check_gather(case, seed, torch_take)


def refuse(shard: int, row: int) -> NoReturn:
    raise AssertionError(f"row {row} of shard {shard} has the size of all")


def check_gather(case: tuple[int, list[Column]], seed: int, take: Take) -> None:
    nbytes, columns = case
    ends = np.cumsum([len(column) for column in columns])
    starts = ends - [len(column) for column in columns]
    gather = Gather(nbytes, starts, columns.__getitem__, refuse, take)
    rng = np.random.default_rng(seed)

    for num in (0, 1, 3, 17, 0) if ends[-1] else (0,):  # none before any is open, and with all
        indices = rng.integers(0, max(ends[-1], 1), num)
        numbers = np.searchsorted(ends, indices, "right")
        out = np.zeros((num, nbytes), np.uint8)
        gather(indices, numbers, out)

        rows = [columns[n].row(int(i - starts[n])) for i, n in zip(indices, numbers, strict=True)]
        assert [*map(bytes, out)] == [*map(bytes, rows)]


def test_large_rows_may_lie_further_apart_than_an_array_can_count() -> None:
    """4 TB of rows of 4 MB, of which three are touched: as of volumes, or of arrays here and there in memory."""
    nbytes, num = 4 << 20, 1 << 20
    try:
        memory = mmap.mmap(-1, num * nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except OSError:
        pytest.skip("so many addresses are not to be had here")
    column = FixedColumn(np.frombuffer(memory, np.uint8).reshape(num, nbytes))
    indices = np.array([num - 1, 0, num // 2])
    for i, row in enumerate(indices.tolist()):
        memory[row * nbytes : row * nbytes + 4] = bytes([i, 1, 2, 3])
    out = np.empty((3, nbytes), np.uint8)

    gather = Gather(nbytes, np.zeros(1, np.int64), lambda _: column, refuse, numpy_take)
    gather(indices, np.zeros(3, np.int64), out)

    assert out[:, :5].tolist() == [[i, 1, 2, 3, 0] for i in range(3)]
    assert not out[:, 4:].any()


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.sampled_from(["lmdb", "parquet"]), st.integers(1, 7)), min_size=1, max_size=3
    ),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_batches_of_packed_rows_equal_their_records(
    parts: list[tuple[str, int]], per_shard: int, seed: int
) -> None:
    """Over shards, sizes and formats, joined."""
    with tempfile.TemporaryDirectory() as folder:
        datasets = [
            ShardDataset(
                pack_samples(
                    Path(folder) / str(i), num, format=format, per_shard=per_shard, seed=i,
                    fields=["pixels", "score"],
                )
            )
            for i, (format, num) in enumerate(parts)
        ]  # fmt: skip
        dataset = concat(datasets)
        indices = np.random.default_rng(seed).integers(0, len(dataset), 9)

        batch = dataset.__getitems__(indices.tolist()).batch

        for name, values in zip(batch._fields, batch, strict=True):
            records = dataset.store.records(name, dataset.view.rows(indices))
            rows = values.permute(0, 2, 3, 1) if name == "pixels" else values
            for row, record in zip(rows, records, strict=True):
                assert row.contiguous().numpy().tobytes() == record.tobytes()


def test_records_of_another_size_are_refused_and_their_neighbours_served(tmp_path: Path) -> None:
    from loaders.data.shards import MemoryShard
    from loaders.data.store import Store
    from loaders.errors import SchemaError, ShardError

    whole = FixedColumn(np.full((3, 4), 7, np.uint8))
    column = VarColumn(np.arange(13, dtype=np.uint8), np.array([0, 4, 9]), np.array([4, 5, 4]))
    shards = [
        MemoryShard(tmp_path / "a", {"x": whole}),
        MemoryShard(tmp_path / "b", {"x": column}),
    ]
    store, out = Store(shards), np.empty((2, 4), np.uint8)

    store.gather("x", store.rows(np.array([5, 2])), out)
    assert out.tolist() == [[9, 10, 11, 12], [7, 7, 7, 7]]
    with pytest.raises(ShardError, check=At("b", row=1, field="x")):
        store.gather("x", store.rows(np.array([1, 4])), out)
    with pytest.raises(SchemaError):
        MemoryShard(
            tmp_path, {"x": column, "y": whole, "z": FixedColumn(np.zeros((2, 1), np.uint8))}
        )


NUM, LARGE, SMALL = 9, 8192, 8  # bytes of a row that is waited for, and of one that is not


@pytest.fixture(params=["lmdb", "parquet"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    fields = {name: Array(dtype="uint8", dims=(n,)) for name, n in (("a", LARGE), ("b", SMALL))}
    rows = (
        {"a": np.full(LARGE, i, np.uint8), "b": np.full(SMALL, i, np.uint8)} for i in range(NUM)
    )
    packdata.pack(rows, tmp_path / "packed", fields, format=request.param, shard_bytes=4 * LARGE)
    return tmp_path / "packed"


@pytest.mark.parametrize(
    ("check", "before", "after"),
    [("first", [], ["a", "b"]), ("never", ["b"], ["a", "b"]), ("always", [], [])],
)
def test_rows_are_found_when_nothing_but_copying_is_left(
    packed: Path, check: Check, before: list[str], after: list[str]
) -> None:
    """When they were waited for and compared, as far as they are to be; the rest is left to ``gather``."""
    store = ShardDataset(packed, check=check).store
    rows = store.rows(np.array([8, 0, 3, 3, 5]))
    sizes = {"a": LARGE, "b": SMALL}

    assert [name for name in sizes if store.find(name, rows, sizes[name])] == before
    plain = {name: np.zeros((5, n), np.uint8) for name, n in sizes.items()}
    for name, out in plain.items():
        store.gather(name, rows, out)
    found = {name: store.find(name, rows, n) for name, n in sizes.items()}
    assert [name for name, each in found.items() if each] == after
    for name, each in found.items():
        part = np.zeros((3, sizes[name]), np.uint8)
        if each is not None:
            each.copy(part, first=1)
            assert (part == plain[name][1:4]).all()
    assert store.find("a", store.rows(np.array([3, 1])), LARGE) is None  # one of them is new


def test_parts_of_a_batch_that_is_only_copied_are_found_once(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(packed)
    monkeypatch.setattr(FixedReader, "min_rows", 1)
    dataset = dataset.replace(fields=["a"])
    finds: list[Any] = []
    find = Store.find

    def noting(self: Store, *args: Any) -> Any:
        finds.append(find(self, *args))
        return finds[-1]

    monkeypatch.setattr(Store, "find", noting)
    for expected in (0, 1):  # the first pass verifies, part by part
        job = dataset.job([8, 0, 3, 3, 5, 1, 2, 4, 6, 7], Memory(), 3)
        assert job.num_parts == 3
        for part in (2, 0, 1):
            job.run(part)
        batch = job.finish()
        assert isinstance(batch, SampleBatch)
        assert batch.batch.a[:, 5].tolist() == [8, 0, 3, 3, 5, 1, 2, 4, 6, 7]
        assert sum(each is not None for each in finds) == expected
        finds.clear()
