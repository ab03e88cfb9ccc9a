"""JPEG files decoded by a device's decoder, and by the CPU where that one refuses: real files of every kind."""

import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import simplejpeg
import torch

from loaders import (
    Balanced,
    DataLoader,
    JpegFinish,
    JpegOnDevice,
    RAMDataset,
    ShardDataset,
    augment,
)
from loaders.codecs.picture import PictureCodec
from loaders.device.jpeg import decoder_for, torchvision_decoder
from loaders.errors import CodecError, LoadersError, SampleError, SchemaError
from loaders.schema import Boxes, Field, Image, Label, Mask, Text
from tests.device.test_decode import pictures
from tests.packdata.packing import pack
from tests.refusals import At
from tests.torchvision_v2 import torchvision_v2

CPU = torch.device("cpu")
JPEG = Image(codec="jpeg")


def encode(pixels: Any, format: str = "JPEG", mode: str = "", **options: Any) -> bytes:
    file, image = io.BytesIO(), PIL.Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, format, **options)
    return file.getvalue()


def of_many_kinds() -> list[bytes]:
    """Return files that decoders differ about: subsamplings, progressive, gray, PNG, WebP, odd sizes."""
    photo = pictures(1, (37, 50))[0]
    return [
        encode(photo, quality=90),
        encode(photo, quality=90, subsampling="4:4:4"),
        encode(photo, quality=90, subsampling="4:2:2"),
        encode(photo, quality=90, progressive=True),
        encode(photo[:, :, 0], quality=90),
        encode(photo, "PNG"),
        encode(photo, "WEBP", lossless=True),
        encode(photo[:1, :1], quality=90),
    ]


def by_codec(records: list[bytes], field: Image = JPEG) -> list[torch.Tensor]:
    codec = PictureCodec(field)
    arrays = [codec.decode(np.frombuffer(record, np.uint8)) for record in records]
    return [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]


class Decoder:
    """Decodes like a device's decoder: a batch or nothing, only baseline JPEG of three components.

    What it decodes is marked: one step brighter than the CPU's.
    """

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        self.calls.append(len(files))
        records = [bytes(file.numpy()) for file in files]
        for record in records:
            if b"\xff\xc2" in record or simplejpeg.decode_jpeg_header(record)[2] == "Gray":
                raise RuntimeError("Error while decoding JPEG images: not supported")
        return [(image.int() + 1).clamp(max=255).byte() for image in by_codec(records)]


def test_without_a_decoder_the_cpu_decodes() -> None:
    records = of_many_kinds()

    images = JpegFinish(JPEG, "cpu")(records)

    assert all(torch.equal(a, b) for a, b in zip(images, by_codec(records), strict=True))
    assert JpegFinish(JPEG, "cpu")([]) == []


def test_what_the_decoder_refuses_the_cpu_decodes() -> None:
    """File by file: the others come from the decoder, each in its place."""
    records, decoder = of_many_kinds(), Decoder()
    finish = JpegFinish(JPEG, "cpu", decoder)

    images = finish(records)

    wanted = by_codec(records)
    refused = {3, 4, 5, 6}  # progressive, gray, and those that are no JPEG
    for i, (image, want) in enumerate(zip(images, wanted, strict=True)):
        assert torch.equal(image, want if i in refused else (want.int() + 1).clamp(max=255).byte())
    assert finish.num_refused == len(refused)
    assert max(decoder.calls) == 6  # files that are no JPEG were not asked for


def test_a_batch_that_is_accepted_is_one_call() -> None:
    decoder = Decoder()
    finish = JpegFinish(JPEG, "cpu", decoder)

    finish([encode(photo) for photo in pictures(16, (16, 24))])

    assert decoder.calls == [16]
    assert finish.num_refused == 0


def test_images_of_another_shape_than_the_header_says_are_not_taken() -> None:
    records = [encode(photo) for photo in pictures(2, (16, 24))]
    finish = JpegFinish(JPEG, "cpu", lambda files, device: [torch.zeros(3, 24, 16).byte()] * 2)

    images = finish(records)

    assert all(torch.equal(a, b) for a, b in zip(images, by_codec(records), strict=True))
    assert finish.num_refused == 2


