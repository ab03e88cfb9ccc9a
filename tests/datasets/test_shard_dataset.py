import logging
import os
import pickle
import random
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import packdata
from loaders import DataLoader, Mixture, RAMDataset, ShardDataset, augment, collate
from loaders.augment.planning import draw_geometry
from loaders.codecs import heads
from loaders.codecs.picture import encode_jpeg
from loaders.data.manifest import ShardInfo, read_manifest
from loaders.data.shards import Check
from loaders.datasets.reading import known, pictures, request
from loaders.datasets.views import unwrap
from loaders.errors import (
    BatchError,
    ChecksumError,
    CodecError,
    LoadersError,
    ManifestError,
    SampleError,
    SchemaError,
    ShardError,
    StaleDatasetError,
)
from loaders.schema import Array, Boxes, Field, Image, Label, Mask, Text
from tests.manifests import put_manifest
from tests.packdata.packing import CLASSES, FIELDS, pack, pack_samples, sample
from tests.refusals import At

NUM = 10


@pytest.fixture(scope="module", params=["lmdb", "parquet"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(tmp_path_factory.mktemp("packed") / "a", NUM, format=request.param)


@pytest.fixture
def dataset(folder: Path) -> ShardDataset:
    return ShardDataset(folder, fields=["label", "key", "sample_id"])


def keys(dataset: Any) -> list[str]:
    return [dataset[i].key for i in range(len(dataset))]


def key(i: int) -> str:
    return str(sample(i)["key"])


# -- samples --------------------------------------------------------------------------------------


def test_a_sample_holds_what_was_packed(folder: Path) -> None:
    """Every kind of field, in every sample: values, dtype and axes."""
    dataset = ShardDataset(folder, fields=list(FIELDS))

    for i in range(NUM):
        served, packed_ = dataset[i], sample(i)

        assert served._fields == tuple(FIELDS)
        assert np.array_equal(served.image.permute(1, 2, 0), packed_["image"])
        assert np.array_equal(served.pixels.permute(1, 2, 0), packed_["pixels"])
        assert np.array_equal(served.mask, packed_["mask"])
        assert np.array_equal(served.boxes, packed_["boxes"])
        assert np.array_equal(served.tags, packed_["tags"])
        assert (served.label.item(), served.width.item()) == (packed_["label"], packed_["width"])
        assert (served.score.item(), served.key) == (packed_["score"], packed_["key"])
        assert (served.label.dtype, served.score.dtype) == (torch.int64, torch.float32)
        assert served.boxes.shape[1:] == (4,)


def test_the_fields_are_those_of_the_packing_or_those_asked_for(folder: Path) -> None:
    assert ShardDataset(folder)[0]._fields == ("image", "label")
    assert ShardDataset(folder, fields=["key", "label"])[0]._fields == ("key", "label")
    with pytest.raises(SchemaError):
        ShardDataset(folder, fields=["lable"])


def test_samples_pickle(folder: Path) -> None:
    served = ShardDataset(folder, fields=["label", "key"])[3]

    again = pickle.loads(pickle.dumps(served))

    assert again == served
    assert again._fields == served._fields


@pytest.mark.parametrize("index", [3, -1, -NUM, np.int64(4), np.uint8(5), torch.tensor(6)])
def test_indices_count_from_either_end(dataset: ShardDataset, index: Any) -> None:
    assert dataset[index].sample_id == range(NUM)[index]
    assert dataset[index].key == key(range(NUM)[index])


@pytest.mark.parametrize("index", [NUM, -NUM - 1, 1 << 40, -(1 << 62)])
def test_indices_out_of_range_are_index_errors(dataset: ShardDataset, index: int) -> None:
    with pytest.raises(IndexError):
        dataset[index]
    with pytest.raises(IndexError):
        dataset.select([0, index])


@pytest.mark.parametrize("index", [1.0, "label", [1, 2], None, (1, 2)])
def test_what_is_not_an_index_is_refused(dataset: ShardDataset, index: Any) -> None:
    with pytest.raises(TypeError):
        dataset[index]
    with pytest.raises(TypeError):
        dataset.__getitems__([1.5])  # type: ignore[list-item]


def test_iterating_ends(dataset: ShardDataset) -> None:
    assert [served.key for served in dataset] == [key(i) for i in range(NUM)]


@pytest.mark.parametrize(
    "part", [slice(2, 8), slice(None, None, -1), slice(-3, None), slice(4, 2), slice(1, 99, 3)]
)
def test_slices_are_views(dataset: ShardDataset, part: slice) -> None:
    view = dataset[part]

    assert isinstance(view, ShardDataset)
    assert keys(view) == [key(i) for i in range(NUM)[part]]
    assert view[:2].column("label").tolist() == [i % 3 for i in list(range(NUM)[part])[:2]]


# -- columns, keys, views -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["label", "score", "tags", "pixels", "sample_id"])
def test_a_column_is_all_samples_at_once(folder: Path, name: str) -> None:
    """Read-only, in the axes that samples have, in views as well."""
    dataset = ShardDataset(folder, fields=[name])

    for view in (dataset, dataset[::-2], dataset[3:3]):
        column = view.column(name)

        assert not column.flags.writeable
        assert len(column) == len(view)
        for i in range(len(view)):
            assert np.array_equal(column[i], view[i][0])


def test_a_column_of_texts_is_an_array_of_str(folder: Path) -> None:
    """Read-only, in views as well, to select and to sort by."""
    dataset = ShardDataset(folder, fields=["key"])

    for view in (dataset, dataset[::-2], dataset[3:3], RAMDataset(dataset, progress=False)):
        column = view.column("key")

        assert column.dtype == object
        assert not column.flags.writeable
        assert column.tolist() == [sample.key for sample in view]
    assert keys(dataset.select(dataset.column("key") == key(3))) == [key(3)]


def test_a_damaged_text_is_no_text_of_a_column(tmp_path: Path) -> None:
    pack(
        tmp_path / "p", {"key": Text()}, [{"key": f"caption {i}"} for i in range(20)], per_shard=20
    )
    (shard,) = (tmp_path / "p").glob("shard-*")
    shard.write_bytes(shard.read_bytes().replace(b"caption 13", b"caption 31"))

    with pytest.raises(ChecksumError, check=At("p/shard-00000.lmdb", field="key")):
        ShardDataset(tmp_path / "p").column("key")


def test_a_column_of_varying_size_is_refused(dataset: ShardDataset) -> None:
    with pytest.raises(SchemaError):
        dataset.column("boxes")


def test_keys_are_found_in_the_view(dataset: ShardDataset) -> None:
    assert [dataset.find(key(i)) for i in range(NUM)] == list(range(NUM))
    view = dataset.select([7, 2, 5])

    assert [view.find(key(i)) for i in (7, 2, 5)] == [0, 1, 2]
    assert view[::-1].find(key(7)) == 2
    assert view.place(0) == dataset.place(7)
    assert Path(str(view.place(0)[0])).is_file()
    for missing in (key(1), "", "no"):
        with pytest.raises(KeyError):
            view.find(missing)


def test_select_takes_indices_or_a_mask(dataset: ShardDataset) -> None:
    odd = dataset.select(dataset.column("sample_id") % 2 == 1)

    assert keys(odd) == [key(i) for i in range(1, NUM, 2)]
    assert keys(odd.select([-1, 0, 0])) == [key(9), key(1), key(1)]
    assert [odd[i].sample_id.item() for i in range(2)] == [0, 1]
    with pytest.raises(TypeError):
        dataset.select([0.5])


def test_a_view_keeps_its_samples_whatever_becomes_of_the_indices(dataset: ShardDataset) -> None:
    indices = np.array([3, 1])
    view = dataset.select(indices)
    subset = unwrap(torch.utils.data.Subset(dataset, indices))  # type: ignore[arg-type]

    indices[:] = 0

    assert keys(view) == keys(subset) == [key(3), key(1)]


@pytest.mark.parametrize("form", ["pad", "offsets"])
def test_batches_are_made_on_the_host_whatever_the_default_device(folder: Path, form: str) -> None:
    fields = ["image", "label", "boxes", "sample_id"]
    dataset = ShardDataset(folder, fields=fields, batching={"boxes": form})

    with torch.device("meta"):
        (batch,) = DataLoader(dataset, NUM, num_workers=0)

    tensors = [*batch.image, batch.label, *batch.boxes, batch.sample_id]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


def test_an_empty_view_is_a_dataset(folder: Path) -> None:
    view = ShardDataset(folder, fields=["image", "label", "boxes", "key"]).select([])

    assert (len(view), list(view), view.column("label").tolist()) == (0, [], [])
    assert list(DataLoader(view, 4, num_workers=1)) == []
    assert len(view + view) == 0
    with pytest.raises(KeyError):
        view.find("x")
    with pytest.raises(IndexError):
        view[0]


@pytest.mark.parametrize("by", ["sample", "key"])
def test_a_split_has_each_sample_once(dataset: ShardDataset, by: Any) -> None:
    parts = dataset.split([0.5, 0.3, 0.2], by=by, seed=1)

    assert sorted(sum((keys(part) for part in parts), [])) == sorted(map(key, range(NUM)))  # noqa: RUF017
    assert [keys(p) for p in parts] == [
        keys(p) for p in dataset.split([0.5, 0.3, 0.2], by=by, seed=1)
    ]
    if by == "sample":
        assert [len(part) for part in parts] == [5, 3, 2]
        assert keys(parts[0]) != keys(dataset.split([0.5, 0.3, 0.2], seed=2)[0])


def test_a_split_can_divide_classes_alike(tmp_path: Path) -> None:
    labels = [0] * 60 + [1] * 20 + [2] * 20
    fields = {"label": Label(classes=CLASSES)}
    dataset = ShardDataset(pack(tmp_path / "a", fields, [{"label": n} for n in labels]))

    train, val = dataset.split([0.8, 0.2], stratify="label")

    assert np.bincount(train.column("label")).tolist() == [48, 16, 16]
    assert np.bincount(val.column("label")).tolist() == [12, 4, 4]


def test_a_split_divides_what_is_missing_as_a_class_of_its_own() -> None:
    values = np.arange(100, dtype=np.float32) % 2
    values[:40] = np.nan
    dataset = RAMDataset.from_arrays(x=values)

    parts = dataset.split([0.5, 0.5], stratify="x")

    assert [int(np.isnan(part.column("x")).sum()) for part in parts] == [20, 20]
    assert [len(part) for part in parts] == [50, 50]


def test_a_split_by_key_stays_when_samples_are_added(tmp_path: Path) -> None:
    small = ShardDataset(pack_samples(tmp_path / "a", 30, fields=["label", "key"]))
    large = ShardDataset(pack_samples(tmp_path / "b", 60, fields=["label", "key"]))

    before, after = (
        d.replace(fields=["key"]).split([0.7, 0.3], by="key")[0] for d in (small, large)
    )

    assert set(keys(before)) == set(keys(after)) & {key(i) for i in range(30)}
    assert 30 < len(after) < 54


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": [0.5, 0.4]},
        {"parts": [1.2, -0.2]},
        {"parts": [1.0], "by": "row"},
        {"parts": [1.0], "by": "key", "stratify": "label"},
        {"parts": [1.0], "stratify": "tags"},
    ],
)
def test_a_split_that_makes_no_sense_is_refused(dataset: ShardDataset, wrong: Any) -> None:
    with pytest.raises(ValueError):
        dataset.split(**wrong)


