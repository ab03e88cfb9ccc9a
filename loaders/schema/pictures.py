"""What lies in a picture: its pixels, one integer per pixel, and boxes around things; and several pictures."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from loaders.errors import SchemaError
from loaders.schema.field import Field, check_dtype, check_nbytes, field_kind, is_count, raw_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PICTURE_CODECS = ("jpeg", "png", "webp", "raw", "yuv420", "dct")
_FILE_CODECS = ("jpeg", "png", "webp")
# Default and allowed values of what a field of codec "dct" says.
_DCT_OPTIONS: dict[str, tuple[Any, Sequence[Any]]] = {
    "quality": (90, range(1, 101)),
    "subsampling": ("420", ("420", "444")),
    "compression": ("lz4", ("lz4", "zstd")),
}


@field_kind
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
    _optional: ClassVar[tuple[str, ...]] = tuple(_DCT_OPTIONS)
    channels: int = 3
    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    codec: str = field(default="jpeg", kw_only=False)
    quality: int | None = None
    subsampling: str | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _check_size(self.size))
        object.__setattr__(self, "dtype", check_dtype(self.dtype, "u"))
        if not is_count(self.channels, most=64):
            raise SchemaError(f"channels must be in [1, 64], got {self.channels!r}")
        for name, (default, allowed) in _DCT_OPTIONS.items():
            value = getattr(self, name)
            if self.codec == "dct" and value is None:
                object.__setattr__(self, name, default)
            elif value is not None and self.codec != "dct":
                raise SchemaError(f"{name} belongs to fields of codec 'dct', not {self.codec!r}")
            elif value is not None and (isinstance(value, bool) or value not in allowed):
                raise SchemaError(f"{name} must be one of {allowed}, got {value!r}")
        check_nbytes(self)

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
        return raw_nbytes(self)


@field_kind
class Images(Field):
    """Any number of pictures a sample, also none, of any sizes: frames, views, or what a conversation shows.

    A sample has a list of ``(channels, H, W)``; where all have one size, by ``size`` or by ``augment``, it has
    one tensor ``(n, channels, H, W)``. A batch has a list of these; with ``batching={"images": "offsets"}`` it
    has the pictures of all samples in ``.values``, a list or ``(total, channels, H, W)``, and ``.offsets``
    ``(N + 1,)``: those of sample ``i`` are ``values[offsets[i]:offsets[i + 1]]``. With ``"pad"``, for pictures of
    one size, it has ``(N, most, channels, H, W)`` and ``.lengths``.

    ``augment`` draws once for a sample: its pictures are flipped alike, and those of one size are cropped alike, as
    views of one scene or frames of a clip have to be. For a draw of each picture's own, use ``transform``.

    Attributes:
        channels: 1 (gray) or 3 (RGB); with ``codec="png"`` or ``"webp"`` also 4 (RGBA).
        size: (height, width) in pixels shared by all pictures, or None where it varies.
        dtype: uint8; with ``codec="png"`` also uint16.
        codec: ``jpeg``, ``png``, ``webp``: each is an encoded file (of any of the three).
    """

    kind: ClassVar[str] = "images"
    channels: int = 3
    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    codec: str = field(default="jpeg", kw_only=False)

    def __post_init__(self) -> None:
        one = self.one
        object.__setattr__(self, "size", one.size)
        object.__setattr__(self, "dtype", one.dtype)
        if self.codec not in _FILE_CODECS:
            what = f"Images are encoded files: codec {', '.join(_FILE_CODECS)}, not {self.codec!r}"
            raise SchemaError(
                f"{what}; pixels of any number are Array(dims=(None, {self.channels}, H, W))"
            )

    @property
    def one(self) -> Image:
        """What each of the pictures is."""
        return Image(self.codec, channels=self.channels, size=self.size, dtype=self.dtype)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Any number of pictures; channels, height and width of each."""
        return (None, *self.one.shape)


