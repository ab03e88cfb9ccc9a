"""Conditions on samples, as ``--where`` takes them: ``label == "cat" and width >= 256``.

The syntax is Python's, of comparisons, ``and``, ``or``, ``not``, ``in``, names and literals; all else is refused, and
nothing is passed to ``eval``. A name is read as a whole column, and compared by numpy.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.checks import did_you_mean
from loaders.errors import LoadersError, SchemaError
from loaders.schema import Array, Categories, Features, Label, MultiLabel, Text
from loaders.schema.tables import column_names, find_column
from packdata.describe import few

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.data.view import View
    from loaders.schema import Field

# Texts in quotes, which stay as they are, or a name in backticks: ``_['name']`` for Python.
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`([^`]+)`")
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNEXPECTED = "unexpected {!r}; use comparisons, and, or, not, in, names and literals"
_CONTAINS = np.frompyfunc(lambda text, part: part in text, 2, 1)


def matching(view: View, condition: str) -> npt.NDArray[np.bool_]:
    """Return which samples of a view meet a condition, ``(N,)``.

    A condition names fields of one value and columns of tables, those that are no plain word in backticks:
    ```income, EUR` > 3``. A label compares with numbers and with class names; ``"cat" in tags`` asks whether a
    multi-label has a class, ``"x" in text`` finds a part. A category is its text, ``""`` where it is missing or
    unknown. NaN compares as in Python.

    Raises:
        SchemaError: It is not such an expression, names what is not there, or compares what is never equal.
        ShardError: A shard that it asks is damaged.
    """
    text = _QUOTED.sub(lambda found: f"_[{found[1]!r}]" if found[1] else found[0], condition)
    try:
        found = _mask(view, ast.parse(text.strip(), mode="eval").body)
    except SchemaError as error:
        raise SchemaError(f"the condition {condition!r} does not fit: {error}") from error
    except LoadersError:  # of the samples, such as a damaged shard
        raise
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        what = getattr(error, "msg", error)  # without the place: it is not the condition's
        hint = "compare with ==, and quote other column names with backticks: `income, EUR` > 3"
        raise SchemaError(f"the condition {condition!r} cannot be read: {what}; {hint}") from error
    return np.array(np.broadcast_to(found, len(view)), bool)


class _Operand(NamedTuple):
    """One side of a comparison: a literal, or a column of N values."""

    name: str  # as the condition has it
    kind: Literal["number", "text", "multi-label"]
    values: Any  # of classes and categories their numbers
    words: tuple[str, ...] = ()  # the classes or categories of a column, by their numbers

    @property
    def plain(self) -> Any:
        """What it compares as where no name is compared: of categories their texts."""
        is_category = self.kind == "text" and self.words
        return np.array(self.words, object)[self.values] if is_category else self.values


def _mask(view: View, node: ast.expr) -> Any:
    """Return where a condition is true: ``(N,)``, or one flag if it names nothing."""
    match node:
        case ast.BoolOp(op=join, values=tests):
            both = np.logical_and if isinstance(join, ast.And) else np.logical_or
            return functools.reduce(both, [_mask(view, test) for test in tests])
        case ast.UnaryOp(op=ast.Not(), operand=test):
            return np.logical_not(_mask(view, test))
        case ast.Compare(left=left, ops=ops, comparators=others):
            pairs = zip(itertools.pairwise([left, *others]), ops, strict=True)
            found = [_compare(view, one, op, other) for (one, other), op in pairs]
            return functools.reduce(np.logical_and, found)
    raise SchemaError(_UNEXPECTED.format(ast.unparse(node)))


def _compare(view: View, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
    one = _operand(view, left)
    if not isinstance(op, ast.In | ast.NotIn):
        return _related(one, op, _operand(view, right))
    if isinstance(right, ast.Tuple | ast.List | ast.Set):
        equal = [_related(one, ast.Eq(), _operand(view, each)) for each in right.elts]
        found = functools.reduce(np.logical_or, equal, np.False_)
    else:
        found = _contains(_operand(view, right), one)
    return found if isinstance(op, ast.In) else np.logical_not(found)


def _contains(whole: _Operand, part: _Operand) -> Any:
    if whole.kind == "multi-label" and isinstance(part.values, str):
        return whole.values[:, _number_of(part.values, whole)] != 0
    if whole.kind != "text" or part.kind != "text":
        raise SchemaError(f"{part.name} in {whole.name} cannot be compared")
    return np.asarray(_CONTAINS(whole.plain, part.plain), bool)


def _operand(view: View, node: ast.expr) -> _Operand:
    text = ast.unparse(node)
    match node:
        case ast.Name(id=name):
            return _column(view, name)
        case ast.Subscript(value=ast.Name(id="_"), slice=ast.Constant(value=str() as name)):
            return _column(view, name)
        case ast.Constant(value=str() as value):
            return _Operand(text, "text", value)
        case ast.Constant(value=int() | float() as value):
            return _Operand(text, "number", value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _Operand(text, "number", -value)
    raise SchemaError(_UNEXPECTED.format(text))


def _column(view: View, name: str) -> _Operand:
    schema = view.schema
    field_name, at = find_column(schema, name) or (name, 0)
    field = schema.fields.get(field_name)
    if field is None or (field_name == name and not _has_one_value(field)):
        fields = [n for n, each in schema.fields.items() if _has_one_value(each)]
        known = [*dict.fromkeys([*fields, *column_names(schema)])]
        what = f"no field {name!r} of one value{did_you_mean(name, known)}"
        raise SchemaError(f"{what}; there is {', '.join(known) or 'none'}")
    if isinstance(field, Text):
        records = enumerate(view.all_records(name))
        texts = [view.decode(i, name, record[name]) for i, record in records]
        return _Operand(name, "text", np.array(texts, object))
    if isinstance(field, Features) and field.standardized:
        what = f"{name!r} is stored as (value - {field.mean[at]:g}) / {field.std[at] or 1:g}"
        raise SchemaError(f"{what}: use dataset.select(dataset.column({name!r}) > ...)")
    values = view.column(name)
    if isinstance(field, MultiLabel):
        return _Operand(name, "multi-label", values, field.classes)
    values = values.reshape(-1)
    if isinstance(field, Categories):
        words = ("", *field.vocabularies[at])  # what is missing or unknown comes first
        return _Operand(name, "text", np.where(values < len(words), values, 0), words)
    classes = field.classes if isinstance(field, Label) else None
    return _Operand(name, "number", values, classes or ())


def _has_one_value(field: Field) -> bool:
    if isinstance(field, Features | Categories):
        return len(field.columns) == 1
    is_number = isinstance(field, Array) and field.dims == ()
    return is_number or isinstance(field, Label | MultiLabel | Text)


def _related(one: _Operand, op: ast.cmpop, other: _Operand) -> Any:
    """Compare two operands; a column equals the name of a class or category where it has its number."""
    compare, kinds = _COMPARE.get(type(op)), {one.kind, other.kind}
    for name, column in ((one, other), (other, one)):
        is_name = isinstance(name.values, str) and column.words and column.kind != "multi-label"
        if is_name and compare in (operator.eq, operator.ne):
            return compare(column.values, _number_of(name.values, column))
    if compare is None or len(kinds) > 1 or "multi-label" in kinds:
        what = f"{one.name} is a {one.kind}, {other.name} is a {other.kind}, and do not compare so"
        hint = "quote texts; names of classes take == and !=, multi-labels 'name' in tags"
        raise SchemaError(f"{what}: {hint}")
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(compare(one.plain, other.plain), bool)


def _number_of(word: str, column: _Operand) -> int:
    """Return the number of a class or category; SchemaError if it is none: a typing error would select nothing."""
    if word not in column.words:
        near = did_you_mean(word, column.words) or f"; there is {few(map(repr, column.words))}"
        raise SchemaError(f"{column.name!r} has no class {word!r}{near}")
    return column.words.index(word)
