"""Crops and flips of arrays with any number of axes."""

import mmap
import pickle
import resource
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders import augment
from loaders.augment import (
    CenterCrop,
    RandomCrop,
    RandomFlip,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from loaders.augment.geometry import Geometry
from loaders.augment.planning import check_ops, draw_geometry
from loaders.datasets.reading.crops import cut, output_lengths
from loaders.errors import BatchError

Array = npt.NDArray[Any]


def plan_of(ops: Any, shape: tuple[int, ...], num: int = 1, **address: Any) -> Geometry:
    where: dict[str, Any] = {"seed": 3, "epoch": 4} | address
    return draw_geometry(ops, np.full((num, len(shape)), shape), indices=np.arange(num), **where)


def carried_out(array: Array, geometry: Geometry, row: int = 0) -> Array:
    box, _, flip = (rows[row].tolist() for rows in geometry)
    return cut(array, box, flip)


# -- where crops lie ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(9,), (8, 9), (7, 8, 9), (6, 7, 8, 9)])
def test_crops_of_any_number_of_axes_lie_inside(shape: tuple[int, ...]) -> None:
    """Every place comes up on every axis, and no other."""
    geometry = plan_of([RandomCrop(5)], shape, 2000)

    corners = geometry.boxes[:, : len(shape)]
    assert (geometry.boxes[:, len(shape) :] == 5).all()
    assert (geometry.sizes == 5).all()
    for axis, length in enumerate(shape):
        assert np.unique(corners[:, axis]).tolist() == list(range(length - 5 + 1))


def test_axes_are_drawn_independently() -> None:
    corners = plan_of([RandomCrop(8)], (16, 16, 16), 20_000).boxes[:, :3]

    assert np.abs(np.corrcoef(corners.T) - np.eye(3)).max() < 0.03
    counts = np.bincount(corners[:, 0])
    assert np.abs(counts / counts.mean() - 1).max() < 0.1


def test_a_draw_belongs_to_seed_epoch_index_and_draw() -> None:
    ops: list[augment.Op] = [RandomCrop((4, 5, 6)), RandomFlip()]
    sizes, indices, draws = np.full((9, 3), 50), np.arange(9), np.zeros(9, np.int64)

    def boxes(**changed: Any) -> list[list[int]]:
        given: dict[str, Any] = {
            "seed": 1,
            "epoch": 2,
            "indices": indices,
            "draws": draws,
        } | changed
        drawn: list[list[int]] = draw_geometry(ops, sizes, **given).boxes.tolist()
        return drawn

    first = boxes()
    alone = draw_geometry(ops, sizes[:1], seed=1, epoch=2, indices=indices[5:6]).boxes.tolist()
    assert first == boxes()
    assert first[5:6] == alone
    assert all(first != boxes(**c) for c in ({"seed": 2}, {"epoch": 3}, {"draws": draws + 1}))


def test_the_first_axes_draw_as_those_of_pictures() -> None:
    """The numbers of more axes begin with those of fewer: golden, as for pictures."""
    boxes = plan_of([RandomCrop(8), RandomFlip()], (64, 64, 64), 3)

    assert (
        boxes.boxes[:, :2].tolist() == plan_of([RandomCrop(8)], (64, 64), 3).boxes[:, :2].tolist()
    )
    assert boxes.boxes[:, :3].tolist() == GOLDEN_CORNERS
    assert boxes.flips.tolist() == GOLDEN_FLIPS


GOLDEN_CORNERS = [[21, 35, 17], [48, 26, 44], [21, 1, 21]]
GOLDEN_FLIPS = [[False, False, False], [True, False, False], [True, False, True]]


def test_one_length_is_for_all_axes_and_several_are_for_as_many() -> None:
    assert plan_of([CenterCrop(4)], (9, 10, 12)).boxes.tolist() == [[2, 3, 4, 4, 4, 4]]
    assert plan_of([CenterCrop((1, 2, 3))], (9, 10, 12)).boxes.tolist() == [[4, 4, 4, 1, 2, 3]]
    with pytest.raises(BatchError):
        plan_of([CenterCrop((4, 4))], (9, 10, 12))
    with pytest.raises(BatchError):
        plan_of([RandomCrop((4, 4, 4))], (9, 10))


def test_crops_keep_for_how_many_axes_they_are_when_they_travel() -> None:
    for op in (RandomCrop(4), CenterCrop(4)):
        copy = pickle.loads(pickle.dumps(op))

        assert copy == op
        assert plan_of([copy], (9, 9, 9)).sizes.tolist() == [[4, 4, 4]]


def test_flips_mirror_the_last_axes_or_those_named() -> None:
    def flips(op: Any, num_axes: int = 3) -> list[bool]:
        mirrored: list[bool] = plan_of([op], (5,) * num_axes).flips[0].tolist()
        return mirrored

    assert flips(RandomHorizontalFlip(1.0)) == [False, False, True]
    assert flips(RandomVerticalFlip(1.0)) == [False, True, False]
    assert flips(RandomFlip(1.0)) == [True, True, True]
    assert flips(RandomFlip(1.0, axes=(0, -1))) == [True, False, True]
    assert flips(RandomFlip(1.0, axes=(0, -3))) == [
        True,
        False,
        False,
    ]  # the same axis, named twice
    assert flips(RandomHorizontalFlip(1.0), 1) == [True]
    with pytest.raises(BatchError):
        flips(RandomVerticalFlip(1.0), 1)
    with pytest.raises(BatchError):
        flips(RandomFlip(axes=(3,)))


def test_each_axis_is_mirrored_by_a_draw_of_its_own() -> None:
    flips = plan_of([RandomFlip(0.3)], (5, 5, 5), 20_000).flips

    assert np.abs(flips.mean(axis=0) - 0.3).max() < 0.02
    assert np.abs(np.corrcoef(flips.T.astype(float)) - np.eye(3)).max() < 0.03


def test_a_volume_smaller_than_its_crop_is_named() -> None:
    with pytest.raises(BatchError):
        plan_of([RandomCrop((4, 4, 4))], (9, 3, 9))
    with pytest.raises(BatchError):
        plan_of([], (9, 0, 9))


@pytest.mark.parametrize("op", [Resize(8), RandomResizedCrop(8)])
def test_volumes_are_not_resampled(op: Any) -> None:
    with pytest.raises(BatchError):
        check_ops([op], 3)
    with pytest.raises(BatchError):
        plan_of([op], (9, 9, 9))


def test_volumes_have_no_canvas() -> None:
    with pytest.raises(BatchError):
        plan_of([augment.RandomZoomOut()], (9, 9, 9))


@pytest.mark.parametrize(
    "op",
    [
        Resize(8),
        augment.ScaleJitter((8, 8)),
        augment.RandomShortestSize(8),
        augment.RandomRotation(30),
        augment.RandomAffine(30),
        augment.RandomPerspective(),
        augment.ElasticTransform(),
    ],
)
def test_what_would_leave_arrays_beside_pictures_where_they_are_is_refused(op: Any) -> None:
    """A label map of two axes must not stay as it is where its picture is rotated."""
    with pytest.raises(BatchError):
        check_ops([op], 2)


def test_output_lengths_are_known_where_a_crop_sets_them() -> None:
    assert output_lengths([RandomCrop(8), RandomFlip()], (None, 9, 9)) == (8, 8, 8)
    assert output_lengths([RandomFlip()], (9, 8, 7)) == (9, 8, 7)
    assert output_lengths([RandomFlip()], (None, 8, 7)) is None
    assert output_lengths([], (None,)) is None


# -- carrying them out ----------------------------------------------------------------------------


def reference(array: Array, box: list[int], flip: list[bool]) -> Array:
    """The same by looking every place up, one axis after the other."""
    num = len(flip)
    for axis, (start, size, on) in enumerate(zip(box[:num], box[num:], flip, strict=True)):
        along = array.ndim - num + axis
        places = np.arange(start, start + size)[:: -1 if on else 1]
        is_inside = (places >= 0) & (places < array.shape[along])
        taken = np.take(array, np.where(is_inside, places, 0), along)
        shown = is_inside.reshape(-1, *[1] * (array.ndim - 1 - along))
        array = np.where(shown, taken, np.zeros((), array.dtype))
    return array


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Array, list[int], list[bool]]:
    num, leading = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    shape = draw(st.lists(st.integers(1, 6), min_size=num + leading, max_size=num + leading))
    dtype = draw(st.sampled_from(["uint8", "bool", "int16", ">f4", "float16", "int64"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    array = rng.integers(0, 200, shape).astype(dtype)
    corner = draw(st.lists(st.integers(-8, 8), min_size=num, max_size=num))
    lengths = draw(st.lists(st.integers(1, 9), min_size=num, max_size=num))
    return array, corner + lengths, draw(st.lists(st.booleans(), min_size=num, max_size=num))


@given(cuts())
def test_cut_equals_looking_each_place_up(case: tuple[Array, list[int], list[bool]]) -> None:
    """Inside, across an edge and wholly outside; mirrored or not; into memory that was used before."""
    array, box, flip = case

    expected = reference(array, box, flip)
    out = np.full(expected.shape, 77).astype(array.dtype)

    assert np.array_equal(cut(array, box, flip), expected)
    assert cut(array, box, flip, out=out) is out
    assert np.array_equal(out, expected)


def test_records_need_not_be_aligned() -> None:
    data = np.arange(4 * 6**3 + 1, dtype=np.int64).astype(np.uint8)
    crooked = np.frombuffer(data[1:], "<f4").reshape(6, 6, 6)
    straight = np.frombuffer(data[1:].copy(), "<f4").reshape(6, 6, 6)

    assert not crooked.flags.aligned
    for flip in ((False, False, False), (True, False, True)):
        found = cut(crooked, (1, 2, 3, 4, 3, 2), flip)
        assert found.tobytes() == cut(straight, (1, 2, 3, 4, 3, 2), flip).tobytes()


def test_a_place_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BatchError):
        cut(
            np.zeros((4, 4), np.uint8),
            (0, 0, 2, 2),
            (False, False),
            out=np.zeros((2, 3), np.uint8),
        )


def test_padding_brings_zeros_around_a_volume() -> None:
    volume = np.ones((4, 4, 4), np.uint8)

    geometry = plan_of([RandomCrop(8, pad_if_needed=True)], (4, 4, 4))

    padded = carried_out(volume, geometry)
    assert padded.shape == (8, 8, 8)
    assert padded.sum() == volume.sum()


def test_a_volume_and_its_mask_move_together() -> None:
    """The same draws for both, whatever their dtype and channels, and for a crop of a crop."""
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 9, (20, 21, 22)).astype(np.int64)
    volume = np.stack([mask, mask + 10]).astype(np.float32)
    ops = [RandomCrop((16, 12, 14)), RandomFlip(), RandomCrop(8), RandomHorizontalFlip()]

    for epoch in range(20):
        geometry = plan_of(ops, mask.shape, epoch=epoch)
        moved, moved_mask = carried_out(volume, geometry), carried_out(mask, geometry)

        assert moved.shape == (2, 8, 8, 8)
        assert np.array_equal(moved[0], moved_mask)
        assert np.array_equal(moved[1], moved_mask + 10)


def test_a_crop_touches_the_pages_it_lies_on_and_no_others() -> None:
    """64 x 64 x 64 of 512 x 512 x 512 bytes: 8 or 9 pages in each of 64 slices, of 32,768 in all."""
    memory = mmap.mmap(-1, 512**3)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    volume = np.frombuffer(memory, np.uint8).reshape(512, 512, 512)
    out = np.ones((64, 64, 64), np.uint8)

    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    cut(volume, (200, 201, 202, 64, 64, 64), (False, True, False), out=out)
    num_faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    assert not out.any()
    assert 64 * 8 <= num_faults <= 64 * 9 + 200
