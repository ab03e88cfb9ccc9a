"""What the rows of Parquet, Arrow and JSON lines hold: text, or ids that another tokenizer made.

``packdata.tokens.chat`` has conversations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError
from packdata.readers import UTF8_HINT, arrow_lines, filled_lines, json_object
from packdata.tokens.documents import IGNORED, Documents, placed, rejected
from packdata.types import is_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from packdata.tokens.documents import Place, Reject

# As Hugging Face's tokenizers, TRL, transformers, Megatron-LM and verl name what they put beside ids.
LABELS, ATTENTION_MASK, SEQ_LENGTHS = "labels", "attention_mask", "seq_lengths"
LOSS_MASKS = ("completion_mask", "assistant_masks", "loss_mask")  # 0: no target
BESIDE_IDS = (LABELS, ATTENTION_MASK, SEQ_LENGTHS, *LOSS_MASKS)


class DocumentForm(ABC):
    """How rows become documents."""

    kind: ClassVar[str]  # ``text``, ``lists`` or ``chat``
    column: str  # where the documents are
    option: ClassVar[str]  # that names another column
    holds: ClassVar[str]  # what the columns have, for messages
    optional: ClassVar[tuple[str, ...]] = ()  # columns that files may lack
    has_labels: bool
    targets_hint: ClassVar[str] = "Are all labels -100?"  # where no document has a target

    @property
    @abstractmethod
    def types(self) -> Mapping[str, pa.DataType | None]:
        """The columns that are read, and what they are cast to; None for a column that is read as it is."""

    def to_json(self) -> dict[str, Any]:
        """Return what the rows are read by, for the identity of a packing."""
        return {}

    def check(self, schema: pa.Schema, path: Path) -> None:
        """Raise SourceError if a file's columns cannot be read."""
        for name in self.types.keys() - {*self.optional}:
            if name not in schema.names:
                hint = f"Pass {self.option}, one of {', '.join(schema.names[:12])}"
                raise SourceError(f"missing column {name!r}", path, hint)
            if not self.takes(kind := schema.field(name).type):
                raise SourceError(f"column {name!r} holds {kind}, not {self.holds}", path)

    @abstractmethod
    def takes(self, kind: pa.DataType) -> bool:
        """Tell whether a column of this type can be read."""

    def value(self, value: Any, column: str) -> Any:
        """Return what a JSON object has in a column; ValueError if that is no part of a document."""
        return value

    @abstractmethod
    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those that cannot be one."""

    def of_rows(self, rows: Sequence[Mapping[str, Any]], place: Place) -> Documents:
        """Return the document of each row of values."""
        columns = {n: pa.array([row[n] for row in rows], t) for n, t in self.types.items()}
        return self.of_table(pa.table(columns), place)

    def of_lines(self, data: bytes, place: Place) -> Documents:
        """Return the documents of whole lines of JSON, one object each; blank lines are skipped.

        Arrow parses them; where it refuses a line, or a document is bad, Python does, and says why. ``place`` is of a
        byte of the data, which may be no UTF-8.
        """
        if None not in self.types.values():
            table = arrow_lines(data, pa.schema(self.types), with_others=False)
            if table is not None and len(table):

                def place_of(row: int) -> str:
                    return place(next(islice(filled_lines(data), row, None))[1])

                if not (found := self.of_table(table, place_of)).rejects:
                    return found
        rows: list[Mapping[str, Any]] = []
        begins: list[int] = []
        rejects: list[Reject] = []
        for _, at, line in filled_lines(data):
            try:
                rows.append(self._row(json_object(line)))
                begins.append(at)
            except ValueError as error:
                hint = UTF8_HINT if isinstance(error, UnicodeDecodeError) else ""
                rejects.append(rejected(place(at), str(error), hint))
        documents = self.of_rows(rows, lambda row: place(begins[row]))
        return replace(documents, rejects=(*rejects, *documents.rejects))

    def _row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        if missing := self.types.keys() - {*self.optional, *row}:
            raise ValueError(
                f"missing {min(missing)!r} among {sorted(row)[:8]}; see {self.option}"
            )
        return {name: self.value(row[name], name) for name in self.types if name in row}


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without copying where it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True)
class Texts(DocumentForm):
    """A column of strings."""

    column: str
    kind = "text"
    option = "text_column="
    holds = "text"
    has_labels = False

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return {self.column: pa.large_string()}

    def takes(self, kind: pa.DataType) -> bool:
        return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)

    def value(self, value: Any, column: str) -> str:
        if not isinstance(value, str):
            what = "null" if value is None else f"a {type(value).__name__}"
            raise ValueError(f"{column!r} is {what}, not a text")
        return value

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those that are null or not UTF-8."""
        texts = _one_array(table[self.column])
        offsets = np.frombuffer(texts.buffers()[1] or bytes(8), np.int64)
        offsets = offsets[texts.offset :][: len(texts) + 1]
        data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        ends = offsets[1:] - offsets[0]
        documents = Documents(data, ends, placed(ends, place)).only_utf8()
        nulls = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False)).tolist()
        bad = [rejected(where, "the text is null") for where in map(place, nulls)]
        return replace(documents, rejects=(*documents.rejects, *bad))


