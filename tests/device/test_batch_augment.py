from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from loaders import BatchAugment, Normalize, RAMDataset, augment
from loaders.augment.pixels import apply
from loaders.augment.planning import draw_geometry, fill_of
from loaders.datasets.reading.crops import cut
from loaders.errors import BatchError

OPS: dict[str, list[Any]] = {
    "train": [augment.RandomResizedCrop(24), augment.RandomHorizontalFlip()],
    "shrink": [augment.RandomResizedCrop(7, scale=(0.5, 1)), augment.RandomVerticalFlip()],
    "grow": [augment.RandomResizedCrop((70, 81), scale=(0.1, 0.4))],
    "cifar": [augment.RandomCrop(40, padding=6), augment.RandomHorizontalFlip()],
    "padded and resized": [augment.CenterCrop(60), augment.Resize((24, 31))],
    "eval": [augment.Resize(37), augment.CenterCrop(32)],
    "evaluation, fast": [augment.Resize(37, antialias=False), augment.CenterCrop(32)],
    "averaged, a little": [augment.Resize((18, 20), antialias=False)],
    "nothing": [],
}


def on_host(
    images: np.ndarray, ops: list[Any], indices: Any, *, nearest: bool, **draw: Any
) -> np.ndarray:
    """Do it by the host's ops, sample by sample: ``(N, H, W, C)`` or ``(N, H, W)``."""
    sizes = np.array([image.shape[:2] for image in images])
    planned = draw_geometry(ops, sizes, indices=np.asarray(indices), **draw)
    fill = 0 if nearest else fill_of(ops)
    settings: Any = {"nearest": nearest, "resampling": planned.resampling, "fill": fill}
    lists = (planned.places.tolist(), planned.sizes.tolist(), planned.flips.tolist())
    rows = zip(images, *lists, strict=True)
    return np.stack([apply(*row, **settings) for row in rows])


def pictures(
    channels: int, dtype: Any, num: int = 12, height: int = 45, width: int = 52
) -> np.ndarray:
    high = np.iinfo(dtype).max + 1
    return np.random.default_rng(0).integers(0, high, (num, height, width, channels)).astype(dtype)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("channels", "dtype"), [(3, np.uint8), (1, np.uint8), (7, np.uint8), (3, np.uint16)]
)
def test_images_are_those_of_the_host_within_a_step(name: str, channels: int, dtype: Any) -> None:
    images = pictures(channels, dtype)
    indices, draws = np.arange(100, 112), np.arange(12) % 3
    want = on_host(images, OPS[name], indices, nearest=False, seed=3, epoch=2, draws=draws)

    module = BatchAugment(OPS[name], seed=3)
    found = module(
        torch.from_numpy(images).permute(0, 3, 1, 2), indices=indices, epoch=2, draws=draws
    )

    assert found.dtype == torch.from_numpy(images).dtype
    step = (
        1 if dtype == np.uint8 else 40
    )  # OpenCV's weights have 11 bits: 2**-11 of 65,535 and a little
    difference = found.permute(0, 2, 3, 1).numpy().astype(np.int64) - want.astype(np.int64)
    assert np.abs(difference).max() <= step


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_beyond_a_warped_picture_its_edge_goes_on_as_on_the_host(interpolation: Any) -> None:
    turned = augment.RandomRotation((45, 45), interpolation=interpolation)
    ops = [turned, augment.RandomCrop(64, padding=4, padding_mode="edge")]
    images = np.full((3, 64, 64, 3), 200, np.uint8)
    want = RAMDataset.from_arrays(image=images, augment=ops)

    found = BatchAugment(ops)(torch.from_numpy(images).permute(0, 3, 1, 2), indices=range(3))

    assert (found == 200).all()
    assert all((want[i].image == 200).all() for i in range(3))


