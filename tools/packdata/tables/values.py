"""Columns as Arrow reads them to numbers: what is missing, and what cannot be one, is marked."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Group = Literal["number", "code", "flag", "date", "time", "text", "other"]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
PARTS_OF_DATES = ("year", "month", "day", "weekday", "hour")
DATE_FORMS = ("days", "parts")
GUESSED = frozenset(("number", "flag", "date", "time"))  # what a text may be, if nothing says
DATES = frozenset(("date", "time"))  # of which JSON has none but as texts
_MAX_TYPE_CHARS = 60
_NUMBER = r"^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))\s*$"
_FLAG = r"^(?i:true|false)$"
_DATE = r"^\s*\d{4}-\d\d-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?(?:Z|[+-]\d\d:?(?:\d\d)?)?)?\s*$"
_TIME = r"^\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?$"
_WHOLE = r"^-?(?:0|[1-9]\d*)(?:\.0+)?$"
_EXACT = 2.0**53  # float64 holds whole numbers up to here
_BEYOND_US = r"(\.\d{6})\d+"
_ZONE = r"[ T]\d\d\S*(?:Z|[+-]\d\d:?(?:\d\d)?)\s*$"
_CODE = r"^\s*[+-]?0\d"  # a number with zeros in front, which it would lose
_OTHER_THAN_TEXT = r"^\s*[+-]?(?:[\d.#]|(?i:inf|infinity|true|false|n/?a|nan|null)\s*$)"
_PATTERNS: dict[Group, str] = {"number": _NUMBER, "flag": _FLAG, "date": _DATE, "time": _TIME}
GROUPS: tuple[Group | None, ...] = (None, "text", "number", "flag", "date", "time", "code")
# How all else than plain text begins, what says that there is no value included.
_BEGINNINGS = np.isin(np.arange(256), np.frombuffer(b"0123456789+-. \t\n\f\riItTfFnN#", np.uint8))
_DAY_US = 86_400_000_000
_UNITS_US = {"s": 1_000_000, "ms": 1000}
# What Arrow, and pandas with it, reads as no value where numbers stand; of texts they are some.
NO_VALUES = (
    *("NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "null", "NULL"),
    *("nan", "NaN", "Nan", "NAN", "-nan", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)


class Numbers(NamedTuple):
    """A column as float64, NaN where there is none.

    Attributes:
        values: ``(N,)``: of dates, their microseconds since 1970; of times, since midnight.
        missing: Where there was no value.
        bad: Where there was one that is no number (no date, no time that a day has, ...).
        zoned: Where a date said its time zone.
    """

    values: Floats
    missing: Flags
    bad: Flags
    zoned: Flags


def group_of(kind: pa.DataType) -> Group | None:
    """Return what values of an Arrow type are, ``text`` for any strings; None where there are none.

    Those that have no place in a row of numbers are ``other``.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return group_of(kind.value_type)
    if types.is_null(kind):
        return None
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_boolean(kind):
        return "flag"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date"
    if types.is_time(kind):
        return "time"
    return "text" if is_text(kind) else "other"


def why_other(kind: pa.DataType) -> str:
    """Say that values of an Arrow type have no place in a row."""
    words = str(kind)
    if words == "extension<arrow.json>":
        words = "lists or objects"
    elif len(words) > _MAX_TYPE_CHARS:
        words = f"{words[:_MAX_TYPE_CHARS]}..."
    return f"it holds {words}, which is no number, text or date"


