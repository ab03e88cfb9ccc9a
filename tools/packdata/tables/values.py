"""Columns as Arrow reads them to numbers: what is missing, and what cannot be one, is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loaders.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

Group = Literal["number", "flag", "date", "time", "text"]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
PARTS_OF_DATES = ("year", "month", "day", "weekday", "hour")
DATE_FORMS = ("days", "parts")
_NUMBER = r"^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))\s*$"
_FLAG = r"^(?i:true|false)$"
_DATE = (
    r"^\d{4}-\d\d-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?(?:Z|[+-]\d\d:?(?:\d\d)?)?)?$"
)
_TIME = r"^\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?$"
_BEYOND_US = r"(\.\d{6})\d+"
_ZONE = r"[ T]\d\d\S*(?:Z|[+-]\d\d:?(?:\d\d)?)$"
_PATTERNS: dict[Group, str] = {"number": _NUMBER, "flag": _FLAG, "date": _DATE, "time": _TIME}
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
        values: ``(N,)``.
        missing: Where there was no value.
        bad: Where there was one that is no number (no date, no time that a day has, ...).
    """

    values: Floats
    missing: Flags
    bad: Flags


def group_of(kind: pa.DataType) -> Group | None:
    """Return what values of an Arrow type are, ``text`` for any strings; None where there are none.

    Raises:
        SourceError: They have no place in a row of numbers.
    """
    types = pa.types
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
    if is_text(kind):
        return "text"
    raise SourceError(f"it holds {kind}, which is no number, text or date", "column")


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


def groups_of_texts(texts: pa.Array) -> npt.NDArray[np.object_]:
    """Return what each of some strings looks like; None for ``NO_VALUES``, which depend on the others."""
    groups = np.full(len(texts), "text", object)
    for group, pattern in _PATTERNS.items():
        groups[_matches(texts, pattern)] = group
    groups[_say_nothing(texts)] = None
    return groups


def _say_nothing(texts: pa.Array) -> Flags:
    return _flags(pc.is_in(texts, value_set=pa.array(NO_VALUES, texts.type)))


def have_zones(array: pa.Array) -> Flags:
    """Return which of some dates say their time zone."""
    if is_text(array.type):
        return _matches(array, _ZONE)
    return np.full(len(array), pa.types.is_timestamp(array.type) and array.type.tz is not None)


def _matches(texts: pa.Array, pattern: str) -> Flags:
    found = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    result: Flags = found.to_numpy(zero_copy_only=False)
    return result


def numbers(array: pa.Array, group: Group) -> Numbers:
    """Return a column of one group as numbers: of dates, their microseconds since 1970; of times, since midnight."""
    missing = _flags(array.is_null())
    bad = np.zeros(len(array), bool)
    if pa.types.is_null(array.type):
        return Numbers(np.full(len(array), np.nan), missing, bad)
    if is_text(array.type):
        missing = lacks_value(array)
        like_one = _matches(array, _PATTERNS[group])
        array = pc.if_else(pa.array(like_one), array, pa.scalar(None, array.type))
        array = _parsed(array, group)
        bad = _flags(array.is_null()) & ~missing
    elif group_of(array.type) not in (group, "flag" if group == "number" else group):
        bad = ~missing
        return Numbers(np.full(len(array), np.nan), missing, bad)
    values = _floats(array, group)
    if group == "date":
        bad |= np.isnan(values) & ~missing
    missing |= np.isnan(values) & ~bad
    return Numbers(values, missing, bad)


def _parsed(texts: pa.Array, group: Group) -> pa.Array:
    """Return the values of texts that all look like one; null for a day or time that does not exist."""
    if group == "number":
        return pc.cast(pc.utf8_ltrim(pc.utf8_trim_whitespace(texts), characters="+"), pa.float64())
    if group == "flag":
        return pc.cast(pc.utf8_lower(texts), pa.bool_())
    if group == "time":
        return pa.array([_time_us(text) for text in texts.to_pylist()], pa.time64("us"))
    texts = pc.replace_substring_regex(texts, _BEYOND_US, r"\1")  # nanoseconds end in 2262
    zoned = pa.array(have_zones(texts))
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
    found = pc.index_in(array.cast(pa.string()), value_set=vocabulary)
    numbers: npt.NDArray[np.int64] = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return numbers + 1


def has_value(array: pa.Array) -> Flags:
    """Return where there is a text."""
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
    return repr(value.as_py())[:60]


def in_words(names: Sequence[str], most: int = 8) -> str:
    """Return names for a message, not too many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
