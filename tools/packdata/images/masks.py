"""Masks: the numbers of a file, exactly; by ``--palette`` its colours as class numbers; by ``--label-map`` others."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.checks import shown
from loaders.codecs.heads import MAX_PIXELS
from loaders.errors import CodecError, SourceError
from packdata.images.pictures import PictureFile, decode_picture, oriented, without_alpha
from packdata.reading import File, read_file

if TYPE_CHECKING:
    from loaders.remote.url import Location
    from packdata.images.fit import Size
    from packdata.sources.base import Item, Source

Values = npt.NDArray[Any]
NUM_PEEKED = 16  # items that are looked at before the first is packed
_EXACT = ("png", "gif", "bmp", "tiff")
_HEX = re.compile(r"#([0-9a-fA-F]{6})\b")
_THREE = re.compile(r"(?<!\d)(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})(?!\d)")
_TWO = re.compile(r"^[ \t]*(-?\d+)[ \t,;:]+(-?\d+)\b", re.MULTILINE)
_COLORS_HINT = "A palette has a colour a line, R G B or #RRGGBB, in the order of the classes"
_NUMBERS_HINT = "A label map has two numbers a line, old and new, from 0 to 65535"


def decode_mask(data: bytes, max_pixels: int = MAX_PIXELS) -> Values:
    """Return a mask as H x W, uint8 or uint16, upright, its integers exactly as stored.

    Palette files give indices, not colors; 1-, 2- and 4-bit files their values (0 and 1, not 0 and
    255). Color files pass if their channels are equal, transparency if it is opaque.

    Raises:
        CodecError: The bytes are no picture, several, a damaged one, a lossy one, one of more than ``max_pixels``, or
            colors; or 0 stands for white.
    """
    file = PictureFile(data, max_pixels)
    _check_exact(file.format, "animated" in file.oddities())
    if file.is_zero_white:
        raise CodecError("0 is white in this TIFF, and is read as 255: save masks as PNG")
    values = np.asarray(file.load())
    if file.head.mode == "L" and file.bits in (2, 4):
        values = values // (255 // (2**file.bits - 1))  # Pillow stretches them to 8 bits
    values = values.astype(np.uint16 if values.dtype.itemsize == 2 else np.uint8)
    values, changes = oriented(values, file.orientation), list[str]()
    if values.ndim == 2:
        return values
    colors = without_alpha(values, changes)
    if changes or (colors != colors[:, :, :1]).any():
        raise CodecError("colors or transparency, not one number per pixel (gray or palette)")
    return np.ascontiguousarray(colors[:, :, 0])


def _check_exact(format: str, are_several: bool) -> None:
    """Raise CodecError for a format that may lose pixels, or a file of several pictures."""
    if format not in _EXACT:
        raise CodecError(f"{format} may change the numbers of a mask: save masks as PNG")
    if are_several:
        raise CodecError("several pictures in one file: save each mask as a PNG of its own")


class ClassMap:
    """The class numbers that are stored, by what a mask's file holds: a value, or with a palette a colour (0xRRGGBB).

    Raises:
        SourceError: At construction, a file cannot be read, or has nothing of the kind.
    """

    def __init__(self, palette: Location | str | None, label_map: Location | str | None) -> None:
        given = {"palette": palette, "label map": label_map}
        self.names = [f"{name} {value}" for name, value in given.items() if value is not None]
        self._is_colored = palette is not None
        numbers = {} if palette is None else _palette(palette)
        if label_map is not None:
            table = _label_map(label_map)
            if missing := {*numbers.values()} - {*table}:
                what = f"no number for class {min(missing)} of the palette"
                raise SourceError(what, label_map, _NUMBERS_HINT)
            numbers = {color: table[number] for color, number in numbers.items()} or table
        self._pairs = sorted(map(list, numbers.items()))
        self._known, stored = np.array(self._pairs, np.int64).T
        self.dtype = "uint16" if stored.max() > np.iinfo(np.uint8).max else "uint8"
        self._stored = stored.astype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers that are stored, by colour or value: wherever the files lie."""
        return {"palette" if self._is_colored else "label_map": self._pairs}

    def read(self, data: bytes, max_pixels: int) -> Values:
        """Return the stored values of a mask's file.

        Raises:
            CodecError: It cannot be read, or has a colour or value that is not known.
        """
        if self._is_colored:
            picture = decode_picture(data, max_pixels=max_pixels)
            _check_exact(picture.format, "animated" in picture.changes)
            if {"alpha", "16-bit"} & {*picture.changes}:
                raise CodecError("transparency or 16 bits: a palette has opaque colours of 8 bits")
            values = picture.pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
        else:
            values = decode_mask(data, max_pixels)
        at = np.searchsorted(self._known, values).clip(0, len(self._known) - 1)
        if (wrong := self._known[at] != values).any():
            y, x = np.argwhere(wrong)[0].tolist()
            value = f"#{values[y, x]:06x}" if self._is_colored else values[y, x]
            what = f"value {value} at x={x}, y={y} is missing in {' and '.join(self.names)}"
            raise CodecError(what)
        return np.asarray(self._stored[at])


