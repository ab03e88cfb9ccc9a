"""Crops and flips change from pass to pass, whoever draws the indices; and who cannot have it so is told."""

import pickle
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

import packdata
from loaders import DataLoader, JpegOnDevice, Mixture, ShardDataset, augment
from loaders.datasets.views import ours_in
from loaders.sampling import EpochSampler, Weighted
from loaders.sampling.batch import SampleIndex, numbered, reading
from loaders.schema import Image
from tests.packdata.packing import pack_samples

TorchLoader = torch.utils.data.DataLoader
NUM = 24
OPS = [augment.RandomResizedCrop(16), augment.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM)


@pytest.fixture
def dataset(folder: Path) -> ShardDataset:
    return ShardDataset(folder, fields=["image", "sample_id"], augment=OPS)


def served(loader: Any) -> dict[int, list[torch.Tensor]]:
    """Return the pictures of a pass by sample, in the order in which they came."""
    found: dict[int, list[torch.Tensor]] = {}
    for batch in loader:
        for i, image in zip(batch[1].tolist(), batch[0], strict=True):
            found.setdefault(i, []).append(image)
    return found


def num_equal(a: dict[int, list[torch.Tensor]], b: dict[int, list[torch.Tensor]]) -> int:
    return sum(torch.equal(a[i][0], b[i][0]) for i in a.keys() & b.keys())


