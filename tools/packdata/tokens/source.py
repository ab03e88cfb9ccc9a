"""A source of documents: files, what their rows hold, and the pieces of them that are packed one by one."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.system.limits import usable_cores
from packdata.delimited import CsvRows
from packdata.describe import counted
from packdata.packing.pool import OrderedPool
from packdata.reading import RemoteFile
from packdata.sources.row_kinds import ROW_KINDS, open_row_file
from packdata.tokens.chat import Chat, open_template
from packdata.tokens.contents import BESIDE_IDS, Ids, Texts, are_numbers, is_list_of_numbers
from packdata.tokens.documents import DocumentFile, Recent, joined, texts_of
from packdata.tokens.files import IDS_KINDS, LINE_KINDS
from packdata.tokens.ids import IdsFile
from packdata.tokens.texts import CsvFile, TableFile, TextFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Documents, Range
    from packdata.tokens.files import SourceFile
    from packdata.tokens.options import TokenOptions

_AT_ONCE = 16  # objects that are looked at
_FIRST_BYTES, _FIRST_ROWS = 1 << 20, 64  # of a file, looked at for lists beside the ids
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Piece:
    """Ranges of files that are packed together: one thread reads them."""

    parts: Sequence[Range]

    @property
    def where(self) -> str:
        """Its place, for messages."""
        more = len(self.parts) - 1
        return self.parts[0].where + (f" and {counted(more, 'more file')}" if more else "")

    @property
    def reads(self) -> list[RemoteFile]:
        """What fetches the ranges that are in a store."""
        return [part.stored for part in self.parts if part.stored is not None]

    def read(self) -> Documents:
        """Return what it holds; SourceError if that is damaged."""
        return joined([part.file.read(part) for part in self.parts])


class TokenSource:
    """The documents of files, all of text or all of ids, in pieces in a fixed order.

    Attributes:
        content: What rows hold; None of files of ids.
        kind: ``text``, ``chat``, ``lists`` (of ids, by document), or ``ids`` (files of them).
        itemsize: Bytes of its widest ids.
        cut: Files may be cut at multiples of so many ids or bytes; None: only where a document ends.
        runs: As of a recipe: of each piece, where what it is read from begins.
        empty_files: Names of files that hold nothing.

    Raises:
        SourceError: A file cannot be read, or lacks a column.
    """

    def __init__(
        self, files: Sequence[SourceFile], options: TokenOptions, *, may_cut: bool = False
    ) -> None:
        is_ids = files[0].kind in IDS_KINDS
        self.options, self._recent = options, Recent()
        self.content = None if is_ids else content_of(files, options)
        self.kind = "ids" if self.content is None else self.content.kind
        self.has_ids = self.kind in ("ids", "lists")
        self.has_labels = self.content is not None and self.content.has_labels
        is_bytes = options.train_bpe is None and options.tokenizer in (None, "bytes")
        # Then all rows but a file's last are full. With an id before or behind it a document is longer.
        is_plain = is_ids or (is_bytes and self.kind == "text" and options.bos == "none")
        size = IdsFile.piece_tokens if is_ids else DocumentFile.piece_bytes
        cut = size // options.row_tokens * options.row_tokens or options.row_tokens
        self.cut = cut if is_plain and may_cut else None
        self.empty_files: list[str] = []
        self._plan: list[list[Range]] = []
        self.runs: list[int] = []
        self._add(files)
        self.itemsize = max((parts[0].file.itemsize for parts in self._plan), default=4)

    def _add(self, files: Sequence[SourceFile]) -> None:
        """List the ranges of all files: many are looked at where that is waiting for answers of a store."""
        are_stored, size = any(isinstance(file.file, RemoteFile) for file in files), 0
        num_threads = _AT_ONCE if are_stored else usable_cores()
        with OrderedPool(self._ranges, num_threads) as pool:
            for file, ranges in zip(files, pool.map(files), strict=True):
                if not ranges:
                    self.empty_files.append(file.name)
                for part in ranges:
                    if not self._plan or size >= DocumentFile.piece_bytes:
                        goes_on = self._plan and part.key and self._plan[-1][0].key == part.key
                        self.runs.append(self.runs[-1] if goes_on else len(self._plan))
                        self._plan.append([])
                        size = 0
                    self._plan[-1].append(part)
                    size += part.nbytes

    def _ranges(self, file: SourceFile) -> list[Range]:
        return [*self._open(file).ranges()]

    def _open(self, file: SourceFile) -> DocumentFile:
        options, content = self.options, self.content
        if content is None:
            return IdsFile(file, options.bin_dtype, options.eod, self.cut)
        if file.kind == "csv":
            return CsvFile(file, content)
        if file.kind in ROW_KINDS:
            return TableFile(file, content, self._recent)
        return TextFile(file, options.documents, content, self.cut, self._recent)

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._plan)

    def pieces(self, start: int = 0, step: int = 1) -> Iterator[Piece]:
        """Yield the pieces from number ``start`` on."""
        for parts in map(self._plan.__getitem__, range(start, len(self), step)):
            yield Piece([part.file.ahead(part) for part in parts])

    def texts(self, limit: int) -> Iterator[str]:
        """Yield the texts of pieces spread evenly over it, ``limit`` bytes or a little more; SourceError."""
        wanted = max(1, limit // DocumentFile.piece_bytes)
        for piece in self.pieces(step=max(1, len(self) // wanted)):
            yield from texts_of(piece.read())


def content_of(files: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    """Return what the rows of some files hold, by the options, else by the first file's columns.

    Raises:
        SourceError: They hold conversations, and no template is given; or the template cannot be read.
    """
    rows = [file for file in files if file.kind in LINE_KINDS]
    content = _content_of_rows(rows, options) if rows else Texts("text")
    if content.kind != "text" and len(rows) < len(files):
        what = f"{counted(len(files) - len(rows), 'file')} of plain text beside {content.kind}"
        raise SourceError(what, rows[0].path, "Pack them one after the other")
    return content


def _content_of_rows(rows: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    if options.chat_template is not None:
        day = None if options.chat_date is None else date.fromisoformat(options.chat_date)
        template = open_template(options.chat_template, options.tokenizer, day)
        return Chat(options.messages_column or "messages", template)
    columns = _first_values(rows[0])
    means_text = options.tokenizer is not None or options.train_bpe is not None
    if options.text_column is not None or (means_text and "text" in columns):
        return Texts(options.text_column or "text")
    if options.ids_column is not None or "input_ids" in columns:
        lists = [name for name in BESIDE_IDS if columns.get(name) is not None]
        beside = tuple(name for name in lists if name not in options.drop)
        ids = Ids(options.ids_column or "input_ids", beside, options.drop)
        for file in rows:
            ids.check_first(_first_values(file), file.path)
        return ids
    if "text" not in columns and "messages" in columns:
        raise SourceError("conversations ('messages')", rows[0].path, "Pass chat_template=")
    return Texts("text")


def _first_values(file: SourceFile) -> dict[str, list[Any] | None]:
    """Return the first values of the columns that hold lists of numbers, None for others."""
    if file.kind == "csv":
        return dict.fromkeys(CsvRows(file.file).columns)
    if file.kind == "jsonl":
        lines = file.head(_FIRST_BYTES).removeprefix(_BOM).split(b"\n")
        rows: list[Any] = []
        with suppress(ValueError, RecursionError):  # the packing names what cannot be read
            rows += map(json.loads, islice(filter(bytes.strip, lines), _FIRST_ROWS))
        rows = [row for row in rows if isinstance(row, dict)]
        first = rows[0] if rows else {}
        return {n: [r.get(n) for r in rows] if are_numbers(v) else None for n, v in first.items()}
    table = open_row_file(file.file)
    lists = [field.name for field in table.schema if is_list_of_numbers(field.type)]
    firsts = table.groups[:1] if lists else []
    batches = (batch for group in firsts for batch in table.batches(group, lists, _FIRST_ROWS))
    found: dict[str, Any] = next((batch.to_pydict() for batch in batches), {})
    return {name: found.get(name, [] if name in lists else None) for name in table.schema.names}
