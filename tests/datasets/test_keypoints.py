"""Keypoints move as the pixels below them, through packing, memory, views and the loader."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, Mosaic, RAMDataset, ShardDataset, augment
from loaders.datasets import settings
from loaders.datasets.reading import known
from loaders.errors import LoadersError, SchemaError
from loaders.schema import Array, Boxes, Field, Image, Json, Keypoints, field_from_json
from packdata import pack

HEIGHT, WIDTH = 48, 64
PLACES = np.array([[[10, 4], [40, 30], [21, 17]], [[3, 40], [60, 2], [33, 33]]], np.float32)
MARKS = 50 + 30 * np.arange(6)  # gray values of the pixels at these places


def picture() -> np.ndarray[Any, Any]:
    """Return a picture in which every point is a pixel of a value of its own, 3 x 3 wide."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for (x, y), value in zip(PLACES.reshape(-1, 2).astype(int), MARKS, strict=True):
        pixels[y - 1 : y + 2, x - 1 : x + 2] = value
    return pixels


def packed(folder: Path, points: Any, **options: Any) -> Path:
    fields: dict[str, Field] = {"image": Image(codec="png"), "keypoints": Keypoints(3, **options)}
    pack([{"image": picture(), "keypoints": points}] * 4, folder / "packed", fields)
    return folder / "packed"


def seen(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([points, np.full((2, 3, 1), 2, np.float32)], 2)


def values_at(image: torch.Tensor, points: torch.Tensor) -> list[int]:
    """Return the pixels below points, which are at the middle of one: x + 0.5."""
    return [int(image[0, int(y), int(x)]) for x, y in points.tolist()]


@pytest.mark.parametrize("open_it", [ShardDataset, lambda path: RAMDataset(path, progress=False)])
def test_points_lie_on_the_pixels_that_they_were_on(tmp_path: Path, open_it: Any) -> None:
    dataset = open_it(packed(tmp_path, PLACES + 0.5)).replace(
        augment=[augment.RandomCrop((40, 60)), augment.RandomHorizontalFlip()]
    )

    for batch in DataLoader(dataset, batch_size=4, seed=3):
        for image, points in zip(batch.image, batch.keypoints, strict=True):
            flat = points.reshape(-1, 2)
            inside = ((flat >= 0) & (flat < torch.tensor([60, 40]))).all(1)
            assert inside.sum() > 2
            assert values_at(image, flat[inside]) == MARKS[inside.numpy()].tolist()


def test_a_flip_exchanges_left_and_right(tmp_path: Path) -> None:
    path = packed(tmp_path, seen(PLACES), flip_pairs=((0, 1),))
    dataset = ShardDataset(path, augment=[augment.RandomHorizontalFlip(p=1)])

    points = dataset[0].keypoints

    expected = seen(PLACES)[:, [1, 0, 2]]
    expected[..., 0] = WIDTH - expected[..., 0]
    assert points.dtype == torch.float32
    assert np.array_equal(points.numpy(), expected)


@pytest.mark.parametrize(
    ("ops", "pairs", "is_told"),
    [
        ([augment.RandomHorizontalFlip()], (), True),
        ([augment.Views(a=[augment.CenterCrop(9)], b=[augment.RandomFlip()])], (), True),
        ([augment.RandomHorizontalFlip()], ((0, 1),), False),
        ([augment.RandomVerticalFlip()], (), False),
    ],
    ids=["flip", "views", "pairs", "vertical"],
)
def test_points_without_pairs_that_are_mirrored_are_told_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ops: Any,
    pairs: Any,
    is_told: bool,
) -> None:
    monkeypatch.setattr(known, "_warned", set())
    path = packed(tmp_path, PLACES, flip_pairs=pairs)

    with caplog.at_level(logging.WARNING, "loaders"):
        for _ in range(2):
            ShardDataset(path, augment=ops)

    assert len(caplog.records) == is_told


def test_a_picture_without_things_is_flipped_where_others_have_pairs(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"image": Image(), "keypoints": Keypoints(flip_pairs=((0, 2),))}
    pack(
        [{"image": picture(), "keypoints": []}, {"image": picture(), "keypoints": PLACES}],
        tmp_path / "packed",
        fields,
    )
    dataset = ShardDataset(tmp_path / "packed", augment=[augment.RandomHorizontalFlip(1)])

    (batch,) = DataLoader(dataset, batch_size=2)

    assert sorted(map(len, batch.keypoints)) == [0, 2]


def test_a_resize_scales_them(tmp_path: Path) -> None:
    dataset = ShardDataset(packed(tmp_path, PLACES), augment=[augment.Resize((24, 64))])

    assert np.allclose(dataset[0].keypoints.numpy(), PLACES * (1, 0.5))


