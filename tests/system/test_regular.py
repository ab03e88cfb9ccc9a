"""Files are read whole by few calls; a pipe or a device is an error, at once, wherever one is opened."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loaders import Normalize, RAMDataset, ShardDataset
from loaders.codecs.tokenizer import decoder_of
from loaders.data.manifest import read_manifest
from loaders.errors import LoadersError, ManifestError, SampleError, ShardError, SourceError
from loaders.schema import Tokens
from loaders.system.regular import read_regular, regular
from packdata.cli import main
from packdata.images.plan import pack_images
from packdata.inspect.verify import verify
from packdata.packed.derive import copy_dataset
from packdata.tokens.plan import TokenOptions, pack_tokens
from tests.packdata.command_sources import make_sources
from tests.refusals import At

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """End what waits for a pipe; memory that a device would fill is not there in a second."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, (1 << 20) + 1])
def test_a_file_is_read_whole(tmp_path: Path, nbytes: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(nbytes))

    assert read_regular(file) == file.read_bytes()
    with open(file, "rb", opener=regular) as opened:
        assert opened.read() == file.read_bytes()


@needs_proc
def test_a_file_whose_size_is_not_told_is_read_to_its_end() -> None:
    file = Path("/proc/version")

    assert file.stat().st_size == 0
    assert read_regular(file) == file.read_bytes() != b""


@pytest.mark.parametrize("more", [b", and done", bytes(3 << 20)])
def test_a_file_that_grows_meanwhile_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"begun")
    fstat = os.fstat

    def fstat_before_it_grows(descriptor: int) -> os.stat_result:
        about = fstat(descriptor)
        file.write_bytes(b"begun" + more)
        return about

    monkeypatch.setattr(os, "fstat", fstat_before_it_grows)

    assert read_regular(file) == b"begun" + more
    with pytest.raises(OSError):
        read_regular(file, 6)


@needs_proc
@pytest.mark.parametrize("file", ["sparse", "/proc/version"])
def test_no_more_is_read_than_may_be(tmp_path: Path, file: str) -> None:
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)

    with pytest.raises(OSError) as caught:
        read_regular(tmp_path / file, 10)

    assert caught.value.filename == str(tmp_path / file)


@needs_proc
def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")

    for name, kind in (
        ("no file", FileNotFoundError),
        ("folder", IsADirectoryError),
        ("pipe", OSError),
        ("/dev/zero", OSError),
    ):
        with pytest.raises(kind) as caught:
            read_regular(tmp_path / name)
        assert type(caught.value) is kind
        assert caught.value.filename == str(tmp_path / name)
        with pytest.raises(kind):
            regular(str(tmp_path / name), os.O_RDONLY)

    assert os.listdir("/proc/self/fd") == before


# -- wherever one is opened ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_sources(tmp_path_factory.mktemp("sources"))
    (folder / "a.jsonl").write_text(json.dumps({"text": "one two three"}))
    return folder


def tokens(_: Path) -> None:
    pack_tokens("a.txt", "out", TokenOptions(tokenizer="x"))


OPENED: dict[str, tuple[str, Callable[[Path], object], type[LoadersError] | type[ValueError]]] = {
    "a manifest": ("packed/manifest.json", ShardDataset, ManifestError),
    "a manifest to pack": ("packed/manifest.json", lambda p: copy_dataset(p, "out"), ManifestError),
    "a shard": ("packed/shard-00000.lmdb", lambda p: ShardDataset(p)[0], SampleError),
    "a shard in memory": ("packed/shard-00000.lmdb", RAMDataset, ShardError),
    "statistics": ("x", lambda _: Normalize.from_stats("x"), ValueError),
    "loose files": ("x", lambda _: RAMDataset.from_files(["x"], [0]), SourceError),
    "a tokenizer": ("x", tokens, SourceError),
    "classes": ("x", lambda _: pack_images("photos", "out", classes="x"), SourceError),
}  # fmt: skip


@pytest.mark.parametrize("what", ["pipe", "device"])
@pytest.mark.parametrize("name", OPENED)
def test_what_is_no_file_is_an_error_that_names_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    file, act, error = OPENED[name]
    for folder in ("packed", "photos"):
        shutil.copytree(made / folder, tmp_path / folder)
    shutil.copy(made / "a.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    Path(file).unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(file)
    else:
        os.symlink("/dev/zero", file)

    with pytest.raises(error, match=Path(file).name):
        act(Path("packed"))

    assert not Path("out").exists()


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_tokenizer_of_a_dataset_is_a_file(made: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "stream"
    pack_tokens(made / "a.txt", folder, TokenOptions(tokenizer=made / "tokenizer.json"))
    schema = read_manifest(folder).schema
    (name,) = schema.files
    field = schema.fields["tokens"]
    assert isinstance(field, Tokens)
    (folder / name).unlink()
    if what == "pipe":
        os.mkfifo(folder / name)
    else:
        os.symlink("/dev/zero", folder / name)

    with pytest.raises(ShardError, check=At(name)):
        decoder_of(folder, field)
    assert not verify(folder).ok


@pytest.mark.parametrize("name", ["journal.jsonl", "lock"])
def test_a_pipe_in_the_work_folder_keeps_nobody_waiting(
    made: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out/.packing").mkdir(parents=True)
    os.mkfifo(tmp_path / "out/.packing" / name)
    monkeypatch.chdir(made)

    assert main(["images", "photos", str(tmp_path / "out/sub")]) in (0, 1)
    assert main(["images", "photos", str(tmp_path / "out")]) in (0, 1)
