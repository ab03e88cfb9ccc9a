from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, JpegOnDevice, RAMDataset, ShardDataset, augment
from loaders.codecs.picture import PictureCodec
from loaders.errors import SchemaError
from loaders.schema import Array, Boxes, Image, Images, Keypoints, Label, Mask
from tests.packdata.packing import pack, pack_samples

OPS: list[Any] = [augment.RandomResizedCrop(20), augment.RandomHorizontalFlip()]


def scenes() -> RAMDataset:
    random = np.random.default_rng(0)
    return RAMDataset.from_arrays(
        schema={
            "image": Image(channels=3, size=(64, 50), codec="raw"),
            "mask": Mask(size=(64, 50), codec="raw", dtype="uint16"),
            "label": Label(),
        },
        image=random.integers(0, 256, (30, 64, 50, 3)).astype(np.uint8),
        mask=random.integers(0, 1 << 16, (30, 64, 50)).astype(np.uint16),
        label=np.arange(30),
    ).replace(augment=OPS)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_device_serves_what_the_host_serves(
    num_workers: int, backend: Any, device: Any
) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "pad": "mark"}
    host = DataLoader(scenes(), num_workers=0, augment_on="host", **settings)
    there = DataLoader(
        scenes(),
        augment_on="device",
        device=device,
        num_workers=num_workers,
        backend=backend,
        **settings,
    )

    for _ in range(2):  # each epoch has its own crops
        for want, got in zip(host, there, strict=True):
            assert (got.image.int() - want.image.int()).abs().max() <= 1
            assert (got.mask.int() == want.mask.int()).float().mean() > 0.9  # others: even centres
            assert got.label.tolist() == want.label.tolist()
            assert got.image.shape == (len(got.label), 3, 20, 20)


def test_a_resumed_run_draws_the_same() -> None:
    make: dict[str, Any] = {"batch_size": 4, "shuffle": True, "augment_on": "device"}
    loader = DataLoader(scenes(), **make)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    want = next(batches)

    again = DataLoader(scenes(), **make)
    again.load_state_dict(state)
    got = next(iter(again))

    assert got.label.tolist() == want.label.tolist()
    assert (got.image == want.image).all()


@pytest.mark.parametrize(("side", "size"), [(6, 9), (30, 45), (2, 1), (40, 25)])
def test_a_centre_between_two_pixels_takes_the_same_one_on_either(side: int, size: int) -> None:
    mask = np.random.default_rng(0).integers(0, 99, (4, side, side)).astype(np.uint8)
    dataset = RAMDataset.from_arrays(
        image=np.zeros((4, 1, side, side), np.uint8),
        mask=mask,
        schema={"mask": Mask(codec="raw", size=(side, side))},
        augment=[augment.Resize((size, size)), augment.RandomHorizontalFlip()],
    )

    host, device = (next(iter(DataLoader(dataset, 4, augment_on=on))) for on in ("host", "device"))

    assert torch.equal(host.mask, device.mask)


def test_without_ops_nothing_changes() -> None:
    loader = DataLoader(scenes().replace(augment=[]), batch_size=4, augment_on="device")

    assert loader._finisher is None
    assert next(iter(loader)).image.shape == (4, 3, 64, 50)


def test_what_only_the_host_can_do_is_refused(tmp_path: Path) -> None:
    pack_samples(tmp_path / "jpeg")
    several = {"image": Image(size=(8, 8), codec="raw"), "images": Images()}
    pixels = np.zeros((8, 8, 3), np.uint8)
    pack(tmp_path / "several", several, [{"image": pixels, "images": [pixels]}])
    for dataset in (
        ShardDataset(tmp_path / "jpeg", fields=["image"], augment=OPS),  # of several sizes
        ShardDataset(tmp_path / "several", augment=OPS),
        scenes().replace(transform=lambda sample: sample),
    ):
        with pytest.raises(SchemaError):
            DataLoader(dataset, augment_on="device")


def test_other_datasets_are_refused() -> None:
    DataLoader([1, 2, 3])
    with pytest.raises(ValueError):
        DataLoader([1, 2, 3], augment_on="device")


