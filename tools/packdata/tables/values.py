"""Columns as Arrow reads them to numbers: what is missing, and what cannot be one, is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from packdata.types import (
    KINDS,
    Kind,
    as_text,
    cast_all,
    flags_of,
    is_text,
    kinds_of,
    matches,
    parsed,
    says_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Group = Kind | Literal["other"]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_MAX_TYPE_CHARS = 60
_WHOLE = r"^-?(?:0|[1-9]\d*)(?:\.0+)?$"
DAY_US = 86_400_000_000
_UNITS_US = {"s": 1_000_000, "ms": 1000}
_DATES = pa.timestamp("us"), pa.timestamp("us", "UTC")


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
    words = str(kind)
    if words == "extension<arrow.json>":
        words = "lists, objects or values of several kinds"
    elif len(words) > _MAX_TYPE_CHARS:
        words = f"{words[:_MAX_TYPE_CHARS]}..."
    return (
        f"it holds {words}, which is no number, text or date; lists are arrays for packdata.pack"
    )


def plain(array: pa.Array) -> pa.Array:
    """Return values as a type that Arrow can compute with, categories as texts by their dictionary."""
    if pa.types.is_dictionary(array.type):
        words = plain(array.dictionary)
        if group_of(words.type) in (None, "other"):
            return words.take(array.indices)
        words = words if is_text(words.type) else as_text(words)
        if words.null_count:  # a category that stands for no value
            return words.take(array.indices).dictionary_encode()
        return pa.DictionaryArray.from_arrays(array.indices, words)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def words_of(array: pa.Array) -> pa.DictionaryArray:
    """Return strings by their dictionary."""
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def at_places(
    of_words: npt.NDArray[Any], coded: pa.DictionaryArray, none: Any
) -> npt.NDArray[Any]:
    """Return for each value what is known of its word; ``none`` where there is none."""
    if not coded.null_count:
        places = coded.indices.to_numpy()
    else:
        places = pc.fill_null(coded.indices.cast(pa.int64()), len(of_words)).to_numpy()
        of_words = np.append(of_words, np.array([none], of_words.dtype))
    found: npt.NDArray[Any] = of_words.take(places)
    return found


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
    no = np.zeros(len(array), bool)
    if kind == "number" and pa.types.is_float64(array.type):  # as most are
        values = array.to_numpy(zero_copy_only=False)
        return Numbers(values, np.isnan(values), no)
    if is_text(array.type) and (found := quick(trimmed(array), {kind})) is not None:
        return numbers(found, kind)
    if is_text(getattr(array.type, "value_type", array.type)):
        return _numbers_of_texts(words_of(array), kind)
    array = plain(array)
    missing = flags_of(array.is_null()) if array.null_count else no
    own = group_of(array.type)
    alike = {"date": ("date", "zoned"), "number": ("number", "flag")}.get(kind, (kind,))
    if own not in alike:
        return Numbers(np.full(len(array), np.nan), missing, no if own is None else ~missing)
    values = _floats(array, kind)
    if pa.types.is_integer(array.type) and not array.null_count:
        return Numbers(values, no, no)
    none = np.isnan(values)
    # A date beyond what 64 bits hold is bad; NaN is no number.
    return (
        Numbers(values, missing, none & ~missing) if kind == "date" else Numbers(values, none, no)
    )


def _numbers_of_texts(coded: pa.DictionaryArray, kind: Kind) -> Numbers:
    """Convert each word once."""
    words = coded.dictionary
    found = parsed(words, kind)
    if kind == "date":
        found = pc.coalesce(found, pc.cast(parsed(words, "zoned"), found.type))
    values = _floats(found, kind)
    missing = says_nothing(words)
    bad = np.isnan(values) & ~missing
    values, missing, bad = (
        at_places(each, coded, none)
        for each, none in ((values, np.nan), (missing, True), (bad, False))
    )
    return Numbers(values, missing | (np.isnan(values) & ~bad), bad)


def _floats(array: pa.Array, kind: Kind) -> Floats:
    if kind == "date":
        array = pc.cast(_in_us(array), pa.int64())
    elif pa.types.is_decimal(array.type):
        # Arrow's own way to floats is off by an ulp in some 3 %.
        array = pc.cast(array, pa.string())
    if not pa.types.is_float64(array.type):
        array = pc.cast(array, pa.float64(), safe=False)
    values: Floats = array.to_numpy(zero_copy_only=False)
    return values


def _in_us(dates: pa.Array) -> pa.Array:
    """Return dates in microseconds; null for those that 64 bits do not hold."""
    if pa.types.is_date(dates.type):
        dates = pc.cast(dates, pa.timestamp("s" if pa.types.is_date32(dates.type) else "ms"))
    us = pa.timestamp("us", dates.type.tz)
    if dates.type.unit in ("us", "ns"):
        return pc.cast(dates, us, safe=False)
    try:
        return pc.cast(dates, us)
    except pa.ArrowInvalid:  # there are some, as 9223372036854775807 that stands for "never"
        counts = pc.max_element_wise(pc.cast(dates, pa.int64()), 1 - 2**63)
        most = (2**63 - 1) // _UNITS_US[dates.type.unit]
        held = pc.less_equal(pc.abs(counts), most)
        return pc.cast(pc.if_else(held, dates, pa.scalar(None, dates.type)), us)


def codes(array: pa.Array, vocabulary: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of each text in a vocabulary, from 1; 0 for what is not in it.

    ``3.0`` is ``3`` where the vocabulary has only that, and the other way round.
    """
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64)
    coded = words_of(array if pa.types.is_dictionary(array.type) else as_text(array))
    words = coded.dictionary.cast(pa.string())
    found = pc.index_in(words, value_set=vocabulary)
    if found.null_count:
        found = pc.coalesce(found, _index_by_number(words, vocabulary))
    numbers = pc.fill_null(found, -1).to_numpy().astype(np.int64) + 1
    return at_places(numbers, coded, 0)


