"""Crops before images are made: what is cut off afterwards, and nothing else, is never made."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders import BatchAugment, DataLoader, ShardDataset, augment
from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.datasets.reading.coefficients import Moved
from loaders.device.augment import Moves, draw_moves
from loaders.device.blocks import Cut, cut_around
from loaders.device.decode import Coefficients, DctFinish, Yuv420Finish, _in_two
from loaders.schema import Image, Label
from tests.device.test_decode import host_half, pictures
from tests.packdata.packing import pack

CPU = torch.device("cpu")
SIZES = [(80, 96), (70, 83), (33, 130)]  # whole blocks, and odd rests of them


@cache
def coefficients(field: Image, num: int, side: int) -> Coefficients:
    """Return images of black and white alone: many values beyond int8."""
    codec, size = DctCodec(field), field.size
    assert size is not None
    images = [np.where(p < 128, 0, 255) for p in pictures(num, size, field.channels)]
    return host_half(codec, [codec.encode(image.astype(np.uint8)) for image in images], side)


def planes(size: tuple[int, int], num: int) -> torch.Tensor:
    codec: Any = codec_for(Image(size=size, codec="yuv420"))
    rows = [np.frombuffer(codec.encode(image), np.uint8) for image in pictures(num, size)]
    return torch.from_numpy(np.stack(rows))


def boxes(corners: list[tuple[int, int]], size: tuple[int, int]) -> Moves:
    table = torch.tensor([[corner, size, (i % 2, i // 2)] for i, corner in enumerate(corners)])
    return Moves(table, size, (2, 2), True)


def assert_crops_equal(finish: Any, half: Any, moves: Moves) -> None:
    """Compare crops of windows with crops of whole images, to the bit."""
    found = cut_around(moves, finish.size, finish.unit)
    assert found is not None
    cut, rest = found
    windows = finish(half, cut)
    assert windows.shape[2:] == (cut.size[0] * finish.unit, cut.size[1] * finish.unit)
    crop = BatchAugment([])

    assert torch.equal(crop(windows, moves=rest), crop(finish(half), moves=moves))


# -- the same pixels -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("channels", "subsampling"), [(3, "420"), (3, "444"), (1, "420")])
@pytest.mark.parametrize("scale", [1, 1 / 2, 1 / 8])
def test_crops_of_dct_are_those_of_whole_images(
    size: tuple[int, int], channels: int, subsampling: str, scale: float
) -> None:
    """In all four corners of the image, where chroma has neighbours on some sides, and between."""
    field = Image(size=size, codec="dct", channels=channels, subsampling=subsampling, quality=98)
    finish = DctFinish.of(field, scale)
    half = coefficients(field, 6, round(8 * scale))
    height, width = finish.size
    small = max(1, height // 3), max(1, width // 3)
    down, across = height - small[0], width - small[1]
    inside = (down // 2, across // 2)
    corners = [(0, 0), (0, across), (down, 0), (down, across), inside, (down // 3, across - 1)]

    assert_crops_equal(finish, half, boxes(corners, small))


@pytest.mark.parametrize("size", SIZES)
def test_crops_of_planes_are_those_of_whole_images(size: tuple[int, int]) -> None:
    small = 20, 30
    down, across = size[0] - small[0], size[1] - small[1]
    corners = [(0, 0), (0, across), (down, 0), (down, across), (5, 7), (4, 8)]

    assert_crops_equal(Yuv420Finish(size), planes(size, 6), boxes(corners, small))


@settings(max_examples=15)
@given(seed=st.integers(0, 999), height=st.integers(1, 40), width=st.integers(1, 50))
def test_random_crops_are_those_of_whole_images(seed: int, height: int, width: int) -> None:
    field = Image(size=(70, 83), codec="dct")
    finish, half = DctFinish.of(field), coefficients(field, 5, 8)
    ops: list[Any] = [augment.RandomCrop((height, width)), augment.RandomHorizontalFlip()]
    moves = draw_moves(ops, (70, 83), range(5), seed=seed, epoch=0)

    assert_crops_equal(finish, half, moves)


def test_resampled_boxes_read_nothing_beyond_their_window() -> None:
    field = Image(size=(96, 96), codec="dct")
    ops: list[Any] = [augment.RandomResizedCrop(30, scale=(0.05, 0.1))]
    moves = draw_moves(ops, (96, 96), range(7), seed=1, epoch=0)

    assert_crops_equal(DctFinish.of(field), coefficients(field, 7, 8), moves)


def test_only_blocks_that_a_crop_touches_count() -> None:
    """Other values far from it, but for the means, which are stored as differences."""
    field = Image(size=(96, 96), codec="dct", quality=98)
    finish, half = DctFinish.of(field), coefficients(field, 3, 8)
    moves = boxes([(0, 0), (3, 2), (6, 5)], (20, 20))
    cut, _ = cut_around(moves, finish.size, finish.unit) or pytest.fail("nothing is saved")
    other = half.planes.clone().view(3, 64, -1)
    luma = other[:, 1:, : 12 * 12].view(3, 63, 12, 12)
    luma[:, :, 4:] = 100
    luma[:, :, :, 4:] = 100

    noisy = Coefficients(other.view(3, -1), half.positions, half.adds)

    assert torch.equal(finish(noisy, cut), finish(half, cut))
    assert not torch.equal(finish(noisy), finish(half))


def test_windows_in_float32_are_within_one_step() -> None:
    """What a GPU computes, computed here."""
    field = Image(size=(64, 96), codec="dct", quality=95)
    half, cut = coefficients(field, 3, 8), Cut(torch.tensor([[0, 0], [2, 4], [1, 2]]), (2, 2))
    finish = DctFinish.of(field)
    wanted = finish(half, cut)

    finish._weights[CPU] = [_in_two(matrix / 2**24, CPU) for (matrix,) in finish._weights[CPU]]

    assert (finish(half, cut).int() - wanted.int()).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scale", [1, 1 / 2])
def test_cuda_makes_windows_within_one_step_of_the_cpu(scale: float) -> None:
    field = Image(size=(224, 320), codec="dct", quality=95)
    half, finish = coefficients(field, 4, round(8 * scale)), DctFinish.of(field, scale)
    cut = Cut(torch.tensor([[0, 0], [9, 14], [3, 5], [9, 0]]), (5, 6))
    wanted = finish(half, cut)

    there = finish(
        Coefficients(*(part.cuda() for part in half)), Cut(cut.corners.cuda(), cut.size)
    )

    assert (there.cpu().int() - wanted.int()).abs().max() <= 1


# -- what is worth it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "unit"),
    [
        ([augment.CenterCrop(60)], 16),
        ([augment.CenterCrop(80)], 16),
        ([augment.RandomCrop(20, padding=8)], 16),
        ([augment.Resize(32)], 8),
        ([augment.RandomHorizontalFlip()], 2),
        ([], 16),
    ],
)
def test_images_are_made_whole_where_nothing_is_saved(ops: list[Any], unit: int) -> None:
    """Where boxes leave the image, too: what lies outside is zero, which a window does not know."""
    moves = draw_moves(ops, (64, 64), range(32), seed=0, epoch=0)

    assert cut_around(moves, (64, 64), unit) is None


def test_an_empty_batch_has_no_window() -> None:
    moves = draw_moves([augment.CenterCrop(8)], (64, 64), [], seed=0, epoch=0)

    assert cut_around(moves, (64, 64), 16) is None


@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    unit=st.sampled_from([1, 2, 4, 8, 16]),
    shares=st.lists(st.tuples(*[st.floats(0, 0.999)] * 4), min_size=1, max_size=5),
)
def test_windows_hold_every_box_and_stay_in_the_image(size: Any, unit: int, shares: Any) -> None:
    rows = []
    for share in shares:
        corner = [int(share[axis] * size[axis]) for axis in (0, 1)]
        length = [1 + int(share[2 + a] * (size[a] - corner[a])) for a in (0, 1)]
        rows.append([corner, [min(length[a], size[a] - corner[a]) for a in (0, 1)], [0, 0]])
    moves = Moves(torch.tensor(rows), (8, 8), (2, 2), False)

    found = cut_around(moves, size, unit)

    if found is None:
        return
    cut, rest = found
    units = [-(-side // unit) for side in size]
    windows = torch.tensor(cut.size)
    assert (cut.corners >= 0).all()
    assert (cut.corners + windows <= torch.tensor(units)).all()
    assert cut.size[0] * cut.size[1] <= 0.75 * units[0] * units[1]
    assert torch.equal(rest.table[:, 0] + cut.corners * unit, moves.table[:, 0])
    assert torch.equal(rest.table[:, 1:], moves.table[:, 1:])
    assert (rest.table[:, 0] >= 0).all()
    assert (rest.table[:, 0] + rest.table[:, 1] <= windows * unit).all()


# -- in a loader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["thread", pytest.param("subprocess", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("codec", "scale"), [("dct", 1), ("dct", 1 / 2), ("yuv420", 1)])
def test_a_loader_serves_the_crops_that_the_host_would(
    tmp_path: Path, backend: Any, codec: str, scale: float
) -> None:
    """And its batches before they are finished say which part is made."""
    size = (96, 112)
    fields = {"image": Image(size=size, codec=codec), "label": Label()}
    samples = [{"image": p, "label": i} for i, p in enumerate(pictures(6, size))]
    folder = pack(tmp_path / "a", fields, samples, format="parquet")
    ops = [augment.RandomCrop(20), augment.RandomHorizontalFlip()]
    dataset = ShardDataset(folder, augment=ops, scale=scale)
    make: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 4, "num_workers": 1}

    host = list(DataLoader(dataset, augment_on="host", **make))
    device = list(DataLoader(dataset, augment_on="device", backend=backend, **make))

    for one, other in zip(host, device, strict=True):
        assert torch.equal(one.image, other.image)
        assert torch.equal(one.label, other.label)
    halves: Any = dataset.halves(torch.device("cpu"))
    unfinished = halves[0].__getitems__([0])
    assert isinstance(unfinished.batch.image, Moved)
    assert unfinished.batch.image.cut is not None
