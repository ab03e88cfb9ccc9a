"""Arrow files, and the folders of them that ``datasets.save_to_disk`` writes.

Source:
    Hugging Face datasets, ``Dataset.save_to_disk``: ``state.json`` lists the files (streams of
    Arrow), ``dataset_dict.json`` the splits, each a folder of that form.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.base import read_file
from packdata.sources.refused import check_name, check_regular

STATE, SPLITS, INFO = "state.json", "dataset_dict.json", "dataset_info.json"


def open_arrow(path: Path) -> pa.Table:
    """Map an Arrow file or stream as a table: nothing is read before it is used. SourceError if it is neither."""
    check_regular(path, path)
    check_name(str(path), path)
    try:
        source = pa.memory_map(os.fspath(path))
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()
    except (OSError, pa.ArrowException) as error:
        hint = "Is it complete?"
        raise SourceError(f"it cannot be read as Arrow ({error})", path, hint) from error


def saved_splits(folder: Path) -> dict[str, Path]:
    """Return the folders of splits, in their order; none if it is one dataset."""
    if not (folder / SPLITS).is_file():
        return {}
    names = _json(folder / SPLITS).get("splits")
    if not isinstance(names, list) or not all(_is_plain(name) for name in names):
        raise SourceError("it lists no splits", folder / SPLITS, "Save the dataset again")
    return {name: folder / name for name in names}


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of one dataset, in their order.

    Raises:
        SourceError: A file is missing, or rows were chosen that are only listed.
    """
    state = _json(folder / STATE)
    files = state.get("_data_files")
    names = [file.get("filename") for file in files] if isinstance(files, list) else None
    if names is None or not all(_is_plain(name) for name in names):
        raise SourceError("it lists no data files", folder / STATE, "Save the dataset again")
    if state.get("_indices_data_files"):
        hint = "Save it again: dataset.flatten_indices().save_to_disk(...)"
        raise SourceError("its rows are chosen by a list of indices", folder / STATE, hint)
    paths = [folder / str(name) for name in names]
    if lost := [path for path in paths if not path.is_file()]:
        raise SourceError("it is listed in state.json and is not there", lost[0], "Copy it again")
    return paths


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and name == Path(name).name and name not in ("", "..")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; SourceError if it cannot be read."""
    data = read_file(path, str(path))
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"it cannot be read ({error})", path) from error


def _json(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise SourceError("it is not as datasets.save_to_disk writes it", path)
    return value
