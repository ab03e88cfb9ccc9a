"""Samples to look at: a sheet of pictures, each with one line of key, size and class, or lines of text."""

from __future__ import annotations

import json
import math
import random
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image as Pictures
from PIL import ImageDraw, ImageFont

from loaders.data.view import KEY_FIELD
from loaders.schema import (
    Array,
    Boxes,
    Categories,
    Features,
    Field,
    Image,
    Images,
    Label,
    Mask,
    MultiLabel,
    Text,
    Tokens,
)
from packdata.describe import counted, cut
from packdata.tokens.rows import token_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.data.view import View

_TOKENS_SHOWN, _VALUE_SHOWN, _CAPTION = 400, 100, 400  # characters
_TILE = 208  # pixels: side of the square that a picture is fitted into
_MAX_IMAGES = 4  # of several a sample
_GAP = 8
_TITLE = 18  # pixels: height of a caption
_PAPER, _INK = "#ffffff", "#1b1f24"
# Black for 0, then colours that most eyes tell apart; the order is not the source's.
# Source: P. Green-Armytage, "A colour alphabet and the limits of colour coding", 2010.
_COLOURS = np.array((
    (0, 0, 0),
    (255, 80, 5), (0, 117, 220), (43, 206, 72), (255, 204, 0), (153, 63, 0), (240, 163, 255),
    (0, 153, 143), (255, 0, 16), (116, 10, 255), (148, 255, 181), (194, 0, 136), (0, 51, 128),
    (157, 204, 0), (255, 168, 187), (66, 102, 0), (94, 241, 242), (76, 0, 92), (255, 255, 128),
), np.uint8)  # fmt: skip


class Tile(NamedTuple):
    """One sample on the sheet."""

    pictures: list[Pictures.Image]
    caption: str


def choose(num_samples: int, num: int, seed: int = 0) -> list[int]:
    """Return ``num`` of the indices below ``num_samples`` (or all), drawn by ``seed``, sorted."""
    return sorted(random.Random(seed).sample(range(num_samples), min(num, num_samples)))


def has_pictures(view: View) -> bool:
    """Return whether a sheet can show anything: pictures, or arrays that have a slice to look at."""
    kinds = view.schema.fields.values()
    return any(isinstance(kind, Image | Images | Mask) or _is_volume(kind) for kind in kinds)


