"""A named pipe among the files to pack: an error that names it, where opening it would wait for ever."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import packdata
from loaders.errors import SourceError
from loaders.schema import Image
from packdata.arrays import pack_arrays
from packdata.images.plan import pack_images
from packdata.tables import pack_tables
from packdata.tokens.plan import pack_tokens
from tests.packdata.command_sources import make_sources
from tests.packdata.reading import PackedReader
from tests.refusals import At

ERROR = "not a regular file"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(autouse=True)
def sources(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("photos", "scans"):
        shutil.copytree(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("pack", "source", "pipe"),
    [
        (pack_images, "photos", "photos/cat/9.png"),
        (partial(pack_images, masks="masks"), "photos", "masks/cat/0.png"),
        (pack_images, "list.csv", "list.csv"),
        (pack_images, "x.tar", "x.tar"),
        (pack_images, "x.parquet", "x.parquet"),
        (pack_arrays, "scans", "scans/a/9.npy"),
        (pack_tables, "x.csv", "x.csv"),
        (pack_tables, "x.jsonl", "x.jsonl"),
        (pack_tables, "x.arrow", "x.arrow"),
        (pack_tables, "tables", "tables/x.parquet"),
        (pack_tokens, "x", "x"),
        (pack_tokens, "texts", "texts/x.txt"),
        (pack_tokens, "x.npy", "x.npy"),
        (pack_tokens, "x.bin", "x.idx"),
    ],
)
def test_a_pipe_is_an_error_that_names_it(pack: Any, source: str, pipe: str) -> None:
    Path(pipe).parent.mkdir(exist_ok=True, parents=True)
    os.mkfifo(pipe)
    if source == "x.bin":
        Path(source).write_bytes(bytes(4))

    with pytest.raises(SourceError, match=rf"{pipe}\)?: .*{ERROR}"):
        pack(source, "out")

    assert not Path("out").exists()


def test_a_pipe_among_pictures_can_be_left_out() -> None:
    os.mkfifo("photos/cat/9.png")

    packed = pack_images("photos", "out", on_error="skip")

    assert packed.rejected == (
        ("photos/cat/9.png", f"photos/cat/9.png: cannot be read ({ERROR})."),
    )
    assert len(PackedReader("out")) == 4


def test_what_a_writer_is_given_may_be_no_pipe_either() -> None:
    os.mkfifo("x.png")

    with (
        pytest.raises(SourceError, check=At("x.png")),
        packdata.Writer("out", {"image": Image()}) as writer,
    ):
        writer.add(image="x.png")

    assert not Path("out").exists()
