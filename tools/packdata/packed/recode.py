"""Pictures of one field stored anew: with another codec, quality or size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.codecs import codec_for
from loaders.codecs.dct import DctCodec
from loaders.codecs.heads import picture_size
from loaders.codecs.picture import DEFAULT_QUALITY, PictureCodec
from loaders.codecs.several import join_files, split_files
from loaders.errors import CodecError, SchemaError
from loaders.schema import Boxes, Image, Images, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loaders.schema import Field
    from packdata.images.fit import SizeOption

    Pixels = npt.NDArray[Any]

_MAGIC = {"jpeg": b"\xff\xd8", "png": b"\x89PNG", "webp": b"RIFF"}
_OF_DCT = ("quality", "subsampling", "compression")


@dataclass(frozen=True, slots=True)
class Recoding:
    """How pictures are to be stored; None for as they are."""

    codec: str | None = None
    # Of ``jpeg``, ``webp`` and ``dct``; if given, pictures that have the codec already are encoded anew too.
    quality: int | None = None
    subsampling: str | None = None  # of ``dct``: ``"420"`` (by default) or ``"444"``
    compression: str | None = None  # of ``dct``: ``"lz4"`` (by default) or ``"zstd"``
    resize: SizeOption | None = None  # also of masks

    def __post_init__(self) -> None:
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be in [1, 100], got {self.quality}")
        for name in _OF_DCT:
            codecs = ("jpeg", "webp", "dct") if name == "quality" else ("dct",)
            if getattr(self, name) is not None and self.codec not in codecs:
                what = f"{name} is for codec {', '.join(codecs)}"
                raise ValueError(f"{what}, got codec {self.codec}")


def recoders_of(fields: Mapping[str, Field], recoding: Recoding) -> dict[str, Recode]:
    """Return what stores each field of pictures anew.

    Raises:
        SchemaError: One cannot be stored so, or boxes would not move along.
    """
    codec, resize = recoding.codec, recoding.resize
    boxes = [name for name, field in fields.items() if isinstance(field, Boxes | Keypoints)]
    if resize is not None and boxes:
        what = f"{boxes[0]!r} is in pixels, and would not move with pictures of another size"
        raise SchemaError(f"{what}: leave it out")
    kinds: tuple[type[Field], ...] = () if resize is None else (Mask,)
    kinds += (Image, Images) if resize is not None or codec is not None else ()
    found: dict[str, Recode] = {}
    for name, field in fields.items():
        if isinstance(field, kinds):
            try:
                found[name] = Recode(field, recoding)  # type: ignore[arg-type]
            except CodecError as error:
                hint = "choose another codec, or leave the field out"
                raise SchemaError(f"field {name!r}: {error}; {hint}") from error
    return found


class Recode:
    """Stores pictures of one field, of a sample one or any number, with another codec, quality or size.

    Raises:
        SchemaError: The codec is for pictures of one size, and these vary.
        CodecError: It is none for several pictures.
    """

    def __init__(self, field: Image | Images | Mask, recoding: Recoding) -> None:
        old = field.one if isinstance(field, Images) else field
        self._resize, self._quality = recoding.resize, recoding.quality
        resize = recoding.resize
        size = field.size if resize is None else resize.fixed
        codec = field.codec if isinstance(old, Mask) else recoding.codec or field.codec
        self.field: Image | Images | Mask = field  # afterwards
        if isinstance(field, Images):  # first: single pictures have codecs that several have not
            self.field = replace(field, codec=codec, size=size)
        if codec in ("dct", "yuv420") and size is None:
            what = f"codec {codec!r} is for pictures of one size, and these may vary"
            hint = "pack them with sizes= and fit='cover', 'contain' or 'stretch'"
            raise SchemaError(f"{what}: {hint}")
        changes: dict[str, Any] = {"codec": codec, "size": size}
        if isinstance(old, Image):
            changes |= dict.fromkeys(_OF_DCT)
        if codec == "dct":
            changes |= {name: getattr(recoding, name) or getattr(old, name) for name in _OF_DCT}
        new = replace(old, **changes)
        if not isinstance(field, Images):
            self.field = new
        self._codec, self._old_codec = codec_for(new), codec_for(old)
        # A file is kept if it is of the codec, and of the size; what else is stored, if nothing changes.
        self._magic = _MAGIC[codec] if codec in _MAGIC and field.codec in _MAGIC else None
        keeps_size = resize is None or resize.fixed is not None
        self._keeps_all = codec not in _MAGIC and new == old and keeps_size
        # Only the compression changes: nothing is decoded, nothing lost.
        self._transcodes = (
            isinstance(old, Image)
            and isinstance(new, Image)
            and codec == old.codec == "dct"
            and resize is None
            and new == replace(old, compression=new.compression)
        )

    def __call__(
        self, record: npt.NDArray[np.uint8], decode: Callable[[], Any]
    ) -> bytes | memoryview:
        """Return the new record of a record, which ``decode`` decodes."""
        if not isinstance(self.field, Images):
            return self._one(record, decode)
        try:
            files = split_files(record)
        except CodecError:
            decode()  # says of which sample
            raise
        if all(map(self._keeps, files)):
            return record.data
        pictures = zip(files, decode(), strict=True)
        return join_files([bytes(self._one(file, lambda p=p: p)) for file, p in pictures])  # type: ignore[misc]

    def _one(self, record: npt.NDArray[np.uint8], decode: Callable[[], Any]) -> bytes | memoryview:
        if self._keeps(record):
            return record.data
        if self._transcodes:
            assert isinstance(self._codec, DctCodec)
            assert isinstance(self._old_codec, DctCodec)
            return self._codec.pack(self._old_codec.unpack(record).astype(np.int64))
        picture = decode()
        if self._resize is not None:
            picture = self._resize.apply(picture, nearest=isinstance(self.field, Mask))
        if isinstance(self._codec, PictureCodec):
            return self._codec.encode(picture, self._quality or DEFAULT_QUALITY)
        return self._codec.encode(picture)

    def _keeps(self, record: npt.NDArray[np.uint8]) -> bool:
        """Tell whether a picture is as wanted already."""
        if self._magic is None or self._quality is not None:
            return self._keeps_all
        if record[: len(self._magic)].tobytes() != self._magic:
            return False
        try:
            return self._resize is None or self._resize.keeps(picture_size(record))
        except CodecError:  # decoding says why
            return False
