"""Columns as Arrow reads them to numbers and texts: what is missing, and what cannot be one, is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from packdata.types import Kind, as_text, cast_all, flags_of, is_text, parsed, says_nothing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Group = Kind | Literal["other"]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
DAY_US = 86_400_000_000
_DATES = pa.timestamp("us"), pa.timestamp("us", "UTC")
_READ_AS: dict[Kind, tuple[Group, ...]] = {"date": ("date", "zoned"), "number": ("number", "flag")}


class Numbers(NamedTuple):
    """A column as float64, NaN where there is none.

    Attributes:
        values: ``(N,)``: of dates, their microseconds since 1970.
        missing: Where there was no value.
        bad: Where there was one that is no number (no date, ...).
    """

    values: Floats
    missing: Flags
    bad: Flags


def group_of(kind: pa.DataType) -> Group | None:
    """Return what values of an Arrow type are, ``text`` for any strings; None where there are none.

    Those that have no place in a row of numbers are ``other``.
    """
    types = pa.types
    if types.is_dictionary(kind):  # declared categories, also where these are numbers
        return "other" if group_of(kind.value_type) in (None, "other") else "text"
    if types.is_null(kind):
        return None
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_boolean(kind):
        return "flag"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date" if getattr(kind, "tz", None) is None else "zoned"
    return "text" if is_text(kind) else "other"


def why_other(kind: pa.DataType) -> str:
    """Say that values of an Arrow type have no place in a row."""
    is_json = str(kind) == "extension<arrow.json>"
    words = "lists, objects or values of several kinds" if is_json else str(kind)[:60]
    return f"{words}, not numbers, texts or dates; packdata.pack takes lists as arrays"


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, of a type that Arrow can compute with; categories as texts by their dictionary."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_dictionary(array.type):
        words = plain(pa.chunked_array([array.dictionary]))
        if pa.types.is_string(words.type) and len(words.unique().drop_null()) == len(words):
            return array
        values = words.take(array.indices)
        return values if group_of(values.type) in (None, "other") else words_of(values)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def words_of(array: pa.Array) -> pa.DictionaryArray:
    """Return values as texts by their dictionary."""
    if pa.types.is_dictionary(array.type):
        return array
    return (array if is_text(array.type) else as_text(array)).dictionary_encode()


def at_places(
    of_words: npt.NDArray[Any], coded: pa.DictionaryArray, none: Any
) -> npt.NDArray[Any]:
    """Return for each value what is known of its word; ``none`` where there is none."""
    found = pa.array(of_words).take(coded.indices)
    known: npt.NDArray[Any] = pc.fill_null(found, none).to_numpy(zero_copy_only=False)
    return known


def quick(texts: pa.Array, kinds: Collection[Kind]) -> pa.Array | None:
    """Return texts as numbers or dates where all of them are; None where they are not, or a look at each is needed."""
    for kind in (*[pa.float64()] * ("number" in kinds), *_DATES * ("date" in kinds)):
        if (values := cast_all(texts, kind)) is not None:
            return values
    return None


def trimmed(texts: pa.Array) -> pa.Array:
    """Return texts without blanks around them where the first one has some."""
    first = next((text for text in texts[:1].to_pylist() if text), "")
    return pc.utf8_trim_whitespace(texts) if first != first.strip() else texts


def numbers(array: pa.Array, kind: Kind) -> Numbers:
    """Return a column of one kind as numbers."""
    if is_text(array.type):
        found = quick(trimmed(array), {kind})
        array = words_of(array) if found is None else found
    if pa.types.is_dictionary(array.type):
        return _numbers_of_words(array, kind)
    no = np.zeros(len(array), bool)
    if group_of(array.type) not in (None, *_READ_AS.get(kind, (kind,))):
        missing = flags_of(array.is_null())
        return Numbers(np.full(len(array), np.nan), missing, ~missing)
    values = _floats(array)
    return Numbers(values, np.isnan(values), no)


def _numbers_of_words(coded: pa.DictionaryArray, kind: Kind) -> Numbers:
    """Convert each word once."""
    words = coded.dictionary
    found = parsed(words, kind)
    if kind == "date":
        found = pc.coalesce(found, pc.cast(parsed(words, "zoned"), found.type))
    values, missing = _floats(found), says_nothing(words)
    bad = np.isnan(values) & ~missing
    by_word = ((values, np.nan), (missing, True), (bad, False))
    return Numbers(*(at_places(each, coded, none) for each, none in by_word))


def _floats(array: pa.Array) -> Floats:
    """Return numbers as floats, dates as microseconds; NaN for null."""
    times = 1
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string())  # Arrow's own way to floats is off by an ulp in some 3 %
    elif pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms"))
    if pa.types.is_timestamp(array.type):
        times = {"s": 1_000_000, "ms": 1000}.get(array.type.unit, 1)
        if array.type.unit == "ns":
            array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
        array = array.cast(pa.int64())
    values: Floats = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values if times == 1 else values * times


def codes(array: pa.Array, vocabulary: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of each text in a vocabulary, from 1; 0 for what is not in it."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64)
    coded = words_of(array)
    found = pc.index_in(coded.dictionary.cast(pa.string()), value_set=vocabulary)
    return at_places(pc.fill_null(found, -1).to_numpy().astype(np.int64) + 1, coded, 0)


def has_value(array: pa.Array) -> Flags:
    """Return where there is a text."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), bool)
    coded = words_of(array)
    return at_places(flags_of(pc.not_equal(coded.dictionary, "")), coded, False)


def shown(array: pa.Array, row: int) -> str:
    """Return a value for a message: ``as_py`` knows no years after 9999, no nanoseconds and not every zone."""
    (text,) = as_text(array.take(pa.array([row]))).to_pylist()
    return str(text)[:60]


def in_words(names: Sequence[str], most: int = 8) -> str:
    """Return names for a message, not too many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
