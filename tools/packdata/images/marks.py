"""What the values of masks mean: colours to class numbers (``--palette``), and numbers to others (``--label-map``).

Sources of what is built in: the label definitions of Cityscapes (``labels.py`` of cityscapesScripts), the colour
map of the PASCAL VOC development kit (``VOCcode/VOClabelcolormap.m``), and the notes of ADE20K: class numbers of
the full dataset are R / 10 * 256 + G, and 0 of the 150 classes of its benchmark is "other".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.errors import CodecError, SchemaError, SourceError
from packdata.images.headers import read_header
from packdata.images.pictures import decode_mask, decode_picture
from packdata.sources.base import read_file
from packdata.sources.readers import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

Values = npt.NDArray[Any]
IGNORED = 255
_ADE20K = "ade20k"
_HEX = re.compile(r"#([0-9a-fA-F]{6})\b")
_THREE = re.compile(r"(?<!\d)(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})(?!\d)")
# Of the 19 classes that are trained on, by number: their ids in labelIds files, and their colours.
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_CITYSCAPES_NUM_IDS = 34
_CITYSCAPES_COLORS = (
    *(
        0x804080,
        0xF423E8,
        0x464646,
        0x66669C,
        0xBE9999,
        0x999999,
        0xFAAA1E,
        0xDCDC00,
        0x6B8E23,
        0x98FB98,
    ),
    *(0x4682B4, 0xDC143C, 0xFF0000, 0x00008E, 0x000046, 0x003C64, 0x005064, 0x0000E6, 0x770B20),
)
_CITYSCAPES_OTHERS = (
    *(
        0x000000,
        0x6F4A00,
        0x510051,
        0xFAAAA0,
        0xE6968C,
        0xB4A5B4,
        0x966464,
        0x96785A,
        0x00005A,
        0x00006E,
    ),
)
_VOC_CLASSES, _VOC_BORDER = 21, 0xE0E0C0


@dataclass(frozen=True, slots=True)
class Marks:
    """The way from the values of a mask's file to those that are stored.

    Attributes:
        numbers: Class by colour (0xRRGGBB), if masks are coloured.
        table: New value by value, -1 for one that may not occur; None to leave them.
        is_ade20k: Colours hold numbers as ADE20K's do.
        names: What options it was made of.
    """

    numbers: Mapping[int, int] | None = None
    table: tuple[int, ...] | None = None
    is_ade20k: bool = False
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, palette: Path | str | None, label_map: Path | str | None) -> Marks | None:
        """Read both options; None if neither is given.

        Raises:
            SourceError: A file cannot be read, or has nothing of the kind.
        """
        if palette is None and label_map is None:
            return None
        is_ade20k = palette == _ADE20K
        numbers = None if palette is None or is_ade20k else _palette(palette)
        table = None if label_map is None else _table(label_map)
        names = (f"palette {palette}", f"label map {label_map}")
        given = (palette is not None, label_map is not None)
        shown = tuple(name for name, there in zip(names, given, strict=True) if there)
        return cls(numbers, table, is_ade20k, shown)

    @property
    def dtype(self) -> str | None:
        """uint8 or uint16 if that is known, else None: as the files have it."""
        values = self.table or (self.numbers or {}).values()
        if not values:
            return "uint16" if self.is_ade20k else None
        return "uint16" if max(values) > np.iinfo(np.uint8).max else "uint8"

    def to_json(self) -> dict[str, Any]:
        """Return what was given, and what it hashes to."""
        content = repr((sorted((self.numbers or {}).items()), self.table, self.is_ade20k))
        return {"options": list(self.names), "content": xxhash.xxh3_64_hexdigest(content.encode())}

    def read(self, data: bytes, max_pixels: int) -> Values:
        """Return the stored values of a mask's file.

        Raises:
            CodecError: It cannot be read, or has a colour or value that is not known.
        """
        if self.numbers is None and not self.is_ade20k:
            values = decode_mask(data, max_pixels)
        else:
            values = self._of_colors(_colors(data, max_pixels))
        return values if self.table is None else _mapped(values, np.array(self.table))

    def _of_colors(self, colors: npt.NDArray[np.uint8]) -> Values:
        red, green, blue = (colors[:, :, i].astype(np.int64) for i in range(3))
        if self.is_ade20k:
            return (red // 10 * 256 + green).astype(np.uint16)
        codes = red << 16 | green << 8 | blue
        known = np.array(sorted(self.numbers or ()), np.int64)
        at = np.searchsorted(known, codes).clip(0, len(known) - 1)
        if (wrong := known[at] != codes).any():
            y, x = np.argwhere(wrong)[0].tolist()
            what = f"the mask has the colour #{int(codes[y, x]):06x} at {x}, {y} (x, y)"
            raise CodecError(f"{what}, which is not in the {self.names[0]}")
        numbers = np.array([(self.numbers or {})[code] for code in known.tolist()])
        found: Values = numbers[at].astype(self.dtype if self.table is None else np.int64)
        return found


def _colors(data: bytes, max_pixels: int) -> npt.NDArray[np.uint8]:
    header = read_header(data) if len(data) else None
    picture = decode_picture(data, max_pixels=max_pixels)
    if picture.format in ("jpeg", "mpo") or (header is not None and header.format == "jpeg"):
        raise CodecError("a mask as jpeg is not exact; save it as PNG")
    return picture.pixels


def _mapped(values: Values, table: npt.NDArray[Any]) -> Values:
    """Return the new number of each value."""
    known = values.astype(np.int64)
    found = np.where(known < len(table), table[known.clip(0, len(table) - 1)], -1)
    if (wrong := found < 0).any():
        raise CodecError(
            f"the mask holds {int(known[wrong][0])}, which the label map does not name"
        )
    return found.astype(np.uint16 if table.max() > np.iinfo(np.uint8).max else np.uint8)


def _palette(palette: Path | str) -> dict[int, int]:
    if palette == "voc":
        return {_voc_color(i): i for i in range(_VOC_CLASSES)} | {_VOC_BORDER: IGNORED}
    if palette == "cityscapes":
        others = dict.fromkeys(_CITYSCAPES_OTHERS, IGNORED)
        return others | {color: i for i, color in enumerate(_CITYSCAPES_COLORS)}
    text = _read(palette, "--palette takes voc, cityscapes, ade20k or a file")
    lines = [color for line in text.splitlines() if (color := _color_of(line)) is not None]
    if not lines or len(set(lines)) < len(lines):
        what = "it holds no colours" if not lines else "it has a colour twice"
        raise SourceError(
            what,
            palette,
            "It takes a colour a line, in the order of the classes: R G B or #RRGGBB",
        )
    return {color: i for i, color in enumerate(lines)}


def _color_of(line: str) -> int | None:
    """Return the colour in a line; None of one that has none, such as a header."""
    if found := _HEX.search(line):
        return int(found[1], 16)
    found = _THREE.search(line)
    if found is None:
        return None
    red, green, blue = (int(number) for number in found.groups())
    return red << 16 | green << 8 | blue if max(red, green, blue) <= 255 else None


def _voc_color(number: int) -> int:
    color = 0
    for bit in range(8):
        for channel in range(3):
            color |= (number >> (3 * bit + channel) & 1) << (7 - bit) << (16 - 8 * channel)
    return color


def _table(label_map: Path | str) -> tuple[int, ...]:
    if label_map == "cityscapes":
        pairs = dict.fromkeys(range(_CITYSCAPES_NUM_IDS), IGNORED)
        return _dense(pairs | {id: i for i, id in enumerate(_CITYSCAPES_IDS)})
    if label_map == _ADE20K:
        return (IGNORED, *range(150))
    text = _read(label_map, "--label-map takes cityscapes, ade20k or a file")
    try:
        pairs = _pairs_of(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"it is no label map ({error})"
        raise SourceError(
            what, label_map, "It takes two numbers a line, old and new, or a JSON object"
        ) from error
    if not pairs or not all(0 <= n <= 65_535 for pair in pairs.items() for n in pair):
        raise SourceError("it holds no numbers from 0 to 65535", label_map)
    return _dense(pairs)


def _pairs_of(text: str) -> dict[int, int]:
    if text.lstrip().startswith("{"):
        return {int(old): int(new) for old, new in parse_json(text).items()}
    found = (re.fullmatch(r"\s*(\d+)[\s,;:]+(\d+)\b.*", line) for line in text.splitlines())
    return {int(each[1]): int(each[2]) for each in found if each}


def _dense(pairs: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(pairs.get(old, -1) for old in range(max(pairs) + 1))


def _read(path: Path | str, hint: str) -> str:
    if not Path(path).is_file():
        raise SourceError("there is no such file", path, hint)
    return read_file(path, str(path)).decode(errors="replace")


def check_has_masks(marks: Marks | None, has_masks: bool) -> None:
    """Raise SchemaError for options of masks where there are none."""
    if marks is not None and not has_masks:
        raise SchemaError(
            f"{' and '.join(marks.names)} is for masks, and there are none: give --masks"
        )
