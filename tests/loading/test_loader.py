import gc
import json
import logging
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

from loaders import DataLoader, RAMDataset, ShardDataset, augment, collate
from loaders.errors import BatchError, SampleError, StateError
from loaders.sampling import Sequential
from tests.packdata.packing import pack_samples

NUM = 23
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["lmdb", "parquet"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM, format=request.param)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM, format="parquet")


def augmented(folder: Path) -> ShardDataset:
    ops = [augment.RandomResizedCrop(12), augment.RandomHorizontalFlip()]
    return ShardDataset(
        folder, fields=["image", "label", "boxes", "key", "sample_id"], augment=ops
    )


def ids(loader: Any) -> list[list[int]]:
    return [batch.sample_id.tolist() for batch in loader]


def flat(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def only_ids(folder: Path) -> ShardDataset:
    return ShardDataset(folder, fields=["label", "sample_id"])


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def num_threads() -> int:
    gc.collect()
    return sum(thread.name.startswith("loaders-") for thread in threading.enumerate())


# -- the same bits, whoever reads -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "backend"),
    [(1, "thread"), (2, "thread"), (5, "thread"), (0, "process"), (2, "process")],
)
def test_batches_do_not_depend_on_who_reads_them(
    folder: Path, num_workers: int, backend: Any
) -> None:
    """Two epochs, augmented, in order and to the bit."""
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}
    plain = DataLoader(augmented(folder), num_workers=0, **settings)
    other = DataLoader(augmented(folder), num_workers=num_workers, backend=backend, **settings)

    for _ in range(2):
        expected, got = list(plain), list(other)

        assert len(expected) == 3
        for a, b in zip(expected, got, strict=True):
            assert_same(a, b)


def test_a_row_of_a_batch_is_the_sample_of_its_index(folder: Path) -> None:
    dataset = augmented(folder)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)

    for epoch in range(2):
        dataset.set_epoch(epoch)
        for batch in loader:
            for i, index in enumerate(batch.sample_id.tolist()):
                assert_same(tuple(dataset[index]), tuple(values[i] for values in batch))


def test_another_epoch_or_seed_draws_other_crops(folder: Path) -> None:
    loader = DataLoader(augmented(folder), batch_size=NUM, num_workers=1)

    first, second = next(iter(loader)), None
    loader.set_epoch(1)
    second = next(iter(loader))
    other = next(iter(DataLoader(augmented(folder), batch_size=NUM, num_workers=1, seed=1)))

    assert torch.equal(first.sample_id, second.sample_id)
    assert not torch.equal(first.image, second.image)
    assert not torch.equal(first.image, other.image)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, collate])
def test_torchs_own_loader_serves_the_same_samples(
    folder: Path, num_workers: int, collate_fn: Any
) -> None:
    dataset = ShardDataset(folder, fields=["pixels", "label", "key"])
    torchs = torch.utils.data.DataLoader(
        dataset, batch_size=8, num_workers=num_workers, collate_fn=collate_fn
    )

    for expected, got in zip(DataLoader(dataset, batch_size=8), torchs, strict=True):
        for a, b in zip(expected, got, strict=True):
            assert_same(a, list(b) if isinstance(b, tuple) else b)  # of strings, torch's way


# -- epochs and resume ----------------------------------------------------------------------------


def test_a_full_pass_advances_the_epoch_and_a_break_does_not(one: Path) -> None:
    loader = DataLoader(only_ids(one), batch_size=5, shuffle=True, num_workers=2)

    for _ in loader:
        break
    broken_off = next(iter(loader))
    with pytest.warns(UserWarning, match="epoch 0"):
        whole = ids(loader)
    following = ids(loader)

    assert broken_off.sample_id.tolist() == whole[0]
    assert whole != following
    assert sorted(flat(whole)) == sorted(flat(following)) == list(range(NUM))
    assert num_threads() == 0


