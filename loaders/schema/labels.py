"""The classes of a sample: one of them, or any number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import Any, ClassVar

from loaders.errors import SchemaError
from loaders.schema.field import Field, field_kind


@field_kind
class Label(Field):
    """The number of a class, served as int64.

    Attributes:
        classes: Names by number, at least one, or None if only numbers are known.
    """

    kind: ClassVar[str] = "label"
    dtype: ClassVar[str] = "int64"
    shape: ClassVar[tuple[int | None, ...]] = ()
    meaning: ClassVar[tuple[str, ...]] = ("classes",)
    classes: tuple[str, ...] | None = field(default=None, kw_only=False)
    codec: str = "raw"

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes))


@field_kind
class MultiLabel(Field):
    """Any number of classes at once, served as 0 or 1 for each: uint8 ``(num_classes,)``.

    Attributes:
        classes: Names by number, at least one.
    """

    kind: ClassVar[str] = "multilabel"
    meaning: ClassVar[tuple[str, ...]] = ("classes",)
    classes: tuple[str, ...] = field(default=(), kw_only=False)
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", check_classes(self.classes))

    @property
    def shape(self) -> tuple[int | None, ...]:
        """One number for each class."""
        return (len(self.classes),)


def check_classes(classes: Any) -> tuple[str, ...]:
    """Return names that differ, at least one; SchemaError for anything else."""
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise SchemaError(f"classes must be a list of names, got {classes!r}")
    names = tuple(classes)
    if not names:
        raise SchemaError("classes must have at least one name")
    if set(map(type, names)) != {str}:  # a vocabulary may have a million of them
        raise SchemaError(f"class names must be strings, got {names[:5]}")
    if len(set(names)) < len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise SchemaError(f"class names must differ, got {twice[:5]} more than once")
    return names
