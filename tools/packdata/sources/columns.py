"""Columns of labels: what their values are, and which fields of a dataset they become."""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from loaders.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from loaders.remote.url import Location
    from loaders.schema import Field

LABEL, BOX_LABELS = "label", "box_labels"
SIDES = ("xmin", "ymin", "xmax", "ymax")  # of a box, as VOC calls them
ROWS_OF_BOXES = "Group the rows by picture, with a list of boxes each: docs/masks.md shows how"
LABEL_NAMES = ("label", "class", "target")  # the first that a list has becomes the field "label"
_RESERVED = frozenset(
    {"image", "array", "mask", "key", "original_size", "sample_id", "count", "index", "label"}
)

ColumnKind = Literal["class", "int", "float", "text", "json", "bytes"]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns that options name; None for the usual ones."""

    file: str | None = None  # of files, or of their paths
    mask: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of labels."""

    # ``class``: values are names of ``classes``, or their numbers.
    kind: ColumnKind
    classes: tuple[str, ...] = ()  # the names by number, for ``class``
    numbered: bool = False  # True if the source itself fixes the order of the classes
    num_missing: int = (
        0  # how many of its numbers are, for which NaN stands; 0 in the field ``label``
    )
    field: Field | None = None  # what a dataset says of it, where that is known
    # How boxes in it are written (``packdata.geometry.BOX_FORMATS``), or ``keypoints``.
    form: str = ""


def first_named(columns: Sequence[str], names: Iterable[str]) -> str | None:
    """Return the column that has the first of some names, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(columns)}
    return next((by_lower[name] for name in names if name in by_lower), None)


def sides_in(columns: Iterable[str]) -> str:
    """Say which columns are boxes, such as ``bbox_x_min`` and three others; "" if none are."""
    plain = [re.sub(r"[\W_]", "", name).lower() for name in columns]
    for sides in (SIDES, ("x1", "y1", "x2", "y2"), ("left", "top", "width", "height")):
        if all(any(name.endswith(side) for name in plain) for side in sides):
            return f"columns {', '.join(sides)}, which no crop moves"
    return ""


def check_distinct(columns: Iterable[str], path: Location | str) -> None:
    """Raise SourceError for duplicate columns."""
    if repeated := [name for name, num in Counter(columns).items() if num > 1]:
        raise SourceError(f"duplicate columns {repeated}", path, "Rename one of them")


def field_names(
    columns: Sequence[str], taken: Container[str | None], path: Location | str, label: str | None
) -> dict[str, str]:
    """Return the field name of each column that is not ``taken``: an identifier that no other field has.

    The column ``label``, by default the first called ``label``, ``class`` or ``target``, becomes ``label``; other
    characters than letters, digits and underscores become underscores; a name that is taken (``image``, ``key``,
    ``class``) gets one behind it.
    """
    known, columns = [*columns], [name for name in columns if name not in taken]
    if label is None:
        label = first_named(columns, LABEL_NAMES)
    elif label not in columns:
        what = f"no column {label!r} for labels, but {known}"
        raise SourceError(what, path, "Columns of paths and keys cannot be labels")
    fields: dict[str, str] = {}
    for column in columns:
        name = LABEL if column == label else identifier_of(column)
        if name in fields.values():
            other = next(first for first, taken in fields.items() if taken == name)
            what = f"columns {other!r} and {column!r} would both be the field {name!r}"
            raise SourceError(what, path, "Rename one of them")
        fields[column] = name
    return fields


def identifier_of(column: str, taken: Container[str] = _RESERVED) -> str:
    """Return the name of a field that a column may have: letters, digits and underscores, and none that is taken."""
    name = re.sub(r"\W", "_", column.strip())
    name = re.sub(r"__+", "_", name).lstrip("_") or "column"
    if not name.isidentifier():
        name = f"column_{name}"
    return f"{name.rstrip('_')}_" if name in taken or keyword.iskeyword(name) else name


def is_missing(value: Any) -> bool:
    """Tell whether a value is None or NaN, with which tables are filled where they have none."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def column_of(field: str, values: Iterable[Any], declared: ColumnKind | None = None) -> Column:
    """Say what a column of plain Python values holds; None is a value that is missing.

    Whole numbers are ``int``, numbers ``float``, strings ``text``, anything else ``json``, unless the source has
    ``declared`` what they are. In the field ``label``, strings (also among numbers) are the names of classes, sorted.
    """
    kinds, names = set[ColumnKind](), set[str]()
    num_missing, is_label = 0, field == LABEL
    for value in values:
        if value is None:
            num_missing += not is_label
            continue
        kinds.add(declared or _kind_of(value))
        if is_label:
            names.add(str(value))
    if is_label and "text" in kinds and "json" not in kinds:
        return Column("class", tuple(sorted(names)))
    kinds = kinds or {declared or "text"}
    if kinds <= {"float", "int"}:
        return Column("float" if "float" in kinds else "int", num_missing=num_missing)
    return Column(kinds.pop() if len(kinds) == 1 else "json")


def _kind_of(value: Any) -> ColumnKind:
    if isinstance(value, int):  # bool too: 0 or 1
        return "int" if -(1 << 63) <= value < 1 << 63 else "json"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"
