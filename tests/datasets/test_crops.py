"""Crops out of stored arrays: volumes with their masks, from every store, verified where they are read."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from loaders import DataLoader, Normalize, RAMDataset, ShardDataset, augment, concat
from loaders.augment import CenterCrop, RandomCrop, RandomFlip, RandomResizedCrop, Resize
from loaders.augment.planning import draw_geometry
from loaders.data.formats import checksums, open_columns
from loaders.data.manifest import read_manifest
from loaders.data.partial import BoxBytes, PartialRecords
from loaders.errors import BatchError, ChecksumError, LoadersError, SampleError, SchemaError
from loaders.schema import Array, Field, Image, Label, Text
from tests.packdata.packing import pack
from tests.refusals import At

NUM = 7
CROP: list[augment.Op] = [RandomCrop((6, 7, 8)), RandomFlip()]


def volume(i: int, depth: int = 12) -> npt.NDArray[np.int16]:
    """Volume ``i``: two channels whose values tell sample, channel and place."""
    places = np.arange(depth * 14 * 16).reshape(depth, 14, 16)
    return np.stack([places + 1000 * i, -places - 1000 * i]).astype(np.int16)


def mask(i: int, depth: int = 12) -> npt.NDArray[np.uint8]:
    return np.asarray(volume(i, depth)[0] % 251, np.uint8)


def depth_of(i: int, *, varies: bool) -> int:
    return 12 + 3 * (i % 3) * varies


def pack_volumes(folder: Path, *, format: str = "lmdb", varies: bool = False) -> Path:
    dims = (2, None if varies else 12, 14, None if varies else 16)
    fields: dict[str, Field] = {
        "array": Array(dtype="int16", dims=dims, spatial=3),
        "mask": Array(dtype="uint8", dims=dims[1:], spatial=3),
        "label": Label(),
        "key": Text(),
    }
    depths = [depth_of(i, varies=varies) for i in range(NUM)]
    samples = [
        {"array": volume(i, d), "mask": mask(i, d), "label": i, "key": f"v{i}"}
        for i, d in enumerate(depths)
    ]
    shown = ("array", "mask", "label")
    return pack(folder, fields, samples, format=format, per_shard=3, defaults=shown)


@pytest.fixture(scope="module", params=["lmdb", "parquet"])
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["fixed", "varying"])
def folder(
    request: pytest.FixtureRequest, format: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    where = tmp_path_factory.mktemp("volumes") / "a"
    return pack_volumes(where, format=format, varies=request.param)


def expected(i: int, epoch: int, ops: Any, *, varies: bool) -> tuple[Any, Any]:
    """The crop by plain slicing, from the public plan."""
    array, marks = volume(i, depth_of(i, varies=varies)), mask(i, depth_of(i, varies=varies))
    geometry = draw_geometry(
        ops, np.array([marks.shape]), seed=5, epoch=epoch, indices=np.array([i])
    )
    box, flips = geometry.boxes[0].tolist(), geometry.flips[0].tolist()
    (z, y, x), (depth, height, width) = box[:3], box[3:]
    turns = [slice(None, None, -1 if flip else 1) for flip in flips]
    array = array[:, z : z + depth, y : y + height, x : x + width]
    marks = marks[z : z + depth, y : y + height, x : x + width]
    return array[:, turns[0], turns[1], turns[2]], marks[turns[0], turns[1], turns[2]]


def varies_in(folder: Path) -> bool:
    return not ShardDataset(folder).schema.fields["array"].is_fixed


# -- what is served -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_hold_the_planned_crops(folder: Path, num_workers: int) -> None:
    """Volume and mask, every sample of every epoch, equal to plain slicing; any number of workers."""
    dataset = ShardDataset(folder, augment=CROP, fields=["array", "mask", "label"])
    loader = DataLoader(dataset, batch_size=3, shuffle=True, seed=5, num_workers=num_workers)
    varies = varies_in(folder)

    for epoch in range(2):
        labels = []
        for batch in loader:
            n = len(batch.label)
            assert batch.array.shape == (n, 2, 6, 7, 8)
            assert (batch.array.dtype, batch.mask.dtype) == (torch.int16, torch.uint8)
            assert batch.mask.shape == (n, 6, 7, 8)
            assert batch.array.is_contiguous()
            for row, i in enumerate(batch.label.tolist()):
                crop, marks = expected(i, epoch, CROP, varies=varies)
                assert np.array_equal(batch.array[row], crop)
                assert np.array_equal(batch.mask[row], marks)
                labels.append(i)
        assert sorted(labels) == list(range(NUM))


def test_memory_serves_what_files_do(folder: Path) -> None:
    for settings in ({"augment": CROP}, {"augment": [RandomFlip(1.0)]}, {}):
        files, memory = (cls(folder, **settings) for cls in (ShardDataset, RAMDataset))
        for i in range(NUM):
            assert all(map(torch.equal, files[i], memory[i]))


def test_without_a_crop_arrays_of_varying_shape_are_a_list(folder: Path) -> None:
    dataset = ShardDataset(folder, augment=[RandomFlip(1.0)], fields=["array", "mask"])

    batch = next(iter(DataLoader(dataset, batch_size=NUM)))

    varies = varies_in(folder)
    assert isinstance(batch.array, list) == varies
    for i in range(NUM):
        turned = volume(i, depth_of(i, varies=varies))[:, ::-1, ::-1, ::-1]
        assert np.array_equal(batch.array[i], turned)


def test_flips_of_varying_arrays_can_be_padded(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"array": Array(dtype="uint8", dims=(None, 4), spatial=1)}
    rows = [{"array": np.full((n, 4), n, np.uint8)} for n in (2, 3)]
    folder = pack(tmp_path / "a", fields, rows)

    dataset = ShardDataset(folder, augment=[RandomFlip()], batching={"array": "pad"})
    batch: Any = next(iter(DataLoader(dataset, batch_size=2))).array
    same = dataset.replace(transform=lambda sample: sample)
    again: Any = next(iter(DataLoader(same, batch_size=2))).array

    assert batch.values.shape == (2, 3, 4)
    assert batch.lengths.tolist() == [2, 3]
    assert torch.equal(batch.values, again.values)


def test_views_are_cut_from_the_same_volume(folder: Path) -> None:
    views = augment.Views(near=[CenterCrop(4)], far=CROP, whole=[])
    dataset = ShardDataset(folder, fields=["array", "mask"], augment=[views])

    sample = dataset[2]

    names = [f"{field}_{view}" for field in ("array", "mask") for view in views.names]
    assert sample._fields == tuple(names)
    assert sample.array_near.shape == (2, 4, 4, 4)
    assert sample.mask_far.shape == (6, 7, 8)
    whole = volume(2, depth_of(2, varies=varies_in(folder)))
    assert np.array_equal(sample.array_whole, whole)
    assert np.array_equal(sample.array_far[0] % 251, sample.mask_far)


def test_datasets_of_volumes_join_pickle_and_take_transforms(folder: Path) -> None:
    dataset = ShardDataset(folder, augment=CROP)
    dataset[0]

    both = concat([dataset, dataset])
    copy = pickle.loads(pickle.dumps(dataset))
    transformed = dataset.replace(transform={"array": lambda array: array.float() / 2})

    assert torch.equal(both[NUM + 1].array[0] % 251, both[NUM + 1].mask.short())
    assert torch.equal(copy[4].array, dataset[4].array)
    assert torch.equal(transformed[4].array, dataset[4].array / 2)
    assert next(iter(DataLoader(transformed, batch_size=3))).array.shape == (3, 2, 6, 7, 8)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64"]
)
def test_every_dtype_is_cropped(dtype: str, tmp_path: Path) -> None:
    """Also where Parquet puts records at odd addresses."""
    values = np.random.default_rng(0).integers(0, 100, (3, 5, 9, 9)).astype(dtype)
    fields: dict[str, Field] = {
        "odd": Array(dtype="uint8", dims=(3,)),
        "array": Array(dtype=dtype, dims=(None, 9, None), spatial=3),
    }
    rows = [{"odd": [1, 2, 3], "array": value} for value in values]
    folder = pack(tmp_path / "a", fields, rows, format="parquet")

    batch = next(iter(DataLoader(ShardDataset(folder, augment=[CenterCrop(5)]), batch_size=3)))

    assert np.array_equal(batch.array.numpy(), values[:, :, 2:7, 2:7])


# -- which fields ---------------------------------------------------------------------------------


def served(tmp_path: Path, fields: dict[str, Field], ops: Any) -> Any:
    values: dict[str, Any] = {}
    for name, field in fields.items():
        shape = tuple(n or 9 for n in field.shape or ())
        is_image = isinstance(field, Image)
        values[name] = np.ones((*shape[1:], shape[0]) if is_image else shape, field.dtype)
    folder = pack(tmp_path / "a", fields, [values])
    return ShardDataset(folder, augment=ops)[0]


def test_pictures_are_cropped_and_arrays_beside_them_left(tmp_path: Path) -> None:
    """A map of its size is cropped with it where the field says that its axes are spatial."""
    fields: dict[str, Field] = {
        "image": Image(size=(20, 20), codec="raw"),
        "features": Array(dims=(4, 9, 9)),
        "depth": Array(dims=(20, 20), spatial=2),
    }

    sample = served(tmp_path, fields, [RandomCrop(8), augment.RandomHorizontalFlip()])

    assert sample.image.shape == (3, 8, 8)
    assert sample.features.shape == (4, 9, 9)
    assert sample.depth.shape == (8, 8)


def test_an_image_and_a_map_of_its_size_move_together(tmp_path: Path) -> None:
    places = np.arange(20 * 20, dtype=np.float32).reshape(20, 20)
    image = np.repeat((places % 251).astype(np.uint8)[:, :, None], 3, axis=2)
    fields: dict[str, Field] = {
        "image": Image(size=(20, 20), codec="raw"),
        "depth": Array(dims=(20, 20), spatial=2),
    }
    folder = pack(tmp_path / "a", fields, [{"image": image, "depth": places}] * 5)
    ops = [RandomCrop((7, 9)), augment.RandomHorizontalFlip(), augment.RandomVerticalFlip()]

    for sample in ShardDataset(folder, augment=ops):
        assert torch.equal(sample.image[0], (sample.depth % 251).to(torch.uint8))


@pytest.mark.parametrize(
    "fields",
    [
        {"clip": Array(dims=(16, 9, 9, 3), dtype="uint8")},
        {"clip": Array(dims=(3, 9, 9))},
        {"image": Image(size=(9, 9), codec="raw"), "clip": Array(dims=(9, 9), dtype="uint8")},
        {"image": Image(size=(9, 9), codec="raw"), "clip": Array(dims=(2, 9, 9))},
        {"volume": Array(dims=(2, 7, 8, 9), spatial=3), "clip": Array(dims=(7, 8, 9))},
        {"series": Array(dims=(2, 30), spatial=1), "clip": Array(dims=(30,))},
    ],
    ids=["clip", "picture", "mask", "depth", "mask of a volume", "targets of a series"],
)
def test_what_may_have_to_move_and_does_not_say_so_is_refused(
    tmp_path: Path, fields: dict[str, Field]
) -> None:
    """Mirrored along its channels, or left where it is beside a picture that moves, it would be wrong in silence."""
    rows = [{name: np.zeros(_shape(field), field.dtype) for name, field in fields.items()}]
    folder = pack(tmp_path / "a", fields, rows)

    with pytest.raises(SchemaError):
        ShardDataset(folder, augment=[RandomFlip()])
    with pytest.raises(SchemaError):
        ShardDataset(folder).replace(augment=[RandomFlip()])
    assert len(ShardDataset(folder)[0]) == len(fields)
    others = [name for name in fields if name != "clip"]
    if others:
        assert ShardDataset(folder, augment=[RandomFlip()], fields=others)[0]._fields == (*others,)


def _shape(field: Any) -> tuple[int, ...]:
    return (*(field.size or ()), 3) if isinstance(field, Image) else field.dims


def test_pictures_of_any_size_have_planes_of_any_size_beside_them(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"image": Image(codec="raw"), "plane": Array(dims=(None, None))}
    rows = [{"image": np.zeros((8, 9, 3), np.uint8), "plane": np.zeros((8, 9))}]
    folder = pack(tmp_path / "a", fields, rows)

    with pytest.raises(SchemaError):
        ShardDataset(folder, augment=[CenterCrop(4)])


def test_arrays_that_are_larger_by_chance_are_a_list() -> None:
    maps = np.arange(4 * 9 * 9, dtype=np.float32).reshape(4, 9, 9) + 1
    ops = [augment.RandomZoomOut(p=1.0)]
    field = Array(dtype="float32", dims=(9, 9), spatial=2)
    data = RAMDataset.from_arrays(x=maps, schema={"x": field}, augment=ops)

    (batch,) = DataLoader(data, 4)

    assert len({tuple(each.shape) for each in batch.x}) > 1
    assert [each[each > 0].tolist() for each in batch.x] == maps.reshape(4, 81).tolist()


def test_arrays_of_other_lengths_stay_as_they_are(tmp_path: Path) -> None:
    fields: dict[str, Field] = {
        "image": Image(size=(9, 9), codec="raw"),
        "vector": Array(dims=(9,)),
        "other": Array(dims=(4, 9, 8)),
        "boxes": Array(dims=(None, 7)),
    }

    sample = served(tmp_path, fields, [CenterCrop(4)])

    assert [tuple(value.shape) for value in sample][:3] == [(3, 4, 4), (9,), (4, 9, 8)]


def test_what_one_field_says_holds_for_the_others(tmp_path: Path) -> None:
    fields: dict[str, Field] = {
        "signal": Array(dims=(2, 30), spatial=1),
        "other": Array(dims=(9, 9, 9)),
        "never": Array(dims=(9, 9, 9), spatial=0),
    }

    sample = served(tmp_path, fields, [RandomCrop(12)])

    assert [tuple(value.shape) for value in sample] == [(2, 12), (9, 9, 9), (9, 9, 9)]


@pytest.mark.parametrize(
    "op",
    [Resize(8), RandomResizedCrop(8), RandomCrop((8, 8)), RandomFlip(axes=(4,)), RandomCrop(10)],
)
def test_ops_that_cannot_be_carried_out_are_refused_at_once(tmp_path: Path, op: Any) -> None:
    fields: dict[str, Field] = {"array": Array(dims=(1, 9, 9, 9), spatial=3)}

    with pytest.raises(SchemaError):
        served(tmp_path, fields, [op])


def test_what_fills_masks_does_not_fill_arrays_in_silence(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"mask": Array(dims=(9, 9, 9), dtype="uint8", spatial=3)}

    with pytest.raises(SchemaError):
        served(tmp_path, fields, [CenterCrop(12, fill_mask=255)])


def test_a_volume_that_is_too_small_is_an_error_or_replaced(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"array": Array(dims=(None, 9, 9), spatial=3), "key": Text()}
    rows = [{"array": np.ones((n, 9, 9)), "key": f"k{n}"} for n in (9, 3, 8, 7)]
    folder = pack(tmp_path / "a", fields, rows)

    dataset = ShardDataset(folder, fields=["array"], augment=[RandomCrop(6)])

    with pytest.raises(SampleError, check=At("a/shard-00000.lmdb", row=1, index=1, key="k3")):
        next(iter(DataLoader(dataset, batch_size=4)))
    replaced = dataset.replace(on_error="replace")
    assert next(iter(DataLoader(replaced, batch_size=4))).array.shape == (4, 6, 6, 6)
    assert replaced.num_replaced == 1


class Stretch:
    """An op of a user's own that resamples."""

    num_draws = 0

    def move(self, window: Any, draws: Any) -> None:
        window.resize(np.array([4, 4, 4]))

    def resized(self, size: Any) -> Any:
        return None


