"""One picture: the bytes of a file to upright pixels, right where there is a right answer.

JPEG goes through libjpeg-turbo, PNG and WebP through OpenCV, everything else through Pillow; the
bytes decide, not the name. What is done to a picture, and noted in ``Picture.changes``:

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageOps

from loaders.codecs.heads import MAX_PIXELS, check_pixels
from loaders.codecs.picture import decode_cv2
from loaders.errors import CodecError
from packdata.images.fit import MIN_REDUCED
from packdata.images.headers import PNG_START, Header, is_lossless_webp, read_header
from packdata.images.jpegs import decode_strictly
from packdata.images.profiles import converted, find_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from packdata.images.fit import Size

Array = npt.NDArray[Any]

_PIL_FORMATS = (
    *("GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "JPEG", "MPO", "PNG", "WEBP"),
    *("HEIF", "JXL"),  # of plugins
)
PIL.Image.init()  # imports its plugins: not on the thread that opens a picture first
# Pillow's plugins raise anything on damage, and DecompressionBombError, which is an Exception and nothing else.
_PIL_ERRORS = Exception
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # bands by photometric interpretation
# By how a file starts: what to say where Pillow finds no picture behind it.
_STARTS = {
    b"GIF87a": "the gif is cut or damaged",
    b"GIF89a": "the gif is cut or damaged",
    b"\0\0\0\x0cjP  ": "the jpeg2000 is cut or damaged",
    **dict.fromkeys(_TIFF_STARTS, "the tiff is cut or damaged, or of a kind that is not known"),
}
_PLUGIN_STARTS = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")  # of JPEG XL
ODD_JPEG = "odd jpeg"
_ORIENTATION_TAG = 0x0112
_PNG_DEPTH_AT = 24
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
    changes: tuple[str, ...]
    mended: bytes | None = None  # the file without what makes it an odd JPEG
    has_profile: bool = False  # whether the file says by a colour profile what its numbers mean

    def kept(self, data: bytes) -> bytes | None:
        """Return the file, or what is mended of it, if that can be stored; else None."""
        if self.changes == (ODD_JPEG,):
            return self.mended
        return None if self.changes else data


class _OtherNumbersError(ValueError):
    """A healthy file holds numbers that cannot be packed; the text says which, and what to do."""


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
    if not len(data):
        raise CodecError("the file is empty")
    header, mended = read_header(data), None
    if header is None or header.color == "cmyk" or header.animated:
        if header is not None and header.format == "jpeg":
            check_pixels(*header.size, max_pixels)
            # Pillow, which reads it, hears no warning.
            _, mended = decode_strictly(data, colorspace="CMYK")
        pixels, name, notes = _decode_other(mended or data, max_pixels)
        size = (pixels.shape[0], pixels.shape[1])
        gray = pixels.ndim == 2
    else:
        check_pixels(*header.size, max_pixels)
        reduction = _reduction(header, needed)
        if header.format == "jpeg":
            pixels, mended = _decode_jpeg(data, header.size, channels, reduction)
            notes = [] if mended is None else [ODD_JPEG]
        else:
            pixels, notes = _decode_known(data, header, max_pixels)
        pixels, notes = _turn(pixels, header.orientation, notes)
        size = header.size if header.orientation < 5 else header.size[::-1]
        name, gray = header.format, header.color == "gray"
    profile = find_profile(data, open_pil)
    if profile is not None and to_srgb:
        pixels, notes = converted(pixels, profile, notes)
    pixels, notes = _flatten(pixels, notes)
    pixels, notes = _to_dtype(pixels, np.dtype(dtype), notes)
    return Picture(
        _to_channels(pixels, channels), size, name, gray, tuple(notes), mended, profile is not None
    )


def _reduction(header: Header, needed: Callable[[Size], Size] | None) -> int:
    if needed is None or header.format != "jpeg":
        return 1
    size = header.size if header.orientation < 5 else header.size[::-1]
    (height, width), target = size, needed(size)
    if min(target) < MIN_REDUCED:
        return 1
    for factor in (8, 4, 2):
        # What a last row or column lacks is at its end only while the picture is not turned.
        is_whole = header.orientation == 1 or not (height % factor or width % factor)
        is_twice = 2 * target[0] <= -(-height // factor) and 2 * target[1] <= -(-width // factor)
        if is_twice and is_whole:
            return factor
    return 1


def _decode_known(data: bytes, header: Header, max_pixels: int) -> tuple[Array, list[str]]:
    notes = ["palette"] if header.color == "palette" else []
    if header.depth < 8 and not notes:
        notes = [f"{header.depth}-bit"]
    is_clear_gray = header.color == "gray" and header.alpha
    if is_clear_gray and header.depth <= 8:  # OpenCV drops the transparent gray
        return _decode_pil(data, max_pixels)[0], notes
    pixels = _decode_cv2(data, header.format)
    if is_clear_gray and pixels.ndim == 2:  # of 16 bits too; Pillow would halve a channel of alpha
        pixels = _decode_pil(data, max_pixels)[0]
    return pixels, notes


def _decode_jpeg(
    data: bytes, size: Size, channels: int, reduction: int
) -> tuple[Array, bytes | None]:
    height, width = (-(-side // reduction) for side in size)
    space = "GRAY" if channels == 1 else "RGB"
    options: dict[str, Any] = {"min_factor": reduction, "colorspace": space}
    if reduction > 1:
        options |= {"min_height": height, "min_width": width}
    return decode_strictly(data, **options)


def _decode_cv2(data: bytes, name: str) -> Array:
    """Decode to gray, RGB or RGBA of 8 or 16 bits."""
    flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = decode_cv2(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise CodecError(f"the {name} is cut or damaged")
    if pixels.dtype not in (np.uint8, np.uint16):
        raise CodecError(
            f"the {name} has pixels of {pixels.dtype}; convert it to 8 or 16 bits first"
        )
    if pixels.ndim == 2:
        return pixels
    code = cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB
    return cv2.cvtColor(pixels, code)


def _decode_other(data: bytes, max_pixels: int) -> tuple[Array, str, list[str]]:
    """Decode what Pillow knows, upright; 16-bit color TIFF through OpenCV, as Pillow halves it."""
    pixels, image = _decode_pil(data, max_pixels, upright=True)
    name = str(image.format).lower()
    notes = [name] if name not in ("jpeg", "png", "webp") else []
    if image.mode == "CMYK":
        notes.append("cmyk")
    if _has_more(image):
        notes.append("animated")
    tags = getattr(image, "tag_v2", {})
    if data[:4] in _TIFF_STARTS:
        _check_bands(tags)
    if data[:4] in _TIFF_STARTS and image.mode.startswith("RGB") and 16 in (tags.get(258) or ()):
        # Some versions of OpenCV turn it unasked; the tag is gone from what Pillow has turned.
        if open_pil(data, max_pixels).getexif().get(_ORIENTATION_TAG, 1) != 1:
            raise CodecError("a 16-bit tiff with an Exif orientation: save the file upright")
        pixels = _decode_cv2(data, "tiff")
        if image.mode != "RGBA":  # OpenCV takes any fourth channel for alpha
            pixels = pixels[:, :, :3]
    return pixels, name, notes or [f"odd {name}"]


def _check_bands(tags: Mapping[int, Any]) -> None:
    """Raise CodecError for a TIFF with bands beside its colours that are no alpha: they would be dropped or blended."""
    num, colors = tags.get(277, 1), _TIFF_COLORS.get(tags.get(262, 1))
    extra = tags.get(338) or ()
    is_alpha = num - (colors or num) == 1 and tuple(extra) in ((1,), (2,))
    if colors is not None and num > colors and not is_alpha:
        hint = "save the bands with numpy.save, and pack them with 'packdata arrays'"
        raise CodecError(f"a tiff with {num} bands, of which {num - colors} are no colour: {hint}")


def _has_more(image: PIL.Image.Image) -> bool:
    try:
        return int(getattr(image, "n_frames", 1)) > 1
    except _PIL_ERRORS:  # damage behind the first picture
        return True


def _decode_pil(
    data: bytes, max_pixels: int, *, upright: bool = False
) -> tuple[Array, PIL.Image.Image]:
    """Return the first picture as gray, gray + alpha, RGB or RGBA, and Pillow's view of it."""
    image = open_pil(data, max_pixels)
    try:
        with _lifted_limit(image):
            image.load()
        _scale_clear(image, data)
        mode = image.mode  # ImageOps would give another object
        turned = PIL.ImageOps.exif_transpose(image) if upright else image
        return _array_of(turned, mode), image
    except _OtherNumbersError as error:
        raise CodecError(f"the {str(image.format).lower()} holds {error}") from None
    except _PIL_ERRORS as error:
        raise CodecError(f"the {str(image.format).lower()} is cut or damaged ({error})") from error


