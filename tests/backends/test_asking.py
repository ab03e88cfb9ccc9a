from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from loaders.backends.asking import ask, ask_for, asked
from loaders.sampling.batch import IndexBatch


def test_what_is_asked_for_arrives() -> None:
    assert asked(bytearray(ask("describe"))) == ("describe",)
    assert asked(bytearray(ask("epoch", 7))) == ("epoch", 7)


@pytest.mark.parametrize("draws", [None, np.arange(4)])
def test_a_chunk_and_its_next_batch_are_asked_for_by_name(draws: Any) -> None:
    batches = [IndexBatch(np.arange(4), 5, draws, seed=9)] * 3

    kind, number, arrived = asked(bytearray(ask_for("chunk", 3, batches)))

    assert (kind, number) == ("chunk", 3)
    assert repr(arrived) == repr(batches)
    assert asked(bytearray(ask_for("next", 3))) == ("next", 3, [])


@pytest.mark.parametrize(
    ("group", "is_plain"),
    [
        ([IndexBatch(np.arange(4), 5, seed=9)], True),
        ([IndexBatch(np.arange(n) << 40, 5, seed=-9) for n in (3, 0, 2, 0)], True),
        ([IndexBatch(np.arange(2), 5, seed=1), IndexBatch(np.arange(2), 6, seed=2)], True),
        ([IndexBatch(np.arange(8)[::2], 5), IndexBatch(np.arange(3), 5)], False),
        ([IndexBatch(np.arange(3, dtype=np.int32), 5)], False),
        ([IndexBatch(np.arange(3), seed=1 << 70)], False),
        ([IndexBatch(np.arange(2)), IndexBatch(np.arange(2), draws=np.array([0, 1]))], False),
        ([IndexBatch(np.arange(2), valid=np.array([True, False]))], False),
        ([[3, 4], [5]], False),
        ([7, "x"], False),
    ],
    ids=[
        "one",
        "several",
        "origins",
        "strides",
        "int32",
        "seed",
        "draws",
        "marks",
        "lists",
        "keys",
    ],
)
def test_indices_arrive_as_they_do_when_they_are_pickled(group: list[Any], is_plain: bool) -> None:
    message = ask_for("make", 3, group)

    kind, number, arrived = asked(bytearray(message))
    plain = pickle.loads(pickle.dumps(group))

    assert (kind, number) == ("make", 3)
    assert (message != ask("make", 3, group)) == is_plain
    assert [type(each) for each in arrived] == [type(each) for each in plain]
    assert repr(arrived) == repr(plain)
    for each in arrived:
        if isinstance(each, IndexBatch):
            assert each.indices.dtype == np.int64
            assert each.indices.flags.writeable
