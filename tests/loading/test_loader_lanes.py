"""``shuffle="lanes"`` through datasets and loaders: the shards that a dataset was packed in say the order."""

import pickle
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import packdata
from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, TokenWindows, concat
from loaders.errors import StateError
from loaders.sampling import Lanes, Shuffled
from loaders.schema import Label
from packdata import pack_tokens
from tests.packdata.packing import pack

NUM = 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"label": i} for i in range(NUM)]
    folder = tmp_path_factory.mktemp("lanes") / "a"
    return pack(folder, {"label": Label()}, samples, per_shard=7, defaults=["label"])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lanes")
    (folder / "a.txt").write_text("\n".join(f"line {i} of some text" for i in range(20_000)))
    pack_tokens([folder / "a.txt"], folder / "packed", format="parquet", shard_bytes=20_000)
    return folder / "packed"


def loader(dataset: Any, batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"num_workers": 0, "seed": 3, "pad": False, "shuffle": "lanes"}
    return DataLoader(dataset, batch_size, **given | options)


def labels(batches: Any) -> list[list[int]]:
    return [batch.label.tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def test_a_loader_serves_each_sample_once_in_the_order_of_the_shards(folder: Path) -> None:
    dataset = ShardDataset(folder)
    served = labels(loader(dataset))

    order = Lanes([7] * 35 + [5], seed=3)
    assert sorted(flat(served)) == list(range(NUM))
    assert order.num_lanes == 8
    first = order.at(0, np.arange(8)[::-1])[0].tolist()  # lane by lane
    assert served[0] == first
    given: dict[str, Any] = {"shuffle": None, "sampler": Lanes(dataset, seed=3)}
    assert labels(loader(dataset, **given)) == served
    given["sampler"] = Lanes(dataset, 3, num_lanes=2, window=5)
    other = labels(loader(dataset, **given))
    assert sorted(flat(other)) == list(range(NUM))
    assert other != served


@pytest.mark.parametrize("view", ["whole", "half", "mixed", "joined", "empty"])
def test_a_copy_in_memory_has_the_same_order(folder: Path, view: str) -> None:
    dataset: Any = ShardDataset(folder)
    if view == "half":
        dataset = dataset.split([0.5, 0.5])[1]
    elif view == "mixed":
        dataset = dataset.select(np.random.default_rng(0).permutation(NUM)[:100])
    elif view == "joined":
        dataset = concat([dataset, dataset.select(np.arange(NUM)[::-1])])
    elif view == "empty":
        dataset = dataset.select([])

    kept = RAMDataset(dataset)
    sent = pickle.loads(pickle.dumps(kept))
    mapped, copied, of_another = (labels(loader(each)) for each in (dataset, kept, sent))

    assert copied == of_another == mapped
    assert sorted(flat(mapped)) == sorted(dataset.column("label").tolist())


def test_views_are_dealt_by_the_shards_of_their_samples(folder: Path) -> None:
    view = ShardDataset(folder).select(np.random.default_rng(1).permutation(NUM))
    order = Lanes(view, num_lanes=4, window=1)

    lane = view.column("label")[order.at(0, np.arange(3, NUM, 4))[0]]

    shards = lane // 7
    assert len(np.flatnonzero(np.diff(shards))) == len(set(shards.tolist())) - 1


def test_what_is_in_no_shards_is_one_shard() -> None:
    dataset = RAMDataset.from_arrays(label=np.arange(1000))

    served = flat(labels(loader(dataset)))

    assert sorted(served) == list(range(1000))
    assert Lanes(dataset).num_lanes == 1


def test_ranks_read_their_own_shards_and_go_on_anywhere(folder: Path) -> None:
    dataset = ShardDataset(folder)
    two = [loader(dataset, 8, rank=rank, world_size=2, drop_last=True) for rank in range(2)]
    shards = [{label // 7 for label in flat(labels(each)) + flat(labels(each))} for each in two]
    assert len(shards[0] & shards[1]) <= 2

    first = [loader(dataset, 8, rank=rank, world_size=2) for rank in range(2)]
    done = [labels(islice(each, 5)) for each in first]
    state = first[0].state_dict()
    assert state == first[1].state_dict()
    for world_size, batch_size in ((1, 16), (3, 5), (4, 4), (2, 8)):
        rest = [
            loader(dataset, batch_size, rank=r, world_size=world_size) for r in range(world_size)
        ]
        served = list(flat(done[0]) + flat(done[1]))
        for each in rest:
            each.load_state_dict(state)
            served += flat(labels(each))
        assert sorted(served) == list(range(NUM))


def test_states_of_other_lanes_are_refused(folder: Path) -> None:
    dataset = ShardDataset(folder)
    state = loader(dataset).state_dict()

    for other in (
        loader(dataset, shuffle="block"),
        loader(dataset, shuffle=None, sampler=Lanes(dataset, 3, window=3)),
        loader(dataset, shuffle=None, sampler=Lanes(dataset, 3, num_lanes=4)),
        loader(dataset, shuffle=None, sampler=Lanes([10] * 25, 3)),
    ):
        with pytest.raises(StateError):
            other.load_state_dict(state)
    loader(RAMDataset(folder)).load_state_dict(state)


@pytest.mark.parametrize(("stride", "tail"), [(40, "pad"), (7, "drop")])
def test_windows_of_tokens_are_dealt_by_where_they_begin(
    tokens: Path, stride: int, tail: Any
) -> None:
    windows = TokenWindows(tokens, 64, stride, tail=tail)
    sizes, members = windows.by_shard()

    assert members is None
    assert sizes.sum() == len(windows)
    assert len(sizes) == len(windows.dataset.store.shards) > 8
    row_tokens = windows.stream.field.row_tokens
    begin = np.arange(len(windows)) * stride
    counts = windows.dataset.column("num_tokens").cumsum()
    rows = np.searchsorted(counts, begin, "right")
    shards = windows.dataset.store.shards_of(rows)
    assert np.bincount(shards).tolist() == sizes.tolist()
    assert row_tokens
    served, plain = (
        sorted(row.tobytes() for batch in each for row in batch.tokens.numpy())
        for each in (loader(windows, 16), loader(windows, 16, shuffle=False))
    )
    assert served == plain
    part = windows.split([0.3, 0.7])[1]
    assert part.by_shard()[0].sum() == len(part)
    copy = TokenWindows(RAMDataset(tokens), 64, stride, tail=tail)
    assert copy.by_shard()[0].tolist() == sizes.tolist()


def test_what_has_no_shards_or_an_order_of_its_own_is_refused(folder: Path, tokens: Path) -> None:
    loader(TokenWindows(tokens, 64))
    with pytest.raises(ValueError):
        loader(TokenWindows(tokens, 64, by="document"))
    with pytest.raises(ValueError):
        loader(Mixture([ShardDataset(folder), ShardDataset(folder)]))
    with pytest.raises(TypeError):
        loader(TensorDataset(torch.arange(9)))
    with pytest.raises(ValueError):
        loader(ShardDataset(folder), shuffle=None, sampler=Lanes([7, 9]))
    loader(ShardDataset(folder))
    with pytest.raises(ValueError):
        loader(ShardDataset(folder), generator=torch.Generator())


def test_packing_again_with_other_shards_is_another_order(folder: Path, tmp_path: Path) -> None:
    packdata.write(ShardDataset(folder).view, tmp_path / "b", shard_bytes=300)

    orders = [Lanes(ShardDataset(each)).describe() for each in (folder, tmp_path / "b")]

    assert orders[0] != orders[1]
    assert Shuffled(NUM).describe() != orders[0]
