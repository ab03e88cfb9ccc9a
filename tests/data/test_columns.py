import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.data.columns import FixedColumn, VarColumn, ends, var_column
from tests.columns import fixed_column


@given(st.lists(st.binary(max_size=40)))
def test_rows_of_any_size_come_back(rows: list[bytes]) -> None:
    column = var_column(rows)

    assert len(column) == len(rows)
    assert column.nbytes == sum(map(len, rows))
    assert [column.row(i).tobytes() for i in range(len(rows))] == rows


@given(st.integers(1, 9), st.data())
def test_rows_of_one_size_come_back(nbytes: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.binary(min_size=nbytes, max_size=nbytes)))

    column = fixed_column(rows, nbytes)

    assert len(column) == len(rows)
    assert column.data.shape == (len(rows), nbytes)
    assert column.nbytes == nbytes * len(rows)
    assert [column.row(i).tobytes() for i in range(len(rows))] == rows


def test_a_row_of_another_size_is_refused_also_where_the_sum_fits() -> None:
    with pytest.raises(ValueError):
        fixed_column([b"a", b"bcd"], 2)


def test_rows_are_views() -> None:
    data = np.arange(12, dtype=np.uint8)
    fixed = FixedColumn(data.reshape(4, 3))
    var = VarColumn(data, np.array([5, 0]), np.array([2, 0]))

    assert np.shares_memory(fixed.row(3), data)
    assert fixed.row(3).tolist() == [9, 10, 11]
    assert np.shares_memory(var.row(0), data)
    assert var.row(0).tolist() == [5, 6]
    assert var.row(1).tolist() == []


def test_rows_of_one_size_have_one_length_each() -> None:
    fixed = FixedColumn(np.arange(12, dtype=np.uint8).reshape(4, 3))

    assert fixed.lengths.tolist() == [3, 3, 3, 3]


def test_rows_may_lie_anywhere_and_overlap() -> None:
    column = VarColumn(np.arange(5, dtype=np.uint8), np.array([3, 0, 2]), np.array([2, 3, 2]))

    assert [column.row(i).tolist() for i in range(3)] == [[3, 4], [0, 1, 2], [2, 3]]
    assert column.nbytes == 7


def test_ends_do_not_overflow_int32() -> None:
    lengths = np.full(3, 2**31 - 1, np.int64)

    assert ends(lengths).tolist() == [2**31 - 1, 2**32 - 2, 3 * 2**31 - 3]
