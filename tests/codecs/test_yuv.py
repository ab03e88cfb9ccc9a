"""``yuv420``: planes in, planes out, and the RGB of the reference."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg

from loaders.codecs import codec_for
from loaders.codecs.yuv import Yuv420Codec
from loaders.errors import CodecError
from loaders.schema import Image, Mask
from tests.codecs import reference

Pixels = npt.NDArray[np.uint8]


def yuv(size: tuple[int, int]) -> Yuv420Codec:
    codec = codec_for(Image(size=size, codec="yuv420"))
    assert isinstance(codec, Yuv420Codec)
    return codec


def picture(height: int, width: int) -> Pixels:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 1.5), np.uint8).reshape(noise.shape)


def record(data: bytes) -> Pixels:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 1), (2, 3), (31, 16)])
def test_pixels_are_those_of_the_reference(size: tuple[int, int]) -> None:
    """Rounded to the nearest, edges of any size."""
    codec = yuv(size)
    packed = record(codec.encode(picture(*size)))
    planes = [plane.astype(float) - 128 for plane in codec.planes(packed)]

    served = codec.decode(packed)

    assert np.abs(served - reference.images_of(planes, halved=True)).max() <= 0.501


def test_planes_are_those_of_the_definition() -> None:
    """Luma and the mean chroma of 2 x 2 pixels, each rounded once."""
    image = picture(6, 5)
    red, green, blue = (image[:, :, c].astype(float) for c in range(3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    chroma = [128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402]
    means = [
        np.pad(plane, ((0, 0), (0, 1)), mode="edge").reshape(3, 2, 3, 2).mean((1, 3))
        for plane in chroma
    ]

    planes = yuv((6, 5)).planes(record(yuv((6, 5)).encode(image)))

    for plane, wanted in zip(planes, [luma, *means], strict=True):
        assert np.abs(plane - wanted).max() <= 0.5 + 1e-9


def test_saturated_colours_do_not_wrap_around() -> None:
    for colour in [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)]:
        image = np.broadcast_to(np.array(colour, np.uint8), (4, 4, 3))

        served = yuv((4, 4)).decode(record(yuv((4, 4)).encode(image)))

        assert np.abs(served.astype(int) - image).max() <= 1


def test_planes_of_a_jpeg_decode_as_libjpeg_decodes_them() -> None:
    """Within one step of uint8, by the same upsampling."""
    codec = yuv((40, 56))
    planes = codec.planes(record(codec.encode(picture(40, 56))))
    ready = [np.ascontiguousarray(plane) for plane in planes]
    jpeg = simplejpeg.encode_jpeg_yuv_planes(*ready, 100)

    served = codec.decode(record(codec.encode_planes(planes)))

    ours = served.astype(int)
    assert np.abs(ours - simplejpeg.decode_jpeg(jpeg)).mean() < 0.5
    assert np.abs(ours - simplejpeg.decode_jpeg(jpeg)).max() <= 3  # of them, 2 by quantization


def test_half_the_bytes_of_rgb() -> None:
    field = Image(size=(20, 30), codec="yuv420")

    assert field.record_nbytes == len(codec_for(field).encode(picture(20, 30))) == 900


@pytest.mark.parametrize("nbytes", [0, 95, 97])
def test_records_of_another_size_are_refused(nbytes: int) -> None:
    with pytest.raises(CodecError):
        yuv((8, 8)).decode(np.zeros(nbytes, np.uint8))


@pytest.mark.parametrize(
    "field",
    [
        Image(codec="yuv420"),
        Image(codec="yuv420", size=(8, 8), channels=1),
        Image(codec="yuv420", size=(8, 8), dtype="uint16"),
        Mask(codec="yuv420"),
    ],
)
def test_fields_that_it_cannot_store(field: Any) -> None:
    with pytest.raises(CodecError):
        codec_for(field)


def test_planes_that_do_not_fit_are_refused() -> None:
    small = np.zeros((4, 4), np.uint8)

    with pytest.raises(CodecError):
        yuv((8, 8)).encode_planes((np.zeros((8, 8), np.uint8), small, small[:3]))
