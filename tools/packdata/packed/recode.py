"""Pictures of one field stored anew: with another codec, quality or size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.codecs import codec_for
from loaders.codecs.heads import picture_size
from loaders.codecs.picture import DEFAULT_QUALITY, PictureCodec
from loaders.codecs.several import join_files, split_files
from loaders.errors import CodecError, SchemaError
from loaders.schema import Boxes, Image, Images, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from loaders.schema import Field
    from packdata.images.fit import SizeOption

_MAGIC = {"jpeg": b"\xff\xd8", "png": b"\x89PNG", "webp": b"RIFF"}
_CODECS = {"quality": ("jpeg", "webp", "dct"), "subsampling": ("dct",), "compression": ("dct",)}


@dataclass(frozen=True, slots=True)
class Recoding:
    """How pictures are to be stored; None for as they are."""

    codec: str | None = None
    # Of ``jpeg``, ``webp`` and ``dct``; if given, files that have the codec already are encoded anew, too.
    quality: int | None = None
    subsampling: str | None = None  # of ``dct``: ``"420"`` (by default) or ``"444"``
    compression: str | None = None  # of ``dct``: ``"lz4"`` (by default) or ``"zstd"``
    resize: SizeOption | None = None  # also of masks

    def __post_init__(self) -> None:
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be in [1, 100], got {self.quality}")
        for name, codecs in _CODECS.items():
            if getattr(self, name) is not None and self.codec not in codecs:
                raise ValueError(f"{name} is for codec {', '.join(codecs)}, got {self.codec}")


def recoders_of(fields: Mapping[str, Field], recoding: Recoding) -> dict[str, Recode]:
    """Return what stores each field of pictures anew that has to be.

    Raises:
        SchemaError: One cannot be stored so, no field has pictures, or boxes would not move along.
    """
    kinds: tuple[type[Field], ...] = ()
    if recoding.codec is not None:
        kinds = (Image, Images)
        if not any(isinstance(field, kinds) for field in fields.values()):
            what = f"no field that is kept has pictures for codec {recoding.codec!r}"
            raise SchemaError(f"{what}: keep one")
    if recoding.resize is not None:
        kinds = (Image, Images, Mask)
        for name, field in fields.items():
            if isinstance(field, Boxes | Keypoints):
                what = f"{name!r} is in pixels, and would not move with pictures of another size"
                raise SchemaError(f"{what}: leave it out")
    found = {}
    for name, field in fields.items():
        if isinstance(field, kinds):
            try:
                recode = Recode(field, recoding)  # type: ignore[arg-type]
            except (CodecError, SchemaError) as error:
                hint = "choose another codec, or leave the field out"
                raise SchemaError(f"field {name!r}: {error}; {hint}") from error
            if not recode.keeps_all:
                found[name] = recode
    return found


class Recode:
    """Stores pictures of one field, one a sample or any number, with another codec, quality or size.

    Raises:
        SchemaError: The codec is for one picture a sample, or for pictures of one size; or they have it already.
        CodecError: The codec cannot hold them.
    """

    def __init__(self, field: Image | Images | Mask, recoding: Recoding) -> None:
        one = field.one if isinstance(field, Images) else field
        self._resize, self._quality = recoding.resize, recoding.quality
        resize = recoding.resize
        codec = field.codec if isinstance(one, Mask) else recoding.codec or field.codec
        size = field.size if resize is None else resize.fixed
        if codec in ("dct", "yuv420") and size is None:
            raise SchemaError(f"codec {codec!r} is for pictures of one size, and these may vary")
        options = {name: getattr(recoding, name) for name in _CODECS}
        if codec == field.codec == "dct" and any(options.values()):
            raise SchemaError("its pictures are dct already, and would lose more: pack them again")
        changes: dict[str, Any] = {"codec": codec, "size": size}
        if isinstance(field, Image) and codec != field.codec:
            changes |= options if codec == "dct" else dict.fromkeys(options)
        self.field = replace(field, **changes)  # afterwards
        self._one = self.field.one if isinstance(self.field, Images) else self.field
        self._codec = codec_for(self._one)
        # A file of the codec is kept, if nothing else is asked.
        is_file = codec in _MAGIC and field.codec in _MAGIC
        self._magic = _MAGIC[codec] if is_file and recoding.quality is None else None
        is_sized = resize is None or resize.fixed is not None
        self.keeps_all = codec not in _MAGIC and self.field == field and is_sized

    def __call__(
        self, record: npt.NDArray[np.uint8], decode: Callable[[], Any]
    ) -> bytes | memoryview:
        """Return the new record of a record, which ``decode`` decodes."""
        is_one = self._one is self.field
        try:
            files = [record] if is_one else split_files(record)
        except CodecError:
            decode()  # names the sample
            raise
        if all(map(self._keeps, files)):
            return record.data
        pictures = [decode()] if is_one else decode()
        made = [
            file.tobytes() if self._keeps(file) else self._encoded(picture)
            for file, picture in zip(files, pictures, strict=True)
        ]
        return made[0] if is_one else join_files(made)

    def _encoded(self, picture: Any) -> bytes:
        if self._resize is not None:
            picture = self._resize.apply(picture, nearest=isinstance(self._one, Mask))
        if isinstance(self._codec, PictureCodec):
            return self._codec.encode(picture, self._quality or DEFAULT_QUALITY)
        return bytes(self._codec.encode(picture))

    def _keeps(self, record: npt.NDArray[np.uint8]) -> bool:
        """Tell whether a file is as wanted already."""
        if self._magic is None or record[: len(self._magic)].tobytes() != self._magic:
            return False
        try:
            return self._resize is None or self._resize.keeps(picture_size(record))
        except CodecError:  # decoding says why
            return False
