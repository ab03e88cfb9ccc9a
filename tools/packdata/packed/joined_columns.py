"""Columns of a CSV file, matched to samples by key, as records of fields that are there."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.codecs import codec_for
from loaders.errors import CodecError, SourceError
from loaders.schema import Array, Field, Json, Label, MultiLabel, Text
from packdata.sources.base import read_file
from packdata.sources.readers import csv_rows, encoding_hint
from packdata.wording import few

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaders.schema import Schema

# Not 007: that is a name, and must come back as it was.
_INT = re.compile(r"-?(0|[1-9]\d{0,17})")
_MAX_SHOWN_CHARS = 80


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
            raise SourceError(f"its column {name!r} is no field; there are {has}", path)
        parse = _parser(field, f"column {name!r}", path)
        for i, (key, text) in enumerate(zip(keys, _column(header, rows, name), strict=True)):
            if text:
                where = f"row {i + 1}, column {name!r}"
                found[key][name] = _record(field, parse, text, where, path)
    return found


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


def _record(field: Field, parse: Callable[[str], Any], text: str, where: str, path: Path) -> bytes:
    try:
        return codec_for(field).encode(parse(text))
    except (ValueError, OverflowError, RecursionError, CodecError) as error:
        kind = field.dtype if isinstance(field, Array) else field.kind
        shown = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"
        raise SourceError(f"{where}: {shown!r} is not {kind} ({error})", path) from error
