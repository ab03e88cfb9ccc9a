"""Values as users have them (paths, arrays, names of classes) to the records of a field.

``prepare`` does at once what is cheap, so that a wrong value is an error where it was given, and
returns the rest as work for a thread. Nothing keeps an array: the caller may change it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loaders.checks import shown
from loaders.codecs import codec_for
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.codecs.picture import join_files
from loaders.codecs.raw import RawCodec, cast_exactly
from loaders.data.columns import Column, FixedColumn, column_of
from loaders.errors import CodecError, SourceError
from loaders.schema import Array, Boxes, Field, Image, Images, Keypoints, Label, Mask, MultiLabel
from packdata.describe import describe_field, few, numbered
from packdata.geometry import to_keypoints
from packdata.reading import read_file

Size = tuple[int, int]
_BOXES = "boxes of (n, 4): x1, y1, x2, y2"


class Encoded(NamedTuple):
    """A record, and (height, width) if it is of an image or mask."""

    record: bytes
    size: Size | None = None

    def make(self) -> Encoded:
        """Return it: there is nothing left to do."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of the record."""
        return len(self.record)


class Work(NamedTuple):
    """What makes a record, (height, width) where that is known before, and the bytes it holds."""

    make: Callable[[], Encoded]
    size: Size | None = None
    nbytes: int = 0


Prepared = Encoded | Work


