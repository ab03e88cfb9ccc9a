"""Arrow files, and the folders of them that ``datasets.save_to_disk`` writes.

Source:
    Hugging Face datasets, ``Dataset.save_to_disk``: ``state.json`` lists the files (streams of
    Arrow), ``dataset_dict.json`` the splits, each a folder of that form.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.refused import check_name

if TYPE_CHECKING:
    from packdata.reading import File
    from packdata.sources.listed import Listing

STATE, SPLITS, INFO = "state.json", "dataset_dict.json", "dataset_info.json"


def open_arrow(file: File) -> pa.Table:
    """Map an Arrow file or stream as a table: nothing is read before it is used. SourceError if it is neither."""
    path = file.path
    check_name(str(path), path)
    try:
        source = pa.memory_map(os.fspath(file.local()))
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()
    except (OSError, pa.ArrowException) as error:
        hint = "Is it complete?"
        raise SourceError(f"it cannot be read as Arrow ({error})", path, hint) from error


def saved_splits(listing: Listing) -> dict[str, Listing]:
    """Return the folders of splits, in their order; none if it is one dataset."""
    if (file := listing.find(SPLITS)) is None:
        return {}
    names = _json(file).get("splits")
    if not isinstance(names, list) or not all(_is_plain(name) for name in names):
        raise SourceError("it lists no splits", file.path, "Save the dataset again")
    return {name: listing.below(name) for name in names}


def saved_files(listing: Listing, folder: str, state: File) -> list[File]:
    """Return the Arrow files of one dataset, in the order of its ``state.json``.

    Raises:
        SourceError: A file is missing, or rows were chosen that are only listed.
    """
    known = _json(state)
    files = known.get("_data_files")
    names = [file.get("filename") for file in files] if isinstance(files, list) else None
    if names is None or not all(_is_plain(name) for name in names):
        raise SourceError("it lists no data files", state.path, "Save the dataset again")
    if known.get("_indices_data_files"):
        hint = "Save it again: dataset.flatten_indices().save_to_disk(...)"
        raise SourceError("its rows are chosen by a list of indices", state.path, hint)
    found = listing.files(f"{folder}/{name}".lstrip("/") for name in names)
    if lost := {*names} - {file.path.name for file in found}:
        place = listing.root / folder / min(lost)
        raise SourceError("it is listed in state.json and is not there", place, "Copy it again")
    return found


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and name == Path(name).name and name not in ("", "..")


def read_json(file: File) -> Any:
    """Return what a JSON file holds; SourceError if it cannot be read."""
    try:
        return json.loads(file())
    except (ValueError, RecursionError) as error:
        raise SourceError(f"it cannot be read ({error})", file.path) from error


def _json(file: File) -> dict[str, Any]:
    value = read_json(file)
    if not isinstance(value, dict):
        raise SourceError("it is not as datasets.save_to_disk writes it", file.path)
    return value