def test_running_out_of_memory_is_not_a_refusal() -> None:
    def full(files: Any, device: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        JpegFinish(JPEG, "cpu", full)([encode(pictures(1, (8, 8))[0])])


def test_damage_is_an_error_whoever_decodes() -> None:
    """Also of a decoder that fills what is missing."""
    whole = encode(pictures(1, (40, 40))[0])

    for decoder in (
        None,
        Decoder(),
        lambda files, device: [torch.zeros(3, 40, 40).byte()] * len(files),
    ):
        with pytest.raises(CodecError):
            JpegFinish(JPEG, "cpu", decoder)([whole, whole[: len(whole) // 2]])


def test_gray_fields_are_gray() -> None:
    field = Image(codec="jpeg", channels=1)
    records = [encode(pictures(1, (16, 16))[0])]

    assert torch.equal(JpegFinish(field, "cpu")(records)[0], by_codec(records, field)[0])


def test_a_device_without_a_decoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadersError):
        JpegFinish(JPEG, "meta")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadersError, match="pip install 'nvidia-nvimgcodec"):
        decoder_for(3, torch.device("cuda:0"))


# -- in a loader -----------------------------------------------------------------------------------


def packed(folder: Path, *, sizes: list[tuple[int, int]], field: Image = JPEG) -> Path:
    fields: dict[str, Field] = {"image": field, "label": Label(), "key": Text()}
    samples = []
    for i, size in enumerate(sizes):
        photo = pictures(i + 1, size)[i]
        record = encode(photo, quality=90, progressive=i % 3 == 1)
        samples.append({"image": record, "label": i, "key": f"k{i}"})
    return pack(folder, fields, samples, defaults=["image", "label"])


CROP: list[Any] = [augment.RandomCrop(16), augment.RandomHorizontalFlip()]
RESIZE: list[Any] = [augment.RandomResizedCrop(20), augment.RandomVerticalFlip()]
SEVERAL = [(30, 40), (32, 32), (30, 40), (50, 33), (30, 40), (32, 32), (41, 47)]


@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("ops", "step"), [(CROP, 1), (RESIZE, 3)])
@pytest.mark.parametrize("sizes", [SEVERAL, [(40, 48)] * 7], ids=["several", "one"])
def test_crops_are_those_that_the_host_draws(
    tmp_path: Path, backend: Any, ops: list[Any], step: int, sizes: list[tuple[int, int]]
) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", sizes=sizes), augment=ops)
    make: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 3, "pad": False}
    make |= {"num_workers": 1, "backend": backend}

    host = DataLoader(dataset, **make)
    there = DataLoader(JpegOnDevice(dataset, decode=Decoder()), **make)

    for _ in range(2):  # each epoch has its own crops
        for want, got in zip(host, there, strict=True):
            assert got.label.tolist() == want.label.tolist()
            assert got.image.shape == want.image.shape
            assert (got.image.int() - want.image.int()).abs().max() <= step


def test_a_sample_that_comes_again_has_another_crop(tmp_path: Path) -> None:
    """The one that the host draws for its second time in the epoch."""
    dataset = ShardDataset(packed(tmp_path / "a", sizes=SEVERAL), augment=CROP)
    labels = dataset.column("label") % 2
    make: dict[str, Any] = {"batch_size": 4, "sampler": Balanced(labels, num_samples=20, seed=0)}

    host = list(DataLoader(dataset, **make))
    there = list(DataLoader(JpegOnDevice(dataset, decode=Decoder()), **make))

    assert len({label for batch in host for label in batch.label.tolist()}) == len(SEVERAL)
    for want, got in zip(host, there, strict=True):
        assert got.label.tolist() == want.label.tolist()
        assert (got.image.int() - want.image.int()).abs().max() <= 1


@pytest.mark.parametrize("sizes", [SEVERAL, [(40, 48)] * 7], ids=["several", "one"])
def test_images_without_augmentation_come_as_from_the_host(
    tmp_path: Path, sizes: list[tuple[int, int]]
) -> None:
    """A list where sizes differ, one tensor where the field has one size."""
    one = len(set(sizes)) == 1
    field = Image(codec="jpeg", size=sizes[0] if one else None)
    dataset = ShardDataset(packed(tmp_path / "a", sizes=sizes, field=field))
    there = JpegOnDevice(
        dataset, decode=lambda files, device: by_codec([bytes(f.numpy()) for f in files])
    )

    for want, got in zip(DataLoader(dataset, 4), DataLoader(there, 4), strict=True):
        assert isinstance(got.image, torch.Tensor) == one
        for a, b in zip(got.image, want.image, strict=True):
            assert torch.equal(a, b)


def test_without_a_device_it_is_the_dataset(tmp_path: Path) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", sizes=SEVERAL), augment=CROP)
    there = JpegOnDevice(dataset)

    for want, got in zip(DataLoader(dataset, 4), DataLoader(there, 4), strict=True):
        assert torch.equal(got.image, want.image)
    assert torch.equal(there[3].image, dataset[3].image)
    assert (len(there), there.fingerprint) == (len(dataset), dataset.fingerprint)