class Preparer:
    """Turns the values of one field into records; ``quality``, 1 to 100, is of newly encoded JPEG and WebP."""

    def __init__(self, field: Field, quality: int, max_picture_mb: int = MAX_PICTURE_MB) -> None:
        self.field, self._max_picture_mb = field, max_picture_mb
        self.codec = codec_for(field, max_picture_mb, quality)
        one = field.one if isinstance(field, Images) else None
        self._one = None if one is None else Preparer(one, quality, max_picture_mb)
        classes = field.classes or () if isinstance(field, Label | MultiLabel) else ()
        self._classes = {name: i for i, name in enumerate(classes)}

    def __call__(self, value: Any) -> Prepared:
        """Return the record of a value, or the work that makes it.

        Raises:
            CodecError: The field cannot hold the value.
        """
        field = self.field
        # NumPy takes None for an array.
        if value is None and isinstance(field, Image | Images | Mask | Array):
            raise CodecError(f"takes {_wanted(field)}, but the value is missing (None)")
        try:
            return self._prepared(_unmasked(value), field)
        except CodecError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise self._misfit(value) from error

    def _prepared(self, value: Any, field: Field) -> Prepared:
        if isinstance(field, Image | Mask):
            return self._picture(value, field)
        if self._one is not None:
            return self._pictures(value, self._one)
        if isinstance(field, Label):
            value = self._label(value, field)
        elif isinstance(field, MultiLabel):
            value = self._multilabel(value, field)
        elif isinstance(field, Boxes):
            value = _boxes(value)
        elif isinstance(field, Keypoints):
            value = to_keypoints(value, field)
        elif isinstance(field, Array):
            value = _rows_of_none(value, field)
        return Encoded(self.codec.encode(value))

    def column(self, values: Any) -> Column | None:
        """Return the records of many values at once; None where that takes threads, or ``__call__`` refuses one."""
        try:
            if type(self.codec) is RawCodec and not self.codec.num_free and _are_alike(values):
                array = np.asarray(_unmasked(values))
                if array.dtype.kind in "uifb":  # else names of classes
                    return self._rows(array, self.codec)
            if isinstance(self.field, Image | Images | Mask):
                return None
            records = [self(value).make().record for value in values]
        except (CodecError, TypeError, ValueError, OverflowError):
            return None
        return column_of(records, self.field.record_nbytes)

    def _rows(self, array: np.ndarray[Any, Any], codec: RawCodec) -> FixedColumn | None:
        """Return values of one shape as the bytes of each, copied; None if one is wrong."""
        field, is_right = self.field, True
        if isinstance(field, Label | Array) and field.classes is not None:
            is_right = bool(((array >= 0) & (array < len(field.classes))).all())
        if isinstance(field, Label):
            is_right &= array.dtype.kind in "ui"
        elif isinstance(field, MultiLabel):
            is_right = bool(((array == 0) | (array == 1)).all())
        elif isinstance(field, Image | Mask):
            if isinstance(field, Image) and array.ndim == 3:
                array = array[..., None]
            is_right = _holds(field, array)
        if not is_right or array.shape[1:] != codec.shape:
            return None
        flat = np.array(cast_exactly(array, codec.dtype), order="C").reshape(len(array), -1)
        return FixedColumn(flat.view(np.uint8))

    def _misfit(self, value: Any) -> CodecError:
        return CodecError(f"takes {_wanted(self.field)}, got {_shown(value)}")

    def _class_number(self, name: str) -> int:
        if name not in self._classes:
            known = few(self._classes, 8) or "none is declared"
            raise CodecError(f"class {str(name)!r} is unknown (known: {known})")
        return self._classes[name]

    def _label(self, value: Any, field: Label) -> int:
        if isinstance(value, str):
            return self._class_number(value)
        number = np.asarray(value)
        if number.dtype.kind not in "ui" or number.ndim:
            raise self._misfit(value)
        if field.classes is not None and not 0 <= number < len(field.classes):
            raise CodecError(f"class number must be in [0, {len(field.classes)}), got {number}")
        return int(number)

    def _multilabel(self, value: Any, field: MultiLabel) -> np.ndarray[Any, Any]:
        is_list = isinstance(value, Sequence | Set) and not isinstance(value, str)
        if is_list and all(isinstance(name, str) for name in value):
            flags = np.zeros(len(field.classes), np.uint8)
            flags[[self._class_number(name) for name in value]] = 1
            return flags
        flags = np.asarray(value)
        if flags.shape != (len(field.classes),) or not np.isin(flags, (0, 1)).all():
            raise self._misfit(value)
        return flags.astype(np.uint8)

    def _picture(self, value: Any, field: Image | Mask) -> Prepared:
        if isinstance(value, str | Path | bytes | bytearray | memoryview):
            return self._file(value, field)
        array = np.asarray(value)
        size = _check_picture(array, field)
        if field.codec == "raw":
            return Encoded(self.codec.encode(array), size)
        array = array.astype(field.dtype)  # a copy: the caller may change the array
        return Work(lambda: Encoded(self.codec.encode(array), size), size, array.nbytes)

    def _pictures(self, value: Any, one: Preparer) -> Work:
        is_one = isinstance(value, str | bytes | bytearray | memoryview | Path | Mapping)
        if is_one or getattr(value, "ndim", 4) != 4:
            raise self._misfit(value)
        pictures: list[Prepared] = []
        for number, picture in enumerate(value):
            with numbered(number):
                pictures.append(one(picture))
        nbytes = sum(work.nbytes for work in pictures)
        return Work(lambda: Encoded(join_files(list(_records(pictures)))), nbytes=nbytes)

    def _file(
        self, value: str | Path | bytes | bytearray | memoryview, field: Image | Mask
    ) -> Work:
        from packdata.images.stored import check_takes_files

        check_takes_files(field)
        if isinstance(value, str | Path):
            path = Path(value)
            place = path.absolute()  # now: the working folder may change before a thread reads it
            return Work(lambda: self._stored(read_file(place, where=str(path)), field, path))
        data = bytes(value)
        return Work(lambda: self._stored(data, field), nbytes=len(data))

    def _stored(self, data: bytes, field: Image | Mask, path: Path | None = None) -> Encoded:
        """Return what is stored of the bytes of a file; errors name its path, if it has one."""
        from packdata.images.stored import stored_picture

        try:
            record, size = stored_picture(data, field, self.codec, self._max_picture_mb)
            _check_size(size, field)
        except CodecError as error:
            if path is None:
                raise
            raise SourceError(str(error), path) from error
        return Encoded(record, size)


def _records(pictures: Sequence[Prepared]) -> Iterator[bytes]:
    """Encode the pictures of one sample."""
    for number, picture in enumerate(pictures):
        with numbered(number):
            yield picture.make().record


