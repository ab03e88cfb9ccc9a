"""Pictures of one field stored anew: with another codec, quality or size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loaders.codecs import codec_for
from loaders.codecs.heads import picture_size
from loaders.codecs.picture import DEFAULT_QUALITY
from loaders.errors import CodecError, SchemaError
from loaders.schema import PICTURE_CODECS, Boxes, Image, Images, Keypoints, Mask
from packdata.options import check_options, opt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from loaders.schema import Field
    from packdata.images.fit import SizeOption

_MAGIC = {"jpeg": b"\xff\xd8", "png": b"\x89PNG", "webp": b"RIFF"}
_LOSSY = ("jpeg", "webp", "dct")


@dataclass(frozen=True, slots=True)
class Recoding:
    """How pictures are to be stored; None for as they are."""

    codec: str | None = opt(
        None,
        "encode pictures with this codec (default: leave them as they are)",
        choices=PICTURE_CODECS,
    )
    quality: int | None = opt(
        None,
        "with --codec jpeg, webp or dct: 1 to 100, also of files that have this codec (default: these stay as they "
        "are, others get 90)",
        "Q",
        within=(1, 100),
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.quality is not None and self.codec not in _LOSSY:
            raise ValueError(f"quality is for codec {', '.join(_LOSSY)}, got {self.codec}")


def recoders_of(
    fields: Mapping[str, Field], recoding: Recoding, resize: SizeOption | None
) -> dict[str, Recode]:
    """Return what stores each field of pictures anew that has to be; ``resize`` is also of masks.

    Raises:
        SchemaError: One cannot be stored so, no field has pictures, or boxes would not move along.
    """
    codec = recoding.codec
    if codec is None and resize is None:
        return {}
    fixed = (Images,) if resize is None else (Images, Boxes, Keypoints)
    for name, field in fields.items():
        if isinstance(field, fixed):
            what = f"{field.kind} {name!r} would stay as they are beside other pictures"
            raise SchemaError(f"{what}: leave them out, or pack them again")
    kinds = (Image,) if resize is None else (Image, Mask)
    pictures = {name: field for name, field in fields.items() if isinstance(field, kinds)}
    if codec is not None and not pictures:
        raise SchemaError(f"no field that is kept has pictures for codec {codec!r}: keep one")
    found = {}
    for name, field in pictures.items():
        try:
            found[name] = Recode(field, recoding, resize)
        except (CodecError, SchemaError) as error:
            hint = "choose another codec, or leave the field out"
            raise SchemaError(f"field {name!r}: {error}; {hint}") from error
    return {name: recode for name, recode in found.items() if not recode.keeps_all}


class Recode:
    """Stores pictures of one field with another codec, quality or size.

    Raises:
        SchemaError: The codec is for pictures of one size, or they have it already.
        CodecError: The codec cannot hold them.
    """

    def __init__(self, field: Image | Mask, recoding: Recoding, resize: SizeOption | None) -> None:
        self._resize = resize
        codec = field.codec if isinstance(field, Mask) else recoding.codec or field.codec
        size = field.size if resize is None else resize.fixed
        if codec in ("dct", "yuv420") and size is None:
            raise SchemaError(f"codec {codec!r} is for pictures of one size, and these may vary")
        if codec == field.codec == "dct" and recoding.quality is not None:
            raise SchemaError("the pictures are dct already, and would lose more: pack them again")
        changes: dict[str, Any] = {"codec": codec, "size": size}
        if isinstance(field, Image) and codec != field.codec:
            quality = recoding.quality if codec == "dct" else None
            changes |= {"quality": quality, "subsampling": None, "compression": None}
        self.field: Image | Mask = replace(field, **changes)  # afterwards
        self._codec = codec_for(self.field, quality=recoding.quality or DEFAULT_QUALITY)
        # A file of the codec is kept, if nothing else is asked.
        is_file = codec in _MAGIC and field.codec in _MAGIC
        self._magic = _MAGIC[codec] if is_file and recoding.quality is None else None
        is_sized = resize is None or resize.fixed is not None
        self.keeps_all = codec not in _MAGIC and self.field == field and is_sized

    def __call__(
        self, record: npt.NDArray[np.uint8], decode: Callable[[], Any]
    ) -> bytes | memoryview:
        """Return the new record of a record, which ``decode`` decodes."""
        if self._keeps(record):
            return record.data
        picture = decode()
        if self._resize is not None:
            picture = self._resize.apply(picture, nearest=isinstance(self.field, Mask))
        return self._codec.encode(picture)

    def _keeps(self, record: npt.NDArray[np.uint8]) -> bool:
        """Tell whether a file is as wanted already."""
        if self._magic is None or record[: len(self._magic)].tobytes() != self._magic:
            return False
        return self._resize is None or self._resize.keeps(picture_size(record))
