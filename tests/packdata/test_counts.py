"""What the summary counts is of the whole packing, however often it was interrupted, each item once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from packdata.images.plan import pack_images
from packdata.packing.summary import Summary
from packdata.tables import pack_tables
from tests.packdata.breaking import interrupted


def pictures(tmp_path: Path) -> Callable[[str], Summary]:
    """Two sizes of pictures that are kept, encoded anew or smaller, and one that is none; shards of a few each."""
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(24):
        small = rng.integers(0, 256, ((20, 40, 80)[i % 3], 40, 3), np.uint8)
        suffix = ".bmp" if i % 5 == 0 else ".png"
        assert cv2.imwrite(str(tmp_path / "photos" / f"{i:02}{suffix}"), small)
    (tmp_path / "photos" / "13bad.png").write_bytes(b"none")
    options: dict[str, Any] = {"sizes": [30, 10], "shard_bytes": 6000, "on_error": "skip"}
    return lambda name: pack_images(tmp_path / "photos", tmp_path / name, **options)


def kept_pictures(tmp_path: Path) -> Callable[[str], Summary]:
    pictures(tmp_path)
    options: dict[str, Any] = {"shard_bytes": 6000, "on_error": "skip"}
    return lambda name: pack_images(tmp_path / "photos", tmp_path / name, **options)


def rows(tmp_path: Path) -> Callable[[str], Summary]:
    """A table with values that the vocabulary of another lacks; shards end in the middle of its parts."""
    for name, words in (("train", "ab"), ("test", "abcd")):
        lines = [f"{i},{words[i % len(words)]}" for i in range(4000)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,word", *lines]))
    pack_tables(tmp_path / "train.csv", tmp_path / "train", categorical=["word"])
    options: dict[str, Any] = {"like": tmp_path / "train", "shard_bytes": 9000}
    return lambda name: pack_tables(tmp_path / "test.csv", tmp_path / name, **options)


@pytest.mark.parametrize("make", [pictures, kept_pictures, rows])
def test_an_interrupted_packing_counts_as_one_that_was_not(
    tmp_path: Path, make: Callable[[Path], Callable[[str], Summary]]
) -> None:
    pack = make(tmp_path)
    whole = pack("whole")
    assert sum(whole.counts.values()) > 0

    for first, second in ((1, 1), (2, 3)):
        name = f"at{first}-{second}"
        for num_lines in (first, second):
            with interrupted(num_lines):
                pack(name)
        again = pack(name)

        assert again.counts == whole.counts
        assert [n for n in again.notes if "continued" not in n] == list(whole.notes)
        assert again.datasets == whole.datasets


def test_of_several_sizes_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert cv2.imwrite(str(tmp_path / "in/1.png"), np.zeros((20, 40, 3), np.uint8))

    one = pack_images(tmp_path / "in", tmp_path / "one", sizes=[10, 20])
    other = pack_images(tmp_path / "in", tmp_path / "other", sizes=[20, 10])

    assert (one.counts, other.counts) == ({"re-encoded": 1}, {"kept": 1})