def _index_by_number(words: pa.Array, vocabulary: pa.Array) -> pa.Array:
    """Return where a vocabulary has each whole number, in whichever spelling; null for all else."""
    wanted, known = map(_whole_numbers, (words, vocabulary))
    return pc.if_else(pc.is_valid(wanted), pc.index_in(wanted, value_set=known), None)


def _whole_numbers(texts: pa.Array) -> pa.Array:
    """Return the whole numbers among texts, each in one spelling; null for all else."""
    is_whole = pa.array(matches(texts, _WHOLE))
    whole = pc.if_else(is_whole, texts, pa.scalar(None, texts.type))
    for pattern, plain in ((r"\.0+$", ""), ("^-0$", "0")):
        whole = pc.replace_substring_regex(whole, pattern, plain)
    return whole


def spelled_once(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return how often texts occur that are all numbers; where a whole one is written in two ways, in one for each.

    Example:
        >>> spelled_once({"3": 2, "3.0": 1, "4.0": 1}), spelled_once({"3": 2, "4.0": 1})
        ({'3': 3, '4': 1}, {'3': 2, '4.0': 1})
    """
    texts = pa.array(list(counts), pa.string())
    if (kinds_of(texts) != KINDS.index("number")).any():
        return counts
    spelled = pc.coalesce(_whole_numbers(texts), texts).to_pylist()
    once: dict[str, int] = dict.fromkeys(spelled, 0)
    if len(once) == len(counts):
        return counts
    for text, count in zip(spelled, counts.values(), strict=True):
        once[text] += count
    return once


def has_value(array: pa.Array) -> Flags:
    """Return where there is a text."""
    if not is_text(getattr(array.type, "value_type", array.type)):
        return ~flags_of(array.is_null())
    coded = words_of(array)
    return at_places(flags_of(pc.not_equal(coded.dictionary, "")), coded, False)


def combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def shown(array: pa.Array, row: int) -> str:
    """Return a value for a message: ``as_py`` knows no years after 9999, no nanoseconds and not every zone."""
    value = array[row]
    if pa.types.is_timestamp(array.type):
        value = value.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    elif pa.types.is_temporal(array.type):
        value = value.cast(pa.string())
    return str(value.as_py())[:60]


def in_words(names: Sequence[str], most: int = 8) -> str:
    """Return names for a message, not too many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
