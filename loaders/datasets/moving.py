"""Pixels as they are stored, and beside them what augmentation does to them: for a device to carry out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.datasets.base import SamplesOf
from loaders.datasets.reading.crops import spatial_axes
from loaders.datasets.reading.known import known_of
from loaders.device.augment import Moves, draw_moves, move_images, move_masks
from loaders.device.modes import without_autocast
from loaders.errors import SchemaError
from loaders.schema import Field, Image, Images, Mask

if TYPE_CHECKING:
    import torch

    from loaders.datasets.base import Halves
    from loaders.datasets.packed import PackedDataset
    from loaders.datasets.reading.request import Request

Size = tuple[int, int]
MovesBySize = dict[Size, Moves]


class MovingBatch(NamedTuple):
    """A batch before augmentation."""

    batch: Any  # with pictures as they are stored
    moves: MovesBySize  # what happens to pictures of each size


def moving_halves(dataset: PackedDataset) -> Halves:
    """Return the host's half of a dataset of pixels of one size, and the moves drawn for them, and what moves them."""
    check_movable(dataset)
    half = SamplesOf(dataset, dataset.plan_half(partial(_with_moves, dataset)))
    return half, partial(_moved, dataset)


def _with_moves(dataset: PackedDataset, batch: Any, request: Request) -> MovingBatch:
    return MovingBatch(batch, draw_picture_moves(dataset, request))


def _moved(dataset: PackedDataset, value: MovingBatch) -> Any:
    """Augment a batch where it is."""
    moved = {
        name: move_picture(getattr(value.batch, name), field, value.moves)
        for name, field in pictures_of(dataset).items()
    }
    return value.batch._replace(**moved)


def check_movable(dataset: PackedDataset) -> None:
    """Raise SchemaError if a device cannot carry out a dataset's augmentation."""
    hint = "; leave augment_on='auto'"
    dataset.check_splits(hint)
    fields = dataset.stored_fields
    for name, field in fields.items():
        if isinstance(field, Image | Mask) and (field.codec != "raw" or field.size is None):
            raise SchemaError(
                f"pictures of field {name!r} are not stored as pixels of one size{hint}"
            )
        if isinstance(field, Images):
            raise SchemaError(
                f"pictures of field {name!r}, of any number, are decoded and moved on the host{hint}"
            )
    check_arrays_stay(dataset, hint)


def check_arrays_stay(dataset: PackedDataset[Any], hint: str) -> None:
    """Raise SchemaError if augmentation moves an array: a device moves images and masks alone."""
    fields = dataset.stored_fields
    if dataset.augment and (arrays := spatial_axes(fields.values())):
        name = list(fields)[next(iter(arrays))]
        raise SchemaError(f"augment moves the array {name!r}, which is done on the host{hint}")


def pictures_of(dataset: PackedDataset) -> dict[str, Image | Mask]:
    """Return the fields that augmentation moves."""
    fields = dataset.stored_fields.items()
    return {name: field for name, field in fields if isinstance(field, Image | Mask)}


def draw_picture_moves(dataset: PackedDataset, request: Request) -> MovesBySize:
    """Draw what happens to the pictures of each size: image and mask of one size move together."""
    sizes = {f.size for f in pictures_of(dataset).values() if f.size is not None}
    known = known_of(request, dataset.augment, 0, 0, len(request))
    draw = {"seed": request.seed, "epoch": request.epoch, "draws": request.draws, "known": known}
    return {
        size: draw_moves(dataset.augment, size, request.numbers, **draw)  # type: ignore[arg-type]
        for size in (sizes if dataset.augment else ())
    }


def move_picture(tensor: torch.Tensor, field: Field, moves: MovesBySize) -> torch.Tensor:
    """Carry the moves of its size out on the pictures of a field; others stay as they are."""
    size = field.size if isinstance(field, Image | Mask) else None
    if size is None or size not in moves:
        return tensor
    move = move_images if isinstance(field, Image) else move_masks
    with without_autocast():
        return move(tensor, moves[size])
