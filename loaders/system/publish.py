"""Files that appear whole: written beside their place, flushed, and renamed."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def publish_bytes(path: Path, data: bytes) -> None:
    """Write a file so that other processes, and a machine that lost power, see all or nothing."""
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")  # others may write it, too
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; Windows cannot open one, and does so by itself."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
