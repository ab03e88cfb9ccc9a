"""What the values of masks mean: colours to class numbers (``--palette``), and numbers to others (``--label-map``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.errors import CodecError, SourceError
from packdata.images.pictures import check_exact, decode_mask, decode_picture, open_picture
from packdata.reading import read_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Values = npt.NDArray[Any]
_HEX = re.compile(r"#([0-9a-fA-F]{6})\b")
_THREE = re.compile(r"(?<!\d)(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})(?!\d)")
_TWO = re.compile(r"^[ \t]*(\d+)[ \t,;:]+(\d+)\b", re.MULTILINE)
_COLORS_HINT = "A palette has a colour a line, R G B or #RRGGBB, in the order of the classes"
_NUMBERS_HINT = "A label map has two numbers a line, old and new, from 0 to 65535"


@dataclass(frozen=True, slots=True)
class Marks:
    """The way from the values of a mask's file to those that are stored."""

    numbers: Mapping[int, int]  # what is stored, by value or by colour (0xRRGGBB)
    is_colored: bool
    names: tuple[str, ...]  # what options it was made of

    @classmethod
    def of(cls, palette: Path | str | None, label_map: Path | str | None) -> Marks | None:
        """Read both options; None if neither is given.

        Raises:
            SourceError: A file cannot be read, or has nothing of the kind.
        """
        given = {"palette": palette, "label map": label_map}
        names = tuple(f"{name} {value}" for name, value in given.items() if value is not None)
        if not names:
            return None
        if palette is None:
            return cls(_label_map(label_map), False, names)  # type: ignore[arg-type]
        numbers = _palette(palette)
        if label_map is not None:
            table = _label_map(label_map)
            if missing := {*numbers.values()} - {*table}:
                what = f"no number for class {min(missing)} of the palette"
                raise SourceError(what, label_map, _NUMBERS_HINT)
            numbers = {color: table[number] for color, number in numbers.items()}
        return cls(numbers, True, names)

    @property
    def dtype(self) -> str:
        """uint8 or uint16."""
        return "uint16" if max(self.numbers.values()) > np.iinfo(np.uint8).max else "uint8"

    def to_json(self) -> dict[str, Any]:
        """Return what was given, and what it hashes to."""
        content = repr(sorted(self.numbers.items()))
        return {"options": list(self.names), "content": xxhash.xxh3_64_hexdigest(content.encode())}

    def read(self, data: bytes, max_pixels: int) -> Values:
        """Return the stored values of a mask's file.

        Raises:
            CodecError: It cannot be read, or has a colour or value that is not known.
        """
        values = _codes(data, max_pixels) if self.is_colored else decode_mask(data, max_pixels)
        known = np.array(sorted(self.numbers), np.int64)
        at = np.searchsorted(known, values).clip(0, len(known) - 1)
        if (wrong := known[at] != values).any():
            y, x = np.argwhere(wrong)[0].tolist()
            value = f"#{values[y, x]:06x}" if self.is_colored else values[y, x]
            raise CodecError(
                f"value {value} at x={x}, y={y} is missing in {' and '.join(self.names)}"
            )
        stored: Values = np.array([self.numbers[each] for each in known.tolist()], self.dtype)
        return np.asarray(stored[at])


def _codes(data: bytes, max_pixels: int) -> npt.NDArray[np.int64]:
    """Return the colours of a mask's file as numbers."""
    check_exact(open_picture(data, max_pixels))
    colors = decode_picture(data, max_pixels=max_pixels).pixels.astype(np.int64)
    return colors[:, :, 0] << 16 | colors[:, :, 1] << 8 | colors[:, :, 2]


def _palette(palette: Path | str) -> dict[int, int]:
    """Return the number by colour; lines without one, such as a header, are passed over."""
    colors = []
    text = read_file(palette, str(palette), _COLORS_HINT).decode(errors="replace")
    for line in text.splitlines():
        if found := _HEX.search(line):
            colors.append(int(found[1], 16))
        elif (found := _THREE.search(line)) and max(map(int, found.groups())) <= 255:
            red, green, blue = map(int, found.groups())
            colors.append(red << 16 | green << 8 | blue)
    if not colors or len({*colors}) < len(colors):
        raise SourceError("duplicate colours, or none", palette, _COLORS_HINT)
    return {color: number for number, color in enumerate(colors)}


def _label_map(label_map: Path | str) -> dict[int, int]:
    """Return the new number by the old one."""
    text = read_file(label_map, str(label_map), _NUMBERS_HINT).decode(errors="replace")
    pairs = {int(old): int(new) for old, new in _TWO.findall(text)}
    if not pairs or max(*pairs, *pairs.values()) > 65_535:
        raise SourceError("numbers above 65535, or none", label_map, _NUMBERS_HINT)
    return pairs
