import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, augment, concat
from loaders.datasets.reading.request import Request
from loaders.datasets.views import unwrap
from loaders.errors import SchemaError, StateError
from loaders.schema import Label
from tests.packdata.packing import pack, pack_samples


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ShardDataset:
    folder = pack_samples(tmp_path_factory.mktemp("packed") / "a", 20)
    return ShardDataset(folder, fields=["pixels", "key"])


def keys(loader: Any) -> list[str]:
    return [key for batch in loader for key in batch.key]


def test_a_dataset_that_is_joined_to_itself_is_mapped_once(tmp_path: Path) -> None:
    dataset = ShardDataset(pack_samples(tmp_path / "a", 20), fields=["pixels", "key"])
    joined = concat([dataset, dataset, dataset.select([3, 1])])

    served = keys(DataLoader(joined, 7))

    mapped = Path("/proc/self/maps").read_text()
    assert {mapped.count(str(shard.path)) for shard in joined.store.shards} == {1}
    names = [sample.key for sample in dataset]
    assert served == [*names, *names, names[3], names[1]]


def test_torchs_views_of_ours_are_served_by_threads(dataset: ShardDataset) -> None:
    generator = torch.Generator().manual_seed(0)
    train, val = random_split(dataset, [0.7, 0.3], generator)
    expected = [dataset[i].key for i in train.indices]

    loader = DataLoader(train, batch_size=4)

    assert loader.backend == "thread"
    assert keys(loader) == expected
    assert sorted(keys(loader) + keys(DataLoader(val, 4))) == sorted(s.key for s in dataset)
    both = DataLoader(ConcatDataset([train, Subset(val, [0, 2])]), batch_size=5)
    assert both.backend == "thread"
    assert keys(both) == [*expected, dataset[val.indices[0]].key, dataset[val.indices[2]].key]
    assert len(unwrap(Subset(train, []))) == 0
    assert len(Mixture([train, val], [1, 1], stop=10)) == 20


