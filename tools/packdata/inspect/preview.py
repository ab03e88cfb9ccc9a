"""A contact sheet of a packed dataset: a grid of pictures, each with one line of class, key and size.

Masks lie over their picture in colours, boxes are drawn. A shard that is damaged is an error: of a checked view, also
in a single record.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image as Pictures
from PIL import ImageDraw, ImageFont

from loaders.data.view import KEY_FIELD
from loaders.errors import LoadersError, PackError, ShardError
from loaders.rng import hash64, key64, uniform
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
from packdata.describe import counted, row_text
from packdata.tokens.stream import token_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from loaders.data.view import View

_TOKENS_SHOWN = 400  # characters of a row of tokens
_PURPOSE = 0x9E7
_EXACT_DRAW = 1 << 20
_TILE = 208  # pixels: side of the square that a picture is fitted into
_MAX_IMAGES = 4  # of several a sample
_GAP = 8
_TITLE = 18  # pixels: height of a caption
_PAPER, _INK = "#ffffff", "#1b1f24"
# Colours that most eyes tell apart; the order is not the source's.
# Source: P. Green-Armytage, "A colour alphabet and the limits of colour coding", 2010.
_COLOURS = (
    (255, 80, 5), (0, 117, 220), (43, 206, 72), (255, 204, 0), (153, 63, 0), (240, 163, 255),
    (0, 153, 143), (255, 0, 16), (116, 10, 255), (148, 255, 181), (194, 0, 136), (0, 51, 128),
    (157, 204, 0), (255, 168, 187), (66, 102, 0), (94, 241, 242), (76, 0, 92), (255, 255, 128),
)  # fmt: skip


class Tile(NamedTuple):
    """One sample on the sheet."""

    pictures: list[Pictures.Image]
    caption: str


def choose(num_samples: int, num: int, seed: int = 0) -> list[int]:
    """Return ``num`` of the indices below ``num_samples`` (or all), drawn by ``seed``, sorted."""
    if num >= num_samples:
        return list(range(num_samples))
    if num_samples <= _EXACT_DRAW:
        order = np.argsort(hash64(key64(seed, _PURPOSE), np.arange(num_samples)), kind="stable")
        return sorted(order[:num].tolist())
    chosen: set[int] = set()
    for draw in range(64 * num):  # few of so many coincide
        at = uniform(key64(seed, _PURPOSE), np.array([draw]), num=1)[0, 0]
        chosen.add(int(at * num_samples))
        if len(chosen) == num:
            break
    return sorted(chosen)


def has_pictures(view: View) -> bool:
    """Return whether a contact sheet can show anything."""
    kinds = view.schema.fields.values()
    return any(isinstance(kind, Image | Images | Mask) or is_plane(kind) for kind in kinds)


def sheet_of(tiles: Sequence[Tile]) -> Pictures.Image:
    """Draw tiles as an RGB picture, in a grid that is a little wider than high."""
    side_by_side = max((len(tile.pictures) for tile in tiles), default=1) or 1
    columns = math.ceil(math.sqrt(1.5 * len(tiles) / side_by_side))
    columns = max(1, min(columns, len(tiles)))
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
    """Return a sample with its pictures; ShardError if its records are damaged."""
    fields, values, error = view.schema.fields, dict[str, Any](), ""
    for name in fields:
        try:
            values[name] = view.sample(i, [name])[name]
        except ShardError:  # it is not what was packed: nothing to show
            raise
        except LoadersError as found:
            error = error or f"{name}: {found.__cause__ or found}"
    key = values.get(KEY_FIELD)
    shown = [n for n in values if n != KEY_FIELD and _is_named(fields[n], fields)]
    parts = [_short(fields[n], values[n]) for n in shown]
    parts.insert(0, f"sample {i}" if key is None else str(key))
    caption = ", ".join([error] * bool(error) + parts)[:400]
    return Tile(_pictures(fields, values), caption)


def _is_named(kind: Field, fields: Mapping[str, Field]) -> bool:
    """Tell whether a caption has the value, or the size, of a field."""
    is_picture = isinstance(kind, Image | Images) or is_plane(kind)
    is_named = is_picture and not is_array_mask(kind, fields)
    return is_named or isinstance(kind, Label | MultiLabel | Text)


def _of(fields: Mapping[str, Field], values: Mapping[str, Any], *kinds: type[Field]) -> list[str]:
    """Return the names of values whose fields are of some kinds."""
    return [name for name in values if isinstance(fields[name], kinds)]


def _label(kind: Field, value: Any) -> str:
    if isinstance(kind, MultiLabel):
        named = zip(kind.classes, value, strict=True)
        return " + ".join(name for name, on in named if on) or "none"
    number = int(value)
    classes = (kind.classes if isinstance(kind, Label) else None) or ()
    return classes[number] if 0 <= number < len(classes) else f"class {number}"


def _size(picture: npt.NDArray[Any]) -> str:
    height, width, channels = picture.shape
    depth = "" if picture.dtype == np.uint8 else f" {picture.dtype}"
    kind = {1: " gray", 3: ""}.get(channels, f" {channels} channels")
    return f"{width} x {height}{kind}{depth}"


def _pictures(fields: Mapping[str, Field], values: Mapping[str, Any]) -> list[Pictures.Image]:
    """Fit every picture into its square; masks and boxes belong to the first one of their size."""
    arrays = [values[n] for n in _of(fields, values, Image)]
    for n in _of(fields, values, Images):
        arrays += values[n][:_MAX_IMAGES]
    masks = [values[n] for n in _of(fields, values, Mask)]
    for n, value in values.items():
        if is_plane(fields[n]) and value.size:  # an array without a number has no slice
            picture = middle_slice(value, getattr(fields[n], "spatial", None) or 0)
            is_mask = is_array_mask(fields[n], fields)
            masks += [picture[..., 0]] if is_mask else []
            arrays += [] if is_mask else [picture]
    boxes = [values[n] for n in _of(fields, values, Boxes)]
    fitted = []
    for array in arrays:
        fits = [mask for mask in masks if mask.shape == array.shape[:2]]
        masks = [mask for mask in masks if mask.shape != array.shape[:2]]
        fitted.append(_fitted(array, fits, boxes))
        boxes = []
    return fitted + [_fitted(_mask_colours(mask), [], []) for mask in masks]


def _fitted(
    array: npt.NDArray[Any], masks: list[npt.NDArray[Any]], boxes: list[npt.NDArray[Any]]
) -> Pictures.Image:
    height, width = array.shape[:2]
    scale = min(_TILE / width, _TILE / height)
    is_small = scale >= 1  # then pixels are shown whole and sharp
    scale = max(1, math.floor(scale)) if is_small else scale
    size = max(1, round(width * scale)), max(1, round(height * scale))
    nearest = Pictures.Resampling.NEAREST
    picture = Pictures.fromarray(_rgb(array))
    picture = picture.resize(size, nearest if is_small else Pictures.Resampling.LANCZOS)
    for mask in masks:
        small = Pictures.fromarray(_mask_colours(mask)).resize(size, nearest)
        part = Pictures.fromarray((mask != 0).astype(np.uint8) * 140)
        picture.paste(small, (0, 0), part.resize(size, nearest))
    draw = ImageDraw.Draw(picture)
    for n, (x1, y1, x2, y2) in enumerate(row for part in boxes for row in (part * scale).tolist()):
        if all(map(math.isfinite, (x1, y1, x2, y2))):
            x1, x2 = (min(max(x, 0), size[0] - 1) for x in sorted((x1, x2)))
            y1, y2 = (min(max(y, 0), size[1] - 1) for y in sorted((y1, y2)))
            draw.rectangle((x1, y1, x2, y2), outline=_COLOURS[n % len(_COLOURS)], width=2)
    return picture


def is_plane(kind: Field) -> bool:
    """Tell whether a field holds arrays that have a slice to look at."""
    return isinstance(kind, Array) and (kind.spatial or 0) >= 2


def is_array_mask(kind: Field, fields: Mapping[str, Field]) -> bool:
    """Tell whether a field holds one whole number for each place of another field's arrays."""
    if not isinstance(kind, Array) or np.dtype(kind.dtype).kind not in "ui":
        return False
    return kind.spatial == len(kind.dims) and any(
        isinstance(other, Array) and other.dims[1:] == kind.dims and other.spatial == kind.spatial
        for other in fields.values()
    )