def _check_picture(array: np.ndarray[Any, Any], field: Image | Mask) -> Size:
    """Check what an array is, before it is encoded; return its size."""
    channels = field.channels if isinstance(field, Image) else None
    shape = array.shape[:2] if channels is None else (*array.shape[:2], channels)
    fits = array.shape == shape or (channels == 1 and array.ndim == 2)
    if not fits or array.ndim < 2 or 0 in array.shape or not _holds(field, array):
        is_first = array.ndim == 3 and array.shape[0] == channels != array.shape[2]
        hint = " (permute(1, 2, 0) puts the channels last)" if is_first else ""
        raise CodecError(f"takes {_wanted(field)}, got {_shown(array)}{hint}")
    size = (int(array.shape[0]), int(array.shape[1]))
    _check_size(size, field)
    return size


def _holds(field: Image | Mask, array: np.ndarray[Any, Any]) -> bool:
    """Masks may come as any integers that fit; pixels have one dtype, so that none is rescaled."""
    if array.dtype == np.dtype(field.dtype):
        return True
    is_whole = isinstance(field, Mask) and array.dtype.kind in "uib"
    return is_whole and np.array_equal(array.astype(field.dtype), array)


def _check_size(size: Size, field: Image | Mask) -> None:
    if field.size is not None and size != field.size:
        wanted = "{} x {}".format(*field.size)
        raise CodecError(f"takes pictures of {wanted} (H x W), got {size[0]} x {size[1]}")


def _boxes(value: Any) -> np.ndarray[Any, Any]:
    boxes = np.asarray(value, np.float32) if len(value) else np.zeros((0, 4), np.float32)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise CodecError(f"takes {_BOXES}; got {boxes.shape}")
    is_right = np.isfinite(boxes).all(1) & (boxes[:, :2] <= boxes[:, 2:]).all(1)
    if not is_right.all():
        what = f"takes boxes of x1, y1, x2, y2 with x1 <= x2 and y1 <= y2; got {boxes[is_right.argmin()].tolist()}"
        hint = "COCO has x, y, width, height: store x, y, x + width, y + height"
        raise CodecError(f"{what} ({hint})")
    return boxes


def _unmasked(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise CodecError("values are masked, and no value is stored for those: use .filled(...)")
    return value


def _are_alike(values: Any) -> bool:
    """Tell whether all rows are of one type: of several, NumPy makes one that holds not every value."""
    if hasattr(values, "dtype"):
        return True
    return len({(type(_unmasked(row)), getattr(row, "dtype", None)) for row in values}) <= 1


def _rows_of_none(value: Any, field: Array) -> Any:
    """Return an empty list, in which NumPy sees no second axis, as the empty array that it means."""
    is_empty = isinstance(value, list | tuple) and not value
    if is_empty and field.dims[:1] == (None,) and None not in field.dims[1:]:
        return np.zeros((0, *field.dims[1:]), field.dtype)
    return value


def _wanted(field: Field) -> str:
    """Return in words what may be given for a field."""
    if isinstance(field, Label):
        return "a class name or number"
    if isinstance(field, MultiLabel):
        return f"class names, or a 0 or 1 for each of the {len(field.classes)} classes"
    if isinstance(field, Boxes):
        return _BOXES
    if isinstance(field, Keypoints):
        return f"keypoints of (n, {field.num or 'any'}, 2): x, y; or (n, {field.num or 'any'}, 3) with visibility"
    if isinstance(field, Images):
        return f"a list of pictures, each a file or {_wanted(field.one)}"
    if isinstance(field, Image | Mask):
        channels = f" x {field.channels}" if isinstance(field, Image) else ""
        return f"{field.dtype} of H x W{channels}"
    return describe_field(field)


def _shown(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return shown(value) if dtype is None else f"{dtype} of {tuple(value.shape)}"


def check_sizes(sizes: Mapping[str, Size | None], fields: Mapping[str, Field]) -> None:
    """Raise CodecError if masks differ in size from the one image; sizes not known yet pass."""
    images = [name for name, field in fields.items() if isinstance(field, Image)]
    if len(images) != 1:  # which image a mask belongs to is then the user's to know
        return
    want = sizes[images[0]]
    for name, field in fields.items():
        if isinstance(field, Mask) and None not in (want, got := sizes[name]) and want != got:
            raise CodecError(f"the mask {name!r} has {got} pixels (H, W), the image {want}")
