"""What the rows of Parquet, Arrow and JSON lines hold: text, or ids that another tokenizer made.

``packdata.tokens.chat`` has conversations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.readers import arrow_lines, filled_lines, json_object
from packdata.tokens.documents import IGNORED, Documents, join_documents, not_utf8, placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from packdata.tokens.documents import Document, Place, Reject

T = TypeVar("T")
# As Hugging Face's tokenizers, TRL, transformers, Megatron-LM and verl name what they put beside ids.
LABELS, ATTENTION_MASK, SEQ_LENGTHS = "labels", "attention_mask", "seq_lengths"
LOSS_MASKS = ("completion_mask", "assistant_masks", "loss_mask")  # 0: no target
BESIDE_IDS = (LABELS, ATTENTION_MASK, SEQ_LENGTHS, *LOSS_MASKS)
_INT32 = np.iinfo(np.int32)


class DocumentForm(ABC):
    """How rows become documents.

    Attributes:
        types: The columns that are read, and what they are cast to; None for a column that only
            ``of_row`` reads.
    """

    kind: ClassVar[str]  # ``text``, ``lists`` or ``chat``
    has_labels: bool  # True if documents have labels

    @property
    @abstractmethod
    def types(self) -> Mapping[str, pa.DataType | None]:
        """Columns and types."""

    def notes(self) -> list[str]:
        """Say what is worth knowing of how rows are read."""
        return []

    def to_json(self) -> dict[str, Any]:
        """Return what the rows are read by, for the identity of a packing."""
        return {}

    targets_hint: ClassVar[str] = "Are all labels -100?"

    def has_targets(self, documents: Documents) -> bool:
        """Tell whether a document with labels has one that is learned."""
        return documents.labels is not None and bool((documents.labels != IGNORED).any())

    @abstractmethod
    def check(self, schema: pa.Schema, path: Path) -> None:
        """Raise SourceError if a file's columns cannot be read."""

    @abstractmethod
    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those that cannot be one."""

    @abstractmethod
    def of_row(self, row: Mapping[str, Any]) -> Document:
        """Return a document of JSON values; ValueError if there is none."""

    def of_lines(self, data: bytes, place: Place, *, is_utf8: bool = True) -> Documents:
        """Return the documents of whole lines of JSON, one object each; blank lines are passed over.

        ``place`` says where a byte of the data stands; ``is_utf8`` is False if some bytes are known not to be text.
        """
        table = self._parse_at_once(data) if is_utf8 else None
        if table is not None:
            documents = self.of_table(
                table, lambda row: place(next(islice(filled_lines(data), row, None))[1])
            )
            if not documents.rejects:
                return documents
        return self._parse_lines(data, place)

    def _parse_at_once(self, data: bytes) -> pa.Table | None:
        """Let Arrow parse; None where something is not as it should be."""
        if None in self.types.values():
            return None
        small = {pa.large_string(): pa.string(), pa.large_list(pa.int64()): pa.list_(pa.int64())}
        schema = pa.schema({name: small[kind] for name, kind in self.types.items()})
        table = arrow_lines(data, schema, with_others=False)
        return (
            table.cast(pa.schema(dict(self.types))) if table is not None and len(table) else None
        )

    def _parse_lines(self, data: bytes, place: Place) -> Documents:
        lines = ((at, line) for _, at, line in filled_lines(data))
        return self._of_each(lines, lambda line: self.of_row(json_object(line)), place)

    def _of_each(
        self, rows: Iterable[tuple[int, T]], read: Callable[[T], Document], place: Place
    ) -> Documents:
        """Return the document of each row, less those that have none; a row comes with what tells its place."""
        found: list[Document] = []
        begins: list[int] = []
        rejects: list[Reject] = []
        for at, row in rows:
            try:
                found.append(read(row))
                begins.append(at)
            except UnicodeDecodeError as error:
                rejects.append(not_utf8(error.object[error.start], place(at)))
            except RecursionError:
                rejects.append((place(at), SourceError("the row is nested too deep", place(at))))
            except ValueError as error:
                rejects.append((place(at), SourceError(str(error), place(at))))
        return join_documents(found, lambda number: place(begins[number]), rejects)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without copying where it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def value_of(row: Mapping[str, Any], column: str, option: str) -> Any:
    """Return a value of a JSON object; ValueError if it has none of that name."""
    if column not in row:
        raise ValueError(f"it has no {column!r}; it has {sorted(row)[:8]} (see {option})")
    return row[column]


@dataclass(frozen=True)
class Texts(DocumentForm):
    """A column of strings."""

    column: str
    kind = "text"
    has_labels = False

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return {self.column: pa.large_string()}

    def check(self, schema: pa.Schema, path: Path) -> None:
        """Raise SourceError if the column is missing, or holds no text."""
        kind = type_of(schema, self.column, path, "text_column=")
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        if not any(test(kind) for test in tests):
            raise SourceError(f"column {self.column!r} holds {kind}, not text", path)

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those that are null or not UTF-8."""
        texts = one_array(table[self.column])
        data, ends = _text_buffers(texts)
        documents = Documents(data, ends, placed(ends, place))
        try:
            str(data.data, "utf-8")
        except UnicodeDecodeError:
            documents = documents.only_utf8()
        return replace(documents, rejects=(*documents.rejects, *self._nulls(texts, place)))

    def _nulls(self, texts: pa.Array, place: Place) -> Iterator[Reject]:
        """Yield the rows without a text: in the buffers they are empty, as are those of empty text."""
        if texts.null_count:
            is_null = texts.is_null().to_numpy(zero_copy_only=False)
            for where in map(place, np.flatnonzero(is_null).tolist()):
                yield where, SourceError("the text is null", where)

    def of_row(self, row: Mapping[str, Any]) -> Document:
        value = value_of(row, self.column, "text_column=")
        if not isinstance(value, str):
            what = "null" if value is None else f"a {type(value).__name__}"
            raise ValueError(f"{self.column!r} is {what}, not a text")
        return np.frombuffer(as_utf8(value, self.column), np.uint8), None


