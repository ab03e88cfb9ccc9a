"""What the rows of Parquet, Arrow, CSV and JSON lines hold: text, ids that another tokenizer made, or conversations."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import LoadersError, SourceError
from loaders.schema.tokens import IGNORED
from packdata.delimited import CsvRows
from packdata.parsing import arrow_lines, filled_lines, json_object
from packdata.sources.row_kinds import open_row_file
from packdata.tokens.documents import Documents, placed
from packdata.types import flags_of, is_text, kind_of, plain, text_buffers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from loaders.remote.url import Location
    from packdata.tokens.chat import ChatTemplate
    from packdata.tokens.documents import Place
    from packdata.tokens.files import SourceFile
    from packdata.tokens.options import TokenOptions
    from packdata.types import Flags

    Row = Mapping[str, Any]
    Numbers = npt.NDArray[np.int64]

BOM = b"\xef\xbb\xbf"
# As Hugging Face's tokenizers, TRL, transformers, Megatron-LM and verl name what they put beside ids.
LABELS, ATTENTION_MASK, SEQ_LENGTHS = "labels", "attention_mask", "seq_lengths"
LOSS_MASKS = ("completion_mask", "assistant_masks", "loss_mask")  # 0: no target
MASKS = (ATTENTION_MASK, *LOSS_MASKS)
BESIDE_IDS = (LABELS, SEQ_LENGTHS, *MASKS)
BESIDE_CHAT = (
    *("tools", "prompt", "system", "functions", "documents", "chat_template_kwargs"),
    *("enable_thinking", "images", "videos", "audios", "label", "kto_tag"),
)
_FIRST_BYTES, _FIRST_ROWS = 1 << 20, 64  # of the first file, looked at for lists beside the ids
_LEAST_USED = 8  # labels that tell whether they are shifted


class DocumentForm(ABC):
    """How rows become documents."""

    kind: ClassVar[str]  # ``text``, ``lists`` or ``chat``
    column: str  # where the documents are
    beside: tuple[str, ...] = ()  # columns that are read, too
    may_lack: ClassVar[bool] = False  # whether files may lack those
    type: ClassVar[pa.DataType | None]  # that columns are cast to; None: they are read as they are
    holds: ClassVar[str]  # what columns have, for messages
    option: ClassVar[str]  # that names another column
    has_labels: bool = False
    targets_hint: ClassVar[str] = "Are all labels -100?"  # where no document has a target

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column, *self.beside)

    @property
    def needed(self) -> set[str]:
        """The columns that no file may lack."""
        return {self.column} if self.may_lack else {*self.columns}

    def to_json(self) -> dict[str, Any]:
        """Return what the rows are read by, for the identity of a packing."""
        return {}

    def check(self, schema: pa.Schema, path: Location) -> None:
        """Raise SourceError if a file's columns cannot be read."""
        for name in self.needed:
            if (num := schema.names.count(name)) != 1:
                hint = f"Pass {self.option}, one of {', '.join(schema.names[:12])}"
                what = f"{'duplicate' if num else 'missing'} column {name!r}"
                raise SourceError(what, path, hint)
            if not self.takes(kind := schema.field(name).type):
                raise SourceError(f"column {name!r} holds {kind}, not {self.holds}", path)

    @staticmethod
    @abstractmethod
    def takes(kind: pa.DataType) -> bool:
        """Tell whether a column of this type can be read."""

    @abstractmethod
    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those that cannot be one."""

    def value(self, value: Any, column: str) -> Any:
        """Return what a JSON object has in a column; ValueError if that is no part of a document."""
        return value

    def of_rows(self, rows: Sequence[Row], place: Place) -> Documents:
        """Return the document of each row of values."""
        columns = {n: pa.array([row[n] for row in rows], self.type) for n in self.columns}
        return self.of_table(pa.table(columns), place)

    def of_lines(self, data: bytes, place: Place) -> Documents:
        """Return the documents of whole lines of JSON, one object each; blank lines are skipped.

        Arrow parses them; where it refuses a line, or a document is bad, Python does, and says why. ``place`` is of a
        byte of the data, which may be no UTF-8.
        """
        if self.type is not None:
            schema = pa.schema(dict.fromkeys(self.columns, self.type))
            table = arrow_lines(data, schema, with_others=False)
            if table is not None and len(table):
                starts = cache(lambda: [at for _, at, _ in filled_lines(data)])
                found = self.of_table(table, lambda row: place(starts()[row]))
                if not found.rejects:
                    return found
        rows: list[Row] = []
        begins: list[int] = []
        rejects: list[SourceError] = []
        for _, at, line in filled_lines(data):
            try:
                row = json_object(line)
                if missing := self.needed - {*row}:
                    what = f"missing {min(missing)!r} among {sorted(row)[:8]}; see {self.option}"
                    raise ValueError(what)
                rows.append({n: self.value(row[n], n) for n in self.columns if n in row})
                begins.append(at)
            except ValueError as error:
                rejects.append(SourceError(str(error), place(at)))
        documents = self.of_rows(rows, lambda row: place(begins[row]))
        return replace(documents, rejects=(*rejects, *documents.rejects))


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    """Tell whether a type of Arrow is lists of numbers, or of flags."""
    inside = kind_of(getattr(kind, "value_type", pa.null()))
    return kind_of(kind) == "other" and inside in ("number", "flag")


@dataclass(frozen=True)
class Texts(DocumentForm):
    """A column of strings."""

    column: str
    kind, option, holds, type = "text", "text_column=", "text", pa.large_string()

    @staticmethod
    def takes(kind: pa.DataType) -> bool:
        return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)

    def value(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            what = "null" if value is None else f"a {type(value).__name__}, not a text"
            raise ValueError(f"{column!r} is {what}")
        return value

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those that are null or not UTF-8."""
        texts = plain(table[self.column])
        starts, stops, data = text_buffers(texts)
        first = starts[:1].sum()
        data, ends = data[first : stops[-1:].sum()], stops - first
        documents = Documents(data, ends, placed(ends, place)).only_utf8()
        nulls = np.flatnonzero(flags_of(texts.is_null())).tolist()
        bad = [SourceError(f"{self.column!r} is null", where) for where in map(place, nulls)]
        return replace(documents, rejects=(*documents.rejects, *bad))