def test_what_is_cropped_away_is_not_visible(tmp_path: Path) -> None:
    points = seen(PLACES)
    points[0, 2] = 0  # not labelled
    dataset = ShardDataset(packed(tmp_path, points), augment=[augment.CenterCrop((24, 32))])

    found = dataset[0].keypoints.numpy()

    moved = PLACES - (16, 12)
    inside = np.asarray(((moved >= 0) & (moved <= (32, 24))).all(-1))
    inside = np.asarray(inside & (points[..., 2] > 0))
    assert np.array_equal(found[..., 2] == 2, inside)
    assert np.array_equal(found[inside][:, :2], moved[inside])
    assert not found[~inside].any()


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (PLACES.tolist(), (2, 3, 2)),
        (seen(PLACES).reshape(2, 9).tolist(), (2, 3, 3)),
        (seen(PLACES)[0].ravel().tolist(), (1, 3, 3)),
        (PLACES[0].ravel().tolist(), (1, 3, 2)),
        ([], (0, 3, 3)),
    ],
)
def test_flat_lists_are_taken_too(tmp_path: Path, value: Any, shape: tuple[int, ...]) -> None:
    assert ShardDataset(packed(tmp_path, value), fields=["keypoints"])[0].keypoints.shape == shape


@pytest.mark.parametrize(
    "value", [[1, 2, 3, 4], PLACES[:, :2].tolist(), [[["x", 1]]], np.zeros((1, 3, 4))]
)
def test_other_shapes_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(LoadersError):
        packed(tmp_path, value)


def test_fields_that_no_op_moves_beside_pictures_that_move_are_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_noted", set())
    fields: dict[str, Field] = {
        "image": Image(codec="png"),
        "keypoints": Keypoints(3),
        "face": Json(),
        "corners": Array("float32", (4, 2)),
        "embedding": Array("float32", (8,)),
        "kinds": Array("int64", (None,), classes=("a", "b")),
    }
    row = {
        "image": picture(),
        "keypoints": PLACES,
        "face": [1, 2],
        "corners": np.zeros((4, 2)),
        "embedding": np.zeros(8),
        "kinds": np.zeros(3, np.int64),
    }
    pack([row], tmp_path / "packed", fields)

    for _ in range(2):
        dataset = ShardDataset(tmp_path / "packed", augment=[augment.RandomSolarize(128)])
        dataset.replace(fields=["image", "face"])
    assert not caplog.records
    for _ in range(2):
        ShardDataset(tmp_path / "packed", augment=[augment.RandomHorizontalFlip()])

    noted = [record.args for record in caplog.records if "leaves as they are" in record.msg]
    assert noted == [("face, corners",)]


def test_classes_of_boxes_are_not_noted_as_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {
        "image": Image("png"),
        "boxes": Boxes(),
        "labels_of_boxes": Array("int64", (None,)),
        "area": Array("float32", (None,)),
    }
    row = {"image": picture(), "boxes": [[1, 2, 3, 4]], "labels_of_boxes": [7], "area": [4.0]}
    pack([row], tmp_path / "packed", fields)

    ShardDataset(tmp_path / "packed", augment=[augment.RandomHorizontalFlip()])

    noted = [record.args for record in caplog.records if "leaves as they are" in record.msg]
    assert noted == [("area",)]


@pytest.mark.parametrize("pairs", [((0, 3),), ((0, 0),), ((0, 1), (1, 2)), (1, 2), ((-1, 0),)])
def test_pairs_name_each_point_once(pairs: Any) -> None:
    with pytest.raises(SchemaError):
        Keypoints(3, flip_pairs=pairs)


def test_the_field_survives_the_manifest(tmp_path: Path) -> None:
    field = Keypoints(3, flip_pairs=((0, 2),))

    assert field_from_json(field.to_json()) == field
    stored = ShardDataset(packed(tmp_path, PLACES, flip_pairs=[[0, 2]])).schema.fields["keypoints"]
    assert stored == field


@pytest.mark.parametrize("last", [2, 3])
def test_pictures_without_things_are_joined_with_others(tmp_path: Path, last: int) -> None:
    rows = [
        {
            "image": np.zeros((9, 9, 3), np.uint8),
            "points": np.ones((i % 3, 4, last), np.float32),
        }
        for i in range(6)
    ]
    pack(rows, tmp_path / "a", {"image": Image("raw", size=(9, 9)), "points": Keypoints()})
    stored: Any = ShardDataset(tmp_path / "a", fields=["image", "points", "sample_id"])
    made: dict[str, Any] = {}
    for form in ("list", "pad", "offsets"):
        dataset = stored.replace(batching={"points": form})
        (made[form],) = DataLoader(dataset, 6, shuffle=False)

    assert made["pad"].points.values.shape == (6, 2, 4, last)
    assert made["pad"].points.lengths.tolist() == [0, 1, 2] * 2
    assert made["offsets"].points.values.shape == (6, 4, last)
    mosaics = Mosaic(stored.schema)(made["list"]).points
    assert {tuple(each.shape[1:]) for each in mosaics} == {(4, last)}
