"""What ``jpegtran`` makes of JPEGs, in real files; without the program, that it is asked for."""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import simplejpeg

from loaders.codecs import codec_for
from loaders.codecs.heads import jpeg_head
from loaders.codecs.jpeg import grid_of
from loaders.errors import SchemaError
from loaders.schema import Image
from packdata.cli import main
from packdata.images.plan import plan_images
from packdata.images.recipe import ImageOptions, count_notes
from packdata.images.stored import JPEGTRAN, divide_without_loss, jpegtran_version
from tests.packdata.images.test_alike import jpeg, opened, photo, record_of

needs_jpegtran = pytest.mark.skipif(shutil.which(JPEGTRAN) is None, reason="no jpegtran here")


def test_a_program_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))

    with pytest.raises(SchemaError):
        ImageOptions(segments=True)
    with pytest.raises(SystemExit) as caught:
        main(["images", str(tmp_path / "in"), str(tmp_path / "out"), "--segments"])
    assert caught.value.code == 2


@needs_jpegtran
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": "4:2:0"}, {"subsampling": "4:4:4"}, {"progressive": True}],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_divided_files_have_the_same_pixels(
    tmp_path: Path, mode: str, options: dict[str, Any]
) -> None:
    data = jpeg(PIL.Image.fromarray(photo(160, 240)).convert(mode), quality=80, **options)

    record = record_of(tmp_path, data, segments=True)

    head = jpeg_head(memoryview(record))
    assert head is not None
    assert grid_of(head).total > 1
    assert b"SEGMENTS" in record
    assert np.array_equal(simplejpeg.decode_jpeg(record), simplejpeg.decode_jpeg(data))
    assert opened(record).getexif() == opened(data).getexif()
    assert len(record) < 1.1 * len(data)


@needs_jpegtran
def test_only_jpegs_worth_dividing_change(tmp_path: Path) -> None:
    source, file = tmp_path / "in", io.BytesIO()
    source.mkdir()
    PIL.Image.fromarray(photo(160, 240)).save(file, "PNG")
    small, large = jpeg(photo(48, 48)), jpeg(photo(160, 240))
    files = {"a.jpg": small, "b.jpg": large, "c.png": file.getvalue()}
    for name, data in files.items():
        (source / name).write_bytes(data)

    ((_, recipe),) = plan_images(source, segments=True).splits
    records = [recipe.encode(item)[0]["image"] for item in recipe.items()]

    assert records == [small, divide_without_loss(large), file.getvalue()]
    assert count_notes(recipe.tally.take())[1:] == [
        "1 picture divided into segments, with no pixel changed"
    ]
    assert recipe.options.to_json()["jpegtran"] == jpegtran_version()


def test_a_program_that_changes_pixels_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = jpeg(photo(160, 240))
    other = codec_for(Image(codec="jpeg")).encode(photo(160, 240)[::-1])
    (tmp_path / "other.jpg").write_bytes(other)
    program = tmp_path / JPEGTRAN
    program.write_text(f"#!/bin/sh\ncat >{os.devnull}\ncat {tmp_path}/other.jpg\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert divide_without_loss(other) is not None  # what it writes is divided
    assert divide_without_loss(data) is None


def test_segments_are_of_files_that_are_kept(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        plan_images(tmp_path, segments=True, codec="jpeg")
