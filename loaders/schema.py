"""What a sample is made of: named, typed fields, and their JSON form.

A field says what a sample holds (``Image``, ``Label``), which codec turns it into a record of
bytes, and whether every record has the same size. Nothing here knows where the bytes lie.
"""

from __future__ import annotations

import keyword
import math
import re
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
# Beside the manifest: a plain name, that no shard and no manifest can have.
_SIDE_FILE = re.compile(r"tokenizer-[A-Za-z0-9_-]{1,100}\.json")
_DIGEST = re.compile(r"[0-9a-f]{32}")
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
        if self.codec != "raw" or self.shape is None or not self.is_fixed:
            return None
        return _known_nbytes(self.shape, self.dtype)

    @property
    def files(self) -> Mapping[str, str]:
        """Files beside the manifest that the field needs: xxh3-128 by name."""
        return {}

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
            H x W x C pixels; ``yuv420``: planes; ``dct``: coefficients. The last two are for
            images of one size.
        quality: Of ``dct``: 1 to 100, as in JPEG; 90 if not given.
        subsampling: Of ``dct``: ``"420"`` (chroma at half the size), the default, or ``"444"``.
        compression: Of ``dct``: ``"lz4"``, the default, or ``"zstd"``.
    """

    kind: ClassVar[str] = "image"
    channels: int = 3
    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    codec: str = "jpeg"
    quality: int | None = None
    subsampling: str | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _check_size(self.size))
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "u"))
        if not _is_count(self.channels) or self.channels > 64:
            raise SchemaError(f"channels must be in [1, 64], got {self.channels!r}")
        for name, (default, allowed) in _DCT_OPTIONS.items():
            value = getattr(self, name)
            if self.codec == "dct" and value is None:
                object.__setattr__(self, name, default)
            elif value is not None and self.codec != "dct":
                raise SchemaError(f"{name} belongs to fields of codec 'dct', not {self.codec!r}")
            elif value is not None and (isinstance(value, bool) or value not in allowed):
                raise SchemaError(f"{name} must be {_choices(allowed)}, got {value!r}")
        _check_nbytes(self)

    def to_json(self) -> dict[str, Any]:
        """Return the field as JSON types; the options of ``dct`` only where they are set."""
        described = Field.to_json(self)
        unset = [name for name in _DCT_OPTIONS if described[name] is None]
        return {name: value for name, value in described.items() if name not in unset}

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Channels, height and width."""
        return (self.channels, *(self.size or (None, None)))

    @property
    def record_nbytes(self) -> int | None:
        """Size of every record in bytes, or None where it varies."""
        if self.codec == "yuv420" and self.size is not None:
            height, width = self.size
            return height * width + 2 * -(-height // 2) * -(-width // 2)
        return Field.record_nbytes.fget(self)  # type: ignore[attr-defined, no-any-return]


# Default and allowed values of what a field of codec "dct" says.
_DCT_OPTIONS: dict[str, tuple[Any, Sequence[Any]]] = {
    "quality": (90, range(1, 101)),
    "subsampling": ("420", ("420", "444")),
    "compression": ("lz4", ("lz4", "zstd")),
}


def _choices(allowed: Sequence[Any]) -> str:
    if isinstance(allowed, range):
        return f"in [{allowed.start}, {allowed.stop - 1}]"
    return " or ".join(map(repr, allowed))


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
        spatial: How many of the last axes crops and flips move: 3 for a volume of (C, D, H, W) or
            a mask of (D, H, W), 0 for none. None leaves it to the dataset: three, of arrays of
            three axes and more, where no other field is a picture or says what is spatial.
    """

    kind: ClassVar[str] = "array"
    dtype: str = "float32"
    dims: tuple[int | None, ...] = ()
    codec: str = "raw"
    spatial: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "uifb"))
        object.__setattr__(self, "dims", _check_dims(self.dims))
        _check_spatial(self.spatial, len(self.dims))
        _check_nbytes(self)

    def to_json(self) -> dict[str, Any]:
        """Return the field as JSON types; without ``spatial`` where it is not set."""
        described = Field.to_json(self)
        if self.spatial is None:
            del described["spatial"]
        return described

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The dims."""
        return self.dims


def _check_spatial(spatial: Any, num_axes: int) -> None:
    if spatial is not None and (type(spatial) is not int or spatial < 0):
        raise SchemaError(f"spatial must be a number of axes, or None, got {spatial!r}")
    if spatial is not None and spatial > num_axes:
        raise SchemaError(f"spatial must be in [0, {num_axes}], the number of axes, got {spatial}")


def _check_dims(dims: Any) -> tuple[int | None, ...]:
    # An axis of length 0 would make records of no bytes, which no format can tell apart.
    if not isinstance(dims, tuple | list) or not all(n is None or _is_count(n) for n in dims):
        raise SchemaError(f"dims must be lengths of at least 1, or None, got {dims!r}")
    if len(dims) > _MAX_AXES:
        raise SchemaError(f"an array has up to {_MAX_AXES} axes, got {len(dims)}")
    return tuple(dims)


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens(Field):
    """One row of a stream of token ids: where it ends early, another field counts those that are valid.

    Attributes:
        dtype: uint8, uint16 or uint32.
        row_tokens: Tokens of a row, at least 2.
        vocab_size: Ids are below it; None if only the dtype limits them.
        eod: The id that ends a document, or None.
        tokenizer: ``"bytes"``, the name of a ``tokenizer.json`` beside the manifest, or None.
        tokenizer_xxh3_128: Hash of that file, hexadecimal.
        codec: ``raw``.
    """

    kind: ClassVar[str] = "tokens"
    dtype: str = "uint16"
    row_tokens: int = 8192
    vocab_size: int | None = None
    eod: int | None = None
    tokenizer: str | None = None
    tokenizer_xxh3_128: str | None = None
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "u"))
        if not _is_count(self.row_tokens) or self.row_tokens < 2:
            raise SchemaError(f"row_tokens must be at least 2, got {self.row_tokens!r}")
        most = int(np.iinfo(self.dtype).max) + 1
        if self.vocab_size is not None and not (
            _is_count(self.vocab_size) and self.vocab_size <= most
        ):
            what = f"vocab_size must be in [1, {most}] for {self.dtype}"
            raise SchemaError(f"{what}, got {self.vocab_size!r}")
        if self.eod is not None and not (
            type(self.eod) is int and 0 <= self.eod < (self.vocab_size or most)
        ):
            raise SchemaError(
                f"eod must be an id below {self.vocab_size or most}, got {self.eod!r}"
            )
        _check_side_file(self.tokenizer, self.tokenizer_xxh3_128)
        _check_nbytes(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The tokens of a row."""
        return (self.row_tokens,)

    @property
    def files(self) -> Mapping[str, str]:
        """Name and xxh3-128 of the file that the tokenizer is kept in, if there is one."""
        if self.tokenizer is None or self.tokenizer_xxh3_128 is None:
            return {}
        return {self.tokenizer: self.tokenizer_xxh3_128}


def _check_side_file(name: Any, digest: Any) -> None:
    if name in (None, "bytes") and digest is None:
        return
    if not isinstance(name, str) or not _SIDE_FILE.fullmatch(name):
        raise SchemaError(f"tokenizer must be 'bytes' or tokenizer-*.json, got {name!r}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise SchemaError(f"tokenizer_xxh3_128 must be 32 hexadecimal digits, got {digest!r}")


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Features(Array):
    """The numbers of a row of a table, side by side.

    The statistics are those of the table that was packed, or of the one that it was packed like;
    of its finite values, before ``standardized`` changed them.

    Attributes:
        dtype: float16, float32 or float64.
        dims: Follows from ``columns``.
        columns: Names of the columns, at least one; any text, each once.
        sources: For each column the one that it was made of in the source, and how (``number``, ``flag``, ``days``,
            ``year``, ...); or none.
        mean: Mean of each column, or none.
        std: Standard deviation of each column (of the population), or none.
        least: Smallest value of each column, or none.
        most: Largest value of each column, or none.
        missing: What is stored in place of a missing number: ``nan``, ``mean``, or ``error``: there is none.
        standardized: True if what is stored is ``(value - mean) / std``, 1 for a ``std`` of 0.
    """

    kind: ClassVar[str] = "features"
    columns: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    missing: str = "nan"
    standardized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _check_columns(self.columns))
        if self.dims not in ((), [], (len(self.columns),), [len(self.columns)]):
            raise SchemaError(f"dims are ({len(self.columns)},) here, got {self.dims!r}")
        object.__setattr__(self, "dims", (len(self.columns),))
        Array.__post_init__(self)
        if np.dtype(self.dtype).kind != "f":
            raise SchemaError(f"features are float16, float32 or float64, got {self.dtype}")
        object.__setattr__(self, "sources", _check_sources(self.sources, len(self.columns)))
        if self.missing not in ("nan", "mean", "error"):
            raise SchemaError(f"missing must be nan, mean or error, got {self.missing!r}")
        for name in ("mean", "std", "least", "most"):
            numbers = _check_numbers(name, getattr(self, name), len(self.columns))
            object.__setattr__(self, name, numbers)
        standardized: Any = self.standardized
        if not isinstance(standardized, bool) or (standardized and not (self.mean and self.std)):
            raise SchemaError(f"standardized needs mean and std, got {standardized!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the field as JSON types."""
        return Array.to_json(self) | {"sources": [list(source) for source in self.sources]}


@_register
@dataclass(frozen=True, slots=True, kw_only=True)
class Categories(Field):
    """The categories of a row of a table as numbers, side by side; stored narrow, served as int64.

    Number k of a column stands for ``vocabularies[column][k - 1]``, 0 for what is missing or unknown.

    Attributes:
        dtype: uint8, uint16 or uint32.
        columns: Names of the columns, at least one; any text, each once.
        vocabularies: For each column its categories, each once, the most frequent first.
    """

    kind: ClassVar[str] = "categories"
    dtype: str = "uint8"
    columns: tuple[str, ...] = ()
    vocabularies: tuple[tuple[str, ...], ...] = ()
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "u"))
        object.__setattr__(self, "columns", _check_columns(self.columns))
        given: Any = self.vocabularies
        if not isinstance(given, tuple | list) or len(given) != len(self.columns):
            what = f"there are {len(self.columns)} columns, vocabularies {str(given)[:60]}"
            raise SchemaError(what)
        empty: tuple[Any, ...] = ((), [])
        vocabularies = tuple(() if v in empty else _check_classes(v) or () for v in given)
        object.__setattr__(self, "vocabularies", vocabularies)
        largest = max(map(len, vocabularies))
        if largest > np.iinfo(self.dtype).max:
            raise SchemaError(f"{largest} categories and 0 for unknown do not fit {self.dtype}")

    @property
    def served_dtype(self) -> str:
        """Always int64, which embeddings take."""
        return "int64"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """One number for each column."""
        return (len(self.columns),)

    @property
    def num_categories(self) -> tuple[int, ...]:
        """How many numbers each column may have, 0 included: the sizes of embeddings."""
        return tuple(len(vocabulary) + 1 for vocabulary in self.vocabularies)

    def to_json(self) -> dict[str, Any]:
        """Return the field as JSON types."""
        return Field.to_json(self) | {"vocabularies": [list(v) for v in self.vocabularies]}


