"""The lock on a folder that is packed into; the kernel takes it back when its process ends."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from loaders.errors import PackError
from packdata.claimed import lock_if_free
from packdata.packing.target import PACKING_NAME, make_folder, missing_folders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other commands out of a folder, which is made; it goes again if nothing came into it.

    Raises:
        PackError: Another process is packing into it.
    """
    path = folder / PACKING_NAME / LOCK_NAME
    made = missing_folders(folder)
    try:
        make_folder(folder)
        fd = lock(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)
    finally:
        with suppress(OSError):  # something lies there
            for each in (path.parent, *made):
                each.rmdir()


def lock(path: Path) -> int:
    """Lock a file, which is made, until the descriptor that is returned is closed.

    Raises:
        PackError: Another process has locked it.
    """
    fd = lock_if_free(path)
    if fd is None:
        what = "another process is packing into it"
        raise PackError(what, path.parent.parent, "Wait for it, or stop it")
    return fd
