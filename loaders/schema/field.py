"""What a field is: the base of all kinds, the list of them, and the checks that they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from loaders.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

_Kind = TypeVar("_Kind", bound="Field")
FIELD_KINDS: dict[str, type[Field]] = {}  # filled as the modules of the kinds are imported
MAX_RECORD_NBYTES = (1 << 31) - 1  # sizes of records are stored as int32
_MOST_SHOWN = 4  # names of a list of them
_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One named part of a sample; the subclasses are the kinds there are.

    Attributes:
        codec: Name of the codec that turns a value into a record.
    """

    kind: ClassVar[str] = ""
    _optional: ClassVar[tuple[str, ...]] = ()  # options that JSON leaves out where they are None
    leaves_open: ClassVar[bool] = False  # whether None in ``meaning`` fits any value
    codec: str = "bytes"

    @property
    def dtype(self) -> str:
        """Name of the numpy type of the numbers in a value; of bytes where it has none."""
        return "uint8"

    @property
    def served_dtype(self) -> str:
        """The same in a batch: wider where models take nothing narrower."""
        return self.dtype

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Shape of one value, None for each free axis; None if the value is not an array."""
        return None

    @property
    def is_fixed(self) -> bool:
        """True if every value has the same shape, so that a batch is one tensor."""
        return self.shape is not None and None not in self.shape

    @property
    def record_nbytes(self) -> int | None:
        """Size of every record in bytes, at least 1, or None where it varies."""
        return raw_nbytes(self)

    @property
    def files(self) -> Mapping[str, str]:
        """Files beside the manifest that the field needs: xxh3-128 by name."""
        return {}

    @property
    def meaning(self) -> tuple[str, ...]:
        """Names of the options that say what values stand for."""
        return ()

    def differs_from(self, other: Field) -> str:
        """Return the options by which values of two fields stand for different things; empty if for the same."""
        if type(self) is not type(other):
            return "kind"
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.meaning)
        is_open = self.leaves_open
        return ", ".join(n for n, a, b in pairs if a != b and not (is_open and None in (a, b)))

    def __repr__(self) -> str:
        options = (f"{f.name}={_brief(getattr(self, f.name))}" for f in fields(self))
        return f"{type(self).__name__}({', '.join(options)})"

    def to_json(self) -> dict[str, Any]:
        """Return ``{"kind": ..., option: value, ...}`` of JSON types only."""
        options = {f.name: getattr(self, f.name) for f in fields(self)}
        said = {n: v for n, v in options.items() if v is not None or n not in self._optional}
        return {"kind": self.kind} | {name: _plain(value) for name, value in said.items()}


def _brief(value: Any) -> str:
    """Show a few of many names, and how many there are: a table has thousands."""
    if not isinstance(value, tuple) or not value:
        return repr(value)
    num = len(value) if len(value) <= _MOST_SHOWN else _MOST_SHOWN - 1
    shown = ", ".join(map(_brief, value[:num]))
    if num < len(value):
        return f"({shown}, ... {len(value)} in all)"
    return f"({shown},)" if num == 1 else f"({shown})"


def _plain(value: Any) -> Any:
    return [*map(_plain, value)] if isinstance(value, tuple) else value


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def field_kind(cls: type[_Kind]) -> type[_Kind]:
    """Make a class a dataclass, and one of the kinds that a schema may have."""
    made = dataclass(frozen=True, slots=True, kw_only=True, repr=False)(cls)  # ``Field`` has one
    FIELD_KINDS[made.kind] = made
    return made


def is_count(value: Any, least: int = 1, most: float = math.inf) -> bool:
    """Tell whether a value is a whole number in a range; True and 3.0 are not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_dtype(dtype: Any, allowed: str) -> str:
    """Return the name of a numpy type; SchemaError unless it is of an allowed kind, as of ``"uif"``."""
    try:
        known = None if dtype is None else np.dtype(dtype)  # None would be float64
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError, DeprecationWarning):
        # Strings are parsed as Python source; a warning is one where a program makes errors of them.
        known = None
    if known is None or known.name not in _DTYPES or known.kind not in allowed:
        names = sorted(name for name in _DTYPES if np.dtype(name).kind in allowed)
        raise SchemaError(f"dtype {dtype!r} cannot be stored here: {', '.join(names)} can")
    return str(known.name)


def raw_nbytes(field: Field) -> int | None:
    """Return the size of every record if values are stored as they are and have one shape, else None."""
    if field.codec != "raw" or not field.is_fixed:
        return None
    return _least_nbytes(field)


def _least_nbytes(field: Field) -> int:
    """Return the bytes of a value whose free axes have length 1."""
    lengths = (1 if n is None else n for n in field.shape or ())
    return math.prod(lengths) * np.dtype(field.dtype).itemsize


def check_nbytes(field: Field) -> None:
    """Raise SchemaError if no value fits a record."""
    nbytes = _least_nbytes(field)
    if nbytes > MAX_RECORD_NBYTES:
        what = f"a value of shape {field.shape} has {nbytes} bytes or more"
        raise SchemaError(f"{what}; a record has up to {MAX_RECORD_NBYTES}")
