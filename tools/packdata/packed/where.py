"""Conditions on samples, as ``--where`` takes them: ``label == "cat" and width >= 256``.

The syntax is Python's, of comparisons, ``and``, ``or``, ``not``, ``in``, names and literals; all else is refused, and
nothing is passed to ``eval``. Each name is read once, as a whole column, and compared by numpy.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from loaders.checks import did_you_mean
from loaders.errors import SchemaError
from loaders.schema import Array, Categories, Features, Label, MultiLabel, Text
from loaders.schema.tables import column_names, find_column
from packdata.moments import standardized

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.data.view import View
    from loaders.schema import Field

_SEVERAL = (ast.Tuple, ast.List, ast.Set)
# Texts in quotes, which stay as they are, or a name in backticks.
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`([^`]+)`")
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CONTAINS = np.frompyfunc(lambda text, part: part in text, 2, 1)


def matching(view: View, condition: str) -> npt.NDArray[np.bool_]:
    """Return which samples of a view meet a condition, ``(N,)``.

    A condition names fields of one value and columns of tables, those that are no plain word in backticks:
    ```income, EUR` > 3``. A label compares with numbers and with class names; ``"cat" in tags`` asks whether a
    multi-label has a class, ``"x" in text`` finds a part. A category is its text, ``""`` where it is missing or
    unknown. A number of a standardized column compares as it was in the source; NaN compares as in Python.

    Raises:
        SchemaError: It is not such an expression, names what is not there, or compares what is never equal.
    """
    names: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        word = f"_{len(names)}"
        while word in condition:
            word += "_"
        names[word] = match[1]
        return word

    try:
        tree = ast.parse(_QUOTED.sub(placeholder, condition).strip(), mode="eval").body
        found = _Condition(view, names).mask(tree)
    except SchemaError as error:
        raise SchemaError(f"the condition {condition!r} does not fit: {error}") from error
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise SchemaError(f"the condition {condition!r} cannot be read: {why}") from error
    return np.array(np.broadcast_to(found, len(view)), bool)


@dataclass(frozen=True, slots=True)
class _Operand:
    """One side of a comparison: a literal, or a column of N values."""

    said: str  # as the condition has it
    kind: Literal["number", "text", "multi-label"]
    values: Any
    words: tuple[str, ...] | None = None  # the classes or categories of a column
    # Mean, deviation and dtype of a standardized column.
    scale: tuple[float, float, str] | None = None


@dataclass(frozen=True)
class _Condition:
    view: View
    names: dict[str, str]  # by placeholder

    def mask(self, node: ast.expr) -> Any:
        """Return where a condition is true: ``(N,)``, or one flag if it names nothing."""
        match node:
            case ast.BoolOp(op=op, values=tests):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return functools.reduce(join, map(self.mask, tests))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return np.logical_not(self.mask(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = zip(itertools.pairwise([left, *others]), ops, strict=True)
                return functools.reduce(
                    operator.and_, (self._compare(a, op, b) for (a, b), op in pairs)
                )
        one = self._operand(node)
        return _equal(one, ast.NotEq(), _Operand("", one.kind, "" if one.kind == "text" else 0))

    def _compare(self, one: ast.expr, op: ast.cmpop, other: ast.expr) -> Any:
        if isinstance(op, ast.In | ast.NotIn):
            found = self._is_in(one, other)
            return np.logical_not(found) if isinstance(op, ast.NotIn) else found
        return _equal(self._operand(one), op, self._operand(other))

    def _is_in(self, one: ast.expr, other: ast.expr) -> Any:
        left = self._operand(one)
        if isinstance(other, _SEVERAL):
            found = (_equal(left, ast.Eq(), self._operand(each)) for each in other.elts)
            return functools.reduce(operator.or_, found, np.False_)
        right = self._operand(other)
        if right.kind == "multi-label" and isinstance(left.values, str):
            return right.values[:, _number_of(left.values, right)] != 0
        if right.kind != "text" or left.kind != "text":
            raise SchemaError(f"{left.said} in {right.said} cannot be compared")
        return _CONTAINS(right.values, left.values).astype(bool)

    def _operand(self, node: ast.expr) -> _Operand:
        said = ast.unparse(node)
        match node:
            case ast.Name(id=name):
                return self._column(self.names.get(name, name))
            case ast.Constant(value=str() as text):
                return _Operand(said, "text", text)
            case ast.Constant(value=int() | float() as number):
                return _Operand(said, "number", number)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return _Operand(said, "number", -number)
        what = "it takes comparisons, and, or, not, in, names and literals"
        raise SchemaError(f"unexpected {said!r}; {what}")

    def _column(self, name: str) -> _Operand:
        """Read what a condition names."""
        view, column = self.view, 0
        field = view.schema.fields.get(name)
        if (place := find_column(view.schema, name)) is not None:
            field, column = view.schema.fields[place[0]], place[1]
        if field is None or not _has_one_value(field, place is not None):
            fields = [n for n, f in view.schema.fields.items() if _has_one_value(f, False)]
            known = [*dict.fromkeys([*fields, *column_names(view.schema)])]
            what = f"no field {name!r} of one value{did_you_mean(name, known)}"
            raise SchemaError(f"{what}; there is {', '.join(known) or 'none'}")
        if isinstance(field, Text):
            records = enumerate(view.all_records(name))
            texts = [view.decode(i, name, record[name]) for i, record in records]
            return _Operand(name, "text", _as_objects(texts))
        values = view.column(name)
        if isinstance(field, MultiLabel):
            return _Operand(name, "multi-label", values, field.classes)
        values = values.reshape(-1)
        if isinstance(field, Categories):
            words = field.vocabularies[column]
            numbers = np.where(values <= len(words), values, 0)
            return _Operand(name, "text", _as_objects(["", *words])[numbers], words)
        if isinstance(field, Features) and field.standardized:
            scale = (field.mean[column], field.std[column], field.dtype)
            return _Operand(name, "number", values, scale=scale)
        return _Operand(
            name, "number", values, field.classes if isinstance(field, Label) else None
        )


def _equal(one: _Operand, op: ast.cmpop, other: _Operand) -> Any:
    """Compare two operands, each as the other is stored."""
    for each in (one, other):
        if each.kind == "multi-label":
            raise SchemaError(
                f"{each.said} is a multi-label: use {(each.words or ('',))[0]!r} in it"
            )
    if type(op) not in _COMPARE:
        raise SchemaError("'is' compares nothing that is stored: use '=='")
    left, right = _fitted(one, op, other), _fitted(other, op, one)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(_COMPARE[type(op)](left, right), bool)


def _fitted(one: _Operand, op: ast.cmpop, other: _Operand) -> Any:
    """Return the values of an operand as they are stored in the column that they are compared with."""
    if isinstance(one.values, str) and other.words is not None:
        if other.kind == "text":
            if one.values:  # "" is what is missing
                _number_of(one.values, other)
            return one.values
        if isinstance(op, _ORDER):
            raise SchemaError(f"names of classes, such as {one.said}, have no order: use numbers")
        return _number_of(one.values, other)
    is_class = isinstance(other.values, str) and one.words is not None
    if one.kind != other.kind and not is_class:
        numbers = (each for each in (one.values, other.values) if isinstance(each, int | float))
        hint = "".join(f": use {str(number)!r}" for number in numbers)
        raise SchemaError(f"{one.said} is a {one.kind}, {other.said} is a {other.kind}{hint}")
    if other.scale is None or one.scale == other.scale:
        return one.values
    if one.scale is not None:
        raise SchemaError(f"{one.said} and {other.said} are standardized, each by its own scale")
    mean, std, dtype = other.scale
    with np.errstate(over="ignore", invalid="ignore"):
        return standardized(np.asarray(one.values, np.float64), mean, std).astype(dtype)


def _has_one_value(field: Field, is_column: bool) -> bool:
    if isinstance(field, Features | Categories):
        return is_column or len(field.columns) == 1
    is_number = isinstance(field, Array) and field.dims == ()
    return is_number or isinstance(field, Label | MultiLabel | Text)


def _number_of(word: str, operand: _Operand) -> int:
    """Return the number of a class or category; SchemaError if it is none: a typing error would select nothing."""
    words = operand.words or ()
    if word in words:
        return words.index(word)
    near = did_you_mean(word, words) or f"; there is {', '.join(map(repr, words[:5]))}"
    raise SchemaError(f"{operand.said!r} has no class {word!r}{near}")


def _as_objects(texts: list[str]) -> npt.NDArray[Any]:
    found = np.empty(len(texts), object)
    found[:] = texts
    return found