def test_an_op_of_ones_own_cannot_resample_either(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"array": Array(dims=(9, 9, 9), spatial=3)}

    with pytest.raises(SampleError, check=At("a/shard-00000.lmdb", row=0, index=0)) as caught:
        served(tmp_path, fields, [Stretch()])

    assert isinstance(caught.value.__cause__, BatchError)


# -- verification ---------------------------------------------------------------------------------

LARGE = (1, 32, 256, 256)  # 2 MiB: 64 chunks, two a slice


def pack_large(folder: Path, format: str, num: int = 2, *, varies: bool = False) -> Path:
    dims = tuple(None for _ in LARGE) if varies else LARGE
    fields: dict[str, Field] = {"array": Array(dtype="uint8", dims=dims, spatial=3)}
    rows = [{"array": np.full(LARGE, i + 1, np.uint8)} for i in range(num)]
    return pack(folder, fields, rows, format=format)


def flip_byte(folder: Path, row: int, offset: int) -> None:
    """Change one byte of a record on the disk."""
    info = read_manifest(folder).shards[0]
    column = open_columns(folder / info.file, info)["array"]
    record = column.row(row)
    start = record.ctypes.data - column.row(0).ctypes.data + offset
    data = (folder / info.file).read_bytes()
    begin = data.find(column.row(0)[:4096].tobytes() + column.row(0)[4096:8192].tobytes())
    with open(folder / info.file, "r+b") as file:
        file.seek(begin + start)
        file.write(bytes([data[begin + start] ^ 1]))


