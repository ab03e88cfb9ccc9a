"""Filtered resampling is Pillow's, on the host and on a device, at boxes anywhere."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

import packdata
from loaders import BatchAugment, RAMDataset, ShardDataset, augment
from loaders.augment.geometry import Move
from loaders.augment.pixels import apply, move_boxes
from loaders.augment.planning import as_augment, draw_geometry, fill_of, output_size
from loaders.augment.resampling import Resampling, filter_matrix, source_positions
from loaders.codecs.picture import encode_jpeg
from loaders.schema import Image, Mask

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

PHOTOS = sorted(Path(__file__).parents[1].joinpath("data/photos").glob("*/*.jpg"))
EVAL: list[Any] = [augment.Resize(96), augment.CenterCrop(80)]
FILTERS = {
    "bilinear": Pillow.Resampling.BILINEAR,
    "bicubic": Pillow.Resampling.BICUBIC,
    "area": Pillow.Resampling.BOX,
}


def noise(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> Array:
    high = np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else 1000
    return np.random.default_rng(seed).integers(0, high, shape, endpoint=True).astype(dtype)


def by_torchvision_on_pillow(picture: Pillow.Image, size: int, crop: int, how: Any) -> Array:
    """Resize the shorter side, then crop the middle, as ``Resize`` and ``CenterCrop`` do to a Pillow image."""
    width, height = picture.size
    short = min(width, height)
    picture = picture.resize((width * size // short, height * size // short), how)
    left, top = (round((length - crop) / 2) for length in picture.size)
    return np.asarray(picture.crop((left, top, left + crop, top + crop)))


def psnr(one: Array, other: Array) -> float:
    error = float(np.mean((one.astype(float) - other.astype(float)) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-12)))


@pytest.mark.parametrize("interpolation", FILTERS)
def test_evaluation_of_photos_is_what_pillow_gives(interpolation: Any, tmp_path: Path) -> None:
    """As packed (files as they came, no restart markers) and encoded anew with them: a part is decoded of each."""
    ops: list[Any] = [augment.Resize(96, interpolation), augment.CenterCrop(80)]
    marked = [encode_jpeg(np.asarray(Pillow.open(path).convert("RGB"))) for path in PHOTOS]
    files = [path.read_bytes() for path in PHOTOS] + marked

    packdata.pack(({"image": file} for file in files), tmp_path / "photos", {"image": Image()})
    dataset = ShardDataset(tmp_path / "photos", augment=ops)

    for i, file in enumerate(files):
        picture = Pillow.open(io.BytesIO(file)).convert("RGB")
        want = by_torchvision_on_pillow(picture, 96, 80, FILTERS[interpolation])
        found = dataset[i].image.permute(1, 2, 0).numpy()
        assert (np.abs(found.astype(int) - want) <= 1).mean() >= 0.99
        assert psnr(found, want) >= 45


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    crop=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    channels=st.sampled_from([1, 3, 4]),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),  # not the box: its edges are ties
)
def test_resize_and_crop_of_any_size_are_pillows(
    shape: tuple[int, int],
    size: tuple[int, int],
    crop: tuple[int, int],
    channels: int,
    interpolation: Any,
) -> None:
    """A crop that is larger than the resized image has zeros around it; on a device it is the same."""
    image = noise((*shape, channels))
    if (
        interpolation == "bicubic"
    ):  # which overshoots: Pillow bounds it between its two passes, a device once
        image = image // 4 + 96
    ops: list[Any] = [augment.Resize(size, interpolation), augment.CenterCrop(crop)]
    planned = draw_geometry(ops, np.array([shape]), seed=0, epoch=0, indices=np.zeros(1, int))
    assert planned.regions is not None

    found = apply(
        image, planned.regions[0].tolist(), crop, (False, False), resampling=planned.resampling
    )
    there = BatchAugment(ops)(torch.from_numpy(image).permute(2, 0, 1)[None], indices=[0])[0]

    planes = [
        np.asarray(Pillow.fromarray(image[:, :, c]).resize(size[::-1], FILTERS[interpolation]))
        for c in range(channels)
    ]
    want = cropped(np.stack(planes, axis=2), crop)
    off = np.abs(found.astype(int) - want)  # each is within one level of the exact value
    assert off.max() <= 2
    assert np.count_nonzero(off > 1) <= 1
    assert np.abs(there.permute(1, 2, 0).numpy().astype(int) - found).max() <= 1


def cropped(image: Array, crop: tuple[int, int]) -> Array:
    """Crop the middle; zeros fill the sides, behind by the odd pixel."""
    for axis in (0, 1):
        room = image.shape[axis] - crop[axis]
        if room >= 0:
            start = round(room / 2)
            image = image.take(range(start, start + crop[axis]), axis)
        else:
            widths = [(0, 0)] * image.ndim
            widths[axis] = (-room // 2, -room - (-room // 2))
            image = np.pad(image, widths)
    return image


@pytest.mark.parametrize("flip", [(False, True), (True, False), (True, True)])
def test_flips_mirror_the_result(flip: tuple[bool, bool]) -> None:
    image, region = noise((40, 50, 3)), (3.25, 5.5, 20.4, 30.3)
    how = Resampling("bilinear", is_filtered=True)

    straight = apply(image, region, (11, 12), (False, False), resampling=how)
    mirrored = apply(image, region, (11, 12), flip, resampling=how)

    turned = straight[:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]
    np.testing.assert_array_equal(mirrored, turned)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
@pytest.mark.parametrize("channels", [(), (3,), (7,)])
def test_other_dtypes_and_channels_are_filtered_by_the_same_weights(
    dtype: str, channels: tuple[int, ...]
) -> None:
    image, how = noise((30, 41, *channels), dtype), Resampling("bilinear", is_filtered=True)

    found = apply(image, (2.5, 3.25, 20, 33), (7, 50), (False, False), resampling=how)

    down = filter_matrix(2.5, 20, 7, 30, "bilinear")
    across = filter_matrix(3.25, 33, 50, 41, "bilinear")
    want = np.einsum("hy,yx...,wx->hw...", down, image.astype(np.float64), across)
    assert np.abs(found - want).max() <= (0.5 if dtype != "float32" else 1e-3)


def test_pixels_that_overshoot_are_cut_off_whatever_their_channels_are() -> None:
    """Bicubic weights are negative beside an edge: of few channels Pillow cuts off."""
    image = np.zeros((20, 20, 3), np.uint8)
    image[:, 10:] = 255
    how = Resampling("bicubic", is_filtered=True)

    few, many = (
        apply(each, (0, 0, 20, 20), (50, 50), (False, False), resampling=how)
        for each in (image, image.repeat(2, axis=2))
    )

    assert np.abs(few.repeat(2, axis=2).astype(int) - many).max() <= 1


def test_weights_are_pillows_to_a_hair() -> None:
    """In float32, of which Pillow's ``F`` images are."""
    image = noise((23, 31), "uint8").astype(np.float32)

    for interpolation, how in FILTERS.items():
        want = np.asarray(Pillow.fromarray(image).resize((9, 40), how, (1.3, 2.2, 29.9, 20.1)))
        down = filter_matrix(2.2, 17.9, 40, 23, interpolation)
        across = filter_matrix(1.3, 28.6, 9, 31, interpolation)
        np.testing.assert_allclose(down @ image @ across.T, want, atol=2e-3)