def as_utf8(text: str, name: str) -> bytes:
    """Return a string as UTF-8; ValueError if it holds half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r} holds half a surrogate pair ({error})") from error


def _text_buffers(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of large strings, and where each ends; nothing is copied."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    if len(offsets) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[1:] - offsets[0]


def type_of(schema: pa.Schema, column: str, path: Path, option: str) -> pa.DataType:
    """Return the type of a column; SourceError if there is none, with the option that names another."""
    if column not in schema.names:
        has = ", ".join(schema.names[:12])
        raise SourceError(
            f"the file has no column {column!r}", path, f"It has {has}: give {option}"
        )
    return schema.field(column).type


@dataclass(frozen=True)
class Ids(DocumentForm):
    """A column of lists of ids, perhaps with lists beside it."""

    column: str
    # Of ``BESIDE_IDS``: ``labels`` and masks are aligned with the ids; ``attention_mask`` is 0 where an id is padding,
    # which is left out, the other masks where it is no target; ``seq_lengths`` divide a row into documents.
    beside: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()  # columns that are left out
    kind = "lists"

    @property
    def has_labels(self) -> bool:  # type: ignore[override]
        """True if documents have labels."""
        return not {LABELS, *LOSS_MASKS}.isdisjoint(self.beside)

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return dict.fromkeys((self.column, *self.beside), pa.large_list(pa.int64()))

    def notes(self) -> list[str]:
        what = {
            LABELS: f"targets are those in {LABELS!r}",
            ATTENTION_MASK: f"without padding, where {ATTENTION_MASK!r} is 0",
            SEQ_LENGTHS: f"divided by {SEQ_LENGTHS!r}",
        }
        told = [what.get(name, f"no targets where {name!r} is 0") for name in self.beside]
        return [", ".join([f"documents are the ids in {self.column!r}", *told])]

    def to_json(self) -> dict[str, Any]:
        more = {name: True for name in self.beside if name not in (LABELS, ATTENTION_MASK)}
        return {"ids_column": self.column, LABELS: LABELS in self.beside, **more}

    def check(self, schema: pa.Schema, path: Path) -> None:
        """Raise SourceError if a column is missing, holds no lists of numbers, or is one that other files lack."""
        for name in self.types:
            kind = type_of(schema, name, path, "ids_column=")
            if not (is_list_of_ids(kind) if name == self.column else is_list_of_numbers(kind)):
                raise SourceError(f"column {name!r} holds {kind}, not lists of ids", path)
        known = {*self.beside, *self.drop}
        for field in schema:
            if (
                field.name in BESIDE_IDS
                and field.name not in known
                and is_list_of_numbers(field.type)
            ):
                raise _only_here(field.name, path)

    def check_rows(self, rows: Iterable[Mapping[str, Any]], path: Path) -> None:
        """Raise SourceError if another list of numbers runs beside the ids: whether it matters is not known."""
        ids, others = 0, Counter[str]()
        for row in rows:
            length = _length(row.get(self.column))
            ids += length > 1
            others.update(
                name
                for name, value in row.items()
                if length > 1 and _length(value) == length and name not in self.drop
            )
        for name, count in others.items():
            if count == ids and name != self.column and name not in BESIDE_IDS:
                what = f"column {name!r} has a number for each id of {self.column!r}"
                hint = f"What it says is not used: drop={[name]} packs without it"
                raise SourceError(what, path, hint)

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those with nulls, and those whose lists do not fit."""
        lists = {name: _Lists.of(one_array(table[name])) for name in self.types}
        lengths = lists[self.column].lengths
        good = np.ones(len(lengths), bool)
        rejects: list[Reject] = []
        for name, beside in lists.items():
            found = beside.sums if name == SEQ_LENGTHS else beside.lengths
            bad = good & (beside.has_null | (found != lengths))
            good &= ~bad
            for row in np.flatnonzero(bad).tolist():
                what = f"{name!r} is null, or holds one"
                if not beside.has_null[row]:
                    what = _unlike(name, int(found[row]), self.column, int(lengths[row]))
                rejects.append((place(row), SourceError(what, place(row))))
        values = {name: beside.of_rows(good) for name, beside in lists.items()}
        rows = np.cumsum(np.where(good, lengths, 0), dtype=np.int64)
        ids, labels, kept = self._used(values)
        ends = rows if SEQ_LENGTHS not in values else np.cumsum(values[SEQ_LENGTHS])
        if kept is not None:
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
            ends, rows = before[ends], before[rows]
        where = placed(rows, place)
        return Documents(ids, ends, where, tuple(rejects), _as_labels(labels, where))

    def _used(
        self, values: Mapping[str, npt.NDArray[np.int64]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None, npt.NDArray[np.bool_] | None]:
        """Return ids and labels without padding, and where there was none; None where nothing tells."""
        ids, labels = values[self.column], values.get(LABELS)
        for name in LOSS_MASKS:
            if name in values:
                labels = np.where(values[name] != 0, ids if labels is None else labels, IGNORED)
        if ATTENTION_MASK not in values:
            return ids, labels, None
        kept = values[ATTENTION_MASK] != 0
        return ids[kept], None if labels is None else labels[kept], kept

    def of_row(self, row: Mapping[str, Any]) -> Document:
        """Return the ids, and the labels if there are any; ValueError if they do not fit."""
        for name in BESIDE_IDS:
            if name not in self.beside and name not in self.drop and _length(row.get(name)):
                raise ValueError(f"the row has {name!r}, which the first row of the source lacks")
        values = {name: self._numbers(row, name) for name in self.types}
        ids = values[self.column]
        for name, beside in values.items():
            found = int(beside.sum()) if name == SEQ_LENGTHS else len(beside)
            if found != len(ids):
                raise ValueError(_unlike(name, found, self.column, len(ids)))
        if SEQ_LENGTHS in values:
            raise ValueError(
                f"{SEQ_LENGTHS!r} is read of Parquet and Arrow: save the rows as one of these"
            )
        ids, labels, _ = self._used(values)
        if labels is not None and _beyond_int32(labels).any():
            raise ValueError(f"{LABELS!r} holds a number beyond 32 bits")
        return ids, None if labels is None else labels.astype(np.int32)

    def _parse_at_once(self, data: bytes) -> pa.Table | None:
        """Let Arrow parse; None, too, where a row has lists that the first row of the source lacks."""
        others = [name for name in BESIDE_IDS if name not in self.beside and name not in self.drop]
        if any(f'"{name}"'.encode() in data for name in others):
            return None
        return super()._parse_at_once(data)

    def _numbers(self, row: Mapping[str, Any], name: str) -> npt.NDArray[np.int64]:
        value = value_of(row, name, "ids_column=")
        if not isinstance(value, list):
            what = "null" if value is None else f"a {type(value).__name__}"
            raise ValueError(f"{name!r} is {what}, not a list of ids")
        for number in value:
            is_whole = type(number) is int or (name != self.column and number in (True, False))
            if not (is_whole or (name != self.column and float(number).is_integer())):
                raise ValueError(f"{name!r} holds {str(number)[:40]!r}, which is no id")
            if abs(number) >= 1 << 63:
                raise ValueError(f"{name!r} holds {str(number)[:40]!r}, which is no id")
        return np.array(value, np.int64)


def _only_here(name: str, path: Path) -> SourceError:
    hint = f"Pack files with and without it one after the other, or without it: drop={[name]}"
    return SourceError(f"the file has {name!r}, and the first file has not", path, hint)


def _unlike(name: str, found: int, column: str, length: int) -> str:
    what = "adds up to" if name == SEQ_LENGTHS else "has"
    return f"{name!r} {what} {found} values, {column!r} has {length}"


def _length(value: Any) -> int:
    """Return the length of a list of numbers; 0 of all else."""
    is_list = isinstance(value, list) and all(isinstance(each, int | float) for each in value)
    return len(value) if is_list else 0


def is_list_of_ids(kind: pa.DataType) -> bool:
    """Tell whether a type of Arrow is lists of whole numbers."""
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def is_list_of_numbers(kind: pa.DataType) -> bool:
    """Tell whether a type of Arrow is lists of numbers, or of flags."""
    types = pa.types
    return _is_list(kind) and bool(
        types.is_integer(kind.value_type)
        or types.is_floating(kind.value_type)
        or types.is_boolean(kind.value_type)
    )


def _is_list(kind: pa.DataType) -> bool:
    lists = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in lists)