def offset_of(z: int, y: int, x: int, header: int = 0) -> int:
    return header + (z * LARGE[2] + y) * LARGE[3] + x


@pytest.mark.parametrize("varies", [False, True])
def test_a_crop_is_verified_by_what_it_touches_and_no_more(
    tmp_path: Path, format: str, varies: bool
) -> None:
    """Damage elsewhere in the volume is not read, damage in the crop is found with its place."""
    folder = pack_large(tmp_path / "a", format, varies=varies)
    header = 16 if varies else 0
    for z in (11, 20):  # right before and right behind
        flip_byte(folder, 1, offset_of(z, 130, 120, header))
    crop = [CenterCrop((8, 16, 16))]  # slices 12 to 19, rows 120 to 135

    elsewhere = ShardDataset(folder, augment=crop)
    assert (elsewhere[1].array == 2).all()
    with pytest.raises(SampleError, check=At(cause=ChecksumError)):
        elsewhere.replace(augment=[])[1]

    flip_byte(folder, 1, offset_of(15, 130, 120, header))
    with pytest.raises(SampleError, check=At(row=1, cause=ChecksumError)) as caught:
        ShardDataset(folder, augment=crop)[1]
    first, last = map(int, re.findall(r"bytes (\d+) to (\d+)", str(caught.value))[0])
    assert first <= offset_of(15, 130, 120, header) <= last < first + checksums.CHUNK_BYTES
    assert (ShardDataset(folder, augment=crop, check="never")[1].array != 2).sum() == 1