class Clones(TorchDispatchMode):
    """Counts the copies of whole tensors."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += func is torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("order", "num"), [("contiguous_format", 1), ("channels_last", 0)])
def test_a_batch_is_brought_into_order_once_whatever_the_number_of_taps(
    order: str, num: int
) -> None:
    images = torch.from_numpy(pictures(3, np.uint8)).permute(0, 3, 1, 2)
    images = images.contiguous(memory_format=getattr(torch, order))

    with Clones() as clones:  # type: ignore[no-untyped-call]
        BatchAugment([augment.Resize(7)])(images, indices=range(12))

    assert clones.num == num


@pytest.mark.parametrize("name", ["cifar", "nothing"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32])
def test_copied_pixels_are_exact(name: str, dtype: Any) -> None:
    images = pictures(2, np.uint16).astype(dtype)
    want = on_host(images, OPS[name], np.arange(12), nearest=True, seed=0, epoch=0)

    found = BatchAugment(OPS[name])(
        torch.from_numpy(images).permute(0, 3, 1, 2), indices=range(12)
    )

    assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), want)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_masks_move_with_their_images_and_keep_their_values(name: str, dtype: Any) -> None:
    images = pictures(3, np.uint8)
    masks = pictures(1, np.uint16)[..., 0].astype(dtype)
    want = on_host(masks, OPS[name], np.arange(12), nearest=True, seed=0, epoch=5)
    sizes = np.array([masks.shape[1:]] * 12)
    drawn = draw_geometry(OPS[name], sizes, indices=np.arange(12), seed=0, epoch=5)

    module = BatchAugment(OPS[name])
    pair = module(
        torch.from_numpy(images).permute(0, 3, 1, 2),
        torch.from_numpy(masks),
        indices=range(12),
        epoch=5,
    )

    clear = np.stack(
        [clear_centres(*row) for row in zip(drawn.boxes, drawn.sizes, drawn.flips, strict=True)]
    )
    assert np.array_equal(pair[1].numpy()[clear], want[clear])
    assert np.isin(pair[1].numpy(), [*masks.ravel(), 0]).all()
    assert clear.mean() > 0.5
    assert pair[0].shape[2:] == pair[1].shape[1:]


def clear_centres(box: np.ndarray, size: np.ndarray, flip: np.ndarray) -> np.ndarray:
    """Tell where a pixel's centre does not lie exactly between two pixels of the source."""
    lines = []
    for axis in (0, 1):
        at = np.arange(size[axis])
        clear = ((2 * at + 1) * box[2 + axis]) % (2 * size[axis]) != 0
        lines.append(
            (clear if box[2 + axis] != size[axis] else clear | True)[:: -1 if flip[axis] else 1]
        )
    return np.asarray(lines[0][:, None] & lines[1][None, :])


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    out=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    box=st.tuples(st.integers(0, 39), st.integers(0, 39), st.integers(1, 40), st.integers(1, 40)),
    flips=st.tuples(st.booleans(), st.booleans()),
)
def test_weights_are_those_of_the_formula(size: Any, out: Any, box: Any, flips: Any) -> None:
    """Against a float64 reference written from the rules, not from OpenCV: exact to half a step."""
    from loaders.device.pixels import move_images
    from loaders.device.planning import Moves

    image = np.random.default_rng(1).integers(0, 256, size).astype(np.uint8)
    is_area = box[2] > 2 * out[0] and box[3] > 2 * out[1]
    rows, columns = (
        weights(box[2 + axis], out[axis], is_area, flips[axis], box[axis], size[axis])
        for axis in (0, 1)
    )
    want = rows @ image.astype(np.float64) @ columns.T

    table = torch.tensor([[box[:2], box[2:], flips]], dtype=torch.int64)
    num_taps = tuple(-(-box[2 + axis] // out[axis]) + 1 if is_area else 2 for axis in (0, 1))
    found = move_images(torch.from_numpy(image)[None, None], Moves(table, out, num_taps))

    assert np.abs(found[0, 0].numpy() - want).max() <= 0.5 + 1e-3


def weights(
    length: int, size: int, is_area: bool, flip: bool, corner: int, extent: int
) -> np.ndarray:
    """One axis as a matrix, ``(size, extent)``: overlap of areas, or hats around pixel centres."""
    matrix = np.zeros((size, extent))
    for row in range(size):
        at = size - 1 - row if flip else row
        if is_area:
            begin, end = at * length / size, (at + 1) * length / size
            shares = {
                j: max(0.0, min(end, j + 1) - max(begin, j)) / (length / size)
                for j in range(length)
            }
        else:
            centre = min(max((at + 0.5) * length / size - 0.5, 0), length - 1)
            shares = {j: max(0.0, 1 - abs(j - centre)) for j in range(length)}
        for j, share in shares.items():
            if 0 <= corner + j < extent:
                matrix[row, corner + j] += share
    return matrix


def test_volumes_are_cropped_and_flipped() -> None:
    volumes = torch.arange(2 * 2 * 6 * 7 * 8, dtype=torch.int16).view(2, 2, 6, 7, 8)
    ops: list[Any] = [augment.RandomCrop((3, 4, 5)), augment.RandomFlip()]
    drawn = draw_geometry(
        ops, np.array([[6, 7, 8]] * 2), seed=0, epoch=0, indices=np.array([4, 9])
    )

    found = BatchAugment(ops)(volumes, indices=[4, 9])

    for i, (box, flip) in enumerate(zip(drawn.boxes.tolist(), drawn.flips.tolist(), strict=True)):
        assert np.array_equal(found[i].numpy(), cut(volumes[i].numpy(), box, flip))


class Turned(augment.Op):
    num_draws = 0

    def move(self, window: augment.Window, draws: Any) -> None:
        num = len(window.size)
        window.warp(np.tile(np.eye(3), (num, 1, 1)), np.ones(num, np.bool_))


@pytest.mark.parametrize("shape", [(2, 1, 9), (2, 1, 7, 8, 9)])
def test_an_op_of_your_own_that_warps_takes_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(BatchError):
        BatchAugment([Turned()])(torch.zeros(shape, dtype=torch.uint8), indices=[0, 1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16])
def test_volumes_are_those_of_a_float64_reference(dtype: torch.dtype) -> None:
    """Cropped, mirrored and normalized: numpy slices, and the formula in float64."""
    volumes = (torch.arange(3 * 2 * 6 * 7 * 8) % 251).to(dtype).view(3, 2, 6, 7, 8)
    ops: list[Any] = [augment.RandomCrop((3, 4, 5)), augment.RandomFlip()]
    sizes, indices = np.array([[6, 7, 8]] * 3), np.arange(3)
    boxes, _, flips = draw_geometry(ops, sizes, seed=2, epoch=1, indices=indices)
    mean, std = np.array([100.0, 90.0]), np.array([40.0, 50.0])

    found = BatchAugment(ops, seed=2, normalize=Normalize(mean.tolist(), std.tolist()))(
        volumes, indices=indices, epoch=1
    )

    for i in range(3):
        at = [slice(first, first + n) for first, n in zip(*np.split(boxes[i], 2), strict=True)]
        part = volumes[i].numpy().astype(np.float64)[:, *at]
        want = np.flip(part, tuple(1 + axis for axis in range(3) if flips[i, axis]))
        column = (2, 1, 1, 1)
        want = (want - mean.reshape(column)) / std.reshape(column)
        assert np.abs(found[i].double().numpy() - want).max() < 1e-6


@pytest.mark.parametrize("name", ["train", "cifar", "evaluation, fast"])
def test_normalized_images_are_those_of_a_float64_reference(name: str) -> None:
    """Weights, crop, mirror and formula in float64; half a step of uint8 is 0.01 here."""
    images = pictures(3, np.uint8, num=4)
    sizes, indices = np.array([[45, 52]] * 4), np.arange(4)
    boxes, lengths, flips = draw_geometry(OPS[name], sizes, seed=0, epoch=0, indices=indices)
    module = BatchAugment(OPS[name], normalize=Normalize([128.0] * 3, [50.0] * 3))

    found = module(torch.from_numpy(images).permute(0, 3, 1, 2), indices=indices)

    for i in range(4):
        is_area = bool((boxes[i, 2:] > 2 * lengths[i]).all())
        rows, columns = (
            weights(
                int(boxes[i, 2 + axis]), int(lengths[i, axis]), is_area, bool(flips[i, axis]),
                int(boxes[i, axis]), (45, 52)[axis],
            )
            for axis in (0, 1)
        )  # fmt: skip
        pixels = np.einsum("ih,hwc,jw->cij", rows, images[i].astype(np.float64), columns)
        assert np.abs(found[i].double().numpy() - (pixels - 128) / 50).max() <= 0.5 / 50 + 1e-4


def test_a_sample_is_the_same_in_any_batch() -> None:
    images = torch.from_numpy(pictures(3, np.uint8)).permute(0, 3, 1, 2)
    module = BatchAugment(OPS["train"], seed=1)

    whole = module(images, indices=range(12), epoch=1)
    some = module(images[3:5], indices=[3, 4], epoch=1)

    assert torch.equal(whole[3:5], some)


def test_normalizing_comes_last() -> None:
    images = torch.from_numpy(pictures(3, np.uint8)).permute(0, 3, 1, 2)
    normalize = Normalize.imagenet()

    plain = BatchAugment(OPS["train"])(images, indices=range(12))
    found = BatchAugment(OPS["train"], normalize=normalize)(images, indices=range(12))

    assert torch.equal(found, normalize(plain))


def test_an_empty_batch_stays_empty() -> None:
    found = BatchAugment(OPS["nothing"])(torch.empty(0, 3, 8, 8, dtype=torch.uint8), indices=[])

    assert found.shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    ("images", "masks", "indices"),
    [
        (torch.zeros(2, 3, 8, 8), (), [0, 1]),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), (), [0]),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), (torch.zeros(2, 4, 4),), [0, 1]),
    ],
)
def test_what_does_not_fit_is_refused(images: Any, masks: Any, indices: Any) -> None:
    with pytest.raises(BatchError):
        BatchAugment([augment.Resize((4, 5))])(images, *masks, indices=indices)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("bool", 1),
        ("uint8", 255),
        ("int16", -100),
        ("uint16", 65535),
        ("int64", -100),
        ("float32", -1),
    ],
)
def test_what_lies_outside_of_masks_is_what_the_ops_say(dtype: str, fill: int) -> None:
    ops = [augment.RandomCrop(40, pad_if_needed=True, fill_mask=fill), augment.RandomFlip()]
    masks = np.random.default_rng(0).integers(0, 2, (3, 30, 44)).astype(dtype)
    images = torch.from_numpy(masks.astype(np.uint8) + 1).unsqueeze(1)

    moved, found = BatchAugment(ops)(images, torch.from_numpy(masks), indices=range(3))

    inside = moved[:, 0] > 0
    want = np.where(inside, moved[:, 0].long() - 1, fill).astype(dtype)
    assert found.dtype == torch.from_numpy(masks).dtype
    assert np.array_equal(found.numpy(), want)
    assert inside.sum(dim=(1, 2)).tolist() == [30 * 40] * 3


@pytest.mark.parametrize(("dtype", "fill"), [("bool", 255), ("uint8", 256), ("uint8", -1)])
def test_masks_that_cannot_hold_what_lies_outside_are_refused(dtype: str, fill: int) -> None:
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    masks = torch.from_numpy(np.zeros((1, 8, 8), dtype))
    with pytest.raises(BatchError):
        BatchAugment([augment.CenterCrop(9, fill_mask=fill)])(images, masks, indices=[0])


def test_a_fill_of_another_number_of_channels_is_refused() -> None:
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(BatchError, match="has 3 values, the images have 1 channels"):
        BatchAugment([augment.RandomCrop(9, padding=1, fill=(1, 2, 3))])(images, indices=[0, 1])
