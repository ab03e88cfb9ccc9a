from __future__ import annotations

import itertools
import math
import pickle
import tracemalloc
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaders import augment
from loaders.augment import (
    CenterCrop,
    Op,
    RandomCrop,
    RandomFlip,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    Views,
    planning,
)
from loaders.augment.geometry import Geometry, Move
from loaders.augment.pixels import apply, move_boxes, reduced_boxes, reductions
from loaders.augment.planning import as_augment, draw_geometry, fill_mask_of, fill_of, output_size
from loaders.errors import BatchError
from loaders.rng import key64, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

NO_FLIP, HORIZONTAL = (False, False), (False, True)
TRAIN: list[Op] = [RandomResizedCrop(32), RandomHorizontalFlip(), RandomVerticalFlip(0.3)]
RECIPES: dict[str, list[Op]] = {
    "train": TRAIN,
    "eval": [Resize(48), CenterCrop(40)],
    "cifar": [RandomHorizontalFlip(), RandomCrop(32, padding=4, pad_if_needed=True)],
    "long": [
        RandomVerticalFlip(),
        Resize((60, 70)),
        RandomHorizontalFlip(),
        RandomCrop((41, 53), padding=2),
        RandomHorizontalFlip(),
        RandomResizedCrop(24),
        CenterCrop((20, 30)),
    ],
}


def some_sizes(num: int, low: int = 1, high: int = 400) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(low, high, (num, 2))


def plan_at(ops: Sequence[Op], *sizes: tuple[int, int], epoch: int = 0, seed: int = 0) -> Geometry:
    indices = np.arange(len(sizes))
    return draw_geometry(ops, np.array(sizes), seed=seed, epoch=epoch, indices=indices)


def only_box(ops: Sequence[Op], height: int, width: int) -> list[int]:
    box: list[int] = plan_at(ops, (height, width)).boxes[0].tolist()
    return box


def assert_same(left: Geometry, right: Geometry) -> None:
    for mine, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def picked(geometry: Geometry, rows: Any) -> Geometry:
    return Geometry(geometry.boxes[rows], geometry.sizes[rows], geometry.flips[rows])


def same_rows(left: Geometry, right: Geometry) -> float:
    equal = (left.boxes == right.boxes).all(1) & (left.flips == right.flips).all(1)
    return float(equal.mean())


# --- Parameters belong to the sample --------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_parameters_do_not_depend_on_the_batch(recipe: str) -> None:
    ops, num = RECIPES[recipe], 64
    sizes, indices, draws = some_sizes(num), np.arange(num) * 1000, np.arange(num) % 3
    whole = draw_geometry(ops, sizes, seed=5, epoch=2, indices=indices, draws=draws)
    order = np.random.default_rng(1).permutation(num)

    shuffled = draw_geometry(
        ops, sizes[order], seed=5, epoch=2, indices=indices[order], draws=draws[order]
    )
    alone = [
        draw_geometry(ops, sizes[[i]], seed=5, epoch=2, indices=indices[[i]], draws=draws[[i]])
        for i in range(num)
    ]

    assert_same(shuffled, picked(whole, order))
    for i, geometry in enumerate(alone):
        assert_same(geometry, picked(whole, [i]))


def test_every_word_of_the_address_changes_the_parameters() -> None:
    num = 500
    sizes, indices = np.full((num, 2), 300), np.arange(num)
    base: dict[str, Any] = {"seed": 0, "epoch": 0, "indices": indices, "view": 0}
    zero, one = np.zeros(num, np.int64), np.ones(num, np.int64)
    reference = draw_geometry(TRAIN, sizes, **base)

    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"epoch": 1},
        {"view": 1},
        {"draws": one},
        {"indices": indices + num},
    ]

    assert_same(reference, draw_geometry(TRAIN, sizes, **base))
    assert_same(reference, draw_geometry(TRAIN, sizes, **base, draws=zero))
    for other in others:
        assert same_rows(reference, draw_geometry(TRAIN, sizes, **(base | other))) < 0.02


def test_equal_ops_at_two_positions_draw_differently() -> None:
    twice = plan_at([RandomHorizontalFlip(), RandomHorizontalFlip()], *[(9, 9)] * 400)

    assert 0.4 < twice.flips[:, 1].mean() < 0.6


def test_parameters_are_stable_across_releases() -> None:
    sizes = np.array([[375, 500], [500, 333], [32, 32]])

    train = draw_geometry(TRAIN, sizes, seed=1, epoch=2, indices=np.array([0, 7, 10**12]))
    cifar = draw_geometry(
        RECIPES["cifar"], sizes, seed=1, epoch=2, indices=np.array([0, 7, 10**12])
    )

    assert train.boxes.tolist() == GOLDEN_TRAIN_BOXES
    assert train.flips.tolist() == GOLDEN_TRAIN_FLIPS
    assert cifar.boxes.tolist() == GOLDEN_CIFAR_BOXES


GOLDEN_TRAIN_BOXES = [[131, 219, 214, 177], [266, 73, 193, 239], [4, 4, 21, 22]]
GOLDEN_TRAIN_FLIPS = [[True, True], [False, False], [True, True]]
GOLDEN_CIFAR_BOXES = [[95, 132, 32, 32], [403, 127, 32, 32], [-2, 1, 32, 32]]