@dataclass(frozen=True)
class Ids(DocumentForm):
    """A column of lists of ids, perhaps with lists beside it."""

    column: str
    # Of ``BESIDE_IDS``: ``labels`` and masks are aligned with the ids; ``attention_mask`` is 0 where an id is padding,
    # which is left out, the other masks where it is no target; ``seq_lengths`` divide a row into documents.
    beside: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()  # columns that are left out
    kind, option, holds, type = "lists", "ids_column=", "lists of ids", pa.list_(pa.int64())
    takes = staticmethod(_is_list_of_numbers)

    @property
    def has_labels(self) -> bool:  # type: ignore[override]
        """True if documents have labels."""
        return not {LABELS, *LOSS_MASKS}.isdisjoint(self.beside)

    @property
    def known(self) -> set[str]:
        """Columns of which it is known what they are for, or that they are left out."""
        return {self.column, *BESIDE_IDS, *self.drop}

    @property
    def _unused(self) -> list[str]:
        """Columns of which the first file has none, and another shall have none."""
        return [name for name in BESIDE_IDS if name not in (*self.beside, *self.drop)]

    def to_json(self) -> dict[str, Any]:
        used = {name: True for name in self.beside if name not in (LABELS, ATTENTION_MASK)}
        # Without an attention mask, padding is kept.
        dropped = {"drop": sorted(self.drop)} if self.drop else {}
        return {"ids_column": self.column, LABELS: LABELS in self.beside, **used, **dropped}

    def check(self, schema: pa.Schema, path: Location) -> None:
        """Raise SourceError if a column cannot be read, or is one beside the ids that the first file lacks."""
        super().check(schema, path)
        if unexpected := [name for name in self._unused if name in schema.names]:
            raise _only_here(unexpected[0], path)

    def check_first(self, rows: Sequence[Row], path: Location) -> None:
        """Raise SourceError if another list of numbers runs beside the ids: whether it matters is not known.

        So if labels are the next ids: windows take the next label themselves.
        """
        if _are_next((row.get(self.column), row.get(LABELS)) for row in rows):
            hint = f"Put {IGNORED} before each row's labels, and leave out the last one"
            raise SourceError(f"{LABELS!r} are shifted: each is the next id", path, hint)
        for name in dict.fromkeys(name for row in rows for name in row if name not in self.known):
            lists = ((_length(row.get(self.column)), row[name]) for row in rows if row.get(name))
            # One id, or one length, tells nothing.
            fits = [_fits(num, each) for num, each in lists if num != 1 and each != [num]]
            # Masks, such as verl's ``response_mask``, may begin behind the prompt.
            if fits and (all(fits) or "mask" in name.lower()):
                what = f"column {name!r} has a number for each of {self.column!r}, or divides or masks them"
                raise SourceError(what, path, f"Pass drop={[name]} to pack without it")

    def value(self, value: Any, column: str) -> Numbers:
        """Return whole numbers; beside the ids they may be flags, or floats."""
        types = {int} if column == self.column else {int, float, bool}
        if not isinstance(value, list) or not all(
            type(x) in types and x % 1 == 0 and abs(x) < 1 << 63 for x in value
        ):
            raise ValueError(f"{column!r} is not a list of whole numbers")
        return np.array(value, np.int64)

    def of_lines(self, data: bytes, place: Place) -> Documents:
        for name in self._unused:
            if (at := data.find(f'"{name}"'.encode())) >= 0:
                raise _only_here(name, place(at))
        return super().of_lines(data, place)

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those with nulls, and those whose lists do not fit."""
        lists = {name: _flat(plain(table[name])) for name in self.columns}
        lengths = lists[self.column][1]
        good = np.ones(len(lengths), bool)
        rejects: list[SourceError] = []
        for name, (values, sizes, has_null) in lists.items():
            found = _sums(np.abs(values), sizes) if name == SEQ_LENGTHS else sizes
            has_odd = name in MASKS and (values >> 1).any()  # such as numbers of documents
            num_odd = _sums(values >> 1 != 0, sizes) if has_odd else np.zeros_like(sizes)
            bad = good & (has_null | (num_odd > 0) | (found != lengths))
            good &= ~bad
            for row in np.flatnonzero(bad).tolist():
                what = f"is for {found[row]} ids, and there are {lengths[row]}"
                what = "has a null" if has_null[row] else what
                what = "has other numbers than 0 and 1" if num_odd[row] else what
                rejects.append(SourceError(f"{name!r} {what}", place(row)))
        used = {name: values for name, (values, *_) in lists.items()}
        if not good.all():
            used = {n: values[np.repeat(good, sizes)] for n, (values, sizes, _) in lists.items()}
        ids, labels = used[self.column], used.get(LABELS)
        for name in (each for each in LOSS_MASKS if each in used):
            labels = np.where(used[name] != 0, ids if labels is None else labels, IGNORED)
        rows = np.cumsum(np.where(good, lengths, 0), dtype=np.int64)
        ends = np.cumsum(used[SEQ_LENGTHS]) if SEQ_LENGTHS in used else rows
        if ATTENTION_MASK in used:
            kept = used[ATTENTION_MASK] != 0
            ids, labels = ids[kept], None if labels is None else labels[kept]
            before = np.append(0, np.cumsum(kept, dtype=np.int64))
            ends, rows = before[ends], before[rows]
        return Documents(ids, ends, placed(rows, place), tuple(rejects), labels)


def _only_here(name: str, where: Location | str) -> SourceError:
    hint = f"Pack files with and without it one after the other, or pass drop={[name]}"
    what = f"unexpected {name!r}: the first file has no such list of numbers"
    return SourceError(what, where, hint)


def _length(value: Any) -> int | None:
    """Return the length of a list of numbers, None of anything else."""
    is_list = isinstance(value, list) and all(isinstance(each, int | float) for each in value)
    return len(value) if is_list else None


def _are_next(rows: Iterable[tuple[Any, Any]]) -> bool:
    """Tell whether labels are not those of the ids at their places, but of those behind."""
    triples = (
        zip(ids, ids[1:], labels, strict=False)
        for ids, labels in rows
        if None not in (_length(ids), _length(labels))
    )
    used = [each for some in triples for each in some if each[2] != IGNORED]
    is_next = all(label == behind for _, behind, label in used)
    return len(used) > _LEAST_USED and is_next and any(own != label for own, _, label in used)


def _fits(num: int | None, values: Any) -> bool:
    """Tell whether a list has as many numbers as there are ids, or their lengths or ends."""
    return _length(values) is not None and num in (len(values), sum(values), values[-1])


def _flat(array: pa.Array) -> tuple[Numbers, Numbers, Flags]:
    """Return the values of lists end to end, the length of each, and which are null or hold one."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy()
    has_null = flags_of(array.is_null())
    values = array.flatten()  # of a row that is null: nothing
    if values.null_count:
        has_null |= _sums(flags_of(values.is_null()), lengths) > 0
        values = pc.fill_null(values, 0)
    return values.to_numpy(zero_copy_only=False), lengths, has_null


