"""Colour profiles: counted, and converted where that is asked for."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageCms

import packdata
from loaders import ShardDataset
from loaders.errors import CodecError
from packdata.cli import main
from packdata.images.pictures import decode_picture

COLOUR = (200, 30, 90)


def srgb() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def swapped() -> bytes:
    """A profile of a space whose red is sRGB's green, and whose green is its red."""
    names = srgb().replace(b"rXYZ", b"????").replace(b"gXYZ", b"rXYZ").replace(b"????", b"gXYZ")
    return names.replace(b"\0s\0R\0G\0B", b"\0w\0R\0G\0B").replace(b"sRGB b", b"wRGB b")


def file(kind: str, profile: bytes | None, mode: str = "RGB") -> bytes:
    picture = Pillow.new("RGB", (40, 30), COLOUR).convert(mode)
    out, options = io.BytesIO(), {} if profile is None else {"icc_profile": profile}
    picture.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_what_is_of_another_space_is_converted(kind: str) -> None:
    data = file(kind, swapped())

    plain, done = decode_picture(data), decode_picture(data, to_srgb=True)

    assert plain.has_profile
    assert not done.has_profile
    np.testing.assert_allclose(plain.pixels[5, 5], COLOUR, atol=3)
    np.testing.assert_allclose(done.pixels[5, 5], (30, 200, 90), atol=4)
    assert done.kept is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_what_is_of_srgb_or_says_nothing_is_kept(kind: str) -> None:
    for profile in (srgb(), None):
        data = file(kind, profile)
        done = decode_picture(data, to_srgb=True)
        assert done.has_profile == (profile is not None)
        assert done.kept == data


def test_alpha_and_gray_stay_as_they_are() -> None:
    clear = decode_picture(file("PNG", swapped(), "RGBA"), to_srgb=True)
    np.testing.assert_allclose(clear.pixels[5, 5], (30, 200, 90), atol=4)
    gray = decode_picture(file("PNG", None, "L"), channels=1, to_srgb=True)
    assert gray.changes == ()


def test_a_profile_that_is_none_is_an_error_where_it_counts() -> None:
    data = file("PNG", b"no profile at all, of no size")

    assert decode_picture(data).pixels.shape == (30, 40, 3)
    with pytest.raises(CodecError):
        decode_picture(data, to_srgb=True)


@pytest.mark.parametrize("icc", [None, "srgb"])
def test_packing_counts_profiles_and_says_what_became_of_them(icc: Any, tmp_path: Path) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    (source / "wide.png").write_bytes(file("PNG", swapped()))
    (source / "plain.png").write_bytes(file("PNG", None))

    option = [] if icc is None else ["--icc", icc]
    assert main(["images", str(source), str(tmp_path / "by command"), *option]) == 0
    summary = packdata.pack_images(source, tmp_path / "packed", icc=icc)
    dataset = ShardDataset(tmp_path / "packed", fields=["image", "key"])
    assert dataset.fingerprint == ShardDataset(tmp_path / "by command").fingerprint

    pixels = {sample.key: sample.image[:, 5, 5].tolist() for sample in dataset}
    (wide,) = (value for key, value in pixels.items() if "wide" in key)
    np.testing.assert_allclose(wide, (30, 200, 90) if icc else COLOUR, atol=4)
    assert any(("sRGB" if icc else "icc=") in note for note in summary.notes)