def test_each_chunk_is_verified_once_unless_always(tmp_path: Path, format: str) -> None:
    """After the first read, a change is not looked for; ``check="always"`` finds it."""
    folder = pack_large(tmp_path / "a", format)
    first, always = (
        ShardDataset(folder, augment=[CenterCrop(8)], check=check) for check in ("first", "always")
    )
    assert all((d[0].array == 1).all() for d in (first, always))

    flip_byte(folder, 0, offset_of(16, 128, 128))

    assert (first[0].array != 1).sum() == 1
    with pytest.raises(SampleError, check=At(row=0, index=0)):
        always[0]


def test_a_part_that_was_verified_vouches_for_no_other(tmp_path: Path, format: str) -> None:
    dataset = ShardDataset(pack_large(tmp_path / "a", format))
    records = PartialRecords(dataset.store, "array")
    (record,) = records.find(dataset.view.rows(np.array([1])))
    flip_byte(tmp_path / "a", 1, 5 * checksums.CHUNK_BYTES)

    for chunk in (4, 6):
        records.verify(
            records.part(0, 1, record, BoxBytes(chunk * checksums.CHUNK_BYTES, [1], [1]))
        )

    with pytest.raises(ChecksumError, check=At(row=1, field="array")):
        records.verify(records.part(0, 1, record, BoxBytes(5 * checksums.CHUNK_BYTES, [1], [1])))