@pytest.mark.parametrize("batching", [{}, {"boxes": "pad"}, {"boxes": "offsets"}])
@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_boxes_and_keypoints_follow_what_the_device_does(
    tmp_path: Path, codec: str, batching: dict[str, str]
) -> None:
    """Those of the host's samples, whatever the device makes of the pixels."""
    rng = np.random.default_rng(0)
    size = (40, 60) if codec == "raw" else None
    fields = {
        "image": Image(size=size, codec=codec),
        "boxes": Boxes(),
        "points": Keypoints(2, flip_pairs=((0, 1),)),
    }
    rows = [
        {
            "image": rng.integers(0, 256, (*(size or (30 + i, 50)), 3), np.uint8),
            "boxes": np.sort(rng.uniform(0, 30, (i % 4, 2, 2)), 1)
            .reshape(-1, 4)
            .astype("float32"),
            "points": rng.uniform(0, 30, (1, 2, 2)).astype(np.float32),
        }
        for i in range(8)
    ]
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows), augment=OPS, batching=batching)
    late = dataset if codec == "raw" else JpegOnDevice(dataset, decode=_decode)
    on: Any = "device" if codec == "raw" else "auto"

    for num_workers in (0, 2):
        host = DataLoader(dataset, 4, shuffle=True, num_workers=num_workers, augment_on="host")
        device = DataLoader(late, 4, shuffle=True, num_workers=num_workers, augment_on=on)
        assert device._finisher is not None
        for _ in range(2):
            for one, other in zip(host, device, strict=True):
                assert one.image.shape == other.image.shape
                for values, twins in zip(one[1:], other[1:], strict=True):
                    assert type(values) is type(twins)
                    assert len(values) == len(twins)
                    assert all(map(torch.equal, values, twins))


def _decode(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    codec = PictureCodec(Image())
    return [torch.from_numpy(codec.decode(file.numpy())).permute(2, 0, 1) for file in files]


@pytest.mark.parametrize("who", ["pixels", "files"])
def test_autocast_does_not_reach_what_the_device_moves(tmp_path: Path, who: str) -> None:
    ops = [augment.RandomRotation(30), augment.GaussianBlur(5)]
    rows = [{"image": sample.image.numpy().transpose(1, 2, 0)} for sample in scenes()]
    datasets: dict[str, Any] = {
        "pixels": lambda: scenes().replace(augment=ops, fields=["image"]),
        "files": lambda: JpegOnDevice(
            ShardDataset(pack(tmp_path / "a", {"image": Image(codec="jpeg")}, rows), augment=ops),
            decode=_decode,
        ),
    }
    dataset, on = datasets[who](), "device" if who == "pixels" else "auto"
    settings: dict[str, Any] = {"batch_size": 8, "seed": 1, "augment_on": on}
    (plain, *_) = DataLoader(dataset, **settings)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found, *_) = DataLoader(dataset, **settings)

    assert all(map(torch.equal, found.image, plain.image))


def test_boxes_that_are_served_without_their_picture_are_refused(tmp_path: Path) -> None:
    fields = {"image": Image(), "boxes": Boxes()}
    rows = [{"image": np.zeros((8, 8, 3), np.uint8), "boxes": np.zeros((1, 4), np.float32)}]
    dataset = ShardDataset(pack(tmp_path / "a", fields, rows))

    with pytest.raises(SchemaError):
        dataset.replace(fields=["boxes"], augment=OPS)


def test_an_array_that_crops_move_is_left_to_the_host() -> None:
    data = RAMDataset.from_arrays(
        schema={"depth": Array(dtype="float32", dims=(64, 50), spatial=2)},
        image=np.zeros((4, 64, 50, 3), np.uint8),
        depth=np.zeros((4, 64, 50), np.float32),
    )
    DataLoader(data, augment_on="device")  # where nothing moves

    with pytest.raises(SchemaError, match="depth"):
        DataLoader(data.replace(augment=[augment.RandomCrop(20)]), augment_on="device")