def middle_slice(array: npt.NDArray[Any], spatial: int) -> npt.NDArray[Any]:
    """Return the middle slice along all spatial axes but the last two.

    Args:
        array: ``(H, W)``, ``(C, H, W)``, ``(C, D, H, W)``, ...; no axis of length 0.
        spatial: How many axes are spatial, at least 2.

    Returns:
        ``(H, W, 3)`` of three 8-bit channels, else ``(H, W, 1)`` of the first one. What is not
        finite is shown as the lowest number.
    """
    split = array.ndim - spatial
    middle = tuple(length // 2 for length in array.shape[split:-2])
    planes = array[(slice(None),) * split + middle].reshape(-1, *array.shape[-2:])
    num = 3 if split and len(planes) == 3 and array.dtype == np.uint8 else 1
    picture = np.moveaxis(planes[:num], 0, -1)
    if picture.dtype == np.bool_:
        return picture.astype(np.uint8) * np.uint8(255)
    if picture.dtype.kind == "f":
        finite = np.isfinite(picture)
        lowest = picture[finite].min() if finite.any() else 0
        return np.where(finite, picture, lowest).astype(np.float64)
    return picture


def _rgb(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return any picture as 8-bit RGB: deep ones stretched to their range, alpha over gray."""
    if array.dtype != np.uint8:
        low, high = float(array.min()), float(array.max())
        array = ((array - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)
    channels = array.shape[2]
    if channels == 4:
        alpha = array[..., 3:].astype(np.uint16)
        return ((array[..., :3] * alpha + 200 * (255 - alpha)) // 255).astype(np.uint8)
    return np.ascontiguousarray(array if channels == 3 else np.repeat(array[..., :1], 3, axis=2))


def _mask_colours(mask: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a colour for each value, black for 0."""
    table = np.array(_COLOURS, np.uint8)
    colours = table[(mask.astype(np.int64) - 1) % len(table)]
    colours[mask == 0] = 0
    return colours


def save_sheet(sheet: Pictures.Image, path: Path) -> None:
    """Write a PNG, complete or not at all.

    Raises:
        PackError: The file exists, or it cannot be written.
    """
    if path.exists():
        raise PackError("the file exists", path, "Delete it, or pass another name as out")
    beside = path.with_name(f"{path.name}.tmp")
    try:
        sheet.save(beside, format="PNG", optimize=True)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise PackError(f"it cannot be written ({error.strerror or error})", path) from error


def as_text(view: View, i: int, width: int = 100) -> str:
    """Return a sample as lines of text, one for each field; ShardError where it is damaged."""
    lines = [f"sample {i}"]
    for name, kind in view.schema.fields.items():
        most = width
        try:
            if isinstance(kind, Tokens):
                value, most = token_text(view, i), _TOKENS_SHOWN
            else:
                value = _short(kind, view.sample(i, [name])[name])
        except ShardError:
            raise
        except LoadersError as error:
            value = f"({error.__cause__ or error})"
        value = " ".join(value.split())
        lines.append(f"  {name}: {value if len(value) <= most else value[: most - 1] + '…'}")
    return "\n".join(lines)


def _short(kind: Field, value: Any) -> str:
    if isinstance(kind, Label | MultiLabel):
        return _label(kind, value)
    if isinstance(kind, Features | Categories):
        return row_text(kind, value)
    if isinstance(kind, Image):
        return _size(value)
    if isinstance(kind, Images):
        sizes = ", ".join(map(_size, value[:_MAX_IMAGES]))
        more = ", ..." if len(value) > _MAX_IMAGES else ""
        return f"{counted(len(value), 'picture')}{': ' if value else ''}{sizes}{more}"
    if isinstance(value, np.ndarray):
        few = np.array2string(value.reshape(-1)[:12], separator=" ", threshold=20).strip("[]")
        more = " ..." if value.size > 12 else ""
        shape = (
            "" if isinstance(kind, Array) and not kind.dims else f"{value.dtype} {value.shape}: "
        )
        return f"{shape}{few}{more}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes: {value[:32].hex(' ')}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