def _check_columns(columns: Any) -> tuple[str, ...]:
    if not isinstance(columns, tuple | list) or not columns:
        raise SchemaError(f"columns must be a list of at least one name, got {columns!r}")
    return _check_classes(columns) or ()


def _check_sources(sources: Any, length: int) -> tuple[tuple[str, str], ...]:
    pairs = tuple(map(tuple, sources)) if isinstance(sources, tuple | list) else None
    is_list = pairs is not None and len(pairs) in (0, length)
    if not is_list or not all(
        len(p) == 2 and all(isinstance(t, str) for t in p) for p in pairs or ()
    ):
        raise SchemaError(f"sources must be {length} pairs of texts, or none, got {sources!r:.60}")
    return pairs or ()


def _check_numbers(name: str, numbers: Any, length: int) -> tuple[float, ...]:
    is_list = isinstance(numbers, tuple | list) and len(numbers) in (0, length)
    if not is_list or not all(type(n) in (int, float) and math.isfinite(n) for n in numbers):
        raise SchemaError(f"{name} must be {length} finite numbers, or none, got {numbers!r}")
    return tuple(map(float, numbers))


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

    @property
    def files(self) -> dict[str, str]:
        """Files beside the manifest that the fields need: xxh3-128 by name."""
        return {k: v for field in self.fields.values() for k, v in field.files.items()}

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
