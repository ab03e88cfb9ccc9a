"""One picture: the bytes of a file to upright pixels, right where there is a right answer.

Pillow reads the head, once (``PictureFile``). JPEG goes through libjpeg-turbo then, colours of PNG and WebP
through OpenCV, everything else through Pillow; the bytes decide, not the name. What is done to a picture, and
noted in ``Picture.changes``:

- Exif orientation is applied, so that stored pixels are upright.
- CMYK and YCCK become RGB; palettes and 1-, 2- and 4-bit gray become 8-bit. Color profiles are
  ignored, as in other loaders, unless conversion to sRGB is asked for: nearly all pictures are of sRGB, but photos of
  some cameras and phones are of wider spaces (Adobe RGB, Display P3), and paler if they are read as sRGB.
- Transparent pixels are laid on white, the page that such pictures are drawn for. (Dropping alpha,
  as others do, shows whatever color hides below.)
- 16 bits become 8 by value / 257, rounded, so that white stays white; with ``dtype="uint16"`` they
  are kept, and 8 bits become 16 by value x 257.
- Of animated and multi-page files the first picture counts.

Cut and damaged files are errors, also those that a viewer shows with a gray rest. Pixels of which a decoder would drop
a part are refused.

libjpeg fills what is missing of a JPEG with gray, and only warns. Three oddities of many photos cost no pixel: padding
before the end, no end marker, and the scan header of some phones. They are mended in a copy of the file, and the copy
has to decode without a warning: libjpeg names its first only, and another may be behind.
"""

from __future__ import annotations

import io
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.ExifTags
import PIL.Image
import simplejpeg
from PIL import ImageCms
from PIL.JpegImagePlugin import JpegImageFile

from loaders.codecs import heads
from loaders.codecs.picture import decode_cv2
from loaders.errors import CodecError
from packdata.images.fit import MIN_REDUCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packdata.images.fit import Size

Array = npt.NDArray[Any]

KEPT = ("jpeg", "png", "webp")  # what every picture field serves, whichever it encodes to
ODD_JPEG, CONVERTED = "odd jpeg", "converted to sRGB"
_PIL_FORMATS = (
    *("PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP", "AVIF", "JPEG2000"),
    *("HEIF", "JXL"),  # of plugins
)
PIL.Image.init()  # imports its plugins: not on the thread that opens a picture first; nor the others, for HEIC
with suppress(ImportError):  # and for JPEG XL
    import pillow_heif

    pillow_heif.register_heif_opener()
with suppress(ImportError):
    import pillow_jxl  # noqa: F401 - registers on import
_PNG_DEPTH_AT, _PNG_END = 24, b"IEND\xaeB`\x82"
# ISO 15444-1, A.5.1: Ssiz of the first component.
_J2K_DEPTH = re.compile(rb"\xff\x4f\xff\x51.{38}(.)", re.DOTALL)
_SIGNED = 2  # TIFF's SampleFormat
_PADDING = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_MAX_ODDITIES = 8
_BAD_JPEG = "the JPEG is cut, damaged or of a rare kind ({}): save the picture again"
_PREFIX_NBYTES = 16  # that Pillow tells formats by


