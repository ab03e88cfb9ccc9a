"""What belongs to a folder or a process stays there: relative paths after ``chdir``, a ``Writer`` after ``fork``."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packdata
from loaders.errors import PackError
from loaders.schema import Image, Label
from packdata.claimed import claimed_folder
from tests.packdata.command_sources import make_sources
from tests.packdata.reading import PackedReader
from tests.refusals import At

FIELDS = {"x": Label()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


# ---------------------------------------------------------------------- another working folder


def leaving(folder: Path, num: int = 40) -> Iterator[dict[str, Any]]:
    """Yield samples, and go to another folder halfway."""
    for i in range(num):
        if i == num // 2:
            os.chdir(folder)
        yield {"x": i}


def test_samples_are_packed_where_packing_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()

    packed = packdata.pack(leaving(tmp_path / "run"), "packed", FIELDS, shard_bytes=100)

    assert packed.dst == "packed"
    assert PackedReader(tmp_path / "packed").column("x").tolist() == list(range(40))
    assert not list((tmp_path / "run").iterdir())
    assert not (tmp_path / "packed/.packing").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_dataset_of_the_same_name_elsewhere_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    packdata.pack([{"x": 7}], "run/packed", FIELDS)
    if overwrite:
        packdata.pack([{"x": 8}], "packed", FIELDS)

    packdata.pack(leaving(tmp_path / "run"), "packed", FIELDS, overwrite=overwrite)

    assert PackedReader(tmp_path / "run/packed").column("x").tolist() == [7]
    assert PackedReader(tmp_path / "packed").column("x").tolist() == list(range(40))


def test_messages_name_the_destination_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with packdata.Writer("packed", FIELDS) as writer:
        writer.add(x=1)
        with pytest.raises(PackError, check=At("packed")):
            packdata.Writer("packed", FIELDS)

    with pytest.raises(PackError, check=At("packed")):
        writer.add(x=2)


def test_a_folder_for_temporary_files_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"packdata-{os.getuid()}"
    (tmp_path / name).write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(PackError, check=At(name)), claimed_folder("https://host/packed"):
        pass


def test_a_picture_is_the_one_that_was_there_when_it_was_added(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads read it later, when another file of this name may be nearer."""
    folders = [sources / "photos" / name for name in ("cat", "dog") * 20]
    monkeypatch.chdir(tmp_path)

    with packdata.Writer("packed", {"image": Image()}, workers=1) as writer:
        for folder in folders:
            os.chdir(folder)
            writer.add(image=min(os.listdir()))

    files = [min(folder.iterdir()).read_bytes() for folder in folders]
    reader = PackedReader(tmp_path / "packed")
    assert [bytes(reader.record(i, "image")) for i in range(40)] == files


# ------------------------------------------------------------------------------ another process

FORKED = """
import os, sys, warnings
import multiprocessing
from loaders.errors import PackError
from loaders.schema import Label
from packdata import Writer

warnings.simplefilter("ignore")  # of forking beside threads

def attempt(how):
    try:
        how()
    except PackError as error:
        print(error, flush=True)

def add(i):
    writer.add(x=i)

writer = Writer(sys.argv[1], {"x": Label()}, workers=2, shard_bytes=100)
with writer:
    for i in range(20):
        writer.add(x=i)
    if os.fork() == 0:
        attempt(lambda: writer.add(x=100))
        attempt(writer.close)
        attempt(writer.abort)
        attempt(lambda: writer.__exit__(None, None, None))
        sys.exit(0)  # leaves `with`
    assert os.wait()[1] == 0
    with multiprocessing.get_context("fork").Pool(2) as pool:
        attempt(lambda: pool.map(add, range(4)))
    writer.add(x=20)
"""


def test_a_forked_writer_refuses_to_work_and_leaves_the_files_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "out")],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert set(lines) == {lines[0]}
    assert f"{tmp_path}/out: this writer belongs to process " in lines[0]
    assert "write one dataset per process and merge them" in lines[0]
    assert PackedReader(tmp_path / "out", check=True).column("x").tolist() == list(range(21))