# --- The vectorized plan equals a slow scalar one -------------------------------------------


class Axis:
    """One axis of one sample's frame: source = start + step * frame, exactly."""

    def __init__(self, length: int) -> None:
        self.start, self.step, self.length = Fraction(0), Fraction(1), length

    def crop(self, corner: int, length: int) -> None:
        self.start += self.step * corner
        self.length = length

    def resize(self, length: int) -> None:
        self.step *= Fraction(self.length, length)
        self.length = length

    def mirror(self) -> None:
        self.start += self.step * self.length
        self.step = -self.step

    def edges(self) -> tuple[Fraction, Fraction]:
        first, last = sorted((self.start, self.start + self.step * self.length))
        return first, last


def scalar_resized_crop(op: RandomResizedCrop, axes: list[Axis], u: list[float]) -> None:
    """Write out torchvision's get_params with the sample's own random numbers."""
    height, width = axes[0].length, axes[1].length
    log_low, log_high = math.log(op.ratio[0]), math.log(op.ratio[1])
    for i in range(10):
        area = height * width * (op.scale[0] + (op.scale[1] - op.scale[0]) * u[i])
        ratio = math.exp(log_low + (log_high - log_low) * u[10 + i])
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1))
            break
    else:
        w, h = width, height
        if width / height < min(op.ratio):
            h = round(w / min(op.ratio))
        elif width / height > max(op.ratio):
            w = round(h * max(op.ratio))
        top, left = (height - h) // 2, (width - w) // 2
    axes[0].crop(top, h)
    axes[1].crop(left, w)
    scalar_resize(op.size, axes)


def scalar_resize(size: Any, axes: list[Axis]) -> None:
    if isinstance(size, int):
        short = min(axis.length for axis in axes)
        size = tuple(int(size * axis.length / short) for axis in axes)
    for axis, length in zip(axes, size, strict=True):
        axis.resize(length)


def scalar_random_crop(op: RandomCrop, axes: list[Axis], u: list[float]) -> None:
    assert isinstance(op.size, tuple)
    for axis, length, number in zip(axes, op.size, u, strict=True):
        padding, padded = op.padding, axis.length + 2 * op.padding
        if op.pad_if_needed and padded < length:
            padding, padded = padding + length - padded, padded + 2 * (length - padded)
        axis.crop(int(number * (padded - length + 1)) - padding, length)


