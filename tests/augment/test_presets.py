"""Recipes: what they make."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import packdata
from loaders import ShardDataset, augment
from loaders.augment import presets
from loaders.augment.planning import draw_geometry
from loaders.codecs.picture import encode_jpeg
from loaders.schema import Boxes, Image, Mask

PHOTOS = sorted(Path(__file__).parents[1].joinpath("data/photos").glob("*/*.jpg"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presets") / "packed"
    fields: dict[str, Any] = {"image": Image(), "boxes": Boxes(), "mask": Mask()}
    values = []
    for path in PHOTOS[:4]:
        with Pillow.open(path) as picture:
            mask = np.ones(picture.size[::-1], np.uint8)
        box = np.array([[10, 20, 60, 50]], np.float32)
        values.append({"image": path.read_bytes(), "boxes": box, "mask": mask})
    packdata.pack(values, folder, fields)
    return folder


SIZES = {
    "imagenet_train": {"image": (64, 64)},
    "imagenet_eval": {"image": (64, 64)},
    "simclr": {"image_a": (64, 64), "image_b": (64, 64)},
    "dino": {"image_global_1": (64, 64), "image_global_2": (64, 64), "image_local_8": (96, 96)},
    "deit": {"image": (64, 64)},
    "segmentation": {"image": (64, 64), "mask": (64, 64)},
    "detection": {"image": (64, 64)},
}


@pytest.mark.parametrize("name", SIZES)
def test_recipes_make_pictures_of_their_size_that_differ_by_epoch(name: str, folder: Path) -> None:
    extra = {"base": 70} if name == "segmentation" else {}
    ops = getattr(presets, name)(64, **extra)
    other = {"segmentation": "mask", "detection": "boxes"}.get(name)
    fields = ["image", *([other] if other else [])]

    dataset = ShardDataset(folder, fields=fields, augment=ops)
    ones = [dataset[i] for i in range(4)]
    dataset.set_epoch(1)
    twos = [dataset[i] for i in range(4)]

    one = ones[0]
    for field, size in SIZES[name].items():
        assert getattr(one, field).shape[-2:] == size
        is_same = all(
            bool((getattr(a, field) == getattr(b, field)).all())
            for a, b in zip(ones, twos, strict=True)
        )
        assert field == "mask" or is_same == (name == "imagenet_eval")
    if name == "detection":
        assert all(len(each.boxes) <= 1 for each in ones)
        assert any(len(each.boxes) for each in ones)


def test_segmentation_fills_masks_with_what_the_loss_ignores(folder: Path) -> None:
    ops = presets.segmentation(200, base=100)

    masks = [ShardDataset(folder, fields=["image", "mask"], augment=ops)[i].mask for i in range(4)]

    assert {int(value) for mask in masks for value in mask.unique()} == {1, 255}


def test_random_resize_draws_each_length_equally() -> None:
    sizes = np.array([[40, 60]] * 6000)
    planned = draw_geometry(
        [augment.RandomResize(20, 26)], sizes, seed=0, epoch=0, indices=np.arange(6000)
    )

    lengths, counts = np.unique(planned.sizes[:, 0], return_counts=True)
    assert lengths.tolist() == [20, 21, 22, 23, 24, 25]
    assert ((counts - 1000) ** 2 / 1000).sum() < 26  # 99.99 % at 5 degrees of freedom
    assert (planned.sizes[:, 1] == planned.sizes[:, 0] * 60 // 40).all()


PARTS: dict[str, list[Any]] = {
    "turned": [augment.RandomCrop(50), augment.RandomRotation(25, interpolation="bilinear")],
    "elastic": [augment.RandomCrop(50), augment.ElasticTransform()],
    "colours": [augment.RandomCrop(50), augment.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "filtered": [augment.RandomCrop(50), augment.Resize(30, antialias=True)],
    "views": [
        augment.Views(
            one=[augment.RandomCrop(30), augment.RandomGrayscale(0.5)],
            two=[augment.Resize(40, antialias=True), augment.RandomAffine(9)],
        )
    ],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_jpegs_give_what_whole_pictures_do(name: str, tmp_path: Path) -> None:
    """Files as they come, and with restart markers, of which a part is put together; beside the decoded pixels."""
    whole = [np.asarray(Pillow.open(path).convert("RGB")) for path in PHOTOS[:6]]
    marked = [encode_jpeg(picture) for picture in whole]
    files = [path.read_bytes() for path in PHOTOS[:6]] + marked
    decoded = [np.asarray(Pillow.open(io.BytesIO(file)).convert("RGB")) for file in files]
    packdata.pack(({"image": file} for file in files), tmp_path / "jpeg", {"image": Image()})
    raw = {"image": Image(codec="png")}
    packdata.pack(({"image": pixels} for pixels in decoded), tmp_path / "png", raw)

    indices = list(range(len(files)))
    parts = ShardDataset(tmp_path / "jpeg", augment=PARTS[name]).__getitems__(indices)
    plain = ShardDataset(tmp_path / "png", augment=PARTS[name])

    for i in indices:
        for mine, whole_one in zip(parts[i], plain[i], strict=True):
            apart = (mine.int() - whole_one.int()).abs()
            # OpenCV rounds places to 1/32 of a pixel, from the corner of what it is given.
            assert apart.max() <= (8 if name in ("turned", "elastic") else 0)
            assert (apart <= 1).float().mean() > 0.9


def test_deit_draws_two_ops_each_by_half_at_a_strength_of_ten() -> None:
    weak, strong = (presets.deit(8, magnitude=m)[2:4] for m in (0, 9))

    assert (
        strong
        == [augment.RandomApply([augment.RandAugment(1, 27, fill=presets.IMAGENET_PIXELS)], 0.5)]
        * 2
    )
    assert weak != strong
    for magnitude in (-1, 11):
        with pytest.raises(ValueError):
            presets.deit(8, magnitude=magnitude)
