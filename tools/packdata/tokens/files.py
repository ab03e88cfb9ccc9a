"""The files of a source: found by name, told apart by suffix, read from their beginning to their end."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loaders.errors import SourceError
from packdata.rows import DELIMITED, JSON_LINES
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
from packdata.sources.row_kinds import ROW_KINDS, listed_files, row_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from packdata.sources.objects import RemoteFile

_KINDS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys(JSON_LINES, "jsonl"),
    **dict.fromkeys(DELIMITED, "csv"),
    ".npy": "npy",
    **dict.fromkeys((".bin", ".idx"), "bin"),
    ".ds": "ds",
}
IDS_KINDS = ("npy", "bin", "ds")
LINE_KINDS = frozenset({"jsonl", "csv", *ROW_KINDS})  # of named columns
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_SAVE = "Save the ids with numpy.save"
_NOT_READ = {
    ".npz": "Save the array of ids by itself, with numpy.save",
    **dict.fromkeys((".zip", ".bz2", ".xz"), "Unpack it first"),
    **dict.fromkeys((".tar", ".tgz"), "Write its documents to JSON lines, one a line"),
    **dict.fromkeys((".pt", ".pkl", ".safetensors", ".h5", ".hdf5"), _SAVE),
}
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file."""

    path: Path
    name: str  # what to call it: the part of its path that differs between the files
    kind: str  # how it is read: ``text``, ``jsonl``, ``csv``, ``npy``, ``bin``, ``ds`` or a kind of rows
    compression: str | None  # ``gzip``, ``zstd`` or None
    size: int  # its bytes on disk
    stored: RemoteFile | None = None  # what reads it, where it is an object of a store

    def open(self) -> BinaryIO:
        """Open it, decompressed; SourceError if that fails."""
        file = open_file(self.path, str(self.path)) if self.stored is None else self.stored.open()
        if self.compression is None:
            return file
        stream: Any = pa.CompressedInputStream(pa.PythonFile(file, "r"), self.compression)
        return stream  # type: ignore[no-any-return]


def list_files(sources: Sequence[Path | str]) -> tuple[list[SourceFile], Counter[str]]:
    """Return the files at some paths, in the order of the paths, those of a folder by name.

    Args:
        sources: Files, folders (searched to the bottom for known suffixes), or patterns such as
            ``data/**/*.py``; a file that is named, or matched, is text unless its suffix says else.

    Returns:
        The files, and how many of which other suffixes were passed over.

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
            files += _list_pattern(path)
    if not files:
        seen = ", ".join(sorted(ignored))
        what = f"it holds {seen} but no text and no ids" if seen else "it is empty"
        known = ", ".join([*_KINDS, *(f".{kind}" for kind in sorted(ROW_KINDS))])
        hint = f"Known are {known}, with .gz or .zst behind text and JSONL; '*.py' takes others"
        raise SourceError(what, str(sources[0]), hint)
    paths = [file.path for file in files]
    twice = next((path for path, n in Counter(paths).items() if n > 1), None)
    if twice is not None:
        raise SourceError("the file is given more than once", twice)
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
        suffix, compression = _suffixes(path)
        # A plain .json or .csv beside others is often no data: it is read where it is named.
        is_json_lines = suffix == ".json" and compression is not None
        is_known = (
            (suffix in _KINDS and _KINDS[suffix] != "csv")
            or is_json_lines
            or row_kind(path.name) is not None
        )
        if not is_known:
            ignored[suffix] += 1
        elif not _is_index_of_bin(path):
            yield _source_file(path, name)


def _list_pattern(path: Path) -> list[SourceFile]:
    found = sorted(files_matching(path), key=str)
    pair = path.with_name(f"{path.name}.bin")
    if not found and pair.exists():  # Megatron names the pair by what both begin with
        found = [pair]
    if not found:
        raise nothing_at(path)
    return [_source_file(file, file.name) for file in found if not _is_index_of_bin(file)]


def _is_index_of_bin(path: Path) -> bool:
    return path.suffix.lower() == ".idx" and path.with_suffix(".bin").exists()


def _suffixes(path: Path) -> tuple[str, str | None]:
    """Return the suffix that tells the kind, and the compression."""
    compression = _COMPRESSIONS.get(path.suffix.lower())
    inner = path.with_suffix("") if compression else path
    return inner.suffix.lower(), compression


def _source_file(path: Path, name: str) -> SourceFile:
    suffix, compression = _suffixes(path)
    if suffix == ".idx":
        path, name = path.with_suffix(".bin"), name.removesuffix(path.suffix) + ".bin"
    if hint := foreign_hint(path.name) or _NOT_READ.get(suffix):
        raise SourceError(f"{suffix} files are not read", path, hint)
    kind = row_kind(path.name)
    if kind is None:
        inner = row_kind(path.stem) if compression else None
        kind = inner or ("jsonl" if suffix == ".json" else _KINDS.get(suffix, "text"))
    else:
        compression = None  # that of the kind
    if compression and kind not in ("text", "jsonl", "csv"):
        raise SourceError(f"a compressed {suffix} file is not read", path, "Unpack it first")
    check_name(name, path)
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"the file cannot be read ({error.strerror})", path) from error
    check_mode(found.st_mode, path)
    stored = path.stored if isinstance(path, ListedURL) else None
    file = SourceFile(path, name, kind, compression, found.st_size, stored)
    if suffix == ".json":
        _check_lines(file)
    return file


def _check_lines(file: SourceFile) -> None:
    """Raise SourceError for a .json that is not one object a line, as C4's .json.gz are."""
    with closing(ForwardReader(file)) as reader:
        head = reader.read(_CHUNK).lstrip()
    line = head.split(b"\n", 1)[0].rstrip()
    if head and not (line.startswith(b"{") and (line.endswith(b"}") or line == head.rstrip())):
        hint = "Write one JSON object a line (jq -c '.[]'), and call it .jsonl"
        raise SourceError("the file does not hold one JSON object a line", file.path, hint)