def test_epochs_that_begin_anew_are_told_of_once_and_only_where_torch_would_shuffle(
    one: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def leave_early(loader: DataLoader, times: int) -> None:
        for _ in range(times):
            next(iter(loader))

    leave_early(DataLoader(only_ids(one), 5), 4)  # in order: as torch
    shuffled = DataLoader(only_ids(one), 5, shuffle=True)
    for epoch in range(4):
        shuffled.set_epoch(epoch)
        leave_early(shuffled, 1)
    state = shuffled.state_dict()
    for _ in range(4):
        shuffled.load_state_dict(state)
        leave_early(shuffled, 1)
    for _ in range(4):
        iter(shuffled)  # nothing was taken
    assert not recwarn.list

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        leave_early(shuffled, 6)
    assert len(told) == 1


def test_a_batch_shows_its_shapes_and_says_what_its_fields_are_called(one: Path) -> None:
    dataset = ShardDataset(one, fields=["label", "key", "sample_id"])
    (batch, *_) = DataLoader(dataset, 4)

    assert repr(batch).startswith("Batch(label=int64 (4,), key=[")
    assert repr(dataset[0]).startswith("Sample(label=")
    assert batch[0] is batch.label
    with pytest.raises(TypeError):
        batch["label"]  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        _ = batch.labels
    assert not hasattr(batch, "labels")
    assert repr(dataset.schema).startswith("Schema(image=Image(")


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_set_epoch_chooses_the_order(one: Path, backend: Any) -> None:
    def loader() -> DataLoader:
        return DataLoader(only_ids(one), 5, shuffle=True, num_workers=1, backend=backend)

    counting, jumping = loader(), loader()
    epochs = [ids(counting) for _ in range(3)]
    jumping.set_epoch(2)

    assert ids(jumping) == epochs[2]
    jumping.set_epoch(0)
    assert ids(jumping) == epochs[0]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("delivered", [0, 1, 3, 4, 5])
def test_it_resumes_after_any_batch(one: Path, delivered: int, num_workers: int) -> None:
    """The rest of the epoch follows, if any, then the next ones."""
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 7}
    loader = DataLoader(only_ids(one), num_workers=num_workers, prefetch_factor=3, **settings)
    epochs = [ids(loader) for _ in range(4)]
    loader.set_epoch(1)
    iterator = iter(loader)
    for _ in range(delivered):
        next(iterator)
    state = loader.state_dict()
    resumed = DataLoader(only_ids(one), num_workers=2, **settings)

    resumed.load_state_dict(state)

    assert resumed.state_dict() == state
    assert len(resumed) == 5
    for expected in [epochs[1][delivered:], *epochs[2:]]:
        assert not expected or ids(resumed) == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_state_of_an_epochs_last_batch_is_the_beginning_of_the_next(
    one: Path, drop_last: bool
) -> None:
    """As it is once the loop has ended; a loop that sets the epoch of the state first has nothing left of it."""
    settings: dict[str, Any] = {"shuffle": True, "drop_last": drop_last}
    loader = DataLoader(only_ids(one), 4, num_workers=1, **settings)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    state = loader.state_dict()
    assert list(iterator) == []
    assert loader.state_dict() == state
    epochs = {epoch: ids(loader) for epoch in (1, 2)}

    for chosen, expected in (
        (None, [epochs[1], epochs[2]]),
        (0, [[], epochs[1]]),
        (1, [epochs[1], epochs[2]]),
        (2, [epochs[2]]),
    ):
        for begins_before in (False, True):
            resumed = DataLoader(only_ids(one), 4, num_workers=1, **settings)
            resumed.load_state_dict(state)
            first = iter(resumed) if begins_before else None
            if chosen is not None:
                resumed.set_epoch(chosen)
            for part in expected:
                assert ids(first or resumed) == part
                first = None


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_an_iteration_that_gave_nothing_yet_begins_where_it_is_sent(
    one: Path, backend: Any, num_workers: int
) -> None:
    """Frameworks begin to iterate, and then set the epoch."""
    plain, loader = (
        DataLoader(
            only_ids(one), 5, shuffle=True, num_workers=num_workers, backend=backend,
            persistent_workers=num_workers > 0,
        )
        for _ in range(2)
    )  # fmt: skip
    epochs = [ids(plain) for _ in range(3)]
    iterator = iter(loader)
    loader.set_epoch(1)

    assert ids(iterator) == epochs[1]
    assert ids(iterator) == []
    assert ids(loader) == epochs[2]