@dataclass(frozen=True, slots=True)
class _Lists:
    """Lists of one column, end to end."""

    values: npt.NDArray[np.int64]  # of all rows; 0 for a null
    lengths: npt.NDArray[np.int64]  # of each row, 0 for one that is null
    has_null: npt.NDArray[np.bool_]  # rows that are null or hold one

    @classmethod
    def of(cls, array: pa.Array) -> _Lists:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        has_null = array.is_null().to_numpy(zero_copy_only=False).copy()
        values = array.flatten()  # of a row that is null: nothing
        if values.null_count:
            is_null = values.is_null().to_numpy(zero_copy_only=False)
            has_null[np.repeat(np.arange(len(lengths)), lengths)[is_null]] = True
            values = pc.fill_null(values, 0)
        return cls(values.to_numpy(zero_copy_only=False), lengths.astype(np.int64), has_null)

    @property
    def sums(self) -> npt.NDArray[np.int64]:
        """The sum of each row's list."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.values)])
        ends = np.cumsum(self.lengths)
        sums: npt.NDArray[np.int64] = before[ends] - before[ends - self.lengths]
        return sums

    def of_rows(self, good: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        return self.values if good.all() else self.values[np.repeat(good, self.lengths)]


def _beyond_int32(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return (labels < _INT32.min) | (labels > _INT32.max)


def _as_labels(labels: npt.NDArray[np.int64] | None, place: Place) -> npt.NDArray[np.int32] | None:
    if labels is None:
        return None
    beyond = _beyond_int32(labels)
    if beyond.any():
        at = int(beyond.argmax())
        raise SourceError(f"label {labels[at]} does not fit into 32 bits", place(at))
    return labels.astype(np.int32)
