"""Columns as Arrow reads them to numbers: what is missing, and what cannot be one, is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

Group = Literal["number", "code", "flag", "date", "time", "text", "other"]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
PARTS_OF_DATES = ("year", "month", "day", "weekday", "hour")
DATE_FORMS = ("days", "parts")
_MAX_TYPE_CHARS = 60
_FEW = 32
_NUMBER = r"^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))\s*$"
_FLAG = r"^(?i:true|false)$"
_DATE = r"^\s*\d{4}-\d\d-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?(?:Z|[+-]\d\d:?(?:\d\d)?)?)?\s*$"
_TIME = r"^\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?$"
_BEYOND_US = r"(\.\d{6})\d+"
_ZONE = r"[ T]\d\d\S*(?:Z|[+-]\d\d:?(?:\d\d)?)\s*$"
_CODE = r"^\s*[+-]?0\d"  # a number with zeros in front, which it would lose
_PATTERNS: dict[Group, str] = {"number": _NUMBER, "flag": _FLAG, "date": _DATE, "time": _TIME}
_KINDS: dict[Group, tuple[pa.DataType, ...]] = {
    "number": (pa.float64(),),
    "date": (pa.timestamp("us"), pa.timestamp("us", "UTC")),
}
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
    """Return values as strings; NaN, with which pandas says that there is none, as null."""
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(array.type):
            raise
        return array.cast(pa.timestamp(array.type.unit, "UTC")).cast(
            pa.string()
        )  # of no known zone


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are strings."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def plain(array: pa.Array) -> pa.Array:
    """Return values one by one, as a type that Arrow can compute with."""
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary).take(array.indices)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def without_words(table: pa.Table, words: Sequence[str]) -> pa.Table:
    """Return a table in which these texts are no values."""
    for i, field in enumerate(table.schema) if words else ():
        if is_text(field.type):
            told = pc.is_in(table[i], value_set=pa.array(words, field.type))
            table = table.set_column(
                i, field.name, pc.if_else(told, pa.scalar(None, field.type), table[i])
            )
    return table


def groups_of_texts(texts: pa.Array) -> npt.NDArray[np.object_]:
    """Return what each of some strings looks like; None for ``NO_VALUES``, which depend on the others."""
    groups = np.full(len(texts), "text", object)
    for group, pattern in _PATTERNS.items():
        groups[_matches(texts, pattern)] = group
    groups[(groups == "number") & _matches(texts, _CODE)] = "code"
    groups[_say_nothing(texts)] = None
    return groups


def _say_nothing(texts: pa.Array) -> Flags:
    return _flags(pc.is_in(texts, value_set=pa.array(NO_VALUES, texts.type)))


def _matches(texts: pa.Array, pattern: str) -> Flags:
    return _flags(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


def numbers(array: pa.Array, group: Group) -> Numbers:
    """Return a column of one group as numbers."""
    array = plain(array)
    zoned = np.full(len(array), pa.types.is_timestamp(array.type) and array.type.tz is not None)
    if is_text(array.type):
        return _numbers_of_texts(array, group)
    missing = _flags(array.is_null()) if array.null_count else np.zeros(len(array), bool)
    own = group_of(array.type)
    if own is None or own not in (group, "flag" if group == "number" else group):
        bad = np.zeros(len(array), bool) if own is None else ~missing
        return Numbers(np.full(len(array), np.nan), missing, bad, zoned)
    values = _floats(array, group)
    none = np.isnan(values) & ~missing
    if group == "date":
        return Numbers(values, missing, none, zoned & ~none)
    return Numbers(values, missing | none, np.zeros(len(array), bool), zoned)


def _numbers_of_texts(texts: pa.Array, group: Group) -> Numbers:
    """Convert texts: all at once, and where some say nothing or something else, each that differs once."""
    none = np.zeros(len(texts), bool)
    for kind in _KINDS.get(group, ()):
        values = _cast(texts, kind, group)
        if values is None:
            continue
        return Numbers(
            values, np.isnan(values), none, none | (getattr(kind, "tz", None) is not None)
        )
    coded = texts.dictionary_encode()
    words, places = coded.dictionary, coded.indices
    like_one = pc.if_else(
        pa.array(_matches(words, _PATTERNS[group])), words, pa.scalar(None, words.type)
    )
    values = _floats(_parsed(like_one, group), group)
    missing = lacks_value(words)
    bad = np.isnan(values) & ~missing
    zoned = _matches(like_one, _ZONE) & ~bad
    at = pc.fill_null(places, len(words)).to_numpy()
    values, missing, bad, zoned = (
        np.append(each, rest)[at]
        for each, rest in ((values, np.nan), (missing, True), (bad, False), (zoned, False))
    )
    return Numbers(values, missing | (np.isnan(values) & ~bad), bad, zoned)


def plain_numbers(texts: pa.Array) -> Numbers | None:
    """Return texts as numbers if each is one, or nothing, and none has zeros in front."""
    values = _cast(texts, pa.float64(), "number")
    if values is None:
        return None
    missing = np.isnan(values)
    if missing.all() or _have_zeros(texts):
        return None
    none = np.zeros(len(texts), bool)
    return Numbers(values, missing, none, none)


def _cast(texts: pa.Array, kind: pa.DataType, group: Group) -> Floats | None:
    """Convert texts at once; None if one is refused: the first few are asked first, for Arrow goes on to the end."""
    try:
        pc.cast(texts[:_FEW], kind)
        return _floats(pc.cast(texts, kind), group)
    except pa.ArrowInvalid:
        return None


def _have_zeros(texts: pa.Array) -> bool:
    """Tell whether some numbers have zeros in front."""
    codes, ends = text_buffers(texts)
    starts = np.concatenate([[0], ends[:-1]])
    starts = starts[ends - starts > 1]
    if not len(starts):
        return False
    first = codes[starts]
    signed = starts[(first == ord("-")) | (first == ord("+"))] + 1
    starts = np.concatenate([starts[first == ord("0")], signed[codes[signed] == ord("0")]]) + 1
    after = codes[
        starts[starts < len(codes)]
    ]  # that of the next cell, at worst: looked at once more then
    return bool(((after >= ord("0")) & (after <= ord("9"))).any()) and bool(
        _matches(texts, _CODE).any()
    )


def text_buffers(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of an array of strings, and where each ends; the bytes are not copied."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    offsets = np.frombuffer(texts.buffers()[1], width)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[1:].astype(np.int64) - offsets[0]


def _parsed(texts: pa.Array, group: Group) -> pa.Array:
    """Return the values of texts that all look like one; null for a day or time that does not exist."""
    texts = pc.utf8_trim_whitespace(texts)
    if group == "number":
        return pc.cast(pc.utf8_ltrim(texts, characters="+"), pa.float64())
    if group == "flag":
        return pc.cast(pc.utf8_lower(texts), pa.bool_())
    if group == "time":
        return pa.array([_time_us(text) for text in texts.to_pylist()], pa.time64("us"))
    texts = pc.replace_substring_regex(texts, _BEYOND_US, r"\1")  # nanoseconds end in 2262
    zoned = pa.array(_matches(texts, _ZONE))
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


def _time_us(text: str | None) -> int | None:
    """Return microseconds since midnight; None for a time that no day has."""
    if text is None:
        return None
    hours, minutes, *rest = text.split(":")
    seconds = float(rest[0]) if rest else 0.0
    if int(hours) > 23 or int(minutes) > 59 or seconds >= 60:
        return None
    return round((int(hours) * 3600 + int(minutes) * 60 + seconds) * 1e6)


def _floats(array: pa.Array, group: Group) -> Floats:
    if group == "date":
        array = pc.cast(_in_us(array), pa.int64())
    elif group == "time":
        array = pc.cast(pc.cast(array, pa.time64("us"), safe=False), pa.int64())
    elif pa.types.is_decimal(array.type):
        array = pc.cast(
            array, pa.string()
        )  # Arrow's own way to floats is off by an ulp in some 3 %
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


def narrow(values: Floats, missing: Flags) -> pa.Array:
    """Return whole numbers as the smallest type that holds them."""
    known = np.where(missing, 0, values) if missing.any() else values
    least, most = (known.min(), known.max()) if len(known) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            is_signed = (
                least <= 0 and (np.signbit(known) & (known == 0)).any()
            )  # -0 is none of them
            return pa.array(known if is_signed else known.astype(kind), mask=missing)
    return pa.array(values, mask=missing)


def part_of_date(us: Floats, part: str) -> Floats:
    """Return microseconds since 1970 (or midnight) as days since then, or as a part of the date.

    ``year``, ``month`` (1 to 12), ``day`` (1 to 31), ``weekday`` (0 is Monday), ``hour`` (0 to 24, with its fraction).
    """
    if part == "days":
        return us / _DAY_US
    if part == "hour":
        return np.mod(us, _DAY_US) / 3_600_000_000
    known = ~np.isnan(us)
    days = np.floor_divide(np.where(known, us, 0), _DAY_US).astype(np.int64)
    if part == "weekday":
        return np.where(known, np.mod(days + 3, 7), np.nan)  # 1970 began on a Thursday
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    values = {
        "year": months.astype(np.int64) // 12 + 1970,
        "month": months.astype(np.int64) % 12 + 1,
        "day": (dates - months).astype(np.int64) + 1,
    }[part]
    return np.where(known, values, np.nan)


def codes(array: pa.Array, vocabulary: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of each text in a vocabulary, from 1; 0 for what is not in it."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64)
    coded = (
        array
        if pa.types.is_dictionary(array.type)
        else array.cast(pa.string()).dictionary_encode()
    )
    found = pc.fill_null(pc.index_in(coded.dictionary, value_set=vocabulary), -1).to_numpy() + 1
    places = pc.fill_null(coded.indices, len(found)).to_numpy()
    result: npt.NDArray[np.int64] = np.append(found, 0).astype(np.int64)[places]
    return result


def has_value(array: pa.Array) -> Flags:
    """Return where there is a text."""
    array = plain(array)
    known = ~_flags(array.is_null())
    if is_text(array.type):
        known &= ~_flags(pc.fill_null(pc.equal(array, ""), False))
    return known


def lacks_value(texts: pa.Array) -> Flags:
    """Return where there is no text, or one that says so."""
    return ~has_value(texts) | _say_nothing(texts)


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