def scalar_center_crop(op: CenterCrop, axes: list[Axis]) -> None:
    assert isinstance(op.size, tuple)
    for axis, length in zip(axes, op.size, strict=True):
        missing = length - axis.length
        axis.crop(-(missing // 2) if missing > 0 else round(-missing / 2), length)


def scalar_plan(ops: Sequence[Op], size: tuple[int, int], index: int) -> list[Axis]:
    axes = [Axis(size[0]), Axis(size[1])]
    for position, op in enumerate(ops):
        key = key64(planning._DOMAIN, 3, 4, 5, position)
        words = np.array([index]), np.array([6])
        u = uniform(key, *words, num=op.num_draws)[0].tolist()
        if isinstance(op, RandomResizedCrop):
            scalar_resized_crop(op, axes, u)
        elif isinstance(op, RandomCrop):
            scalar_random_crop(op, axes, u)
        elif isinstance(op, CenterCrop):
            scalar_center_crop(op, axes)
        elif isinstance(op, Resize):
            scalar_resize(op.size, axes)
        elif isinstance(op, RandomHorizontalFlip) and u[0] < op.p:
            axes[1].mirror()
        elif isinstance(op, RandomVerticalFlip) and u[0] < op.p:
            axes[0].mirror()
    return axes


def assert_rounded(got: int, exact: Fraction) -> None:
    """A half goes up, and so does what is a hair below it."""
    assert abs(got - exact) <= Fraction(1, 2) + Fraction(1, 2**19)
    if exact.denominator <= 2:
        assert got == math.floor(exact + Fraction(1, 2))


lengths = st.integers(1, 60)
crop_sizes = st.tuples(lengths, lengths)
ops_strategy: st.SearchStrategy[Op] = st.one_of(
    st.builds(RandomResizedCrop, crop_sizes),
    st.builds(RandomCrop, crop_sizes, st.integers(0, 5), st.just(True)),
    st.builds(CenterCrop, crop_sizes),
    st.builds(Resize, st.one_of(lengths, crop_sizes)),
    st.builds(RandomHorizontalFlip, st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(RandomVerticalFlip, st.sampled_from([0.0, 0.5, 1.0])),
)
image_sizes = st.tuples(st.integers(1, 300), st.integers(1, 300))


@example([Resize((44, 1)), CenterCrop((3, 1)), RandomResizedCrop(1)], [(47, 1)])  # ends on 23.5
@example([Resize((30, 1)), CenterCrop((26, 1)), CenterCrop((12, 1))], [(5, 1)])  # starts on 3/2
@given(st.lists(ops_strategy, max_size=5), st.lists(image_sizes, min_size=1, max_size=4))
def test_plan_equals_a_scalar_reference(ops: list[Op], sizes: list[tuple[int, int]]) -> None:
    indices, draws = np.arange(len(sizes)) + 100, np.full(len(sizes), 6)

    geometry = draw_geometry(
        ops, np.array(sizes), seed=3, epoch=4, indices=indices, draws=draws, view=5
    )

    for row, size in enumerate(sizes):
        axes = scalar_plan(ops, size, 100 + row)
        assert geometry.sizes[row].tolist() == [axis.length for axis in axes]
        assert geometry.flips[row].tolist() == [axis.step < 0 for axis in axes]
        for number, axis in enumerate(axes):
            start, extent = geometry.boxes[row, [number, number + 2]].tolist()
            first, last = axis.edges()
            if math.floor(first + Fraction(1, 2)) < math.floor(last + Fraction(1, 2)):
                assert_rounded(start, first)
                assert_rounded(start + extent, last)
            else:  # less than a pixel: the one at its centre
                assert extent == 1
                assert abs(start - math.floor((first + last) / 2)) <= 1


@given(st.lists(ops_strategy, max_size=5), image_sizes)
def test_output_size_is_what_plan_gives(ops: list[Op], size: tuple[int, int]) -> None:
    fixed = output_size(ops)

    planned = plan_at(ops, size, (size[1], 2 * size[0]))

    if fixed is None:
        assert output_size([Resize(size), *ops]) == tuple(plan_at(ops, size).sizes[0].tolist())
    else:
        assert planned.sizes.tolist() == [list(fixed)] * 2


# --- Distributions --------------------------------------------------------------------------


def test_resized_crops_have_uniform_area_and_log_uniform_ratio() -> None:
    geometry = plan_at([RandomResizedCrop(8, scale=(0.1, 0.5))], *[(1000, 1000)] * 20_000)

    height, width = geometry.boxes[:, 2].astype(float), geometry.boxes[:, 3].astype(float)
    area = (height * width / 1e6 - 0.1) / 0.4
    ratio = (np.log(width / height) / math.log(4 / 3) + 1) / 2
    for values in (area, ratio):
        deviation = np.abs(np.sort(values) - (np.arange(20_000) + 0.5) / 20_000)
        assert deviation.max() < 0.014  # Kolmogorov-Smirnov, about 1 in 1,000
    assert abs(np.corrcoef(area, ratio)[0, 1]) < 0.03


def test_resized_crops_are_placed_uniformly_and_inside() -> None:
    geometry = plan_at([RandomResizedCrop(8)], *[(300, 200)] * 20_000)

    room = np.array([300, 200]) - geometry.boxes[:, 2:]
    assert (geometry.boxes >= 0).all()
    assert (geometry.boxes[:, :2] <= room).all()
    assert (geometry.boxes[:, :2] == room).any(axis=0).all()
    place = (geometry.boxes[:, :2] + 0.5) / (room + 1)
    assert np.abs(place.mean(axis=0) - 0.5).max() < 0.01
    assert np.abs(place.std(axis=0) - 12**-0.5).max() < 0.01


def test_resized_crop_falls_back_to_the_centre_when_nothing_fits() -> None:
    op = RandomResizedCrop(8, scale=(0.9, 1.0))

    assert only_box([op], 20_000, 10) == [9993, 0, 13, 10]
    assert only_box([op], 10, 20_000) == [0, 9993, 10, 13]
    assert only_box([RandomResizedCrop(8, scale=(2.0, 3.0))], 11, 12) == [0, 0, 11, 12]
    assert only_box([RandomResizedCrop(8, ratio=(0.1, 0.2))], 1, 1) == [0, 0, 1, 1]


def test_random_crop_covers_every_place_equally() -> None:
    geometry = plan_at([RandomCrop(4, padding=2)], *[(5, 4)] * 12_000)

    for axis, places in ((0, 6), (1, 5)):
        values, counts = np.unique(geometry.boxes[:, axis], return_counts=True)
        assert values.tolist() == list(range(-2, places - 2))
        assert np.abs(counts / 12_000 * places - 1).max() < 0.1


@pytest.mark.parametrize("op", [RandomHorizontalFlip, RandomVerticalFlip])
@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_flips_come_with_their_probability(op: type[RandomHorizontalFlip], p: float) -> None:
    axis = int(op is RandomHorizontalFlip)

    flips = plan_at([op(p)], *[(3, 3)] * 10_000).flips

    assert not flips[:, 1 - axis].any()
    assert flips[:, axis].mean() == pytest.approx(p, abs=0.015 if 0 < p < 1 else 0)


# --- Composition, by hand -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "size", "box"),
    [
        ([], (7, 5), [0, 0, 7, 5]),
        ([Resize(256), CenterCrop(224)], (256, 256), [16, 16, 224, 224]),
        ([Resize(256), CenterCrop(224)], (256, 341), [16, 58, 224, 224]),
        ([Resize(256), CenterCrop(224)], (512, 1024), [32, 288, 448, 448]),
        ([Resize(100), Resize(50), CenterCrop(30)], (50, 60), [10, 15, 30, 30]),
        ([CenterCrop((4, 6))], (7, 9), [2, 2, 4, 6]),  # 1.5 goes to 2, as does torchvision
        ([CenterCrop((4, 6))], (9, 7), [2, 0, 4, 6]),  # 2.5 goes to 2, 0.5 to 0
        ([CenterCrop((5, 6))], (2, 1), [-1, -2, 5, 6]),
        ([CenterCrop(20), CenterCrop(4)], (6, 6), [1, 1, 4, 4]),
        ([CenterCrop(2), CenterCrop(6)], (6, 6), [0, 0, 6, 6]),  # shows the image, not zeros
        ([Resize((4, 4)), CenterCrop(2)], (2, 8), [1, 2, 1, 4]),
        ([Resize(100), CenterCrop(2)], (1, 1), [0, 0, 1, 1]),
        ([CenterCrop(3)], (1, 1), [-1, -1, 3, 3]),
        ([Resize(20), CenterCrop(10)], (20_000, 10), [9998, 3, 5, 5]),
        ([RandomCrop(2)], (2, 2), [0, 0, 2, 2]),
    ],
)
def test_boxes_by_hand(ops: list[Op], size: tuple[int, int], box: list[int]) -> None:
    assert only_box(ops, *size) == box


def test_resize_keeps_the_aspect_ratio_or_takes_both_sides() -> None:
    assert plan_at([Resize(256)], (375, 500), (20_000, 10)).sizes.tolist() == [
        [256, 341],
        [512_000, 256],
    ]
    assert plan_at([Resize((3, 4))], (375, 500), (1, 1)).sizes.tolist() == [[3, 4], [3, 4]]


class Corner:
    """Crop a fixed rectangle: an op of a user's own."""

    num_draws: ClassVar[int] = 0

    def __init__(self, y: int, x: int, height: int, width: int) -> None:
        self.corner, self.size = np.array([y, x]), np.array([height, width])

    def move(self, window: augment.Window, draws: npt.NDArray[np.float64]) -> None:
        window.crop(self.corner, self.size)

    def resized(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return int(self.size[0]), int(self.size[1])


def test_a_flip_mirrors_the_crops_after_it() -> None:
    image = np.arange(6 * 8).reshape(6, 8).astype(np.uint8)
    flip: list[Op] = [RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)]
    corner: list[Op] = [Corner(1, 2, 3, 5)]

    before, after = plan_at([*flip, *corner], (6, 8)), plan_at([*corner, *flip], (6, 8))

    assert before.boxes.tolist() == [[2, 1, 3, 5]]
    assert after.boxes.tolist() == [[1, 2, 3, 5]]
    expected = {"before": image[::-1, ::-1][1:4, 2:7], "after": image[1:4, 2:7][::-1, ::-1]}
    for name, geometry in (("before", before), ("after", after)):
        box, size, flips = (rows[0].tolist() for rows in geometry)
        np.testing.assert_array_equal(apply(image, box, size, flips), expected[name])


def test_two_flips_cancel() -> None:
    ops: list[Op] = [RandomHorizontalFlip(1.0), Corner(0, 1, 2, 3), RandomHorizontalFlip(1.0)]

    geometry = plan_at(ops, (2, 9))

    assert geometry.boxes.tolist() == [[0, 5, 2, 3]]
    assert not geometry.flips.any()


@given(st.data(), st.integers(1, 12), st.integers(1, 12))
def test_chains_without_resizing_equal_numpy_step_by_step(
    data: st.DataObject, height: int, width: int
) -> None:
    """Crops inside the frame and flips, in any order, against slicing."""
    image = np.arange(height * width, dtype=np.int64).reshape(height, width)
    ops: list[Op] = []
    expected = image
    for _ in range(data.draw(st.integers(0, 5))):
        kind = data.draw(st.sampled_from(["crop", "horizontal", "vertical"]))
        if kind == "crop":
            y, x = (data.draw(st.integers(0, length - 1)) for length in expected.shape)
            h = data.draw(st.integers(1, expected.shape[0] - y))
            w = data.draw(st.integers(1, expected.shape[1] - x))
            ops.append(Corner(y, x, h, w))
            expected = expected[y : y + h, x : x + w]
        else:
            flip = RandomHorizontalFlip if kind == "horizontal" else RandomVerticalFlip
            ops.append(flip(1.0))
            expected = expected[:, ::-1] if kind == "horizontal" else expected[::-1]

    box, size, flips = (rows[0].tolist() for rows in plan_at(ops, (height, width)))

    np.testing.assert_array_equal(apply(image, box, size, flips), expected)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 10), (10, 20_000), (1, 7)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_extreme_images_pass_every_recipe(recipe: str, size: tuple[int, int]) -> None:
    image = np.full((*size, 3), 9, np.uint8)

    geometry = plan_at(RECIPES[recipe], *[size] * 8)

    for box, out_size, flips in zip(*(rows.tolist() for rows in geometry), strict=True):
        result = apply(image, box, out_size, flips)
        assert result.shape == (*out_size, 3)
        assert result.any()


def test_boxes_stay_inside_the_image_without_padding() -> None:
    sizes = some_sizes(2000, 1, 200)
    ops: list[Op] = [Resize((37, 53)), RandomCrop((20, 31)), RandomResizedCrop(9)]

    boxes = draw_geometry(ops, sizes, seed=0, epoch=0, indices=np.arange(2000)).boxes

    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


# --- What is refused ------------------------------------------------------------------------


def test_ops_refuse_what_they_cannot_mean() -> None:
    several: list[Any] = [
        lambda: RandomResizedCrop(0),
        lambda: RandomCrop((3, -1)),
        lambda: RandomCrop(()),
        lambda: CenterCrop((3, 3, 0)),
        lambda: RandomResizedCrop((3, 3, 3)),  # type: ignore[arg-type]
        lambda: Resize(2.5),  # type: ignore[arg-type]
        lambda: Resize(True),
        lambda: RandomCrop(3, padding=-1),
        lambda: RandomResizedCrop(3, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(3, ratio=(0.0, 1.0)),
        lambda: RandomHorizontalFlip(1.5),
        lambda: RandomVerticalFlip(math.nan),
        lambda: RandomFlip(1.5),
        lambda: RandomFlip(axes=(0.5,)),  # type: ignore[arg-type]
        lambda: RandomFlip(axes=1),  # type: ignore[arg-type]
        Views,
        *(lambda name=name: Views(**{name: []}) for name in ("count", "class", "a b", "_x")),
    ]
    for make in several:
        with pytest.raises(ValueError):
            make()


def test_an_image_smaller_than_its_crop_is_named() -> None:
    with pytest.raises(BatchError):
        draw_geometry(
            [RandomCrop(32)],
            np.array([[32, 32], [20, 40]]),
            seed=0,
            epoch=0,
            indices=np.array([5, 7]),
        )


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(BatchError):
        draw_geometry([], np.array([[1, 2], [0, 2]]), seed=0, epoch=0, indices=np.array([5, 6]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_empty_batch_has_an_empty_plan(recipe: str) -> None:
    geometry = draw_geometry(
        RECIPES[recipe], np.empty((0, 2), np.int64), seed=0, epoch=0, indices=np.empty(0, np.int64)
    )

    assert len(geometry) == 0
    assert [rows.shape for rows in geometry] == [(0, 4), (0, 2), (0, 2)]


# --- Ops as values --------------------------------------------------------------------------


def test_ops_are_values_that_pickle() -> None:
    views = Views(weak=[Resize(9), RandomCrop([8, 8])], strong=TRAIN)  # type: ignore[arg-type]

    copy = pickle.loads(pickle.dumps(views))

    assert copy == views
    assert hash(copy) == hash(views)
    assert RandomCrop([8, 8]) == RandomCrop(8)  # type: ignore[arg-type]
    assert Views(a=[RandomHorizontalFlip()]) != Views(a=[RandomVerticalFlip()])
    assert not hasattr(RandomHorizontalFlip(), "__dict__")


def test_views_are_named_lists_with_draws_of_their_own() -> None:
    views = Views(weak=TRAIN, strong=TRAIN)

    plans = [
        draw_geometry(
            ops, np.full((300, 2), 99), seed=0, epoch=0, indices=np.arange(300), view=view
        )
        for view, (_, ops) in enumerate(views)
    ]

    assert [name for name, _ in views] == ["weak", "strong"]
    assert len(views) == 2
    assert same_rows(*plans) < 0.02


# --- Pixels ---------------------------------------------------------------------------------


def bilinear(image: Array, height: int, width: int) -> npt.NDArray[np.float64]:
    """Bilinear between pixel centres in float64, edges continued."""
    result = image.astype(np.float64)
    for axis, count in ((0, height), (1, width)):
        length = result.shape[axis]
        place = (np.arange(count) + 0.5) * length / count - 0.5
        low = np.floor(place).astype(int)
        weight = (place - low).reshape(-1, *[1] * (result.ndim - 1 - axis))
        first = result.take(np.clip(low, 0, length - 1), axis)
        second = result.take(np.clip(low + 1, 0, length - 1), axis)
        result = first * (1 - weight) + second * weight
    return result


def averaged(image: Array, height: int, width: int) -> npt.NDArray[np.float64]:
    """Mean over each result pixel's share of the source."""
    weights = []
    for count, length in ((height, image.shape[0]), (width, image.shape[1])):
        edges = np.arange(count + 1) * length / count
        pixels = np.arange(length)
        overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        overlap = overlap.clip(0)
        weights.append(overlap / overlap.sum(axis=1, keepdims=True))
    result: npt.NDArray[np.float64] = np.einsum(
        "ih,hw...,jw->ij...", weights[0], image.astype(np.float64), weights[1]
    )
    return result


def reference(
    image: Array, box: Sequence[int], size: Sequence[int], flip: Sequence[bool]
) -> npt.NDArray[np.float64]:
    """Crop with zeros around, resample and flip, one after another."""
    y, x, height, width = box
    border = max(0, -y, -x, y + height - image.shape[0], x + width - image.shape[1])
    around = [(border, border)] * 2 + [(0, 0)] * (image.ndim - 2)
    padded = np.pad(image, around)
    crop = padded[y + border : y + border + height, x + border : x + border + width]
    shrinks = height > 2 * size[0] and width > 2 * size[1]
    result = (averaged if shrinks else bilinear)(crop, size[0], size[1])
    return result[:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]


def noise(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return (rng.random(shape) * 100).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def tolerance(dtype: str) -> float:
    return {"uint8": 1.0, "uint16": 1.0, "int16": 1.0}.get(dtype, 1e-3)


SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (4,), (5,), (7,), (64,)]
FLIPS = list(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
def test_apply_equals_a_float64_reference(dtype: str) -> None:
    sizes = [(17, 29), (40, 33), (9, 8), (20, 8), (13, 15)]
    for channels, size, flip in itertools.product(SHAPES, sizes, FLIPS):
        image, box = noise((40, 50, *channels), dtype), (3, 5, 26, 30)

        result = apply(image, box, size, flip)

        assert result.dtype == image.dtype
        assert result.shape == (*size, *channels)
        exact = reference(image, box, size, flip)
        assert np.abs(result - exact).max() <= tolerance(dtype)


@given(
    shape=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    corner=st.tuples(st.integers(-6, 26), st.integers(-6, 26)),
    extent=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    flip=st.tuples(st.booleans(), st.booleans()),
    channels=st.sampled_from(SHAPES[:-1]),
)
def test_apply_equals_the_reference_anywhere(
    shape: tuple[int, int],
    corner: tuple[int, int],
    extent: tuple[int, int],
    size: tuple[int, int],
    flip: tuple[bool, bool],
    channels: tuple[int, ...],
) -> None:
    """Boxes inside, across and beyond the edges; results in a slot and fresh are the same."""
    image, box = noise((*shape, *channels)), (*corner, *extent)
    slot = np.full((3, *size, *channels), 77, np.uint8)

    fresh = apply(image, box, size, flip)
    filled = apply(image, box, size, flip, out=slot[1])

    exact = reference(image, box, size, flip)
    assert np.abs(fresh - exact).max() <= (0 if size == extent else 1)
    np.testing.assert_array_equal(slot[1], fresh)
    assert np.shares_memory(filled, slot)
    assert (slot[[0, 2]] == 77).all()


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "uint32", "float16", "float32"])
def test_equal_sizes_are_copied_exactly(dtype: str) -> None:
    for channels, flip in itertools.product(SHAPES, FLIPS):
        image = noise((20, 21, *channels), dtype)
        image.flags.writeable = False

        result = apply(image, (4, 5, 11, 12), (11, 12), flip)

        expected = image[4:15, 5:17][:: -1 if flip[0] else 1, :: -1 if flip[1] else 1]
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == image.dtype
        assert not np.shares_memory(result, image)


MASK_DTYPES = ["bool", "int8", "uint8", "uint16", "int16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", [*MASK_DTYPES, "float16", "float32", "float64"])
def test_masks_are_picked_from_pixel_centres(dtype: str) -> None:
    boxes = [(33, 35), (28, 36)]  # of even ones, centres lie between pixels
    sizes = [(7, 9), (31, 26), (64, 70)]
    for channels, size, (height, width) in itertools.product(SHAPES, sizes, boxes):
        mask, box = noise((37, 41, *channels), dtype), (2, -3, height, width)
        padded = np.pad(mask, [(0, 0), (3, 0), *[(0, 0)] * len(channels)])[2 : 2 + height, :width]

        result = apply(mask, box, size, HORIZONTAL, nearest=True)[:, ::-1]

        assert result.dtype == mask.dtype
        rows = [int((i + 0.5) * height / size[0]) for i in range(size[0])]
        cols = [int((i + 0.5) * width / size[1]) for i in range(size[1])]
        np.testing.assert_array_equal(result, padded[np.array(rows)[:, None], np.array(cols)])


@pytest.mark.parametrize("length", [32_768, 70_001])
def test_masks_longer_than_16_bits_are_picked_exactly(length: int) -> None:
    mask = np.arange(length, dtype=np.int64)[None]

    wide = apply(mask, (0, 0, 1, length), (1, 224), NO_FLIP, nearest=True)
    tall = apply(mask.T, (0, 0, length, 1), (224, 1), NO_FLIP, nearest=True)

    expected = [(2 * i + 1) * length // 448 for i in range(224)]
    assert wide[0].tolist() == expected
    assert tall[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("uint8", 255),
        ("bool", 1),
        ("int8", -1),
        ("int16", -100),
        ("uint16", 65535),
        ("int32", -100),
        ("uint32", 2**32 - 1),
        ("int64", -100),
        ("uint64", 2**63),
        ("float16", 7),
    ],
)
@pytest.mark.parametrize("size", [(9, 8), (4, 3)], ids=str)
def test_what_fills_a_box_is_kept_as_it_is(dtype: str, fill: int, size: tuple[int, int]) -> None:
    mask = noise((5, 4), dtype)

    result = apply(mask, (-2, -3, 9, 8), size, (False, True), fill, nearest=True)

    padded = np.pad(mask, ((2, 2), (3, 1)), constant_values=fill)
    rows, cols = (
        [(2 * i + 1) * n // (2 * m) for i in range(m)] for n, m in zip((9, 8), size, strict=True)
    )
    np.testing.assert_array_equal(result, padded[np.ix_(rows, cols)][:, ::-1])


def test_ops_agree_on_what_lies_outside_of_masks() -> None:
    ops = [RandomCrop(8, padding=2, fill_mask=255), Resize(9), CenterCrop(12)]
    assert fill_mask_of(ops) == fill_mask_of([*ops, CenterCrop(20, fill_mask=255)]) == 255
    assert fill_mask_of([CenterCrop(4)]) == 0
    for make in (as_augment, lambda view: Views(weak=view, strong=ops)):
        make(ops)
        for other in (7, 0):
            with pytest.raises(ValueError):
                make([*ops, CenterCrop(20, fill_mask=other)])


def test_a_fill_of_0_is_one_that_was_set() -> None:
    rotation = RandomRotation(10, fill=(9, 9, 9))

    assert fill_of([RandomCrop(8, padding=2), rotation]) == (9, 9, 9)
    assert fill_of([RandomCrop(8, padding=2, fill=0), RandomRotation(10)]) == 0
    with pytest.raises(ValueError):
        as_augment([RandomCrop(8, padding=2, fill=0), rotation])


@pytest.mark.parametrize("dtype", ["int8", "bool", "int32", "int64", "uint32", "float16"])
def test_values_without_a_between_are_not_interpolated(dtype: str) -> None:
    with pytest.raises(BatchError):
        apply(noise((4, 4), dtype), (0, 0, 4, 4), (3, 3), NO_FLIP)


def test_slots_that_do_not_fit_are_refused() -> None:
    image = noise((8, 8, 3))

    for out in (np.empty((4, 5, 3), np.uint8), np.empty((4, 4, 3), np.int8)):
        with pytest.raises(BatchError):
            apply(image, (0, 0, 8, 8), (4, 4), NO_FLIP, out=out)
    channels_first = np.empty((3, 4, 4), np.uint8).transpose(1, 2, 0)
    with pytest.raises(BatchError):
        apply(image, (0, 0, 8, 8), (4, 4), NO_FLIP, out=channels_first)
    with pytest.raises(BatchError):
        apply(image, (0, 0, 0, 8), (4, 4), NO_FLIP)
    read_only = np.zeros((8, 8, 3), np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(BatchError):
        apply(image, (0, 0, 8, 8), (8, 8), NO_FLIP, out=read_only)


@pytest.mark.parametrize("flip", [NO_FLIP, HORIZONTAL])
@pytest.mark.parametrize("size", [(224, 224), (1000, 1000), (800, 1200)])
def test_a_crop_is_read_in_place(flip: tuple[bool, bool], size: tuple[int, int]) -> None:
    """No copy of the crop is made: nothing of its size is allocated (cv2 and numpy are traced)."""
    image, out = np.zeros((2000, 2000, 3), np.uint8), np.empty((*size, 3), np.uint8)
    tracemalloc.start()
    try:
        apply(image, (500, 500, 1000, 1000), size, flip, out=out)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        apply(image, (-10, 1200, *size), size, flip, out=out)
        padded_peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 20_000
    assert padded_peak_bytes < 20_000


# --- Decoders that shrink -------------------------------------------------------------------


@given(*[st.integers(1, 4000)] * 2, *[st.integers(1, 500)] * 2)
def test_reduction_keeps_the_crop_at_least_as_large_as_the_result(
    height: int, width: int, out_height: int, out_width: int
) -> None:
    boxes = np.array([[0, 0, height, width], [3, 5, 8 * out_height, 8 * out_width]])
    factor, most = reductions(boxes, np.array([[out_height, out_width]])).tolist()

    assert most == 8

    assert factor in (1, 2, 4, 8)
    if factor > 1:
        assert height / factor >= out_height
        assert width / factor >= out_width
    if factor < 8:
        assert height < 2 * factor * out_height or width < 2 * factor * out_width


def reduced_box(box: tuple[int, ...], size: tuple[int, int], factor: int) -> list[int]:
    """Return one box of an image that was reduced."""
    numbers = map(np.array, ([box], [size], [factor]))
    return reduced_boxes(*numbers)[0].tolist()  # type: ignore[no-any-return]


def shrunk(image: Array, factor: int) -> Array:
    """Average blocks as libjpeg does, edges continued to whole blocks."""
    around = [(0, -length % factor) for length in image.shape[:2]] + [(0, 0)] * (image.ndim - 2)
    whole = np.pad(image, around, mode="edge").astype(np.float64)
    height, width = whole.shape[0] // factor, whole.shape[1] // factor
    blocks = whole.reshape(height, factor, width, factor, *image.shape[2:])
    averages: Array = blocks.mean(axis=(1, 3)).round().astype(image.dtype)
    return averages


def test_an_op_may_change_the_sizes_of_a_window_in_place() -> None:
    class Half(Op):
        num_draws: ClassVar[int] = 0

        def move(self, window: Any, draws: Array) -> None:
            window.size //= 2

        def resized(self, size: tuple[int, int] | None) -> None:
            return None

    sizes = np.array([[30, 40], [50, 60]])

    geometry = draw_geometry([Half()], sizes, seed=0, epoch=0, indices=np.arange(2))

    assert geometry.sizes.tolist() == [[15, 20], [25, 30]]
    assert sizes.tolist() == [[30, 40], [50, 60]]


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("flip", [NO_FLIP, HORIZONTAL])
def test_a_reduced_image_gives_nearly_the_same_crop(factor: int, flip: tuple[bool, bool]) -> None:
    rows, cols = np.mgrid[:203, :301]
    image = np.stack([rows, cols * 0.8, 255 - rows], axis=2).astype(np.uint8)
    box, size = (11, 42, 170, 190), (20, 21)

    full = apply(image, box, size, flip).astype(int)
    reduced = reduced_box(box, (203, 301), factor)
    fast = apply(shrunk(image, factor), reduced, size, flip).astype(int)

    assert np.abs(fast - full).max() <= factor  # each edge within half a reduced pixel


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_aligned_boxes_of_a_reduced_image_are_exact(factor: int) -> None:
    reduced = noise((25, 31, 3))
    box = (2 * factor, 3 * factor, 10 * factor, 11 * factor)

    for source_size in [(25 * factor, 31 * factor), (25 * factor - 1, 30 * factor + 1)]:
        result = apply(reduced, reduced_box(box, source_size, factor), (10, 11), NO_FLIP)
        np.testing.assert_array_equal(result, reduced[2:12, 3:14])


def test_edges_are_rounded_to_whole_reduced_pixels() -> None:
    reduced = noise((10, 10, 3))

    result = apply(reduced, reduced_box((3, 5, 8, 8), (40, 40), 4), (2, 2), NO_FLIP)

    np.testing.assert_array_equal(result, reduced[1:3, 1:3])  # 0.75, 2.75 and 1.25, 3.25


@given(st.data(), st.sampled_from([2, 4, 8]), st.integers(1, 90), st.integers(1, 90))
def test_reduced_crops_are_never_smaller_than_the_result(
    data: st.DataObject, factor: int, height: int, width: int
) -> None:
    y, x = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    h, w = data.draw(st.integers(1, height - y)), data.draw(st.integers(1, width - x))
    shape = (-(-height // factor), -(-width // factor))

    top, left, tall, wide = reduced_box((y, x, h, w), (height, width), factor)

    assert tall >= max(1, h // factor)
    assert wide >= max(1, w // factor)
    assert 0 <= top < top + tall <= shape[0]
    assert 0 <= left < left + wide <= shape[1]


# --- Image, mask and boxes together ---------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_image_mask_and_boxes_stay_aligned(recipe: str) -> None:
    num = 40
    sizes = some_sizes(num, 60, 160)
    geometry = draw_geometry(RECIPES[recipe], sizes, seed=2, epoch=0, indices=np.arange(num))
    rows = zip(sizes.tolist(), *(part.tolist() for part in geometry), strict=True)
    seen = 0
    for (height, width), box, size, flip in rows:
        y, x = height // 4, width // 3
        y2, x2 = y + height // 2, x + width // 4
        image, mask = np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.int64)
        image[y:y2, x:x2], mask[y:y2, x:x2] = 200, 10**12

        pixels = apply(image, box, size, flip)
        labels = apply(mask, box, size, flip, nearest=True)
        (moved,) = move_boxes(
            np.array([[x, y, x2, y2]], np.float32), Move(box, size, flip)
        ).tolist()

        centres_y, centres_x = np.mgrid[: size[0], : size[1]] + 0.5
        depth = np.minimum.reduce(  # how far inside of the moved box each pixel centre is
            [
                centres_x - moved[0],
                moved[2] - centres_x,
                centres_y - moved[1],
                moved[3] - centres_y,
            ]
        )
        assert set(labels.ravel().tolist()) <= {0, 10**12}
        clear = np.abs(depth) > 1e-3
        np.testing.assert_array_equal(labels[clear] > 0, depth[clear] > 0)
        blur = 0.5 * max(1.0, size[0] / box[2], size[1] / box[3]) + 0.51
        assert (pixels[depth > blur] >= 199).all()
        assert (pixels[depth < -blur] == 0).all()
        seen += int((depth > 0).sum())

    assert seen > 1000


def test_boxes_are_scaled_flipped_and_clipped() -> None:
    boxes = np.array([[0, 0, 10, 20], [5, 5, 6, 7], [90, 90, 99, 99], [-9, -9, 1, 1]], np.float32)

    kept = move_boxes(boxes, Move((0, 0, 20, 10), (40, 30), NO_FLIP))
    flipped = move_boxes(boxes, Move((0, 0, 20, 10), (40, 30), (True, True)))

    assert kept.tolist() == [[0, 0, 30, 40], [15, 10, 18, 14], [30, 40, 30, 40], [0, 0, 3, 2]]
    assert flipped.tolist() == [[0, 0, 30, 40], [12, 26, 15, 30], [0, 0, 0, 0], [27, 38, 30, 40]]
    assert kept.dtype == np.float32
    assert kept.flags.c_contiguous  # for tensor.view()


def test_no_boxes_stay_no_boxes() -> None:
    moved = move_boxes(np.empty((0, 4), np.float32), Move((0, 0, 2, 2), (4, 4), HORIZONTAL))

    assert moved.shape == (0, 4)
    assert moved.dtype == np.float32


def test_ops_have_a_type_in_common() -> None:
    crop = [RandomResizedCrop(8), RandomHorizontalFlip(), Resize(4)]

    ops: Sequence[Op] = crop  # for type checkers: it is a list of ops, not of objects

    assert all(isinstance(op, Op) for op in ops)
