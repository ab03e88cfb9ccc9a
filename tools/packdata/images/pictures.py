"""One picture: the bytes of a file to upright pixels, right where there is a right answer.

Pillow reads the head, once. JPEG goes through libjpeg-turbo then, colours of PNG and WebP and those of 16 bits
through OpenCV, everything else through Pillow; the bytes decide, not the name. What is done to a picture, and
noted in ``Picture.changes``:

- Exif orientation is applied, so that stored pixels are upright.
- CMYK and YCCK become RGB; palettes and 1-, 2- and 4-bit gray become 8-bit. Color profiles are
  ignored, as in other loaders, unless conversion to sRGB is asked for (``packdata.images.profiles``).
- Transparent pixels are laid on white, the page that such pictures are drawn for. (Dropping alpha,
  as others do, shows whatever color hides below.)
- 16 bits become 8 by value / 257, rounded, so that white stays white; with ``dtype="uint16"`` they
  are kept, and 8 bits become 16 by value x 257.
- Of animated and multi-page files the first picture counts.

Cut and damaged files are errors, also those that a viewer shows with a gray rest. JPEG oddities
that lose no pixel pass.
"""

from __future__ import annotations

import io
import struct
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.ExifTags
import PIL.Image
from PIL.JpegImagePlugin import JpegImageFile

from loaders.codecs.heads import MAX_PIXELS, check_pixels
from loaders.codecs.markers import JPEG_START
from loaders.codecs.picture import decode_cv2
from loaders.errors import CodecError
from packdata.images.fit import MIN_REDUCED
from packdata.images.jpegs import check_jpeg_kind, decode_strictly
from packdata.images.profiles import converted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from packdata.images.fit import Size

Array = npt.NDArray[Any]

