"""How a picture becomes another size: ``--size`` and ``--fit``.

Shrinking averages areas, which is what a camera with fewer pixels would have seen; enlarging is
cubic. Masks take the nearest pixel. The geometry depends on the full size alone, so a picture and
its mask stay aligned.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import cv2
import numpy as np
import numpy.typing as npt

from loaders.augment.geometry import Move
from loaders.augment.pixels import apply
from loaders.errors import SchemaError

Array = npt.NDArray[Any]
Size = tuple[int, int]  # height, width
Box = tuple[int, int, int, int]  # top, left, height, width
Fit = Literal["shorter", "cover", "contain", "stretch"]
MAX_SIDE = 65_535  # of a JPEG
_NO_FLIP = (False, False)
MIN_REDUCED = 4  # pixels of a side that ``_scale`` can bring a reduced picture to exactly


class _Steps(NamedTuple):
    part: Box  # of a picture, which is scaled
    scaled: Size  # the size that it gets
    result: Box  # the part of that


@dataclass(frozen=True, slots=True)
class SizeOption:
    """One ``--size`` with its ``--fit``.

    ``shorter``: the shorter side becomes ``height`` (= ``width``), the other follows; smaller
    pictures stay as they are. ``cover``: scaled until it covers the size, then cut to its centre.
    ``contain``: scaled to lie inside, the rest is 0 (black; class 0 in a mask). ``stretch``:
    scaled to the size, whatever its shape. The last three give every picture the same size,
    enlarging small ones.

    Raises:
        SchemaError: At construction, the size or fit makes no sense.
    """

    height: int
    width: int
    fit: Fit = "shorter"

    def __post_init__(self) -> None:
        if self.fit not in get_args(Fit):
            raise SchemaError(f"fit must be one of {', '.join(get_args(Fit))}, got {self.fit!r}")
        if not all(0 < side <= MAX_SIDE for side in (self.height, self.width)):
            got = f"{self.height} x {self.width}"
            raise SchemaError(f"sizes are 1 to {MAX_SIDE} pixels, got {got}")

    @classmethod
    def parse(cls, size: int | str | Size, fit: str) -> SizeOption:
        """Build it from ``256``, ``"256"``, ``"224x320"`` (height x width) or ``(224, 320)``."""
        text = "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
        numbers = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
        if numbers is None or (fit == "shorter" and numbers[2]):  # 96x96 is not what it would make
            what = "a size is N, or HEIGHTxWIDTH with fit 'cover', 'contain' or 'stretch'"
            raise SchemaError(f"{what}; got {size!r} with fit {fit!r}")
        return cls(int(numbers[1]), int(numbers[2] or numbers[1]), fit)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """``256`` or ``224x320``."""
        return f"{self.height}" if self.height == self.width else f"{self.height}x{self.width}"

    @property
    def fixed(self) -> Size | None:
        """The (height, width) that every picture gets, or None where it varies."""
        return None if self.fit == "shorter" else (self.height, self.width)

    def scaled(self, size: Size) -> Size:
        """Return the size of the whole picture after scaling, before it is cut or padded."""
        height, width = size
        down, across = self.height / height, self.width / width
        if self.fit == "stretch":
            return self.height, self.width
        scale = min(down, across) if self.fit == "contain" else max(down, across)
        if self.fit == "shorter" and scale >= 1:
            return size
        return tuple(max(1, math.floor(side * scale + 0.5)) for side in size)  # type: ignore[return-value]

    def keeps(self, size: Size) -> bool:
        """Tell whether a picture of this size stays as it is."""
        return self.scaled(size) == size and self.fixed in (None, size)

    def apply(
        self,
        pixels: Array,  # H x W or H x W x C, uint8 or uint16
        # Its full (height, width), where ``pixels`` are a half, a quarter or an eighth of it, sides rounded up: of
        # the last row and column only a part is the picture's.
        size: Size | None = None,
        *,
        nearest: bool = False,  # take the nearest pixel, as for masks
    ) -> Array:
        """Return the picture in its new size."""
        size = size or (pixels.shape[0], pixels.shape[1])
        if self.keeps(size):
            return np.ascontiguousarray(pixels)
        steps = self._steps(size)
        top, left, height, width = steps.part
        pixels = pixels[top : top + height, left : left + width]
        if nearest:
            pixels = apply(pixels, (0, 0, height, width), steps.scaled, _NO_FLIP, nearest=True)
        else:
            pixels = _scale(pixels, (height, width), steps.scaled)
        result = steps.result[2:]
        if steps.scaled == result:
            return pixels
        return apply(pixels, steps.result, result, _NO_FLIP)

    def move(self, size: Size) -> Move:
        """Return how what lies in a picture of a size comes to the result."""
        steps = self._steps(size)
        top, left, part_height, part_width = steps.part
        y, x, height, width = steps.result
        down, across = steps.scaled[0] / part_height, steps.scaled[1] / part_width
        box = top + y / down, left + x / across, height / down, width / across
        return Move(box, (height, width), _NO_FLIP)

    def _steps(self, size: Size) -> _Steps:
        """Return how a picture of a size comes to the result.

        Before it is enlarged to cover a size, what lies far outside is left out: 20,000 x 1 would grow to millions. Of
        a side that is padded, the odd pixel is behind.
        """
        scale, top, left = max(self.height / size[0], self.width / size[1]), 0, 0
        if self.fit == "cover" and scale > 1:
            top = max(0, size[0] - 2 * math.ceil(self.height / scale)) // 2
            left = max(0, size[1] - 2 * math.ceil(self.width / scale)) // 2
        inner = size[0] - 2 * top, size[1] - 2 * left
        to = self.scaled(inner)
        height, width = self.fixed or to
        y, x = int((to[0] - height) / 2), int((to[1] - width) / 2)
        return _Steps((top, left, *inner), to, (y, x, height, width))


def _scale(pixels: Array, full: Size, size: Size) -> Array:
    """Average areas along the sides that shrink, then interpolate along those that grow."""
    own = pixels.shape[:2]
    down, across = (
        side / next(factor for factor in (1, 2, 4, 8) if -(-side // factor) == length)
        for side, length in zip(full, own, strict=True)
    )
    resized = pixels
    if (down, across) != own:
        # Given factors, OpenCV counts the last row and column for the part that they cover. The
        # size it finds for itself is the rounded one, which is exact from MIN_REDUCED pixels on.
        factors = size[1] / across, size[0] / down
        resized = cv2.resize(pixels, None, None, *factors, interpolation=cv2.INTER_AREA)
    else:
        shrunk = min(size[0], pixels.shape[0]), min(size[1], pixels.shape[1])
        if shrunk != own:
            resized = cv2.resize(pixels, shrunk[::-1], interpolation=cv2.INTER_AREA)
        if shrunk != size:
            resized = cv2.resize(resized, size[::-1], interpolation=cv2.INTER_CUBIC)
    return resized.reshape(*size, *pixels.shape[2:])  # cv2 drops a single channel
