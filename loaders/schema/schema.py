"""The fields of a sample together, under names that samples can have as attributes."""

from __future__ import annotations

import keyword
import unicodedata
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loaders.checks import did_you_mean, shown
from loaders.errors import SchemaError
from loaders.schema.field import FIELD_KINDS, Field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Samples and batches are named tuples; ``batch.valid`` tells real rows from padding.
_TAKEN = frozenset({"count", "index", "valid"})
VIRTUAL_FIELDS = frozenset({"sample_id"})  # computed when asked for, never stored
_MAX_NAME_BYTES = 200  # an LMDB key has 511: the name, and a row or a suffix


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of every sample of a dataset, in order.

    Attributes:
        fields: Field by name.
        defaults: The names that ``dataset[i]`` holds when nothing else is asked for; all if empty.
    """

    fields: Mapping[str, Field]
    defaults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))
        object.__setattr__(self, "defaults", tuple(self.defaults) or tuple(self.fields))
        if not self.fields:
            raise SchemaError("a schema needs at least one field")
        for name, field in self.fields.items():
            check_field_name(name)
            _check_field(name, field)
        self.check_names(self.defaults)

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{name}={field!r}' for name, field in self.fields.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (dict(self.fields), self.defaults)

    @property
    def files(self) -> dict[str, str]:
        """Files beside the manifest that the fields need: xxh3-128 by name."""
        return {k: v for field in self.fields.values() for k, v in field.files.items()}

    def check_names(self, names: Sequence[str], also: Sequence[str] = ()) -> None:
        """Raise SchemaError if a name is not a field (or one of ``also``), or stands twice."""
        known = [*self.fields, *sorted(VIRTUAL_FIELDS), *also]
        for name in names:
            if name not in known:
                near = did_you_mean(name, known)
                raise SchemaError(f"there is no field {name!r}; there are {known}{near}")
        if len(set(names)) != len(names):
            raise SchemaError(f"each field can be asked for once, got {list(names)}")

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON types."""
        described = {name: field.to_json() for name, field in self.fields.items()}
        return {"fields": described, "defaults": list(self.defaults)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Build the schema that ``to_json`` described; SchemaError if it is none."""
        try:
            fields = {name: field_from_json(field) for name, field in data["fields"].items()}
            return cls(fields, tuple(data["defaults"]))
        except (KeyError, TypeError, AttributeError) as error:
            what = "a schema is {'fields': {name: field}, 'defaults': [name]}"
            raise SchemaError(f"{what}, got {shown(data)}") from error


def field_from_json(data: Mapping[str, Any]) -> Field:
    """Build a field.

    Args:
        data: What ``Field.to_json`` returned: ``kind`` and the field's arguments.

    Raises:
        SchemaError: It is of no kind that is known, or has other arguments.
    """
    kind = data.get("kind")
    cls = FIELD_KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise SchemaError(f"field kind {kind!r} is unknown; known: {sorted(FIELD_KINDS)}")
    options: dict[str, Any] = {name: v for name, v in data.items() if name != "kind"}
    try:
        return cls(**options)
    except TypeError as error:
        what = f"a field of kind {cls.kind!r} cannot be made from {options!r}: {error}"
        raise SchemaError(what) from error


def _check_field(name: str, field: Any) -> None:
    if type(field) is not FIELD_KINDS.get(getattr(field, "kind", None) or ""):
        kinds = ", ".join(sorted(kind.__name__ for kind in FIELD_KINDS.values()))
        what = f"one of {kinds}, such as Array('float32')"
        raise SchemaError(f"field {name!r} must be {what}, got {shown(field)}")
    if not isinstance(field.codec, str):
        raise SchemaError(f"field {name!r} has codec {field.codec!r}, which is not a name")


def check_field_name(name: object) -> None:
    """Raise SchemaError unless samples can have an attribute of this name."""
    if (
        not isinstance(name, str)
        or not name.isidentifier()
        or keyword.iskeyword(name)
        or name.startswith("_")
        or "__" in name
    ):
        what = "must be a Python identifier without '__' or a leading '_'"
        raise SchemaError(f"field name {name!r} {what}")
    plain = unicodedata.normalize("NFKC", name)  # how Python reads it in sample.name
    if plain != name:
        raise SchemaError(f"field name {name!r} must be spelled {plain!r}")
    if name in _TAKEN or name in VIRTUAL_FIELDS:
        raise SchemaError(f"field name {name!r} is taken")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise SchemaError(f"field name {name[:20]!r}... has more than {_MAX_NAME_BYTES} bytes")
