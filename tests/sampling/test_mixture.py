import json
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from loaders import DataLoader, Mixture, RAMDataset
from loaders.errors import StateError
from loaders.sampling import EpochSampler, MixtureOrder, audit, mixture

CASES: dict[str, dict[str, Any]] = {
    "first": {"sizes": [1000, 300], "weights": [0.7, 0.3]},
    "all": {"sizes": [1000, 300], "weights": [7, 3], "stop": "all_exhausted"},
    "number": {"sizes": [5, 9000, 40], "weights": [1, 100, 3], "stop": 5000},
    "unused": {"sizes": [50, 60, 0], "weights": [1, 1, 0], "stop": 333},
    "many": {"sizes": [50] * 40, "weights": np.arange(1, 41), "stop": 4000},
    "blocks": {"sizes": [1000, 700], "weights": [0.7, 0.3], "stop": 2560, "block_size": 64},
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CASES[request.param]


def every(order: MixtureOrder, epoch: int = 0) -> npt.NDArray[np.int64]:
    return order.at(epoch, np.arange(order.length))[0]


def sources(order: MixtureOrder, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.searchsorted(np.cumsum(order.sizes), indices, "right")


def test_golden_values() -> None:
    order = MixtureOrder([5, 3], [0.7, 0.3], 10, seed=0)
    assert [order.at(epoch, np.arange(10))[0].tolist() for epoch in (0, 1)] == [
        [2, 7, 3, 4, 6, 0, 1, 3, 5, 2],
        [0, 5, 1, 6, 4, 0, 1, 2, 3, 7],
    ]
    large = MixtureOrder([10**9, 1000, 70_000], [10, 1, 3], 10**10, seed=7)
    indices, draws = large.at(3, np.array([0, 1, 2, 5 * 10**9, 10**10 - 1]))
    assert indices.tolist() == [762198357, 1000000970, 1000063274, 1000002192, 1000022885]
    assert draws.tolist() == [0, 0, 0, 15306, 30612]


def test_shares_are_exact_in_every_epoch_and_even_within(case: dict[str, Any]) -> None:
    order = MixtureOrder(**case)
    block = order.block_size
    assert sum(order.quotas) == order.length

    for epoch in (0, 5):
        turns = sources(order, every(order, epoch)).reshape(-1, block)
        assert (turns == turns[:, :1]).all()  # a turn is of one source
        for number, quota in enumerate(order.quotas):
            had = np.cumsum(turns[:, 0] == number)
            assert had[-1] * block == quota
            share = quota / order.length
            even = share * np.arange(1, len(had) + 1)
            assert np.abs(had - even).max() < 1 + share * len(order.quotas)


def test_shares_are_those_of_the_weights() -> None:
    order = MixtureOrder([10**6] * 3, [0.5, 0.3, 0.2], 1001)

    assert order.quotas == (501, 300, 200)
    assert MixtureOrder([9, 9], [1, 1e-3], 10**6).quotas == (999_001, 999)


def test_turns_lie_at_random() -> None:
    """In no regular pattern: which half of its part a turn lies in is a fair coin."""
    order = MixtureOrder([10**6, 10**6], [0.5, 0.5], 20_000)

    second = sources(order, every(order)).reshape(-1, 2)[:, 1]

    assert 0.45 < second.mean() < 0.55
    assert abs(np.corrcoef(second[1:], second[:-1])[0, 1]) < 0.35
    again = sources(order, every(order, epoch=1)).reshape(-1, 2)[:, 1]
    assert 0.4 < (second == again).mean() < 0.6


def test_any_positions_in_any_order_are_what_they_are_alone(case: dict[str, Any]) -> None:
    order = MixtureOrder(**case, seed=3)
    indices, draws = order.at(2, np.arange(order.length))
    some = np.random.default_rng(0).integers(0, order.length, 500)

    assert np.array_equal(order.at(2, some)[0], indices[some])
    assert np.array_equal(order.at(2, some)[1], draws[some])
    assert np.array_equal(order.at(2, some[:1])[0], indices[some[:1]])
    assert order.at(2, some[:0])[0].shape == (0,)
    assert np.array_equal(order.at(2, some.reshape(20, 25))[0], indices[some].reshape(20, 25))


def test_the_windows_it_is_computed_in_do_not_show(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = every(MixtureOrder(**case))
    own = mixture._Schedule.of
    for num in (1, 3):
        of = staticmethod(lambda *given, num=num: own(*given)._replace(num_windows=num))
        monkeypatch.setattr(mixture._Schedule, "of", of)
        assert np.array_equal(every(MixtureOrder(**case)), expected)


def test_sources_are_gone_through_pass_by_pass_across_epochs(case: dict[str, Any]) -> None:
    """Each pass has every sample once, in a new order, and is over before the next one begins."""
    order = MixtureOrder(**case)
    served = np.concatenate([every(order, epoch) for epoch in range(4)])
    number_of = sources(order, served)
    begins = np.cumsum(order.sizes) - order.sizes

    for number, size in enumerate(np.asarray(order.sizes).tolist()):
        own = served[number_of == number] - begins[number]
        num_passes = len(own) // max(size, 1)
        passes = own[: num_passes * size].reshape(num_passes, size)
        assert (np.sort(passes, axis=1) == np.arange(size)).all()
        if num_passes > 1 and size > 4:
            assert (passes[1:] != passes[:-1]).any(axis=1).all()


def test_where_an_epoch_ends() -> None:
    sizes, weights = [1000, 300], [0.7, 0.3]
    assert MixtureOrder(sizes, weights, "first_exhausted").quotas == (700, 300)
    assert MixtureOrder(sizes, weights, "all_exhausted").quotas == (1000, 429)
    assert MixtureOrder(sizes, weights, 77).quotas == (54, 23)
    assert MixtureOrder(sizes, [1, 0], "all_exhausted").quotas == (1000, 0)
    by_block = MixtureOrder(sizes, weights, "first_exhausted", block_size=64)
    assert by_block.quotas == (576, 256)
    assert MixtureOrder(sizes, weights, "all_exhausted", block_size=64).quotas == (1024, 448)


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_no_more_and_no_less_than_a_pass(stop: Any) -> None:
    """Whatever sizes and weights: the source that decides has just one, the others keep their side."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes, weights = rng.integers(50, 500, 3), rng.uniform(1, 3, 3)
        passes = np.array(MixtureOrder(sizes, weights, stop).quotas) / sizes
        assert (passes.max() if stop == "first_exhausted" else passes.min()) == 1


def test_repeats_are_told_apart(case: dict[str, Any]) -> None:
    order = MixtureOrder(**case)

    for world_size, start in ((1, 0), (3, 0), (4, 100)):
        report = audit(
            order.length, order=order, epoch=3, batch_size=7, world_size=world_size, start=start
        )
        assert report.ok, report


def test_ranks_and_batch_sizes_cut_one_order() -> None:
    order = MixtureOrder([40, 90], [1, 2], "all_exhausted", seed=1)
    whole = list(EpochSampler(order))

    ranks = [EpochSampler(order, rank=rank, world_size=3, pad=False) for rank in range(3)]

    assert [i for step in zip(*ranks, strict=True) for i in step] == whole
    assert [i for batch in EpochSampler(order).batches(7) for i in batch] == whole


def test_a_state_of_other_weights_is_refused() -> None:
    state = EpochSampler(MixtureOrder([40, 90], [1, 2])).state_dict()

    EpochSampler(MixtureOrder([40, 90], [10, 20])).load_state_dict(state)
    with pytest.raises(StateError):
        EpochSampler(MixtureOrder([40, 90], [1, 1])).load_state_dict(state)
    with pytest.raises(StateError):
        EpochSampler(MixtureOrder([40, 90], [1, 2], block_size=2)).load_state_dict(state)


def test_it_pickles_and_another_seed_is_another_order(case: dict[str, Any]) -> None:
    order = MixtureOrder(**case, seed=1)
    every(order)

    assert np.array_equal(every(pickle.loads(pickle.dumps(order))), every(order))
    assert len(pickle.dumps(order)) < 2000
    assert (every(MixtureOrder(**case, seed=2)) != every(order)).mean() > 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        {"sizes": [1, 2], "weights": [1]},
        {"sizes": [], "weights": []},
        {"sizes": [1, 2], "weights": [1, -1]},
        {"sizes": [1, 2], "weights": [1, np.inf]},
        {"sizes": [1, 2], "weights": [0, 0]},
        {"sizes": [1, 0], "weights": [1, 1]},
        {"sizes": [9, 9], "weights": [1, 1], "stop": "never"},
        {"sizes": [9, 9], "weights": [1, 1], "stop": 0},
        {"sizes": [9, 9], "weights": [1, 1], "stop": 7, "block_size": 2},
        {"sizes": [9, 9], "weights": [1, 1], "block_size": 10},
        {"sizes": [9, 9], "weights": [1000, 1], "stop": 20},
        {"sizes": [9, 9], "weights": [1, 1], "block_size": 0},
        *(
            {"sizes": [9, 9], "weights": [1, tiny], "stop": "all_exhausted"}
            for tiny in (1e-14, 1e-19, 1e-300)
        ),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        MixtureOrder(**arguments)


# -- weights that change ------------------------------------------------------------------------------

SIZES = [1000, 700, 300]
SOURCES = np.repeat([0, 1, 2], SIZES)
CHANGING = [(0, [0.7, 0.2, 0.1]), (777, [0.2, 0.3, 0.5]), (3000, [0, 0.5, 0.5])]


def all_of(order: MixtureOrder, num_epochs: int) -> np.ndarray[Any, Any]:
    return np.concatenate([every(order, epoch) for epoch in range(num_epochs)])


def assert_gone_through(indices: np.ndarray[Any, Any]) -> None:
    """Each source comes pass by pass: nothing is left out, and nothing comes twice in a pass."""
    for source, size in enumerate(SIZES):
        own = indices[SOURCES[indices] == source]
        for begin in range(0, len(own), size):
            some = own[begin : begin + size]
            assert len(np.unique(some)) == len(some)


@pytest.mark.parametrize(
    ("stop", "length"), [("first_exhausted", 600), ("all_exhausted", 5000), (900, 900)]
)
@pytest.mark.parametrize("block_size", [1, 5])
def test_weights_change_at_a_sample_that_is_counted_over_epochs(
    stop: Any, length: int, block_size: int
) -> None:
    weights: Any = CHANGING if stop != "all_exhausted" else CHANGING[:2]
    order = MixtureOrder(SIZES, weights, stop, seed=3, block_size=block_size)
    indices = all_of(order, 8)
    ends = [begin for begin, _ in weights[1:]] + [len(indices)]

    assert abs(order.length - length) < 10 * block_size
    for (begin, shares), end in zip(weights, ends, strict=True):
        first, last = (-(-at // block_size) * block_size for at in (begin, end))
        counts = np.bincount(SOURCES[indices[first:last]], minlength=3)
        parts = 1 + (last - first) // order.length + 1
        assert np.abs(counts - np.array(shares) * (last - first)).max() <= parts * block_size
    assert_gone_through(indices)


@pytest.mark.parametrize(("begin", "end"), [(5, 5), (6, 10), (10, 10)])
def test_a_block_that_was_begun_keeps_its_weights(begin: int, end: int) -> None:
    order = MixtureOrder([100, 100], [(0, [1, 0]), (begin, [0, 1])], 40, block_size=5)

    assert (every(order, 0) >= 100).tolist() == [False] * end + [True] * (40 - end)


def test_any_position_is_found_alone_and_draws_tell_repeats_apart() -> None:
    order = MixtureOrder(SIZES, CHANGING, 2500, seed=3)
    rng = np.random.default_rng(0)
    for epoch in range(4):
        indices, draws = order.at(epoch, np.arange(order.length))
        some = rng.integers(0, order.length, 200)

        assert np.array_equal(order.at(epoch, some)[0], indices[some])
        assert len(set(zip(indices.tolist(), draws.tolist(), strict=True))) == order.length


@pytest.mark.parametrize("before", [[0.7, 0.2, 0.1], CHANGING])
@pytest.mark.parametrize("after", [[0.1, 0.2, 0.7], [(0, [0.1, 0.2, 0.7]), (2500, [1, 1, 1])]])
@pytest.mark.parametrize("num_taken", [0, 7, 120, 131])  # 120: an epoch
def test_new_weights_go_on_where_each_source_was(before: Any, after: Any, num_taken: int) -> None:
    """And states that are taken then go on, too."""

    def sampler(weights: Any, seed: int = 3) -> EpochSampler:
        return EpochSampler(
            MixtureOrder(SIZES, weights, 960, seed), drop_last=True, rank=0, world_size=1
        )

    first = sampler(before)
    seen = list(islice(batches_of(first), num_taken))
    state = json.loads(json.dumps(first.state_dict()))
    with pytest.raises(StateError):
        sampler(after).load_state_dict(state)
    second = sampler(after)
    second.load_state_dict(state, weights="new")
    batches = batches_of(second)
    rest = list(islice(batches, 40))
    later = json.loads(json.dumps(second.state_dict()))
    rest += (more := list(islice(batches, 250)))

    assert_gone_through(np.concatenate(seen + rest))
    shares = np.bincount(SOURCES[np.concatenate(rest[:100])], minlength=3) / 800
    assert np.allclose(shares, [0.1, 0.2, 0.7], atol=0.02)
    third = sampler(after)
    third.load_state_dict(later)
    assert np.array_equal(list(islice(batches_of(third), 250)), more)
    again = sampler(before)
    again.load_state_dict(json.loads(json.dumps(third.state_dict())), weights="new")
    assert_gone_through(np.concatenate([*seen, *rest, *islice(batches_of(again), 100)]))
    with pytest.raises(StateError):
        sampler(after, seed=4).load_state_dict(state, weights="new")


def test_new_weights_within_an_epoch_draw_no_sample_twice_alike() -> None:
    first, second = (
        EpochSampler(MixtureOrder([10, 57], weights, 60, seed=3), rank=0, world_size=1)
        for weights in ([1, 1], [2, 1])
    )
    seen = list(islice(first.batches(4), 5))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())), weights="new")

    batches = (*seen, *second.batches(4))
    rows = [row for batch in batches for row in zip(batch.indices, batch.draws, strict=True)]

    assert len({*rows}) == len(rows) == 60


def batches_of(sampler: EpochSampler) -> Iterator[npt.NDArray[np.int64]]:
    while True:
        for batch in sampler.batches(8):
            yield batch.indices


def test_a_shorter_epoch_that_ends_at_the_state_is_over() -> None:
    first, second = (
        EpochSampler(MixtureOrder(SIZES, [1, 1, 1], stop, seed=3), rank=0, world_size=1)
        for stop in (960, 480)
    )
    seen = list(islice(batches_of(first), 60))

    second.load_state_dict(first.state_dict(), weights="new")

    assert second.epoch == 1
    rest = [batch.indices for batch in second.batches(8)]
    assert len(rest) == 60
    assert_gone_through(np.concatenate(seen + rest))


def test_more_sources_than_a_state_lists_can_have_new_weights() -> None:
    orders = [MixtureOrder([50] * 20, w, 400) for w in (range(1, 21), [1] * 20)]
    first, second = (EpochSampler(order, rank=0, world_size=1) for order in orders)
    seen = list(islice(batches_of(first), 37))

    second.load_state_dict(json.loads(json.dumps(first.state_dict())), weights="new")

    indices = np.concatenate([*seen, *islice(batches_of(second), 50)])
    for source in range(20):
        own = indices[indices // 50 == source][:50]
        assert len(np.unique(own)) == len(own)


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ([(5, [1, 1, 1])], ValueError), ([(0, [1, 1, 1]), (0, [1, 1, 1])], ValueError), ([(0, [1, 1])], ValueError),
        ([(0, [1, 1, 1]), 3], TypeError), ([(0, [1, 1, 1]), (9, [0, 0, 0])], ValueError),
        ([(0.5, [1, 1, 1])], TypeError),
    ],
)  # fmt: skip
def test_a_schedule_that_says_nothing_is_refused(weights: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        MixtureOrder(SIZES, weights)


def test_new_weights_are_for_mixtures() -> None:
    sampler = EpochSampler(10)
    with pytest.raises(StateError):
        sampler.load_state_dict(sampler.state_dict(), weights="new")
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError):
        sampler.load_state_dict(sampler.state_dict(), weights="old")  # type: ignore[arg-type]


def test_a_loader_changes_weights_and_takes_new_ones() -> None:
    sources = [
        RAMDataset.from_arrays(x=np.arange(size) + 1000 * i) for i, size in enumerate([80, 60])
    ]

    def loader(weights: Any) -> Any:
        return DataLoader(Mixture(sources, weights, stop=40), 4, num_workers=0)

    first = loader([(0, [1, 0]), (20, [0, 1])])
    seen = [batch.x.tolist() for batch in first]
    assert [x[0] // 1000 for x in seen] == [0] * 5 + [1] * 5
    second = loader([0.5, 0.5])
    second.load_state_dict(first.state_dict(), weights="new")
    seen += [batch.x.tolist() for batch in second]
    flat = [x for batch in seen for x in batch]
    assert len(set(flat)) == len(flat) == 80
    third = loader([0.5, 0.5])
    third.load_state_dict(second.state_dict())
    assert [b.x.tolist() for b in third] == [b.x.tolist() for b in second]


def test_new_weights_that_change_later_count_the_samples_of_the_old_ones() -> None:
    """The second ones hold from sample 40 of the run, 20 of which other weights served."""
    old = MixtureOrder([100, 100], [1, 1], 100, seed=1)
    state = {"epoch": 0, "delivered": 20, **old.describe()}

    new = MixtureOrder([100, 100], [(0, [1, 1]), (40, [1, 3])], 100, seed=1)
    order, place = new.continued(state, "new")

    assert place == (0, 20)
    assert [order.given(0, position) for position in (20, 40, 80)] == [
        (10, 10),
        (20, 20),
        (30, 50),
    ]
