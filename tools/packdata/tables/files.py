"""Table files by name, pattern or folder, each opened as what its suffix says."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.errors import SourceError
from packdata.sources.base import is_hidden, suffix_of
from packdata.tables.arrow import ArrowTable, ParquetTable
from packdata.tables.delimited import DelimitedFile
from packdata.tables.jsonl import JsonLinesFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packdata.tables.parts import TableFile

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": ","}
_KINDS: dict[str, Callable[[Path], TableFile]] = {
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".parquet": ParquetTable,
    ".arrow": ArrowTable,
    ".feather": ArrowTable,
    ".ipc": ArrowTable,
}
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".ipc")
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".zip")


def open_tables(sources: Sequence[Path | str], delimiter: str | None = None) -> list[TableFile]:
    """Open the files that paths, patterns and folders name: each once, in the order given, those of one sorted.

    Args:
        sources: Files, patterns such as ``data/*.csv``, and folders of table files.
        delimiter: What separates the cells of CSV files; None for a comma, or a tab in ``.tsv``.

    Raises:
        ValueError: The delimiter is none.
        SourceError: There is no such file, or it is not a table.
    """
    if delimiter is not None and not _is_delimiter(delimiter):
        what = "delimiter must be one ASCII character other than a quote or line end"
        raise ValueError(f"{what}, got {delimiter!r}")
    paths: dict[Path, None] = {}
    for source in sources:
        paths |= dict.fromkeys(_expand(source))
    if not paths:
        raise SourceError("there is no table to pack", ", ".join(map(str, sources)))
    return [_open(path, delimiter) for path in paths]


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in '\0"\r\n'


def _expand(source: Path | str) -> list[Path]:
    path = Path(source)
    if (path / "manifest.json").exists():
        hint = "'packdata split', 'merge' and 'append' work on packed datasets"
        raise SourceError("it is a packed dataset already", path, hint)
    if path.is_dir():
        found = [p for p in sorted(path.iterdir()) if suffix_of(p.name) in _SUFFIXES]
        found = [p for p in found if not is_hidden(p.name)]
        if not found:
            raise SourceError(f"the folder has no {', '.join(_SUFFIXES)}", path)
        return found
    if path.exists() or not glob.has_magic(str(source)):
        return [path]
    matches = sorted(Path(match) for match in glob.glob(str(source), recursive=True))
    if not matches:
        raise SourceError("no file matches", source)
    return [match for match in matches if match.is_file()]


def _open(path: Path, delimiter: str | None) -> TableFile:
    suffix = suffix_of(path.name)
    if suffix not in _DELIMITERS and suffix not in _KINDS:
        what = f"files of kind {suffix or 'without suffix'} are not tables that can be packed"
        hint = "Decompress it" if suffix in _COMPRESSED else f"It takes {', '.join(_SUFFIXES)}"
        raise SourceError(what, path, hint)
    try:
        if suffix in _DELIMITERS:
            return DelimitedFile(path, delimiter or _DELIMITERS[suffix])
        return _KINDS[suffix](path)
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror or error})", path) from error
