"""What a sample is made of: named, typed fields, and their JSON form.

A field says what a sample holds (``Image``, ``Label``), which codec turns it into a record of
bytes, and whether every record has the same size. Nothing here knows where the bytes lie.
"""

from __future__ import annotations

import keyword
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Samples and batches are named tuples; ``batch.valid`` tells real rows from padding.
_TAKEN = frozenset({"count", "index", "valid"})
VIRTUAL_FIELDS = frozenset({"sample_id"})  # computed when asked for, never stored
FIELD_KINDS: dict[str, type[Field]] = {}
MAX_RECORD_NBYTES = (1 << 31) - 1  # sizes of records are stored as int32
_MAX_AXES = 32  # of a numpy array, before numpy 2
_MAX_NAME_BYTES = 200  # an LMDB key has 511: the name, and a row or a suffix
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
    codec: str = "bytes"

    @property
    def dtype(self) -> str:
        """Name of the numpy type of the numbers in a value; of bytes where it has none."""
        return "uint8"

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
        if self.codec != "raw" or self.shape is None or not self.is_fixed:
            return None
        return _known_nbytes(self.shape, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return ``{"kind": ..., option: value, ...}`` of JSON types only."""
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _register(cls: type[Field]) -> type[Field]:
    FIELD_KINDS[cls.kind] = cls
    return cls


def _is_count(value: Any) -> bool:
    """Tell whether a value is a whole number above 0; True and 3.0 are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    if not isinstance(size, tuple | list) or len(size) != 2 or not all(map(_is_count, size)):
        raise SchemaError(f"size must be (height, width) in pixels, got {size!r}")
    return size[0], size[1]


def _check_dtype(dtype: Any, allowed: str) -> str:
    try:
        known = None if dtype is None else np.dtype(dtype)  # None would be float64
    except (TypeError, ValueError, SyntaxError):  # numpy reads some strings as Python source
        known = None
    if known is None or known.name not in _DTYPES or known.kind not in allowed:
        names = sorted(name for name in _DTYPES if np.dtype(name).kind in allowed)
        raise SchemaError(f"dtype {dtype!r} cannot be stored here: {', '.join(names)} can")
    return str(known.name)


def _known_nbytes(shape: tuple[int | None, ...], dtype: str) -> int:
    """Return the bytes of a value whose free axes have length 1."""
    return math.prod(1 if n is None else n for n in shape) * np.dtype(dtype).itemsize


def _check_nbytes(field: Field) -> None:
    nbytes = _known_nbytes(field.shape or (), field.dtype)
    if nbytes > MAX_RECORD_NBYTES:
        what = f"a value of shape {field.shape} has {nbytes} bytes or more"
        raise SchemaError(f"{what}; a record has up to {MAX_RECORD_NBYTES}")


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Field):
    """A picture, served as ``(channels, H, W)``.

    Attributes:
        channels: 1 (gray) or 3 (RGB); with ``codec="png"`` or ``"webp"`` also 4 (RGBA), with
            ``"raw"`` up to 64.
        size: (height, width) in pixels shared by all images, or None where it varies.
        dtype: uint8; with ``codec="raw"`` any unsigned type, with ``"png"`` also uint16.
        codec: ``jpeg``, ``png``, ``webp``: an encoded file (of any of the three); ``raw``:
            H x W x C pixels.
    """

    kind: ClassVar[str] = "image"
    channels: int = 3
    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    codec: str = "jpeg"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _check_size(self.size))
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "u"))
        if not _is_count(self.channels) or self.channels > 64:
            raise SchemaError(f"channels must be in [1, 64], got {self.channels!r}")
        _check_nbytes(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Channels, height and width."""
        return (self.channels, *(self.size or (None, None)))


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Mask(Field):
    """One integer per pixel, served as ``(H, W)``; only ever resampled by nearest neighbour.

    Attributes:
        size: (height, width) in pixels shared by all masks, or None where it varies.
        dtype: uint8 or uint16; with ``codec="raw"`` any integer type.
        codec: ``png`` or ``raw``.
    """

    kind: ClassVar[str] = "mask"
    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    codec: str = "png"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _check_size(self.size))
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "ui"))
        _check_nbytes(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Height and width."""
        return self.size or (None, None)


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Array(Field):
    """Numbers of one dtype and shape.

    Attributes:
        dtype: bool, or any integer or floating type of 8 to 64 bits.
        dims: The shape: lengths of at least 1, or None for an axis that varies from sample to
            sample (and may then be 0).
        codec: ``raw``.
    """

    kind: ClassVar[str] = "array"
    dtype: str = "float32"
    dims: tuple[int | None, ...] = ()
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "uifb"))
        object.__setattr__(self, "dims", _check_dims(self.dims))
        _check_nbytes(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The dims."""
        return self.dims


def _check_dims(dims: Any) -> tuple[int | None, ...]:
    # An axis of length 0 would make records of no bytes, which no format can tell apart.
    if not isinstance(dims, tuple | list) or not all(n is None or _is_count(n) for n in dims):
        raise SchemaError(f"dims must be lengths of at least 1, or None, got {dims!r}")
    if len(dims) > _MAX_AXES:
        raise SchemaError(f"an array has up to {_MAX_AXES} axes, got {len(dims)}")
    return tuple(dims)


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Field):
    """The number of a class, served as int64.

    Attributes:
        classes: Names by number, at least one, or None if only numbers are known.
    """

    kind: ClassVar[str] = "label"
    classes: tuple[str, ...] | None = None
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _check_classes(self.classes))

    @property
    def dtype(self) -> str:
        """Always int64."""
        return "int64"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """One number."""
        return ()


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLabel(Field):
    """Any number of classes at once, served as 0 or 1 for each: uint8 ``(num_classes,)``.

    Attributes:
        classes: Names by number, at least one.
    """

    kind: ClassVar[str] = "multilabel"
    classes: tuple[str, ...] = ()
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _check_classes(self.classes) or ())
        if not self.classes:
            raise SchemaError("a multi-label field needs its classes")

    @property
    def shape(self) -> tuple[int | None, ...]:
        """One number for each class."""
        return (len(self.classes),)


def _check_classes(classes: Any) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise SchemaError(f"classes must be a list of names, got {classes!r}")
    names = tuple(classes)
    if not names:
        raise SchemaError("classes must have at least one name")
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"class names must be strings, got {name!r}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SchemaError(f"class names must differ, got {twice[:5]} more than once")
    return names


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes(Field):
    """Boxes in pixels of the stored image, served as float32 ``(n, 4)`` of x1, y1, x2, y2."""

    kind: ClassVar[str] = "boxes"
    codec: str = "raw"

    @property
    def dtype(self) -> str:
        """Always float32."""
        return "float32"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Any number of boxes, four numbers each."""
        return (None, 4)


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Field):
    """A string, stored as UTF-8."""

    kind: ClassVar[str] = "text"
    codec: str = "text"


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Json(Field):
    """Any JSON value, stored as text."""

    kind: ClassVar[str] = "json"
    codec: str = "json"


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes(Field):
    """Bytes that mean something to the user alone."""

    kind: ClassVar[str] = "bytes"
    codec: str = "bytes"


