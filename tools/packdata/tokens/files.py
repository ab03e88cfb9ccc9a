"""The files of a source: found by name, their kind known by suffix, read by ranges."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.rows import DELIMITED, JSON_LINES, compression_of, suffix_inside
from packdata.sources.base import foreign_hint, is_hidden, open_file
from packdata.sources.folders import LINK_ABOVE, files_below
from packdata.sources.listed import (
    ListedURL,
    files_matching,
    list_sources,
    opened_in_order,
    place_of_source,
)
from packdata.sources.refused import check_folder, check_mode, check_name, check_no_log, nothing_at
from packdata.sources.row_kinds import ROW_KINDS, listed_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from packdata.sources.objects import RemoteFile

_KINDS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((*JSON_LINES, ".json"), "jsonl"),
    **dict.fromkeys(DELIMITED, "csv"),
    ".npy": "npy",
    ".bin": "bin",
    ".ds": "ds",
    **{f".{kind}": kind for kind in sorted(ROW_KINDS)},
}
IDS_KINDS = ("npy", "bin", "ds")
LINE_KINDS = frozenset({"jsonl", "csv", *ROW_KINDS})  # of named columns
_COMPRESSED = ("text", "jsonl", "csv")
_NOT_READ = (
    *(".npz", ".pt", ".pkl", ".safetensors", ".h5", ".hdf5", ".idx"),
    *(".zip", ".xz", ".tar", ".tgz"),
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file."""

    path: Path
    name: str  # what to call it: the part of its path that differs between the files
    kind: str  # ``text``, ``jsonl``, ``csv``, ``npy``, ``bin``, ``ds`` or a kind of rows
    compression: str | None  # as Arrow calls it
    size: int  # bytes on disk
    stored: RemoteFile | None = None  # the object of a store that it is

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of its bytes, fewer at the end; SourceError if that fails."""
        if self.stored is not None:
            return self.stored.part(start, stop)()
        with open_file(self.path, str(self.path)) as file:
            file.seek(start)
            return file.read(stop - start)

    def head(self, nbytes: int) -> bytes:
        """Return its first bytes, decompressed; SourceError if it cannot be read."""
        if self.compression is None:
            return self.read(0, nbytes)
        with self._decompressed() as source:
            return bytes(source.read(nbytes))

    def unpacked(self) -> Any:
        """Return its decompressed bytes, mapped: they lie in a file without a name below ``TMPDIR``.

        None if it is not compressed; SourceError if it is damaged, or cut off.
        """
        if self.compression is None:
            return None
        with self._decompressed() as source, tempfile.TemporaryFile(prefix="packdata-") as plain:
            shutil.copyfileobj(source, plain, 1 << 20)
            plain.flush()
            return mmap.mmap(plain.fileno(), 0) if plain.tell() else b""

    @contextmanager
    def _decompressed(self) -> Iterator[Any]:
        file = open_file(self.path, str(self.path)) if self.stored is None else self.stored.open()
        try:
            with file:
                yield pa.CompressedInputStream(pa.PythonFile(file, "r"), self.compression)
        except (OSError, EOFError, pa.ArrowException) as error:
            what = f"the file cannot be decompressed ({error})"
            raise SourceError(what, self.path, "Is it complete?") from error


def list_files(sources: Sequence[Path | str]) -> tuple[list[SourceFile], Counter[str]]:
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
    list_sources(sources)
    for source in sources:
        path = place_of_source(source)
        if path.is_dir():
            files += _list_folder(path, ignored)
        elif path.exists():
            files.append(_source_file(path, path.name))
        else:
            found = sorted(files_matching(path), key=str)
            if not found:
                raise nothing_at(path)
            files += [_source_file(file, file.name) for file in found if not _is_index(file)]
    if not files:
        what = f"no text and no ids among {', '.join(sorted(ignored)) or 'its files'}"
        hint = (
            f"Known are {', '.join(_KINDS)}, text and lines compressed, too; '*.py' takes others"
        )
        raise SourceError(what, str(sources[0]), hint)
    paths = [file.path for file in files]
    for path, num in Counter(paths).items():
        if num > 1:
            raise SourceError("duplicate file", path)
    opened_in_order(paths)
    return files, ignored


def _list_folder(folder: Path, ignored: Counter[str]) -> Iterator[SourceFile]:
    check_folder(folder)
    found: list[tuple[str, Path]] = []
    for relative, entries in files_below(folder):
        if entries is None:
            ignored[LINK_ABOVE] += 1
        check_no_log(folder / relative)
        shown = [entry for entry in entries or () if not is_hidden(entry.name)]
        listed = listed_files(folder / relative, [entry.name for entry in shown])
        if listed is not None:  # beside the files of a dataset lie those of caches
            names = {path.name for path in listed}
            shown = [entry for entry in shown if entry.name in names]
        found += [
            (f"{relative}/{entry.name}".lstrip("/"), place_of_source(entry.path))
            for entry in shown
        ]
    for name, path in sorted(found):
        # A plain .json or .csv beside others is often no data: it is read by its own path.
        kind = _KINDS.get(suffix_inside(path.name), "csv")
        if kind != "csv" and path.suffix.lower() != ".json":
            yield _source_file(path, name)
        elif not _is_index(path):
            ignored[suffix_inside(path.name)] += 1


def _is_index(path: Path) -> bool:
    return path.suffix.lower() == ".idx" and path.with_suffix(".bin").exists()


def _source_file(path: Path, name: str) -> SourceFile:
    kind, compression = _KINDS.get(suffix_inside(path.name)), compression_of(path.name)
    hint = foreign_hint(path.name)
    if suffix_inside(path.name) in _NOT_READ:
        hint = "Unpack archives, save ids with numpy.save; of .bin and .idx pass the .bin"
    if hint or (compression and kind is not None and kind not in _COMPRESSED):
        raise SourceError("files of this kind are not read", path, hint or "Unpack the file first")
    check_name(name, path)
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"the file cannot be read ({error.strerror})", path) from error
    check_mode(found.st_mode, path)
    stored = path.stored if isinstance(path, ListedURL) else None
    return SourceFile(path, name, kind or "text", compression, found.st_size, stored)


def identity_of(files: Iterable[SourceFile]) -> list[Any]:
    """Return what changes when the files do."""
    stats = [(file, file.path.stat()) for file in files]
    return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]
