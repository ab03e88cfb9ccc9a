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
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.chat import Chat, open_template
from packdata.tokens.contents import BESIDE_IDS, Ids, Texts, are_numbers, is_list_of_numbers
from packdata.tokens.documents import DocumentFile, Recent, joined, texts_of
from packdata.tokens.files import IDS_KINDS, LINE_KINDS
from packdata.tokens.ids import IdsFile
from packdata.tokens.texts import BOM, CsvFile, TableFile, TextFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packdata.tokens.contents import DocumentForm
    from packdata.tokens.documents import Documents, Range
    from packdata.tokens.files import SourceFile
    from packdata.tokens.options import TokenOptions

_AT_ONCE = 16  # objects that are looked at
_FIRST_BYTES, _FIRST_ROWS = 1 << 20, 64  # of the first file, looked at for lists beside the ids


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

    SourceError if a file cannot be read, or lacks a column.

    Attributes:
        content: What rows hold; None without files of rows.
        kind: ``text``, ``chat``, ``lists`` (of ids, by document), or ``ids`` (files of them).
        itemsize: Bytes of its widest ids.
        cut: Files of ids may be cut at multiples of so many; None: only where a document ends.
        runs: As of a recipe: of each piece, where what it is read from begins.
    """

    def __init__(
        self, files: Sequence[SourceFile], options: TokenOptions, *, may_cut: bool = False
    ) -> None:
        are_ids = {file.kind in IDS_KINDS for file in files}
        rows = [file for file in files if file.kind in LINE_KINDS]
        self.options, self._recent = options, Recent()
        self.content = content_of(rows[0], options) if rows else None
        self.kind = "text" if self.content is None else self.content.kind
        self.kind = "ids" if True in are_ids else self.kind
        if len(are_ids) > 1 or (self.kind in ("lists", "chat") and len(rows) < len(files)):
            what = "plain text beside ids or conversations"
            raise SourceError(what, files[0].path, "Pack them one after the other")
        self.has_ids = self.kind in ("ids", "lists")
        self.has_labels = self.content is not None and self.content.has_labels
        row = options.row_tokens
        # Then all rows but a file's last are full.
        may_cut = may_cut and self.kind == "ids"
        self.cut = max(1, IdsFile.piece_tokens // row) * row if may_cut else None
        self._plan: list[list[Range]] = []
        self.runs: list[int] = []
        self._add(files)
        self.itemsize = max((parts[0].file.itemsize for parts in self._plan), default=4)

    def _add(self, files: Sequence[SourceFile]) -> None:
        """List the ranges of all files: many are looked at where that is waiting for answers of a store."""
        are_stored, size = any(isinstance(file.file, RemoteFile) for file in files), 0
        num_threads = _AT_ONCE if are_stored else usable_cores()
        with OrderedPool(self._ranges, num_threads) as pool:
            for part in (part for ranges in pool.map(files) for part in ranges):
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
        if file.kind in IDS_KINDS:
            return IdsFile(file, options.bin_dtype, options.eod, self.cut)
        if content is None or file.kind == "text":
            return TextFile(file, options.documents, None, self._recent)
        if file.kind == "jsonl":
            return TextFile(file, "line", content, self._recent)
        if file.kind == "csv":
            return CsvFile(file, content)
        return TableFile(file, content, self._recent)

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


def content_of(file: SourceFile, options: TokenOptions) -> DocumentForm:
    """Return what the rows of files hold, by the options, else by the columns of the first of them; SourceError."""
    if options.chat_template is not None:
        day = None if options.chat_date is None else date.fromisoformat(options.chat_date)
        template = open_template(options.chat_template, options.tokenizer, day)
        return Chat(options.messages_column or "messages", template)
    names, rows = _first_rows(file)
    means_text = options.tokenizer is not None or options.train_bpe is not None
    if options.text_column is not None or (means_text and "text" in names):
        return Texts(options.text_column or "text")
    if options.ids_column is not None or "input_ids" in names:
        lists = {name for name in BESIDE_IDS if any(are_numbers(row.get(name)) for row in rows)}
        beside = tuple(name for name in BESIDE_IDS if name in lists - {*options.drop})
        ids = Ids(options.ids_column or "input_ids", beside, options.drop)
        ids.check_first(rows, file.path)
        return ids
    if "text" not in names and "messages" in names:
        raise SourceError("conversations ('messages')", file.path, "Pass chat_template=")
    return Texts("text")


def _first_rows(file: SourceFile) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """Return the names of a file's columns, and of its first rows at least the lists of numbers."""
    if file.kind == "csv":
        return CsvRows(file.file).columns, []
    if file.kind == "jsonl":
        lines = file.head(_FIRST_BYTES).removeprefix(BOM).split(b"\n")
        rows: list[Any] = []
        with suppress(ValueError, RecursionError):  # the packing names what cannot be read
            rows += map(json.loads, islice(filter(bytes.strip, lines), _FIRST_ROWS))
        rows = [row for row in rows if isinstance(row, dict)]
        return [name for row in rows[:1] for name in row], rows
    table = open_row_file(file.file)
    lists = [field.name for field in table.schema if is_list_of_numbers(field.type)]
    firsts = table.groups[:1] if lists else []
    batches = (batch for group in firsts for batch in table.batches(group, lists, _FIRST_ROWS))
    return table.columns, [row for batch in islice(batches, 1) for row in batch.to_pylist()]
