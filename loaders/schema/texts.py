"""Values of any length that are not numbers: text, JSON, and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from loaders.schema.field import Field, register


@register
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Text(Field):
    """A string, stored as UTF-8."""

    kind: ClassVar[str] = "text"
    codec: str = "text"


@register
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Json(Field):
    """Any JSON value, stored as text."""

    kind: ClassVar[str] = "json"
    codec: str = "json"


@register
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bytes(Field):
    """Bytes that mean something to the user alone."""

    kind: ClassVar[str] = "bytes"
    codec: str = "bytes"