def test_a_resumed_run_draws_the_same(tmp_path: Path) -> None:
    dataset = ShardDataset(packed(tmp_path / "a", sizes=SEVERAL), augment=CROP)
    make: dict[str, Any] = {"batch_size": 2, "shuffle": True, "pad": False}
    loader = DataLoader(JpegOnDevice(dataset, decode=Decoder()), **make)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    want = next(batches)

    again = DataLoader(JpegOnDevice(dataset, decode=Decoder()), **make)
    again.load_state_dict(state)

    assert torch.equal(next(iter(again)).image, want.image)


@pytest.mark.parametrize("ops", [[], CROP])
def test_a_damaged_file_is_named(tmp_path: Path, ops: list[Any]) -> None:
    """One that was packed so: its checksum is right."""
    good = encode(pictures(1, (32, 40))[0])
    fields: dict[str, Field] = {"image": JPEG, "key": Text()}
    samples = [{"image": good, "key": "a"}, {"image": good[:200], "key": "b"}]
    dataset = ShardDataset(pack(tmp_path / "a", fields, samples), augment=ops)

    with pytest.raises(SampleError, check=At(index=1, key="b")):
        list(DataLoader(JpegOnDevice(dataset, decode=Decoder()), 2))


@pytest.mark.parametrize("ops", [[], CROP])
def test_a_picture_above_the_limit_is_an_error_before_it_is_decoded(
    tmp_path: Path, ops: list[Any]
) -> None:
    folder = packed(tmp_path / "a", sizes=[(640, 640), (16, 16)])
    dataset, decoder = ShardDataset(folder, augment=ops, max_picture_mb=1), Decoder()

    with pytest.raises(SampleError) as caught:
        list(DataLoader(JpegOnDevice(dataset, decode=decoder), 2))

    assert caught.value.index == 0
    assert sum(decoder.calls) == (0 if ops else 1)


def test_warnings_of_others_are_told_once_as_before() -> None:
    finish, record = JpegFinish(JPEG, "cpu", Decoder()), encode(pictures(1, (8, 8))[0])

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            finish([record])
            warnings.warn("of another part of the program", stacklevel=1)

    assert len(told) == 1


def test_what_only_the_host_can_do_is_refused(tmp_path: Path) -> None:
    photo = pictures(1, (16, 16))[0]
    fields: dict[str, Field] = {"image": JPEG, "mask": Mask(), "boxes": Boxes(), "label": Label()}
    sample = {"image": photo, "mask": photo[:, :, 0], "boxes": np.zeros((0, 4)), "label": 0}
    dataset = ShardDataset(pack(tmp_path / "a", fields, [sample]))
    for other in (
        dataset.replace(fields=["label"]),
        dataset.replace(augment=CROP),
        dataset.replace(transform=lambda sample: sample),
        dataset.replace(on_error="replace"),
        RAMDataset.from_arrays(image=np.zeros((2, 8, 8, 3), np.uint8)),
    ):
        with pytest.raises(SchemaError):
            JpegOnDevice(other)
    not_packed: Any = [1, 2]
    with pytest.raises(TypeError):
        JpegOnDevice(not_packed)
    assert len(JpegOnDevice(dataset)) == 1


def of_other_colours() -> list[bytes]:
    """Return files of four channels, of colours that are not changed, and of a marker that turns them."""
    photo = pictures(1, (37, 50))[0]
    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    return [
        encode(photo, mode="CMYK", quality=90),
        encode(photo, quality=90, keep_rgb=True),
        encode(photo, quality=90, exif=turned),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("channels", [3, 1])
def test_nvimgcodec_decodes_what_the_cpu_decodes(channels: int) -> None:
    pytest.importorskip("nvidia.nvimgcodec")
    records, field = of_many_kinds() + of_other_colours(), Image(codec="jpeg", channels=channels)
    finish = JpegFinish(field, "cuda")

    images = finish(records)

    apart = [
        (image.cpu().int() - want.int()).abs().max().item()
        for image, want in zip(images, by_codec(records, field), strict=True)
    ]
    assert all(image.is_cuda for image in images)
    assert max(apart) <= 2, apart
    assert finish.num_refused <= 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_torchvision_decodes_on_cuda_what_the_cpu_decodes() -> None:
    """Chroma of half size is repeated there: the same where it is whole, or the same for all pixels."""
    torchvision_v2()
    photo, flat = pictures(1, (64, 80))[0], np.full((64, 80, 3), (200, 40, 90), np.uint8)
    records = [encode(photo, quality=90, subsampling="4:4:4"), encode(flat, quality=90)]
    finish = JpegFinish(JPEG, "cuda", torchvision_decoder(3))

    images = finish(records)

    assert finish.num_refused == 0
    for image, want in zip(images, by_codec(records), strict=True):
        assert image.is_cuda
        assert (image.cpu().int() - want.int()).abs().max() <= 2
