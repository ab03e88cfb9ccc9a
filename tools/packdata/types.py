"""What the text of a cell stands for: one set of rules for all files that declare no types, such as CSV.

A column is what all of its cells are, empty ones left out: whole numbers, numbers, true or false, dates; else texts.
``NO_VALUES`` are missing values among all but texts. Numbers of which one begins with a needless 0, or is a whole one
of 19 digits or more, are names: texts. What a file declares (Parquet, Arrow, JSON) is what it declares.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["number", "code", "flag", "date", "zoned", "text"]
KINDS: tuple[Kind | None, ...] = (None, "text", "number", "code", "flag", "date", "zoned")
Codes = npt.NDArray[np.int8]  # places in KINDS
# What Arrow, and pandas with it, reads as no value where numbers stand; of texts they are some.
NO_VALUES = (
    *("NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "null", "NULL"),
    *("nan", "NaN", "Nan", "NAN", "-nan", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
MOST_DIGITS = 18  # of whole numbers: longer ones are names, which no number type holds
_NUMBER = r"^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))\s*$"
_CODE = r"^\s*[+-]?(?:0\d|\d{19,}\s*$)"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_FLAG = r"^(?i:true|false)$"
_DAY = r"^\s*\d{4}-\d\d-\d\d"
_CLOCK = r"[ T]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?"
_DATE = rf"{_DAY}(?:{_CLOCK})?\s*$"
_ZONED = rf"{_DAY}{_CLOCK}(?:Z|[+-]\d\d:?(?:\d\d)?)\s*$"
_PATTERNS: dict[Kind, str] = {
    "number": _NUMBER,
    "code": _CODE,
    "flag": _FLAG,
    "date": _DATE,
    "zoned": _ZONED,
}
_SOME, _FEW = 64, 1000
_EXACT = 2.0**53  # float64 holds whole numbers up to here
_BEYOND_US = r"(\.\d{6})\d+"
# How all else than plain text begins, what says that there is no value included.
_BEGINNINGS = np.isin(np.arange(256), np.frombuffer(b"0123456789+-. \t\n\f\riItTfFnN#", np.uint8))


def type_of(texts: pa.Array | pa.ChunkedArray) -> Literal["int", "float", "flag", "text"]:
    """Return what a whole column of texts is; null and empty ones are missing values, dates are texts.

    Example:
        >>> type_of(pa.array(["1", " 2", "NA"])), type_of(pa.array(["1", "02"]))
        ('int', 'text')
    """
    words = pc.unique(texts).drop_null()
    kind = kind_of({KINDS[code] for code in np.unique(kinds_of(words))} - {None})
    if kind == "number":
        return "int" if matches(words, _WHOLE)[~says_nothing(words)].all() else "float"
    return "flag" if kind == "flag" else "text"


def kind_of(kinds: set[Kind | None]) -> Kind | None:
    """Return what a column is whose values are of some kinds; None without any, ``text`` if they are mixed."""
    if len(kinds) == 1 and kinds != {"code"}:
        return next(iter(kinds))
    return "text" if kinds else None


def kinds_of(texts: pa.Array) -> Codes:
    """Return what each of some strings looks like, as its place in ``KINDS``.

    None for the empty string and for ``NO_VALUES``, which depend on the others.

    Args:
        texts: Strings, none of them null.
    """
    kinds = np.full(len(texts), KINDS.index("text"), np.int8)
    starts, ends, data = text_buffers(texts)
    kinds[ends <= starts] = 0
    filled = np.flatnonzero(ends > starts)
    some = filled[_BEGINNINGS[data[starts[filled]]]]
    for (
        kind,
        pattern,
    ) in _PATTERNS.items():  # of those that no earlier one matched; codes are numbers
        before: Kind = "number" if kind == "code" else "text"
        rows = some[kinds[some] == KINDS.index(before)]
        if len(rows):  # a pattern is compiled at each call
            kinds[rows[matches(texts.take(pa.array(rows)), pattern)]] = KINDS.index(kind)
    if len(some):
        kinds[some[says_nothing(texts.take(pa.array(some)))]] = 0
    return kinds


def says_nothing(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which texts say that there is no value."""
    return flags_of(pc.is_in(texts, value_set=pa.array(["", *NO_VALUES], texts.type)))


def parsed(texts: pa.Array, kind: Kind) -> pa.Array:
    """Return the values of texts as one kind, dates in microseconds; null for what is none, such as February 30."""
    is_one = matches(texts, _PATTERNS[kind])
    texts = pc.if_else(pa.array(is_one), texts, pa.scalar(None, texts.type))
    texts = pc.utf8_trim_whitespace(texts)
    if kind == "number":
        return pc.cast(texts, pa.float64())
    if kind == "flag":
        return pc.cast(pc.utf8_lower(texts), pa.bool_())
    texts = pc.replace_substring_regex(texts, _BEYOND_US, r"\1")  # nanoseconds end in 2262
    return _existing(texts, pa.timestamp("us", "UTC" if kind == "zoned" else None))


def cast_all(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return texts as float64 or a timestamp, quickly; None where one of them is none, or says that there is none."""
    try:  # some first: a cast that fails takes a hundred times as long, as each value gets a message
        if len(texts) > _FEW:
            pc.cast(texts.slice(0, _SOME), kind)
        values = pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_floating(kind) and np.isnan(values.drop_null()).any():
        return None
    return values


def are_names(texts: pa.Array, numbers: pa.Array) -> bool:
    """Tell whether one of some numbers in text begins with a needless 0, or is a whole one of 19 digits or more."""
    known = numbers.drop_null().to_numpy()
    largest = max(known.max(initial=0.0), -known.min(initial=0.0))
    if len(texts) < _FEW or largest >= 10.0**MOST_DIGITS:
        return bool(matches(texts, _CODE).any())
    starts, ends, data = text_buffers(texts)
    data = np.append(data[: ends[-1]], np.uint8(0))
    digits = data - np.uint8(ord("0")) <= 9  # below 0 wraps around
    zeros = (data[:-1] == ord("0")) & digits[1:]  # in front of a digit, perhaps of the next text
    signs = (data == ord("-")) | (data == ord("+"))
    places = starts + signs.take(starts, mode="clip") if signs.any() else starts
    rows = np.flatnonzero(zeros.take(places, mode="clip"))
    return bool((places[rows] + 1 < ends[rows]).any())


def _existing(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts; those that are refused, as February 30 is, become null."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:  # the error does not say which: halves of halves find it
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_existing(part, kind) for part in (texts[:half], texts[half:])])


def text_buffers(
    texts: pa.Array,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return where each string of an array begins and ends in the bytes, and these."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    ends = np.frombuffer(texts.buffers()[1], width)[texts.offset :][: len(texts) + 1]
    return ends[:-1], ends[1:], np.frombuffer(texts.buffers()[2] or b"", np.uint8)


def matches(texts: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    """Return which texts a pattern is found in."""
    return flags_of(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


def flags_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return booleans as an array of numpy that may be written to."""
    flags: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return flags if flags.flags.writeable else flags.copy()


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
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in tests)