def test_they_equal_our_own_views_and_resume(dataset: ShardDataset) -> None:
    train, _ = random_split(dataset, [14, 6], torch.Generator().manual_seed(0))
    ours = dataset.select(train.indices)
    loader = DataLoader(train, batch_size=4, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = keys(batches)

    again = DataLoader(pickle.loads(pickle.dumps(ours)), batch_size=4, shuffle=True)
    again.load_state_dict(state)

    assert keys(again) == rest
    other = DataLoader(Subset(dataset, train.indices[::-1]), batch_size=4, shuffle=True)
    with pytest.raises(StateError):
        other.load_state_dict(state)


def test_what_is_not_ours_stays_as_it_is(dataset: ShardDataset) -> None:
    class Mine(ShardDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(0)

    class Backwards(ShardDataset):
        def request(self, indices: Any, num_workers: int = 1) -> Request:
            return super().request([len(self) - 1 - i for i in indices], num_workers)

    class MySubset(Subset[Any]):
        pass

    tensors = TensorDataset(torch.arange(4))
    unlike = dataset.replace(augment=[augment.CenterCrop(8)])
    others: list[Any] = [
        tensors, Subset(tensors, [1]), Subset(Mine(dataset.path), [1]), MySubset(dataset, [1]),
        ConcatDataset([tensors, dataset]), ConcatDataset([dataset, unlike]),
        Subset(Backwards(dataset.path), [1]), ConcatDataset([Backwards(dataset.path)]),
    ]  # fmt: skip
    for other in others:
        assert unwrap(other) is other


def test_torchs_joining_of_other_classes_is_refused_but_for_a_transform(tmp_path: Path) -> None:
    one, other = (
        ShardDataset(pack(tmp_path / names, {"label": Label(classes=(*names,))}, [{"label": 0}]))
        for names in ("ab", "ba")
    )

    with pytest.raises(SchemaError):
        DataLoader(ConcatDataset([one, other]))
    changed = other.replace(transform=lambda sample: sample._replace(label=1 - sample.label))
    assert len(list(DataLoader(ConcatDataset([one, changed]), 1))) == 2


def test_splits_are_map_style_and_pickle(dataset: ShardDataset) -> None:
    parts = dataset.split([0.5, 0.5], by="key", seed=1)
    joined = parts[0] + parts[1]

    for view in (*parts, joined, *dataset.split([0.25, 0.75], seed=3)):
        again = pickle.loads(pickle.dumps(view))
        assert again.fingerprint == view.fingerprint != dataset.fingerprint
        assert keys(DataLoader(again, 3)) == [view[i].key for i in range(len(view))]
    assert sorted(s.key for s in joined) == sorted(s.key for s in dataset)


def test_those_of_data_in_memory_and_on_a_device_are_ours_too(dataset: ShardDataset) -> None:
    for here in (
        RAMDataset(dataset),
        RAMDataset(dataset.replace(fields=["pixels"]), device="cpu"),
    ):
        part, _ = random_split(here, [15, 5], torch.Generator().manual_seed(0))
        expected = [here[i].pixels for i in part.indices]

        ours = unwrap(part)

        assert type(ours) is RAMDataset
        assert ours.device == here.device
        got = torch.cat([batch.pixels for batch in DataLoader(part, 4)])
        assert torch.equal(got, torch.stack(expected))
        assert len(Mixture([part, here], [1, 1], stop=10)) == 35


def test_what_lies_on_a_device_is_not_joined_on_the_host(dataset: ShardDataset) -> None:
    here = RAMDataset(dataset.replace(fields=["pixels"]), device="cpu")
    both: ConcatDataset[Any] = ConcatDataset([here, here])

    assert unwrap(both) is both
    with pytest.raises(SchemaError):
        concat([here, here])


def test_truth_values_are_numbers_as_to_torch(dataset: ShardDataset) -> None:
    part = Subset(dataset, [True, False, True])

    assert keys(DataLoader(part, 3)) == [dataset[i].key for i in (1, 0, 1)]


@pytest.mark.parametrize("checks", [("never", "always"), ("always", "never"), ("first", "never")])
def test_datasets_that_are_joined_are_checked_as_strictly_as_any(
    dataset: ShardDataset, checks: tuple[Any, Any]
) -> None:
    parts = [ShardDataset(dataset.path, check=check, fields=["key"]) for check in checks]

    assert concat(parts).store.check == checks[checks[0] == "never"]


def test_states_tell_views_apart_that_torch_serves() -> None:
    """Parts of different settings, and views of a mixture, are none of ours."""
    dataset = RAMDataset.from_arrays(x=torch.arange(8))
    other = dataset.replace(transform=_same)
    mixture = Mixture([dataset, other], weights=[0.5, 0.5])
    views = [
        ConcatDataset([dataset, other]),
        ConcatDataset([dataset[::-1], other]),
        Subset(mixture, [1, 2, 3, 4]),
        Subset(mixture, [5, 6, 7, 8]),
    ]
    loaders = [DataLoader(view, 2, num_workers=0) for view in views]
    states = [loader.state_dict() for loader in loaders]

    assert len({state["dataset"] for state in states}) == len(views)
    for loader, state, wrong in zip(loaders, states, [*states[1:], states[0]], strict=True):
        loader.load_state_dict(state)
        with pytest.raises(StateError):
            loader.load_state_dict(wrong)
    assert DataLoader(Subset(TensorDataset(torch.arange(1)), [0])).state_dict()["dataset"] is None


def _same(sample: Any) -> Any:
    return sample


class Wraps(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def test_another_seed_is_refused_where_crops_follow_it_below_a_wrapper() -> None:
    pixels = torch.zeros((8, 3, 8, 8), dtype=torch.uint8)
    plain = RAMDataset.from_arrays(image=pixels)
    cropped = plain.replace(augment=[augment.RandomCrop(4)])
    state = {
        name: DataLoader(Wraps(d), 2).state_dict()
        for name, d in {"a": plain, "b": cropped}.items()
    }

    DataLoader(Wraps(plain), 2, seed=1).load_state_dict(state["a"])
    with pytest.raises(StateError):
        DataLoader(Wraps(cropped), 2, seed=1).load_state_dict(state["b"])
