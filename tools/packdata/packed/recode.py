"""Pictures of one field stored anew: with another codec, quality or size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
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

_MAGIC = {"jpeg": b"\xff\xd8", "png": b"\x89PNG", "webp": b"RIFF"}


@dataclass(frozen=True, slots=True)
class RecodeOptions:
    """How pictures are to be stored."""

    codec: str | None = None  # their codec; None: as it is
    # Of ``jpeg``, ``webp`` and ``dct``; if given, pictures that have the codec already are encoded anew too.
    quality: int | None = None
    subsampling: str | None = None  # of ``dct``: ``"420"`` (by default) or ``"444"``
    compression: str | None = None  # of ``dct``: ``"lz4"`` (by default) or ``"zstd"``
    resize: SizeOption | None = None  # their size, and that of masks; None: as it is

    def __post_init__(self) -> None:
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be in [1, 100], got {self.quality}")
        if self.quality is not None and self.codec not in ("jpeg", "webp", "dct"):
            raise ValueError(f"quality is for codec jpeg, webp or dct, got codec {self.codec}")
        for name in ("subsampling", "compression"):
            if getattr(self, name) is not None and self.codec != "dct":
                raise ValueError(f"{name} is for codec dct, got codec {self.codec}")

    def recoders(self, fields: Mapping[str, Field]) -> dict[str, Recode]:
        """Return what stores each field of pictures anew.

        Raises:
            SchemaError: One cannot be stored so, none is there, or boxes would not move along.
        """
        if self.codec is None and self.resize is None:
            return {}
        boxes = [name for name, field in fields.items() if isinstance(field, Boxes | Keypoints)]
        if self.resize is not None and boxes:
            what = f"{boxes[0]!r} is in pixels, and would not move with pictures of another size"
            raise SchemaError(f"{what}: leave it out")
        found: dict[str, Recode] = {}
        for name, field in fields.items():
            is_resized = isinstance(field, Mask) and self.resize is not None
            if isinstance(field, Image | Images) or is_resized:
                try:
                    found[name] = Recode(field, self)  # type: ignore[arg-type]
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

    def __init__(self, field: Image | Images | Mask, options: RecodeOptions) -> None:
        one = field.one if isinstance(field, Images) else field
        is_image = not isinstance(field, Mask)
        codec, self._quality = (is_image and options.codec) or field.codec, options.quality
        self._resize, self._is_mask = options.resize, not is_image
        size = field.size if self._resize is None else self._resize.fixed
        several = None
        # First: single pictures may have codecs that several have not.
        if isinstance(field, Images):
            several = dataclasses.replace(field, codec=codec, size=size)
        if codec in ("dct", "yuv420") and size is None:
            what = f"codec {codec!r} is for pictures of one size, and these may vary"
            raise SchemaError(
                f"{what}: pack them with sizes= and fit='cover', 'contain' or 'stretch'"
            )
        dct: dict[str, Any] = dict.fromkeys(("quality", "subsampling", "compression"))
        if codec == "dct":
            dct = {name: getattr(options, name) or getattr(one, name) for name in dct}
        made = dataclasses.replace(one, codec=codec, size=size, **(dct if is_image else {}))
        self.field: Image | Images | Mask = several or made  # the field afterwards
        self._is_several, self._codec, self._old_codec = (
            several is not None,
            codec_for(made),
            codec_for(one),
        )
        self._has_size = self._resize is None or (
            field.size is not None and self._resize.keeps(field.size)
        )
        self._is_same = self._has_size and codec not in _MAGIC and made == one
        # Only the compression changes: nothing is decoded, nothing lost.
        self._transcodes = self._resize is None and codec == "dct" == field.codec
        self._transcodes = self._transcodes and not self._is_same
        if self._transcodes and isinstance(one, Image) and isinstance(made, Image):
            self._transcodes = dataclasses.replace(one, compression=made.compression) == made
        self._from_file = field.codec in _MAGIC

    def __call__(
        self, record: npt.NDArray[np.uint8], decode: Callable[[], Any]
    ) -> bytes | memoryview:
        """Return the new record of a record, which ``decode`` decodes."""
        if not self._is_several:
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
        return self._transcode(record) if self._transcodes else self._encode(decode())

    def _keeps(self, record: npt.NDArray[np.uint8]) -> bool:
        """Tell whether a picture is as wanted already."""
        if self._is_same:
            return True
        magic = _MAGIC.get(self.field.codec)
        alike = self._from_file and magic is not None and record[: len(magic)].tobytes() == magic
        return alike and self._quality is None and self._keeps_size(record)

    def _keeps_size(self, record: npt.NDArray[np.uint8]) -> bool:
        if self._has_size or self._resize is None:
            return True
        try:
            return self._resize.keeps(picture_size(record))
        except CodecError:  # decoding says why
            return False

    def _transcode(self, record: npt.NDArray[np.uint8]) -> bytes:
        assert isinstance(self._codec, DctCodec)
        assert isinstance(self._old_codec, DctCodec)
        return self._codec.pack(self._old_codec.unpack(record).astype(np.int64))

    def _encode(self, picture: npt.NDArray[Any]) -> bytes:
        if self._resize is not None:
            picture = self._resize.apply(picture, nearest=self._is_mask)
        if isinstance(self._codec, PictureCodec):
            return self._codec.encode(picture, self._quality or DEFAULT_QUALITY)
        return self._codec.encode(picture)
