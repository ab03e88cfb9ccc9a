"""Files out of the page cache."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def drop(files: Iterable[Path]) -> bool:
    """Ask the kernel to forget files; what a process has mapped and touched stays. False where that cannot be asked.

    What was just written is synced first, or it would stay too; of some file systems nothing can be.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    is_asked = True
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            with suppress(OSError):  # as of squashfs
                os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            is_asked = False
        finally:
            os.close(fd)
    return is_asked