def _sums(values: npt.NDArray[Any], lengths: Numbers) -> Numbers:
    """Return the sum of each of some lists that lie end to end."""
    before, ends = np.append(0, np.cumsum(values)), np.cumsum(lengths)
    sums: Numbers = before[ends] - before[ends - lengths]
    return sums


@dataclass(frozen=True)
class Chat(DocumentForm):
    """A column of conversations: lists of messages with ``role`` and ``content``; ``tools`` may be beside it."""

    column: str
    template: ChatTemplate
    # Of ``BESIDE_CHAT``, which would change the text, those that are not left out; ``tools`` is used.
    beside: tuple[str, ...]
    drop: tuple[str, ...] = ()  # columns, and keys of messages, that are left out
    kind, option, holds, type = "chat", "messages_column=", "lists of messages", None
    has_labels = may_lack = True
    targets_hint = "Only turns of role 'assistant' are targets: rename the role, or mark turns by {% generation %}"

    @staticmethod
    def takes(kind: pa.DataType) -> bool:
        return bool(pa.types.is_struct(getattr(kind, "value_type", pa.null())))

    def to_json(self) -> dict[str, Any]:
        made_by = {"messages_column": self.column, "chat_template": self.template.digest}
        return made_by | ({"drop": sorted(self.drop)} if self.drop else {})

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return the documents of rows, whose messages have the keys of any of them: what is null is left out."""
        rows = [_without_null(row) for row in table.to_pylist()]
        messages = (m for row in rows for m in row.get(self.column, ()) if isinstance(m, dict))
        for message in messages:
            message.setdefault("content", None)  # as in JSON: that of a call
        return self.of_rows(rows, place)

    def of_rows(self, rows: Sequence[Row], place: Place) -> Documents:
        """Return the text of each row as UTF-8, of which what the assistant says is a target."""
        parts, labels = list[bytes](), [np.empty(0, np.int8)]
        kept: list[int] = []
        rejects: list[SourceError] = []
        for number, row in enumerate(rows):
            try:
                text, turns = self._text(row)
                parts.append(text.encode())
            except (ValueError, RecursionError) as error:
                rejects.append(SourceError(str(error), place(number)))
                continue
            kept.append(number)
            labels.append(np.full(len(parts[-1]), IGNORED, np.int8))
            for start, stop in turns:
                first = len(text[:start].encode())
                labels[-1][first : first + len(text[start:stop].encode())] = 1
        data, ends = np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)])[1:]
        where = placed(ends, lambda i: place(kept[i]))
        return Documents(data, ends, where, tuple(rejects), np.concatenate(labels))

    def _text(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        messages, tools = row.get(self.column), row.get("tools")
        for name, value in row.items():
            is_text = name == "prompt" and isinstance(value, str)  # of the first message
            is_class = name == "label" and not isinstance(value, bool)  # KTO's: is it wanted?
            is_used = name in (self.column, "tools") or is_text or is_class
            if not is_used and value not in (None, "", [], {}):
                hint = f"write it into the messages, or pass drop={[name]}"
                raise ValueError(f"{name!r} beside {self.column!r} is not used: {hint}")
        said = [self._filled(m) for m in messages] if isinstance(messages, list) else []
        roles = [m.get("role") if isinstance(m, dict) else None for m in said]
        if not roles or not all(isinstance(role, str) for role in roles):
            raise ValueError(f"{self.column!r} is no list of messages with 'role' and 'content'")
        try:
            tools = json.loads(tools.strip() or "null") if isinstance(tools, str) else tools
        except ValueError as error:
            raise ValueError(f"'tools' is not JSON ({error})") from error
        is_list = isinstance(tools, list) and all(isinstance(each, dict) for each in tools)
        if tools and not is_list:
            raise ValueError("'tools' is no list of objects, each a function")
        return self.template.turns(said, tools or None)

    def _filled(self, message: Any) -> Any:
        """Return a message without what is left out or null, as OpenAI's ``tool_calls``; its content may be null."""
        if not isinstance(message, dict):
            return message
        named = ((n, each) for n, each in message.items() if n not in self.drop)
        return {n: each for n, each in named if each is not None or n == "content"}


