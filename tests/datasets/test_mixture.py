import copy
import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders import (
    DataLoader,
    Mixture,
    RAMDataset,
    ShardDataset,
    TokenWindows,
    audit,
    augment,
    collate,
)
from loaders.buffers import Memory
from loaders.data.records import FieldRecords
from loaders.datasets.reading.request import Request
from loaders.errors import (
    BatchError,
    ChecksumError,
    LoadersError,
    SampleError,
    SchemaError,
    ShardError,
    StateError,
)
from loaders.sampling import EpochSampler
from loaders.schema import Array, Categories, Features, Image, Label
from tests.packdata.packing import pack, pack_samples
from tests.refusals import At

FIELDS = ["pixels", "image", "label", "key", "boxes", "sample_id"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 11 and 7 samples, in either format."""
    folder = tmp_path_factory.mktemp("packed")
    return pack_samples(folder / "a", 11), pack_samples(folder / "b", 7, format="parquet")


@pytest.fixture
def alike(folders: tuple[Path, Path]) -> Mixture:
    """A mixture that is read as one dataset."""
    return Mixture(
        [ShardDataset(folder, fields=FIELDS) for folder in folders], [0.6, 0.4], stop=40
    )


@pytest.fixture
def unlike(folders: tuple[Path, Path]) -> Mixture:
    """The same samples, of datasets that cannot be joined."""
    second = RAMDataset(folders[1], fields=FIELDS, decode=True, progress=False)
    sources = [ShardDataset(folders[0], fields=FIELDS), second]
    return Mixture(sources, [0.6, 0.4], stop=40)


def told(batches: Any) -> list[Any]:
    """Every value of every batch, to compare."""
    return [
        [value.tolist() if isinstance(value, torch.Tensor) else value for value in values]
        if isinstance(values, list)
        else values.tolist()
        for batch in batches
        for values in batch
    ]


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch.sample_id.tolist()]


# -- which samples --------------------------------------------------------------------------------


def test_indices_number_the_samples_source_after_source(alike: Mixture, unlike: Mixture) -> None:
    for mixture in (alike, unlike):
        assert len(mixture) == 18
        assert [sample.sample_id.item() for sample in mixture] == list(range(18))
        assert mixture[-1].key == mixture.sources[1][6].key
        assert mixture.sources_of([0, 10, 11, 17]).tolist() == [0, 0, 1, 1]
        assert mixture.classes == ("bird", "cat", "dog")
        with pytest.raises(IndexError):
            mixture[18]
        with pytest.raises(TypeError):
            mixture[1:3]
        assert not mixture.__getitems__([])


def test_each_source_says_which_of_its_shards_are_read(unlike: Mixture) -> None:
    found = unlike.shards_read(np.array([12, 0]))

    assert len(found) == len(unlike.stores)
    assert [shards.tolist() for shards in found] == [[0], [0]]


def test_a_loader_serves_the_shares(alike: Mixture) -> None:
    loader = DataLoader(alike, batch_size=8, seed=3)

    assert len(loader) == 5
    order = alike.order(seed=3, batch_size=8)
    for epoch in range(3):
        served = ids(loader)
        assert Counter((np.array(served) >= 11).tolist()) == {False: 24, True: 16}
        assert served == order.at(epoch, np.arange(40))[0].tolist()
    assert audit(40, order=order, batch_size=8, world_size=3).ok


def test_torchs_loader_serves_it_with_its_order(alike: Mixture) -> None:
    sampler = EpochSampler(alike.order(seed=3, batch_size=8))
    theirs = torch.utils.data.DataLoader(alike, batch_size=8, sampler=sampler, collate_fn=collate)

    assert ids(theirs) == ids(DataLoader(alike, batch_size=8, seed=3))


@pytest.mark.parametrize(
    "backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow), "process"]
)
def test_every_backend_and_way_of_reading_gives_the_same_bits(
    alike: Mixture, unlike: Mixture, backend: Any
) -> None:
    expected = told(DataLoader(alike, batch_size=7, num_workers=0))

    for mixture in (alike, unlike, pickle.loads(pickle.dumps(unlike))):
        loader = DataLoader(mixture, batch_size=7, num_workers=2, backend=backend)
        assert told(loader) == expected


def test_the_half_that_is_prefetched_stays_one_when_it_is_copied(
    tmp_path: Path, unlike: Mixture
) -> None:
    """The finisher of the whole mixture makes of it what the whole mixture serves."""
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (16, 24, 3), np.uint8)} for _ in range(6)]
    fields = {"image": Image(size=(16, 24), codec="dct")}
    sources = [
        ShardDataset(pack(tmp_path / name, fields, samples, defaults=["image"])) for name in "ab"
    ]
    mixture = Mixture(sources, stop=8)
    halves = mixture.halves(torch.device("cpu"))
    assert halves is not None
    half, finish = halves
    expected = mixture.__getitems__([1, 8]).batch

    for copied in (half, pickle.loads(pickle.dumps(half)), copy.copy(half)):
        batch = copied.__getitems__([1, 8]).batch
        assert not isinstance(batch[0].image, torch.Tensor)
        assert torch.equal(finish(batch).image, expected.image)
    whole = pickle.loads(pickle.dumps(mixture)).__getitems__([1, 8]).batch
    assert torch.equal(whole.image, expected.image)
    assert unlike.halves(torch.device("cpu")) is None
    assert pickle.loads(pickle.dumps(unlike))[12].sample_id == 12


def test_each_batch_comes_from_one_source(alike: Mixture, unlike: Mixture) -> None:
    """On every rank; and then sources may differ in shapes."""
    for mixture in (alike, unlike):
        mixture = Mixture(mixture.sources, [3, 2], stop=40, batch_from="one")
        seen = Counter[int]()
        for rank in range(2):
            for batch in DataLoader(mixture, batch_size=4, rank=rank, world_size=2):
                (number,) = {int(i >= 11) for i in batch.sample_id.tolist()}
                seen[number] += 1
        assert seen == {0: 6, 1: 4}
    first, second = alike.sources
    assert isinstance(second, ShardDataset)
    second = second.replace(augment=[augment.CenterCrop(9)])
    mixture = Mixture([first, second], [3, 2], stop=40, batch_from="one")
    assert {
        len(set(map(tuple, (i.shape for i in b.image)))) > 1 for b in DataLoader(mixture, 4)
    } == {
        True,
        False,
    }


# -- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_done", "kind"), [(0, "alike"), (3, "unlike"), (5, "alike"), (7, "unlike")]
)
def test_it_resumes_anywhere(num_done: int, kind: str, request: pytest.FixtureRequest) -> None:
    """At another batch size, number of workers, backend and prefetch, on other ranks."""
    mixture: Mixture = request.getfixturevalue(kind)
    whole = DataLoader(mixture, batch_size=8, seed=1)
    expected = [ids(whole), ids(whole)]
    loader = DataLoader(mixture, batch_size=8, seed=1, num_workers=2)
    batches = iter(loader)
    for done in range(num_done):
        if done == 5:
            assert next(batches, None) is None
            batches = iter(loader)
        next(batches)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    epoch, at = divmod(num_done * 8, 40)

    for settings in (
        {"batch_size": 8, "num_workers": 0},
        {"batch_size": 3, "num_workers": 1, "prefetch_factor": 5},
        {"batch_size": 5, "num_workers": 1, "backend": "process"},
    ):
        again = DataLoader(mixture, seed=1, **settings)
        again.load_state_dict(state)
        if num_done != 5:
            assert ids(again) == expected[epoch][at:]
        else:  # at the end of an epoch: whichever way it is told, the next one is whole
            assert (ids(again) or ids(again)) == expected[1]
    if num_done != 5:
        ranks = []
        for rank in range(2):
            part = DataLoader(mixture, 4, seed=1, rank=rank, world_size=2, pad=False)
            part.load_state_dict(state)
            ranks.append([b.sample_id.tolist() for b in part])
        steps = zip(*ranks, strict=True)
        assert [i for step in steps for part in step for i in part] == expected[epoch][at:]


def test_a_state_of_another_mixture_is_refused(alike: Mixture, folders: tuple[Path, Path]) -> None:
    state = DataLoader(alike, batch_size=4).state_dict()

    for other in (
        Mixture(alike.sources, [0.5, 0.5], stop=40),
        Mixture(alike.sources, [0.6, 0.4], stop=80),
        Mixture(alike.sources[::-1], [0.6, 0.4], stop=40),
        Mixture(alike.sources, [0.6, 0.4], stop=40, batch_from="one"),
    ):
        with pytest.raises(StateError):
            DataLoader(other, batch_size=4).load_state_dict(state)
    same = Mixture([ShardDataset(folder, fields=FIELDS) for folder in folders], [6, 4], stop=40)
    DataLoader(same, batch_size=9).load_state_dict(state)


# -- putting batches together ---------------------------------------------------------------------


def test_repeats_get_fresh_crops(folders: tuple[Path, Path]) -> None:
    for second in (
        ShardDataset(folders[1], fields=["pixels", "sample_id"]),
        ShardDataset(folders[1], fields=["pixels", "sample_id"], on_error="replace"),
    ):  # which is joined, and which is not
        ops = [augment.RandomResizedCrop(16)]
        sources = [ShardDataset(folders[0], fields=["pixels", "sample_id"]), second]
        mixture = Mixture([s.replace(augment=ops) for s in sources], [1, 9], stop=70)
        crops: dict[int, set[bytes]] = {}
        counts = Counter[int]()
        for batch in DataLoader(mixture, batch_size=10):
            for pixels, i in zip(batch.pixels, batch.sample_id.tolist(), strict=True):
                crops.setdefault(i, set()).add(pixels.numpy().tobytes())
                counts[i] += 1
        assert min(counts[i] for i in range(11, 18)) >= 8
        assert {i: len(each) for i, each in crops.items()} == counts


def test_samples_of_the_same_number_get_crops_of_their_own(folders: tuple[Path, Path]) -> None:
    ops = [augment.RandomResizedCrop(16)]
    one = ShardDataset(folders[0], fields=["pixels"], augment=ops)
    for other in (one, one.replace(on_error="replace")):  # joined, and not
        batch = Mixture([one, other], [1, 1]).__getitems__(range(22)).batch
        same = [
            torch.equal(a, b) for a, b in zip(batch.pixels[:11], batch.pixels[11:], strict=True)
        ]
        assert not any(same)


def test_sources_keep_their_own_settings(folders: tuple[Path, Path]) -> None:
    """Crops of their own, transforms of their own, forms of ragged arrays."""
    small, large = [augment.CenterCrop(9)], [augment.RandomResizedCrop(9)]
    a, b = (ShardDataset(folder, fields=["pixels", "boxes", "key"]) for folder in folders)
    alone = DataLoader(a.replace(augment=small), 11)
    crops = dict(zip(next(iter(alone)).key, next(iter(alone)).pixels, strict=True))
    for forms in ({}, {"boxes": "pad"}, {"boxes": "offsets"}):
        mixture = Mixture(
            [a.replace(augment=small, batching=forms), b.replace(augment=large, batching=forms)],
            [1, 1],
        )
        batch = next(iter(DataLoader(mixture, 14)))
        for i, sample in enumerate(mixture.__getitems__(range(18))):
            assert torch.equal(sample.boxes, mixture[i].boxes)
        assert batch.pixels.shape == (14, 3, 9, 9)
        assert (
            sum(torch.equal(crops[k], p) for k, p in zip(batch.key, batch.pixels, strict=True))
            >= 7
        )
    plus = {"pixels": lambda pixels: pixels[:, :8, :8].float() + 1000}
    with_transform = Mixture(
        [
            a.replace(transform=plus),
            b.replace(transform={"pixels": lambda p: p[:, :8, :8].float()}),
        ],
        [1, 1],
    )
    batch = next(iter(DataLoader(with_transform, 14)))
    assert (batch.pixels.amin(dim=(1, 2, 3)) >= 1000).sum() == 7


def test_shapes_that_do_not_fit_together_say_so(folders: tuple[Path, Path]) -> None:
    a, b = (ShardDataset(folder, fields=["pixels"]) for folder in folders)
    mixture = Mixture([a, b.replace(augment=[augment.CenterCrop(8)])], [1, 1])

    with pytest.raises(BatchError):
        next(iter(DataLoader(mixture, 8)))


def test_damage_is_reported_by_its_source_and_counted(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    samples = [{"pixels": np.full((80, 80, 3), i, np.uint8)} for i in range(7)]
    fields = {"pixels": Image(size=(80, 80), codec="raw")}  # large enough to be checked one by one
    folder = pack(tmp_path / "c", fields, samples, format="parquet")
    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[data.index(samples[2]["pixels"].tobytes())] ^= 1
    path.write_bytes(data)
    good = ShardDataset(folders[0], fields=["pixels"], augment=[augment.CenterCrop(8)])
    bad = ShardDataset(folder, fields=["pixels"], augment=[augment.RandomResizedCrop(8)])

    with pytest.raises(SampleError, check=At(path, cause=ChecksumError)):
        list(DataLoader(Mixture([good, bad], [1, 1]), 4))
    loader = DataLoader(Mixture([good, bad.replace(on_error="replace")], [1, 1]), 4)
    list(loader)
    assert loader.stats().num_replaced >= 1  # what was to replace it may be bad, too


def with_bad(folder: Path, num: int = 5, bad: Sequence[int] = (2,)) -> ShardDataset:
    """Return samples of which some are damaged and replaced."""
    samples = [{"values": np.full(40_000, i, np.uint8)} for i in range(num)]
    fields = {"values": Array(dtype="uint8", dims=(40_000,))}
    path = pack(folder, fields, samples, format="parquet", per_shard=num) / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    for i in bad:
        data[data.index(samples[i]["values"].tobytes())] ^= 1
    path.write_bytes(data)
    return ShardDataset(folder, on_error="replace")


@pytest.mark.parametrize("begin", [0, 2])  # at 2 the bad sample is the first one
def test_a_bad_sample_is_replaced_by_one_of_its_source(tmp_path: Path, begin: int) -> None:
    others = RAMDataset.from_arrays(values=np.full((300, 40_000), 99, np.uint8))
    bad, good = with_bad(tmp_path / "c")[begin:], others.replace(on_error="replace")
    mixture = Mixture([good, bad, good], [0, 1, 0])
    assert mixture.joined is not None

    served = torch.cat([batch.values[:, 1] for batch in DataLoader(mixture, 2)])

    assert len(served) == len(bad)
    assert 99 not in served
    assert mixture.num_replaced >= 1


def test_each_source_has_its_own_limit_of_bad_samples(tmp_path: Path) -> None:
    fields = {"values": Array(dtype="uint8", dims=(10,))}
    folder = pack(tmp_path / "bad", fields, [{"values": np.zeros(10, np.uint8)}] * 40)
    bad = ShardDataset(folder, on_error="replace")
    good = RAMDataset.from_arrays(values=np.zeros((3000, 10), np.uint8))
    for shard in folder.glob("shard-*"):
        shard.unlink()

    with pytest.raises(LoadersError, match="11 samples had to be replaced"):
        list(
            DataLoader(Mixture([good.replace(on_error="replace"), bad], [1, 1]), 4, num_workers=0)
        )


def test_bad_samples_of_one_source_do_not_count_for_another(tmp_path: Path) -> None:
    mixture = Mixture([with_bad(tmp_path / name, 40, range(8)) for name in "ab"])
    assert mixture.joined is not None

    assert len(list(DataLoader(mixture, 4))) == 20
    assert mixture.num_replaced >= 16  # 11 of one would end the run


class Backwards(RAMDataset):
    """Chooses its samples itself."""

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        return super().request([len(self) - 1 - i for i in indices], num_workers)


def test_a_source_that_chooses_its_samples_itself_does_so_in_a_mixture() -> None:
    one = Backwards.from_arrays(x=np.arange(5))

    mixture = Mixture([one, RAMDataset.from_arrays(x=np.arange(5))])

    assert [int(mixture[i].x) for i in range(10)] == [4, 3, 2, 1, 0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_numbers_that_torch_cannot_copy_by_row_are_put_together(dtype: str) -> None:
    values = np.arange(12, dtype=dtype).reshape(6, 2) + np.iinfo(dtype).max - 20
    one = RAMDataset.from_arrays(x=values)
    mixture = Mixture([one, one.replace(on_error="replace")], stop=12)
    assert mixture.joined is None

    (batch,) = DataLoader(mixture, 12)

    assert sorted(batch.x.numpy().tolist()) == sorted([*values.tolist()] * 2)


def test_a_copy_draws_for_the_epoch_that_was_set(alike: Mixture) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    source = RAMDataset.from_arrays(image=pixels, augment=[augment.RandomCrop(16)])
    mixture = Mixture([source, source])
    first = mixture[0].image
    mixture.set_epoch(3)

    for other in (pickle.loads(pickle.dumps(mixture)), copy.deepcopy(mixture)):
        assert torch.equal(other[0].image, mixture[0].image)
        assert not torch.equal(other[0].image, first)


# -- what is refused ------------------------------------------------------------------------------


def test_what_is_no_mixture_is_refused(alike: Mixture, tmp_path: Path) -> None:
    first, second = alike.sources
    assert isinstance(second, ShardDataset)
    with pytest.raises(TypeError):
        Mixture([first, [1, 2]], [1, 1])
    with pytest.raises(TypeError):
        Mixture([alike, first], [1, 1])
    with pytest.raises(SchemaError):
        Mixture([first, second.replace(fields=["key"])], [1, 1])
    with pytest.raises(SchemaError):
        Mixture([first, second.replace(batching={"boxes": "pad"})], [1, 1])
    for shuffle in (False, "block"):
        with pytest.raises(ValueError):
            DataLoader(alike, shuffle=shuffle)
    assert len(DataLoader(alike, 8, shuffle=True)) == 5


def test_class_numbers_with_other_meanings_are_refused(tmp_path: Path) -> None:
    sources = []
    for classes in (("cat", "dog"), ("dog", "fox")):
        samples = [{"label": 0}, {"label": 1}]
        folder = pack(tmp_path / classes[1], {"label": Label(classes=classes)}, samples)
        sources.append(ShardDataset(folder))

    with pytest.raises(SchemaError):
        Mixture(sources, [1, 1])


def test_a_source_that_cannot_prefetch_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def prefetch(known: FieldRecords, rows: Any) -> None:
        asked.append(known._shards)
        raise ShardError("it was cut", "a.lmdb")

    sources = [RAMDataset.from_arrays(x=np.zeros((4, size))) for size in (1, 2)]
    mixture = Mixture(sources)
    assert mixture.joined is None
    monkeypatch.setattr(FieldRecords, "prefetch", prefetch)
    monkeypatch.setattr(FieldRecords, "needs_prefetch", lambda *_: True)

    mixture.job([0, 4, 1], Memory()).prefetch()

    assert asked == [source.store.shards for source in sources]


def test_samples_that_were_transformed_are_counted_in_the_mixture() -> None:
    parts = [
        RAMDataset.from_arrays(x=np.arange(10.0) + first, fields=["x", "sample_id"])
        for first in (0, 10)
    ]
    changed = [part.replace(transform=lambda sample: sample) for part in parts]
    for sources in (changed, [parts[0], changed[1]], [changed[0], parts[1]]):
        mixture = Mixture(sources, stop=20)

        assert mixture[15].sample_id == mixture[15].x == 15
        for batch in DataLoader(mixture, 5):
            assert batch.sample_id.tolist() == batch.x.tolist()


@pytest.mark.parametrize("pad", [True, False, "mark"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_each_batch_is_of_one_source_on_every_rank(pad: Any, world_size: int) -> None:
    sizes = (8, 6)
    sources = [
        RAMDataset.from_arrays(image=np.zeros((12, side, side, 3), np.uint8)) for side in sizes
    ]
    mixture = Mixture(sources, [1, 1], stop=28, batch_from="one")

    ranks = [
        list(DataLoader(mixture, 4, rank=rank, world_size=world_size, pad=pad, seed=1))
        for rank in range(world_size)
    ]

    assert all(batch.image.shape[:2] == (4, 3) for batches in ranks for batch in batches)
    real = sum(len(b.image) if b.valid is None else int(b.valid.sum()) for r in ranks for b in r)
    assert real == 28 if pad is not True else real >= 28
    assert pad is False or len({len(batches) for batches in ranks}) == 1


def test_numbers_from_the_end_mean_the_same_to_every_source() -> None:
    one = RAMDataset.from_arrays(x=np.arange(10.0))
    other = RAMDataset.from_arrays(x=np.arange(10.0, 20)).replace(on_error="replace")
    mixture = Mixture([one, other], stop=20)
    assert mixture.joined is None

    (batch,) = DataLoader(mixture, batch_sampler=[[-1, -20, 3]], num_workers=0)

    assert batch.x.tolist() == [19, 0, 3]
    with pytest.raises(IndexError):
        list(DataLoader(mixture, batch_sampler=[[20]], num_workers=0))


def test_a_sample_is_drawn_the_same_however_its_source_is_read() -> None:
    """Joined, one by one (settings differ), and in the memory of a device."""
    images = np.arange(128, dtype=np.uint8).reshape(2, 1, 8, 8).repeat(4, 0).repeat(4, 1)
    ops = [augment.RandomCrop(3)]

    def source() -> RAMDataset[Any]:
        fields = ["image", "label", "sample_id"]
        return RAMDataset.from_arrays(image=images, label=np.arange(8), fields=fields, augment=ops)

    def resident() -> RAMDataset[Any]:
        return RAMDataset(source(), device="cpu", augment=ops)

    ways = [
        [source(), source()],
        [source(), source().replace(on_error="replace")],
        [source(), source().replace(max_picture_mb=1)],
        [resident(), resident()],
    ]
    first, *others = [
        next(iter(DataLoader(Mixture(way, weights=[1, 1]), batch_size=16, num_workers=0)))
        for way in ways
    ]

    for other in others:
        assert torch.equal(first.sample_id, other.sample_id)
        assert torch.equal(first.image, other.image)


def test_sources_that_a_device_decodes_and_that_cannot_be_joined_are_refused_there(
    tmp_path: Path,
) -> None:
    """The host would decode them, several times slower, without a word."""
    fields = {"image": Image(size=(16, 24), codec="dct")}
    sample = {"image": np.zeros((16, 24, 3), np.uint8)}
    one, other = (ShardDataset(pack(tmp_path / name, fields, [sample])) for name in "ab")

    assert Mixture([one, other]).halves(torch.device("cpu")) is not None
    with pytest.raises(SchemaError):
        Mixture([one, other.replace(on_error="replace")]).halves(torch.device("cpu"))


def feature_tables(folder: Path, **other: Any) -> list[ShardDataset[Any]]:
    """Return two packed tables; the second one differs in some options."""
    plain: dict[str, Any] = {"columns": ("a", "b"), "mean": (1.0, 2.0), "std": (1.0, 1.0)}
    plain["sources"] = (("a", "number"), ("b", "flag"))
    found = []
    for name, options in (("one", plain), ("two", plain | other)):
        row = {"x": np.zeros(2, np.float32)}
        found.append(ShardDataset(pack(folder / name, {"x": Features(**options)}, [row])))
    return found


@pytest.mark.parametrize(
    "other",
    [
        {"columns": ("b", "a")},
        {"standardized": True},
        {"sources": (("a", "days"), ("b", "number"))},
    ],
)
def test_tables_whose_numbers_mean_other_things_are_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    with pytest.raises(SchemaError):
        Mixture(feature_tables(tmp_path, **other))


def test_tables_with_other_statistics_are_mixed(tmp_path: Path) -> None:
    sources = feature_tables(tmp_path, mean=(5.0, 5.0))

    assert [len(batch.x) for batch in DataLoader(Mixture(sources, stop=4), 2)] == [2, 2]
    standardized = [
        ShardDataset(
            pack(
                tmp_path / f"{mean} {std}",
                {"x": Features(columns=("a",), mean=(mean,), std=(std,), standardized=True)},
                [{"x": np.zeros(1, np.float32)}],
            )
        )
        for mean, std in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
    ]
    for other in standardized[1:]:
        with pytest.raises(SchemaError):
            Mixture([standardized[0], other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"c": Categories(columns=("a",), vocabularies=(("x",),))},
         {"c": Categories(columns=("a",), vocabularies=(("y",),))}),
        ({"label": Label(), "second": Label(classes=("a", "b"))},
         {"label": Label(), "second": Label(classes=("b", "a"))}),
        ({"kinds": Array("int64", (1,), classes=("a", "b"))},
         {"kinds": Array("int64", (1,), classes=("a", "c"))}),
        ({"label": Label()}, {"label": Label(classes=("a", "b"))}),
    ],
    ids=["vocabularies", "a second label", "classes of an array", "numbers beside classes"],
)  # fmt: skip
def test_numbers_of_other_names_are_refused(tmp_path: Path, one: Any, other: Any) -> None:
    values = {"c": np.zeros(1, np.uint8), "kinds": np.zeros(1, np.int64)}
    sources = [
        ShardDataset(
            pack(tmp_path / name, fields, [{field: values.get(field, 0) for field in fields}])
        )
        for name, fields in (("one", one), ("other", other))
    ]

    with pytest.raises(SchemaError):
        Mixture(sources)


def test_windows_of_two_tokenizers_or_kinds_and_with_labels_beside_none_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("some text to pack " * 10)
    packdata.pack_tokens(tmp_path / "a.txt", tmp_path / "bytes")
    lines = [json.dumps({"input_ids": [5] * 40, "labels": [-100] * 20 + [5] * 20})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    packdata.pack_tokens(tmp_path / "a.jsonl", tmp_path / "labels")
    (tmp_path / "b.jsonl").write_text(json.dumps({"input_ids": [5] * 40}))
    ids = packdata.TokenOptions(vocab_size=50_257)
    packdata.pack_tokens(tmp_path / "b.jsonl", tmp_path / "ids", ids)
    text, labels, other = (
        TokenWindows(tmp_path / name, length=8) for name in ("bytes", "labels", "ids")
    )
    by_document = TokenWindows(tmp_path / "bytes", length=8, by="document")

    assert Mixture([text, text]).order(0, 1).length
    for different in (labels, other, by_document):
        with pytest.raises(SchemaError):
            Mixture([text, different], batch_from="one")

    made = []
    for word in ("text", "word"):  # two tokenizers of as many ids
        (tmp_path / f"{word}.txt").write_text(f"some {word} to pack " * 10)
        how = packdata.TokenOptions(train_bpe=260)
        packdata.pack_tokens(tmp_path / f"{word}.txt", tmp_path / f"bpe {word}", how)
        made.append(TokenWindows(tmp_path / f"bpe {word}", length=8))
    with pytest.raises(SchemaError, match="tokenizer"):
        Mixture(made)


def test_ids_of_an_unnamed_tokenizer_are_mixed_with_those_of_any(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text to pack " * 10)
    (tmp_path / "b.jsonl").write_text(json.dumps({"input_ids": [5] * 40}))
    packdata.pack_tokens(tmp_path / "a.txt", tmp_path / "text")
    packdata.pack_tokens(tmp_path / "b.jsonl", tmp_path / "ids")

    assert len(Mixture([TokenWindows(tmp_path / name, length=8) for name in ("text", "ids")])) > 0
