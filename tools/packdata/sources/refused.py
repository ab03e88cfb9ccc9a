"""What cannot be a source: pipes and devices, packed datasets, tables with a log. Errors name who named them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import SourceError

# Of Delta Lake, Iceberg and Hudi: files of rows that were deleted since stay in the folder.
_LOGS = {
    "_delta_log": re.compile(r".+\.json"),
    "metadata": re.compile(r"(v\d+|\d{5}-[0-9a-f-]+)(\.gz)?\.metadata\.json"),
    ".hoodie": re.compile(r"hoodie\.properties"),
}
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/+")  # a Path has one slash


def nothing_at(path: Path | str, hint: str = "Check the path") -> SourceError:
    """Return the error that there is no such file or folder, or that it is a URL."""
    if _URL.match(str(path)):
        return SourceError(
            "a URL, where a file of this machine is needed", path, "Copy it here first"
        )
    return SourceError("there is no such file or folder", path, hint)


def check_regular(path: Path | str, where: Path | str) -> None:
    """Raise SourceError, which names ``where``, for a pipe, socket or device.

    A missing file, or a folder, is an error when it is opened.
    """
    try:
        mode = (path.stat() if isinstance(path, Path) else os.stat(path)).st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return
    check_mode(mode, where)


def check_folder(folder: Path) -> None:
    """Raise SourceError for a dataset that is packed already, or a folder of a table as in ``check_no_log``."""
    if (folder / MANIFEST_NAME).exists():
        hint = "'packdata copy', 'split', 'merge' and 'extend' work on packed datasets"
        raise SourceError("a packed dataset cannot be a source", folder, hint)
    check_no_log(folder)


def check_no_log(folder: Path) -> None:
    """Raise SourceError for a table that has a log of which files are its own."""
    for name, pattern in _LOGS.items():
        log = folder / name
        if log.is_dir() and any(pattern.fullmatch(path.name) for path in log.iterdir()):
            what = f"its table has a log ({log}): rows that were deleted or replaced may lie in its files"
            hint = "Write the rows that it has to a Parquet file; a pattern such as '*.parquet' takes all of them"
            raise SourceError(what, folder, hint)


def check_mode(mode: int, where: Path | str) -> None:
    """Raise SourceError as ``check_regular`` does, where the file's mode is known."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceError("it is not a regular file", where)


def check_name(name: str, path: Path | str) -> None:
    """Raise SourceError for a file name that is not text.

    Keys are stored as UTF-8, and pyarrow opens nothing else.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        what = f"the name {name!r} is not UTF-8"
        raise SourceError(what, ascii(str(path)), "Rename it (see 'convmv')") from None
