"""What values of rows are: one set of rules for all files, whether these declare types or not.

CSV declares nothing: a column is what all of its cells are, empty ones left out: whole numbers, numbers, true or false,
dates; else texts. ``NO_VALUES`` are missing values among all but texts. Numbers of which one begins with a needless 0,
or is a whole one of 19 digits or more, are names: texts. What a file declares (Parquet, Arrow, JSON) is what it
declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

Kind = Literal["number", "code", "flag", "date", "zoned", "text"]
KINDS: tuple[Kind | None, ...] = (None, "text", "number", "code", "flag", "date", "zoned")
Codes = npt.NDArray[np.int8]  # places in KINDS
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[Any]  # int32 or int64
Floats = npt.NDArray[np.float64]
# What Arrow, and pandas with it, reads as no value where numbers stand; of texts they are some.
NO_VALUES = (
    *("NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "null", "NULL"),
    *("nan", "NaN", "Nan", "NAN", "-nan", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
DAY_US = 86_400_000_000
_MOST_DIGITS = 18  # of whole numbers: longer ones are names, which no number type holds
_CODE = r"^\s*[+-]?(?:0\d|\d{19,}\s*$)"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_DAY = r"^\s*\d{4}-\d\d-\d\d"
_CLOCK = r"[ T]\d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?"
_PATTERNS: dict[Kind, str] = {
    "number": r"^\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))\s*$",
    "code": _CODE,
    "flag": r"^(?i:true|false)$",
    "date": rf"{_DAY}(?:{_CLOCK})?\s*$",
    "zoned": rf"{_DAY}{_CLOCK}(?:Z|[+-]\d\d:?(?:\d\d)?)\s*$",
}
_CASTS: dict[Kind, pa.DataType] = {
    "number": pa.float64(),
    "date": pa.timestamp("us"),
    "zoned": pa.timestamp("us", "UTC"),
}
# Arrow's types by what their values are, the most usual ones first.
_OF_TYPES: dict[Kind | None, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "flag": (pa.types.is_boolean,),
    "date": (pa.types.is_timestamp, pa.types.is_date),
    None: (pa.types.is_null,),
}
# What passes for numbers, and for dates, beside themselves.
_PASS: dict[Kind, tuple[Kind, ...]] = {"date": ("date", "zoned"), "number": ("number", "flag")}
_SOME, _FEW = 64, 1000
_EXACT = 2.0**53  # float64 holds whole numbers up to here
_BEYOND_US = r"(\.\d{6})\d+"
# How all else than plain text begins, what says that there is no value included.
_BEGINNINGS = np.isin(np.arange(256), np.frombuffer(b"0123456789+-. \t\n\f\riItTfFnN#", np.uint8))


# -- texts that declare nothing --------------------------------------------------------------------


def type_of(texts: pa.Array | pa.ChunkedArray) -> Literal["int", "float", "flag", "text"]:
    """Return what a whole column of texts is; null and empty ones are missing values, dates are texts.

    Example:
        >>> type_of(pa.array(["1", " 2", "NA"])), type_of(pa.array(["1", "02"]))
        ('int', 'text')
    """
    words = pc.unique(texts).drop_null()
    kinds = {KINDS[code] for code in np.unique(kinds_of(words))} - {None}
    if kinds == {"number"}:
        return "int" if _matches(words, _WHOLE)[~_says_nothing(words)].all() else "float"
    return "flag" if kinds == {"flag"} else "text"


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
    for kind, pattern in _PATTERNS.items():  # codes are numbers, others what no pattern matched
        rows = some[kinds[some] == KINDS.index("number" if kind == "code" else "text")]
        if len(rows):  # a pattern is compiled at each call
            kinds[rows[_matches(texts.take(pa.array(rows)), pattern)]] = KINDS.index(kind)
    if len(some):
        kinds[some[_says_nothing(texts.take(pa.array(some)))]] = 0
    return kinds


def _says_nothing(texts: pa.Array) -> Flags:
    """Return which texts say that there is no value."""
    return flags_of(pc.is_in(texts, value_set=pa.array(["", *NO_VALUES], texts.type)))


def all_as_one(texts: pa.Array, kinds: Collection[Kind]) -> tuple[Kind, pa.Array] | None:
    """Return what all texts are, and them as numbers or dates, quickly; None where a look at each one is needed.

    One that says that there is no value needs it, too; so do numbers that are names, where ``code`` is among the kinds.
    """
    first = next((text for text in texts[:1].to_pylist() if text), "")
    texts = pc.ascii_trim_whitespace(texts) if first != first.strip() else texts
    for kind, arrow in ((kind, arrow) for kind, arrow in _CASTS.items() if kind in kinds):
        try:  # some first: a cast that fails takes a hundred times as long, as each value gets a message
            if len(texts) > _FEW:
                pc.cast(texts.slice(0, _SOME), arrow)
            values = pc.cast(texts, arrow)
        except pa.ArrowInvalid:
            continue
        if kind != "number":
            return kind, values
        known = values.drop_null().to_numpy()
        if not np.isnan(known).any():
            return None if "code" in kinds and _are_names(texts, known) else (kind, values)
    return None


def _are_names(texts: pa.Array, numbers: Floats) -> bool:
    """Tell whether one of some numbers in text begins with a needless 0, or is a whole one of 19 digits or more."""
    if max(numbers.max(initial=0.0), -numbers.min(initial=0.0)) >= 10.0**_MOST_DIGITS:
        return bool(_matches(texts, _CODE).any())
    starts, ends, data = text_buffers(texts)
    data = np.append(data[: ends[-1:].sum()], np.zeros(2, np.uint8))
    signs = data[starts]
    starts = starts + ((signs == ord("-")) | (signs == ord("+")))
    zeros = (data[starts] == ord("0")) & (starts + 1 < ends)
    are_digits = data[starts + 1] - np.uint8(ord("0")) <= 9  # below 0 wraps around
    return bool((zeros & are_digits).any())


def parsed(texts: pa.Array, kind: Kind) -> pa.Array:
    """Return the values of texts as one kind, dates in microseconds; null for what is none, such as February 30."""
    is_one = _matches(texts, _PATTERNS[kind])
    texts = pc.if_else(pa.array(is_one), texts, pa.scalar(None, texts.type))
    texts = pc.ascii_trim_whitespace(texts)
    if kind == "number":
        return pc.cast(texts, pa.float64())
    if kind == "flag":
        return pc.cast(pc.utf8_lower(texts), pa.bool_())
    texts = pc.replace_substring_regex(texts, _BEYOND_US, r"\1")  # nanoseconds end in 2262
    return _existing(texts, _CASTS[kind])


def _existing(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts; those that are refused, as February 30 is, become null."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:  # the error does not say which: halves of halves find it
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_existing(part, kind) for part in (texts[:half], texts[half:])])


def text_buffers(texts: pa.Array) -> tuple[Places, Places, npt.NDArray[np.uint8]]:
    """Return where each string of an array begins and ends in the bytes, and these."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    ends = np.frombuffer(texts.buffers()[1] or bytes(8), width)[texts.offset :][: len(texts) + 1]
    return ends[:-1], ends[1:], np.frombuffer(texts.buffers()[2] or b"", np.uint8)


