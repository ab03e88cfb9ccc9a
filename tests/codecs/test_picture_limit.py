"""One limit of memory for a picture of any format: at packing, at serving, and never in silence."""

import io
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from loaders import RAMDataset, ShardDataset, augment
from loaders.codecs.heads import MAX_PICTURE_MB, MAX_PIXELS, pixels_within
from loaders.errors import CodecError, LoadersError, SampleError
from packdata.images.masks import decode_mask
from packdata.images.pictures import decode_picture
from packdata.images.plan import pack_images
from tests.refusals import At

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "AVIF", "JPEG2000", "PPM")
SIDE = 600  # 600 x 600 RGB are 1,080,000 bytes: more than 1 MiB


def saved(format: str, side: int = SIDE, **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", (side, side), (9, 99, 200)).save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_the_same_limit(format: str) -> None:
    data = saved(format)

    with pytest.raises(CodecError):
        decode_picture(data, max_pixels=pixels_within(1))
    assert decode_picture(data, max_pixels=SIDE * SIDE).size == (SIDE, SIDE)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP"])
def test_masks_have_it_too(format: str) -> None:
    file = io.BytesIO()
    PIL.Image.new("L", (SIDE, SIDE)).save(file, format)

    with pytest.raises(CodecError):
        decode_mask(file.getvalue(), SIDE * SIDE - 1)
    assert decode_mask(file.getvalue(), SIDE * SIDE).shape == (SIDE, SIDE)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_pillows_own_limit_does_not_count(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for formats that Pillow itself decodes."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)

    assert decode_picture(saved(format)).size == (SIDE, SIDE)
    with pytest.raises(CodecError):
        decode_picture(saved("TIFF"))


def test_the_default_is_of_memory() -> None:
    assert MAX_PIXELS == (MAX_PICTURE_MB << 20) // 3 > 14_000**2


def test_the_limit_of_a_packing_is_an_option(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(saved("PNG"))
    (tmp_path / "in/b.png").write_bytes(saved("PNG", 20))

    with pytest.raises(LoadersError, check=At("in/a.png")):
        pack_images(tmp_path / "in", tmp_path / "out", max_picture_mb=1)
    summary = pack_images(
        tmp_path / "in", tmp_path / "some", max_picture_mb=1, on_error="skip", format="parquet"
    )

    assert len(summary.rejected) == 1
    assert len(ShardDataset(tmp_path / "some")) == 1


def test_the_limit_of_serving_is_a_setting(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jpg").write_bytes(saved("JPEG"))
    pack_images(tmp_path / "in", tmp_path / "out")
    crop = [augment.CenterCrop(32)]

    for made in (
        ShardDataset(tmp_path / "out", max_picture_mb=1),
        ShardDataset(tmp_path / "out").replace(max_picture_mb=1, augment=crop),
        RAMDataset(tmp_path / "out", max_picture_mb=1, progress=False),
    ):
        assert made.max_picture_mb == 1
        with pytest.raises(SampleError):
            made[0]
    with pytest.raises(LoadersError):
        RAMDataset(tmp_path / "out", max_picture_mb=1, decode=True, progress=False)
    RAMDataset(tmp_path / "out", max_picture_mb=2, decode=True, progress=False)
    assert ShardDataset(tmp_path / "out", max_picture_mb=2)[0].image.shape == (3, SIDE, SIDE)
    with pytest.raises(ValueError):
        ShardDataset(tmp_path / "out", max_picture_mb=0)
