"""Codecs: a value of one field to its record of bytes, and back.

A codec is made for a field (``codec_for``) and knows its dtype and shape. Pictures are H x W x C
arrays here, masks H x W: channels first is a matter of the batch. ``register_codec`` adds one from
outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from loaders.checks import shown
from loaders.codecs.dct import DctCodec
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.codecs.picture import DEFAULT_QUALITY, ImagesCodec, PictureCodec
from loaders.codecs.raw import RawCodec
from loaders.codecs.text import BytesCodec, JsonCodec, TextCodec
from loaders.codecs.yuv import Yuv420Codec
from loaders.errors import CodecError
from loaders.schema import Images

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaders.schema import Field

UInt8Array = npt.NDArray[np.uint8]


class Codec(Protocol):
    """Turns values into records and back; one instance serves all threads."""

    def encode(self, value: Any) -> bytes:
        """Return the record of a value; CodecError if the field cannot hold it."""

    def decode(self, record: UInt8Array) -> Any:
        """Return the value of a record; CodecError if it is damaged."""


_FACTORIES: dict[str, Callable[[Any], Codec]] = {
    "raw": RawCodec,
    "jpeg": PictureCodec,
    "png": PictureCodec,
    "webp": PictureCodec,
    "yuv420": Yuv420Codec,
    "dct": DctCodec,
    "text": TextCodec,
    "json": JsonCodec,
    "bytes": BytesCodec,
}


def register_codec(name: str, factory: Callable[[Any], Codec]) -> None:
    """Make a codec known under a name, for ``Field.codec``.

    Args:
        name: The name.
        factory: Called with the field, returns its codec, or raises CodecError if it is none for
            this field. Every process that reads the data has to register it.

    Raises:
        TypeError: The name is no text, or the factory no function.
        CodecError: The name is taken by another factory.
    """
    given: tuple[Any, Any] = name, factory
    if not isinstance(given[0], str) or not callable(given[1]):
        what = "register_codec takes a name and a function that returns the codec of a field"
        raise TypeError(f"{what}, got {shown(name)} and {shown(factory)}")
    if _FACTORIES.get(name, factory) is not factory:
        raise CodecError(f"codec name {name!r} is taken")
    _FACTORIES[name] = factory


def codec_for(
    field: Field, max_picture_mb: int = MAX_PICTURE_MB, quality: int = DEFAULT_QUALITY
) -> Codec:
    """Return the codec of a field, of pictures up to so many MiB each, decoded, and of this quality.

    Raises:
        CodecError: The codec's name is unknown, or does not fit the field.
    """
    factory = _FACTORIES.get(field.codec)
    if factory is None:
        known = ", ".join(sorted(_FACTORIES))
        raise CodecError(
            f"codec {field.codec!r} is unknown (known: {known}). "
            "Update loaders, or import the package that registers it with loaders.register_codec"
        )
    if isinstance(field, Images):
        return ImagesCodec(field)
    is_picture = factory is PictureCodec
    return PictureCodec(field, max_picture_mb, quality) if is_picture else factory(field)