def test_the_shape_in_front_of_a_record_is_verified(tmp_path: Path) -> None:
    """A flipped bit there would serve another place of the volume."""
    folder = pack_large(tmp_path / "a", "lmdb", varies=True)
    flip_byte(folder, 0, 4)  # the depth, little-endian: 32 becomes 33

    with pytest.raises(SampleError, check=At("a/shard-00000.lmdb", row=0, index=0)):
        ShardDataset(folder, augment=[CenterCrop(8)])[0]


def test_shards_without_chunks_are_verified_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Files that an earlier version packed."""
    monkeypatch.setattr(checksums, "CHUNKED_ROW_BYTES", 1 << 40)
    folder = pack_large(tmp_path / "a", format)
    assert (ShardDataset(folder, augment=[CenterCrop(8)])[1].array == 2).all()

    flip_byte(folder, 1, offset_of(2, 3, 4))

    with pytest.raises(SampleError, check=At(row=1, index=1)):
        ShardDataset(folder, augment=[CenterCrop(8)])[1]


def test_chunks_and_whole_records_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    new = ShardDataset(pack_large(tmp_path / "new", format), augment=[CenterCrop(8)])
    monkeypatch.setattr(checksums, "CHUNKED_ROW_BYTES", 1 << 40)
    old = ShardDataset(pack_large(tmp_path / "old", format), augment=[CenterCrop(8)])

    batch = next(iter(DataLoader(concat([new, old]), batch_size=4)))

    assert batch.array.amax((1, 2, 3, 4)).tolist() == [1, 2, 1, 2]


def test_spans_name_every_chunk_that_is_touched_and_no_other() -> None:
    """Against every byte's own number: boxes in arrays of two to four axes, chunks of any size."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shape = rng.integers(1, 13, rng.integers(2, 5))
        first = [int(rng.integers(0, n)) for n in shape]
        last = [int(rng.integers(f + 1, n + 1)) for f, n in zip(first, shape, strict=True)]
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        chunk_bytes, header = int(rng.integers(1, 40)), int(rng.integers(0, 20))

        start = header + sum(f * s for f, s in zip(first, strides, strict=True))
        lengths = [b - a for a, b in zip(first, last, strict=True)]
        spans = BoxBytes(start, lengths, strides, header)

        padded = np.arange(header + int(np.prod(shape)))
        inside = padded[header:].reshape(shape)[tuple(map(slice, first, last))]
        wanted = {
            *(padded[:header] // chunk_bytes).tolist(),
            *(inside // chunk_bytes).ravel().tolist(),
        }
        assert set(spans.chunks(chunk_bytes).tolist()) == wanted
        assert spans.upto(chunk_bytes).tolist() == [*range(max(wanted) + 1)]


def test_an_empty_array_behind_large_ones_is_named(tmp_path: Path) -> None:
    """It has no chunk, and the chunk that would be its first is no other's either."""
    arrays = [np.ones(n, np.float32) for n in (900_000, 900_000, 0)]
    fields = {"array": Array(dtype="float32", dims=(None,), spatial=1)}
    folder = pack(tmp_path / "a", fields, [{"array": array} for array in arrays])
    dataset = ShardDataset(folder, augment=[CenterCrop((8,))])

    assert dataset[1].array.shape == (8,)
    with pytest.raises(SampleError, check=At(row=2, index=2)):
        dataset[2]


def test_a_crop_beyond_a_large_volume_is_padding_alone(tmp_path: Path) -> None:
    dataset = ShardDataset(
        pack_large(tmp_path / "a", "lmdb", num=30), augment=[RandomCrop(8, padding=60)]
    )

    crops = dataset.read(range(30)).batch.array

    assert {*crops.unique().tolist()} <= {*range(31)}
    assert (crops.flatten(1) == 0).all(1).sum() > 10


def test_of_chunks_that_were_verified_before_nothing_is_looked_at_again(
    tmp_path: Path, format: str
) -> None:
    dataset = ShardDataset(pack_large(tmp_path / "a", format))
    records = PartialRecords(dataset.store, "array")
    other, record = records.find(dataset.view.rows(np.array([0, 1])))
    spans = BoxBytes(5 * checksums.CHUNK_BYTES, [3 * checksums.CHUNK_BYTES], [1])
    records.verify(records.part(0, 0, other, spans))

    first = records.part(0, 1, record, spans)
    records.verify(first)
    again = records.part(0, 1, record, spans)
    beside = records.part(0, 1, record, BoxBytes(7 * checksums.CHUNK_BYTES, [70_000], [1]))

    start = int(first.chunks[0]) - 5  # of the shard's chunks
    assert (first.chunks - start).tolist() == [5, 6, 7]
    assert again.chunks.tolist() == []
    assert (beside.chunks - start).tolist() == [8, 9]


def bytes_read() -> int:
    """Return what this process had its disks read, ahead or not."""
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])


