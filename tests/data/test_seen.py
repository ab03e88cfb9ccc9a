import numpy as np

from loaders.data.verify import Seen


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_items_are_new_until_they_are_noted_and_repeats_count_once() -> None:
    seen = Seen(3)

    seen.note(numbers(0, 0, 1))
    seen.note(numbers(1))

    new = seen.new(numbers(2, 0, 2))
    assert new is not None
    assert new.tolist() == [True, False, True]
    assert seen.new(numbers(0, 1)) is None
    assert not seen.are_all()
    seen.note(numbers(2, 2))
    assert seen.are_all()


def test_items_that_are_added_are_new_unless_they_were_seen() -> None:
    seen = Seen()

    assert [seen.add(2), seen.add(1, is_seen=True), seen.add(100)] == [0, 2, 3]

    assert seen.new(numbers(2)) is None
    seen.note(np.arange(103))
    assert seen.are_all()
    assert seen.add(1) == 103
    assert not seen.are_all()