RECIPES: dict[str, list[Any]] = {
    "evaluation": [augment.Resize(20), augment.CenterCrop(16)],
    "letterbox": [augment.Resize((30, 40), pad=True, fill=(7, 9, 200))],
    "larger": [augment.Resize(60, "bicubic"), augment.CenterCrop((80, 90))],
    "padded, then resized": [augment.CenterCrop(60), augment.Resize((17, 23))],
    "train": [
        augment.RandomResizedCrop(24, antialias=True),
        augment.RandomHorizontalFlip(),
        augment.RandomVerticalFlip(),
    ],
    "area": [augment.RandomResizedCrop(24, interpolation="area")],
    "areas of ties": [augment.RandomResizedCrop(12, interpolation="area")],
    "fast cubic": [augment.RandomResizedCrop(24, interpolation="bicubic")],
    "nearest": [augment.RandomResizedCrop(24, interpolation="nearest")],
    "reflected": [augment.RandomCrop(40, padding=9, padding_mode="reflect")],
    "symmetric, resized": [
        augment.RandomCrop(40, padding=9, padding_mode="symmetric"),
        augment.Resize((17, 19), antialias=True),
    ],
    "edge": [augment.RandomCrop((40, 44), padding=50, padding_mode="edge"), augment.Resize(21)],
    "filled": [augment.RandomCrop(40, padding=9, fill=(1, 2, 3)), augment.Resize(23)],
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_device_gives_what_the_host_gives(name: str) -> None:
    ops, sizes = RECIPES[name], np.array([[41, 52]] * 9)
    images, masks = noise((9, 41, 52, 3)) // 4 + 96, noise((9, 41, 52), seed=1)
    planned = draw_geometry(ops, sizes, seed=4, epoch=2, indices=np.arange(9))

    module = BatchAugment(ops, seed=4)
    found, found_masks = module(
        torch.from_numpy(images).permute(0, 3, 1, 2),
        torch.from_numpy(masks),
        indices=range(9),
        epoch=2,
    )

    rows = (planned.places.tolist(), planned.sizes.tolist(), planned.flips.tolist())
    for i, row in enumerate(zip(*rows, strict=True)):
        how: Any = {"resampling": planned.resampling}
        want = apply(images[i], *row, fill_of(ops), **how)
        picked = apply(masks[i], *row, nearest=True, **how)
        # Cubic weights of OpenCV have 11 bits, and four of them in each direction.
        apart = np.abs(found[i].permute(1, 2, 0).numpy().astype(int) - want)
        assert apart.max() <= 1
        assert (found_masks[i].numpy() == picked).mean() > 0.995


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_padding_modes_are_numpys(mode: Any, length: int) -> None:
    row, positions = np.arange(length), np.arange(-9, length + 9)

    found = source_positions(positions, length, mode)

    np.testing.assert_array_equal(row[found], np.pad(row, 9, mode=mode))
    there = source_positions(torch.from_numpy(positions), length, mode)
    np.testing.assert_array_equal(there.numpy(), found)


def test_a_letterbox_holds_the_whole_picture_in_the_middle() -> None:
    image = np.full((20, 60, 3), 50, np.uint8)
    boxes = np.array([[0, 0, 60, 20]], np.float32)
    ops = [augment.Resize((40, 40), pad=True, fill=114)]

    dataset = RAMDataset.from_arrays(image=image[None], augment=ops)
    found = dataset[0].image.numpy()
    planned = draw_geometry(ops, np.array([[20, 60]]), seed=0, epoch=0, indices=np.zeros(1, int))
    row = [rows[0].tolist() for rows in (planned.places, planned.sizes, planned.flips)]

    assert (found[:, 13:26] == 50).all()
    assert (found[:, :13] == 114).all()
    assert (found[:, 26:] == 114).all()
    np.testing.assert_allclose(move_boxes(boxes, Move(*row)), [[0, 13, 40, 26]], atol=1e-4)


def test_max_size_bounds_the_longer_side() -> None:
    assert output_size([augment.Resize((20, 60)), augment.Resize(30, max_size=60)]) == (
        20,
        60,
    )
    assert output_size([augment.Resize((20, 60)), augment.Resize(10, max_size=60)]) == (
        10,
        30,
    )


def test_evaluation_is_filtered_and_training_is_fast_unless_said_otherwise() -> None:
    crop = augment.RandomResizedCrop

    def is_filtered(*ops: Any) -> bool:
        sizes, indices = np.array([[50, 60]]), np.zeros(1, int)
        return draw_geometry(ops, sizes, seed=0, epoch=0, indices=indices).regions is not None

    assert is_filtered(*EVAL)
    assert not is_filtered(augment.Resize(96, antialias=False), augment.CenterCrop(80))
    assert not is_filtered(augment.Resize(96), augment.RandomHorizontalFlip())
    assert not is_filtered(crop(8))
    assert is_filtered(crop(8, antialias=True))
    assert is_filtered(crop(8, interpolation="area"))
    assert not is_filtered(crop(8, interpolation="nearest", antialias=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: augment.Resize(8, interpolation="lanczos"),  # type: ignore[arg-type]
        lambda: augment.Resize((8, 9), max_size=10),
        lambda: augment.Resize(8, max_size=8),
        lambda: augment.RandomCrop(8, padding_mode="wrap"),  # type: ignore[arg-type]
        lambda: as_augment(
            [augment.RandomCrop(8, fill=1), augment.Resize((8, 8), pad=True, fill=2)]
        ),
    ],
    ids=["filter", "max_size of two sides", "max_size", "padding", "fills"],
)
def test_what_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


def test_masks_are_picked_at_the_exact_box() -> None:
    """A marker in the image and in its mask ends at the same place."""
    image, mask = np.zeros((90, 120, 3), np.uint8), np.zeros((90, 120), np.uint8)
    image[30:45, 40:70], mask[30:45, 40:70] = 255, 1
    schema = {
        "image": Image(size=(90, 120), codec="raw"),
        "mask": Mask(size=(90, 120), codec="raw"),
    }

    dataset = RAMDataset.from_arrays(
        image=image[None], mask=mask[None], schema=schema, augment=EVAL
    )
    sample = dataset[0]

    where = sample.image[0] > 127
    assert (where == (sample.mask > 0)).float().mean() > 0.995


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_part_that_is_shrunk_much_has_the_pixels_of_the_whole(
    tmp_path: Path, interpolation: Any
) -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)
    pixels = np.asarray(Pillow.fromarray(coarse).resize((1600, 1200), Pillow.Resampling.BICUBIC))
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, "jpeg", quality=95)
    packdata.pack([{"image": file.getvalue()}], tmp_path / "a", {"image": Image()})
    resize = augment.Resize((40, 52), interpolation)

    whole, part = (
        ShardDataset(tmp_path / "a", augment=ops)[0].image
        for ops in ([resize], [resize, augment.CenterCrop(16)])
    )

    assert torch.equal(part, whole[:, 12:28, 18:34])