def test_datasets_join_over_formats(tmp_path: Path) -> None:
    fields = ["pixels", "label", "key", "boxes"]
    lmdb, parquet = (
        ShardDataset(
            pack_samples(tmp_path / form, 7, first=first, format=form, per_shard=3), fields=fields
        )
        for form, first in (("lmdb", 0), ("parquet", 7))
    )

    joined = lmdb + parquet[::-1]

    assert keys(joined) == [key(i) for i in [*range(7), *range(13, 6, -1)]]
    assert joined.find(key(13)) == 7
    batch = joined.__getitems__(list(range(14))).batch
    for row, i in zip(batch.pixels, [*range(7), *range(13, 6, -1)], strict=True):
        assert np.array_equal(row.permute(1, 2, 0), sample(i)["pixels"])
    assert joined.column("label").tolist() == batch.label.tolist()
    assert joined.fingerprint != (parquet[::-1] + lmdb).fingerprint
    assert len({d.fingerprint for d in (lmdb, lmdb[1:], lmdb[:1], joined)}) == 4


def test_datasets_that_differ_do_not_join(folder: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(folder)
    other = ShardDataset(pack(tmp_path / "b", {"label": Label(classes=("x",))}, [{"label": 0}]))

    with pytest.raises(SchemaError):
        dataset + dataset.replace(fields=["key"])
    with pytest.raises(SchemaError):
        dataset + dataset.replace(augment=[augment.CenterCrop(4)])
    with pytest.raises(SchemaError):
        dataset.replace(fields=["label"]) + other
    with pytest.raises(TypeError):
        dataset + "more"


def test_replace_changes_settings_and_not_the_original(dataset: ShardDataset) -> None:
    other = dataset[2:].replace(fields=["image"], augment=[augment.CenterCrop(8)])

    assert other[0].image.shape == (3, 8, 8)
    assert dataset[0]._fields == ("label", "key", "sample_id")
    assert other.fingerprint == dataset[2:].fingerprint
    with pytest.raises(TypeError):
        dataset.replace(check="never")


def test_pickling_sends_the_path(folder: Path) -> None:
    dataset = ShardDataset(folder, fields=["image", "label", "key"])
    dataset.find(key(3))
    list(DataLoader(dataset, 4))

    data = pickle.dumps(dataset[2:])
    again = pickle.loads(data)

    assert len(data) < 4000 + 600 * NUM // 4
    assert b"_keys" not in pickle.dumps(dataset)
    assert keys(again) == keys(dataset[2:])
    assert again.fingerprint == dataset[2:].fingerprint


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        ShardDataset(tmp_path)


# -- transforms and augmentation ------------------------------------------------------------------


def test_a_transform_takes_samples_or_fields(folder: Path) -> None:
    whole = ShardDataset(folder, fields=["label"], transform=lambda s: s.label.item() + 10)
    parts: ShardDataset[Any] = ShardDataset(
        folder, fields=["label", "key"], transform={"key": len}
    )

    assert [whole[i] for i in range(4)] == [10, 11, 12, 10]
    assert tuple(parts[1]) == (torch.tensor(1), len(key(1)))
    (batch,) = DataLoader(parts, NUM)
    assert batch.key.tolist() == [len(key(i)) for i in range(NUM)]
    assert batch.label.tolist() == [i % 3 for i in range(NUM)]
    with pytest.raises(SchemaError):
        whole.replace(transform={"image": len})


def noisy(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return value + torch.rand((), generator=generator)


def with_noise(sample: Any, *, generator: torch.Generator) -> Any:
    return sample._replace(label=noisy(sample.label, generator))


def own(value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    assert generator is None
    return value


@pytest.mark.parametrize(
    "backend", ["thread", "process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("transform", [{"label": noisy}, with_noise], ids=["field", "sample"])
def test_a_transform_draws_the_same_for_a_sample_whoever_applies_it(
    folder: Path, transform: Any, backend: Any
) -> None:
    dataset = ShardDataset(folder, fields=["label", "sample_id"], transform=transform)

    def drawn(epoch: int = 0, seed: int = 1, **settings: Any) -> dict[int, float]:
        loader = DataLoader(dataset, 3, shuffle=True, seed=seed, **settings)
        loader.set_epoch(epoch)
        pairs = [zip(b.sample_id.tolist(), b.label.tolist(), strict=True) for b in loader]
        return dict(pair for batch in pairs for pair in batch)

    expected = drawn(num_workers=0)

    assert len({value % 1 for value in expected.values()}) == NUM
    assert drawn(num_workers=2, backend=backend) == expected
    assert drawn(epoch=1)[0] != expected[0] != drawn(seed=2)[0]


def by_the_process(label: torch.Tensor) -> torch.Tensor:
    drawn = random.random() + np.random.random() + torch.rand(()).item()  # noqa: NPY002
    return label + drawn / 3


def drawn_by_processes(dataset: Any, num_workers: int, epochs: int = 2, **settings: Any) -> Any:
    loader = DataLoader(dataset, 3, backend="process", num_workers=num_workers, **settings)
    pairs = [(b.sample_id.tolist(), b.label.tolist()) for _ in range(epochs) for b in loader]
    return [pair for ids, labels in pairs for pair in zip(ids, labels, strict=True)]


def test_worker_processes_seed_what_a_transform_draws_from_by_sample(folder: Path) -> None:
    dataset = ShardDataset(
        folder, fields=["label", "sample_id"], transform={"label": by_the_process}
    )

    both = drawn_by_processes(dataset, 1, shuffle=True, seed=1)

    assert drawn_by_processes(dataset, 2, shuffle=True, seed=1) == both
    first, second = dict(both[:NUM]), dict(both[NUM:])
    assert len({value % 1 for value in first.values()}) == NUM
    assert all(first[i] != second[i] for i in range(NUM))


def test_repeats_under_a_sampler_of_others_draw_apart_in_worker_processes(folder: Path) -> None:
    dataset = ShardDataset(
        folder, fields=["label", "sample_id"], transform={"label": by_the_process}
    )

    drawn = drawn_by_processes(dataset, 2, epochs=1, sampler=[2, 2, 0, 2, 0])

    assert [i for i, _ in drawn] == [2, 2, 0, 2, 0]
    assert len({value % 1 for _, value in drawn}) == 5


def test_the_trainers_own_generators_are_left_alone(folder: Path) -> None:
    dataset = ShardDataset(
        folder, fields=["label", "sample_id"], transform={"label": by_the_process}
    )
    loader = DataLoader(dataset, 3, backend="process", num_workers=0)

    assert [b.label.tolist() for b in loader] != [b.label.tolist() for b in loader]


def test_without_an_epoch_torchs_own_workers_seed_as_torch_does(folder: Path) -> None:
    """Or each epoch would draw the same: nobody says which one it is."""
    dataset = ShardDataset(folder, fields=["label"], transform={"label": by_the_process})
    loader = torch.utils.data.DataLoader(dataset, 3, num_workers=1, collate_fn=collate)

    assert [b.label.tolist() for b in loader] != [b.label.tolist() for b in loader]


def test_fields_draw_apart_and_a_generator_of_ones_own_stays(folder: Path) -> None:
    both = {"label": noisy, "sample_id": noisy}
    (sample,) = ShardDataset(folder, fields=list(both), transform=both)[:1]

    assert sample.label % 1 != sample.sample_id % 1
    assert ShardDataset(folder, fields=["label"], transform={"label": own})[1].label == 1


def test_threads_call_one_transform_at_the_same_time(folder: Path) -> None:
    """Which is why one that keeps something between its calls needs a worker of its own."""
    at_once = threading.Barrier(2)

    def meet(label: int) -> int:
        at_once.wait(timeout=60)  # BrokenBarrierError if nobody else ever comes
        return label

    dataset = ShardDataset(folder, fields=["label"], transform={"label": meet})

    batches = list(DataLoader(dataset, 1, num_workers=2, backend="thread", drop_last=True))

    assert len(batches) == NUM


def test_the_error_of_a_transform_keeps_its_type_and_names_the_sample(folder: Path) -> None:
    dataset = ShardDataset(
        folder, fields=["label"], transform={"label": lambda label: 1 // label.item()}
    )

    with pytest.raises(ZeroDivisionError) as caught:
        list(DataLoader(dataset, 4, sampler=[1, 2, 3], num_workers=2))

    (note,) = caught.value.__notes__
    assert "sample 3 " in note
    assert "row 3, key 'bird/003'" in note


def blocks(i: int) -> dict[str, Any]:
    """Return an image whose first channel is its mask: one block, which the box encloses."""
    rng = np.random.default_rng(i)
    y, x = rng.integers(4, 10, 2).tolist()
    mask = np.zeros((24, 32), np.uint8)
    mask[y : y + 10, x : x + 12] = 1 + i
    image = np.stack([mask, mask, mask], axis=2)
    return {
        "image": image,
        "mask": mask,
        "boxes": np.array([[x, y, x + 12, y + 10]], np.float32),
    }


@pytest.mark.parametrize("codec", ["png", "raw"])
def test_image_mask_and_boxes_move_together(tmp_path: Path, codec: str) -> None:
    fields = {"image": Image(codec=codec), "mask": Mask(codec=codec), "boxes": Boxes()}
    folder = pack(tmp_path / "a", fields, [blocks(i) for i in range(12)])
    ops = [augment.RandomCrop(20), augment.RandomHorizontalFlip(), augment.RandomVerticalFlip()]
    (batch,) = DataLoader(ShardDataset(folder, augment=ops), 12, seed=5)

    assert batch.image.shape == (12, 3, 20, 20)
    assert torch.equal(batch.image[:, 0], batch.mask)
    for mask, boxes in zip(batch.mask, batch.boxes, strict=True):
        ys, xs = torch.nonzero(mask, as_tuple=True)
        found = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        assert boxes.tolist() == [[float(n) for n in found]]


def test_crops_are_drawn_once_for_all_parts_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long for four pictures as for forty, with the interpreter's lock held; boxes follow the same."""
    drawn: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        drawn.append(len(kwargs["indices"]))
        return draw_geometry(*args, **kwargs)

    fields = {"image": Image(codec="png"), "boxes": Boxes()}
    folder = pack(tmp_path / "a", fields, [{k: blocks(i)[k] for k in fields} for i in range(40)])
    ops = [augment.RandomCrop(20), augment.RandomHorizontalFlip()]
    dataset = ShardDataset(folder, augment=ops)
    (alone,) = DataLoader(dataset, 40, seed=5)
    monkeypatch.setattr(known, "draw_geometry", counted)

    (together,) = DataLoader(dataset, 40, seed=5, num_workers=5)

    assert drawn == [40]
    assert torch.equal(together.image, alone.image)
    for one, other in zip(together.boxes, alone.boxes, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("num_workers", [1, 5])
def test_one_bad_header_does_not_take_the_batch_with_it(tmp_path: Path, num_workers: int) -> None:
    fields = {"image": Image(codec="png"), "boxes": Boxes()}
    rows = [{k: blocks(i)[k] for k in fields} for i in range(40)]
    rows[17]["image"] = b"not a picture at all, whatever its name says"
    folder = pack(tmp_path / "a", fields, rows)
    ops = [augment.RandomCrop(20), augment.RandomHorizontalFlip()]
    dataset = ShardDataset(folder, augment=ops, on_error="replace")
    right = pack(tmp_path / "b", fields, [{k: blocks(i)[k] for k in fields} for i in range(40)])
    (expected,) = DataLoader(ShardDataset(right, augment=ops), 40, seed=5)

    (batch,) = DataLoader(dataset, 40, seed=5, num_workers=num_workers)

    assert dataset.num_replaced > 0
    same = [
        torch.equal(one, other) for one, other in zip(batch.image, expected.image, strict=True)
    ]
    assert [i for i, is_same in enumerate(same) if not is_same] == [17]
    with pytest.raises(SampleError, check=At("a/shard-00004.lmdb", row=1, index=17)):
        list(DataLoader(dataset.replace(on_error="raise"), 40, num_workers=num_workers))


@pytest.mark.parametrize(
    ("codec", "augment_on"), [("png", "host"), ("raw", "host"), ("raw", "device")]
)
def test_outside_of_a_mask_is_what_the_loss_ignores(
    tmp_path: Path, codec: str, augment_on: str
) -> None:
    fields = {"image": Image(codec=codec, size=(24, 32)), "mask": Mask(codec=codec, size=(24, 32))}
    rows = [{name: blocks(i)[name] for name in fields} for i in range(12)]
    folder = pack(tmp_path / "a", fields, rows)
    ops = [augment.RandomCrop(40, padding=2, pad_if_needed=True, fill_mask=255)]
    settings: Any = {"augment_on": augment_on, "device": "cpu"}
    (batch,) = DataLoader(ShardDataset(folder, augment=ops), 12, seed=5, **settings)

    outside = batch.mask == 255
    assert outside.sum(dim=(1, 2)).tolist() == [40 * 40 - 24 * 32] * 12
    assert not batch.image[outside.unsqueeze(1).expand_as(batch.image)].any()
    assert torch.equal(batch.image[:, 0], batch.mask.masked_fill(outside, 0))


def test_an_ignored_number_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    fields = {"image": Image(codec="png"), "mask": Mask()}
    folder = pack(tmp_path / "a", fields, [{name: blocks(0)[name] for name in fields}])

    for fill in (-100, 256):
        crop = augment.CenterCrop(80, fill_mask=fill)
        with pytest.raises(SchemaError):
            ShardDataset(folder, augment=[crop])


def test_a_box_that_is_cropped_away_stays_at_its_place_without_area(tmp_path: Path) -> None:
    """The line on the page drops it, together with what belongs to it."""
    fields = {"image": Image(codec="png"), "boxes": Boxes(), "kinds": Array("int64", (None,))}
    boxes = np.array([[0, 0, 5, 5], [12, 12, 40, 30]], np.float32)
    value = {"image": np.zeros((32, 64, 3), np.uint8), "boxes": boxes, "kinds": np.array([7, 2])}
    folder = pack(tmp_path / "a", fields, [value])

    _, b, kinds = ShardDataset(folder, augment=[augment.CenterCrop((16, 32))])[0]

    keep = (b[:, 2:] > b[:, :2]).all(1)
    assert keep.tolist() == [False, True]
    assert (b[keep].tolist(), kinds[keep].tolist()) == ([[0.0, 4.0, 24.0, 16.0]], [2])


def test_boxes_without_their_picture_are_not_cropped_in_silence(tmp_path: Path) -> None:
    fields = {"image": Image(codec="png"), "boxes": Boxes()}
    pack(tmp_path / "a", fields, [{k: blocks(0)[k] for k in fields}])
    crop = [augment.CenterCrop(16)]

    with pytest.raises(SchemaError):
        ShardDataset(tmp_path / "a", fields=["boxes"], augment=crop)
    assert ShardDataset(tmp_path / "a", fields=["boxes"])[0].boxes.shape == (1, 4)


@pytest.mark.parametrize(
    "names", [["image", "thumb", "boxes"], ["thumb", "image", "boxes"], ["thumb", "boxes"]]
)
def test_boxes_follow_the_first_image_of_the_schema(tmp_path: Path, names: list[str]) -> None:
    """Whichever is listed first, and if another one is served alone; in memory, and joined, as well."""
    image, thumb = Image(codec="raw", size=(100, 100)), Image(codec="raw", size=(20, 20))
    value = {"image": np.zeros((100, 100, 3), np.uint8), "thumb": np.zeros((20, 20, 3), np.uint8)}
    fields = {"image": image, "thumb": thumb, "boxes": Boxes()}
    folder = pack(tmp_path / "a", fields, [value | {"boxes": np.array([[40, 40, 60, 60]])}])
    resize, expected = [augment.Resize((50, 50))], [[20, 20, 30, 30]]

    dataset = ShardDataset(folder, fields=names, augment=resize)
    kept = RAMDataset(dataset.replace(augment=[]), progress=False)

    assert dataset[0].boxes.tolist() == expected
    assert (dataset + dataset)[1].boxes.tolist() == expected
    if "image" in names:
        assert kept.replace(augment=resize)[0].boxes.tolist() == expected
    else:
        with pytest.raises(SchemaError):
            kept.replace(augment=resize)


def test_datasets_whose_boxes_follow_other_pictures_are_mixed_and_not_joined(
    tmp_path: Path,
) -> None:
    parts = []
    for sides in ({"image": 100, "thumb": 20}, {"thumb": 20, "image": 100}):
        side = next(iter(sides.values()))
        fields = {n: Image(codec="raw", size=(s, s)) for n, s in sides.items()}
        value = {n: np.zeros((s, s, 3), np.uint8) for n, s in sides.items()}
        box = np.array([[0.4, 0.4, 0.6, 0.6]], np.float32) * side
        folder = pack(tmp_path / str(side), fields | {"boxes": Boxes()}, [value | {"boxes": box}])
        parts.append(
            ShardDataset(folder, fields=["image", "boxes"], augment=[augment.Resize((50, 50))])
        )

    with pytest.raises(SchemaError):
        parts[0] + parts[1]
    for boxes in Mixture(parts).read([0, 1]).batch.boxes:
        assert boxes.tolist() == [pytest.approx([20, 20, 30, 30])]


def test_boxes_outside_of_the_picture_that_they_would_follow_are_refused(tmp_path: Path) -> None:
    """They were drawn on another image of the sample: moved in silence they would be wrong labels."""
    fields = {
        "thumb": Image(codec="raw", size=(20, 20)),
        "image": Image(codec="png"),
        "boxes": Boxes(),
    }
    value = {"thumb": np.zeros((20, 20, 3), np.uint8), "image": np.zeros((100, 100, 3), np.uint8)}
    folder = pack(
        tmp_path / "a", fields, [value | {"boxes": np.array([[1, 1, 9, 9], [40, 40, 60, 60]])}]
    )
    dataset = ShardDataset(folder, augment=[augment.Resize((50, 50))])

    with pytest.raises(SampleError, check=At(index=0, cause=CodecError)):
        dataset[0]


def test_a_view_that_is_called_as_a_field_is_refused(tmp_path: Path) -> None:
    fields = {"image": Image(codec="png"), "image_a": Label()}
    row = {"image": np.zeros((8, 8, 3), np.uint8), "image_a": 1}
    pack(tmp_path / "a", fields, [row])

    with pytest.raises(SchemaError):
        ShardDataset(tmp_path / "a", augment=[augment.Views(a=[augment.CenterCrop(4)])])


def test_views_give_several_pictures_of_each_sample(tmp_path: Path) -> None:
    fields = {"image": Image(codec="png"), "mask": Mask(), "boxes": Boxes()}
    folder = pack(tmp_path / "a", fields, [blocks(i) for i in range(5)])
    views = augment.Views(weak=[augment.CenterCrop(16)], strong=[augment.RandomCrop(12)])
    dataset = ShardDataset(folder, augment=[views], batching={"boxes": "pad"})

    batch: Any = next(iter(DataLoader(dataset, 5)))
    plain = dataset.replace(augment=[augment.CenterCrop(16)])

    assert batch._fields == (
        "image_weak", "image_strong", "mask_weak", "mask_strong", "boxes_weak", "boxes_strong",
    )  # fmt: skip
    assert torch.equal(batch.image_strong[:, 0], batch.mask_strong)
    assert torch.equal(batch.image_weak[3], plain[3].image)
    assert torch.equal(batch.boxes_weak.values[3], plain[3].boxes)


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("has_transform", [False, True])
def test_each_field_is_padded_with_its_own_value(
    tmp_path: Path, num_workers: int, has_transform: bool
) -> None:
    fields: dict[str, Field] = {
        "ids": Array(dtype="uint16", dims=(None,)),
        "labels": Array(dtype="int32", dims=(None,)),
        "weights": Array(dtype="float32", dims=(None,)),
    }
    rows = [{name: np.arange(1 + i) for name in fields} for i in range(3)]
    packdata.pack(rows, tmp_path / "p", fields)
    batching: dict[str, Any] = {
        "labels": ("pad", -100),
        "ids": ("pad", 7),
        "weights": ("pad", 0.5),
    }
    transform = {"ids": lambda x: x} if has_transform else None

    for kind in (ShardDataset, RAMDataset):
        dataset = kind(tmp_path / "p", batching=batching, transform=transform)
        (batch,) = DataLoader(dataset, 3, num_workers=num_workers)
        for name, value in (("ids", 7), ("labels", -100), ("weights", 0.5)):
            values, lengths = getattr(batch, name)
            assert lengths.tolist() == [1, 2, 3]
            assert values.tolist() == [[0, value, value], [0, 1, value], [0, 1, 2]]
    wrongs: list[Any] = [("pad", -1), ("pad", 1 << 16), ("pad", 0.5), ("pad",), ("list", 0)]
    for wrong in wrongs:
        with pytest.raises(SchemaError):
            ShardDataset(tmp_path / "p", batching={"ids": wrong})


@pytest.mark.parametrize("num_workers", [0, 3])
def test_boxes_come_in_the_form_asked_for(folder: Path, num_workers: int) -> None:
    expected = [torch.from_numpy(sample(i)["boxes"]) for i in range(NUM)]
    dataset = ShardDataset(folder, fields=["boxes"])

    def batch(form: str) -> Any:
        served = dataset.replace(batching={"boxes": form})
        for i in (0, 1, 2):
            assert torch.equal(served[i].boxes, expected[i])
        (only,) = DataLoader(served, NUM, num_workers=num_workers)
        return only.boxes

    listed, padded, ragged = batch("list"), batch("pad"), batch("offsets")

    assert padded.values.shape == (NUM, 2, 4)
    assert ragged.values.shape == (9, 4)
    for i, boxes in enumerate(expected):
        assert torch.equal(listed[i], boxes)
        assert torch.equal(padded.values[i, : padded.lengths[i]], boxes)
        assert not padded.values[i, padded.lengths[i] :].any()
        assert torch.equal(ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]], boxes)
    read = dataset.replace(batching={"boxes": "offsets"}).__getitems__(range(NUM))
    for i in (-1, -2):
        assert torch.equal(read[i].boxes, expected[i])
    assert dataset.__getitems__([])[:] == []
    for wrong in ({"boxes": "stack"}, {"label": "pad"}):
        with pytest.raises(SchemaError):
            dataset.replace(fields=["boxes", "label"], batching=wrong)
    with pytest.raises(SchemaError):
        dataset.replace(batching={"box": "pad"})


def test_fields_that_are_left_out_need_no_form(folder: Path) -> None:
    dataset = ShardDataset(folder, fields=["boxes", "label"], batching={"boxes": "pad"})

    labels = dataset.replace(fields=["label"])
    batch: Any = next(iter(DataLoader(labels.replace(fields=["boxes"]), NUM)))

    assert labels[0]._fields == ("label",)
    assert batch.boxes.values.shape == (NUM, 2, 4)  # and it has its form when it is back


def test_pictures_of_varying_size_are_a_list(folder: Path) -> None:
    (batch,) = DataLoader(ShardDataset(folder, fields=["image", "mask"]), NUM, num_workers=2)

    assert [tuple(image.shape) for image in batch.image] == [
        (3, 16, 20 + i % 7) for i in range(NUM)
    ]
    assert [tuple(mask.shape) for mask in batch.mask] == [(16, 20 + i % 7) for i in range(NUM)]


# -- damage ---------------------------------------------------------------------------------------


@pytest.fixture(params=["lmdb", "parquet"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of 17 KB pictures, which are hashed one by one; a byte of sample 5 is flipped."""
    rng = np.random.default_rng(0)
    samples: list[dict[str, Any]] = [
        {"image": rng.integers(0, 256, (80, 80, 3), np.uint8), "label": i, "key": key(i)}
        for i in range(NUM)
    ]
    fields = {
        "image": Image(size=(80, 80), codec="raw"), "label": Label(), "key": FIELDS["key"],
    }  # fmt: skip
    folder = pack(tmp_path / "bad", fields, samples, format=request.param)
    path = folder / f"shard-00001.{request.param}"
    data = bytearray(path.read_bytes())
    data[data.index(samples[5]["image"][10].tobytes())] ^= 1
    path.write_bytes(data)
    return folder


def test_a_flipped_bit_is_found_and_named(damaged: Path) -> None:
    dataset = ShardDataset(damaged, fields=["image"])

    assert dataset.__getitems__([0, 4, 6, 9])
    for _ in range(2):
        with pytest.raises(SampleError, check=At(cause=ChecksumError)) as caught:
            dataset.__getitems__([4, 5, 6])
        assert (caught.value.index, caught.value.row, caught.value.key) == (5, 1, key(5))


def test_a_bad_sample_says_each_thing_once(damaged: Path) -> None:
    """File and row are the sample's; what its cause says besides stays."""
    dataset = ShardDataset(damaged, fields=["image"])
    path, row = dataset.view.place(5)

    with pytest.raises(SampleError) as caught:
        dataset[5]

    assert str(caught.value) == (
        f"sample 5 ({path}, row {row}, key {key(5)!r}): field image: the checksum does not match. "
        "Run 'packdata verify'; restore the shard from a copy, or pack again."
    )
    Path(str(path)).unlink()
    with pytest.raises(SampleError) as caught:
        ShardDataset(damaged, fields=["image"])[5]
    assert str(caught.value).startswith(f"sample 5 ({path}, row {row}): the shard is missing. Run")
    elsewhere = str(
        dataset.plan.samples.sample_error(5, ShardError("it is cut", path, 0, "image"))
    )
    assert elsewhere.endswith("): field image, row 0: it is cut.")


def test_never_checking_serves_what_is_there(damaged: Path) -> None:
    assert ShardDataset(damaged, fields=["image"], check="never")[5].image.shape == (3, 80, 80)


def test_only_always_sees_what_breaks_later(tmp_path: Path) -> None:
    folder = pack_samples(tmp_path / "a", 4, format="parquet", fields=["pixels"])
    first, always = (
        ShardDataset(folder, check=check, fields=["pixels"]) for check in ("first", "always")
    )
    for dataset in (first, always):
        list(dataset)

    path = folder / "shard-00000.parquet"
    data = bytearray(path.read_bytes())
    data[data.index(sample(2)["pixels"].tobytes())] ^= 1
    with path.open("r+b") as file:
        file.write(data)

    assert len(list(first)) == 4
    with pytest.raises(SampleError):
        list(always)


def served(dataset: ShardDataset, **settings: Any) -> list[int]:
    loader = DataLoader(dataset, 4, shuffle=True, seed=2, **settings)
    return [i for batch in loader for i in batch.sample_id.tolist()]


def test_a_bad_sample_is_replaced_the_same_in_every_run(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = ShardDataset(damaged, fields=["image", "label", "sample_id"], on_error="replace")
    order = served(dataset.replace(fields=["sample_id"]))

    with caplog.at_level(logging.WARNING):
        runs = [served(dataset, num_workers=n) for n in (0, 1, 3)]

    assert runs[0] == runs[1] == runs[2]
    assert [a for a, b in zip(order, runs[0], strict=True) if a != b] == [5]
    assert dataset.num_replaced == 3
    assert len(caplog.records) == 1
    assert "replaced: sample 5" in caplog.text
    loader = DataLoader(dataset, NUM, num_workers=1)
    (batch,) = loader
    assert torch.equal(batch.label, batch.sample_id)
    assert loader.stats().num_replaced == 1  # since it was made


def test_too_many_bad_samples_end_the_run(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted is each sample once, so a long run with few bad ones goes on."""
    dataset = ShardDataset(damaged, fields=["image", "sample_id"], on_error="replace")

    for _ in range(20):
        served(dataset, num_workers=2)
    assert dataset.num_replaced == 20
    monkeypatch.setattr(request, "_MAX_FEW", 0)
    with pytest.raises(LoadersError, match="sample 5 "):
        served(dataset, num_workers=2)
    with pytest.raises(LoadersError):
        dataset[5:6].__getitems__([0])


def with_flipped_bits(folder: Path, nbytes: int, rows: tuple[int, ...]) -> ShardDataset:
    """Return 84 samples in two shards, some of the first shard damaged."""
    samples = [
        {"x": np.random.default_rng(i).integers(0, 256, nbytes, np.uint8)} for i in range(84)
    ]
    pack(folder, {"x": Array(dtype="uint8", dims=(nbytes,))}, samples, per_shard=42)
    path = folder / "shard-00000.lmdb"
    data = bytearray(path.read_bytes())
    for row in rows:
        data[data.index(samples[row]["x"].tobytes())] ^= 1
    path.write_bytes(data)
    return ShardDataset(folder, fields=["x", "sample_id"], on_error="replace")


def of_pictures_and_arrays(folder: Path, damaged: dict[str, tuple[int, ...]]) -> ShardDataset:
    """Return 84 samples that tell their number in every field, some records of each field damaged."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 60, (160, 160, 3), np.uint8)  # each record has a checksum
    pictures = [noise + np.uint8(2 * i) for i in range(84)]
    arrays = [rng.integers(0, 256, 3_000, np.uint8) for _ in range(84)]
    for i, array in enumerate(arrays):
        array[0] = i
    records = {
        "image": [encode_jpeg(picture, 100) for picture in pictures],
        "x": [array.tobytes() for array in arrays],
    }
    samples = [
        {"image": image, "x": array, "label": i}
        for i, (image, array) in enumerate(zip(records["image"], arrays, strict=True))
    ]
    fields = {"image": Image(), "x": Array(dtype="uint8", dims=(3_000,)), "label": Label()}
    pack(folder, fields, samples, per_shard=84)
    path = folder / "shard-00000.lmdb"
    data = bytearray(path.read_bytes())
    for name, rows in damaged.items():
        for row in rows:
            data[data.index(records[name][row]) + len(records[name][row]) // 2] ^= 1
    path.write_bytes(data)
    return ShardDataset(
        folder,
        fields=["image", "x", "label", "sample_id"],
        augment=[augment.RandomCrop(16)],
        on_error="replace",
    )


# What replaces a picture has a bad array more often than not.
MANY = {"image": tuple(range(1, 84, 2)), "x": (5, 26, 70)}


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"x": (5,)},
        {"image": (9, 51), "x": (70,)},
        pytest.param(MANY, marks=pytest.mark.slow),
    ],
)
def test_threads_serve_what_one_serves_also_of_samples_that_are_replaced(
    tmp_path: Path, damaged: dict[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small fields are read when all parts of a batch are done: by then some samples are others."""
    monkeypatch.setattr(request, "_MAX_FEW", 100)
    packed = of_pictures_and_arrays(tmp_path / "a", damaged)
    for batch_size in (10, 42):  # of which the arrays are small, and are not
        assert_threads_serve_what_one_serves(packed, damaged, batch_size)


def assert_threads_serve_what_one_serves(
    packed: ShardDataset, damaged: dict[str, tuple[int, ...]], batch_size: int
) -> None:
    data = [pickle.loads(pickle.dumps(packed)) for _ in range(2)]
    of_one, of_many = (
        list(DataLoader(each, batch_size, num_workers=n))
        for each, n in zip(data, (0, 3), strict=True)
    )

    assert data[0].num_replaced == data[1].num_replaced
    for one, many in zip(of_one, of_many, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))
        ids = many.sample_id
        assert torch.equal(many.label, ids)
        assert torch.equal(many.x[:, 0], ids.to(torch.uint8))
        assert (many.image.float().mean(dim=(1, 2, 3)) - 29.5 - 2 * ids).abs().max() < 4
    served = torch.cat([batch.sample_id for batch in of_many])
    bad = {*damaged.get("image", ())} | {r for n in damaged.get("x", ()) for r in block_of(n)}
    assert {i for i, j in enumerate(served.tolist()) if i != j} == bad


def block_of(row: int) -> range:
    """Return the rows of 3,000 bytes that have one checksum with this one."""
    first = row // 21 * 21
    return range(first, first + 21)


def test_small_batches_of_a_foreign_sampler_have_the_epochs_replacements_too(
    tmp_path: Path,
) -> None:
    packed = with_flipped_bits(tmp_path / "a", 20_000, (5,))
    data = [pickle.loads(pickle.dumps(packed)) for _ in range(2)]
    of_one, of_many = (
        DataLoader(each, 2, sampler=[*range(84), 5, 6], num_workers=n)
        for each, n in zip(data, (0, 2), strict=True)
    )

    epochs = [[torch.cat([b.sample_id for b in each]).tolist() for each in (of_one, of_many)]
              for _ in range(2)]  # fmt: skip

    assert epochs[0][0] != epochs[1][0]
    assert [one for one, _ in epochs] == [many for _, many in epochs]
    assert data[0].num_replaced == data[1].num_replaced


def test_the_error_that_ends_a_run_says_how_many_causes_there_were(tmp_path: Path) -> None:
    dataset = with_flipped_bits(tmp_path / "a", 3_000, (5,))

    with pytest.raises(LoadersError, match="11 samples"):
        served(dataset, num_workers=0)


def test_a_picture_too_small_for_its_crop_is_replaced_alone(tmp_path: Path) -> None:
    sizes = [24, 24, 10, 24, 24, 9, 24, 24]
    samples = [{"image": np.full((n, n, 3), i, np.uint8)} for i, n in enumerate(sizes)]
    folder = pack(tmp_path / "a", {"image": Image(codec="png")}, samples)
    dataset = ShardDataset(folder, fields=["image", "sample_id"], augment=[augment.RandomCrop(16)])

    with pytest.raises(SampleError, check=At("a/shard-00000.lmdb", row=2, index=2)):
        list(DataLoader(dataset, 8, num_workers=1))
    (batch,) = DataLoader(dataset.replace(on_error="replace"), 8, num_workers=3)

    assert batch.image[:, 0, 0, 0].tolist() == batch.sample_id.tolist()
    kept = [i for i, n in enumerate(sizes) if n == 24]
    assert batch.sample_id[kept].tolist() == kept
    assert set(batch.sample_id.tolist()) <= set(kept)


@pytest.mark.parametrize(("bad", "most"), [("header", 140), ("body", 90)])
def test_one_bad_picture_does_not_have_its_batch_looked_at_again_by_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, most: int
) -> None:
    """A batch is looked at together; if that fails, each part of it looks at its own."""
    file = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8))
    samples = [{"image": file[1].tobytes()} for _ in range(128)]
    if bad == "header":
        samples[63]["image"] = b"no picture"
    else:
        samples[1]["image"] = samples[1]["image"][:300]
    folder = pack(tmp_path / "a", {"image": Image()}, samples)
    ops = [augment.RandomResizedCrop(16)]
    dataset = ShardDataset(folder, augment=ops, on_error="replace")[:64]
    calls: list[int] = []

    def counted(records: Any, *limit: Any) -> Any:
        calls.extend([1] * len(records))
        return heads.picture_heads(records, *limit)

    monkeypatch.setattr(pictures, "picture_heads", counted)
    (batch,) = DataLoader(dataset, 64, num_workers=4, backend="thread")

    assert batch.image.shape == (64, 3, 16, 16)
    assert dataset.num_replaced == 1
    assert len(calls) <= most


def test_a_dataset_of_nothing_but_bad_samples_ends(tmp_path: Path) -> None:
    samples = [{"image": np.zeros((4, 4, 3), np.uint8)}]
    folder = pack(tmp_path / "a", {"image": Image(codec="png")}, samples)
    dataset = ShardDataset(folder, augment=[augment.RandomCrop(16)], on_error="replace")

    with pytest.raises(LoadersError, check=At("a/shard-00000.lmdb", row=0, index=0)):
        dataset[0]


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("kind", ["lmdb", "parquet"])
def test_a_shard_of_another_packing_is_refused(tmp_path: Path, kind: str, check: Check) -> None:
    """Its records are whole by its own checksums, and its size is the same: they are not those of the manifest."""
    one, other = (shards_of_one_size(tmp_path / name, kind) for name in "ab")
    (other / f"shard-00001.{kind}").replace(one / f"shard-00001.{kind}")

    dataset = ShardDataset(one, check=check)

    assert dataset[0].x[0] == 0
    with pytest.raises(SampleError, check=At(row=0, index=2)):
        dataset[2]


@pytest.mark.parametrize("kind", ["lmdb", "parquet"])
def test_shards_of_one_size_that_were_packed_before_are_noticed_by_who_always_checks(
    tmp_path: Path, kind: str
) -> None:
    folder, shards = packed_before(tmp_path / "a", kind)
    one, other = (folder / shard.file for shard in shards[1:3])
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)

    dataset = ShardDataset(folder, check="always")
    assert dataset[0].x[0] == 0
    with pytest.raises(SampleError, check=At(row=0, index=2)):
        dataset[2]


@pytest.mark.parametrize("kind", ["lmdb", "parquet"])
def test_a_shard_packed_before_that_is_replaced_while_the_dataset_is_open_is_refused(
    tmp_path: Path, kind: str
) -> None:
    """Its manifest has no hash of the checksums; a link to it or other rights change nothing."""
    folder, shards = packed_before(tmp_path / "a", kind)
    dataset = ShardDataset(folder)

    (folder / shards[2].file).chmod(0o444)
    os.link(folder / shards[2].file, tmp_path / "linked")
    copied = shutil.copy(folder / shards[2].file, tmp_path / "copied")
    os.replace(copied, folder / shards[1].file)

    assert dataset[4].x[0] == 4
    with pytest.raises(SampleError, check=At(row=0, index=2, cause=StaleDatasetError)):
        dataset[2]


def packed_before(folder: Path, kind: str) -> tuple[Path, Sequence[ShardInfo]]:
    """Pack shards of one size, whose manifest has no hash of their checksums, and return them."""
    manifest = read_manifest(shards_of_one_size(folder, kind))
    shards = tuple(shard._replace(checksums_xxh3_64=None) for shard in manifest.shards)
    put_manifest(folder, replace(manifest, shards=shards))
    return folder, shards


def shards_of_one_size(folder: Path, kind: str) -> Path:
    """Pack shards of one size, which differ from those of another folder."""
    first = ord(folder.name) - ord("a")
    rows = [{"x": np.full(20_000, i + 8 * first, np.uint8)} for i in range(8)]
    fields: dict[str, Field] = {"x": Array(dtype="uint8", dims=(20_000,))}
    return pack(folder, fields, rows, format=kind, per_shard=2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pictures_that_a_transform_sees_may_stay_apart(tmp_path: Path, num_workers: int) -> None:
    rows = [{"image": np.zeros((8 + i, 9, 3), np.uint8)} for i in range(4)]
    folder = pack(tmp_path / "a", {"image": Image(codec="raw")}, rows)
    plain = ShardDataset(folder)
    dataset = plain.replace(transform=lambda sample: sample, batching={"image": "list"})

    for one, other in zip(
        DataLoader(plain, 2), DataLoader(dataset, 2, num_workers=num_workers), strict=True
    ):
        assert [tuple(image.shape) for image in other.image] == [i.shape for i in one.image]
        assert isinstance(other.image, list)
    with pytest.raises(BatchError):
        list(DataLoader(plain.replace(transform=lambda sample: sample), 2))
    views = plain.replace(
        augment=[augment.Views(a=[augment.CenterCrop(4)], b=[augment.RandomHorizontalFlip()])],
        transform=lambda sample: sample, batching={"image": "list"},
    )  # fmt: skip
    (batch,) = DataLoader(views, 4)
    assert isinstance(batch.image_a, list)
    assert isinstance(batch.image_b, list)


def test_a_single_view_names_all_that_it_moves(folder: Path) -> None:
    views = [augment.Views(a=[augment.CenterCrop(8)])]
    dataset = ShardDataset(folder, fields=["image", "boxes"], augment=views)

    assert dataset.names == ("image_a", "boxes_a")


def test_attributes_without_a_value_are_none_to_hasattr() -> None:
    plain = RAMDataset.from_arrays(label=np.arange(3))

    for dataset in (plain, Mixture([plain, plain])):
        assert not hasattr(dataset, "classes")
        assert getattr(dataset, "classes", None) is None
        with pytest.raises(SchemaError):
            assert dataset.classes