class ForwardReader:
    """Reads a file forwards, in parts that end where something is found.

    Attributes:
        position: Offset, in the decompressed bytes, of what comes next.
    """

    def __init__(self, source: SourceFile) -> None:
        self.source, self.position = source, 0
        self._file = source.open()
        self._ahead = b""

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes, fewer only at the end; SourceError if the file is damaged."""
        parts, left = [self._ahead[:nbytes]], nbytes - len(self._ahead[:nbytes])
        self._ahead = self._ahead[nbytes:]
        while left and (part := self._read_some(left)):
            parts.append(part)
            left -= len(part)
        data = b"".join(parts)
        self.position += len(data)
        return data

    def _read_some(self, nbytes: int) -> bytes:
        try:
            return self._file.read(nbytes)
        except (OSError, EOFError, pa.ArrowException) as error:
            what = f"the file cannot be read behind byte {self.position} ({error})"
            raise SourceError(what, self.source.path, "Is it complete?") from error

    def peek(self, nbytes: int) -> bytes:
        """Return the next bytes, fewer only at the end, without going on."""
        data, position = self.read(nbytes), self.position
        self._ahead, self.position = data + self._ahead, position - len(data)
        return data

    def skip_to(self, offset: int) -> bool:
        """Go on at an offset; False if the file ends before it."""
        if self.source.compression is None:
            self._file.seek(offset)
            self._ahead, self.position = b"", min(offset, self.source.size)
        while self.position < offset and self.read(min(1 << 20, offset - self.position)):
            pass
        return self.position == offset

    def skip_behind(self, mark: bytes, start: int) -> bool:
        """Go on behind a ``mark``, or at the end, if there is none: then return False.

        It is the next that begins at ``start`` or later and overlaps no earlier one: blank lines in
        a row are a mark from every second on, and which those are, only their first can tell.
        """
        earlier = -len(mark)
        while True:
            more = self._read_some(_CHUNK)
            self._ahead += more
            at = self._ahead.find(mark)
            while at >= 0:
                offset = self.position + at
                if offset >= start and offset - earlier >= len(mark):
                    self.read(at + len(mark))
                    return True
                earlier, at = offset, self._ahead.find(mark, at + 1)
            if not more:
                self.read(len(self._ahead))
                return False
            self.read(max(0, len(self._ahead) - len(mark) + 1))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def count_lines(source: SourceFile, end: int) -> int:
    """Return the number of the line, from 1, that a byte of a file lies in."""
    lines = 1
    with closing(ForwardReader(source)) as reader:
        while (left := end - reader.position) > 0 and (data := reader.read(min(left, 1 << 20))):
            lines += data.count(b"\n")
    return lines


def identity_of(files: Iterable[SourceFile]) -> list[Any]:
    """Return what changes when the files do."""
    stats = [(file, file.path.stat()) for file in files]
    return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]
