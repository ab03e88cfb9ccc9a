"""Columns from a CSV file, matched to samples by key, as records of new fields or of those that are there."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.codecs import codec_for
from loaders.errors import CodecError, SchemaError, SourceError
from loaders.schema import Array, Field, Json, Label, MultiLabel, Text, check_field_name
from packdata.describe import counted
from packdata.sources.base import read_file
from packdata.sources.readers import csv_rows, encoding_hint
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loaders.schema import Schema

# Not 007: that is a name, and must come back as it was.
_INT = re.compile(r"-?(0|[1-9]\d{0,17})")
_WHOLE = re.compile(r"[+-]?\d+")
_NAME = re.compile(r"[+-]?\d{19}")  # as in lists of files
_FLOAT = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)
_MAX_SHOWN_CHARS = 80
KINDS = ("label", "text", "json", "int64", "float32", "float64")


def read_columns(
    path: Path | str,
    on: str,  # the column of keys
    kinds: Mapping[str, str] | None = None,  # by column name one of ``KINDS``
    # What the keys are in the dataset: those of a label are named in the table by class or number, and in the result
    # by class.
    field: Field | None = None,
    *,
    skip_missing: bool = False,  # leave out rows without a label, instead of refusing
) -> tuple[dict[str, Field], dict[str, dict[str, bytes]]]:
    """Read new fields, and by key the record of each, from a CSV file: UTF-8, separated by commas, with a header line.

    Columns of whole numbers become int64, of other numbers float64 (empty cells NaN), the rest
    text; so do whole numbers of 19 digits and more, and those that float64 would round. ``kinds``
    decides otherwise: a ``label``'s classes are the column's values, sorted.

    Raises:
        SourceError: The file is no such table, names a key twice, lacks a label, or a value is not
            of its kind.
    """
    path, kinds = Path(path), kinds or {}
    header, rows = _read(path)
    keys = _keys(header, rows, on, field, path)
    added = [name for name in header if name != on]
    for name, kind in kinds.items():
        if name not in added:
            what = f"it has no column {name!r} to add; it has {', '.join(added) or 'none'}"
            raise SourceError(what, path)
        if kind not in KINDS:
            raise SourceError(
                f"column {name!r} cannot be read as {kind!r}; kinds are {', '.join(KINDS)}", path
            )
    labels = [name for name, kind in kinds.items() if kind == "label"]
    numbers = _labeled(header, rows, labels, path, skip_missing)
    rows, keys = [rows[n - 1] for n in numbers], [keys[n - 1] for n in numbers]
    fields: dict[str, Field] = {}
    records: dict[str, dict[str, bytes]] = {key: {} for key in keys}
    for name in added:
        values = _column(header, rows, name)
        fields[name], parse = _field(name, values, kinds.get(name), path)
        for n, key, text in zip(numbers, keys, values, strict=True):
            where = f"row {n}, column {name!r}"
            records[key][name] = _record(fields[name], parse, text, where, path)
    return fields, records


def _labeled(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    labels: Sequence[str],
    path: Path,
    skip_missing: bool,
) -> list[int]:
    """Return the numbers of the rows, from 1, that have a label in each of these columns."""
    lacking: set[int] = set()
    for name in labels:
        empty = [n for n, text in enumerate(_column(header, rows, name), 1) if not text.strip()]
        if empty and not skip_missing:
            more = f" (and of {counted(len(empty) - 1, 'more row')})" if len(empty) > 1 else ""
            what = f"row {empty[0]}, column {name!r}: its label{more} is missing"
            hint = "Fill it in, or leave out what has none with '--missing skip'"
            raise SourceError(what, path, hint)
        lacking.update(empty)
    if len(lacking) == len(rows) > 0:
        raise SourceError(f"no row has a label in {', '.join(map(repr, labels))}", path)
    return [n for n in range(1, len(rows) + 1) if n not in lacking]


def read_updates(path: Path | str, on: str, schema: Schema) -> dict[str, dict[str, bytes]]:
    """Read new values of some fields of some samples from a CSV file.

    By key (of a label by class), the records of the fields that change. Numbers and texts as they are written,
    labels by name or number, multi-labels and JSON as JSON; an empty cell stands for no change. Fields and the
    classes of labels stay what they are.

    Raises:
        SourceError: The file is no such table, names a key twice, or a value is not of its field.
    """
    path = Path(path)
    header, rows = _read(path)
    keys = _keys(header, rows, on, schema.fields.get(on), path)
    if header == [on]:
        hint = "Its columns are separated by commas, below a line of their names"
        raise SourceError(f"it has no column but {on!r}: nothing would change", path, hint)
    found: dict[str, dict[str, bytes]] = {key: {} for key in keys}
    for name in header:
        if name == on:
            continue
        field = schema.fields.get(name)
        if field is None:
            has = ", ".join(schema.fields)
            hint = "'--add' brings new ones"
            raise SourceError(f"its column {name!r} is no field; there are {has}", path, hint)
        parse = _parser(field, f"column {name!r}", path)
        for i, (key, text) in enumerate(zip(keys, _column(header, rows, name), strict=True)):
            if text:
                where = f"row {i + 1}, column {name!r}"
                found[key][name] = _record(field, parse, text, where, path, _remedy(field, name))
    return found


def _remedy(field: Field, name: str) -> str:
    """Return what to do about a value that a field does not take."""
    if not isinstance(field, Label) or field.classes is None:
        return ""
    return (
        f"For another class copy with --fields and without {name!r} first, then give all labels "
        f"anew: --add FILE.csv --as {name}=label"
    )


def _parser(field: Field, where: str, path: Path) -> Callable[[str], Any]:
    """Return what turns a cell into a value of a field that is there."""
    if isinstance(field, Label):
        return partial(_class_number, field)
    if isinstance(field, MultiLabel):
        return partial(_indicators, field)
    if isinstance(field, Text):
        return str
    if isinstance(field, Json):
        return json.loads
    if isinstance(field, Array) and not field.dims:
        return float if field.dtype.startswith("float") else int
    what = f"{where}: a value of kind {field.kind} cannot be written in a cell"
    raise SourceError(what, path, "Labels, texts, JSON and single numbers can")


def _class_number(field: Label, text: str) -> int:
    if field.classes is None:
        return int(text)
    if text in field.classes:
        return field.classes.index(text)
    if _INT.fullmatch(text) and 0 <= int(text) < len(field.classes):
        return int(text)
    raise ValueError(f"the classes are {few(field.classes, 8)}")


def _indicators(field: MultiLabel, text: str) -> list[int]:
    names = json.loads(text)
    if not isinstance(names, list) or any(name not in field.classes for name in names):
        raise ValueError(f"it takes a list in JSON, of {', '.join(field.classes)}")
    return [int(name in names) for name in field.classes]


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    data = read_file(path, str(path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"it cannot be read as CSV ({error})"
        raise SourceError(what, path, encoding_hint(data)) from error
    header, *rows = [cells for *_, cells in csv_rows(text, path, strict=True)] or [[]]
    if not header or len(set(header)) != len(header):
        raise SourceError(f"its first line must name the columns, each once; it is {header}", path)
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise SourceError(f"row {number} has {len(row)} cells, the header {len(header)}", path)
    return header, rows


def _column(header: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> list[str]:
    i = header.index(name)
    return [row[i] for row in rows]


def _keys(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    on: str,
    field: Field | None,
    path: Path,
) -> list[str]:
    if on not in header:
        raise SourceError(f"it has no column {on!r}; it has {', '.join(header)}", path)
    keys = _column(header, rows, on)
    if isinstance(field, Label) and field.classes is not None:
        keys = [_class_name(field, field.classes, key) for key in keys]
    if len(set(keys)) != len(keys):
        twice = Counter(keys).most_common(1)[0][0]
        first, second = [i for i, key in enumerate(keys, 1) if key == twice][:2]
        what = f"key {twice!r} stands in it twice (rows {first} and {second})"
        raise SourceError(what, path, "One row for each key, please")
    return keys


def _class_name(field: Label, classes: Sequence[str], text: str) -> str:
    try:
        return classes[_class_number(field, text)]
    except ValueError:  # of another dataset
        return text


def _field(
    name: str, values: Sequence[str], kind: str | None, path: Path
) -> tuple[Field, Callable[[str], Any]]:
    """Return the field for a column and what turns its cells into values."""
    try:
        check_field_name(name)
    except SchemaError as error:
        raise SourceError(str(error), path, "Rename the column") from error
    if kind == "label":
        classes = tuple(sorted(set(values)))
        return Label(classes=classes), {name: i for i, name in enumerate(classes)}.__getitem__
    if kind == "json":
        return Json(), json.loads
    kind = kind or _guess(values)
    if kind == "text":
        return Text(), str
    return Array(dtype=kind), int if kind == "int64" else _float


def _guess(values: Sequence[str]) -> str:
    if values and all(_INT.fullmatch(text) for text in values):
        return "int64"
    if not any(values) or any(_is_rounded(text) for text in values):
        return "text"
    return "float64" if all(not text or _FLOAT.fullmatch(text) for text in values) else "text"


def _is_rounded(text: str) -> bool:
    """Tell whether a whole number is none that float64 has, or one of so many digits that it is a name."""
    if _NAME.match(text):
        return True
    return _WHOLE.fullmatch(text) is not None and int(float(text)) != int(text)


def _float(text: str) -> float:
    return float(text) if text else float("nan")


def _record(
    field: Field, parse: Callable[[str], Any], text: str, where: str, path: Path, hint: str = ""
) -> bytes:
    try:
        return codec_for(field).encode(parse(text))
    except (ValueError, OverflowError, RecursionError, CodecError) as error:
        kind = field.dtype if isinstance(field, Array) else field.kind
        shown = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"
        raise SourceError(f"{where}: {shown!r} is not {kind} ({error})", path, hint) from error
