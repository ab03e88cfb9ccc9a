"""What the names of files say: of which kind they are, which are no data, and the keys of samples."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.sources.duplicates import duplicates

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from loaders.remote.url import Location

PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".jp2", ".heic", ".heif", ".hif", ".jxl"}
)
SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
_SPLIT = "|".join(SPLIT_NAMES)
_SPLIT_FOLDER = re.compile(rf"({_SPLIT})[-_.]?v?[0-9.]*", re.IGNORECASE)  # train2017
_SPLIT_FILE = re.compile(rf"({_SPLIT})([-_.].*)?", re.IGNORECASE)
_SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini", "__macosx"})

_OWN_LIBRARY = "The format has a library, whose samples packdata.pack takes: examples/from_{}.py"
STREAMING_HINT = _OWN_LIBRARY.format("mds.py and examples/from_litdata")
# By what is in the name of a file that is not read.
_FOREIGN = {
    ".tar.gz": "Members of a compressed tar cannot be read one by one: gunzip the tar first",
    ".tgz": "Members of a compressed tar cannot be read one by one: gunzip the tar first",
    ".mds": _OWN_LIBRARY.format("mds"),
    ".tfrecord": _OWN_LIBRARY.format("tfrecord"),
    "-ubyte": "IDX files (MNIST) are not read: packdata.pack takes their arrays, see docs/images.md",
}


@dataclass(frozen=True, slots=True)
class FileKind:
    """Which files a folder or list is made of."""

    names: str  # what they are called, in the plural
    suffixes: frozenset[str]  # how they end, in lower case; masks too
    # Names that the column of their paths in a list may have, the first found is taken.
    columns: tuple[str, ...]
    option: str  # the option that names another column


_PATHS = ("path", "file", "filename", "image", "file_name", "filepath", "image_path", "images")
PICTURES = FileKind("pictures", PICTURE_SUFFIXES, _PATHS, "image_column=")
_ARRAY_PATHS = ("array", "volume", *_PATHS)
ARRAYS = FileKind("arrays", frozenset({".npy", ".npz"}), _ARRAY_PATHS, "array_column=")


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is the system's own: dot files, Thumbs.db and the like."""
    if name == ".hoodie":  # says that the files beside it are those of a table
        return False
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def suffix_of(name: str) -> str:
    """Return the last suffix in lower case, dot included; '' if there is none."""
    return os.path.splitext(name)[1].lower()


def check_name(name: str, path: Location | str) -> None:
    """Raise SourceError for a file name that is not text: keys are stored as UTF-8, and pyarrow opens nothing else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        what = f"the name {name!r} is not UTF-8"
        raise SourceError(what, ascii(str(path)), "Rename the file (see 'convmv')") from None


def foreign_hint(name: str) -> str:
    """Return how to pack a file that is not read; "" for others."""
    return next((hint for mark, hint in _FOREIGN.items() if mark in name.lower()), "")


def is_split(folder: str) -> bool:
    """Tell whether a folder is called as a split, whatever its number or version."""
    return _SPLIT_FOLDER.fullmatch(folder) is not None


def split_of(file: str) -> str | None:
    """Return the split that the name of a file begins with, in lower case."""
    match = _SPLIT_FILE.fullmatch(file)
    return match and match[1].lower()


def key_of(relative: str, shared: Container[str] = ()) -> str:
    """Return a relative path with forward slashes, without its suffix where that is not ``shared``."""
    stem = os.path.splitext(relative)[0]
    return relative if stem in shared else stem


def shared_keys(files: Callable[[], Iterable[str]]) -> frozenset[str]:
    """Return what several files would have as key, such as ``a`` of ``a.jpg`` and ``a.png``.

    ``files`` gives their names, each time the same.
    """
    return frozenset(duplicates(lambda: map(key_of, files())))
