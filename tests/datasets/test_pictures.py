"""Pictures that are ready to be decoded and carried out: the same as those that are looked at one by one."""

import gc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders import DataLoader, RAMDataset, ShardDataset, augment, codecs
from loaders.buffers import Memory
from loaders.codecs import heads
from loaders.codecs.heads import picture_head
from loaders.codecs.picture import encode_jpeg
from loaders.datasets.reading.pictures import PictureReader
from loaders.errors import SampleError
from loaders.schema import Boxes, Image, Mask
from tests.codecs.test_codecs import jpeg, photo, pil_file
from tests.packdata.packing import pack
from tests.refusals import At

CROP = [
    augment.RandomResizedCrop(24),
    augment.RandomHorizontalFlip(),
    augment.RandomVerticalFlip(),
]
RECIPES: dict[str, Any] = {
    "crop": CROP,
    "small crop": [augment.RandomResizedCrop(9, scale=(0.05, 1))],  # the decoder reduces
    "low crop": [augment.RandomCrop((20, 20))],
    "padded": [augment.RandomCrop(40, padding=60, pad_if_needed=True)],
    "views": [augment.Views(one=CROP, two=[augment.Resize((7, 8))])],
    "lists": [augment.Resize(30)],
    "views of all sizes": [augment.Views(one=CROP, two=[augment.Resize(30)])],
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ShardDataset:
    """Files of many encoders: with restart markers and without, progressive, without an end, gray, PNG."""
    samples = []
    for i in range(48):
        pixels = photo(80 + 7 * (i % 5), 90 + 11 * (i % 7), seed=i)
        if i % 8 == 2:  # large enough for parts of it
            pixels = photo(280 + i, 300 - i, seed=i)
        files = [
            jpeg(pixels, "420"),
            jpeg(pixels, "Gray"),
            encode_jpeg(pixels),
            pil_file(pixels, "JPEG", progressive=True),
            pil_file(pixels, "JPEG", comment=b"x" * i),
            pil_file(pixels, "PNG"),
            pil_file(pixels, "JPEG", restart_marker_blocks=3),
            jpeg(pixels, "444", 40),
        ]
        mask = (pixels[:, :, 0] // 16).astype(np.uint8)
        boxes = np.array([[1, 2, 30, 40], [5, 5, 60, 70]], np.float32)
        samples.append({"image": bytes(files[i % 8]), "mask": mask, "boxes": boxes})
    fields = {"image": Image(), "mask": Mask(), "boxes": Boxes()}
    return ShardDataset(pack(tmp_path_factory.mktemp("pictures") / "a", fields, samples))


def read(dataset: ShardDataset, batch_size: int, num_workers: int) -> list[Any]:
    loader = DataLoader(
        dataset, batch_size, shuffle=True, num_workers=num_workers, backend="thread"
    )
    return [batch._asdict() for batch in loader]


def none_is_ready(self: PictureReader, heads: Any, sizes: Any, plans: Any, factors: Any) -> Any:
    return np.zeros((len(heads), len(plans), 8), np.int64), np.zeros(len(heads), np.bool_)


@pytest.mark.parametrize("recipe", RECIPES)
def test_pictures_that_are_ready_equal_those_looked_at_one_by_one(
    dataset: ShardDataset, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    augmented = dataset.replace(augment=RECIPES[recipe])

    fast = [read(augmented, 48, num_workers) for num_workers in (0, 3)]
    monkeypatch.setattr(PictureReader, "_steps", none_is_ready)
    plain = read(augmented, 48, 0)

    for batches in fast:
        for found, wanted in zip(batches, plain, strict=True):
            assert found.keys() == wanted.keys()
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_what_is_wanted_of_many_pictures_is_no_more_garbage_than_of_few(
    dataset: ShardDataset,
) -> None:
    """Objects of each would outlive young collections, and bring full ones of a tenth of a second."""
    augmented = dataset.replace(augment=CROP, fields=["image"])
    (reader,) = augmented.plan.readers
    assert isinstance(reader, PictureReader)

    def num_objects(num_samples: int) -> int:
        request = augmented.request(list(range(num_samples)))
        gc.collect()
        before = len(gc.get_objects())
        wanted, _ = reader.wanted(request, 0, num_samples)
        assert wanted.are_ready.any()
        assert np.count_nonzero(wanted.parts[:, :2].any(axis=1)) > 1
        return len(gc.get_objects()) - before

    num_objects(48)  # layouts are kept
    gc.disable()
    try:
        more = num_objects(48) - num_objects(16)  # other threads make a few at any time
        assert more < 16
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("num_workers", "num_parts"), [(1, 1), (2, 4), (4, 8), (6, 12), (8, 8), (16, 12)]
)
def test_many_threads_get_one_part_of_a_batch_each_and_few_get_two(
    dataset: ShardDataset, num_workers: int, num_parts: int
) -> None:
    """But four pictures at least: to begin a part holds the lock."""
    job = dataset.replace(fields=["image"]).job(range(48), Memory(), num_workers)

    assert job.num_parts == num_parts


@pytest.mark.parametrize("batch_size", [1, 5, 48])
def test_a_picture_is_the_same_in_any_batch(dataset: ShardDataset, batch_size: int) -> None:
    augmented = dataset.replace(augment=CROP, fields=["image", "sample_id"])
    pixels = {
        int(i): image
        for batch in read(augmented, batch_size, 2)
        for i, image in zip(batch["sample_id"], batch["image"], strict=True)
    }
    (whole,) = read(augmented, 48, 2)

    assert len(pixels) == 48
    for i, image in zip(whole["sample_id"], whole["image"], strict=True):
        torch.testing.assert_close(pixels[int(i)], image, rtol=0, atol=0)


@pytest.mark.parametrize("recipe", ["crop", "padded"])
@pytest.mark.parametrize("end", [b"", b"\0\xd9", b"\xff\xd8"])
def test_a_file_without_its_end_is_an_error_wherever_the_crop_is(
    tmp_path: Path, recipe: str, end: bytes
) -> None:
    """A decoder that is told to end early would not notice."""
    good = jpeg(photo(90, 90)).tobytes()
    samples = [{"image": good if i != 11 else good[:-1500] + end} for i in range(16)]
    dataset = ShardDataset(pack(tmp_path / "a", {"image": Image()}, samples))

    with pytest.raises(SampleError, check=At("a/shard-00002.lmdb", row=3, index=11)):
        read(dataset.replace(augment=RECIPES[recipe]), 16, 2)


def test_most_pictures_of_a_batch_are_ready(
    dataset: ShardDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[int] = []
    read_any = PictureReader._read_any

    def counted(self: PictureReader, wanted: Any, i: int, *rest: Any) -> None:
        alone.append(i)
        read_any(self, wanted, i, *rest)

    monkeypatch.setattr(PictureReader, "_read_any", counted)
    read(dataset.replace(augment=CROP, fields=["image"]), 48, 0)

    assert len(alone) == 12  # progressive ones and PNG


@pytest.mark.parametrize("recipe", ["lists", "crop"])
def test_a_bad_picture_leaves_the_others_in_their_places(tmp_path: Path, recipe: str) -> None:
    """Then each part of a batch looks at its own pictures, from its own first row on."""
    samples = [{"image": encode_jpeg(photo(280 + i, 300, seed=i))} for i in range(24)]
    samples[11] = {"image": b"no picture"}
    dataset = ShardDataset(pack(tmp_path / "a", {"image": Image()}, samples))
    dataset = dataset.replace(augment=RECIPES[recipe], on_error="replace")
    alone = [dataset[i].image for i in range(24)]

    (batch,) = DataLoader(dataset, 24, num_workers=3, backend="thread")

    for i, image in enumerate(batch.image):
        if i != 11:
            torch.testing.assert_close(image, alone[i], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("size", "ops"),
    [
        ((70, 70), [augment.RandomHorizontalFlip(1.0)]),
        ((70, 70), [augment.RandomHorizontalFlip(0.0)]),
        ((64, 90), [augment.Resize(30)]),
        ((1, 64), [augment.RandomHorizontalFlip(0.0)]),
        ((1, 1), [augment.RandomVerticalFlip(0.0)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_picture_of_another_size_than_its_field_says_is_an_error(
    tmp_path: Path, size: tuple[int, int], ops: list[Any], num_workers: int
) -> None:
    """cv2 would write elsewhere, and numpy would repeat a row."""
    samples = [{"image": jpeg(photo(64, 64, seed=i)).tobytes()} for i in range(24)]
    samples[11] = {"image": jpeg(photo(*size)).tobytes()}
    dataset = ShardDataset(pack(tmp_path / "a", {"image": Image(size=(64, 64))}, samples))
    dataset = dataset.replace(augment=ops)

    with pytest.raises(SampleError, check=At("a/shard-00002.lmdb", row=3, index=11)):
        read(dataset, 24, num_workers)
    replaced = dataset.replace(on_error="replace")
    (batch,) = read(replaced, 24, num_workers)
    assert replaced.num_replaced == 1
    assert len(batch["image"]) == 24


def test_a_transform_sees_pictures_of_any_size_while_other_parts_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = ({"image": rng.integers(0, 256, (8 + i % 5, 9, 3), np.uint8)} for i in range(96))
    packdata.pack(samples, tmp_path / "a", {"image": Image(codec="png")})
    dataset = ShardDataset(tmp_path / "a").replace(
        transform=lambda sample: sample._replace(image=sample.image[:, :8])
    )

    batches = list(DataLoader(dataset, 32, num_workers=4, backend="thread"))

    assert [batch.image.shape for batch in batches] == [(32, 3, 8, 9)] * 3


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [None, (40, 56)])
def test_raw_pictures_are_those_of_a_lossless_codec(
    channels: int, size: tuple[int, int] | None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    sizes = [size or (30 + 7 * i, 61 - 5 * i) for i in range(9)]
    samples = [{"image": rng.integers(0, 256, (*hw, channels), dtype=np.uint8)} for hw in sizes]
    ops = [
        augment.RandomResizedCrop(24),
        augment.RandomHorizontalFlip(),
        augment.RandomVerticalFlip(),
        augment.RandomCrop(24, padding=4),
    ]

    served = []
    for codec in ("raw", "png"):
        field = Image(codec=codec, channels=channels, size=size)
        packdata.pack(samples, tmp_path / codec, {"image": field})
        dataset = ShardDataset(tmp_path / codec, augment=ops[:3] if size else ops)
        served.append(torch.cat([b.image for b in DataLoader(dataset, 5, shuffle=True)]))

    assert torch.equal(*served)


@pytest.mark.parametrize("size", [None, (40, 56)])
def test_pictures_of_a_registered_codec_are_cropped(
    size: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A codec has ``encode`` and ``decode``, and nothing else."""

    class Plain:
        def __init__(self, field: Image) -> None:
            self._codec = codecs.codec_for(Image(codec="raw", size=field.size))

        def encode(self, value: Any) -> bytes:
            return self._codec.encode(value)

        def decode(self, record: Any) -> Any:
            return self._codec.decode(record)

    monkeypatch.setattr(codecs, "_FACTORIES", dict(codecs._FACTORIES))
    codecs.register_codec("plain", Plain)
    sizes = [size or (30 + 7 * i, 61 - 5 * i) for i in range(6)]
    samples = [{"image": photo(*hw, seed=i)} for i, hw in enumerate(sizes)]

    served = []
    for codec in ("plain", "raw"):
        packdata.pack(samples, tmp_path / codec, {"image": Image(codec=codec, size=size)})
        for kind in (ShardDataset, partial(RAMDataset, decode=True, shared=False)):
            dataset = kind(tmp_path / codec, augment=CROP)
            served.append(torch.cat([batch.image for batch in DataLoader(dataset, 4)]))

    assert all(torch.equal(served[0], other) for other in served[1:])


@pytest.mark.parametrize("kind", ["lmdb", "parquet"])
@pytest.mark.parametrize("ops", [None, CROP], ids=["plain", "crop"])
def test_heads_that_shards_keep_are_not_read_in_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ops: Any
) -> None:
    """And make the batches of heads that are read, once each, where a reader looks at no checksums."""
    files = [
        jpeg(photo(60, 80, seed=i)) if i % 2 else encode_jpeg(photo(60, 80)) for i in range(20)
    ]
    samples = [{"image": bytes(file)} for file in files]
    folder = pack(tmp_path / "a", {"image": Image(size=(60, 80))}, samples, format=kind)
    read: list[Any] = []

    def counted(*args: Any) -> Any:
        read.append(args)
        return picture_head(*args)

    monkeypatch.setattr(heads, "picture_head", counted)

    def batches(**options: Any) -> list[torch.Tensor]:
        loader = DataLoader(ShardDataset(folder, augment=ops, **options), 8, shuffle=True, seed=1)
        return [batch.image for _ in range(2) for batch in loader]

    kept = batches()
    assert not read
    parsed = batches(check="never")

    assert len(read) == len(files)
    assert all(torch.equal(one, other) for one, other in zip(kept, parsed, strict=True))
