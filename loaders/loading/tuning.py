"""Worker counts that were measured once, by dataset and machine: what ``num_workers="auto"`` reads.

``python -m loaders.bench recommend`` measures and writes them, each to a file of its own below
``$XDG_CACHE_HOME/loaders/workers`` (``~/.cache`` by default). A file that is missing or damaged counts as none.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

from loaders.system.publish import publish_bytes
from loaders.system.regular import read_regular

_MAX_BYTES = 20  # of a count


def cache_folder() -> Path:
    """Return where the counts are kept; OSError if that is nowhere."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise FileNotFoundError("the home folder is not known: set XDG_CACHE_HOME")
    return Path(base) / "loaders" / "workers"


def dataset_key(dataset: Any) -> str | None:
    """Identify what a dataset costs to serve: its bytes, fields and augmentation; None if it does not say."""
    fingerprint = getattr(dataset, "fingerprint", None)
    if not isinstance(fingerprint, str):
        return None
    if getattr(dataset, "transform", None) is not None:
        return None  # a function has no name that stays the same
    stored = getattr(dataset, "stored_fields", {})  # decoded ones are of another codec
    fields = [(name, repr(stored.get(name))) for name in getattr(dataset, "fields", ())]
    settings = [getattr(dataset, name, None) for name in ("augment", "scale", "device")]
    text = repr((fingerprint, type(dataset).__name__, fields, settings))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_workers(dataset: Any, num_cores: int) -> int | None:
    """Return the measured count for a dataset on this machine, or None."""
    try:
        folder = cache_folder()
        if not folder.exists():  # before anything is hashed: most never measure
            return None
        key = dataset_key(dataset)
        count = int(read_regular(folder / _name(key, num_cores), _MAX_BYTES)) if key else -1
    except (OSError, ValueError):
        return None
    return count if 0 <= count <= 8 * num_cores else None


def write_workers(dataset: Any, num_cores: int, num_workers: int) -> Path | None:
    """Keep a measured count; None if the dataset has no identity, else the file; OSError if it cannot be written."""
    key = dataset_key(dataset)
    if key is None:
        return None
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(key, num_cores)
    publish_bytes(path, f"{num_workers}\n".encode())
    return path


def _name(key: str, num_cores: int) -> str:
    """Return the file of a dataset on this kind of machine: its name, processor and the cores that may be used."""
    machine = f"{platform.node()}/{platform.machine()}/{num_cores}/{key}"
    return hashlib.blake2b(machine.encode(), digest_size=16).hexdigest()
