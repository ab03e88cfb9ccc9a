"""Conditions on samples, as ``--where`` takes them: ``label == "cat" and width >= 256``.

An expression is Python's syntax of comparisons, ``and``, ``or``, ``not``, ``in``, names and
literals; anything else is refused. It is parsed and then interpreted here: nothing is passed to
``eval``.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loaders.errors import SchemaError
from loaders.schema import Array, Categories, Features, Label, MultiLabel, Text
from packdata.moments import standardized

if TYPE_CHECKING:
    from loaders.schema import Field, Schema

Values = Mapping[str, Any]
_Part = Callable[[Values], Any]
_MAX_CHARS, _MAX_DEPTH = 10_000, 100
_SEVERAL = (ast.Tuple, ast.List, ast.Set)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_LONE_EQUALS = re.compile(r"(?<![=<>!:])=(?!=)")
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def parse_condition(expression: str) -> ast.expr:
    """Return the syntax of a condition, whatever it names; SchemaError if it is none, or too long."""
    if len(expression) > _MAX_CHARS:
        what = f"the condition has {len(expression)} characters"
        raise SchemaError(f"{what}, up to {_MAX_CHARS} are read")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SchemaError(f"the condition {expression!r} {_why_not(expression, error)}") from error
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise SchemaError(f"the condition {expression!r} is nested too deeply")
    for node in ast.walk(tree):
        _check_syntax(node, expression)
    return tree


class ClassNumber(int):
    """The number of a class that also equals the class's name."""

    name: str | None

    def __new__(cls, number: int, classes: tuple[str, ...] | None) -> ClassNumber:
        """Make the number, with its name if it has one."""
        self = super().__new__(cls, number)
        names = classes or ()
        self.name = names[number] if 0 <= number < len(names) else None
        return self

    def __eq__(self, other: object) -> bool:
        return self.name == other if isinstance(other, str) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int.__hash__(self)


class Standardized(float):
    """A stored ``(value - mean) / std`` that compares with numbers as the value does.

    The other number goes the way of the value, rounding included: equal values stay equal, and
    what is stored is never turned back.
    """

    field: Features

    def __new__(cls, stored: float, field: Features) -> Standardized:
        """Make the number of a field of one column."""
        self = super().__new__(cls, stored)
        self.field = field
        return self

    def _stored(self, other: Any) -> Any:
        """Return what the column would hold for another number; anything but a number as it is."""
        scale = _scale(self.field)
        if isinstance(other, Standardized):
            if _scale(other.field) != scale:
                names = f"{self.field.columns[0]!r} and {other.field.columns[0]!r}"
                raise SchemaError(
                    f"{names} are standardized, each by its own mean and deviation: compare them "
                    "with numbers, not with each other"
                )
            return float(other)
        return _as_stored(other, *scale) if isinstance(other, int | float) else other

    def __bool__(self) -> bool:
        return bool(float(self) != self._stored(0))  # the value, where 0 is its mean


def _comparing(name: str) -> Callable[[Standardized, Any], Any]:
    compare = getattr(float, name)
    return lambda self, other: compare(self, self._stored(other))


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Standardized, _name, _comparing(_name))


def _scale(field: Features) -> tuple[float, float, str]:
    return field.mean[0], field.std[0], field.dtype


@lru_cache  # most are constants, met again in each row
def _as_stored(number: float, mean: float, std: float, dtype: str) -> float:
    try:
        number = float(number)
    except OverflowError:  # a long int
        number = math.inf if number > 0 else -math.inf
    with np.errstate(over="ignore"):
        return float(np.dtype(dtype).type(standardized(number, mean, std)))