def _scale_clear(image: PIL.Image.Image, data: bytes) -> None:
    """Scale the transparent gray of a PNG to 8 bits: Pillow does so with the pixels alone."""
    if data[:8] == PNG_START and image.mode == "L" and "transparency" in image.info:
        top = 2 ** data[_PNG_DEPTH_AT] - 1
        image.info["transparency"] = (image.info["transparency"] & top) * (255 // top)


def open_pil(data: bytes, max_pixels: int = MAX_PIXELS) -> PIL.Image.Image:
    """Open a file of the formats that are pictures (not EPS, which would run a program).

    Pillow's own limit of pixels, which is one of the process, does not count.
    """
    try:
        image = _opened(data)
        if image is None and _takes_a_plugin(data):
            _load_plugins()
            image = _opened(data)
    except _PIL_ERRORS as error:
        raise CodecError(f"the picture cannot be opened ({error})") from error
    if image is None:
        raise CodecError(_why_unknown(data))
    check_pixels(image.height, image.width, max_pixels)
    return image


def _takes_a_plugin(data: bytes) -> bool:
    return data.startswith(_PLUGIN_STARTS) or data[4:8] == b"ftyp"


@cache
def _load_plugins() -> None:
    """Register the installed plugins for HEIC and JPEG XL with Pillow."""
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    with suppress(ImportError):
        import pillow_jxl  # noqa: F401 - registers on import


def _opened(data: bytes) -> PIL.Image.Image | None:
    """Return what the first reader of Pillow's makes of a file that takes it; None if none does."""
    for name in _PIL_FORMATS:
        if name not in PIL.Image.OPEN:
            continue
        factory, accepts = PIL.Image.OPEN[name]
        accepted = accepts is None or accepts(data[:_PREFIX_NBYTES])
        if accepted and not isinstance(accepted, str):  # else it says what it needs
            with suppress(SyntaxError, IndexError, TypeError, struct.error):  # as Image.open does
                return factory(io.BytesIO(data), "")
    return None


@contextmanager
def _lifted_limit(image: PIL.Image.Image) -> Iterator[None]:
    """Let Pillow load a picture that is within our limit, and not within Pillow's, which is the process's."""
    limit = PIL.Image.MAX_IMAGE_PIXELS
    if limit is None or image.width * image.height <= limit:
        yield
        return
    with _LIFTING:
        limit, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            PIL.Image.MAX_IMAGE_PIXELS = limit


def _why_unknown(data: bytes) -> str:
    start = bytes(data[:12])
    known = next((what for begin, what in _STARTS.items() if start.startswith(begin)), None)
    if _takes_a_plugin(data):
        known = "no installed decoder reads this HEIC, AVIF or JPEG XL: 'pip install loaders[pictures]', or convert it"
    return known or f"not a picture: the file starts with {start!r}"


def _array_of(image: PIL.Image.Image, mode: str) -> Array:
    if mode.startswith("I;16"):
        return _without_clear(np.asarray(image).astype(np.uint16), image.info.get("transparency"))
    if mode == "I":
        return _narrow(np.asarray(image))
    if mode == "F":
        raise _OtherNumbersError(
            "32-bit floats, which have no one right 8-bit form: convert it to 8 or 16 bits first"
        )
    if mode in ("La", "RGBa"):
        image = image.convert(mode.upper())
    if "transparency" in image.info or mode == "PA":
        return np.asarray(image.convert("RGBA"))
    if mode == "1":
        return np.asarray(image.convert("L"))
    plain = mode in ("L", "LA", "RGB", "RGBA", "La", "RGBa")
    return np.asarray(image if plain else image.convert("RGB"))


def _without_clear(gray: Array, clear: int | None) -> Array:
    """Return gray with a channel of alpha, if a value in it stands for what is not there."""
    if clear is None or not (gray == clear).any():
        return gray
    return np.dstack([gray, np.where(gray == clear, 0, np.iinfo(gray.dtype).max)]).astype(
        gray.dtype
    )


def _narrow(values: Array) -> npt.NDArray[np.uint16]:
    if values.size and (values.min() < 0 or values.max() > 65_535):
        what = f"values from {values.min()} to {values.max()}, which do not fit 16 bits"
        raise _OtherNumbersError(f"{what}: convert it to 8 or 16 bits first")
    return values.astype(np.uint16)


def _turn(pixels: Array, orientation: int, notes: list[str]) -> tuple[Array, list[str]]:
    return turned(pixels, orientation), notes if orientation == 1 else [*notes, "rotated"]


def turned(pixels: Array, orientation: int) -> Array:
    """Apply Exif's orientation; 1 and invalid values leave the pixels as they are."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _flatten(pixels: Array, notes: list[str]) -> tuple[Array, list[str]]:
    """Lay transparent pixels on white, rounding to the nearest value."""
    if pixels.ndim == 2 or pixels.shape[2] in (1, 3):
        return pixels, notes
    color, alpha = pixels[:, :, :-1], pixels[:, :, -1:]
    white = np.iinfo(pixels.dtype).max
    if (alpha == white).all():
        # OpenCV, which serves it, drops alpha: an opaque picture may stay as it is.
        return np.ascontiguousarray(color), notes if pixels.shape[2] == 4 else [*notes, "alpha"]
    weight = alpha.astype(np.uint32)
    mixed = (color * weight + white * (white - weight) + white // 2) // white
    return mixed.astype(pixels.dtype), [*notes, "alpha"]


def _to_dtype(pixels: Array, dtype: np.dtype[Any], notes: list[str]) -> tuple[Array, list[str]]:
    if pixels.dtype == dtype:
        return pixels, notes
    if dtype == np.uint16:
        return pixels.astype(np.uint16) * np.uint16(257), [*notes, "8-bit"]
    return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8), [*notes, "16-bit"]


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
    if not len(data):
        raise CodecError("the mask is empty")
    with _naming_the_mask():
        header = read_header(data)
    if header is not None and header.format != "png" and not is_lossless_webp(data):
        name = "lossy or animated webp" if header.format == "webp" else header.format
        raise CodecError(f"a mask as {name} is not exact; save it as PNG")
    try:
        with _naming_the_mask():
            values = _mask_values(data, header, max_pixels)
    except _OtherNumbersError as error:
        raise CodecError(f"the mask holds {error}") from None
    return _one_channel(values)


@contextmanager
def _naming_the_mask() -> Iterator[None]:
    """Say of an error about a file that it is the mask's: the place it gets is the picture's."""
    try:
        yield
    except CodecError as error:
        raise CodecError(f"the mask cannot be read: {error}") from error


def _mask_values(data: bytes, header: Header | None, max_pixels: int) -> Array:
    if header is None or header.color == "palette" or header.depth == 1 or header.animated:
        return _decode_indices(data, max_pixels)
    check_pixels(*header.size, max_pixels)
    values = _decode_cv2(data, header.format)
    if header.depth in (2, 4) and header.color == "gray":
        values = values // (255 // (2**header.depth - 1))  # decoders stretch them to 8 bits
    return turned(values, header.orientation)


def _decode_indices(data: bytes, max_pixels: int) -> Array:
    image = open_pil(data, max_pixels)
    try:
        with _lifted_limit(image):
            image.load()  # also what Exif says behind the pixels
        values = np.asarray(PIL.ImageOps.exif_transpose(image))
        if image.mode == "F":
            raise _OtherNumbersError("32-bit floats, not whole numbers: save it as integers")
        if image.mode == "I":
            return _narrow(values)
        return values.astype(np.uint16 if values.dtype.itemsize == 2 else np.uint8)
    except _OtherNumbersError:
        raise
    except _PIL_ERRORS as error:
        raise CodecError(f"it is cut or damaged ({error})") from error


def _one_channel(values: Array) -> Array:
    if values.ndim == 2:
        return np.ascontiguousarray(values)
    opaque = values.shape[2] in (1, 3) or (values[:, :, -1] == np.iinfo(values.dtype).max).all()
    colors = values[:, :, : 3 if values.shape[2] > 2 else 1]
    if not opaque or (colors != colors[:, :, :1]).any():
        raise CodecError(
            "the mask has colors; it needs one whole number per pixel (gray or palette)"
        )
    return np.ascontiguousarray(colors[:, :, 0])
