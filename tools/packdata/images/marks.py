"""What the values of masks mean: colours to class numbers (``--palette``), and numbers to others (``--label-map``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from loaders.errors import CodecError, SourceError
from loaders.remote.url import is_url, url_of
from packdata.images.pictures import check_exact, decode_mask, decode_picture, open_picture
from packdata.readers import parse_json
from packdata.reading import read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

Values = npt.NDArray[Any]
_HEX = re.compile(r"#([0-9a-fA-F]{6})\b")
_THREE = re.compile(r"(?<!\d)(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})(?!\d)")


@dataclass(frozen=True, slots=True)
class Marks:
    """The way from the values of a mask's file to those that are stored."""

    numbers: Mapping[int, int] | None = None  # class by colour (0xRRGGBB), if masks are coloured
    # New value by value, -1 for one that may not occur; None to leave them.
    table: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()  # what options it was made of

    @classmethod
    def of(cls, palette: Path | str | None, label_map: Path | str | None) -> Marks | None:
        """Read both options; None if neither is given.

        Raises:
            SourceError: A file cannot be read, or has nothing of the kind.
        """
        if palette is None and label_map is None:
            return None
        palette, label_map = (url_of(v) if v and is_url(v) else v for v in (palette, label_map))
        given = {"palette": palette, "label map": label_map}
        return cls(
            numbers=None if palette is None else _palette(palette),
            table=None if label_map is None else _table(label_map),
            names=tuple(f"{name} {value}" for name, value in given.items() if value is not None),
        )

    @property
    def dtype(self) -> str | None:
        """uint8 or uint16 if that is known, else None: as the files have it."""
        values = self.table or (self.numbers or {}).values()
        if not values:
            return None
        return "uint16" if max(values) > np.iinfo(np.uint8).max else "uint8"

    def to_json(self) -> dict[str, Any]:
        """Return what was given, and what it hashes to."""
        content = repr((sorted((self.numbers or {}).items()), self.table))
        return {"options": list(self.names), "content": xxhash.xxh3_64_hexdigest(content.encode())}

    def read(self, data: bytes, max_pixels: int) -> Values:
        """Return the stored values of a mask's file.

        Raises:
            CodecError: It cannot be read, or has a colour or value that is not known.
        """
        read = decode_mask if self.numbers is None else self._of_colors
        values = read(data, max_pixels)
        return values if self.table is None else _mapped(values, np.array(self.table))

    def _of_colors(self, data: bytes, max_pixels: int) -> Values:
        check_exact(open_picture(data, max_pixels), data)
        colors = decode_picture(data, max_pixels=max_pixels).pixels
        red, green, blue = (colors[:, :, i].astype(np.int64) for i in range(3))
        codes = red << 16 | green << 8 | blue
        known = np.array(sorted(self.numbers or ()), np.int64)
        at = np.searchsorted(known, codes).clip(0, len(known) - 1)
        if (wrong := known[at] != codes).any():
            y, x = np.argwhere(wrong)[0].tolist()
            what = f"the colour #{int(codes[y, x]):06x} at {x}, {y} (x, y)"
            raise CodecError(f"{what} is not in the {self.names[0]}")
        numbers = np.array([(self.numbers or {})[code] for code in known.tolist()])
        found: Values = numbers[at].astype(self.dtype if self.table is None else np.int64)
        return found


def _mapped(values: Values, table: npt.NDArray[Any]) -> Values:
    """Return the new number of each value."""
    known = values.astype(np.int64)
    found = np.where(known < len(table), table[known.clip(0, len(table) - 1)], -1)
    if (wrong := found < 0).any():
        raise CodecError(f"{int(known[wrong][0])} is not in the label map")
    return found.astype(np.uint16 if table.max() > np.iinfo(np.uint8).max else np.uint8)


def _palette(palette: Path | str) -> dict[int, int]:
    text = _read(
        palette,
        "Give a file with a colour per line, R G B or #RRGGBB, in the order of the classes",
    )
    lines = [color for line in text.splitlines() if (color := _color_of(line)) is not None]
    if not lines or len(set(lines)) < len(lines):
        what = "no colours" if not lines else "duplicate colours"
        hint = "It takes a colour a line, in the order of the classes: R G B or #RRGGBB"
        raise SourceError(what, palette, hint)
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


def _table(label_map: Path | str) -> tuple[int, ...]:
    """Return the new number by the old one, -1 where there is none."""
    text = _read(label_map, "Give a file with two numbers per line, old and new, or a JSON object")
    try:
        if text.lstrip().startswith("{"):
            pairs = {int(old): int(new) for old, new in parse_json(text).items()}
        else:
            found = re.findall(r"^[ \t]*(\d+)[ \t,;:]+(\d+)\b", text, re.MULTILINE)
            pairs = {int(old): int(new) for old, new in found}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        hint = "It takes two numbers a line, old and new, or a JSON object"
        raise SourceError(f"not a label map ({error})", label_map, hint) from error
    if not pairs or not all(0 <= n <= 65_535 for pair in pairs.items() for n in pair):
        raise SourceError("no numbers from 0 to 65535", label_map)
    return tuple(pairs.get(old, -1) for old in range(max(pairs) + 1))


def _read(path: Path | str, hint: str) -> str:
    if not is_url(path) and not Path(path).is_file():
        raise SourceError("there is no such file", path, hint)
    return read_file(path, str(path)).decode(errors="replace")
