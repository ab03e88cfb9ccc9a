"""Steps that were prepared for a batch: the pixels of ``apply``."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders import augment
from loaders.augment.geometry import Geometry
from loaders.augment.pixels import (
    Step,
    apply,
    moved_steps,
    reduced_boxes,
    steps_of,
    take_steps,
)
from loaders.augment.planning import draw_geometry
from loaders.errors import BatchError

OPS: list[list[Any]] = [
    [augment.RandomResizedCrop(32), augment.RandomHorizontalFlip(), augment.RandomVerticalFlip()],
    [augment.Resize((12, 9)), augment.RandomVerticalFlip()],
    [augment.CenterCrop(16), augment.RandomHorizontalFlip()],
    [augment.RandomCrop(24, padding=8), augment.RandomHorizontalFlip()],
]


def take(image: npt.NDArray[np.uint8], step: Step) -> npt.NDArray[np.uint8]:
    out = np.full((step[5], step[4], image.shape[2]), 7, np.uint8)
    take_steps(image, [step], [out])
    return out


@pytest.mark.parametrize("ops", OPS, ids=str)
@pytest.mark.parametrize(("channels", "reduction"), [(1, 1), (3, 1), (4, 2), (3, 4), (1, 8)])
def test_a_step_gives_the_pixels_of_apply(ops: list[Any], channels: int, reduction: int) -> None:
    rng = np.random.default_rng(reduction)
    sizes = rng.integers(24, 150, (40, 2))
    geometry = draw_geometry(ops, sizes, seed=1, epoch=0, indices=np.arange(40))

    steps, are_inside = steps_of(geometry, sizes, np.full(40, reduction))

    num_inside = 0
    for size, step, is_inside, box, shape, flip in zip(
        sizes.tolist(), steps.tolist(), are_inside.tolist(), *geometry, strict=True
    ):
        reduced = [-(-length // reduction) for length in size]
        image = rng.integers(0, 256, (*reduced, channels), np.uint8)
        (y, x), (height, width) = box.tolist()[:2], box.tolist()[2:]
        fits = y >= 0 and x >= 0 and y + height <= size[0] and x + width <= size[1]
        assert is_inside == fits or reduction > 1
        if is_inside:
            numbers = map(np.array, ([box.tolist()], [size], [reduction]))
            wanted = apply(
                image, reduced_boxes(*numbers)[0].tolist(), shape.tolist(), flip.tolist()
            )
            np.testing.assert_array_equal(take(image, step), wanted)
            num_inside += 1
    assert num_inside > 6


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    box=st.tuples(*[st.integers(-3, 30)] * 2, *[st.integers(1, 40)] * 2),
    shape=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    flip=st.tuples(st.booleans(), st.booleans()),
)
def test_any_box_is_inside_or_not(
    size: tuple[int, int], box: tuple[int, ...], shape: tuple[int, int], flip: tuple[bool, bool]
) -> None:
    geometry = Geometry(np.array([box]), np.array([shape]), np.array([flip]))
    y, x, height, width = box

    (step,), (is_inside,) = steps_of(geometry, np.array([size]), np.array([1]))

    assert is_inside == (y >= 0 and x >= 0 and y + height <= size[0] and x + width <= size[1])
    if is_inside:
        image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        np.testing.assert_array_equal(take(image, step.tolist()), apply(image, box, shape, flip))


def test_a_step_moves_with_the_part_of_the_image() -> None:
    image = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    geometry = draw_geometry(
        OPS[0], np.array([[30, 40]] * 9), seed=0, epoch=0, indices=np.arange(9)
    )
    steps, _ = steps_of(geometry, np.array([[30, 40]] * 9), np.ones(9, np.int64))

    for step in steps.tolist():
        top, left = step[0] // 2, step[2] // 3
        (moved,) = moved_steps([step], top, left)
        np.testing.assert_array_equal(take(image[top:, left:], moved), take(image, step))


@pytest.mark.parametrize("size", [(8, 8), (40, 40)])
@pytest.mark.parametrize("shape", [(30, 90), (90, 30)])
def test_an_image_that_is_too_small_is_an_error(
    size: tuple[int, int], shape: tuple[int, int]
) -> None:
    """cv2 would leave the place in the batch as it was."""
    flips = np.array([[False, True]])
    geometry = Geometry(np.array([[50, 50, 40, 40]]), np.array([size]), flips)
    (step,), _ = steps_of(geometry, np.array([[90, 90]]), np.array([1]))

    with pytest.raises(BatchError):
        take(np.zeros((*shape, 3), np.uint8), step.tolist())


def test_boxes_are_left_as_they_were() -> None:
    sizes = np.array([[64, 64]])
    geometry = draw_geometry(OPS[0], sizes, seed=0, epoch=0, indices=np.arange(1))
    before = geometry.boxes.copy()

    steps_of(geometry, sizes, np.array([4]))

    np.testing.assert_array_equal(geometry.boxes, before)
