"""The files of a source: found by name, their kind known by suffix, read by ranges."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.copies import opened_in_order
from packdata.delimited import CsvRows
from packdata.parsing import json_object
from packdata.reading import LocalFile, RemoteFile
from packdata.rows import (
    DELIMITED,
    JSON_LINES,
    MAX_ROW_BYTES,
    compression_of,
    open_text,
    suffix_inside,
)
from packdata.sources.listed import Listing, look_at
from packdata.sources.names import check_name, foreign_hint, suffix_of
from packdata.sources.opening import check_folder
from packdata.sources.row_kinds import ROW_KINDS, listed_files, open_row_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from loaders.remote.url import Location
    from packdata.reading import File

_FIRST_BYTES, _FIRST_ROWS = 1 << 20, 64  # of JSON lines, for the columns that they have
BOM = b"\xef\xbb\xbf"
_KINDS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((*JSON_LINES, ".json"), "jsonl"),
    **dict.fromkeys(DELIMITED, "csv"),
    ".npy": "npy",
    ".bin": "bin",
    **ROW_KINDS,
}
IDS_KINDS = ("npy", "bin")
COLUMN_KINDS = frozenset({"jsonl", "csv", *ROW_KINDS.values()})  # of named columns
_COMPRESSED = ("text", "jsonl", "csv")
_NOT_READ = (
    *(".npz", ".pt", ".pkl", ".safetensors", ".h5", ".hdf5", ".idx", ".ds"),
    *(".zip", ".xz", ".tar", ".tgz"),
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file."""

    file: File
    name: str  # what to call it: the part of its path that differs between the files
    kind: str  # ``text``, ``jsonl``, ``csv``, ``npy``, ``bin`` or a kind of rows

    @property
    def path(self) -> Location:
        """Where it is."""
        return self.file.path

    @property
    def size(self) -> int:
        """Its bytes on disk."""
        return self.file.size

    @property
    def is_compressed(self) -> bool:
        """True if its name says so."""
        return compression_of(self.path.name) is not None

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of its bytes as stored, fewer at the end; SourceError if that fails."""
        if isinstance(self.file, RemoteFile):
            return replace(self.file, start=start, end=stop)()
        with self.file.open() as file:
            file.seek(start)
            return file.read(stop - start)


def list_files(sources: Sequence[Location]) -> tuple[list[SourceFile], Counter[str]]:
    """Return the files at some paths, in the order of the paths, those of a folder by name.

    Args:
        sources: Files, folders (searched to the bottom for known suffixes), or patterns such as
            ``data/**/*.py``; a file that is named, or matched, is text unless its suffix says else.

    Returns:
        The files, and how many of which other suffixes were skipped.

    Raises:
        SourceError: There is nothing, or something that cannot be read.
    """
    files: list[SourceFile] = []
    ignored: Counter[str] = Counter()
    for source in sources:
        found = look_at(source)
        if isinstance(found, Listing):
            files += _list_folder(found, ignored)
        else:
            files += [_source_file(file, file.path.name) for file in found]
    if not files:
        hint = f"Known suffixes are {', '.join(_KINDS)}; '*.py' takes others as text"
        raise SourceError("no text or token files found", str(sources[0]), hint)
    for path, num in Counter(file.path for file in files).items():
        if num > 1:
            raise SourceError("duplicate file", path)
    opened_in_order(file.file for file in files)
    return files, ignored


def _list_folder(listing: Listing, ignored: Counter[str]) -> Iterator[SourceFile]:
    check_folder(listing)
    paths: list[str] = []
    for folder in listing.folders:
        inside, listed = listing.paths(listing.inside(folder)), listed_files(listing, folder)
        if listed is not None:  # beside the files of a dataset lie those of caches
            names = {file.path.name for file in listed}
            inside = (path for path in inside if os.path.basename(path) in names)
        paths += inside
    data: list[str] = []
    for path in sorted(paths):
        # A plain .json or .csv beside others is often no data: it is read by its own path.
        if _KINDS.get(suffix_inside(path)) not in (None, "csv") and suffix_of(path) != ".json":
            data.append(path)
        elif suffix_of(path) != ".idx":  # of a .bin
            ignored[suffix_inside(path)] += 1
    return map(_source_file, listing.files(data), data)


def _source_file(file: File, name: str) -> SourceFile:
    path, suffix = file.path, suffix_inside(file.path.name)
    made = SourceFile(file, name, _KINDS.get(suffix, "text"))
    is_packed = made.is_compressed and made.kind not in _COMPRESSED
    if suffix in _NOT_READ or is_packed or foreign_hint(path.name):
        hint = "Unpack archives, save ids with numpy.save; of .bin and .idx pass the .bin"
        raise SourceError("unsupported file type", path, foreign_hint(path.name) or hint)
    check_name(name, path)
    if isinstance(file, LocalFile):
        file.local()  # a pipe is refused
    return made


def identity_of(files: Iterable[SourceFile]) -> list[Any]:
    """Return what changes when the files do."""
    return [[file.name, file.size, file.file.mark] for file in files]


def columns_of(file: SourceFile) -> pa.Schema:
    """Return the columns of a file; those of JSON are of type null but for lists of numbers, by its first lines."""
    if file.kind == "csv":
        return pa.schema([(name, pa.string()) for name in CsvRows(file.file).columns])
    if file.kind != "jsonl":
        return open_row_file(file.file).schema
    with open_text(file.file) if file.is_compressed else file.file.open() as text:
        head = text.read(_FIRST_BYTES)
        if b"\n" not in head:
            head += text.readline(MAX_ROW_BYTES)
    lines = head.removeprefix(BOM).split(b"\n")
    columns: dict[str, pa.DataType] = {}
    for line in islice(filter(bytes.strip, lines), _FIRST_ROWS):
        with suppress(ValueError):  # the packing names what cannot be read
            for name, value in json_object(line).items():
                columns.setdefault(name, pa.null())
                if _is_numbers(value):
                    columns[name] = pa.list_(pa.float64())
    return pa.schema(columns)


def _is_numbers(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) > 0
    return is_list and all(isinstance(each, int | float) for each in value)