@field_kind
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
    codec: str = field(default="png", kw_only=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _check_size(self.size))
        object.__setattr__(self, "dtype", check_dtype(self.dtype, "ui"))
        check_nbytes(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Height and width."""
        return self.size or (None, None)


@field_kind
class Boxes(Field):
    """Boxes in pixels of the stored image, served as float32 ``(n, 4)`` of x1, y1, x2, y2.

    Of several images that is the first one of the schema, in whatever order samples show them; without an
    image the first mask. Stored images are upright. Boxes that were drawn on the pixels of a file as they
    lie in it, below an orientation of Exif, have to be turned before they are packed.

    Crops, flips and resizes of the image move them, and cut them at its edges. A box that is cropped
    away stays, without area, so that box ``i`` is still the one that row ``i`` of another field is
    about, such as a class number in ``Array(dtype="int64", dims=(None,))``. Detectors refuse such
    boxes: ``augment.SanitizeBoundingBoxes()`` drops them, and those rows.

    A batch has a list of tensors; with ``batching={"boxes": "pad"}`` of the dataset it has ``.values``
    ``(N, most, 4)`` and ``.lengths``, with ``"offsets"`` ``.values`` end to end and ``.offsets``.
    """

    kind: ClassVar[str] = "boxes"
    dtype: ClassVar[str] = "float32"
    shape: ClassVar[tuple[int | None, ...]] = (None, 4)
    codec: str = "raw"


@field_kind
class Keypoints(Field):
    """Named points of things, in pixels of the stored image, served as float32.

    The shape is ``(n, num, 2)`` of x, y, or ``(n, num, 3)`` with COCO's visibility: 0 not labelled, 1 hidden,
    2 visible. They move as ``Boxes`` do, from edge to edge: the right edge of a picture is x = width. A point
    that is not labelled stays 0, 0, 0, and one that is cropped away becomes it; without visibility points are
    moved beyond the edge, too. Batches have them as ``Boxes``.

    Attributes:
        num: Points of each thing, or None where it varies.
        flip_pairs: Points that a horizontal flip exchanges, such as left and right eye: ``((1, 2), (3, 4))``.
    """

    kind: ClassVar[str] = "keypoints"
    dtype: ClassVar[str] = "float32"
    meaning: ClassVar[tuple[str, ...]] = ("num", "flip_pairs")
    codec: str = "raw"
    num: int | None = field(default=None, kw_only=False)
    flip_pairs: tuple[tuple[int, int], ...] = field(default=(), kw_only=False)

    def __post_init__(self) -> None:
        if self.num is not None and not is_count(self.num):
            raise SchemaError(f"num must be a whole number above 0, or None, got {self.num!r}")
        object.__setattr__(self, "flip_pairs", _check_pairs(self.flip_pairs, self.num))

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Any number of things, their points, two or three numbers each."""
        return (None, self.num, None)


def first_picture(fields: Mapping[str, Field]) -> str | None:
    """Return whose pixels boxes are in: the first image of a schema, without one the first mask."""
    kinds = (Image, Mask)
    named = (name for kind in kinds for name, field in fields.items() if isinstance(field, kind))
    return next(named, None)


def _check_pairs(pairs: Any, num: int | None) -> tuple[tuple[int, int], ...]:
    try:
        found = tuple((int(first), int(second)) for first, second in pairs)
    except (TypeError, ValueError):
        raise SchemaError(f"flip_pairs are pairs of points, got {pairs!r}") from None
    points = [point for pair in found for point in pair]
    most = max(points, default=0) if num is None else num - 1
    if len(set(points)) < len(points) or not all(0 <= point <= most for point in points):
        raise SchemaError(f"flip_pairs name each point once, from 0 to num - 1, got {pairs!r}")
    return found


def _check_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    if not isinstance(size, tuple | list) or len(size) != 2 or not all(map(is_count, size)):
        raise SchemaError(f"size must be (height, width) in pixels, got {size!r}")
    return size[0], size[1]
