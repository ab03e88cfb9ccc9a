"""Pictures and masks as encoded files: JPEG, PNG or WebP, recognized by their first bytes.

JPEG goes through libjpeg-turbo (``simplejpeg``), which decodes into a given buffer and can shrink
while decoding; PNG and WebP go through OpenCV. A field's codec name says how new pictures are
encoded; any of the three is read, because files are often kept as they came. What libjpeg warns of
(cut, damaged) is refused: the packer converts what it can.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from loaders.codecs.heads import MAX_PICTURE_MB, check_pixels, picture_size, pixels_within
from loaders.codecs.jpeg import restart_interval, with_index
from loaders.codecs.raw import as_array
from loaders.errors import CodecError
from loaders.schema import Field, Image, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.schema import Images

UInt8Array = npt.NDArray[np.uint8]
DEFAULT_QUALITY = 90
_NUMBER = np.dtype("<u4")  # of pictures in a record, and of the bytes of each
_PNG_LEVEL = 3  # zlib: on photos 6 saves 2 % more and takes 3 times as long
_CV2_MIN_BYTES = 32  # of a WebP's header
_MAX_JPEG_SIDE = 65_500  # of libjpeg
_TO_RGBA: dict[tuple[int, ...], int] = {  # by what is behind H x W
    (): cv2.COLOR_GRAY2RGBA,
    (3,): cv2.COLOR_BGR2RGBA,
    (4,): cv2.COLOR_BGRA2RGBA,
}


class PictureCodec:
    """Encoded pictures of a fixed number of channels and dtype; masks have none and one.

    Attributes:
        quality: Of the JPEG and WebP files that it makes, 1 to 100.
        keeps_jpeg: Whether JPEG files are among what the field can hold.
        max_pixels: Of a picture, those of ``max_picture_mb`` MiB decoded: larger ones are an error.
    """

    def __init__(
        self,
        field: Field,
        max_picture_mb: int = MAX_PICTURE_MB,
        quality: int = DEFAULT_QUALITY,
    ) -> None:
        if not isinstance(field, Image | Mask):
            raise CodecError(f"codec {field.codec!r} stores pictures, not {field.kind}")
        self.field, self.quality = field, quality
        self.channels = field.channels if isinstance(field, Image) else 0  # 0: H x W
        self.dtype = np.dtype(field.dtype)
        dtypes = ("uint8", "uint16") if field.codec == "png" else ("uint8",)
        if self.dtype.name not in dtypes:
            other = "'png' or 'raw'" if self.dtype == np.uint16 else "'raw'"
            raise CodecError(f"codec {field.codec!r} cannot store {self.dtype.name}: take {other}")
        if self.channels not in (0, 1, 3, 4):
            raise CodecError(
                f"encoded images must have 1, 3 or 4 channels, got {self.channels}: use codec 'raw'"
            )
        if self.channels == 0 and field.codec != "png":
            raise CodecError(
                f"codec {field.codec!r} does not keep masks exactly: take 'png' or 'raw'"
            )
        self.colorspace = {1: "GRAY", 3: "RGB", 4: "RGBA"}.get(self.channels)
        self._tail = (self.channels,) * (self.channels > 0)  # of a shape, behind H x W
        nbytes = max(1, self.channels) * self.dtype.itemsize
        self.max_pixels = pixels_within(max_picture_mb, nbytes)
        self.keeps_jpeg = self.colorspace is not None and self.dtype == np.uint8

    def encode(self, value: Any) -> bytes:
        """Return the encoded file of an H x W x C (or H x W) array.

        Raises:
            CodecError: The array is of another dtype or shape, or the format cannot hold it.
        """
        array = np.ascontiguousarray(as_array(value))
        if array.ndim == 2 and self.channels == 1:
            array = array[:, :, None]
        if array.ndim < 2 or array.shape[2:] != self._tail or array.dtype != self.dtype:
            wanted = " x ".join(["H", "W", *map(str, self._tail)])
            got = f"{array.dtype} of {array.shape}"
            raise CodecError(f"takes {self.dtype.name} of {wanted}, got {got}")
        check_pixels(array.shape[0], array.shape[1], self.max_pixels)
        if self.field.codec == "jpeg":
            return encode_jpeg(array, self.quality)
        return _encode_cv2(array, f".{self.field.codec}", self.quality).tobytes()

    def decode(
        self,
        record: UInt8Array,  # the encoded file
        # 1, 2, 4 or 8: JPEG comes out smaller by this factor (sides rounded up); others do not.
        reduction: int = 1,
        # Where to decode to, flat uint8 of at least the picture's size; used if the decoder can (JPEG), and undefined
        # after an error.
        out: UInt8Array | None = None,
        # Height and width in the file's header, where they were read already.
        size: tuple[int, int] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the picture as H x W x C (masks H x W), C-contiguous.

        Raises:
            CodecError: The file is damaged, is not what the field holds, or does not fit ``out``.
        """
        if not len(record):
            raise CodecError("the record is empty")
        if not self.keeps_jpeg or record[0] != 0xFF:
            return self._decode_cv2(record)
        height, width = size or picture_size(record, self.max_pixels)
        return self.decode_jpeg(record, reduction, height, width, out, ends_early=False)

    def decode_jpeg(
        self,
        record: UInt8Array,
        reduction: int,
        height: int,
        width: int,
        out: UInt8Array | None,
        ends_early: bool,  # the header tells of fewer rows than follow, as of ``cut_out``
    ) -> UInt8Array:
        """Decode a JPEG, as ``decode`` does."""
        least = (0, 0) if reduction == 1 else (-(-height // reduction), -(-width // reduction))
        try:
            # Not strict where it ends early: what follows is what the decoder did not expect.
            return simplejpeg.decode_jpeg(  # type: ignore[no-any-return]
                record, self.colorspace, False, False, *least, reduction, out, not ends_early
            )
        except ValueError as error:
            raise CodecError(f"the JPEG cannot be decoded ({error})") from error

    def _decode_cv2(self, record: UInt8Array) -> npt.NDArray[Any]:
        picture_size(record, self.max_pixels)  # OpenCV knows more formats, and larger pictures
        if record[0] == 0xFF:
            what = "masks" if self.channels == 0 else self.dtype.name
            raise CodecError(f"the record is a JPEG, which does not keep {what} exactly")
        array = decode_cv2(record, self._flags())
        if self.channels == 3:
            array = cv2.cvtColor(array, cv2.COLOR_BGR2RGB)
        elif self.channels == 4:
            array = cv2.cvtColor(array, _TO_RGBA[array.shape[2:]])
        elif self.channels == 1:
            array = array[:, :, None]
        if array.dtype != self.dtype or array.shape[2:] != self._tail:
            what = f"the picture is {array.dtype} of {array.shape}"
            raise CodecError(f"{what}, the field {self.field}")
        return array

    def _flags(self) -> int:
        if self.channels in (0, 4):
            return cv2.IMREAD_UNCHANGED
        depth = cv2.IMREAD_ANYDEPTH if self.dtype != np.uint8 else 0
        color = cv2.IMREAD_GRAYSCALE if self.channels == 1 else cv2.IMREAD_COLOR
        return color | depth | cv2.IMREAD_IGNORE_ORIENTATION


def decode_cv2(record: UInt8Array, flags: int) -> npt.NDArray[Any]:
    """Decode with OpenCV, which refuses healthy WebP files of less than 32 bytes; CodecError if it cannot."""
    if len(record) < _CV2_MIN_BYTES:
        record = np.pad(record, (0, _CV2_MIN_BYTES - len(record)))
    array, why = None, "cut or damaged"
    try:
        array = cv2.imdecode(record, flags)
    except cv2.error as error:
        why = error.err
    if array is None:
        raise CodecError(f"the picture cannot be decoded ({why})")
    return array


def encode_jpeg(array: UInt8Array, quality: int = DEFAULT_QUALITY) -> bytes:
    """Encode H x W x C uint8 (C = 1 or 3) as JPEG with 4:2:0 chroma, as nearly every camera does.

    With restart markers and an index of them: a crop is then decoded alone (``codecs.jpeg``).
    """
    if array.shape[2] not in (1, 3):
        raise CodecError(f"JPEG holds 1 or 3 channels, got {array.shape[2]}")
    if max(array.shape) > _MAX_JPEG_SIDE:  # OpenCV would also print it
        raise CodecError(f"JPEG cannot hold {array.shape[0]} x {array.shape[1]} pixels")
    return with_index(_encode_cv2(array, ".jpeg", quality)).tobytes()


def _encode_cv2(array: npt.NDArray[Any], suffix: str, quality: int) -> UInt8Array:
    channels = array.shape[2] if array.ndim == 3 else 1
    if channels > 1:
        array = cv2.cvtColor(array, cv2.COLOR_RGB2BGR if channels == 3 else cv2.COLOR_RGBA2BGRA)
    done, data = False, array
    with suppress(cv2.error):
        done, data = cv2.imencode(suffix, array, _cv2_options(suffix, array, quality))
    if not done:
        raise CodecError(f"{suffix[1:]} cannot hold {array.dtype} of {array.shape}")
    return data.reshape(-1)


def _cv2_options(suffix: str, array: npt.NDArray[Any], quality: int) -> list[int]:
    if suffix == ".webp":
        return [cv2.IMWRITE_WEBP_QUALITY, quality]
    if suffix == ".png":
        return [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL]
    height, width = array.shape[:2]
    interval = restart_interval(height, width, 8 if array.shape[2:] in ((), (1,)) else 16)
    return [
        *(cv2.IMWRITE_JPEG_QUALITY, quality),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
        *(cv2.IMWRITE_JPEG_RST_INTERVAL, interval),
    ]


# -- several pictures in one record: their number, the size of each, and their files end to end ----


class ImagesCodec:
    """Pictures that are all of one kind, any number of them; ``one`` is the codec of each."""

    def __init__(self, field: Images) -> None:
        self.field, self.one = field, PictureCodec(field.one)

    def encode(self, value: Sequence[Any]) -> bytes:
        """Return the record of H x W x C arrays; CodecError if one of them cannot be stored."""
        return join_files([self.one.encode(picture) for picture in value])

    def decode(self, record: UInt8Array) -> list[npt.NDArray[Any]]:
        """Return the pictures, each H x W x C; CodecError if the record or one of them is damaged."""
        return [self._decoded(i, file) for i, file in enumerate(split_files(record))]

    def _decoded(self, number: int, file: UInt8Array) -> npt.NDArray[Any]:
        try:
            return self.one.decode(file)
        except CodecError as error:
            raise CodecError(f"picture {number}: {error}") from error


def join_files(files: Sequence[bytes]) -> bytes:
    """Return the record of several encoded pictures, or of none.

    Example:
        >>> join_files([b"ab", b"c"]).hex()
        '020000000200000001000000616263'
    """
    numbers = np.array([len(files), *map(len, files)], _NUMBER)
    return b"".join([numbers.tobytes(), *files])


def split_files(record: UInt8Array) -> list[UInt8Array]:
    """Return the encoded pictures of a record, as views; CodecError if it contradicts itself."""
    nbytes, width = len(record), _NUMBER.itemsize
    num = int(record[:width].view(_NUMBER)[0]) if nbytes >= width else 0
    start = width + width * num
    sizes = record[width:start].view(_NUMBER).tolist() if nbytes >= start else []
    if start + sum(sizes) != nbytes:
        raise CodecError(
            f"a record of {nbytes} bytes does not hold the {num} pictures that it lists"
        )
    files = []
    for size in sizes:
        files.append(record[start : start + size])
        start += size
    return files