KEPT = ("jpeg", "png", "webp")  # what every picture field serves, whichever it encodes to
ODD_JPEG = "odd jpeg"
_PIL_FORMATS = (
    *("GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "PNG", "WEBP"),
    *("HEIF", "JXL"),  # of plugins
)
PIL.Image.init()  # imports its plugins: not on the thread that opens a picture first
# Pillow's plugins raise anything on damage, and DecompressionBombError, which is an Exception and nothing else.
_PIL_ERRORS = Exception
_JXL_STARTS = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_TIFF_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # bands by photometric interpretation
_PNG_DEPTH_AT, _PNG_END = 24, b"IEND\xaeB`\x82"
_LIFTING = threading.Lock()  # one at a time, which saves memory, too
_PREFIX_NBYTES = 16  # that Pillow tells formats by


@dataclass(frozen=True, slots=True)
class Picture:
    """Decoded pixels with what was done to get them."""

    # H x W x C, upright, of the channels and dtype that were asked for; possibly reduced.
    pixels: Array
    size: Size  # the full (height, width), upright
    format: str  # ``jpeg``, ``png``, ``webp``, or in lower case what else it was
    gray: bool  # True if the file itself holds a single channel
    # What keeps the file from being stored as it is: ``rotated``, ``cmyk``, ``palette``, ``alpha``, ``16-bit``,
    # ``8-bit``, ``animated``, ``gif``, ``odd jpeg``, ...
    changes: tuple[str, ...] = ()
    kept: bytes | None = None  # the file, or what is mended of an odd JPEG, if that can be stored
    head: PIL.Image.Image | None = None  # what Pillow read of the file
    has_profile: bool = False  # whether the file says by a colour profile what its numbers mean


def decode_picture(
    data: bytes,
    *,
    channels: int = 3,  # 1 for gray, 3 for RGB
    dtype: str = "uint8",  # uint8 or uint16
    # Given the full size, says which size the picture will be scaled down to. A JPEG may then be decoded at a half,
    # a quarter or an eighth, sides rounded up, as long as that is twice as large as needed or more.
    needed: Callable[[Size], Size] | None = None,
    max_pixels: int = MAX_PIXELS,  # that are accepted, of any format
    to_srgb: bool = False,  # convert 8-bit colours that have a colour profile to sRGB
) -> Picture:
    """Return the pixels of an encoded picture.

    Raises:
        CodecError: The bytes are no picture, a damaged one, or one of too many pixels; or its profile is unreadable.

    Source:
        The factor of two is the ``reducing_gap=2.0`` of Pillow's ``Image.thumbnail``: beyond it
        the result "is very close to fair resampling".
    """
    head = open_picture(data, max_pixels)
    name, orientation, mended = format_of(head), orientation_of(head), None
    changes = _oddities(head, data)
    if name == "jpeg":
        pixels, mended = _decode_jpeg(head, data, channels, _reduction(head, orientation, needed))
        changes += [ODD_JPEG] * (mended is not None and not changes)
    else:
        pixels = _pixels(head, data)
    if orientation != 1:
        pixels = turned(pixels, orientation)
        changes.append("rotated")
    profile = head.info.get("icc_profile")
    if profile and to_srgb:
        pixels = converted(pixels, profile, changes)
    pixels = _to_dtype(_flat(pixels, changes), np.dtype(dtype), changes)
    return Picture(
        pixels=_to_channels(pixels, channels),
        size=_size(head, orientation),
        format=name,
        gray=head.mode in ("1", "L", "LA", "I;16"),
        changes=tuple(changes),
        kept=mended if changes == [ODD_JPEG] else None if changes else data,
        head=head,
        has_profile=bool(profile),
    )


def format_of(head: PIL.Image.Image) -> str:
    """Return what a file is: ``jpeg``, ``png``, ``webp``, ``tiff``, ..."""
    return str(head.format).lower()


def orientation_of(head: PIL.Image.Image) -> int:
    """Return Exif's orientation, 1 to 8; 1 of a file that says none (or is turned by Pillow)."""
    exif = PIL.Image.Exif()
    try:
        exif.load(head.info.get("exif", b""))
        value = exif.get(PIL.ExifTags.Base.Orientation)
    except _PIL_ERRORS:  # cut: viewers ignore such a block, too
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _oddities(head: PIL.Image.Image, data: bytes) -> list[str]:
    """Return what keeps a file from being stored as it is, as far as its head says that."""
    name = format_of(head)
    odd = [] if name in KEPT else [name]
    odd += ["cmyk"] * (head.mode == "CMYK")
    try:
        odd += ["animated"] * (int(getattr(head, "n_frames", 1)) > 1)
    except _PIL_ERRORS:  # damage behind the first picture
        odd.append("animated")
    if name != "png" or odd:
        return odd
    if head.mode == "P":
        return ["palette"]
    return [f"{data[_PNG_DEPTH_AT]}-bit"] * (data[_PNG_DEPTH_AT] < 8)


def _size(head: PIL.Image.Image, orientation: int) -> Size:
    return (head.height, head.width) if orientation < 5 else (head.width, head.height)


def _reduction(
    head: PIL.Image.Image, orientation: int, needed: Callable[[Size], Size] | None
) -> int:
    size = _size(head, orientation)
    target = size if needed is None else needed(size)
    if min(target) < MIN_REDUCED:
        return 1
    for factor in (8, 4, 2):
        # What a last row or column lacks is at its end only while the picture is not turned.
        is_whole = orientation == 1 or not any(side % factor for side in size)
        if is_whole and all(2 * n <= -(-s // factor) for n, s in zip(target, size, strict=True)):
            return factor
    return 1


def _decode_jpeg(
    head: PIL.Image.Image, data: bytes, channels: int, factor: int
) -> tuple[Array, bytes | None]:
    """Return the pixels of a JPEG, and what was mended of the file to get them."""
    if head.mode == "CMYK":  # Pillow, which makes colours of it, hears no warning
        _, mended = decode_strictly(data, colorspace="CMYK")
        return _pixels(head if mended is None else open_picture(mended), data), mended
    options: dict[str, Any] = {"colorspace": "GRAY" if channels == 1 else "RGB"}
    if factor > 1:
        options |= {"min_height": -(-head.height // factor), "min_width": -(-head.width // factor)}
    return decode_strictly(data, min_factor=factor, **options)


def _pixels(head: PIL.Image.Image, data: bytes) -> Array:
    """Return the first picture of a file as gray, gray + alpha, RGB or RGBA of 8 or 16 bits, as it is stored."""
    name, is_deep = format_of(head), bits_of(head, data) == 16
    # OpenCV keeps 16 bits, of which Pillow drops 8 in colours; Pillow keeps the transparent gray of PNG.
    is_colored = head.mode in ("RGB", "RGBA")
    if name in KEPT and is_colored and not getattr(head, "is_animated", False):
        return _decode_cv2(data, name)
    tags = getattr(head, "tag_v2", {})
    is_by_opencv = name == "tiff" and is_deep and is_colored
    if (
        is_by_opencv and tags.get(PIL.ExifTags.Base.Orientation, 1) != 1
    ):  # some of its versions turn it
        raise CodecError("a 16-bit tiff with an Exif orientation: save the file upright")
    _load(head)
    _check_bands(tags)
    if is_by_opencv:  # which takes any fourth channel for alpha
        return _decode_cv2(data, name)[:, :, : len(head.mode)]
    if name == "png" and head.mode == "L" and "transparency" in head.info:
        top = (
            2 ** bits_of(head, data) - 1
        )  # Pillow stretches the pixels to 8 bits, and not this one
        head.info["transparency"] = (head.info["transparency"] & top) * (255 // top)
    return _array_of(head)


def bits_of(head: PIL.Image.Image, data: bytes) -> int:
    """Return the bits a channel of a PNG or TIFF; 8 of others."""
    if head.format == "PNG":
        return data[_PNG_DEPTH_AT]
    return max(getattr(head, "tag_v2", {}).get(PIL.ExifTags.Base.BitsPerSample) or (8,))


def _decode_cv2(data: bytes, name: str) -> Array:
    """Decode to gray, RGB or RGBA of 8 or 16 bits."""
    flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = decode_cv2(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise CodecError(f"the {name} is cut or damaged")
    if pixels.ndim == 2:
        return pixels
    code = cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB
    return cv2.cvtColor(pixels, code)


def _check_bands(tags: Mapping[int, Any]) -> None:
    """Raise CodecError for a TIFF with bands beside its colours that are no alpha: they would be dropped or blended."""
    num, colors = tags.get(277, 1), _TIFF_COLORS.get(tags.get(262, 1))
    extra = tags.get(338) or ()
    is_alpha = num - (colors or num) == 1 and tuple(extra) in ((1,), (2,))
    if colors is not None and num > colors and not is_alpha:
        hint = "save the bands with numpy.save, and pack them with 'packdata arrays'"
        raise CodecError(f"a tiff with {num} bands, of which {num - colors} are no colour: {hint}")


def open_picture(data: bytes, max_pixels: int = MAX_PIXELS) -> PIL.Image.Image:
    """Read the head of a file of the formats that are pictures (not EPS, which would run a program).

    Pillow's own limit of pixels, which is one of the process, does not count.

    Raises:
        CodecError: The bytes are no picture, a damaged one, or one of too many pixels.
    """
    if not len(data):
        raise CodecError("the file is empty")
    try:
        head = _opened(data)
    except _PIL_ERRORS as error:
        check_jpeg_kind(data)
        raise CodecError(f"the picture cannot be opened: cut or damaged ({error})") from error
    if head is None and _takes_a_plugin(data):
        what = "no installed decoder reads this HEIC, AVIF or JPEG XL"
        raise CodecError(f"{what}: 'pip install loaders[pictures]', or convert it")
    if head is None:
        what = f"not a picture, or cut or damaged in its head: the file starts with {data[:12]!r}"
        raise CodecError(what)
    check_pixels(head.height, head.width, max_pixels)
    if head.format == "PNG" and _PNG_END not in data:
        raise CodecError("the png is cut: its last chunk is missing")
    if head.format == "PNG" and b"eXIf" in data and "exif" not in head.info:  # behind the pixels
        _load(head)
    return head


def _opened(data: bytes) -> PIL.Image.Image | None:
    """Return what the first reader of Pillow's makes of a file that takes it; None if none does."""
    if data[:2] == JPEG_START:  # a file of several JPEGs is the first
        return JpegImageFile(io.BytesIO(data))
    if _takes_a_plugin(data):
        _load_plugins()
    for name in filter(PIL.Image.OPEN.__contains__, _PIL_FORMATS):
        factory, accepts = PIL.Image.OPEN[name]
        accepted = accepts is None or accepts(data[:_PREFIX_NBYTES])
        if accepted and not isinstance(accepted, str):  # else it says what it needs
            with suppress(SyntaxError, IndexError, TypeError, struct.error):  # as Image.open does
                return factory(io.BytesIO(data), "")
    return None


def _takes_a_plugin(data: bytes) -> bool:
    return data.startswith(_JXL_STARTS) or data[4:8] == b"ftyp"


@cache
def _load_plugins() -> None:
    """Register the installed plugins for HEIC and JPEG XL with Pillow."""
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    with suppress(ImportError):
        import pillow_jxl  # noqa: F401 - registers on import


def _load(head: PIL.Image.Image) -> None:
    """Let Pillow decode a picture, also one within our limit and not within Pillow's, which is the process's."""
    limit = PIL.Image.MAX_IMAGE_PIXELS
    is_large = limit is not None and head.width * head.height > limit
    try:
        with _without_limit() if is_large else nullcontext():
            head.load()
    except _PIL_ERRORS as error:
        raise CodecError(f"the {format_of(head)} is cut or damaged ({error})") from error


@contextmanager
def _without_limit() -> Iterator[None]:
    with _LIFTING:
        limit, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            PIL.Image.MAX_IMAGE_PIXELS = limit


def _array_of(image: PIL.Image.Image) -> Array:
    mode = image.mode
    if mode.startswith("I;16"):
        return _without_clear(np.asarray(image).astype(np.uint16), image.info.get("transparency"))
    if mode == "I":
        return _narrow(np.asarray(image))
    if mode == "F":
        what = "32-bit floats, which have no one right 8-bit form"
        raise CodecError(f"{what}: convert it to 8 or 16 bits first")
    if "transparency" in image.info or mode in ("PA", "RGBa"):
        return np.asarray(image.convert("RGBA"))
    plain = {"1": "L", "La": "LA"}.get(mode, mode if mode in ("L", "LA", "RGB", "RGBA") else "RGB")
    return np.asarray(image if plain == mode else image.convert(plain))


def _without_clear(gray: Array, clear: int | None) -> Array:
    """Return gray with a channel of alpha, if a value in it stands for what is not there."""
    if clear is None or not (gray == clear).any():
        return gray
    alpha = np.where(gray == clear, 0, np.iinfo(gray.dtype).max)
    return np.dstack([gray, alpha.astype(gray.dtype)])


def _narrow(values: Array) -> npt.NDArray[np.uint16]:
    if values.min() < 0 or values.max() > 65_535:
        what = f"values from {values.min()} to {values.max()}, which do not fit 16 bits"
        raise CodecError(f"{what}: convert it to 8 or 16 bits first")
    return values.astype(np.uint16)


def turned(pixels: Array, orientation: int) -> Array:
    """Apply Exif's orientation; 1 and invalid values leave the pixels as they are."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _flat(pixels: Array, changes: list[str]) -> Array:
    """Lay transparent pixels on white, rounding to the nearest value."""
    if pixels.ndim == 2 or pixels.shape[2] in (1, 3):
        return pixels
    color, alpha = pixels[:, :, :-1], pixels[:, :, -1:]
    white = np.iinfo(pixels.dtype).max
    is_opaque = bool((alpha == white).all())
    if not is_opaque or pixels.shape[2] == 2:
        # OpenCV, which serves it, drops alpha of colours: an opaque picture may stay as it is.
        changes.append("alpha")
    if is_opaque:
        return np.ascontiguousarray(color)
    weight = alpha.astype(np.uint32)
    mixed: Array = (color * weight + white * (white - weight) + white // 2) // white
    return mixed.astype(pixels.dtype)


def _to_dtype(pixels: Array, dtype: np.dtype[Any], changes: list[str]) -> Array:
    if pixels.dtype == dtype:
        return pixels
    if dtype == np.uint16:
        changes.append("8-bit")
        return pixels.astype(np.uint16) * np.uint16(257)
    changes.append("16-bit")
    return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _to_channels(pixels: Array, channels: int) -> Array:
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, None]
    if pixels.shape[2] == channels:
        return np.ascontiguousarray(pixels)
    if channels == 1:
        return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[:, :, None]
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], channels)))


def decode_mask(data: bytes, max_pixels: int = MAX_PIXELS) -> Array:
    """Return a mask as H x W, uint8 or uint16, upright, its integers exactly as stored.

    Palette files give indices, not colors; 1-, 2- and 4-bit files their values (0 and 1, not 0 and
    255). Color files pass if their channels are equal, transparency if it is opaque.

    Raises:
        CodecError: The bytes are no picture, a damaged one, a lossy one, one of more than ``max_pixels``, or
            colors.
    """
    head = open_picture(data, max_pixels)
    check_exact(head, data)
    values = turned(_mask_values(head, data), orientation_of(head))
    if values.ndim == 2:
        return values
    opaque = values.shape[2] in (1, 3) or (values[:, :, -1] == np.iinfo(values.dtype).max).all()
    colors = values[:, :, : 3 if values.shape[2] > 2 else 1]
    if not opaque or (colors != colors[:, :, :1]).any():
        raise CodecError("colors, not one whole number per pixel (gray or palette)")
    return np.ascontiguousarray(colors[:, :, 0])


def check_exact(head: PIL.Image.Image, data: bytes) -> None:
    """Raise CodecError for a file of lossy pixels."""
    name, at = format_of(head), 12
    while name == "webp" and data[at : at + 4] in (b"VP8X", b"ICCP"):  # before the pixels
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "little") + 1 & ~1
    if name == "jpeg" or (name == "webp" and data[at : at + 4] != b"VP8L"):
        what = "lossy or animated webp" if name == "webp" else name
        raise CodecError(f"{what} is not exact: save masks as PNG")


def _mask_values(head: PIL.Image.Image, data: bytes) -> Array:
    bits = bits_of(head, data)
    if bits == 16 and head.mode in ("RGB", "RGBA"):
        return _pixels(head, data)
    _load(head)
    values = np.asarray(head)
    if head.mode == "F":
        raise CodecError("32-bit floats, not whole numbers: save masks as integers")
    if head.mode == "I":
        return _narrow(values)
    if head.mode == "L" and bits in (2, 4):
        values = values // (255 // (2**bits - 1))  # Pillow stretches them to 8 bits
    return values.astype(np.uint16 if values.dtype.itemsize == 2 else np.uint8)