@pytest.mark.parametrize("check", ["first", "never"])
def test_a_cold_volume_is_not_read_for_a_crop(tmp_path: Path, check: Any) -> None:
    """Of 32 MiB on the disk, a crop of 16 slices reads one or two chunks of each of them."""
    fields: dict[str, Field] = {"array": Array(dtype="uint8", dims=(128, 512, 512), spatial=3)}
    value = np.random.default_rng(0).integers(0, 256, (128, 512, 512), np.uint8)
    folder = pack(tmp_path / "a", fields, [{"array": value}])
    with open(folder / read_manifest(folder).shards[0].file, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = bytes_read()
    dataset = ShardDataset(folder, augment=[CenterCrop(1)], check=check)
    assert dataset[0].array.item() == value[64, 256, 256]  # opens the file, which reads some of it
    opened = bytes_read()
    if opened == before:
        pytest.skip("this file system keeps files in memory")

    crop = dataset.replace(augment=[Corner(88, 100, 50)])[0].array

    assert np.array_equal(crop, value[88:104, 100:116, 50:66])
    assert bytes_read() - opened <= 16 * 3 * checksums.CHUNK_BYTES


class Corner:
    """Crop 16 x 16 x 16 at a place: an op of a user's own."""

    num_draws = 0

    def __init__(self, *corner: int) -> None:
        self.corner = np.array(corner)

    def move(self, window: Any, draws: Any) -> None:
        window.crop(self.corner, np.array([16, 16, 16]))

    def resized(self, size: Any) -> Any:
        return None


# -- from end to end ------------------------------------------------------------------------------


def pack_spheres(folder: Path, num: int) -> Path:
    """Noisy balls of any place and size, as int16, with their masks."""
    rng = np.random.default_rng(0)
    grid = np.indices((24, 24, 24))
    rows = []
    for _ in range(num):
        centre, radius = rng.integers(8, 16, 3), rng.integers(4, 8)
        ball = ((grid - centre[:, None, None, None]) ** 2).sum(axis=0) < radius**2
        rows.append(
            {
                "array": (ball * 400.0 + rng.normal(0, 200, ball.shape))[None].astype(np.int16),
                "mask": ball.astype(np.uint8),
            }
        )
    fields: dict[str, Field] = {
        "array": Array(dtype="int16", dims=(1, 24, 24, 24), spatial=3),
        "mask": Array(dtype="uint8", dims=(24, 24, 24), spatial=3),
    }
    return pack(folder, fields, rows, per_shard=8)


@pytest.mark.slow
def test_a_segmentation_model_learns_from_crops(tmp_path: Path) -> None:
    """Balls in noise: twice as much noise in a voxel as would tell it alone."""
    ops = [RandomCrop(16), RandomFlip()]
    dataset = ShardDataset(pack_spheres(tmp_path / "a", 16), augment=ops)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, seed=0)
    torch.manual_seed(0)
    normalize = Normalize(mean=[0.0], std=[300.0])
    model = torch.nn.Sequential(
        torch.nn.Conv3d(1, 4, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv3d(4, 1, 5, padding=2)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)

    losses = []
    for _ in range(15):
        for volumes, masks in loader:
            logits = model(normalize(volumes)).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, masks.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    whole = dataset.replace(augment=[])
    volumes, masks = next(iter(DataLoader(whole, batch_size=16)))
    with torch.no_grad():
        found = model(normalize(volumes)).squeeze(1) > 0
    overlap = 2 * (found & masks.bool()).sum() / (found.sum() + masks.sum())
    assert sum(losses[-4:]) / 4 < 0.4 * losses[0]
    assert overlap > 0.8


def test_a_damaged_record_is_an_error_with_its_place(tmp_path: Path) -> None:
    """One whose size does not fit its shape, where nothing is verified."""
    fields: dict[str, Field] = {"array": Array(dtype="int16", dims=(None, 4, None), spatial=3)}
    records = [np.array([3, 4], "<u4").tobytes() + bytes(96), bytes(7)]
    folder = pack(tmp_path / "a", fields, [{"array": record} for record in records])

    dataset = ShardDataset(folder, augment=[CenterCrop(2)], check="never")

    assert dataset[0].array.shape == (2, 2, 2)
    with pytest.raises(LoadersError, check=At("a/shard-00000.lmdb", row=1, index=1)):
        dataset[1]