def field_from_json(data: Mapping[str, Any]) -> Field:
    """Build the field that ``Field.to_json`` described; SchemaError if it is none."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (dict(self.fields), self.defaults)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise SchemaError if a name is not a field, or stands twice."""
        known = [*self.fields, *sorted(VIRTUAL_FIELDS)]
        for name in names:
            if name not in known:
                raise SchemaError(f"there is no field {name!r}; there are {known}")
        if len(set(names)) != len(names):
            raise SchemaError(f"each field can be asked for once, got {list(names)}")

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON types."""
        described = {name: field.to_json() for name, field in self.fields.items()}
        return {"fields": described, "defaults": list(self.defaults)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Build the schema that ``to_json`` described; SchemaError if it is none."""
        known = isinstance(data, Mapping)
        described = data.get("fields") if known else None
        defaults = data.get("defaults") if known else None
        if not isinstance(described, Mapping) or not isinstance(defaults, list):
            raise SchemaError("a schema is {'fields': {name: field}, 'defaults': [name]}")
        if not all(isinstance(field, Mapping) for field in described.values()):
            raise SchemaError("each field of a schema is {'kind': ..., ...}")
        fields = {name: field_from_json(field) for name, field in described.items()}
        return cls(fields, tuple(defaults))


def _check_field(name: str, field: Any) -> None:
    if type(field) is not FIELD_KINDS.get(getattr(field, "kind", None) or ""):
        raise SchemaError(f"field {name!r} is {field!r}, not one of {sorted(FIELD_KINDS)}")
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
