"""Worker counts that were measured once, by dataset and machine: what ``num_workers="auto"`` reads.

``python -m loaders.bench recommend`` measures and writes them, to ``$XDG_CACHE_HOME/loaders/workers.json``
(``~/.cache`` by default). A file that is missing, damaged or of another machine counts as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from loaders.system.regular import read_regular

_VERSION = 1
_MAX_ENTRIES = 1000


def cache_file() -> Path:
    """Return where the counts are kept; OSError if that is nowhere."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise FileNotFoundError("the home folder is not known: set XDG_CACHE_HOME")
    return Path(base) / "loaders" / "workers.json"


def machine_key(num_cores: int) -> str:
    """Identify a kind of machine: its name, processor and the cores that may be used."""
    return f"{platform.node()}/{platform.machine()}/{num_cores}"


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
        file = cache_file()
    except OSError:
        return None
    if not os.path.exists(file):  # before anything is hashed: most never measure
        return None
    key = dataset_key(dataset)
    count = _read(file).get(f"{machine_key(num_cores)}/{key}") if key else None
    return count if isinstance(count, int) and 0 <= count <= 8 * num_cores else None


def write_workers(dataset: Any, num_cores: int, num_workers: int) -> Path | None:
    """Keep a measured count; None if the dataset has no identity, else the file; OSError if it cannot be written."""
    key = dataset_key(dataset)
    if key is None:
        return None
    file = cache_file()
    entries = _read(file)
    entries.pop(f"{machine_key(num_cores)}/{key}", None)
    entries[f"{machine_key(num_cores)}/{key}"] = num_workers
    newest = dict(list(entries.items())[-_MAX_ENTRIES:])
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, suffix=".tmp") as out:
        json.dump({"version": _VERSION, "num_workers": newest}, out, indent=1)
    Path(out.name).replace(file)
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(file))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        return {}
    entries = content.get("num_workers")
    return entries if isinstance(entries, dict) else {}