class PictureFile:
    """An encoded picture, of which the head is read; of the formats that are pictures (not EPS, a program).

    Attributes:
        data: The bytes.
        head: What Pillow read of them.
        format: ``jpeg``, ``png``, ``webp``, ``tiff``, ...
        orientation: Exif's, 1 to 8; 1 of a file that says none (or is turned by Pillow).
        size: (height, width), upright.
        bits: Bits a channel, as a PNG, TIFF, PPM or JPEG 2000 says; 8 for other formats.
        is_zero_white: Whether 0 is white, as in some TIFF; Pillow turns it around where there are 8 bits or fewer.

    Raises:
        CodecError: The bytes are no picture, a damaged one, or one of too many pixels.
    """

    def __init__(self, data: bytes, max_pixels: int = heads.MAX_PIXELS) -> None:
        if not data:
            raise CodecError("the file is empty")
        self.data, factory = data, _factory_of(data)
        if factory is None:
            hint = (
                "for HEIC, AVIF and JPEG XL 'pip install loaders[pictures]', or convert the file"
            )
            raise CodecError(f"no picture that is read: {data[:12]!r} at the start; {hint}")
        hint = "; bands that are no colours are for 'packdata arrays'"
        with _damage_named("picture", hint if data[:2] in (b"II", b"MM") else ""):
            # Not by Image.open, which has a limit of pixels of its own: one of the process.
            self.head: PIL.Image.Image = factory(io.BytesIO(data), "")
        head, self.format = self.head, str(self.head.format).lower()
        heads.check_pixels(head.height, head.width, max_pixels)
        if self.format == "png":
            if _PNG_END not in data:
                raise CodecError("the png is cut: its last chunk is missing")
            if b"eXIf" in data and "exif" not in head.info:  # behind the pixels
                self._decode()
        self.orientation = _orientation(head)
        self.size: Size = head.height, head.width
        if self.orientation >= 5:
            self.size = head.width, head.height
        self._tags = getattr(head, "tag_v2", {})
        self.is_zero_white = self._tags.get(PIL.ExifTags.Base.PhotometricInterpretation) == 0
        self.bits = max(self._tags.get(PIL.ExifTags.Base.BitsPerSample) or (8,))
        if self.format == "png":
            self.bits = data[_PNG_DEPTH_AT]
        elif self.format == "ppm" and isinstance(head.tile[0].args, tuple):
            self.bits = max(8, head.tile[0].args[1].bit_length())  # of the largest value
        elif self.format == "jpeg2000" and (found := _J2K_DEPTH.search(data)):
            self.bits = (found[1][0] & 0x7F) + 1

    def oddities(self) -> list[str]:
        """Return what keeps the file from being stored as it is, as far as its head says that."""
        odd = [self.format] * (self.format not in KEPT) + ["cmyk"] * (self.head.mode == "CMYK")
        with _damage_named(self.format):  # also behind the first picture
            odd += ["animated"] * (getattr(self.head, "n_frames", 1) > 1)
        if self.format == "png" and not odd:
            few = [f"{self.bits}-bit"] * (self.bits < 8)
            odd += ["palette"] if self.head.mode == "P" else few
        return odd

    def load(self) -> PIL.Image.Image:
        """Let Pillow decode it; CodecError where it would drop a part: bands, bits, or a gray that stands for clear."""
        mode, bits, clear = self.head.mode, self.bits, self.head.info.get("transparency")
        tags, names = self._tags, PIL.ExifTags.Base
        num_bands, extra = tags.get(names.SamplesPerPixel, 1), tags.get(names.ExtraSamples)
        is_signed = _SIGNED in tags.get(names.SampleFormat, ())
        is_inverted = bits > 8 and self.is_zero_white
        if (
            mode in ("I", "F")
            or (bits > 8 and not mode.startswith("I;16"))
            or (bits != 8 and mode != "P" and clear is not None)
            or (num_bands not in (1, 3) and extra not in ((1,), (2,)))
            or is_signed
            or is_inverted
            # Of 8 bits, which Pillow takes for one where a palette is black and white.
            or (self.format == "bmp" and mode == "1" and self.data[28] != 1)
        ):
            what = f"mode {mode}, {bits} bits, {num_bands} bands, transparent value {clear}"
            what += ", signed" * is_signed + ", 0 is white" * is_inverted
            hint = "save as PNG, gray or RGB of 8 or 16 bits, or numbers for 'packdata arrays'"
            raise CodecError(f"a {self.format} of such pixels is not read ({what}): {hint}")
        self._decode()
        return self.head

    def _decode(self) -> None:
        with _damage_named(self.format):
            self.head.load()

    def pixels(self) -> Array:
        """Return the first picture as gray, gray + alpha, RGB or RGBA of 8 or 16 bits, as it is stored."""
        # OpenCV keeps 16 bits, of which Pillow drops 8 in colours.
        is_one = not getattr(self.head, "is_animated", False)
        if self.format in KEPT and self.head.mode in ("RGB", "RGBA") and is_one:
            flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
            pixels = decode_cv2(np.frombuffer(self.data, np.uint8), flags)
            code = cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB
            return cv2.cvtColor(pixels, code)
        head = self.load()
        if head.mode.startswith("I;16"):
            return np.asarray(head).astype(np.uint16)
        mode = {"1": "L", "L": "L", "LA": "LA", "RGBA": "RGBA", "PA": "RGBA", "RGBa": "RGBA"}
        wanted = "RGBA" if "transparency" in head.info else mode.get(head.mode, "RGB")
        with _damage_named(f"{self.format} of mode {head.mode}"):
            return np.asarray(head.convert(wanted))

    def jpeg_pixels(
        self, channels: int, needed: Callable[[Size], Size] | None
    ) -> tuple[Array, bytes | None]:
        """Return the pixels of a JPEG, and what was mended of the file to get them; see ``decode_picture``."""
        if "progressive" in self.head.info:  # libjpeg does not warn of scans that are not there
            frame = heads.frame_of(self.data)
            if frame is not None and heads.unsent(bytes(self.data), frame):
                raise CodecError(_BAD_JPEG.format("its last scans are missing"))
        if self.head.mode == "CMYK":  # Pillow, which makes colours of it, hears no warning
            decode_strictly(self.data, "CMYK")
            return self.pixels(), None
        factor = 1 if needed is None else self._reduction(needed(self.size))
        height, width = self.head.height, self.head.width
        colorspace = "GRAY" if channels == 1 else "RGB"
        least = -(-height // factor), -(-width // factor)
        return decode_strictly(self.data, colorspace, factor, least)

    def _reduction(self, target: Size) -> int:
        """Return by how much it may be decoded smaller, to be scaled down to a size."""
        for factor in (8, 4, 2) if min(target) >= MIN_REDUCED else ():
            # What a last row or column lacks is at its end only while the picture is not turned.
            is_whole = self.orientation == 1 or not any(side % factor for side in self.size)
            sides = zip(target, self.size, strict=True)
            if is_whole and all(2 * n <= -(-s // factor) for n, s in sides):
                return factor
        return 1


def _factory_of(data: bytes) -> Any:
    """Return Pillow's class for a file, as its first bytes say; None if there is none."""
    if data[:2] == heads.JPEG_START:  # a file of several JPEGs is the first
        return JpegImageFile
    for name in filter(PIL.Image.OPEN.__contains__, _PIL_FORMATS):
        factory, accepts = PIL.Image.OPEN[name]
        if accepts is not None and accepts(data[:_PREFIX_NBYTES]) is True:
            return factory
    return None


def _orientation(head: PIL.Image.Image) -> int:
    exif, value = PIL.Image.Exif(), None
    with suppress(Exception):  # cut: viewers ignore such a block, too
        exif.load(head.info.get("exif", b""))
        value = exif.get(PIL.ExifTags.Base.Orientation)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


@contextmanager
def _damage_named(what: str, hint: str = "") -> Iterator[None]:
    """Raise CodecError for whatever Pillow's plugins raise on damage: it may be any exception."""
    try:
        yield
    except Exception as error:
        raise CodecError(f"the {what} is cut, damaged or not supported ({error}){hint}") from error


@dataclass(frozen=True, slots=True)
class Picture:
    """Decoded pixels with what was done to get them."""

    # H x W x C, upright, of the channels and dtype that were asked for; possibly reduced.
    pixels: Array
    size: Size  # the full (height, width), upright
    format: str = ""  # ``jpeg``, ``png``, ``webp``, or in lower case what else it was
    gray: bool = False  # True if the file itself holds a single channel
    # What keeps the file from being stored as it is: ``rotated``, ``cmyk``, ``palette``, ``alpha``, ``16-bit``,
    # ``8-bit``, ``animated``, ``gif``, ``odd jpeg``, ...
    changes: tuple[str, ...] = ()
    kept: bytes | None = None  # the file, or what is mended of an odd JPEG, if that can be stored
    file: PictureFile | None = None  # of which they are
    has_profile: bool = False  # whether its numbers mean what a colour profile of the file says


def decode_picture(
    data: bytes,
    *,
    channels: int = 3,  # 1 for gray, 3 for RGB
    dtype: str = "uint8",  # uint8 or uint16
    # Given the full size, says which size the picture will be scaled down to. A JPEG may then be decoded at a half,
    # a quarter or an eighth, sides rounded up, as long as that is twice as large as needed or more.
    needed: Callable[[Size], Size] | None = None,
    max_pixels: int = heads.MAX_PIXELS,  # that are accepted, of any format
    to_srgb: bool = False,  # convert 8-bit colours that have a colour profile to sRGB
) -> Picture:
    """Return the pixels of an encoded picture.

    Raises:
        CodecError: The bytes are no picture, a damaged one, or one of too many pixels; its profile is unreadable; or
            its pixels have no one form of 8 or 16 bits.

    Source:
        The factor of two is the ``reducing_gap=2.0`` of Pillow's ``Image.thumbnail``: beyond it
        the result "is very close to fair resampling".
    """
    file = PictureFile(data, max_pixels)
    changes, mended = file.oddities(), None
    if file.format == "jpeg":
        pixels, mended = file.jpeg_pixels(channels, needed)
        changes += [ODD_JPEG] * (mended is not None and not changes)
    else:
        pixels = file.pixels()
    pixels = oriented(pixels, file.orientation)
    changes += ["rotated"] * (file.orientation != 1)
    profile = file.head.info.get("icc_profile")
    if profile and to_srgb:
        pixels = _converted(pixels, profile, changes)
    pixels = _to_dtype(without_alpha(pixels, changes), np.dtype(dtype), changes)
    return Picture(
        pixels=_to_channels(pixels, channels),
        size=file.size,
        format=file.format,
        gray=file.head.mode in ("1", "L", "LA", "I;16"),
        changes=tuple(changes),
        kept=mended if changes == [ODD_JPEG] else None if changes else data,
        file=file,
        has_profile=bool(profile) and CONVERTED not in changes,
    )


def _converted(pixels: Array, profile: bytes, changes: list[str]) -> Array:
    """Return pixels as sRGB, which ``changes`` gets; as they were, if they are of sRGB or no 8-bit RGB."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] < 3 or "cmyk" in changes:
        return pixels
    try:
        if (transform := _transform(profile)) is None:
            return pixels
        colours = PIL.Image.fromarray(np.ascontiguousarray(pixels[:, :, :3]))
        done = np.asarray(ImageCms.applyTransform(colours, transform))
    except (ImageCms.PyCMSError, OSError) as error:
        raise CodecError(f"the colour profile cannot be read ({error})") from error
    changes.append(CONVERTED)
    return np.concatenate([done, pixels[:, :, 3:]], axis=2)


@lru_cache(maxsize=16)  # a camera has one
def _transform(profile: bytes) -> Any:
    """Return what converts from a profile to sRGB; None if that is nothing, or not from RGB."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    is_rgb = source.profile.xcolor_space.strip() == "RGB"
    if not is_rgb or "sRGB" in ImageCms.getProfileDescription(source):
        return None
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), "RGB", "RGB")


def oriented(pixels: Array, orientation: int) -> Array:
    """Apply Exif's orientation; 1 and invalid values leave the pixels as they are."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def without_alpha(pixels: Array, changes: list[str]) -> Array:
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


# -- JPEG -------------------------------------------------------------------------------------------


def decode_strictly(
    data: bytes, colorspace: str = "RGB", factor: int = 1, least: Size = (0, 0)
) -> tuple[Array, bytes | None]:
    """Return the pixels of a JPEG, reduced by a factor to a least size, and of an odd file what was decoded.

    Raises:
        CodecError: It is cut or damaged: not all pixels are there, or not all bytes were used; or of a
            kind that is not read.
    """
    mended, reason = None, ""
    for _ in range(_MAX_ODDITIES):
        try:
            pixels = simplejpeg.decode_jpeg(
                mended or data,
                colorspace,
                min_height=least[0],
                min_width=least[1],
                min_factor=factor,
            )
            return pixels, mended
        except ValueError as error:
            reason = str(error)
        if (plain := _without_oddity(mended or bytes(data), reason)) is None:
            break
        mended = plain
    raise CodecError(_BAD_JPEG.format(reason))


def _without_oddity(data: bytes, warning: str) -> bytes | None:
    """Return the file without what libjpeg warns of; None if that may have cost pixels."""
    if padding := _PADDING.search(warning):
        return _without_padding(data, int(padding[1]), int(padding[2], 16))
    if "Premature end of JPEG file" in warning:
        return heads.with_end(data)
    return _with_plain_scan(data) if "Invalid SOS" in warning else None


def _without_padding(data: bytes, num: int, before: int) -> bytes | None:
    """Cut out the bytes before a marker, if they are zeros or fill bytes.

    A scan with a flipped bit may give all of its blocks too early, and leaves bytes there too: these
    were pixels.
    """
    for at, mark in heads.markers(data):
        start = max(2, at - num)
        if mark == before and start < at and not data[start:at].strip(b"\0\xff"):
            return data[:start] + data[at:]
    return None


def _with_plain_scan(data: bytes) -> bytes | None:
    """Give the scans of a sequential file the header that libjpeg goes on with."""
    plain = bytearray(data)
    for at, mark in heads.markers(data):
        if mark == heads.SOS:
            behind = at + 5 + 2 * data[at + 4]
            plain[behind : behind + 3] = b"\0\x3f\0"
    return None if plain == data else bytes(plain)
