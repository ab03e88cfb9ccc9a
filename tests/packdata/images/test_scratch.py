"""Memory that threads use again: each has its own, and what is decoded into it is the same."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from loaders.codecs.picture import encode_jpeg
from packdata.images.fit import SizeOption
from packdata.images.pictures import decode_picture
from packdata.images.scratch import Scratch


def jpeg(height: int, width: int, channels: int = 3) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    return encode_jpeg(pixels, 90)


def test_a_name_is_one_block_that_grows() -> None:
    scratch = Scratch()

    small, same, large = (scratch.take("a", (n, 4), np.uint16) for n in (3, 2, 5))

    assert small.shape == (3, 4)
    assert small.dtype == np.uint16
    assert np.shares_memory(small, same)
    assert not np.shares_memory(small, large)
    assert not np.shares_memory(large, scratch.take("b", (5, 4), np.uint16))


def test_each_thread_has_its_own() -> None:
    scratch = Scratch()
    mine = scratch.take("a", (8,))

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(scratch.take, "a", (8,)).result()

    assert not np.shares_memory(mine, other)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", [(480, 333), (64, 64), (31, 900)])
def test_pictures_decode_and_shrink_to_the_same_pixels(
    sides: tuple[int, int], channels: int
) -> None:
    """Also reduced while decoding, to odd sides, and in memory that held a larger picture."""
    scratch = Scratch()
    for resize in (
        SizeOption(40, 40),
        SizeOption(16, 24, "cover"),
        SizeOption(100, 100, "contain"),
    ):
        decode_picture(jpeg(700, 701), scratch=scratch)
        data = jpeg(*sides)
        plain = decode_picture(data, channels=channels, needed=resize.scaled)

        again = decode_picture(data, channels=channels, needed=resize.scaled, scratch=scratch)
        fitted = resize.apply(again.pixels, again.size, scratch=scratch)

        np.testing.assert_array_equal(again.pixels, plain.pixels)
        np.testing.assert_array_equal(fitted, resize.apply(plain.pixels, plain.size))