def as_text(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return values as strings; NaN, with which pandas says that there is none, as null.

    Whole numbers are written alike as integers and as floats, which pandas makes of integers where some are missing.
    """
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        wide = array.cast(pa.float64())  # Arrow computes nothing of float16
        is_whole = pc.and_(pc.equal(pc.trunc(wide), wide), pc.less_equal(pc.abs(wide), _EXACT))
        whole = pc.if_else(is_whole, wide, pa.scalar(None, wide.type)).cast(pa.int64())
        return pc.coalesce(whole.cast(pa.string()), array.cast(pa.string()))
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(array.type):
            raise
        # Of no known zone.
        return array.cast(pa.timestamp(array.type.unit, "UTC")).cast(pa.string())


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are strings."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def plain(array: pa.Array) -> pa.Array:
    """Return values as a type that Arrow can compute with: of dictionaries, those of strings stay."""
    if pa.types.is_dictionary(array.type):
        is_usable = is_text(array.type.value_type) and not array.dictionary.null_count
        return array if is_usable else plain(array.dictionary).take(array.indices)
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


def without_words(table: pa.Table, words: Sequence[str]) -> pa.Table:
    """Return a table in which these texts, and numbers as which they can be read, are no values."""
    for i, field in enumerate(table.schema) if words else ():
        kind = getattr(field.type, "value_type", field.type)
        if is_text(kind):
            coded = words_of(combined(table[i]))
            is_none = _flags(pc.is_in(coded.dictionary, value_set=pa.array(words, kind)))
            if is_none.any():
                indices = pc.if_else(
                    pa.array(at_places(is_none, coded, True)),
                    pa.scalar(None, coded.indices.type),
                    coded.indices,
                )
                column = pa.DictionaryArray.from_arrays(indices, coded.dictionary)
                column = column if pa.types.is_dictionary(field.type) else plain(column)
                table = table.set_column(i, field.name, column)
        elif numbers := _read_as(words, kind):
            column = plain(combined(table[i]))
            is_none = pc.is_in(column, value_set=pa.array(numbers, column.type))
            column = pc.if_else(is_none, pa.scalar(None, column.type), column)
            table = table.set_column(i, field.name, column)
    return table


def _read_as(words: Sequence[str], kind: pa.DataType) -> list[pa.Scalar]:
    """Return the words that a column of numbers may hold: -999 is -999.0, and the other way round."""
    types, found = pa.types, []
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        return []
    for word in words:
        whole = re.sub(r"\.0*$", "", word) if types.is_integer(kind) else word
        with suppress(pa.ArrowException):
            found.append(pa.scalar(whole).cast(kind))
    return found


def groups_of_texts(texts: pa.Array, guesses: frozenset[str] = GUESSED) -> Codes:
    """Return what each of some strings looks like, as its place in ``GROUPS``.

    None for the empty string and for ``NO_VALUES``, which depend on the others.

    Args:
        texts: Strings, none of them null.
        guesses: What they may be, text apart.
    """
    groups = np.full(len(texts), GROUPS.index("text"), np.int8)
    if not len(texts):
        return groups
    starts, ends, data = _text_buffers(texts)
    filled = np.flatnonzero(ends > starts)
    groups[ends <= starts] = 0
    some = filled[_BEGINNINGS[data[starts[filled]]]]
    if len(some):  # patterns are compiled at each call: one leaves most words out
        some = some[_matches(texts.take(pa.array(some)), _OTHER_THAN_TEXT)]
    if len(some):
        groups[some] = _groups_of_some(texts.take(pa.array(some)), guesses)
    return groups


def _groups_of_some(texts: pa.Array, guesses: frozenset[str]) -> Codes:
    groups = np.full(len(texts), GROUPS.index("text"), np.int8)
    for group in (group for group in _PATTERNS if group in guesses):
        groups[_matches(texts, _PATTERNS[group])] = GROUPS.index(group)
    number = groups == GROUPS.index("number")
    if number.any():
        groups[number & _matches(texts, _CODE)] = GROUPS.index("code")
    if guesses:
        groups[says_nothing(texts)] = 0
    return groups


def are_zoned(texts: pa.Array) -> Flags:
    """Return which dates say their time zone."""
    return _matches(texts, _ZONE)


def says_nothing(texts: pa.Array) -> Flags:
    """Return which texts say that there is no value."""
    return _flags(pc.is_in(texts, value_set=pa.array(["", *NO_VALUES], texts.type)))


def _text_buffers(
    texts: pa.Array,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return where each string of an array begins and ends in the bytes, and these."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    ends = np.frombuffer(texts.buffers()[1], width)[texts.offset :][: len(texts) + 1]
    return ends[:-1], ends[1:], np.frombuffer(texts.buffers()[2] or b"", np.uint8)


def count_codes(coded: pa.DictionaryArray) -> int:
    """Return how many texts are numbers, or begin as one, with zeros in front."""
    is_code = _matches(coded.dictionary, _CODE)
    return int(at_places(is_code, coded, False).sum()) if is_code.any() else 0


def _matches(texts: pa.Array, pattern: str) -> Flags:
    return _flags(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


def numbers(array: pa.Array, group: Group) -> Numbers:
    """Return a column of one group as numbers."""
    no = np.zeros(len(array), bool)
    if group == "number" and pa.types.is_float64(array.type):  # as most are
        values = array.to_numpy(zero_copy_only=False)
        return Numbers(values, np.isnan(values), no, no)
    if is_text(getattr(array.type, "value_type", array.type)):
        return _numbers_of_texts(words_of(array), group)
    array = plain(array)
    missing = _flags(array.is_null()) if array.null_count else no
    own = group_of(array.type)
    if own is None or own not in (group, "flag" if group == "number" else group):
        return Numbers(np.full(len(array), np.nan), missing, no if own is None else ~missing, no)
    values = _floats(array, group)
    if pa.types.is_integer(array.type) and not array.null_count:
        return Numbers(values, no, no, no)
    none = np.isnan(values)
    if group == "date":
        bad = none & ~missing
        return Numbers(
            values, missing, bad, no if getattr(array.type, "tz", None) is None else ~bad
        )
    return Numbers(values, none, no, no)  # also where there was no value


def _numbers_of_texts(coded: pa.DictionaryArray, group: Group) -> Numbers:
    """Convert each word once."""
    words = coded.dictionary
    like_one = pc.if_else(
        pa.array(_matches(words, _PATTERNS[group])), words, pa.scalar(None, words.type)
    )
    values = _floats(_parsed(like_one, group), group)
    missing = says_nothing(words)
    bad = np.isnan(values) & ~missing
    zoned = are_zoned(like_one) & ~bad
    values, missing, bad, zoned = (
        at_places(each, coded, none)
        for each, none in ((values, np.nan), (missing, True), (bad, False), (zoned, False))
    )
    return Numbers(values, missing | (np.isnan(values) & ~bad), bad, zoned)


def _parsed(texts: pa.Array, group: Group) -> pa.Array:
    """Return the values of texts that all look like one; null for a day or time that does not exist."""
    texts = pc.utf8_trim_whitespace(texts)
    if group == "number":
        return pc.cast(pc.utf8_ltrim(texts, characters="+"), pa.float64())
    if group == "flag":
        return pc.cast(pc.utf8_lower(texts), pa.bool_())
    texts = pc.replace_substring_regex(texts, _BEYOND_US, r"\1")  # nanoseconds end in 2262
    if group == "time":  # Arrow reads none, but those of a day
        day, blank = (pa.scalar(each, texts.type) for each in ("1970-01-01", " "))
        found = _existing(pc.binary_join_element_wise(day, texts, blank), pa.timestamp("us"))
        return pc.cast(found, pa.time64("us"))
    zoned = pa.array(are_zoned(texts))
    none = pa.scalar(None, texts.type)
    plain = _existing(pc.if_else(zoned, none, texts), pa.timestamp("us"))
    utc = _existing(pc.if_else(zoned, texts, none), pa.timestamp("us", "UTC"))
    return pc.coalesce(plain, pc.cast(utc, pa.timestamp("us")))


def _existing(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts; those that are refused, as February 30 is, become null."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:  # it does not say which: halves of halves find it
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_existing(part, kind) for part in (texts[:half], texts[half:])])


def _floats(array: pa.Array, group: Group) -> Floats:
    if group == "date":
        array = pc.cast(_in_us(array), pa.int64())
    elif group == "time":
        array = pc.cast(pc.cast(array, pa.time64("us"), safe=False), pa.int64())
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


def _flags(array: pa.Array) -> Flags:
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags if flags.flags.writeable else flags.copy()


class Dates:
    """Dates, or times of day, and their parts.

    Args:
        us: ``(N,)``: microseconds since 1970, or midnight; NaN where there is no date.
    """

    def __init__(self, us: Floats) -> None:
        none = np.isnan(us)
        self._us, self._none = us, none if none.any() else None
        whole = us if self._none is None else np.where(none, 0, us)
        self._whole = whole.astype(np.int64)
        self._days = self._whole // _DAY_US

    def part(self, name: str) -> Floats:
        """Return ``days`` since 1970, or a part of each date.

        ``year``, ``month`` (1 to 12), ``day`` (1 to 31), ``weekday`` (0 is Monday), ``hour`` (0 to 24, with its
        fraction).
        """
        if name == "days":
            return self._us / _DAY_US
        if name == "hour":
            values = (self._whole - self._days * _DAY_US) / 3_600_000_000
        else:
            values = _part_of_days(self._days, name)
        return values if self._none is None else np.where(self._none, np.nan, values)


def _part_of_days(days: npt.NDArray[np.int64], name: str) -> Floats:
    if not len(days):
        return np.empty(0)
    least, most = int(days.min()), int(days.max())
    if most - least < len(days):  # each day of the calendar once
        days, of_all = days - least, _part_of_each(np.arange(least, most + 1), name)
        found: Floats = of_all[days]
        return found
    return _part_of_each(days, name)


def _part_of_each(days: npt.NDArray[np.int64], name: str) -> Floats:
    if name == "weekday":
        weekdays: Floats = np.mod(days + 3, 7).astype(np.float64)  # 1970 began on a Thursday
        return weekdays
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    values: npt.NDArray[np.int64] = {
        "year": months.astype(np.int64) // 12 + 1970,
        "month": months.astype(np.int64) % 12 + 1,
        "day": (dates - months).astype(np.int64) + 1,
    }[name]
    return values.astype(np.float64)


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
    is_whole = pa.array(_matches(texts, _WHOLE))
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
    if (groups_of_texts(texts) != GROUPS.index("number")).any():
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
        return ~_flags(array.is_null())
    coded = words_of(array)
    return at_places(_flags(pc.not_equal(coded.dictionary, "")), coded, False)


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
