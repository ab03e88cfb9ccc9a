"""A folder as the place of a packing: files appear whole, and only where they may."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

import packdata
from loaders.errors import PackError
from loaders.schema import Array
from packdata.packing.store import FolderStore, clear_parts


@pytest.fixture
def given() -> Path:
    """A file that nobody else may read, as temporary ones are."""
    descriptor, name = tempfile.mkstemp()
    os.write(descriptor, b"{}")
    os.close(descriptor)
    return Path(name)


def test_a_first_file_can_be_read_by_whom_the_folder_lets_and_is_one_of_its_own(
    tmp_path: Path, given: Path
) -> None:
    before = os.umask(0o022)
    try:
        assert FolderStore(tmp_path / "d").put("manifest.json", given.read_bytes(), {})
    finally:
        os.umask(before)

    target = tmp_path / "d/manifest.json"
    given.write_bytes(b"changed later")
    assert target.read_bytes() == b"{}"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [file.name for file in target.parent.iterdir()] == ["manifest.json"]


def test_errors_name_the_destination_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pack_array([{"x": 1}], "o")

    with pytest.raises(PackError) as caught:
        pack_array([{"x": 2}], "o")

    assert str(caught.value.path) == "o"
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(PackError) as caught:
        pack_array([{"x": 2}], "full")
    assert not Path(str(caught.value.path)).is_absolute()


def pack_array(samples: list[dict[str, int]], dst: str) -> None:
    packdata.pack(samples, dst, {"x": Array("int64")})


def test_a_first_file_replaces_none(tmp_path: Path, given: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "manifest.json").write_text("there")

    assert not store.put("manifest.json", given.read_bytes(), {})

    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_text() == "there"


def test_folders_of_other_machines_are_cleared_with_the_parts_and_links_as_links(
    tmp_path: Path,
) -> None:
    store, there = FolderStore(tmp_path / "dst"), tmp_path / "elsewhere"
    there.mkdir()
    (there / "a").write_text("stays")
    store.put(".parts/part-00000-of-00002.there/.packing/journal.jsonl", b"{}")
    (tmp_path / "dst/.parts/part-00001-of-00002.link").symlink_to(there)

    clear_parts(store)

    assert not [*(tmp_path / "dst").iterdir()]
    assert (there / "a").read_text() == "stays"