def _without_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return value


def content_of(files: Sequence[SourceFile], options: TokenOptions) -> DocumentForm:
    """Return what the rows of files hold, by the options, else by the columns of the first of them; SourceError."""
    pa.array([])  # imports pandas, where that is installed: not on a thread that packs
    if options.chat_template is not None:
        return _chat_of(options.chat_template, options)
    file = files[0]
    names, rows = _first_rows(file)
    lists = {name for row in rows for name in row if _length(row[name]) is not None}
    lists -= {*options.drop}
    if options.text_column is None:
        makes_ids = "text" in names and (options.tokenizer or options.train_bpe) is not None
        if options.ids_column is not None or ("input_ids" in names and not makes_ids):
            beside = tuple(name for name in BESIDE_IDS if name in lists)
            ids = Ids(options.ids_column or "input_ids", beside, options.drop)
            for each in files:
                more = rows if each is file else _first_rows(each, ids.known)[1]
                ids.check_first(more, each.path)
            return ids
        if "text" not in names and "messages" in names:
            raise SourceError("conversations ('messages')", file.path, "Pass chat_template=")
    if unused := lists & {*LOSS_MASKS, *([LABELS] if "input_ids" in lists else [])}:
        hint = f"Pass ids_column= where there are lists of ids, or drop={sorted(unused)}"
        raise SourceError(f"{min(unused)!r} beside texts is not used", file.path, hint)
    return Texts(options.text_column or "text")


def _chat_of(template: Location | str, options: TokenOptions) -> Chat:
    try:
        from packdata.tokens.chat import open_template
    except ImportError as error:
        what = "a chat template needs the package 'jinja2': pip install 'loaders[text]'"
        raise LoadersError(what) from error
    column = options.messages_column or "messages"
    beside = tuple(name for name in BESIDE_CHAT if name not in (column, *options.drop))
    opened = open_template(template, options.tokenizer, options.chat_date)
    return Chat(column, opened, beside, options.drop)


def _first_rows(file: SourceFile, known: Collection[str] = ()) -> tuple[Sequence[str], list[Row]]:
    """Return the names of a file's columns, and of its first rows at least the lists of numbers not known yet."""
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
    lists = [field.name for field in table.schema if _is_list_of_numbers(field.type)]
    firsts = table.groups[:1] if {*lists} - {*known} else []
    batches = (batch for group in firsts for batch in table.batches(group, lists, _FIRST_ROWS))
    return table.columns, [row for batch in islice(batches, 1) for row in batch.to_pylist()]
