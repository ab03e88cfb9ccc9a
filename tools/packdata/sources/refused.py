"""What cannot be a source: packed datasets, tables with a log, names that are no text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loaders.data.manifest import MANIFEST_NAME
from loaders.errors import SourceError
from packdata.sources.listed import Listing

if TYPE_CHECKING:
    from pathlib import Path

# Of Delta Lake, Iceberg and Hudi: files of rows that were deleted since stay in the folder.
_LOGS = {
    "_delta_log": re.compile(r".+\.json"),
    "metadata": re.compile(r"(v\d+|\d{5}-[0-9a-f-]+)(\.gz)?\.metadata\.json"),
    ".hoodie": re.compile(r"hoodie\.properties"),
}


def check_folder(listing: Listing) -> None:
    """Raise SourceError for a dataset that is packed already, or a table that has a log of its files."""
    if listing.find(MANIFEST_NAME) is not None:
        hint = "'packdata copy', 'split', 'merge' and 'extend' work on packed datasets"
        raise SourceError("a packed dataset cannot be a source", listing.root, hint)
    for folder in listing.folders:
        pattern = _LOGS.get(folder.rpartition("/")[2])
        log = listing.root / folder
        if pattern and any(map(pattern.fullmatch, Listing(log, deep=False).names())):
            what = f"its table has a log ({log}): rows that were deleted or replaced may lie in its files"
            hint = "Write the rows that it has to a Parquet file; a pattern such as '*.parquet' takes all of them"
            raise SourceError(what, log.parent, hint)


def check_name(name: str, path: Path | str) -> None:
    """Raise SourceError for a file name that is not text.

    Keys are stored as UTF-8, and pyarrow opens nothing else.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        what = f"the name {name!r} is not UTF-8"
        raise SourceError(what, ascii(str(path)), "Rename it (see 'convmv')") from None