class Where:
    """A condition on the values of a sample, by the fields that it ``names``.

    For example ``key in ("a", "b") or not label < 3``. A label compares with numbers and with class names; a
    multi-label is the tuple of its class names (``"cat" in tags``); ``x in text`` finds a part. A category of a
    table is its text, ``""`` where it is missing or unknown. A float equals the shortest number that stands for it,
    one of a standardized column the number that it was in the source. Only scalars, labels, texts and rows of one
    column have a value.

    Raises:
        SchemaError: It is not such an expression, names what is not there, or compares a number
            with a text.

    Example:
        >>> Where("0 <= x < 3", {"x": Array(dtype="int32")})({"x": 2})
        True
    """

    def __init__(self, expression: str, fields: Mapping[str, Field]) -> None:
        self.expression, self._fields = expression, fields
        self.names: set[str] = set()
        self._test = self._compile(parse_condition(expression))

    def __call__(self, values: Values) -> bool:
        """Return whether a sample with these values (of ``names``) fulfils the condition."""
        try:
            return bool(self._test(values))
        except TypeError as error:
            shown = ", ".join(f"{name} = {values[name]!r}" for name in sorted(self.names))
            raise SchemaError(
                f"the condition {self.expression!r} does not fit {shown}: {error}"
            ) from error

    def _compile(self, node: ast.expr) -> _Part:
        match node:
            case ast.BoolOp(op=op, values=values):
                tests = [self._compile(value) for value in values]
                join = all if isinstance(op, ast.And) else any
                return lambda values: join(test(values) for test in tests)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._compile(operand)
                return lambda values: not inner(values)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return lambda values: -number
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare([left, *comparators], ops)
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return lambda values: value
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                parts = [self._compile(element) for element in elements]
                return lambda values: tuple(part(values) for part in parts)
            case ast.Name(id=name):
                self._check_name(name)
                return lambda values: values[name]
        raise AssertionError(f"{ast.dump(node)} has passed parse_condition")

    def _compare(self, operands: list[ast.expr], ops: list[ast.cmpop]) -> _Part:
        for (one, other), op in zip(itertools.pairwise(operands), ops, strict=True):
            self._check_class_names(one, other)
            self._check_class_names(other, one)
            self._check_kinds(one, other)
            self._check_kinds(other, one)
            self._check_several(one, op, other)
            self._check_order(one, op, other)
            self._check_order(other, op, one)
        parts = [self._compile(operand) for operand in operands]
        tests = [_COMPARE[type(op)] for op in ops]

        def compare(values: Values) -> bool:
            found = [part(values) for part in parts]
            pairs = zip(tests, found, found[1:], strict=False)
            return all(test(one, other) for test, one, other in pairs)

        return compare

    def _check_name(self, name: str) -> None:
        field = self._fields.get(name)
        if field is None or not has_scalar(field):
            usable = ", ".join(n for n, f in self._fields.items() if has_scalar(f))
            what = "there is no field {!r}" if field is None else "{!r} has no single value"
            named = f"a condition can name {usable or 'nothing here'}"
            raise SchemaError(f"{what.format(name)}; {named}")
        self.names.add(name)

    def _check_class_names(self, name: ast.expr, literal: ast.expr) -> None:
        """Refuse names of no class: they are typing errors, and would select nothing."""
        field = self._fields.get(name.id) if isinstance(name, ast.Name) else None
        elements = literal.elts if isinstance(literal, _SEVERAL) else [literal]
        for element in elements:
            if isinstance(element, ast.Constant):
                if isinstance(field, Label | MultiLabel) and field.classes is not None:
                    _check_word("class", element.value, field.classes)
                elif isinstance(field, Categories):
                    _check_category(element.value, field)

    def _check_kinds(self, name: ast.expr, other: ast.expr) -> None:
        """Refuse to compare a number with a text: the two are never equal."""
        kind = self._kind(name) if isinstance(name, ast.Name) else None
        for element in other.elts if isinstance(other, _SEVERAL) else [other]:
            if kind is not None and self._kind(element) not in (None, kind):
                what = f"{ast.unparse(name)!r} is a {kind}, {ast.unparse(element)} is none"
                what += self._other_kind(name, element)
                raise SchemaError(f"the condition {self.expression!r} does not fit: {what}")

    def _other_kind(self, name: ast.expr, element: ast.expr) -> str:
        """Say how to write a number as a text, or a text as a number."""
        match element:
            case ast.Constant(value=str() as text) if _NUMBER.fullmatch(text):
                return f": write {text}"
            case ast.Constant(value=int() | float() as number):
                return f": write {str(number)!r}"
        is_label = isinstance(self._fields.get(ast.unparse(name)), Label)
        return ", and its classes have no names" if is_label else ""

    def _kind(self, node: ast.expr) -> Literal["number", "text"] | None:
        """Return what kind of value it has; None for several, for categories and for what is either."""
        if not isinstance(node, ast.Name):
            kind = _literal_kind(node)
            return None if kind == "several" else kind
        field = self._fields.get(node.id)
        if isinstance(field, Text):
            return "text"
        is_number = isinstance(field, Array | Features)
        is_number |= isinstance(field, Label) and field.classes is None
        return "number" if is_number else None

    def _check_several(self, one: ast.expr, op: ast.cmpop, other: ast.expr) -> None:
        """Refuse to compare a multi-label with one class, or to look for it among classes: that is never true."""
        is_looked_in = isinstance(op, ast.In | ast.NotIn) and self._is_several(other)
        if is_looked_in and not isinstance(one, ast.Constant | ast.Name):
            is_right = False
        elif is_looked_in:
            is_right = not self._is_several(one) and isinstance(getattr(one, "value", ""), str)
        elif isinstance(op, ast.In | ast.NotIn):
            listed = other.elts if isinstance(other, _SEVERAL) else [other]
            is_right = not self._is_several(one) or all(isinstance(e, _SEVERAL) for e in listed)
        else:
            kinds = {self._is_several(each) or isinstance(each, _SEVERAL) for each in (one, other)}
            is_right = len(kinds) == 1 or not (self._is_several(one) or self._is_several(other))
        if not is_right:
            named = one if self._is_several(one) else other
            classes = self._fields[ast.unparse(named)].classes  # type: ignore[attr-defined]
            what = f"{ast.unparse(named)!r} is a multi-label, all classes of a sample"
            raise SchemaError(
                f"{what}: ask whether it has one, as in {classes[0]!r} in {ast.unparse(named)}"
            )

    def _check_order(self, name: ast.expr, op: ast.cmpop, other: ast.expr) -> None:
        """Refuse to ask which class comes first by its name."""
        field = self._fields.get(name.id) if isinstance(name, ast.Name) else None
        is_order = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if isinstance(field, Label) and is_order and self._kind(other) == "text":
            what = f"names of classes, such as {ast.unparse(other)}, have no order"
            hint = "compare them by ==, != and in, or the classes' numbers by < and >"
            raise SchemaError(f"the condition {self.expression!r} does not fit: {what}; {hint}")

    def _is_several(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and isinstance(self._fields.get(node.id), MultiLabel)


def _why_not(expression: str, error: Exception) -> str:
    """Say why a condition is none; Python's place, line 1 of no file, does not help."""
    if _LONE_EQUALS.search(_QUOTED.sub("", expression)):
        return "has a single '=': write '==' to compare"
    return f"cannot be read ({error.msg if isinstance(error, SyntaxError) else error})"


def _check_syntax(node: ast.AST, expression: str) -> None:
    """Refuse what is wrong whatever fields there are."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for one, op, other in zip(operands, node.ops, node.comparators, strict=False):
            if type(op) not in _COMPARE:
                raise SchemaError(f"the condition {expression!r} uses 'is': take '=='")
            if _never_fits(one, op, other):
                what = f"{ast.unparse(ast.Compare(one, [op], [other]))!r}: these two cannot be compared"
                raise SchemaError(f"the condition may not contain {what}")
    if isinstance(node, ast.expr) and not _is_known(node):
        raise SchemaError(
            f"the condition may not contain {ast.unparse(node)!r}: it takes comparisons, and, or, "
            "not, in, names and literals"
        )


def _is_known(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp() | ast.Compare() | ast.Name() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case ast.Constant(value=bool() | int() | float() | str()):
            return True
    return isinstance(node, _SEVERAL)


def _never_fits(one: ast.expr, op: ast.cmpop, other: ast.expr) -> bool:
    """Tell whether two literals, or a literal behind ``in``, fail with a TypeError."""
    kinds = _literal_kind(one), _literal_kind(other)
    if isinstance(op, ast.In | ast.NotIn):
        return kinds[1] == "number" or (kinds[1] == "text" and kinds[0] in ("number", "several"))
    is_order = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    return is_order and None not in kinds and kinds[0] != kinds[1]


def _literal_kind(node: ast.expr) -> Literal["number", "text", "several"] | None:
    match node:
        case ast.Constant(value=str()):
            return "text"
        case ast.Constant(value=int() | float()) | ast.UnaryOp(op=ast.USub()):
            return "number"
    return "several" if isinstance(node, _SEVERAL) else None


def _check_word(what: str, value: Any, known: Sequence[str]) -> None:
    if isinstance(value, str) and value not in known:
        near = difflib.get_close_matches(value, known, 3) or list(known[:5])
        raise SchemaError(f"there is no {what} {value!r}; there is {', '.join(map(repr, near))}")


def _check_category(value: Any, field: Categories) -> None:
    if not isinstance(value, str):  # it would equal none of them
        raise SchemaError(f"categories of {field.columns[0]!r} are texts: write {str(value)!r}")
    if value:  # none where it is missing
        _check_word("category", value, field.vocabularies[0])


def column_fields(schema: Schema) -> dict[str, Field]:
    """Return each column of tables as a field of its own, with one column."""
    found: dict[str, Field] = {}
    for kind in schema.fields.values():
        if not isinstance(kind, Features | Categories):
            continue
        for i, name in enumerate(kind.columns):
            if name not in schema.fields:
                found.setdefault(name, _column_field(kind, i))
    return found


def _column_field(kind: Features | Categories, i: int) -> Field:
    if isinstance(kind, Features):
        return Features(
            dtype=kind.dtype,
            columns=kind.columns[i : i + 1],
            mean=kind.mean[i : i + 1],
            std=kind.std[i : i + 1],
            standardized=kind.standardized,
        )
    words = kind.vocabularies[i : i + 1]
    return Categories(dtype=kind.dtype, columns=kind.columns[i : i + 1], vocabularies=words)


def has_scalar(field: Field) -> bool:
    """Return whether a condition can name this field."""
    if isinstance(field, Features | Categories):
        return len(field.columns) == 1
    is_number = isinstance(field, Array) and field.dims == ()
    return is_number or isinstance(field, Label | MultiLabel | Text)


def scalar(field: Field, value: Any) -> Any:
    """Return a decoded value as conditions see it."""
    if isinstance(field, Label):
        return ClassNumber(int(value), field.classes)
    if isinstance(field, MultiLabel):
        return tuple(name for name, on in zip(field.classes, value, strict=True) if on)
    if isinstance(field, Categories):
        number, words = int(value[0]), field.vocabularies[0]
        return words[number - 1] if 0 < number <= len(words) else ""
    if isinstance(field, Features | Array):
        number = value.reshape(-1)[0]
        if isinstance(field, Features) and field.standardized:
            return Standardized(number.item(), field)
        # 0.3 as a float32 is 0.30000001: it shall equal 0.3
        return float(str(number)) if number.dtype.kind == "f" else number.item()
    return value