def _matches(texts: pa.Array, pattern: str) -> Flags:
    """Return which texts a pattern is found in."""
    return flags_of(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


def flags_of(array: pa.Array) -> Flags:
    """Return booleans as an array of numpy."""
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags


# -- columns of any type ---------------------------------------------------------------------------


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are strings."""
    return any(test(kind) for test in _OF_TYPES["text"])


def kind_of(kind: pa.DataType) -> Kind | Literal["other"] | None:
    """Return what values of an Arrow type are, ``text`` for any strings; None where there are none.

    Those that have no place in a row of numbers are ``other``.
    """
    if pa.types.is_dictionary(kind):  # declared categories, also where these are numbers
        return "other" if kind_of(kind.value_type) in (None, "other") else "text"
    if getattr(kind, "tz", None) is not None:
        return "zoned"
    found = (each for each, tests in _OF_TYPES.items() if any(test(kind) for test in tests))
    return next(found, "other")


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
        return values if kind_of(values.type) in (None, "other") else words_of(values)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


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


def are_exact(array: pa.Array) -> bool:
    """Tell whether numbers are those that were written: a float from 2**53 on stands for several whole ones."""
    if not pa.types.is_floating(array.type):
        return True
    return not pc.any(pc.greater_equal(pc.abs(array.cast(pa.float64())), _EXACT)).as_py()


def shown(array: pa.Array, row: int) -> str:
    """Return a value for a message: ``as_py`` knows no years after 9999, no nanoseconds and not every zone."""
    (text,) = as_text(array.take(pa.array([row]))).to_pylist()
    return str(text)[:60]


def words_of(array: pa.Array) -> pa.DictionaryArray:
    """Return values as texts by their dictionary."""
    if pa.types.is_dictionary(array.type):
        return array
    return (array if is_text(array.type) else as_text(array)).dictionary_encode()


def at_places(by_word: npt.NDArray[Any], coded: pa.DictionaryArray, none: Any) -> npt.NDArray[Any]:
    """Return for each value what is known of its word; ``none`` where there is none."""
    found = pc.fill_null(pa.array(by_word).take(coded.indices), none)
    known: npt.NDArray[Any] = found.to_numpy(zero_copy_only=False)
    return known


def codes(array: pa.Array, vocabulary: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of each text in a vocabulary, from 1; 0 for what is not in it, -1 where there is none."""
    if pa.types.is_null(array.type):
        return np.full(len(array), -1)
    coded = words_of(array)
    words = coded.dictionary
    found = pc.fill_null(pc.index_in(words.cast(pa.string()), value_set=vocabulary), -1)
    by_word = np.where(flags_of(pc.equal(words, "")), -1, found.to_numpy().astype(np.int64) + 1)
    return at_places(by_word, coded, -1)


def numbers(array: pa.Array, kind: Kind) -> tuple[Floats, Flags]:
    """Return a column as numbers, of dates the microseconds since 1970; and where a value is none of this kind.

    Where there is no value, or one that is none, is NaN.
    """
    passing = _PASS.get(kind, (kind,))
    if is_text(array.type):
        found = all_as_one(array, passing)
        array = words_of(array) if found is None else found[1]
    if pa.types.is_dictionary(array.type):  # each word once
        words = array.dictionary
        values = parsed(words, kind)
        if kind == "date":
            values = pc.coalesce(values, pc.cast(parsed(words, "zoned"), values.type))
        values = _floats(values)
        bad = np.isnan(values) & ~_says_nothing(words)
        return at_places(values, array, np.nan), at_places(bad, array, False)
    if kind_of(array.type) not in (None, *passing):
        return np.full(len(array), np.nan), ~flags_of(array.is_null())
    return _floats(array), np.zeros(len(array), bool)


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
