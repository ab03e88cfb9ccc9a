"""The shard of a sample, found by table as by binary search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.data import finder
from loaders.data.finder import ShardFinder


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.booleans())
def test_every_sample_is_found_in_its_shard(sizes: list[int], is_small: bool) -> None:
    ends = np.cumsum(sizes, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        if is_small:
            patch.setattr(finder, "_MAX_BUCKETS", 3)
        shards = ShardFinder(ends)(np.arange(ends[-1]))

    assert shards.dtype == np.int64
    assert shards.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_no_samples_need_no_shard() -> None:
    for ends in ([], [5], [5, 9]):
        assert len(ShardFinder(np.array(ends, np.int64))(np.empty(0, np.int64))) == 0
