"""A folder as the place of a packing: files appear whole, and only where they may."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from packdata.packing.store import FolderStore


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


def test_a_first_file_replaces_none(tmp_path: Path, given: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "manifest.json").write_text("there")

    assert not store.put("manifest.json", given.read_bytes(), {})

    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_text() == "there"