@dataclass(frozen=True)
class Ids(DocumentForm):
    """A column of lists of ids, perhaps with lists beside it."""

    column: str
    # Of ``BESIDE_IDS``: ``labels`` and masks are aligned with the ids; ``attention_mask`` is 0 where an id is padding,
    # which is left out, the other masks where it is no target; ``seq_lengths`` divide a row into documents.
    beside: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()  # columns that are left out
    kind = "lists"
    option = "ids_column="
    holds = "lists of ids"

    @property
    def has_labels(self) -> bool:  # type: ignore[override]
        """True if documents have labels."""
        return not {LABELS, *LOSS_MASKS}.isdisjoint(self.beside)

    @property
    def types(self) -> Mapping[str, pa.DataType | None]:
        return dict.fromkeys((self.column, *self.beside), pa.list_(pa.int64()))

    @property
    def _unused(self) -> set[str]:
        """Columns of which the first file has none, and another shall have none."""
        return {*BESIDE_IDS} - {*self.beside, *self.drop}

    def to_json(self) -> dict[str, Any]:
        more = {name: True for name in self.beside if name not in (LABELS, ATTENTION_MASK)}
        return {"ids_column": self.column, LABELS: LABELS in self.beside, **more}

    def takes(self, kind: pa.DataType) -> bool:
        return is_list_of_numbers(kind)

    def check(self, schema: pa.Schema, path: Path) -> None:
        """Raise SourceError if a column cannot be read, or is one beside the ids that the first file lacks."""
        super().check(schema, path)
        for name in self._unused & {*schema.names}:
            if is_list_of_numbers(schema.field(name).type):
                raise _only_here(name, path)

    def check_first(self, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
        """Raise SourceError if another list of numbers runs beside the ids: whether it matters is not known."""
        ids = _lengths(rows, self.column)
        known = (self.column, *BESIDE_IDS, *self.drop)
        for name in dict.fromkeys(name for row in rows for name in row if name not in known):
            if _lengths(rows, name) == ids and max(ids) > 1:
                what = f"column {name!r} has a number for each id of {self.column!r}"
                raise SourceError(what, path, f"Pass drop={[name]} to pack without it")

    def value(self, value: Any, column: str) -> npt.NDArray[np.int64]:
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
        lists = {name: _flat(_one_array(table[name])) for name in self.types}
        lengths = lists[self.column][1]
        good = np.ones(len(lengths), bool)
        rejects: list[Reject] = []
        for name, (values, sizes, has_null) in lists.items():
            found = sizes
            if name == SEQ_LENGTHS:
                before, ends = np.append(0, np.cumsum(values)), np.cumsum(sizes)
                found = before[ends] - before[ends - sizes]
            bad = good & (has_null | (found != lengths))
            good &= ~bad
            for row in np.flatnonzero(bad).tolist():
                what = f"{name!r} has a null, or is for {found[row]} ids where {lengths[row]} are"
                rejects.append(rejected(place(row), what))
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


def _only_here(name: str, where: Path | str) -> SourceError:
    hint = f"Pack files with and without it one after the other, or pass drop={[name]}"
    return SourceError(f"unexpected {name!r}, which the first file lacks", where, hint)


def are_numbers(value: Any) -> bool:
    """Tell whether a value is a list of numbers."""
    return isinstance(value, list) and all(isinstance(each, int | float) for each in value)


def _lengths(rows: Iterable[Mapping[str, Any]], name: str) -> list[int]:
    """Return the lengths of a column's lists of numbers, 0 for what is none."""
    return [len(row[name]) if are_numbers(row.get(name)) else 0 for row in rows]


def is_list_of_numbers(kind: pa.DataType) -> bool:
    """Tell whether a type of Arrow is lists of numbers, or of flags."""
    types, inside = pa.types, getattr(kind, "value_type", None)
    if inside is None or types.is_dictionary(kind):
        return False
    tests = (types.is_integer, types.is_floating, types.is_boolean)
    return any(test(inside) for test in tests)


def _flat(
    array: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the values of lists end to end, the length of each, and which are null or hold one."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    has_null = array.is_null().to_numpy(zero_copy_only=False).copy()
    values = array.flatten()  # of a row that is null: nothing
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        has_null[np.repeat(np.arange(len(lengths)), lengths)[is_null]] = True
        values = pc.fill_null(values, 0)
    return values.to_numpy(zero_copy_only=False), lengths.astype(np.int64), has_null