SAMPLERS: dict[str, Callable[[ShardDataset], dict[str, Any]]] = {
    "sampler": lambda d: {"batch_size": 5, "sampler": RandomSampler(d)},
    "weighted": lambda d: {"batch_size": 5, "sampler": WeightedRandomSampler([1.0] * NUM, 60)},
    "batches": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d), 5, drop_last=False)},
    "generator": lambda d: {"batch_size": 5, "shuffle": True, "generator": torch.Generator()},
}
WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "backend": "thread"},
    pytest.param(  # type: ignore[list-item]
        {"num_workers": 2, "backend": "subprocess"}, marks=pytest.mark.slow
    ),
    pytest.param(  # type: ignore[list-item]
        {"num_workers": 2, "backend": "process", "persistent_workers": True},
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_each_pass_of_a_sampler_of_torch_is_another_epoch(
    dataset: ShardDataset, kind: str, way: dict[str, Any]
) -> None:
    loader = DataLoader(dataset, **SAMPLERS[kind](dataset), **way)

    passes = [served(loader) for _ in range(3)]

    assert num_equal(passes[0], passes[1]) <= 3
    assert num_equal(passes[1], passes[2]) <= 3


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_epoch_as_under_a_sampler_of_ours(
    dataset: ShardDataset, way: dict[str, Any]
) -> None:
    """Also with worker processes, for which torch makes an iterator more than it uses."""
    ours = DataLoader(dataset, 5, seed=3)
    theirs = DataLoader(dataset, 5, seed=3, sampler=SequentialSampler(dataset), **way)
    for epoch in (0, 1, 2, 5, 5, 6):
        if epoch == 5:
            ours.set_epoch(5)
            theirs.set_epoch(5)
        assert num_equal(served(ours), served(theirs)) == NUM, epoch


FORMS: dict[str, Any] = {
    "lists": [[0, 1], [2, 3]],
    "tuples": [(0, 1), (2, 3)],
    "ranges": [range(2), range(2, 4)],
    "arrays": [np.array([0, 1]), np.array([2, 3], np.uint8)],
    "tensors": [torch.tensor([0, 1]), torch.tensor([2, 3])],
    "lists of tensors": [[torch.tensor(0), 1], [2, torch.tensor(3)]],
    "lists of numpy's": [[np.int32(0), 1], [2, np.int64(3)]],
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_may_have_any_form(dataset: ShardDataset, form: str) -> None:
    loader = DataLoader(dataset, batch_sampler=FORMS[form])

    passes = [served(loader) for _ in range(3)]

    assert [list(each) for each in passes] == [[0, 1, 2, 3]] * 3
    assert num_equal(passes[0], passes[1]) == num_equal(passes[1], passes[2]) == 0


def test_so_has_what_a_device_finishes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (NUM, 40, 40, 3), np.uint8)
    packdata.pack(({"image": each} for each in pixels), tmp_path / "jpeg", {"image": Image()})
    files = ShardDataset(tmp_path / "jpeg", fields=["image", "sample_id"], augment=OPS)
    loader = DataLoader(JpegOnDevice(files), 5, sampler=[*range(NUM), *range(NUM)], device="cpu")

    first, second = served(loader), served(loader)

    assert num_equal(first, second) <= 3
    assert sum(torch.equal(*images) for images in first.values()) <= 3  # nor where it comes again


@pytest.mark.parametrize("sampler", [torch.arange(NUM), np.arange(NUM), list(range(NUM))])
@pytest.mark.parametrize("batch_size", [5, None])
def test_samplers_may_be_arrays(
    dataset: ShardDataset, sampler: Any, batch_size: int | None
) -> None:
    """Without batches, samples come one by one."""
    loader = DataLoader(dataset, batch_size, sampler=sampler)

    passes = [torch.cat([b.image.reshape(-1, 3 * 16 * 16) for b in loader]) for _ in range(2)]

    assert (passes[0] != passes[1]).any(1).sum() >= NUM - 3


def test_repeats_within_a_pass_differ(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, 5, sampler=[3] * 8 + [-21] * 8)
    (images,) = served(loader).values()
    assert len({image.numpy().tobytes() for image in images}) > 8


@given(st.lists(st.lists(st.integers(-NUM, NUM - 1), max_size=8), max_size=8))
def test_draws_count_how_often_an_index_came(batches: list[list[int]]) -> None:
    came = Counter[int]()
    for batch in numbered(batches, 0, NUM, seed=4):
        draws = []
        for index in batch:
            draws.append(came[index % NUM])
            came[index % NUM] += 1
        found = getattr(batch, "draws", None)
        assert (draws if any(draws) else None) == (None if found is None else found.tolist())


def test_who_sets_the_epoch_chooses_it(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, 5, sampler=SequentialSampler(dataset))
    passes = [served(loader) for _ in range(3)]

    for epoch in (2, 1, 1):
        loader.set_epoch(epoch)
        assert num_equal(served(loader), passes[epoch]) == NUM
    assert num_equal(served(loader), passes[2]) == NUM  # and it goes on from there


def test_a_batch_sampler_of_ours_is_told_the_epoch(dataset: ShardDataset) -> None:
    ours = DataLoader(dataset, 5, shuffle=True, seed=3)
    batches = EpochSampler(NUM, seed=3).batches(5)
    theirs = DataLoader(dataset, batch_sampler=batches, seed=3)
    for loader in (ours, theirs):
        loader.set_epoch(4)

    assert list(served(theirs)) == list(served(ours))


def test_a_batch_sampler_that_is_put_in_later_is_the_one_that_counts(
    dataset: ShardDataset,
) -> None:
    """As subclasses of torch's loader do."""
    loader = DataLoader(dataset, batch_sampler=[[0, 1], [2, 3]])
    object.__setattr__(loader, "batch_sampler", [[4]])

    assert len(loader) == 1
    assert list(served(loader)) == [4]


def test_what_is_no_number_and_what_has_an_epoch_is_passed_on() -> None:
    batch = next(iter(EpochSampler(NUM).batches(4)))
    own = next(iter(EpochSampler(NUM)))
    strange: list[Any] = [
        batch,
        own,
        [own],
        "x",
        ["x"],
        [True],
        [[1], [2]],
        [[1], [2, 3]],
        [],
        None,
        0.5,
    ]
    *passed, outside, single = numbered([*strange, [1, NUM], np.int64(2)], 0, NUM, seed=9)

    assert all(one is other for one, other in zip(passed, strange, strict=True))
    assert (list(outside), outside.epoch, outside.draws, outside.seed) == ([1, NUM], 0, None, 9)
    assert (single, single.epoch, single.draw) == (2, 0, 0)
    assert pickle.loads(pickle.dumps(outside)).epoch == 0


# -- ours, below datasets of others ----------------------------------------------------------------


class Wrapped(Dataset[tuple[torch.Tensor, int]]):
    """As training scripts write them: ours and something more."""

    def __init__(self, dataset: Any) -> None:
        self.parts = [dataset]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image, number = self.parts[0][i]
        return image, int(number)


class Own(ShardDataset):
    """Of ours, with a say in what a sample is: no view of torch's can be made into one of ours."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


WRAPPERS: dict[str, Callable[[Path], Any]] = {
    "wrapper": lambda folder: Wrapped(images(ShardDataset, folder)),
    "part of one": lambda folder: Subset(Wrapped(images(ShardDataset, folder)), range(NUM)),
    "part of a subclass": lambda folder: Subset(images(Own, folder), range(NUM)),
    "several": lambda folder: ConcatDataset([images(Own, folder)]),
    "mixture": lambda folder: Wrapped(
        Mixture([images(ShardDataset, folder).replace(on_error="raise")], stop=NUM)
    ),
}


def images(kind: Any, folder: Path) -> Any:
    return kind(folder, fields=["image", "sample_id"], augment=OPS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_datasets_below_others_are_told_the_epoch(
    folder: Path, kind: str, way: dict[str, Any]
) -> None:
    loader = DataLoader(WRAPPERS[kind](folder), 5, shuffle=True, **way)

    passes = [served(loader) for _ in range(3)]
    loader.set_epoch(1)
    again = served(loader)

    assert all(len(each) == NUM for each in passes)
    assert num_equal(passes[0], passes[1]) <= 3
    assert num_equal(passes[1], passes[2]) <= 3
    assert list(again) == list(passes[1])
    assert num_equal(again, passes[1]) == NUM


def test_what_is_wrapped_is_cropped_as_it_is_alone(dataset: ShardDataset) -> None:
    alone, wrapped = (
        DataLoader(each, 5, shuffle=True, seed=4) for each in (dataset, Wrapped(dataset))
    )
    for _ in range(2):
        assert num_equal(served(alone), served(wrapped)) == NUM


@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_so_they_are_under_samplers_of_torch(
    dataset: ShardDataset, kind: str, way: dict[str, Any]
) -> None:
    loader = DataLoader(Wrapped(dataset), **SAMPLERS[kind](dataset), **way)

    passes = [served(loader) for _ in range(3)]

    assert num_equal(passes[0], passes[1]) <= 3
    assert num_equal(passes[1], passes[2]) <= 3
    repeated = [each for each in passes[0].values() if len(each) > 1]
    assert sum(torch.equal(each[0], each[1]) for each in repeated) <= 3
    assert bool(repeated) == (kind == "weighted")


@pytest.mark.parametrize("way", WAYS)
def test_a_repeat_within_an_epoch_is_another_crop(folder: Path, way: dict[str, Any]) -> None:
    weights = Weighted([1.0] * NUM, num_samples=4 * NUM)
    inner = ShardDataset(folder, fields=["image", "sample_id"], augment=OPS)
    loader = DataLoader(Wrapped(inner), 5, sampler=weights, **way)

    repeated = [each for each in served(loader).values() if len(each) > 1]

    assert len(repeated) > NUM / 2
    assert sum(torch.equal(each[0], each[1]) for each in repeated) <= 3


@pytest.mark.parametrize(("seeds", "num_alike"), [([7, 7], NUM), ([0, 1], 0)])
def test_ranks_that_share_samples_crop_them_apart_by_their_seeds(
    dataset: ShardDataset, seeds: list[int], num_alike: int
) -> None:
    """As samplers for repeated augmentation ask for: each rank is given the same samples."""
    ranks = [served(DataLoader(dataset, 5, sampler=range(NUM), seed=seed)) for seed in seeds]

    assert abs(num_equal(*ranks) - num_alike) <= 3


def test_what_is_read_within_a_batch_leaves_its_epoch(dataset: ShardDataset, folder: Path) -> None:
    """As by a dataset of others that has a loader of its own."""
    with reading(SampleIndex(3, epoch=2)):
        before = dataset[3].image
        for _ in DataLoader(Wrapped(images(ShardDataset, folder)), 6, num_workers=0):
            pass

        assert torch.equal(dataset[3].image, before)


def test_nothing_is_told_outside_of_a_loader(dataset: ShardDataset) -> None:
    before = dataset[3].image
    loader = DataLoader(Wrapped(dataset), 5, num_workers=0)
    loader.set_epoch(7)

    batches = iter(loader)
    next(batches)

    assert torch.equal(dataset[3].image, before)


MADE_OF: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "ours": (lambda d: d, True),
    "one of others": (Wrapped, True),
    "parts of parts": (lambda d: Subset(Subset(Wrapped(d), [0]), [0]), True),
    "several": (lambda d: ConcatDataset([Wrapped([1, 2]), Wrapped(d)]), True),
    "a list": (lambda d: [d], False),
    "numbers": (lambda d: list(range(9)), False),
    "tensors": (lambda d: torch.utils.data.TensorDataset(torch.arange(9)), False),
}


@pytest.mark.parametrize("made_of", MADE_OF)
def test_whether_a_dataset_is_made_of_ours_shows_in_its_attributes(
    dataset: ShardDataset, made_of: str
) -> None:
    make, expected = MADE_OF[made_of]

    assert any(True for _ in ours_in(make(dataset))) == expected


@pytest.mark.parametrize("kind", [np.empty, lambda n, _: torch.empty(n, dtype=torch.int64)])
def test_a_batch_sampler_may_fill_one_array_again_and_again(
    dataset: ShardDataset, kind: Any
) -> None:
    """While the batch before is still being made."""

    class Same:
        batch = kind(4, np.int64)

        def __iter__(self) -> Any:
            for first in range(0, NUM, 4):
                self.batch[:] = torch.arange(first, first + 4)
                yield self.batch

        def __len__(self) -> int:
            return NUM // 4

    loader: Any = DataLoader(dataset, batch_sampler=Same(), num_workers=2, backend="thread")

    assert [i for _, ids in loader for i in ids.tolist()] == list(range(NUM))


# -- torch's own loader ----------------------------------------------------------------------------


def test_torchs_worker_processes_warn_below_a_wrapper_too(dataset: ShardDataset) -> None:
    options: Any = {"num_workers": 2, "multiprocessing_context": "fork"}  # which keeps the filters
    iterator: Any = iter(TorchLoader(Wrapped(dataset), 5, shuffle=True, **options))

    with pytest.raises(UserWarning):
        list(iterator)
    iterator._shutdown_workers()  # or they would end ten seconds late, in whatever test runs then


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_of_ours_reaches_below_a_wrapper_too(
    dataset: ShardDataset, num_workers: int
) -> None:
    loader = TorchLoader(Wrapped(dataset), 5, sampler=EpochSampler(NUM), num_workers=num_workers)
    ours = DataLoader(dataset, 5, shuffle=True)
    for _ in range(2):
        assert num_equal(served(loader), served(ours)) == NUM


def test_torchs_loader_is_warned_of_when_its_second_epoch_begins(dataset: ShardDataset) -> None:
    loader = TorchLoader(dataset, 5, shuffle=True)
    first = served(loader)

    with pytest.warns(UserWarning, match="EpochSampler"):
        again = served(loader)
    served(loader)  # once

    assert num_equal(first, again) == NUM


def test_torchs_worker_processes_warn_at_once(dataset: ShardDataset) -> None:
    """Each sees a sample once: here as the error that the test run makes of warnings."""
    options: Any = {"num_workers": 2, "multiprocessing_context": "fork"}
    iterator: Any = iter(TorchLoader(dataset, 5, shuffle=True, **options))

    with pytest.raises(UserWarning):
        list(iterator)
    iterator._shutdown_workers()


def test_transforms_that_draw_and_mixtures_are_told_of_too(dataset: ShardDataset) -> None:
    def noisy(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return image + torch.randint(0, 2, image.shape, dtype=torch.uint8, generator=generator)

    def noisy_by_itself(image: torch.Tensor) -> torch.Tensor:
        return image + int(np.random.rand() < 0.5)  # noqa: NPY002

    cropped = dataset.replace(augment=[augment.CenterCrop(16)])
    for each in (
        cropped.replace(transform={"image": noisy}),
        cropped.replace(transform={"image": noisy_by_itself}),
        Mixture([dataset, dataset], stop=NUM),
    ):
        loader = TorchLoader(each, 2 * NUM, collate_fn=len)
        assert sum(loader) == len(each)
        with pytest.warns(UserWarning, match="epoch 0"):
            list(loader)


def test_the_first_epoch_of_a_view_is_a_first_one(dataset: ShardDataset) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        list(TorchLoader(dataset, 8))  # for statistics, say
        list(TorchLoader(dataset.select(range(20)), 8))

    assert not found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_with_a_sampler_of_ours_is_right(
    dataset: ShardDataset, num_workers: int
) -> None:
    loader = TorchLoader(dataset, 5, sampler=EpochSampler(len(dataset)), num_workers=num_workers)
    ours = DataLoader(dataset, 5, shuffle=True)
    for _ in range(3):
        assert num_equal(served(loader), served(ours)) == NUM


@pytest.mark.parametrize(
    "changes", [{"augment": [augment.CenterCrop(16)]}, {"augment": None}, "told", "single"]
)
def test_nobody_is_warned_without_reason(dataset: ShardDataset, changes: Any) -> None:
    if changes == "told":
        dataset.set_epoch(0)
    elif changes != "single":
        dataset = dataset.replace(fields=["sample_id", "label"], **changes)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            if changes == "single":
                list(dataset)
            else:
                list(TorchLoader(dataset, 8))

    assert not found


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (tuple, {"num_workers": 0}),
        (np.array, {"num_workers": 0}),
        (list, {"num_workers": 0}),
        (torch.tensor, {"num_workers": 1, "backend": "process"}),
    ],
    ids=["tuple", "array", "list", "tensor, process"],
)
def test_batches_of_any_kind_bring_other_crops_each_epoch(
    dataset: ShardDataset, kind: Any, way: dict[str, Any]
) -> None:
    batches = [kind(range(i, i + 4)) for i in range(0, NUM - 3, 4)]
    loader = DataLoader(Wrapped(dataset), batch_sampler=batches, **way)

    passes = [served(loader) for _ in range(3)]

    assert num_equal(passes[0], passes[1]) <= 1
    assert num_equal(passes[1], passes[2]) <= 1