def sheet_of(tiles: Sequence[Tile]) -> Pictures.Image:
    """Draw tiles as an RGB picture, in a grid that is a little wider than high."""
    side_by_side = max([1, *(len(tile.pictures) for tile in tiles)])
    columns = max(1, math.ceil(math.sqrt(1.5 * len(tiles) / side_by_side)))
    width, height = side_by_side * (_TILE + _GAP), _TILE + _TITLE + _GAP
    rows = math.ceil(len(tiles) / columns)
    sheet = Pictures.new("RGB", (columns * width + _GAP, rows * height + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for n, tile in enumerate(tiles):
        x, y = _GAP + n % columns * width, _GAP + n // columns * height
        for number, picture in enumerate(tile.pictures):
            sheet.paste(picture, (x + number * (_TILE + _GAP), y))
        caption = tile.caption
        while font.getlength(caption) > width - _GAP:
            caption = caption[:-2] + "…"
        draw.text((x, y + _TILE), caption, font=font, fill=_INK)
    return sheet


def tile_of(view: View, i: int) -> Tile:
    """Return a sample with its pictures; ShardError or SampleError if it is damaged."""
    fields, values = view.schema.fields, view.sample(i)
    words = [str(values.pop(KEY_FIELD, f"sample {i}"))]
    arrays: list[npt.NDArray[np.uint8]] = []
    boxes: list[npt.NDArray[Any]] = []
    for name, value in values.items():
        kind = fields[name]
        arrays += _pictures(kind, value)
        if isinstance(kind, Boxes):
            boxes += [*value]
        elif isinstance(kind, Image | Images | Label | MultiLabel | Text) or _is_volume(kind):
            words.append(_short(kind, value))
    if pictures := [*map(_fitted, arrays)]:
        _draw_boxes(pictures[0], boxes, pictures[0].width / arrays[0].shape[1])
    return Tile(pictures, _one_line(", ".join(words), _CAPTION))


def as_text(view: View, i: int) -> str:
    """Return a sample as lines of text, one for each field; ShardError or SampleError if it is damaged."""
    lines = [f"sample {i}"]
    for name, kind in view.schema.fields.items():
        is_text = isinstance(kind, Tokens)
        value = token_text(view, i) if is_text else view.sample(i, [name])[name]
        most = _TOKENS_SHOWN if is_text else _VALUE_SHOWN
        lines.append(f"  {name}: {_one_line(_short(kind, value), most)}")
    return "\n".join(lines)


# -- pictures --------------------------------------------------------------------------------------


def _is_volume(kind: Field) -> bool:
    return isinstance(kind, Array) and (kind.spatial or 0) >= 2


def _pictures(kind: Field, value: Any) -> list[npt.NDArray[np.uint8]]:
    """Return the pictures of a value, H x W x 3."""
    if isinstance(kind, Image):
        return [_rgb(value)]
    if isinstance(kind, Images):
        return [*map(_rgb, value[:_MAX_IMAGES])]
    if isinstance(kind, Mask):
        return [_in_colours(value)]
    if not (isinstance(kind, Array) and _is_volume(kind) and value.size):
        return []
    # Of (..., H, W), the middle of the spatial axes and the first of those before.
    before = value.ndim - (kind.spatial or 0)
    plane = value[(*(0,) * before, *(length // 2 for length in value.shape[before:-2]))]
    is_mask = before == 0 and value.dtype.kind in "ui"
    return [_in_colours(plane) if is_mask else _rgb(plane[..., None])]


def _rgb(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the first three channels, or the first one as gray; what is not uint8, stretched to its range."""
    if array.dtype != np.uint8:
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        numbers = np.nan_to_num(numbers, nan=low)
        array = np.interp(numbers, (low, high), (0, 255)).astype(np.uint8)
    channels = (0, 1, 2) if array.shape[2] >= 3 else (0, 0, 0)
    return np.ascontiguousarray(array[..., channels])


def _in_colours(mask: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    number = (mask.astype(np.int64) - 1) % (len(_COLOURS) - 1) + 1
    return _COLOURS[np.where(mask == 0, 0, number)]


def _fitted(array: npt.NDArray[np.uint8]) -> Pictures.Image:
    picture = Pictures.fromarray(array)
    scale = _TILE / max(picture.size)
    kind = Pictures.Resampling.NEAREST if scale > 1 else Pictures.Resampling.LANCZOS
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height), kind)


def _draw_boxes(picture: Pictures.Image, boxes: Sequence[npt.NDArray[Any]], scale: float) -> None:
    draw, most = ImageDraw.Draw(picture), np.array(picture.size) - 1
    for n, box in enumerate(boxes):
        corners = np.clip(np.nan_to_num(box).reshape(2, 2) * scale, 0, most)
        colour = _COLOURS[1 + n % (len(_COLOURS) - 1)].tolist()
        draw.rectangle([*np.sort(corners, axis=0).ravel()], outline=tuple(colour), width=2)


# -- words -----------------------------------------------------------------------------------------


def _one_line(text: str, most: int) -> str:
    return cut(" ".join(text.split()), most)


def _short(kind: Field, value: Any) -> str:
    if isinstance(kind, Label):
        number, classes = int(value), kind.classes or ()
        return classes[number] if 0 <= number < len(classes) else f"class {number}"
    if isinstance(kind, MultiLabel):
        return " + ".join(compress(kind.classes, value)) or "none"
    if isinstance(kind, Features | Categories):
        cells = [f"{number:.6g}" for number in value.tolist()]
        if isinstance(kind, Categories):
            found = zip(kind.vocabularies, value.tolist(), strict=True)
            cells = [words[k - 1] if 0 < k <= len(words) else "?" for words, k in found]
        return " ".join(f"{name}={cell}" for name, cell in zip(kind.columns, cells, strict=True))
    if isinstance(kind, Image):
        return _size(value)
    if isinstance(kind, Images):
        sizes = ", ".join(map(_size, value[:_MAX_IMAGES]))
        return f"{counted(len(value), 'picture')} ({sizes})"
    if isinstance(value, np.ndarray):
        numbers = " ".join(map(str, value.reshape(-1)[:12]))
        more = " ..." if value.size > 12 else ""
        return f"{value.dtype} {value.shape}: {numbers}{more}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes: {value[:32].hex(' ')}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _size(picture: npt.NDArray[Any]) -> str:
    height, width, channels = picture.shape
    return f"{width} x {height}" + ("" if channels == 3 else f" x {channels}")
