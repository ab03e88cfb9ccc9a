"""Mosaics of batches: four pictures around a point, and their masks, boxes and keypoints with them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from loaders.checks import as_list, real_number, whole_number
from loaders.datasets.reading.known import check_rows, first_boxes, has_rows
from loaders.datasets.reading.samples import Padded, Ragged, in_form, shaped_alike
from loaders.device.mix import batch_word, uniform_of
from loaders.errors import BatchError
from loaders.schema import Boxes, Image, Images, Keypoints, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loaders.schema import Schema

_TILES = 4


class Mosaic(nn.Module):
    """Four pictures of a batch in the frame of one, without a resize: at small scale, ``augment`` makes them small.

    They meet at a point that each mosaic draws: its own sample is at the upper left, with what lies at its lower right
    corner, and the three before it in the batch at the other corners. So each sample is in four mosaics. Masks, boxes
    and keypoints go along; boxes are clipped to the part that their picture has, and those of which too little is left
    are dropped, with what belongs to them. Other fields, such as labels, stay those of the sample itself.

    The point is a function of seed, epoch and the samples of the batch: the same after a resume.

    Args:
        schema: The dataset's: what the fields of batches are.
        center_range: Where the pictures meet, as shares of height and width: (low, high).
        min_size: Sides that are left of a box, in pixels, or it is dropped.
        min_visible: Share of its area that is left of a box, or it is dropped.
        fields: Names of fields that have a row for each box; None: all that ``SanitizeBoundingBoxes`` would take.
        seed: Of the run.

    Raises:
        ValueError: At construction, a number is out of range.
        SchemaError: At construction, one of ``fields`` has no rows for boxes.

    Source:
        Bochkovskiy et al., "YOLOv4", 2020; ``Mosaic`` of ultralytics, at a scale of 1, and ``RandomMosaic`` of kornia.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        center_range: tuple[float, float] = (0.3, 0.7),
        min_size: float = 2.0,
        min_visible: float = 0.1,
        fields: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.fields = dict(schema.fields)
        low, high = (real_number("center_range", x, at_least=0, at_most=1) for x in center_range)
        if low > high:
            raise ValueError(
                f"center_range must be (low, high) with low <= high, got {center_range}"
            )
        self.center_range = (float(low), float(high))
        self.min_size = float(real_number("min_size", min_size, at_least=0))
        self.min_visible = float(real_number("min_visible", min_visible, at_least=0, at_most=1))
        self._named = None if fields is None else as_list("fields", fields, "names")
        check_rows("Mosaic", self._named, self.fields)
        self.seed = whole_number("seed", seed)

    def forward(self, batch: Any, *, epoch: int = 0) -> Any:
        """Return a batch of mosaics.

        Where pictures and boxes lie on a device, it is waited for once for each.

        Args:
            batch: With pictures of one size, and ``sample_id``.
            epoch: From 0.

        Raises:
            BatchError: Pictures differ in size, there is no ``sample_id``, or other fields have pixels: ``Images``, or
                arrays with spatial axes.
        """
        is_dict = isinstance(batch, dict)
        values: dict[str, Any] = dict(batch) if is_dict else batch._asdict()
        served = {name: field for name, field in self.fields.items() if name in values}
        pictures = [name for name, field in served.items() if isinstance(field, Image | Mask)]
        for name, field in served.items():
            if isinstance(field, Images) or getattr(field, "spatial", None):
                raise BatchError(f"{name!r} has pixels that Mosaic does not move: leave it out")
        size = _size_of({name: values[name] for name in pictures})
        if "sample_id" not in values:
            raise BatchError("Mosaic needs sample_id for its random numbers: add it to fields")
        ids = torch.as_tensor(values["sample_id"]).to(values[pictures[0]].device)
        centres = self._centres(ids, size, whole_number("epoch", epoch, at_least=0))
        places = centres.tolist()
        made: dict[str, Any] = {name: _joined_pictures(values[name], places) for name in pictures}
        made |= self._rows_of(values, served, centres, size)
        return values | made if is_dict else batch._replace(**made)

    def _centres(self, ids: torch.Tensor, size: tuple[int, int], epoch: int) -> torch.Tensor:
        """Return where pictures meet: y, x of each mosaic, int64 ``(N, 2)``."""
        low, high = self.center_range
        word = batch_word(ids, self.seed, epoch) + torch.arange(len(ids), device=ids.device)
        shares = low + (high - low) * uniform_of(word, (11, 12))
        return torch.stack([(shares[k] * n).long() for k, n in enumerate(size)], dim=1)

    def _rows_of(
        self,
        values: dict[str, Any],
        served: Mapping[str, Any],
        centres: torch.Tensor,
        size: tuple[int, int],
    ) -> dict[str, Any]:
        """Return boxes, keypoints, and what has a row for each box."""
        leader, made = first_boxes(served), {}
        shifts, parts = _tiles(centres, size)
        expected: torch.Tensor | None = None
        keeps: torch.Tensor | None = None
        for name in sorted(served, key=lambda name: name != leader):
            field, goes_along = served[name], self._goes_along(name, served[name], leader)
            if not goes_along and not isinstance(field, Boxes | Keypoints):
                continue
            lists = shaped_alike(_listed(values[name]))
            n, device = len(lists), lists[0].device
            around = [lists[(i - tile) % n] for i in range(n) for tile in range(_TILES)]
            sizes = torch.tensor([len(each) for each in around])
            if goes_along and expected is not None and not torch.equal(sizes, expected):
                what = f"{name!r} does not have one row per row of {leader!r}"
                raise BatchError(
                    f"{what}: name the fields with one row per box in Mosaic(fields=[...])"
                )
            which = torch.arange(len(around)).repeat_interleave(sizes).to(device)
            given = torch.cat(around)
            moved = _moved(given, field, shifts.to(device)[which], parts.to(device)[which])
            if name == leader:
                expected, keeps = sizes, self._keeps(given, moved).cpu()
            counts = sizes.view(n, _TILES).sum(1).tolist()
            made[name] = _joined(moved, counts, keeps if goes_along else None, values[name], name)
        return made

    def _goes_along(self, name: str, field: Any, leader: str | None) -> bool:
        """Tell whether rows of a field are dropped with boxes."""
        if leader is None:
            return False
        return name == leader or (has_rows(field) if self._named is None else name in self._named)

    def _keeps(self, boxes: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        before, after = ((each[:, 2:] - each[:, :2]).clamp(min=0) for each in (boxes, moved))
        is_seen = after.prod(1) >= self.min_visible * before.prod(1)
        return is_seen & (after > 0).all(1) & (after >= self.min_size).all(1)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"center_range={self.center_range}, seed={self.seed}"


def _size_of(pictures: Mapping[str, Any]) -> tuple[int, int]:
    if lists := [name for name, each in pictures.items() if not isinstance(each, torch.Tensor)]:
        hint = "augment= with a size, such as Resize((h, w)), makes it one tensor"
        raise BatchError(f"Mosaic needs pictures of one size, {lists[0]!r} is a list: {hint}")
    sizes = {(each.shape[-2], each.shape[-1]) for each in pictures.values()}
    if len(sizes) != 1:
        listed = ", ".join(map(str, sizes)) or "none"
        raise BatchError(f"Mosaic needs images and masks of one size, got {listed}")
    return sizes.pop()


def _joined_pictures(pictures: torch.Tensor, centres: list[list[int]]) -> torch.Tensor:
    """Return mosaics of pictures ``(N, C, H, W)`` or masks ``(N, H, W)``, channels last in memory."""
    num, (height, width) = len(pictures), pictures.shape[-2:]
    made = torch.empty_like(pictures)
    if pictures.dim() == 4:
        made = pictures.new_empty(pictures.movedim(1, -1).shape).movedim(-1, 1)
    for i, (y, x) in enumerate(centres):
        for tile in range(_TILES):
            rows = slice(y) if tile < 2 else slice(y, None)
            columns = slice(x, None) if tile % 2 else slice(x)
            top, left = (0 if tile >= 2 else height - y), (0 if tile % 2 else width - x)
            part = made[i, ..., rows, columns]
            bottom, right = top + part.shape[-2], left + part.shape[-1]
            part.copy_(pictures[(i - tile) % num, ..., top:bottom, left:right])
    return made


def _listed(value: Any) -> list[torch.Tensor]:
    """Return the rows of each sample."""
    if isinstance(value, Padded):
        pairs = zip(value.values, value.lengths.tolist(), strict=True)
        return [rows[:length] for rows, length in pairs]
    if isinstance(value, Ragged):
        return [value.values[a:b] for a, b in pairwise(value.offsets.tolist())]
    return list(value)


def _tiles(centres: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the tiles of N mosaics lie, one after the other.

    Beside each other: float32 ``(4 * N, 2)``, by how much rows move along x and y; ``(4 * N, 4)``, x1, y1, x2, y2.
    """
    centre, shape = centres[:, None], torch.tensor(size, device=centres.device)
    is_behind = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=centres.device) > 0  # y, x
    shift = torch.where(is_behind, centre, centre - shape)
    first, last = torch.where(is_behind, centre, 0), torch.where(is_behind, shape, centre)
    parts = torch.cat([first.flip(-1), last.flip(-1)], -1)
    return shift.flip(-1).float().view(-1, 2), parts.float().view(-1, 4)


def _moved(
    values: torch.Tensor, field: Any, shifts: torch.Tensor, parts: torch.Tensor
) -> torch.Tensor:
    low, high = parts.split(2, 1)
    if isinstance(field, Boxes):
        moved = values + shifts.repeat(1, 2)
        return torch.minimum(torch.maximum(moved, low.repeat(1, 2)), high.repeat(1, 2))
    if not isinstance(field, Keypoints):
        return values
    at = values[..., :2] + shifts[:, None]
    if values.shape[-1] == 2:
        return at
    is_seen = ((at >= low[:, None]) & (at <= high[:, None])).all(-1) & (values[..., 2] > 0)
    found: torch.Tensor = torch.cat([at, values[..., 2:]], -1) * is_seen.unsqueeze(-1)
    return found


def _joined(
    values: torch.Tensor, counts: list[int], keeps: torch.Tensor | None, given: Any, name: str
) -> Any:
    """Return the rows of mosaics in the form that the batch had."""
    if keeps is not None:
        counts = [int(part.sum()) for part in keeps.split(counts)]
        values = values[keeps.to(values.device)]
    lists = list(values.split(counts))
    return in_form(lists, given.form, name) if isinstance(given, Padded | Ragged) else lists
