"""Formats that Pillow reads through plugins, or within limits: HEIC, JPEG XL and AVIF, whatever a file is called.

Sources: ISO/IEC 14496-12 (boxes) and 23008-12 (brands, ``ispe``); ISO/IEC 18181-2 (both forms of JPEG XL).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from loaders.codecs.heads import check_pixels

_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"heif"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_ANY_BRANDS = frozenset({b"mif1", b"msf1"})  # of both: what is compatible decides
_JXL_STARTS = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")


@dataclass(frozen=True, slots=True)
class ForeignKind:
    """A format that the bytes of a file tell; with the plugin's module that Pillow reads it by, and what to install."""

    name: str
    module: str = ""
    package: str = ""

    def load_plugin(self) -> None:
        """Register the plugin with Pillow, if there is one and it is installed."""
        if self.module and find_spec(self.module) is not None:
            plugin = import_module(self.module)
            register = getattr(plugin, "register_heif_opener", None)  # the other does so on import
            if register is not None:
                register()

    def why_unread(self, data: bytes, max_pixels: int) -> str:
        """Return what to say of a file that Pillow does not open.

        Raises:
            CodecError: It has too many pixels.
        """
        if self.module and find_spec(self.module) is None:
            return (
                f"it is {self.name}, despite its name: 'pip install {self.package}' to read such "
                "files, or convert them to JPEG or PNG"
            )
        size = _box_size(data)
        if size is None:
            return f"the {self.name} is cut or damaged"
        check_pixels(*size, max_pixels)
        return (
            f"the {self.name} of {size[0]} x {size[1]} pixels (height x width) cannot be opened: it is "
            "larger than its decoder takes, or damaged; convert it to JPEG or PNG"
        )


_HEIC = ForeignKind("HEIC", "pillow_heif", "pillow-heif")
_JXL = ForeignKind("JPEG XL", "pillow_jxl", "pillow-jxl-plugin")
_AVIF = ForeignKind("AVIF")


def kind_of(data: bytes) -> ForeignKind | None:
    """Return which of these formats a file is of; None if it is of none."""
    if data.startswith(_JXL_STARTS):
        return _JXL
    if data[4:8] != b"ftyp":
        return None
    end = min(len(data), int.from_bytes(data[:4], "big"))
    brands = {bytes(data[8:12])}
    if brands <= _ANY_BRANDS:
        brands = {bytes(data[at : at + 4]) for at in range(16, end, 4)}
    if brands & _AVIF_BRANDS:
        return _AVIF
    return _HEIC if brands & _HEIC_BRANDS else None


def _box_size(data: bytes) -> tuple[int, int] | None:
    """Return the largest (height, width) that the properties of a file's images say."""
    sizes, at = [], data.find(b"ispe")
    while 0 <= at <= len(data) - 16:
        width, height = struct.unpack_from(">II", data, at + 8)
        sizes.append((height, width))
        at = data.find(b"ispe", at + 4)
    return max(sizes, key=lambda size: size[0] * size[1], default=None)
