"""Text for people: what a terminal would obey (colours, titles, a cursor that moves) is shown instead of sent."""

from __future__ import annotations

import math
import re

# Control characters, with those of C1 and DEL; marks that change the direction of text; line separators.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with escapes for what a terminal would obey.

    Args:
        text: Of whatever origin: the name of a file, a class, a key.
        keep: Characters to leave, such as ``"\n"`` in a text of several lines.

    Example:
        >>> printable("caf\u00e9\x1b[31m.jpg")
        'café\\x1b[31m.jpg'
    """
    return _OBEYED.sub(
        lambda c: c[0] if c[0] in keep else c[0].encode("unicode_escape").decode(), text
    )


def printable_json(text: str) -> str:
    """Return the same JSON with escapes for what a terminal would obey; line ends between values stay."""
    return _OBEYED.sub(lambda c: c[0] if c[0] == "\n" else f"\\u{ord(c[0]):04x}", text)


def describe_size(num_bytes: float) -> str:
    """Return a size as people read it.

    Example:
        >>> describe_size(1536), describe_size(12)
        ('1.5 KiB', '12 bytes')
    """
    if num_bytes < 1024:
        return f"{num_bytes:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        num_bytes /= 1024
        if num_bytes < 1024:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} TiB"


def parse_size(text: str) -> int | None:
    """Read a size in bytes; K, M, G and T, with i or B or without, are powers of 1024. None if it is no size.

    Example:
        >>> parse_size("64MB"), parse_size("1.5k"), parse_size("cache")
        (67108864, 1536, None)
    """
    found = _SIZE.fullmatch(text)
    return found and round(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def number(value: float) -> str:
    """Return three digits, or a whole number.

    Example:
        >>> number(12345.6), number(3.14159), number(0.0), number(float("nan"))
        ('12,346', '3.14', '0', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def in_seconds(value: float) -> str:
    """Return a time as people read it.

    Example:
        >>> in_seconds(0.0123), in_seconds(2.5)
        ('12.3 ms', '2.5 s')
    """
    if math.isnan(value):
        return "-"
    if value >= 1:
        return f"{number(value)} s"
    return f"{number(value * 1e3)} ms" if value >= 1e-3 else f"{number(value * 1e6)} us"
