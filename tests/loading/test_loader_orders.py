"""Whose order a loader follows: a sampler of ours, batches of ours, a dataset's own; batches or single samples."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

from loaders import DataLoader, Mixture, RAMDataset, augment
from loaders.errors import LoadersError
from loaders.sampling import EpochBatches, EpochSampler, Sequential

NUM = 10
PIXELS = np.random.default_rng(0).integers(0, 256, (NUM, 3, 24, 24), dtype=np.uint8)


def numbers(num: int = NUM) -> RAMDataset:
    return RAMDataset.from_arrays(label=np.arange(num))


def cropped() -> RAMDataset:
    return RAMDataset.from_arrays(image=PIXELS, augment=[augment.RandomCrop(8)])


def labels(loader: DataLoader) -> list[Any]:
    return [batch.label.tolist() for batch in loader]


def own(num: int = NUM, **settings: Any) -> EpochSampler:
    return EpochSampler(num, shuffle=False, **settings)


# -- samplers of ours ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "given", "expected"),
    [
        ({}, {}, [[6, 7], [1]]),
        ({"pad": False}, {}, [[6, 7]]),
        ({"drop_last": True}, {}, [[6, 7]]),
        ({}, {"pad": False}, [[6, 7]]),
        ({"pad": False}, {"pad": True}, [[6, 7], [1]]),
        ({"pad": False}, {"drop_last": True}, [[6, 7]]),
    ],
)
def test_the_tail_is_what_the_sampler_says_unless_the_loader_says_it(
    said: dict[str, Any], given: dict[str, Any], expected: list[list[int]]
) -> None:
    """The last of four ranks: of the tail, two samples, it has nothing but padding."""
    sampler = own(rank=3, world_size=4, **said)

    assert labels(DataLoader(numbers(), 2, sampler=sampler, **given)) == expected


@pytest.mark.parametrize("is_batched", [False, True])
def test_marks_that_a_sampler_of_ours_asks_for_are_handed_over(is_batched: bool) -> None:
    sampler = own(5, rank=1, world_size=2, pad="mark")
    given: dict[str, Any] = {"batch_size": 2, "sampler": sampler}
    if is_batched:
        given = {"batch_sampler": own(5, rank=1, world_size=2).batches(2, pad="mark")}

    batches = list(DataLoader(numbers(5), **given))

    assert [batch.label.tolist() for batch in batches] == [[2, 3], [0]]
    assert [batch.valid.tolist() for batch in batches] == [[True, True], [False]]


def test_batches_of_ours_can_be_resumed() -> None:
    def loader() -> DataLoader:
        return DataLoader(numbers(), batch_sampler=EpochSampler(NUM, seed=3).batches(2))

    whole, first = labels(loader()), loader()
    iterator = iter(first)
    taken = [next(iterator).label.tolist() for _ in range(2)]
    second = loader()
    second.load_state_dict(first.state_dict())

    assert taken + labels(second) == whole
    assert second.state_dict()["sampler"]["epoch"] == 1


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_ranks_that_a_sampler_of_ours_does_not_have_are_refused(name: str) -> None:
    sampler = own(rank=0, world_size=2)
    given: Any = {name: sampler if name == "sampler" else sampler.batches(1)}

    assert labels(DataLoader(numbers(), rank=0, world_size=2, **given))[0] == [0]
    with pytest.raises(ValueError):
        DataLoader(numbers(), rank=1, world_size=2, **given)


def test_marks_that_would_go_astray_are_refused() -> None:
    DataLoader(numbers(), 2, pad="mark")
    with pytest.raises(ValueError):
        DataLoader(numbers(), 2, pad="mark", in_order=False)
    with pytest.raises(ValueError):
        DataLoader(numbers(), None, pad="mark")


# -- a generator, and the order of a mixture ----------------------------------------------------------


def mixture() -> Mixture:
    zeros, ones = (RAMDataset.from_arrays(label=np.full(100, n)) for n in (0, 1))
    return Mixture([zeros, ones], weights=[0.9, 0.1], stop=40)


@pytest.mark.parametrize("given", [{}, {"generator": torch.Generator()}, {"batch_size": None}])
def test_a_mixture_keeps_its_weights(given: dict[str, Any]) -> None:
    batches = DataLoader(mixture(), **({"batch_size": 8} | given))

    served = np.concatenate([np.atleast_1d(batch.label) for batch in batches])

    assert (len(served), served.mean()) == (40, 0.1)


def test_a_mixture_in_an_order_of_torchs_is_refused() -> None:
    DataLoader(mixture(), 8, shuffle=True)
    with pytest.raises(ValueError):
        DataLoader(mixture(), 8, shuffle=True, generator=torch.Generator())


def test_several_processes_do_not_each_load_all_in_an_order_of_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    generator = torch.Generator()
    for given in ({"shuffle": True, "generator": generator}, {"batch_size": None}):
        with pytest.raises(LoadersError):
            next(iter(DataLoader(numbers(), **given)))

    meant = DataLoader(numbers(), 2, sampler=RandomSampler(range(NUM), generator=generator))
    assert sorted(chain(*labels(meant))) == list(range(NUM))


# -- single samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow), "process"]
)
def test_single_samples_follow_seed_epoch_and_rank_and_resume(
    backend: Any, num_workers: int
) -> None:
    def loader(rank: int = 1) -> DataLoader:
        return DataLoader(
            numbers(), None, shuffle=True, seed=4, rank=rank, world_size=3, pad=False,
            num_workers=num_workers, backend=backend,
        )  # fmt: skip

    parts = [labels(loader(rank)) for rank in range(3)]
    assert sorted(chain(*parts)) == list(range(NUM))

    first = loader()
    assert len(first) == 3
    iterator = iter(first)
    taken = [next(iterator).label.item()]
    iterator.close()
    second = loader()
    second.load_state_dict(first.state_dict())
    assert taken + labels(second) == parts[1]
    assert labels(second) != parts[1]  # of the next epoch


class Kinds(Dataset[str]):
    def __getitem__(self, index: int) -> str:
        return type(index).__name__

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_datasets_of_others_get_plain_ints(num_workers: int) -> None:
    loader = DataLoader(Kinds(), None, shuffle=True, num_workers=num_workers)

    assert list(loader) == ["int", "int"]


def crops(seed: int, batch_size: int | None) -> torch.Tensor:
    loader = DataLoader(cropped(), batch_size, seed=seed, num_workers=0)
    return torch.stack([batch.image.reshape(3, 8, 8) for batch in loader])


def test_crops_follow_the_seed_also_of_single_samples() -> None:
    assert torch.equal(crops(1, None), crops(1, 1))
    assert not torch.equal(crops(1, None), crops(2, None))


def test_crops_follow_the_seed_of_a_sampler_of_ours_under_torchs_loader() -> None:
    def found(seed: int) -> dict[int, torch.Tensor]:
        sampler = EpochSampler(NUM, seed=seed)
        indices = list(sampler)
        sampler.set_epoch(0)
        loader = torch.utils.data.DataLoader(
            cropped(), 2, sampler=sampler, collate_fn=lambda samples: [s.image for s in samples]
        )
        return dict(zip(indices, chain(*loader), strict=True))

    one, same, other = found(1), found(1), found(2)

    assert all(torch.equal(one[i], same[i]) for i in range(NUM))
    assert not all(torch.equal(one[i], other[i]) for i in range(NUM))


def test_a_loader_draws_by_the_seed_of_the_sampler_unless_it_has_its_own() -> None:
    def crops(**given: Any) -> torch.Tensor:
        return torch.cat([batch.image for batch in DataLoader(cropped(), 2, **given)])

    def sampler(seed: int) -> Any:
        return EpochSampler(NUM, shuffle=False, seed=seed)

    assert torch.equal(crops(sampler=sampler(7)), crops(seed=7))
    assert not torch.equal(crops(sampler=sampler(7)), crops(sampler=sampler(8)))
    assert torch.equal(crops(sampler=sampler(7), seed=3), crops(seed=3))


class Own(RAMDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


def test_marks_have_a_place_in_batches_of_samples_that_came_one_by_one() -> None:
    loader = DataLoader(
        Own.from_arrays(label=np.arange(5)), 2, pad="mark", rank=1, world_size=2, shuffle=False
    )

    batches = list(loader)

    assert [batch.label.tolist() for batch in batches] == [[2, 3], [0]]
    assert [batch.valid.tolist() for batch in batches] == [[True, True], [False]]


# -- subclasses that yield something else ----------------------------------------------------------


class Three(EpochSampler):
    def __iter__(self) -> Any:
        return iter([5, 6, 7])

    def __len__(self) -> int:
        return 3


class Backwards(EpochBatches):
    def __iter__(self) -> Any:
        return (list(batch)[::-1] for batch in super().__iter__())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_subclass_of_a_sampler_yields_is_what_is_served(num_workers: int) -> None:
    by_sampler = DataLoader(numbers(), 2, sampler=Three(NUM), num_workers=num_workers)
    batches = Three(NUM).batches(2)
    by_batches = DataLoader(numbers(), batch_sampler=batches, num_workers=num_workers)
    backwards = Backwards(own(5), 2)
    turned = DataLoader(numbers(), batch_sampler=backwards, num_workers=num_workers)

    assert labels(by_sampler) == labels(by_batches) == [[5, 6], [7]]
    assert len(by_sampler) == len(by_batches) == 2
    assert labels(turned) == [[1, 0], [3, 2], [4]]
    for loader in (by_sampler, by_batches, turned):
        assert loader.state_dict()["sampler"]["kind"] == "third_party"


def test_marks_are_refused_where_a_subclass_yields_its_own_indices() -> None:
    with pytest.raises(ValueError):
        Three(NUM).batches(2, pad="mark")
    DataLoader(numbers(), 2, sampler=Three(NUM))
    with pytest.raises(ValueError):
        DataLoader(numbers(), 2, sampler=Three(NUM), pad="mark")


def test_batches_of_ours_are_served_themselves_unless_the_loader_says_otherwise() -> None:
    given = own().batches(4)

    assert DataLoader(numbers(), batch_sampler=given).batch_sampler is given
    assert DataLoader(numbers(), batch_sampler=given, pad=False).batch_sampler is not given


def test_the_seed_of_crops_is_the_loaders_or_that_of_its_batches() -> None:
    def crops(loader: DataLoader) -> torch.Tensor:
        return torch.cat([batch.image for batch in loader])

    by_sampler = [DataLoader(cropped(), 4, sampler=own(), seed=seed) for seed in (5, 1)]
    given = EpochSampler(Sequential(NUM), drop_last=False).batches(4)
    by_batches = DataLoader(cropped(), batch_sampler=given, seed=5)
    seeded = DataLoader(cropped(), batch_sampler=EpochBatches(own(), 4, seed=1))

    assert torch.equal(crops(by_sampler[0]), crops(by_batches))
    assert torch.equal(crops(by_sampler[1]), crops(seeded))
    assert (by_batches.seed, seeded.seed) == (5, 1)


def test_an_epoch_whose_order_fails_on_the_way_is_not_over() -> None:
    class Failing(Sequential):
        def at(self, epoch: int, positions: Any) -> Any:
            if positions.max() >= 1024:
                raise LoadersError("no order")
            return super().at(epoch, positions)

    loader = DataLoader(numbers(3000), 8, sampler=EpochSampler(Failing(3000)), num_workers=0)
    batches = iter(loader)
    for _ in range(1024 // 8):
        next(batches)
    with pytest.raises(LoadersError):
        next(batches)

    assert list(batches) == []

    assert loader.epoch == 0
    assert loader.state_dict()["sampler"]["delivered"] == 1024