def test_a_loader_that_went_on_within_a_chosen_epoch_goes_on_there(one: Path) -> None:
    """A short one beside a long one is served again and again; whoever resumes chooses the long one's epoch anew."""
    loader = DataLoader(only_ids(one), 5, shuffle=True, num_workers=0)
    loader.set_epoch(0)
    ids(loader), ids(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = ids(iterator)

    resumed = DataLoader(only_ids(one), 5, shuffle=True, num_workers=0)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    resumed.set_epoch(0)

    assert ids(resumed) == rest
    assert ids(resumed) == ids(loader)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    loader.set_epoch(1)
    assert ids(resumed) == ids(loader)


def test_an_epoch_before_a_state_within_the_next_is_served_whole(one: Path) -> None:
    """A script that counts epochs from 0 again: it is warned, and loses no samples."""
    loader, resumed = (DataLoader(only_ids(one), 5, shuffle=True, num_workers=0) for _ in range(2))
    first = ids(loader)
    next(iter(loader))
    resumed.load_state_dict(loader.state_dict())

    with pytest.warns(UserWarning, match="set_epoch"):
        resumed.set_epoch(0)

    assert ids(resumed) == first


def test_who_skips_what_is_done_by_itself_skips_it_once(one: Path) -> None:
    """accelerate's ``skip_first_batches`` and ignite read batches of the loader's own batch sampler, and skip some."""
    loader = DataLoader(only_ids(one), 5, shuffle=True)
    epochs = [ids(loader) for _ in range(2)]
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = DataLoader(only_ids(one), 5, shuffle=True)
    resumed.load_state_dict(loader.state_dict())

    batches = list(cast("Any", resumed.batch_sampler))

    assert [list(batch) for batch in batches[2:]] == epochs[0][2:]
    assert ids(resumed) == epochs[1]


def test_it_resumes_at_the_next_epoch_after_a_full_pass(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, shuffle=True)
    list(loader)
    resumed = DataLoader(only_ids(one), 5, shuffle=True)

    resumed.load_state_dict(loader.state_dict())

    assert loader.state_dict()["sampler"]["epoch"] == 1
    assert ids(resumed) == ids(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_as_many_steps_as_it_has_are_an_epoch(one: Path, num_workers: int) -> None:
    def loader() -> DataLoader:
        return DataLoader(only_ids(one), 5, shuffle=True, num_workers=num_workers)

    plain, counted = loader(), loader()

    epochs = [
        ids(batch for _, batch in zip(range(len(counted)), counted, strict=False))
        for _ in range(3)
    ]

    assert epochs == [ids(plain) for _ in range(3)]


def test_counters_are_those_of_the_moment(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5)
    before = loader.stats()
    list(loader)

    assert loader.stats().num_batches - before.num_batches == len(loader)


def test_a_break_forgets_the_position_only_when_the_next_pass_begins(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, num_workers=1)
    for _ in loader:
        break

    assert loader.state_dict()["sampler"]["delivered"] == 5
    assert ids(loader)[0] == [0, 1, 2, 3, 4]
    assert loader.state_dict()["sampler"]["delivered"] == 0


@pytest.mark.parametrize(
    ("batch_size", "world_size", "backend"), [(3, 1, "process"), (4, 2, "thread")]
)
def test_the_rest_is_the_same_samples_on_another_layout(
    one: Path, batch_size: int, world_size: int, backend: Any
) -> None:
    loader = DataLoader(only_ids(one), 5, shuffle=True, seed=1)
    iterator = iter(loader)
    taken = flat(next(iterator).sample_id.tolist() for _ in range(2))
    rest: list[int] = []

    for rank in range(world_size):
        other = DataLoader(
            only_ids(one), batch_size, shuffle=True, seed=1, pad=False, num_workers=1,
            backend=backend, rank=rank, world_size=world_size,
        )  # fmt: skip
        other.load_state_dict(loader.state_dict())
        rest += flat(ids(other))

    assert sorted(taken + rest) == list(range(NUM))


def test_a_resumed_epoch_begins_at_its_start_after_a_break(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, num_workers=1)
    state = loader.state_dict()
    state["sampler"]["delivered"] = 10
    loader.load_state_dict(state)

    for batch in loader:
        assert batch.sample_id[0] == 10
        break

    assert ids(loader)[0] == [0, 1, 2, 3, 4]


def test_an_iterator_that_was_left_does_not_move_the_epoch(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, num_workers=1)
    left = iter(loader)
    next(left)
    loader.set_epoch(5)

    list(left)

    assert loader.state_dict()["sampler"]["epoch"] == 5
    assert loader.state_dict()["sampler"]["delivered"] == 0


def test_an_epoch_that_was_chosen_at_the_sampler_stays_chosen(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]  # as frameworks do

    list(iterator)

    assert loader.state_dict()["sampler"]["epoch"] == 5


def test_a_loader_that_is_copied_goes_on_from_where_it_was(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, shuffle=True, num_workers=1)
    everything = ids(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator), next(iterator)

    copy = pickle.loads(pickle.dumps(loader))
    next(iterator)

    assert copy.state_dict()["sampler"]["delivered"] == 10
    copy.load_state_dict(copy.state_dict())
    assert ids(copy) == everything[2:]


def test_an_iterator_that_was_left_does_not_use_up_a_state_that_was_loaded(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, shuffle=True, num_workers=0)
    everything = ids(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    left = iter(loader)
    next(left)

    loader.load_state_dict(state)
    next(left)

    assert ids(loader) == everything[2:]


def test_a_state_of_something_else_is_refused(one: Path, tmp_path: Path) -> None:
    other = pack_samples(tmp_path / "other", NUM, seed=1)
    state = DataLoader(only_ids(one), 5).state_dict()

    for dataset in (only_ids(other), only_ids(one)[1:]):
        with pytest.raises(StateError):
            DataLoader(dataset, 5).load_state_dict(state)
    with pytest.raises(StateError):
        DataLoader(only_ids(one), 5, shuffle=True).load_state_dict(state)
    with pytest.raises(StateError):
        DataLoader(only_ids(one), 5).load_state_dict(state | {"version": 9})
    others = DataLoader(only_ids(one), sampler=SequentialSampler(range(NUM)))
    with pytest.raises(StateError):
        DataLoader(only_ids(one)).load_state_dict(others.state_dict())


# -- ranks and tails ------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_each_global_batch(one: Path, world_size: int) -> None:
    """The global batch depends on its size alone, not on how many ranks share it."""
    whole = ids(DataLoader(only_ids(one), 6, shuffle=True, drop_last=True))

    parts = [
        ids(DataLoader(only_ids(one), 6 // world_size, shuffle=True, drop_last=True, rank=rank,
                       world_size=world_size, num_workers=1))
        for rank in range(world_size)
    ]  # fmt: skip

    assert [flat(step) for step in zip(*parts, strict=True)] == whole
    assert len(whole) == 3


@pytest.mark.parametrize(("pad", "steps", "rows"), [(True, [2, 2], 24), (False, [2, 2], 23)])
def test_the_tail_is_wrapped_or_exact(one: Path, pad: bool, steps: list[int], rows: int) -> None:
    loaders = [DataLoader(only_ids(one), 8, pad=pad, rank=rank, world_size=2) for rank in range(2)]

    served = [ids(loader) for loader in loaders]

    assert [len(loader) for loader in loaders] == [len(part) for part in served] == steps
    assert len(flat(flat(served))) == rows
    assert set(flat(flat(served))) == set(range(NUM))


@pytest.mark.parametrize(
    ("num_workers", "backend", "transform"),
    [
        (0, "thread", None),
        (2, "thread", None),
        (2, "process", None),
        (0, "process", None),
        (2, "thread", lambda sample: sample),
    ],
)
@pytest.mark.parametrize("as_dict", [False, True])
def test_marks_tell_padding_from_samples_on_every_way(
    one: Path, num_workers: int, backend: Any, transform: Any, as_dict: bool
) -> None:
    seen: list[int] = []
    for rank in range(2):
        loader = DataLoader(
            only_ids(one).replace(transform=transform), 8, pad="mark", rank=rank, world_size=2,
            num_workers=num_workers, backend=backend, as_dict=as_dict, device="cpu",
        )  # fmt: skip
        for batch in loader:
            valid = batch["valid"] if as_dict else batch.valid
            seen += (batch["sample_id"] if as_dict else batch.sample_id)[valid].tolist()

    assert sorted(seen) == list(range(NUM))


def test_marks_without_a_place_are_refused(one: Path) -> None:
    loader = DataLoader(only_ids(one), 8, pad="mark", collate_fn=list)

    with pytest.raises(BatchError):
        next(iter(loader))


def test_resumed_marks_belong_to_the_rest(one: Path) -> None:
    loader = DataLoader(only_ids(one), 8, pad="mark", rank=1, world_size=2)
    state = loader.state_dict()
    state["sampler"]["delivered"] = 20
    loader.load_state_dict(state)

    (batch,) = loader

    assert (batch.sample_id.tolist(), batch.valid.tolist()) == ([22, 0], [True, False])


def test_as_dict_names_the_fields(one: Path) -> None:
    (batch,) = DataLoader(only_ids(one), NUM, as_dict=True)

    assert list(batch) == ["label", "sample_id"]


# -- memory ---------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> ShardDataset:
    folder = pack_samples(tmp_path / "large", 64, fields=["pixels", "label"], per_shard=20)
    return ShardDataset(folder, fields=["pixels", "sample_id"])


def test_kept_batches_are_never_overwritten(large: ShardDataset) -> None:
    loader = DataLoader(large, 8, shuffle=True, num_workers=2)

    kept = [batch for _ in range(3) for batch in loader]

    pixels = large.column("pixels")
    for batch in kept:
        assert np.array_equal(batch.pixels.numpy(), pixels[batch.sample_id.numpy()])
    assert loader.stats().slot_bytes >= len(kept) * kept[0].pixels.nbytes


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_slots_stay_as_many_over_ten_epochs(large: ShardDataset, num_workers: int) -> None:
    loader = DataLoader(large, 8, shuffle=True, num_workers=num_workers)

    for _ in range(11):
        for batch in loader:
            del batch

    num_groups = (
        5 if num_workers else 2
    )  # in flight, made and handed over; of the 8 batches of an epoch at most
    assert loader.stats().slot_bytes <= num_groups * 8 * 8 * 40 * 48 * 3
    assert loader.stats().num_batches == 11 * 8


def calls_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many functions a piece of work calls on this thread, and what it returns."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        done = work()
    finally:
        sys.setprofile(None)
    return calls, done


@pytest.mark.parametrize(("length", "most"), [(1_000, 1_500), (50_000, 4_000), (1_000_000, 4_000)])
def test_a_further_epoch_begins_with_as_little_work_however_long_it_is(
    length: int, most: int
) -> None:
    """Milliseconds on a quiet machine (``benchmarks/spine.py`` has them); here, what they are made of."""
    dataset = RAMDataset.from_arrays(x=np.zeros((length, 4), np.float32))
    loader = DataLoader(dataset, 100, shuffle=True, num_workers=1, backend="thread")
    begun = []
    for epoch in range(20):
        loader.set_epoch(epoch)
        calls, batches = calls_of(partial(_first_of, loader))
        begun.append(calls)
        batches.close()

    assert max(begun) < most
    assert max(begun[1:]) < 1.05 * begun[0]  # nothing is kept that later epochs must go through


def _first_of(loader: DataLoader[Any]) -> Any:
    """Begin an epoch, and take its first batch."""
    batches = iter(loader)
    next(batches)
    return batches


def test_torchs_threads_are_left_alone(one: Path) -> None:
    """Those of threads to come as well."""
    before = torch.get_num_threads()
    later: list[int] = []
    torch.set_num_threads(2)

    list(DataLoader(only_ids(one), 4, num_workers=3))

    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *later] == [2, 2]
    torch.set_num_threads(before)


# -- errors and early ends ------------------------------------------------------------------------


def damage(folder: Path, index: int) -> Path:
    """Turn the picture of one sample into noise."""
    dataset = ShardDataset(folder, fields=["image"])
    record = dataset.store.records("image", dataset.view.rows(np.array([index])))[0].tobytes()
    path, _ = dataset.view.place(index)
    assert isinstance(path, Path)
    data = path.read_bytes()
    assert data.count(record) == 1
    path.write_bytes(data.replace(record, record[:40] + bytes(len(record) - 40)))
    return path


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_bad_sample_is_named_to_the_consumer(tmp_path: Path, num_workers: int) -> None:
    """Batches before it arrive, and nothing is left running."""
    folder = pack_samples(tmp_path / "bad", NUM)
    path = damage(folder, 13)
    iterator = iter(DataLoader(ShardDataset(folder, check="never"), 5, num_workers=num_workers))

    got = [next(iterator), next(iterator)]
    with pytest.raises(SampleError) as caught:
        next(iterator)

    assert len(got) == 2
    assert (caught.value.path, caught.value.row, caught.value.key) == (path, 1, "cat/013")
    assert "sample 13" in str(caught.value)
    del iterator, caught
    assert num_threads() == 0


def test_leaving_in_the_middle_leaves_no_thread(one: Path) -> None:
    loader = DataLoader(only_ids(one), 2, num_workers=3)
    iterator: Any = iter(loader)
    next(iterator)
    assert num_threads() == 3

    del iterator
    assert num_threads() == 0
    for _ in loader:
        break
    assert num_threads() == 0
    iterator = iter(loader)
    iterator.close()
    iterator.close()
    assert num_threads() == 0
    with pytest.raises(RuntimeError):
        raise RuntimeError("ended")


def test_the_next_iteration_ends_the_one_before(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, num_workers=1)
    first = iter(loader)
    next(first)

    second = iter(loader)

    with pytest.raises(RuntimeError, match="a loader for each"):
        next(first)
    assert len(ids(second)) == len(loader)
    assert loader.epoch == 1


class Stuck(Dataset[int]):
    """Waits in its first sample until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __getitem__(self, index: int) -> int:
        assert self.go.wait(60)
        return index

    def __len__(self) -> int:
        return 4


def test_timeout_is_an_error_that_says_what_is_slow() -> None:
    dataset = Stuck()
    iterator: Any = iter(DataLoader(dataset, 2, num_workers=1, backend="thread", timeout=0.1))
    try:
        with pytest.raises(RuntimeError):
            next(iterator)
    finally:
        dataset.go.set()

    assert next(iterator).tolist() == [0, 1]


def test_a_stall_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Stuck()
    loader = DataLoader(dataset, 4, num_workers=1, backend="thread", stall_warning_s=0.05)
    threading.Timer(0.3, dataset.go.set).start()

    with caplog.at_level(logging.WARNING):
        (batch,) = loader

    assert batch.tolist() == [0, 1, 2, 3]
    assert "reading 1 batch of Stuck" in caplog.text


# -- what torch's DataLoader takes ----------------------------------------------------------------


class Squares(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return int(index) ** 2

    def __len__(self) -> int:
        return 10


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_an_iterable_dataset_is_served() -> None:
    assert [batch.tolist() for batch in DataLoader(Counting(), 4)] == [[0, 1, 2, 3], [4, 5]]
    with pytest.raises(ValueError):
        DataLoader(Counting(), 4, backend="thread")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_foreign_samplers_and_collate_functions(one: Path, num_workers: int, backend: Any) -> None:
    given: dict[str, Any] = {"num_workers": num_workers, "backend": backend}
    dataset = only_ids(one)
    sampler = [4, 2, -1]

    single = ids(DataLoader(dataset, 2, sampler=sampler, **given))
    batches = ids(DataLoader(dataset, batch_sampler=BatchSampler(sampler, 2, False), **given))
    lists = list(DataLoader(dataset, 2, sampler=sampler, collate_fn=len, **given))

    assert single == batches == [[4, 2], [NUM - 1]]
    assert lists == [2, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_beyond_the_end_is_an_index_error(one: Path, num_workers: int) -> None:
    loader = DataLoader(only_ids(one), 2, sampler=[1, NUM], num_workers=num_workers)

    with pytest.raises(IndexError):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_error_of_a_sampler_comes_after_the_batches_before_it(
    one: Path, num_workers: int
) -> None:
    def indices() -> Iterator[int]:
        yield from range(5)
        raise ZeroDivisionError("sampler")

    sampler: Any = indices()
    iterator = iter(DataLoader(only_ids(one), 2, sampler=sampler, num_workers=num_workers))

    assert next(iterator).sample_id.tolist() == [0, 1]
    assert next(iterator).sample_id.tolist() == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(iterator)


def test_an_error_is_not_the_end_of_the_epoch(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "bad", NUM)
    damage(folder, 13)
    loader = DataLoader(ShardDataset(folder, check="never"), 5, num_workers=0)
    iterator = iter(loader)

    for _ in range(2):
        next(iterator)
    with pytest.raises(SampleError):
        next(iterator)

    assert len(next(iterator).label) == 5
    assert loader.state_dict()["sampler"]["epoch"] == 0


def as_it_is(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("transform", [None, as_it_is])
def test_without_a_batch_size_samples_come_alone(
    one: Path, num_workers: int, backend: Any, transform: Any
) -> None:
    dataset = only_ids(one).replace(transform=transform)

    samples = list(DataLoader(dataset, None, num_workers=num_workers, backend=backend))

    assert [sample.sample_id.item() for sample in samples] == list(range(NUM))
    assert samples[4].label.item() == 1


def test_workers_are_initialized_as_in_torch(one: Path) -> None:
    """A ``worker_init_fn`` needs processes, and gets them; others refuse it."""
    loader = DataLoader(only_ids(one), 8, num_workers=1, worker_init_fn=print)

    assert loader.backend == "process"
    for backend in ("thread", "subprocess"):
        DataLoader(only_ids(one), 8, num_workers=1, backend=backend)
        with pytest.raises(ValueError):
            DataLoader(only_ids(one), 8, num_workers=1, worker_init_fn=print, backend=backend)


@pytest.mark.parametrize(
    "backend", ["thread", "process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_persistent_workers_go_through_epochs(one: Path, backend: Any) -> None:
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": True}
    plain = DataLoader(only_ids(one), num_workers=0, **settings)
    expected = [ids(plain) for _ in range(2)]

    keep: dict[str, Any] = {"persistent_workers": True, "backend": backend}
    loader = DataLoader(only_ids(one), num_workers=1, **keep, **settings)

    assert [ids(loader) for _ in range(2)] == expected


def test_threads_serve_who_wants_persistent_workers(one: Path) -> None:
    """What such workers keep, the dataset and its caches, threads share with the trainer."""
    assert DataLoader(only_ids(one), num_workers=2, persistent_workers=True).backend == "thread"
    assert not DataLoader(only_ids(one), num_workers=0, persistent_workers=True).persistent_workers


@pytest.mark.parametrize(
    "backend", ["process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_a_pickled_loader_starts_workers_of_its_own(one: Path, backend: Any) -> None:
    settings: dict[str, Any] = {"persistent_workers": True, "seed": 3, "backend": backend}
    loader = DataLoader(only_ids(one), 6, shuffle=True, num_workers=1, **settings)
    first = ids(loader)

    copied = pickle.loads(pickle.dumps(loader))

    assert ids(copied) == ids(loader) != first


@pytest.mark.parametrize("form", ["list", "pad", "offsets"])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_transform_does_not_change_the_form_of_a_batch(
    one: Path, form: str, num_workers: int
) -> None:
    plain = ShardDataset(one, fields=["boxes", "label", "key"], batching={"boxes": form})

    given: dict[str, Any] = {"batch_size": NUM, "num_workers": num_workers}
    (expected,) = DataLoader(plain, **given)
    (got,) = DataLoader(plain.replace(transform=lambda sample: sample), **given)

    assert_same(expected, got)


def test_ram_and_shards_give_the_same_batches(one: Path) -> None:
    dataset = augmented(one)
    ram = RAMDataset(dataset, progress=False)
    settings: dict[str, Any] = {"batch_size": 6, "shuffle": True, "num_workers": 2}

    for a, b in zip(DataLoader(dataset, **settings), DataLoader(ram, **settings), strict=True):
        assert_same(a, b)
    state = DataLoader(dataset, 6).state_dict()
    DataLoader(ram, 6).load_state_dict(state)


def test_what_an_order_of_torchs_leaves_no_room_for_is_refused(one: Path) -> None:
    torchs = SequentialSampler(range(NUM))
    DataLoader(only_ids(one), sampler=torchs)
    with pytest.raises(ValueError):
        DataLoader(only_ids(one), sampler=torchs, shuffle="block")
    with pytest.raises(ValueError):
        DataLoader(only_ids(one), sampler=torchs, rank=0, world_size=2)


def test_each_worker_is_one_thread_also_for_torch(folder: Path) -> None:
    """A thread's first operation takes the process's count, unless it was settled before."""
    seen: list[int] = []

    def look(sample: Any) -> Any:
        torch.index_select(torch.zeros(4, 4), 0, torch.tensor([1]))
        seen.append(torch.get_num_threads())
        return sample

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in DataLoader(
            ShardDataset(folder, fields=["sample_id"], transform=look), batch_size=4, num_workers=2
        ):
            pass
    finally:
        torch.set_num_threads(before)

    assert set(seen) == {1}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_opencv_starts_no_threads_beside_the_workers(one: Path, num_workers: int) -> None:
    before = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        next(iter(DataLoader(ShardDataset(one), 4, num_workers=num_workers)))
        during = cv2.getNumThreads()
    finally:
        cv2.setNumThreads(before)

    assert during == 1


def test_between_two_batches_the_trainers_thread_makes_none(one: Path) -> None:
    iterator: Any = iter(DataLoader(ShardDataset(one), 4, num_workers=0))
    next(iterator)

    assert "batches are made when they are asked for" in iterator.describe()


def test_a_state_of_another_seed_is_refused_where_crops_are_drawn(folder: Path) -> None:
    plain = ShardDataset(folder, fields=["label"])
    states = [DataLoader(data, seed=1).state_dict() for data in (augmented(folder), plain)]

    DataLoader(plain, seed=2).load_state_dict(states[1])
    DataLoader(augmented(folder), seed=1).load_state_dict(states[0])
    with pytest.raises(StateError):
        DataLoader(augmented(folder), seed=2).load_state_dict(states[0])


# -- batches without end, and those that are not trained on yet ----------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("num_taken", "pending"), [(1, 0), (1, 2), (3, 1), (5, 2), (6, 1), (11, 0)]
)
def test_batches_that_are_pending_come_again(
    one: Path, num_taken: int, pending: int, num_workers: int
) -> None:
    """Also where they are of the epoch before."""

    def loader() -> DataLoader:
        return DataLoader(only_ids(one), 5, shuffle=True, num_workers=num_workers)

    everything = flat_batches(loader(), 20)
    first = loader()
    batches = first.forever()
    for _ in range(num_taken):
        next(batches)
    if pending > num_taken:
        with pytest.raises(StateError):
            first.state_dict(pending=pending)
        return
    resumed = loader()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(pending=pending))))

    assert flat_batches(resumed, 9) == everything[num_taken - pending :][:9]
    with pytest.raises(StateError):
        resumed.state_dict(pending=10)


def flat_batches(loader: DataLoader, num: int) -> list[list[int]]:
    return [batch.sample_id.tolist() for batch in islice(loader.forever(), num)]


def test_forever_refuses_what_would_drift_or_spin(one: Path) -> None:
    DataLoader(only_ids(one), 11, rank=1, world_size=2).forever()
    with pytest.raises(ValueError):
        DataLoader(only_ids(one), 11, pad=False, rank=1, world_size=2).forever()
    with pytest.warns(UserWarning, match="no batch"), pytest.raises(ValueError):
        next(DataLoader(only_ids(one), 500, drop_last=True).forever())


# -- settings that are assigned later -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 5), ("rank", 1), ("world_size", 2), ("pad", False), ("backend", "process"), ("device", "cpu"),
        ("augment_on", "host"), ("as_dict", True), ("batch_size", 3), ("drop_last", True), ("shuffle", False),
        ("generator", torch.Generator()), ("pin_memory", True), ("in_order", False),
        ("persistent_workers", True), ("multiprocessing_context", "spawn"), ("num_workers", -1), ("timeout", -1),
        ("prefetch_factor", 0), ("device_prefetch", -1), ("stall_warning_s", "a"), ("collate_fn", 3),
        ("sampler", range(3)), ("dataset", [1]),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_change_is_refused(one: Path, name: str, value: Any) -> None:
    loader = DataLoader(only_ids(one), 5, shuffle=True, num_workers=1)
    before = ids(loader)
    loader.set_epoch(0)

    with pytest.raises((ValueError, TypeError, AttributeError)):
        setattr(loader, name, value)

    assert ids(loader) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("order", Sequential(3)), ("pad", False), ("drop_last", True), ("seed", 5), ("rank", 1), ("shuffle", False)],
)  # fmt: skip
def test_a_setting_of_a_sampler_that_is_in_use_is_refused(
    one: Path, name: str, value: Any
) -> None:
    loader = DataLoader(only_ids(one), 5, shuffle=True, num_workers=1)

    for part in (loader.sampler, loader.batch_sampler):
        if hasattr(part, name):
            with pytest.raises((ValueError, AttributeError)):
                setattr(part, name, value)


def test_what_can_change_counts_from_the_next_iteration_on(one: Path) -> None:
    loader = DataLoader(only_ids(one), 5, num_workers=0)
    before = ids(loader)

    loader.num_workers, loader.timeout = 2, 30.0
    loader.prefetch_factor, loader.device_prefetch, loader.stall_warning_s = 3, 1, 20.0
    loader.seed, loader.pad = loader.seed, loader.pad  # as they are

    assert ids(loader) == before
    assert loader.stats().backend == "thread"
    loader.sampler.epoch = 4  # type: ignore[attr-defined]
    assert loader.state_dict()["sampler"]["epoch"] == 4


@pytest.mark.parametrize("change", [{"stall_warning_s": 5.0}, {"collate_fn": None}, None], ids=str)
def test_what_was_left_open_stays_as_it_was_chosen_after_a_change(change: Any) -> None:
    """Also after pickling; single samples become tensors as torch makes them."""
    loader = DataLoader([np.arange(2), np.arange(3)], None)
    before = vars(loader)["collate_fn"], vars(loader)["seed"], vars(loader)["backend"]

    if change is None:
        loader = pickle.loads(pickle.dumps(loader))
    for name, value in (change or {}).items():
        setattr(loader, name, value)

    assert [sample.tolist() for sample in loader] == [[0, 1], [0, 1, 2]]
    assert (vars(loader)["collate_fn"], vars(loader)["seed"], vars(loader)["backend"]) == before


def test_worker_processes_follow_a_worker_init_fn_that_is_set_between_epochs() -> None:
    loader = DataLoader([1, 2], num_workers=1)
    assert len(list(loader)) == 2

    loader.worker_init_fn = fail

    with pytest.raises(RuntimeError, match="not today"):
        list(loader)


def fail(worker: int) -> None:
    raise RuntimeError("not today")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_option_that_is_set_in_the_loop_counts_from_the_next_iteration_on(
    num_workers: int,
) -> None:
    dataset = RAMDataset.from_arrays(x=np.arange(40, dtype=np.uint8).reshape(8, 5))
    loader = DataLoader(dataset, 2, num_workers=num_workers, as_dict=True)
    served = []
    for batch in loader:
        served.append(batch)
        loader.collate_fn = len

    assert [type(batch) for batch in served] == [dict] * 4
    assert list(loader) == [2] * 4


def test_an_option_that_is_refused_changes_nothing() -> None:
    images = RAMDataset.from_arrays(image=np.zeros((8, 3, 16, 16), np.uint8))
    dataset = images.replace(augment=[augment.RandomCrop(4)])
    loader = DataLoader(dataset, 2, num_workers=0, augment_on="device")
    before = dict(vars(loader))

    with pytest.raises(ValueError):
        loader.collate_fn = len

    assert vars(loader) == before
    assert len(next(iter(loader)).image) == 2


def test_what_auto_chose_stays_where_another_option_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = RAMDataset.from_arrays(image=np.zeros((8, 3, 64, 64), np.uint8))
    loader = DataLoader(images, 2)
    chosen = loader.num_workers
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(10 * chosen))

    loader.timeout = 5

    assert loader.num_workers == chosen


def test_without_workers_no_other_argument_need_be_removed() -> None:
    loader = DataLoader([1, 2], num_workers=1, timeout=5, persistent_workers=True)

    loader.num_workers = 0

    assert [batch.tolist() for batch in loader] == [[1], [2]]
    assert len(list(DataLoader([1, 2], num_workers=0, timeout=5))) == 2
