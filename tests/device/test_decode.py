"""The device half: the codecs' own images, by the batch; on a GPU within one step of them."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.device import decode
from loaders.device.decode import Coefficients, DctFinish, Yuv420Finish, _in_two
from loaders.errors import BatchError
from loaders.schema import Image
from tests.codecs import reference

CPU = torch.device("cpu")
SIZES = [(32, 48), (17, 9), (1, 3)]


def pictures(num: int, size: tuple[int, int], channels: int = 3) -> list[npt.NDArray[np.uint8]]:
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (num, *size, channels), np.uint8)
    return [cv2.GaussianBlur(image, (0, 0), 1).reshape(image.shape) for image in noise]


def host_half(codec: DctCodec, records: list[bytes], side: int) -> Coefficients:
    rows = np.empty((len(records), codec.row_nbytes(side)), np.uint8)
    escapes = codec.fill([np.frombuffer(r, np.uint8) for r in records], rows)
    return Coefficients(*(torch.from_numpy(part) for part in (rows, *escapes)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("channels", "subsampling"), [(3, "420"), (3, "444"), (1, "420")])
def test_dct_images_are_those_of_the_codec(
    size: tuple[int, int], channels: int, subsampling: str
) -> None:
    """To the bit, in a batch of any length, and with values beyond int8 in some images only."""
    field = Image(size=size, codec="dct", channels=channels, subsampling=subsampling, quality=98)
    codec = DctCodec(field)
    images = pictures(7, size, channels)
    images[3] = np.full((*size, channels), 120, np.uint8)
    records = [codec.encode(image) for image in images]

    for side in (8, 4, 2, 1):
        host = DctCodec(field, side)
        wanted = np.stack([host.decode(np.frombuffer(r, np.uint8)) for r in records])
        finish = DctFinish.of(field, side / 8)
        for num in (7, 1):
            served = finish(host_half(codec, records[:num], side))
            assert served.shape == (num, channels, *finish.size)
            assert np.array_equal(served.permute(0, 2, 3, 1), wanted[:num])
        assert finish(host_half(codec, [], side)).shape == (0, channels, *finish.size)


@pytest.mark.parametrize("size", SIZES)
def test_yuv_images_are_those_of_the_codec(size: tuple[int, int]) -> None:
    codec: Any = codec_for(Image(size=size, codec="yuv420"))
    planes = np.stack([np.frombuffer(codec.encode(i), np.uint8) for i in pictures(6, size)])
    wanted = np.stack([codec.decode(row) for row in planes])

    served = Yuv420Finish(size)(torch.from_numpy(planes))

    assert np.array_equal(served.permute(0, 2, 3, 1), wanted)


@pytest.mark.parametrize(("channels", "subsampling"), [(3, "420"), (3, "444"), (1, "420")])
@pytest.mark.parametrize("scale", [1, 1 / 2, 1 / 8])
def test_dct_images_are_those_of_the_reference(
    channels: int, subsampling: str, scale: float
) -> None:
    """Which is float64, reads the records itself and shares no code: rounded to the nearest."""
    size = (17, 30)
    field = Image(size=size, codec="dct", channels=channels, subsampling=subsampling, quality=97)
    records = [DctCodec(field).encode(image) for image in pictures(1, size, channels)]
    side, halved = round(8 * scale), channels == 3 and subsampling == "420"
    wanted = [reference.decode(r, size, channels, halved=halved, side=side) for r in records]

    served = DctFinish.of(field, scale)(host_half(DctCodec(field), records, side))

    assert np.abs(served.permute(0, 2, 3, 1).numpy() - np.stack(wanted)).max() <= 0.501


def test_yuv_images_are_those_of_the_reference() -> None:
    size = (7, 10)
    rows = np.random.default_rng(0).integers(0, 256, (3, 70 + 2 * 20), np.uint8)
    small = (4, 5)
    planes = [
        [row[:70].reshape(size), row[70:90].reshape(small), row[90:].reshape(small)]
        for row in rows
    ]
    around_0 = [[plane - 128.0 for plane in each] for each in planes]
    wanted = np.stack([reference.images_of(each, halved=True) for each in around_0])

    served = Yuv420Finish(size)(torch.from_numpy(rows))

    assert np.abs(served.permute(0, 2, 3, 1).numpy() - wanted).max() <= 0.501


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_images_do_not_depend_on_the_threads(num_threads: int) -> None:
    field = Image(size=(200, 264), codec="dct")
    codec = DctCodec(field)
    records = [codec.encode(image) for image in pictures(2, (200, 264))]
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)

    served = DctFinish.of(field)(host_half(codec, records, 8))

    torch.set_num_threads(before)
    wanted = np.stack([codec.decode(np.frombuffer(r, np.uint8)) for r in records])
    assert np.array_equal(served.permute(0, 2, 3, 1), wanted)


def test_float32_is_within_one_step_of_the_reference() -> None:
    """What runs on a GPU, run here: the same operations in the precision that it has there."""
    size = (24, 40)
    field = Image(size=size, codec="dct", quality=95)
    codec = DctCodec(field)
    records = [codec.encode(image) for image in pictures(4, size)]
    finish = DctFinish.of(field)
    there = finish._weights_on(torch.device("meta"))
    exact = finish._weights_on(CPU)
    parts = [_in_two(matrix / 2**24, CPU) for (matrix,) in exact]

    finish._weights[CPU] = parts
    served = finish(host_half(codec, records, 8)).permute(0, 2, 3, 1)

    wanted = [reference.decode(record, size, 3, halved=True) for record in records]
    assert np.abs(served.numpy() - np.stack(wanted)).max() <= 1
    assert [len(matrix) for matrix in there] == [2, 2]
    for (matrix,), (coarse, fine) in zip(exact, parts, strict=True):
        assert ((coarse.double() + fine.double()) * 2**24 - matrix).abs().max() < 1
        assert (coarse.view(torch.int32) & 0x1FFF == 0).all()  # as TF32 would round it


def with_escapes(field: Image, num: int) -> Coefficients:
    """Return images of black and white alone, each with values beyond int8."""
    codec, size = DctCodec(field), field.size
    assert size is not None
    black_and_white = [np.where(image < 128, 0, 255) for image in pictures(num, size)]
    half = host_half(codec, [codec.encode(i.astype(np.uint8)) for i in black_and_white], 8)
    rows = half.positions // half.planes.shape[1]
    assert rows.unique().tolist() == list(range(num))
    return half


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 7])
def test_images_do_not_depend_on_how_many_are_taken_at_a_time(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whatever is made meanwhile is made where the batch is, not on the default device."""
    field = Image(size=(16, 24), codec="dct", quality=98)
    half = with_escapes(field, 7)
    finish = DctFinish.of(field)
    wanted = finish(half)
    monkeypatch.setattr(decode, "_HOST_IMAGES", at_a_time)

    with torch.device("meta"):
        served = finish(half)

    assert torch.equal(served, wanted)


