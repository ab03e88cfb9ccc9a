"""Mosaics: a marker in each field is found at the same place, and what is drawn belongs to the batch."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packdata
from loaders import DataLoader, Mosaic, ShardDataset
from loaders.datasets.reading.samples import Padded, Ragged
from loaders.errors import BatchError, SchemaError
from loaders.schema import Array, Boxes, Image, Images, Keypoints, Label, Mask, Schema

NUM, SIZE = 12, (40, 56)


def boxes_of(i: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Up to three boxes that do not overlap, of 10 pixels a side."""
    corners = np.array([[2 + i, 3], [20 + i, 24], [40, 12 + i]])[: i % 4]
    return np.concatenate([corners, corners + 10], 1).reshape(-1, 4).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields: dict[str, Any] = {
        "image": Image("raw", size=SIZE),
        "mask": Mask(size=SIZE, codec="raw", dtype="uint16"),
        "boxes": Boxes(),
        "kinds": Array(dtype="int64", dims=(None,)),
        "points": Keypoints(1),
        "number": Label(),
    }
    rows = []
    for i in range(NUM):
        mask, boxes = np.zeros(SIZE, np.uint16), boxes_of(i)
        for k, (x1, y1, x2, y2) in enumerate(boxes.astype(int).tolist(), 1):
            mask[y1:y2, x1:x2] = 1000 + 10 * i + k
        image = np.broadcast_to((mask % 256)[..., None], (*SIZE, 3)).astype(np.uint8)
        points = np.ones((len(boxes), 1, 3))
        points[:, 0, :2] = boxes[:, :2] + 5
        points *= i % 2 == 0  # of odd samples they are not labelled
        kinds = 1001 + 10 * i + np.arange(len(boxes))
        values = {"boxes": boxes, "kinds": kinds, "points": points}
        rows.append({"image": image, "mask": mask, **values, "number": i})
    path = tmp_path_factory.mktemp("mosaic") / "a"
    packdata.pack(rows, path, fields)
    return path


def batch_of(folder: Path, form: str = "list", **options: Any) -> tuple[Any, Any]:
    names = ["image", "mask", "boxes", "kinds", "points", "number", "sample_id"]
    batching = dict.fromkeys(["boxes", "kinds", "points"], form)
    dataset: Any = ShardDataset(folder, fields=names, batching=batching)
    (batch,) = DataLoader(dataset, NUM, shuffle=True, seed=1, **options)
    return dataset.schema, batch


def rows_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Padded):
        return [v[:n] for v, n in zip(value.values, value.lengths.tolist(), strict=True)]
    if isinstance(value, Ragged):
        ends = value.offsets.tolist()
        return [value.values[a:b] for a, b in pairwise(ends)]
    return list(value)


@pytest.mark.parametrize("form", ["list", "pad", "offsets"])
def test_fields_agree(folder: Path, form: str) -> None:
    schema, batch = batch_of(folder, form)

    made = Mosaic(schema, seed=3)(batch, epoch=2)

    assert torch.equal(made.number, batch.number)
    assert type(made.boxes) is type(batch.boxes)
    num_cut = 0
    for i in range(NUM):
        mask, image = made.mask[i].int(), made.image[i]
        assert all(torch.equal(image[c], (mask % 256).to(torch.uint8)) for c in range(3))
        boxes, kinds, points = (rows_of(v)[i] for v in (made.boxes, made.kinds, made.points))
        assert len(boxes) == len(kinds) == len(points)
        for box, kind, point in zip(boxes.tolist(), kinds.tolist(), points, strict=True):
            ys, xs = (mask == kind).nonzero(as_tuple=True)
            edges = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            assert [int(edge) for edge in edges] == box
            num_cut += len(ys) < 100
            x, y, is_seen = point[0].tolist()
            if is_seen:
                assert box[0] <= x <= box[2]
                assert box[1] <= y <= box[3]
            else:
                assert (x, y) == (0, 0)
        left = {int(each) for each in mask.unique() if each and (mask == each).sum() >= 10}
        sides = {
            k for k in left if min(np.ptp(axis) for axis in (mask == k).nonzero().T.numpy()) > 0
        }
        assert sides <= set(kinds.tolist())
    assert num_cut > 5


