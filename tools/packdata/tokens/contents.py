"""What rows of files hold, and how they become documents: texts, lists of ids, or (in ``chat``) conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import PackError, SourceError
from loaders.schema.tokens import IGNORED
from packdata.parsing import arrow_lines, filled_lines, json_object
from packdata.tokens.documents import Documents, Refusal, placed
from packdata.types import flags_of, is_text, kind_of, plain, text_buffers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from loaders.remote.url import Location
    from packdata.tokens.documents import Place

    Row = Mapping[str, Any]
    Numbers = npt.NDArray[np.int64]

# As Hugging Face's tokenizers, TRL, transformers, Megatron-LM and verl name what they put beside ids.
INPUT_IDS, LABELS = "input_ids", "labels"
ATTENTION_MASK, SEQ_LENGTHS = "attention_mask", "seq_lengths"
LOSS_MASKS = ("completion_mask", "assistant_masks", "loss_mask")  # 0: no target
MASKS = (ATTENTION_MASK, *LOSS_MASKS)
BESIDE_IDS = (LABELS, SEQ_LENGTHS, *MASKS)
_LEAST_USED = 8  # labels that tell whether they are shifted


def drop_hint(name: str) -> str:
    """Return what to do with a column beside the documents that only some files have, or of another type."""
    return f"Pack files with and without it one after the other, or pass drop={[name]}"


@dataclass(frozen=True)
class Content(ABC):
    """What rows hold: each is a document, and so becomes one of bytes or of ids."""

    kind: ClassVar[str]  # ``text``, ``lists`` (of ids) or ``chat``
    type: ClassVar[pa.DataType | None]  # that columns are cast to; None: they are read as they are
    holds: ClassVar[str]  # what columns have, for messages
    option: ClassVar[str]  # that names another column
    known: ClassVar[tuple[str, ...]] = ()  # columns that change what is learned
    has_labels: ClassVar[bool] = False  # of documents

    column: str  # where the documents are
    beside: tuple[str, ...] = ()  # columns that are read, too
    optional: tuple[str, ...] = ()  # the same, where a row has them
    drop: tuple[str, ...] = ()  # columns that are left out, and keys of messages

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column, *self.beside, *self.optional)

    def to_json(self) -> dict[str, Any]:
        """Return what the rows are read by, for the identity of a packing."""
        return {"drop": sorted(self.drop)} if self.drop else {}

    def unused(self, schema: pa.Schema) -> list[str]:
        """Return the columns beside those that are read that would change what is learned."""
        return [name for name in self.known if name in schema.names and name not in self.columns]

    @property
    def _lost(self) -> list[str]:
        """Columns that change what is learned, and are neither read nor dropped."""
        return [name for name in self.known if name not in (*self.columns, *self.drop)]

    def check_unused(self, schema: pa.Schema, path: Location) -> None:
        """Raise SourceError if there are such columns that are not dropped."""
        if others := [name for name in self.unused(schema) if name not in self.drop]:
            what = f"columns beside {self.column!r} that are not used: {others}"
            hint = f"Pass drop={others} to pack without them, or ids_column= where there are lists of ids"
            raise SourceError(what, path, hint)

    def check(self, schema: pa.Schema, path: Location) -> None:
        """Raise SourceError if the columns that a file declares cannot be read, or not all that matter are."""
        for name in (self.column, *self.beside):
            hint = f"Pass {self.option}, one of {', '.join(schema.names[:12])}"
            hint = hint if name == self.column else drop_hint(name)
            if (num := schema.names.count(name)) != 1:
                what = f"{'duplicate' if num else 'missing'} column {name!r}"
                raise SourceError(what, path, hint)
            if not self.takes(kind := schema.field(name).type):
                raise SourceError(f"column {name!r} holds {kind}, not {self.holds}", path, hint)
        self.check_unused(schema, path)

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
        if self.type is not None and not any(b'"%b"' % n.encode() in data for n in self._lost):
            schema = pa.schema(dict.fromkeys(self.columns, self.type))
            table = arrow_lines(data, schema, with_others=False)
            if table is not None and len(table):
                starts = cache(lambda: [at for _, at, _ in filled_lines(data)])
                found = self.of_table(table, lambda row: place(starts()[row]))
                if not found.rejects:
                    return found
        rows: list[Row] = []
        begins: list[int] = []
        rejects: list[Refusal] = []
        for _, at, line in filled_lines(data):
            try:
                rows.append(self._row(json_object(line)))
                begins.append(at)
            except ValueError as error:
                rejects.append(Refusal(place(at), str(error)))
        documents = self.of_rows(rows, lambda row: place(begins[row]))
        return replace(documents, rejects=(*rejects, *documents.rejects))

    def _row(self, line: Row) -> Row:
        """Return the columns of an object; ValueError if it lacks one, or that is no part of a document."""
        if missing := {self.column, *self.beside} - {*line}:
            what = f"missing {min(missing)!r} among {sorted(line)[:8]}"
            raise ValueError(f"{what}; see {self.option}")
        if lost := [name for name in self._lost if name in line]:
            what = f"unexpected {lost[0]!r}, which the first rows lack"
            raise ValueError(f"{what}: {drop_hint(lost[0])}")
        return {name: self.value(line[name], name) for name in self.columns if name in line}


class Texts(Content):
    """A column of strings."""

    kind, option, holds, type = "text", "text_column=", "text", pa.large_string()
    known = LOSS_MASKS

    def unused(self, schema: pa.Schema) -> list[str]:
        """Return masks, and labels of ids that are there, too."""
        labels = [LABELS] if {INPUT_IDS, LABELS} <= {*schema.names} else []
        return labels + super().unused(schema)

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
        column = plain(table[self.column])
        texts = column.fill_null("")  # under a null there may be a text, which a mask hides
        starts, stops, data = text_buffers(texts)
        first = starts[:1].sum()
        data, ends = data[first : stops[-1:].sum()], stops - first
        documents = Documents(data, ends, placed(ends, place)).only_utf8()
        nulls = np.flatnonzero(flags_of(column.is_null())).tolist()
        bad = [Refusal(where, f"{self.column!r} is null") for where in map(place, nulls)]
        return replace(documents, rejects=(*documents.rejects, *bad))


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    """Tell whether a type of Arrow is lists of numbers, or of flags."""
    inside = kind_of(getattr(kind, "value_type", pa.null()))
    return kind_of(kind) == "other" and inside in ("number", "flag")


class Ids(Content):
    """A column of lists of ids, perhaps with some of ``BESIDE_IDS`` beside it.

    ``labels`` and masks are aligned with the ids; ``attention_mask`` is 0 where an id is padding, which is left out,
    the other masks where it is no target; ``seq_lengths`` divide a row into documents.
    """

    kind, option, holds, type = "lists", "ids_column=", "lists of ids", pa.list_(pa.int64())
    known = BESIDE_IDS
    takes = staticmethod(_is_list_of_numbers)

    @property
    def has_labels(self) -> bool:  # type: ignore[override]
        """True if documents have labels."""
        return not {LABELS, *LOSS_MASKS}.isdisjoint(self.beside)

    def to_json(self) -> dict[str, Any]:
        used = {name: True for name in self.beside if name not in (LABELS, ATTENTION_MASK)}
        # Without an attention mask, padding is kept.
        labels = {"ids_column": self.column, LABELS: LABELS in self.beside}
        return {**labels, **used, **super().to_json()}

    def unused(self, schema: pa.Schema) -> list[str]:
        """Return all other lists of numbers: whether they matter is not known."""
        lists = [field.name for field in schema if _is_list_of_numbers(field.type)]
        return [name for name in lists if name not in self.columns]

    def value(self, value: Any, column: str) -> Numbers:
        """Return whole numbers; beside the ids they may be flags, or floats."""
        types = {int} if column == self.column else {int, float, bool}
        if not isinstance(value, list) or not all(
            type(x) in types and x % 1 == 0 and abs(x) < 1 << 63 for x in value
        ):
            hint = "" if column == self.column else f": pass drop={[column]} to leave it out"
            raise ValueError(f"{column!r} is not a list of whole numbers{hint}")
        return np.array(value, np.int64)

    def of_table(self, table: pa.Table, place: Place) -> Documents:
        """Return each row as a document, less those with nulls, and those whose lists do not fit.

        PackError if labels are the next ids: windows take the next label themselves. No row is skipped for that, as
        the few behind the last range would not show it.
        """
        lists = {name: plain(table[name]) for name in self.columns}
        lengths = _lengths(lists[self.column])
        faults: dict[int, str] = {}
        for name in reversed(self.columns):  # of several faults in a row, the first column's stays
            faults |= {row: f"{name!r} {why}" for row, why in _faults(name, lists[name], lengths)}
        rejects = [Refusal(place(row), why) for row, why in faults.items()]
        kept = np.delete(np.arange(len(table)), [*faults])
        if faults:
            lists = {name: array.take(pa.array(kept)) for name, array in lists.items()}
        values = {name: array.flatten() for name, array in lists.items()}
        used = {name: each.to_numpy(zero_copy_only=False) for name, each in values.items()}
        ids, labels = used[self.column], used.get(LABELS)
        for name in (each for each in LOSS_MASKS if each in used):
            labels = np.where(used[name] != 0, ids if labels is None else labels, IGNORED)
        rows = np.cumsum(lengths[kept])
        ends = np.cumsum(used[SEQ_LENGTHS]) if SEQ_LENGTHS in used else rows
        if labels is not None and _are_next(ids, labels, ends):
            what = f"{LABELS!r} are shifted: each is the next id"
            hint = f"Put {IGNORED} before each row's labels, and leave out the last one"
            raise PackError(what, str(place(0)), hint)
        where = placed(rows, lambda i: place(int(kept[i])))
        documents = Documents(ids, ends, where, tuple(rejects), labels)
        is_padded = ATTENTION_MASK in used
        return documents.where(used[ATTENTION_MASK] != 0) if is_padded else documents


def _faults(name: str, lists: pa.Array, lengths: Numbers) -> Iterator[tuple[int, str]]:
    """Yield the rows whose list has a null, or does not fit so many ids, and why; of one, the last counts."""
    own, values = _lengths(lists), lists.flatten()  # of a row that is null: nothing
    has_null = flags_of(lists.is_null()) | (_sums(flags_of(values.is_null()), own) > 0)
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    covered = _sums(np.abs(numbers), own) if name == SEQ_LENGTHS else own
    for row in np.flatnonzero(covered != lengths).tolist():
        yield row, f"is for {covered[row]} ids of {lengths[row]}"
    for row in np.flatnonzero(has_null).tolist():
        yield row, "has a null"
    if name in MASKS:  # not numbers of documents
        for row in np.flatnonzero(_sums(numbers >> 1 != 0, own)).tolist():
            yield row, "has values other than 0 and 1"


def _are_next(ids: Numbers, labels: Numbers, ends: Numbers) -> bool:
    """Tell whether labels are not those of the ids at their places, but of those behind."""
    is_used = labels != IGNORED
    if not (is_used & (labels != ids)).any():
        return False
    is_used[ends[ends > 0] - 1] = False  # behind these begins another document
    at = np.flatnonzero(is_used)
    return len(at) > _LEAST_USED and bool((labels[at] == ids[at + 1]).all())


def _lengths(lists: pa.Array) -> Numbers:
    lengths: Numbers = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64()).to_numpy()
    return lengths


def _sums(values: npt.NDArray[Any], lengths: Numbers) -> Numbers:
    """Return the sum of each of some lists that lie end to end."""
    if not values.any():
        return np.zeros_like(lengths)
    before, ends = np.append(0, np.cumsum(values)), np.cumsum(lengths)
    sums: Numbers = before[ends] - before[ends - lengths]
    return sums
