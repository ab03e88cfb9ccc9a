"""Any number of pictures a sample: as lists, flat, stacked where all have one size; each as a single one is served."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders import DataLoader, JpegOnDevice, Mixture, RAMDataset, ShardDataset, augment, concat
from loaders.codecs.picture import PictureCodec, join_files, split_files
from loaders.errors import BatchError, CodecError, SampleError, SchemaError
from loaders.schema import Image, Images, Label, Mask
from tests.packdata.packing import pack

COUNTS = [2, 0, 1, 3, 2, 5]
FIELDS: dict[str, Any] = {"images": Images(), "label": Label()}
RNG = np.random.default_rng(0)


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    small = RNG.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return small.repeat(8, 0).repeat(8, 1)[:height, :width]


PICTURES = [
    [picture(40 + 8 * i + 3 * k, 64 - 5 * k) for k in range(n)] for i, n in enumerate(COUNTS)
]
ROWS = [{"images": pictures, "label": i} for i, pictures in enumerate(PICTURES)]
CROPS = [augment.RandomResizedCrop(24), augment.RandomHorizontalFlip()]


@pytest.fixture(scope="module", params=["lmdb", "parquet"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("images") / "packed"
    return pack(folder, FIELDS, ROWS, format=request.param)


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> ShardDataset:
    """The same pictures, one a sample."""
    rows = [{"image": each} for pictures in PICTURES for each in pictures]
    return ShardDataset(pack(tmp_path_factory.mktemp("images") / "one", {"image": Image()}, rows))


def assert_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_sample_has_a_list_of_pictures_as_single_ones_are_served(
    folder: Path, singles: ShardDataset
) -> None:
    dataset, each = ShardDataset(folder), iter(singles)

    for i, n in enumerate(COUNTS):
        assert_equal(dataset[i].images, [next(each).image for _ in range(n)])


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("kind", [ShardDataset, RAMDataset])
def test_batches_have_lists_or_all_pictures_with_offsets(
    folder: Path, kind: Any, num_workers: int
) -> None:
    dataset = kind(folder)
    expected = [sample.images for sample in dataset]
    flat = dataset.replace(batching={"images": "offsets"})

    (lists,) = DataLoader(dataset, batch_size=6, num_workers=num_workers)
    (joined,) = DataLoader(flat, batch_size=6, num_workers=num_workers)

    for found, pictures in zip(lists.images, expected, strict=True):
        assert_equal(found, pictures)
    assert joined.images.offsets.tolist() == [0, *np.cumsum(COUNTS)]
    assert joined.images.offsets.dtype == torch.int64
    assert_equal(joined.images.values, [each for pictures in expected for each in pictures])


@pytest.mark.parametrize("num_workers", [0, 3])
def test_pictures_of_one_size_are_a_tensor_of_each_sample_or_of_all(
    folder: Path, num_workers: int
) -> None:
    dataset = ShardDataset(folder, augment=[augment.Resize((20, 28))])
    expected = [sample.images for sample in dataset]

    def batch(form: str) -> Any:
        changed = dataset.replace(batching={"images": form})
        return next(iter(DataLoader(changed, batch_size=6, num_workers=num_workers))).images

    assert [tuple(each.shape) for each in expected] == [(n, 3, 20, 28) for n in COUNTS]
    assert_equal(batch("list"), expected)
    assert torch.equal(batch("offsets").values, torch.cat(expected))
    assert batch("offsets").offsets.tolist() == [0, *np.cumsum(COUNTS)]
    padded = batch("pad")
    assert padded.lengths.tolist() == COUNTS
    assert padded.values.shape == (6, 5, 3, 20, 28)
    for values, n, pictures in zip(padded.values, COUNTS, expected, strict=True):
        assert torch.equal(values[:n], pictures)
        assert not values[n:].any()


def test_the_size_of_the_schema_makes_tensors_too(tmp_path: Path) -> None:
    rows = [{"images": [picture(16, 24)] * n} for n in (0, 2, 1)]
    fields = {"images": Images(size=(16, 24), codec="png")}
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows))

    assert [tuple(sample.images.shape) for sample in dataset] == [
        (n, 3, 16, 24) for n in (0, 2, 1)
    ]
    expected = torch.from_numpy(rows[2]["images"][0]).permute(2, 0, 1)
    assert torch.equal(
        dataset[1].images[1], torch.from_numpy(rows[1]["images"][1]).permute(2, 0, 1)
    )
    assert torch.equal(dataset[2].images[0], expected)


def test_a_sample_is_drawn_for_once_and_as_its_other_pictures_are(tmp_path: Path) -> None:
    """Pictures of one size are cropped and flipped alike, and as the image and mask beside them."""
    one = [picture(48, 64) for _ in range(8)]
    fields = {"image": Image(codec="png"), "images": Images(codec="png"), "mask": Mask()}
    rows = [{"image": p, "images": [p, p, p], "mask": p[..., 0]} for p in one]
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows), augment=CROPS)
    flips = set()

    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        for sample in dataset:
            assert_equal(sample.images, [sample.image] * 3)
            flips.add(tuple(sample.image[0, 0].tolist()))
    assert len(flips) > 8


def test_crops_do_not_depend_on_who_reads(folder: Path) -> None:
    dataset = ShardDataset(folder, augment=CROPS)
    expected = [sample.images for sample in dataset]

    for num_workers in (0, 1, 3):
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, backend="thread")
        assert_equal([each for batch in loader for each in batch.images], expected)


def test_views_have_all_pictures_each(folder: Path) -> None:
    views = augment.Views(a=[augment.CenterCrop(16)], b=[augment.Resize((8, 12))])
    dataset = ShardDataset(folder, augment=[views], fields=["images"])

    assert dataset[3].images_a.shape == (3, 3, 16, 16)
    assert dataset[3].images_b.shape == (3, 3, 8, 12)


def test_transforms_see_the_list_and_what_they_make_is_joined(folder: Path) -> None:
    dataset = ShardDataset(folder, transform={"images": lambda images: images[:1]})
    expected = [sample.images for sample in dataset]
    flat = dataset.replace(batching={"images": "offsets"})
    stacked = ShardDataset(
        folder, fields=["images"], transform=lambda s: s._replace(images=torch.zeros(2, 3, 4, 4))
    )

    lists = next(iter(DataLoader(dataset, batch_size=6))).images
    joined: Any = next(iter(DataLoader(flat, batch_size=6))).images

    assert [len(each) for each in lists] == [min(n, 1) for n in COUNTS]
    assert_equal(joined.values, [each for pictures in expected for each in pictures])
    assert joined.offsets.tolist() == [0, 1, 1, 2, 3, 4, 5]
    assert_equal(
        next(iter(DataLoader(stacked, batch_size=2))).images, [torch.zeros(2, 3, 4, 4)] * 2
    )


def test_samples_share_no_storage(folder: Path) -> None:
    dataset = ShardDataset(folder, augment=[augment.Resize((20, 28))])

    batch = next(iter(DataLoader(dataset, batch_size=6, num_workers=2)))

    assert [each.untyped_storage().nbytes() for each in batch.images] == [
        n * 3 * 20 * 28 for n in COUNTS
    ]


@pytest.mark.parametrize(
    "backend", ["thread", "process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_batches_pickle_and_cross_processes(folder: Path, backend: Any) -> None:
    dataset = ShardDataset(folder, batching={"images": "offsets"})

    batch: Any = next(iter(DataLoader(dataset, batch_size=6, num_workers=1, backend=backend)))
    again = pickle.loads(pickle.dumps(batch))

    assert_equal(batch.images.values, [each for sample in dataset for each in sample.images])
    assert_equal(again.images.values, batch.images.values)
    assert torch.equal(again.images.offsets, batch.images.offsets)


def test_mixtures_and_concatenations_keep_the_form(folder: Path, tmp_path: Path) -> None:
    fields = {"images": Images(), "label": Label()}
    other = pack(tmp_path / "b", fields, [{"images": [picture(9, 9)], "label": 7}] * 6)
    one, two = (ShardDataset(f, batching={"images": "offsets"}) for f in (folder, other))

    mixed: Any = next(
        iter(DataLoader(Mixture([one, two], [0.5, 0.5]), batch_size=8, shuffle=True))
    )
    joined: Any = next(iter(DataLoader(concat([one, two]), batch_size=12)))

    assert joined.images.offsets.tolist() == [0, *np.cumsum(COUNTS + [1] * 6)]
    counts = [1 if label == 7 else COUNTS[label] for label in mixed.label.tolist()]
    assert mixed.images.offsets.tolist() == [0, *np.cumsum(counts)]
    assert len(mixed.images.values) == sum(counts)


def test_a_mixture_that_is_not_joined_draws_as_one_that_is(folder: Path) -> None:
    one = ShardDataset(folder, fields=["images"], augment=[augment.RandomResizedCrop(8)])
    ways = [Mixture([one, other], [1, 1]) for other in (one, one.replace(on_error="replace"))]

    first, second = (way.__getitems__(range(2 * len(one))).batch.images for way in ways)

    assert [way.joined is None for way in ways] == [False, True]
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_padding_needs_one_size(folder: Path) -> None:
    with pytest.raises(BatchError):
        next(iter(DataLoader(ShardDataset(folder, batching={"images": "pad"}))))
    with pytest.raises(SchemaError):
        ShardDataset(folder, batching={"images": ("offsets", 1)})


def test_a_damaged_picture_is_named_and_replaced(tmp_path: Path) -> None:
    good = PictureCodec(Image()).encode(picture(16, 16))
    records = [join_files([good, good[:-30] if i == 2 else good]) for i in range(4)]
    rows = [{"images": record} for record in records]
    dataset = ShardDataset(pack(tmp_path / "a", {"images": Images()}, rows))

    with pytest.raises(SampleError) as caught:
        dataset[2]

    assert caught.value.index == 2
    replacing = dataset.replace(on_error="replace")
    assert [len(sample.images) for sample in replacing] == [2] * 4
    assert replacing.num_replaced == 1


@pytest.mark.parametrize(
    "record", [b"", b"\1\0\0", b"\2\0\0\0\1\0\0\0", b"\0\0\0\0x", b"\xff" * 8]
)
def test_a_record_that_contradicts_itself_is_an_error(record: bytes) -> None:
    with pytest.raises(CodecError):
        split_files(np.frombuffer(record, np.uint8))


def test_pictures_beyond_the_limit_are_refused_when_served(folder: Path, tmp_path: Path) -> None:
    rows = [{"images": [np.zeros((700, 800, 3), np.uint8)]}]
    big = pack(tmp_path / "big", {"images": Images(codec="png")}, rows)

    assert len(ShardDataset(big, max_picture_mb=2)[0].images) == 1
    with pytest.raises(SampleError):
        ShardDataset(big, max_picture_mb=1)[0]
    assert len(ShardDataset(folder, max_picture_mb=1)[0].images) == 2


def test_a_device_that_would_leave_them_uncropped_refuses(tmp_path: Path) -> None:
    fields = {"image": Image(), "images": Images()}
    rows = [{"image": picture(16, 16), "images": [picture(16, 16)]}] * 2
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows))

    JpegOnDevice(dataset)
    with pytest.raises(SchemaError):
        JpegOnDevice(dataset.replace(augment=CROPS))


@pytest.mark.parametrize("options", [{"codec": "raw"}, {"codec": "dct"}, {"channels": 0}])
def test_the_schema_refuses_what_it_cannot_hold(options: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        Images(**options)


@pytest.mark.parametrize(
    "value", [[np.zeros((4, 4), np.float32)], [b"no picture"], 3, np.zeros((4, 4, 3), np.uint8)]
)
def test_the_writer_refuses_other_values(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CodecError):
        packdata.pack([{"images": value}], tmp_path / "a", {"images": Images()})
