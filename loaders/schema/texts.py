"""Values of any length that are not numbers: text, JSON, and bytes."""

from __future__ import annotations

from typing import ClassVar

from loaders.schema.field import Field, field_kind


@field_kind
class Text(Field):
    """A string, stored as UTF-8."""

    kind: ClassVar[str] = "text"
    codec: str = "text"


@field_kind
class Json(Field):
    """Any JSON value, stored as text."""

    kind: ClassVar[str] = "json"
    codec: str = "json"


@field_kind
class Bytes(Field):
    """Bytes that mean something to the user alone."""

    kind: ClassVar[str] = "bytes"
    codec: str = "bytes"