def _palette(palette: Location | str) -> dict[int, int]:
    """Return the number by colour; the first line may be a header, those of ``# `` are comments."""
    text = read_file(palette, _COLORS_HINT).decode(errors="replace")
    lines = [
        line for line in text.splitlines() if line.strip() and not re.match(r"\s*#(\s|$)", line)
    ]
    colors = []
    for number, line in enumerate(lines):
        if found := _HEX.search(line):
            colors.append(int(found[1], 16))
        elif (found := _THREE.search(line)) and max(map(int, found.groups())) <= 255:
            colors.append(int.from_bytes(bytes(map(int, found.groups())), "big"))
        elif found or number:  # the numbers of the classes behind it would be others
            raise SourceError(f"{shown(line)} is no colour", palette, _COLORS_HINT)
    if not colors or len({*colors}) < len(colors):
        raise SourceError("duplicate colours, or none", palette, _COLORS_HINT)
    return {color: number for number, color in enumerate(colors)}


def _label_map(label_map: Location | str) -> dict[int, int]:
    """Return the new number by the old one."""
    text = read_file(label_map, _NUMBERS_HINT).decode(errors="replace")
    lines = _TWO.findall(text)
    pairs = {int(old): int(new) for old, new in lines}
    numbers = {*pairs, *pairs.values()}
    if not pairs or len(pairs) < len(lines) or min(numbers) < 0 or max(numbers) > 65_535:
        what = "duplicate numbers, numbers outside 0 to 65535, or none"
        raise SourceError(what, label_map, _NUMBERS_HINT)
    return pairs


class Masks:
    """The masks of a source, all stored as ``dtype``.

    That is the dtype of the class map, or the given one; by default uint16 if one of the first masks is, else uint8.
    """

    def __init__(
        self, source: Source, class_map: ClassMap | None, dtype: str | None, max_pixels: int
    ) -> None:
        self._decode = decode_mask if class_map is None else class_map.read
        self._max_pixels = max_pixels
        self.dtype = (dtype if class_map is None else class_map.dtype) or self._deepest(source)

    def _deepest(self, source: Source) -> str:
        dtypes = set[str]()
        for item in islice(source.items(0), NUM_PEEKED):
            with suppress(SourceError):  # it is rejected in its turn
                dtypes.add(self._read(item).dtype.name)
        return "uint16" if "uint16" in dtypes else "uint8"

    def read(self, item: Item, size: Size) -> Values:
        """Return the mask of a picture of a size; SourceError if it is of another, or deeper than the first ones."""
        mask = self._read(item)
        if mask.shape != size:
            what = f"the mask has {mask.shape} pixels, the picture {size}"
            raise SourceError(f"{what} (height, width), both turned upright", _place_of(item))
        if mask.max() > np.iinfo(self.dtype).max:
            what = f"the mask holds {mask.max()}, and the first {NUM_PEEKED} masks have 8 bits"
            raise SourceError(what, _place_of(item), "Pass keep_depth=True")
        return mask.astype(self.dtype)

    def _read(self, item: Item) -> Values:
        if item.read_mask is None:
            hint = "Leave the picture out; or pack such without masks from Python: docs/masks.md"
            raise SourceError("the mask is missing", item.where, hint)
        data = item.read_mask()
        try:
            return self._decode(data, self._max_pixels)
        except CodecError as error:
            raise SourceError(f"the mask cannot be read: {error}", _place_of(item)) from error


def _place_of(item: Item) -> str:
    """Say where an item's mask is."""
    return item.read_mask.where if isinstance(item.read_mask, File) else f"{item.where} (mask)"