def test_quadrants_are_the_samples_before(folder: Path) -> None:
    schema, batch = batch_of(folder)
    image = torch.arange(NUM, dtype=torch.uint8).view(-1, 1, 1, 1).expand(NUM, 3, *SIZE)
    channels_last = image.contiguous(memory_format=torch.channels_last)

    both = [Mosaic(schema)(batch._replace(image=x)).image for x in (image.clone(), channels_last)]
    assert torch.equal(*both)
    made = both[0]
    for made in both:
        corners = made[:, 0][:, [0, 0, -1, -1], [0, -1, 0, -1]].int()
        own = torch.arange(NUM).view(-1, 1)
        assert torch.equal(corners, (own - torch.arange(4)) % NUM)
    edges = (made[:, 0, 0] == torch.arange(NUM).view(-1, 1)).sum(1)
    assert edges.min() >= 0.3 * SIZE[1] - 1
    assert edges.max() <= 0.7 * SIZE[1]
    assert len(edges.unique()) > 4


def test_the_draw_belongs_to_the_samples_of_the_batch(folder: Path) -> None:
    schema, batch = batch_of(folder)
    mosaic = Mosaic(schema, seed=3)
    first = mosaic(batch, epoch=2)

    again = Mosaic(schema, seed=3)(batch_of(folder, num_workers=2)[1]._asdict(), epoch=2)

    assert torch.equal(first.image, again["image"])
    assert all(map(torch.equal, first.boxes, again["boxes"]))
    others = [mosaic(batch, epoch=3), Mosaic(schema, seed=4)(batch, epoch=2)]
    assert all(not torch.equal(first.image, other.image) for other in others)


def test_batches_without_boxes_or_of_one_sample(folder: Path) -> None:
    schema, batch = batch_of(folder)
    none = batch._replace(
        boxes=[b[:0] for b in batch.boxes],
        kinds=[k[:0] for k in batch.kinds],
        points=[p[:0] for p in batch.points],
    )
    made = Mosaic(schema)(none)
    assert [len(each) for each in made.boxes] == [0] * NUM

    one = type(batch)(*(value[:1] for value in batch))
    assert Mosaic(schema)(one).image.shape == (1, 3, *SIZE)


def test_points_that_are_of_no_box_stay_whatever_becomes_of_boxes(folder: Path) -> None:
    """As those of the picture: those of all four tiles are there."""
    schema, batch = batch_of(folder)
    corners = [torch.tensor([[[1.0, 2.0, 2.0]]]) for _ in range(NUM)]

    made = Mosaic(schema, fields=["kinds"])(batch._replace(points=corners))

    assert [len(each) for each in made.points] == [4] * NUM
    assert sum(map(len, made.boxes)) < 4 * sum(map(len, batch.boxes))


def test_wrong_use_is_an_error(folder: Path) -> None:
    schema, batch = batch_of(folder)
    for options in ({"center_range": (0.7, 0.3)}, {"min_size": -1}, {"min_visible": 2}):
        with pytest.raises(ValueError, match="must"):
            Mosaic(schema, **options)
    without = {name: value for name, value in batch._asdict().items() if name != "sample_id"}
    small = batch._replace(mask=batch.mask[:, 1:])
    fewer = batch._replace(kinds=[k[:1] for k in batch.kinds])
    for wrong in (without, small, batch._replace(image=list(batch.image)), fewer):
        with pytest.raises(BatchError):
            Mosaic(schema)(wrong)
    for unknown in (["kind"], ["number"]):  # else rows would be of other boxes, in silence
        with pytest.raises(SchemaError):
            Mosaic(schema, fields=unknown)
    with pytest.raises(TypeError):
        Mosaic(schema, fields="kinds")
    kinds = Mosaic(schema, fields=["points"])(fewer).kinds
    assert all(map(torch.equal, kinds, fewer.kinds))


@pytest.mark.parametrize("field", [Array(dtype="float32", dims=(1, 8, 8), spatial=2), Images()])
def test_pixels_that_would_stay_where_they_are_are_refused(field: Any) -> None:
    """A depth map, or frames, would be of one of the four samples alone."""
    mosaic = Mosaic(Schema({"image": Image("raw", size=(8, 8)), "other": field}))
    batch = {"image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "sample_id": torch.arange(4)}

    assert mosaic(batch)["image"].shape == (4, 3, 8, 8)
    with pytest.raises(BatchError):
        mosaic(batch | {"other": torch.zeros(4, 1, 8, 8)})
