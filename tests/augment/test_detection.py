"""Ops for pictures with boxes: torchvision's crops and filters, the same for boxes, labels, masks and keypoints."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import packdata
from loaders import (
    BatchAugment,
    DataLoader,
    JpegOnDevice,
    Mosaic,
    RAMDataset,
    ShardDataset,
    augment,
)
from loaders.augment import (
    RandomIoUCrop,
    RandomShortestSize,
    RandomZoomOut,
    Resize,
    SanitizeBoundingBoxes,
    ScaleJitter,
)
from loaders.augment.pixels import move_boxes
from loaders.augment.planning import draw_geometry
from loaders.codecs.picture import encode_jpeg
from loaders.datasets.reading.halves import moving_halves
from loaders.errors import BatchError, SampleError, SchemaError
from loaders.schema import Array, Boxes, Image, Json, Keypoints, Label, Mask
from tests.torchvision_v2 import torchvision_v2

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

NUM, SIZE = 40, (90, 120)
RECIPE = [
    RandomZoomOut(9, fill_mask=7),
    RandomIoUCrop(),
    augment.RandomHorizontalFlip(),
    Resize((64, 72)),
    SanitizeBoundingBoxes(),
]


def boxes_of(i: int, size: tuple[int, int] = SIZE) -> Floats:
    """From none to five boxes, of one to 60 pixels a side."""
    rng = np.random.default_rng(i)
    corner = rng.uniform(0, 0.8, (i % 6, 2)) * size[::-1]
    far = np.minimum(corner + rng.uniform(1, 60, corner.shape), size[::-1])
    return np.concatenate([corner, far], 1).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields: dict[str, Any] = {
        "image": Image("raw", size=SIZE),
        "mask": Mask(size=SIZE, codec="raw"),
        "boxes": Boxes(),
        "kinds": Array(dtype="int64", dims=(None,)),
        "points": Keypoints(1),
        "number": Label(),
    }
    rows = []
    for i in range(NUM):
        boxes, image = boxes_of(i), np.zeros((*SIZE, 3), np.uint8)
        mask = np.zeros(SIZE, np.uint8)
        for k, (x1, y1, x2, y2) in enumerate(np.rint(boxes).astype(int).tolist(), 1):
            mask[y1:y2, x1:x2] = k
        image[...] = mask[..., None] * 40
        middles = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
        kinds = np.arange(1, len(boxes) + 1)
        values = {"boxes": boxes, "kinds": kinds, "points": middles}
        rows.append({"image": image, "mask": mask, **values, "number": i})
    path = tmp_path_factory.mktemp("boxes") / "a"
    packdata.pack(rows, path, fields)
    return path


@pytest.mark.parametrize(
    "op",
    [
        augment.RandomResize(30, 60),
        augment.RandomRotation(30, expand=True),
        RandomZoomOut(),
        RandomIoUCrop(),
    ],
    ids=lambda op: type(op).__name__,
)
def test_pictures_of_one_size_leave_with_sizes_of_their_own(folder: Path, op: Any) -> None:
    dataset: Any = ShardDataset(folder, fields=["image", "mask"], augment=[op])
    (batch,) = DataLoader(dataset, NUM, shuffle=False)

    sizes = [tuple(mask.shape) for mask in batch.mask]
    assert [tuple(image.shape[1:]) for image in batch.image] == sizes
    assert len(set(sizes)) > 3
    assert [tuple(dataset[i].image.shape[1:]) for i in range(NUM)] == sizes


def cropped(op: RandomIoUCrop, num: int = 300) -> tuple[Any, list[Floats]]:
    boxes = [boxes_of(i) for i in range(num)]
    sizes = np.array([SIZE] * num)
    return draw_geometry([op], sizes, seed=1, epoch=0, indices=np.arange(num), boxes=boxes), boxes


def test_what_one_crop_leaves_out_another_does_not_bring_back() -> None:
    boxes, sizes = [boxes_of(i) for i in range(50)], np.array([SIZE] * 50)

    def kept(*ops: RandomIoUCrop) -> list[list[bool]]:
        indices = np.arange(50)
        found = draw_geometry(ops, sizes, seed=1, epoch=0, indices=indices, boxes=boxes).kept
        return [each.tolist() for each in found or ()]

    crop, whole = RandomIoUCrop(max_scale=0.5), RandomIoUCrop(sampler_options=[1.0])
    assert not all(map(all, kept(crop)))
    assert kept(crop, whole) == kept(crop)


def test_boxes_are_kept_as_torchvision_does_at_the_same_crop() -> None:
    v2, tv = torchvision_v2(), torchvision_v2("torchvision.tv_tensors")
    geometry, boxes = cropped(RandomIoUCrop(), 40)
    num_cut = 0
    for i, given in enumerate(boxes):
        y, x, height, width = geometry.boxes[i].tolist()
        found = move_boxes(given, geometry.move(i))
        found *= geometry.kept[i][:, None]
        if (height, width) == SIZE:
            np.testing.assert_array_equal(found, given)
            continue
        num_cut += 1
        middle = (given[:, :2] + given[:, 2:]) / 2
        inside = ((middle > (x, y)) & (middle < (x + width, y + height))).all(1)
        params = {"top": y, "left": x, "height": height, "width": width}
        params["is_within_crop_area"] = torch.from_numpy(inside)
        theirs = tv.BoundingBoxes(torch.from_numpy(given), format="XYXY", canvas_size=SIZE)
        want = v2.RandomIoUCrop().transform(theirs, params)
        torch.testing.assert_close(torch.from_numpy(found), want.as_subclass(torch.Tensor))

        labels = torch.arange(len(given))
        sample = {"boxes": want, "labels": labels}
        sane = v2.SanitizeBoundingBoxes()(sample)
        kept = SanitizeBoundingBoxes().keeps(found)
        assert sane["labels"].tolist() == labels[kept].tolist()
    assert num_cut > 10


@pytest.mark.slow
def test_crops_are_as_often_and_as_large_as_torchvisions() -> None:
    v2, tv = torchvision_v2(), torchvision_v2("torchvision.tv_tensors")
    theirs = v2.RandomIoUCrop()
    torch.manual_seed(0)
    want = []
    for i in range(150):
        boxes = tv.BoundingBoxes(torch.from_numpy(boxes_of(i)), format="XYXY", canvas_size=SIZE)
        image = tv.Image(torch.zeros(3, *SIZE, dtype=torch.uint8))
        params = theirs.make_params([image, boxes])
        want.append([params.get("height", SIZE[0]), params.get("width", SIZE[1])])
    geometry, _ = cropped(RandomIoUCrop(), 150)
    found = geometry.sizes

    for each in (found, np.array(want)):
        assert ((each / each.max(0)) > 0.29).all()
    whole = [(each == SIZE).all(1).mean() for each in (found, np.array(want))]
    assert abs(whole[0] - whole[1]) < 0.12
    assert np.abs(found.mean(0) - np.mean(want, 0)).max() < 8


def test_a_crop_has_a_box_of_enough_overlap() -> None:
    op = RandomIoUCrop(sampler_options=[0.5, 1.0], max_scale=0.9)
    geometry, boxes = cropped(op)
    num_cut = 0
    for box, size, given in zip(geometry.boxes, geometry.sizes, boxes, strict=True):
        if tuple(size.tolist()) == SIZE:
            continue
        num_cut += 1
        crop = torch.tensor([[box[1], box[0], box[1] + box[3], box[0] + box[2]]]).float()
        overlaps = torchvision_v2("torchvision.ops").box_iou(torch.from_numpy(given), crop)
        assert overlaps.max() >= 0.5
        assert 0.5 <= size[1] / size[0] <= 2
    assert num_cut > 20
    empty = [i for i, given in enumerate(boxes) if not len(given)]
    assert (geometry.sizes[empty] == SIZE).all()


def test_fields_agree_and_rows_go_together(folder: Path) -> None:
    dataset: Any = ShardDataset(folder, augment=RECIPE)
    num_left = num_dropped = 0
    for i, sample in enumerate(dataset):
        assert len(sample.boxes) == len(sample.kinds) == len(sample.points)
        num_dropped += len(boxes_of(i)) - len(sample.boxes)
        for box, kind, point in zip(sample.boxes, sample.kinds, sample.points, strict=True):
            num_left += 1
            x1, y1, x2, y2 = box.tolist()
            assert 0 <= x1 < x2 <= 72
            assert 0 <= y1 < y2 <= 64
            ys, xs = (sample.mask == kind).nonzero(as_tuple=True)
            if len(ys):  # no other box lies over it
                assert xs.min() >= x1 - 1.5
                assert xs.max() + 1 <= x2 + 1.5
                assert ys.min() >= y1 - 1.5
                assert ys.max() + 1 <= y2 + 1.5
            x, y = point[0].tolist()
            assert x1 - 0.1 <= x <= x2 + 0.1 or x2 - x1 < 2 or x2 == 72 or x1 == 0
            assert y1 - 0.1 <= y <= y2 + 0.1 or y2 - y1 < 2 or y2 == 64 or y1 == 0
        around = sample.image[:, sample.mask == 7].float()
        assert not around.numel() or abs(around.mean() - 9) < 4
    assert num_left > 50
    assert num_dropped > 10


def test_draws_belong_to_the_sample(folder: Path) -> None:
    """In any batch, store and number of workers, whichever fields are served, and on a device."""
    dataset = ShardDataset(folder, augment=RECIPE)
    (whole,) = DataLoader(dataset, NUM, seed=3)
    stores = (dataset, RAMDataset(dataset, progress=False), dataset.replace(augment=RECIPE))
    for other in stores:
        for num_workers in (0, 2):
            loader = DataLoader(other, 7, shuffle=True, seed=3, num_workers=num_workers)
            for batch in loader:
                assert torch.equal(batch.image, whole.image[batch.number])
                assert torch.equal(batch.mask, whole.mask[batch.number])
                for name in ("boxes", "kinds", "points"):
                    rows = zip(getattr(batch, name), batch.number.tolist(), strict=True)
                    assert all(torch.equal(row, getattr(whole, name)[i]) for row, i in rows)
    again = pickle.loads(pickle.dumps(dataset))  # as a child process does
    assert torch.equal(again[3].boxes, dataset[3].boxes)
    (alone,) = DataLoader(dataset.replace(fields=["image", "kinds"]), NUM, seed=3)
    assert torch.equal(alone.image, whole.image)
    assert all(map(torch.equal, alone.kinds, whole.kinds))
    half, finish = moving_halves(dataset)
    there = finish(half.__getitems__(range(NUM)).batch)
    here: Any = [dataset[i] for i in range(NUM)]
    for i, sample in enumerate(here):
        assert (sample.image.int() - there.image[i].int()).abs().max() <= 1
        assert torch.equal(sample.mask, there.mask[i])
        assert torch.equal(sample.boxes, there.boxes[i])
        assert torch.equal(sample.kinds, there.kinds[i])


@pytest.mark.parametrize("codec", ["jpeg", "dct"])
def test_pictures_that_a_device_decodes_are_cropped_around_the_same_boxes(
    codec: str, tmp_path: Path
) -> None:
    sizes = [SIZE] * 8 if codec == "dct" else [SIZE, (70, 100)] * 4
    rows = []
    for i, size in enumerate(sizes):
        pixels = np.random.default_rng(i).integers(0, 256, (*size, 3), np.uint8)
        image = pixels if codec == "dct" else encode_jpeg(pixels, 95)
        rows.append({"image": image, "boxes": boxes_of(i, size)})
    kind = Image("dct", size=SIZE) if codec == "dct" else Image()
    packdata.pack(rows, tmp_path / "a", {"image": kind, "boxes": Boxes()})
    ops = [RandomIoUCrop(), Resize((48, 48)), SanitizeBoundingBoxes()]
    dataset: Any = ShardDataset(tmp_path / "a", augment=ops)

    def decode(files: Any, device: Any) -> list[torch.Tensor]:
        pictures = [np.asarray(Pillow.open(io.BytesIO(bytes(f.numpy())))) for f in files]
        return [torch.from_numpy(each.copy()).permute(2, 0, 1) for each in pictures]

    on_device = dataset if codec == "dct" else JpegOnDevice(dataset, decode=decode)
    half, finish = on_device.halves(torch.device("cpu"))
    there = finish(half.__getitems__(range(8)).batch)

    for i in range(8):
        here = dataset[i]
        assert torch.equal(there.boxes[i], here.boxes)
        assert (there.image[i].int() - here.image.int()).abs().float().mean() < 3


def test_views_drop_boxes_of_their_own(folder: Path) -> None:
    views = [augment.Views(cut=RECIPE, whole=[Resize((64, 72))])]
    dataset: Any = ShardDataset(folder, augment=views)
    for i, sample in enumerate(dataset[:9]):
        assert len(sample.boxes_cut) == len(sample.kinds_cut)
        assert len(sample.boxes_whole) == len(sample.kinds_whole) == len(boxes_of(i))


@pytest.mark.parametrize("size", [(20, 31), (50, 20)], ids=str)
def test_sizes_are_torchvisions(size: tuple[int, int]) -> None:
    functional = torchvision_v2("torchvision.transforms.v2.functional")
    v2, image = torchvision_v2(), torch.zeros(3, *size, dtype=torch.uint8)
    sizes, indices = np.array([size] * 50), np.arange(50)

    def drawn(op: Any) -> set[tuple[int, ...]]:
        found = draw_geometry([op], sizes, seed=0, epoch=0, indices=indices).sizes
        return set(map(tuple, found.tolist()))

    for angle in (10, 45, 90, 133, 180, -20):
        want = functional.rotate(image, angle, expand=True).shape[1:]
        assert drawn(augment.RandomRotation((angle, angle), expand=True)) == {tuple(want)}
    for scale in (0.5, 1.3):
        want = v2.ScaleJitter((64, 64), (scale, scale))(image).shape[1:]
        (found,) = drawn(ScaleJitter((64, 64), (scale, scale)))
        assert np.abs(np.array(found) - want).max() <= 1
    for most in (None, 60):
        want = v2.RandomShortestSize([40], most)(image).shape[1:]
        (found,) = drawn(RandomShortestSize(40, most))
        assert np.abs(np.array(found) - want).max() <= 1
    assert len(drawn(RandomShortestSize([40, 50, 60]))) == 3
    zoomed = drawn(RandomZoomOut(side_range=(1.5, 2), p=1))
    assert all(
        1.5 * n - 1 <= m <= 2 * n for each in zoomed for m, n in zip(each, size, strict=True)
    )


def test_an_expanded_rotation_has_torchvisions_pixels() -> None:
    functional = torchvision_v2("torchvision.transforms.v2.functional")
    y, x = np.mgrid[:30, :44]
    image = np.stack([y * 8, x * 5, y + x], 2).astype(np.uint8)
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    for angle in (20, 90, 200):
        ops = [augment.RandomRotation((angle, angle), "bilinear", expand=True, fill=3)]
        dataset: Any = RAMDataset.from_arrays(image=tensor[None], augment=ops)
        mode = functional.InterpolationMode.BILINEAR
        want = functional.rotate(tensor, angle, mode, expand=True, fill=[3])
        apart = (dataset[0].image.int() - want.int()).abs()
        assert (apart <= 2).float().mean() > 0.93


def test_wrong_use_is_an_error(folder: Path, tmp_path: Path) -> None:
    for wrong in (
        lambda: RandomIoUCrop(min_scale=0.9, max_scale=0.5),
        lambda: RandomIoUCrop(sampler_options=[]),
        lambda: SanitizeBoundingBoxes(0.5),
        lambda: RandomZoomOut(side_range=(0.5, 2)),
        lambda: RandomShortestSize([]),
        lambda: ScaleJitter((64, 64), (2, 1)),
    ):
        with pytest.raises(ValueError, match="must"):
            wrong()
    images = torch.zeros(9, 3, 16, 16, dtype=torch.uint8)
    for op in (RandomIoUCrop(), RandomShortestSize([8, 9, 10, 11])):
        with pytest.raises(BatchError):
            BatchAugment([op])(images, indices=range(9))
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(image=images, augment=[SanitizeBoundingBoxes()])[0]
    with pytest.raises(SchemaError):
        ShardDataset(folder, augment=[SanitizeBoundingBoxes(fields=["number"])])
    fields: dict[str, Any] = {
        "image": Image("raw", size=(8, 8)),
        "boxes": Boxes(),
        "text": Array(dtype="int64", dims=(None,)),
    }
    row = {"image": np.zeros((8, 8, 3), np.uint8), "text": np.arange(5)}
    row["boxes"] = np.array([[1, 1, 4, 4]], np.float32)
    packdata.pack([row], tmp_path / "a", fields)
    with pytest.raises((BatchError, SampleError)):
        ShardDataset(tmp_path / "a", augment=[SanitizeBoundingBoxes()])[0]
    named: Any = ShardDataset(tmp_path / "a", augment=[SanitizeBoundingBoxes(fields=[])])[0]
    assert len(named.text) == 5


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        ([["cat"], ["dog", "cat"], []], True),
        ([{"name": ["cat"]}, {"name": ["dog", "cat"]}, {"name": []}], True),
        ([["cat"], ["dog"], ["a", "caption"]], False),
        ([{"license": 1}, {"license": 2}, {}], False),
    ],
    ids=["lists", "lists by name", "other lists", "no lists"],
)
def test_lists_of_json_that_would_keep_the_entries_of_dropped_boxes_are_refused(
    tmp_path: Path, values: list[Any], is_refused: bool
) -> None:
    fields: dict[str, Any] = {
        "image": Image("raw", size=(8, 8)),
        "boxes": Boxes(),
        "kinds": Json(),
    }
    boxes = [np.array([[1, 1, 4, 4]] * n, np.float32).reshape(n, 4) for n in (1, 2, 0)]
    image = np.zeros((8, 8, 3), np.uint8)
    rows = [{"image": image, "boxes": b, "kinds": v} for b, v in zip(boxes, values, strict=True)]
    packdata.pack(rows, tmp_path / "a", fields)
    drops = SanitizeBoundingBoxes()

    if is_refused:
        with pytest.raises(SchemaError):
            ShardDataset(tmp_path / "a", augment=[drops])
    else:
        ShardDataset(tmp_path / "a", augment=[drops])
    ShardDataset(tmp_path / "a", augment=[augment.CenterCrop(4)])
    ShardDataset(tmp_path / "a", augment=[SanitizeBoundingBoxes(fields=["boxes"])])
    ShardDataset(tmp_path / "a", augment=[drops], fields=["image", "boxes"])


def test_masks_of_single_boxes_which_no_op_drops_are_refused(tmp_path: Path) -> None:
    masks = Array(dtype="uint8", dims=(None, 8, 8), spatial=2)
    fields = {"image": Image("raw", size=(8, 8)), "boxes": Boxes(), "masks": masks}
    row: dict[str, Any] = {
        "image": np.zeros((8, 8, 3), np.uint8),
        "masks": np.zeros((2, 8, 8), "u1"),
    }
    row["boxes"] = [[0, 0, 4, 4], [0, 0, 8, 8]]
    packdata.pack([row] * 4, tmp_path / "a", fields)

    for names in (None, ["masks"]):
        with pytest.raises(SchemaError, match="masks"):
            ShardDataset(tmp_path / "a", augment=[SanitizeBoundingBoxes(5, fields=names)])
    drops = [SanitizeBoundingBoxes(5, fields=[])]
    kept: Any = ShardDataset(tmp_path / "a", augment=drops)[0]
    assert (len(kept.boxes), len(kept.masks)) == (1, 2)
    served: Any = ShardDataset(tmp_path / "a", fields=[*fields, "sample_id"])
    with pytest.raises(BatchError, match="masks"):
        Mosaic(served.schema)(next(iter(DataLoader(served, 4))))
