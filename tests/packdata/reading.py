"""Packed datasets as tests look at them: a view, with the records of one sample and the manifest."""

from pathlib import Path
from typing import Any

import numpy as np

from loaders.data.manifest import read_manifest
from loaders.data.view import View, open_view


class PackedReader(View):
    """The dataset of a folder."""

    def __init__(self, path: Path | str, *, check: bool = False) -> None:
        view = open_view(path, "first" if check else "never")
        super().__init__(view.store, view.schema, view.source_fingerprint, view.path)
        self.manifest = read_manifest(path)

    def select(self, positions: Any) -> View:
        return View(self.store, self.schema, self.source_fingerprint, self.path).select(positions)

    def record(self, i: int, name: str) -> np.ndarray[Any, Any]:
        """Return one record."""
        return self.records(name, np.array([i], np.int64))[0]

    def records_of(self, i: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return all records of a sample."""
        return {name: self.record(i, name) for name in self.schema.fields}
