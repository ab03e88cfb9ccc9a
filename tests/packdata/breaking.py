"""What goes wrong while packing: a disk that is full, an end between two lines of the journal."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packdata.packing.journal import Journal

ROOM = "Make room there, or choose a folder that you may write to. Then run the same command again"


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Make a file system of a size; skip the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def deny_looking(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let nobody look at a folder, by its whole path, or at what is in it; root could otherwise."""
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.is_relative_to(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system have no links."""

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)


@contextmanager
def interrupted(num_lines: int) -> Iterator[None]:
    """Press Ctrl-C when so many lines are in the journal, and expect it to come out."""
    append, calls = Journal.append, iter(range(1, 10_000))

    def dying(self: Journal, *lines: Any) -> None:
        append(self, *lines)
        if next(calls) == num_lines:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            yield
