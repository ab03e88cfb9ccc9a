"""Several sources of pictures or arrays: files of one archive are one, others are refused."""

import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from loaders.data.manifest import read_manifest
from loaders.errors import SourceError
from packdata import pack_arrays, pack_images, pack_tables, pack_tokens
from tests.refusals import At


def picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((6, 5, 3), value, np.uint8))


def test_several_folders_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for name in ("one/dog/3.png", "two/ant/9.png"):
        picture(tmp_path / name, 40)

    with pytest.raises(SourceError, check=At("one")) as caught:
        pack_images([tmp_path / "one", tmp_path / "two"], tmp_path / "out")

    assert "merge" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_tars_one_by_one_are_what_their_pattern_is(tmp_path: Path) -> None:
    """A shell makes several words of a pattern that is not quoted."""
    for i in range(3):
        picture(tmp_path / f"{i}.png", i * 50)
        with tarfile.open(tmp_path / f"t{i}.tar", "w") as tar:
            tar.add(tmp_path / f"{i}.png", f"{i}.png")

    pack_images(f"{tmp_path}/t*.tar", tmp_path / "pattern")
    pack_images((tmp_path / f"t{i}.tar" for i in range(3)), tmp_path / "words")  # type: ignore[arg-type]

    prints = [read_manifest(tmp_path / name).fingerprint for name in ("pattern", "words")]
    assert prints[0] == prints[1]


def test_a_pattern_that_matches_nothing_is_named_as_no_source(tmp_path: Path) -> None:
    for pack in (pack_images, pack_arrays, pack_tables, pack_tokens):
        with pytest.raises(SourceError, check=At("sources")):
            pack(sorted(tmp_path.glob("*.tar")), tmp_path / "out")