def test_a_device_takes_as_many_images_at_a_time_as_their_values_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planes = torch.empty((5, 10), dtype=torch.uint8, device="meta")

    for limit, step in ((1, 1), (29, 2), (1 << 26, 5)):
        monkeypatch.setattr(decode, "_DEVICE_VALUES", limit)
        parts = decode._parts(planes)
        assert parts == [slice(i, min(i + step, 5)) for i in range(0, 5, step)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("at_a_time", [1, 3])
def test_cuda_takes_large_batches_in_parts(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = Image(size=(32, 48), codec="dct", quality=98)
    half = with_escapes(field, 8)
    finish = DctFinish.of(field).to("cuda")
    monkeypatch.setattr(decode, "_DEVICE_VALUES", at_a_time * half.planes.shape[1])

    there = finish(Coefficients(*(part.cuda() for part in half))).cpu()

    assert (there.int() - DctFinish.of(field)(half).int()).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scale", [1, 1 / 2, 1 / 8])
def test_cuda_is_within_one_step_of_the_cpu(scale: float) -> None:
    size = (224, 224)
    field = Image(size=size, codec="dct", quality=95)
    codec = DctCodec(field)
    records = [codec.encode(image) for image in pictures(8, size)]
    half = host_half(codec, records, round(8 * scale))
    finish = DctFinish.of(field, scale)

    there = finish.to("cuda")(Coefficients(*(part.cuda() for part in half))).cpu()

    assert (there.int() - finish(half).int()).abs().max() <= 1


def test_autocast_does_not_reach_the_transform() -> None:
    field = Image(size=(16, 16), codec="dct")
    codec = DctCodec(field)
    half = host_half(codec, [codec.encode(image) for image in pictures(2, (16, 16))], 8)
    finish = DctFinish.of(field)
    cpu = finish._weights_on(CPU)
    finish._weights[CPU] = [_in_two(matrix / 2**24, CPU) for (matrix,) in cpu]
    wanted = finish(half)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        served = finish(half)

    assert torch.equal(served, wanted)


class Cumsums(TorchDispatchMode):
    """Notes of what cumulative sums are made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes = set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.cumsum:
            self.dtypes.add(args[0].dtype)
        return func(*args, **kwargs or {})


def test_no_operation_is_one_that_deterministic_algorithms_refuse_on_cuda() -> None:
    """Cumulative sums of floats are."""
    field = Image(size=(64, 64), codec="dct", quality=90)
    codec, finish = DctCodec(field), DctFinish.of(field)
    half = host_half(codec, [codec.encode(image) for image in pictures(2, (64, 64))], 8)

    with Cumsums() as sums:
        finish(half)

    assert sums.dtypes == {torch.int64}


def test_other_batches_are_refused() -> None:
    finish = Yuv420Finish((8, 8))

    for planes in (torch.zeros(2, 95, dtype=torch.uint8), torch.zeros(2, 96)):
        with pytest.raises(BatchError):
            finish(planes)


def test_other_scales_are_refused() -> None:
    DctFinish.of(Image(size=(8, 8), codec="dct"), 0.5)
    with pytest.raises(ValueError):
        DctFinish.of(Image(size=(8, 8), codec="dct"), 0.3)
