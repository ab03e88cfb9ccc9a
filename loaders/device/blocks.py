"""Crops before images are made: only the blocks that a crop touches are transformed and coloured.

The host says which (``cut_around``), for a whole batch a window of one size: then a batch is still
a few operations, whatever its crops. What a window has beyond its crop, ``BatchAugment`` cuts off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.device.augment import Moves

# A larger share of the pixels is not worth its gathering. On one core 0.66 of them took 0.65 to 0.84 of the
# time, 0.88 all of it.
_WORTH = 0.75


class Cut(NamedTuple):
    """Which part of each image of a batch is made, in units of a few pixels: its blocks."""

    corners: torch.Tensor  # int64 ``(N, 2)``: row and column of each window's first unit
    size: tuple[int, int]  # rows and columns of every window


def cut_around(moves: Moves, size: Sequence[int], unit: int) -> tuple[Cut, Moves] | None:
    """Return windows that hold all that a batch's moves read, and the moves as seen from there.

    Args:
        moves: Drawn for whole images, on the host.
        size: (height, width) of these images.
        unit: Pixels a side of what is made at once.

    Returns:
        None where nothing is saved: a sample's box is nearly the image (of many boxes of random size,
        one is), or leaves it.

    Example:
        >>> from loaders.augment import CenterCrop
        >>> from loaders.device.augment import draw_moves
        >>> moves = draw_moves([CenterCrop(8)], (64, 64), [0], seed=0, epoch=0)
        >>> cut, rest = cut_around(moves, (64, 64), 16)
        >>> cut, rest.table[0, 0]
        (Cut(corners=tensor([[1, 1]]), size=(2, 2)), tensor([12, 12]))
    """
    corners, lengths = moves.table[:, 0], moves.table[:, 1]
    whole = torch.tensor(size, device=corners.device)
    if not len(corners) or (corners < 0).any() or (corners + lengths > whole).any():
        return None
    units = (whole + unit - 1) // unit
    first = corners // unit
    needed = ((corners + lengths - 1) // unit - first + 1).amax(0)
    if int(needed.prod()) > _WORTH * int(units.prod()):
        return None
    first = torch.minimum(first, units - needed)
    table = moves.table.clone()
    table[:, 0] -= first * unit
    rows, columns = needed.tolist()
    regions = moves.regions
    if regions is not None:
        regions = regions.clone()
        regions[:, 0] -= first * unit
    matrices = moves.matrices
    if moves.warped is not None and matrices is not None:
        matrices = matrices.clone()
        shift = (first[moves.warped] * unit).flip(1).unsqueeze(2)  # x, y
        matrices[:, :2] -= shift * matrices[:, 2:]
    found = moves._replace(table=table, regions=regions, matrices=matrices)
    return Cut(first, (rows, columns)), found


@dataclass(frozen=True, slots=True)
class Patch:
    """A part of one plane of each image."""

    row: torch.Tensor  # int64 ``(N,)``: its first row of blocks
    column: torch.Tensor  # its first column
    num_rows: int  # rows of blocks
    num_columns: int  # columns of blocks

    @property
    def num_blocks(self) -> int:
        """Blocks of one image."""
        return self.num_rows * self.num_columns

    def doubled(self) -> Patch:
        """Return the same part of a plane that has twice the blocks a side."""
        return Patch(2 * self.row, 2 * self.column, 2 * self.num_rows, 2 * self.num_columns)

    def widened(self, rows: int, columns: int) -> Patch:
        """Return it with the blocks around it, of a plane of so many; at its edges there are none."""
        row, num_rows = _around(self.row, self.num_rows, rows)
        column, num_columns = _around(self.column, self.num_columns, columns)
        return Patch(row, column, num_rows, num_columns)


def _around(first: torch.Tensor, num: int, limit: int) -> tuple[torch.Tensor, int]:
    wide = min(num + 2, limit)
    return (first - 1).clamp(0, limit - wide), wide


def gather(
    values: torch.Tensor, window: Patch, first: int, rows: int, columns: int
) -> torch.Tensor:
    """Return a window of a plane, which begins at ``first`` of values ``(N, K, B)``: ``(N, K, blocks of the window)``.

    A window may be one block wider and taller than its plane, where chroma is: there lie any values.
    """
    num, kinds, blocks = values.shape
    device, width = values.device, window.num_columns
    down = (window.row.unsqueeze(1) + torch.arange(window.num_rows, device=device)).clamp_(
        max=rows - 1
    )
    at = down * columns + (window.column.unsqueeze(1) + first)
    starts = torch.arange(num * kinds, device=device).view(num, kinds, 1) * blocks
    # Rows of equal length at any offset: one gather of contiguous values, over a view that overlaps itself.
    lines = values.as_strided((values.numel() - width + 1, width), (1, 1))
    found = lines.index_select(0, (starts + at.unsqueeze(1)).flatten())
    return found.view(num, kinds, window.num_blocks)


def take_rows(
    planes: torch.Tensor, first: torch.Tensor, num: int, limit: int, begin: torch.Tensor
) -> torch.Tensor:
    """Return ``num`` rows of each plane from ``first``, counted in whole planes, on; one more before and behind.

    ``planes`` are parts ``(N, rows, columns)``, from row ``begin`` on, of planes of ``limit`` rows, beyond which these
    go on.
    """
    around = torch.arange(-1, num + 1, device=planes.device)
    at = (first.unsqueeze(1) + around).clamp_(0, limit - 1) - begin.unsqueeze(1)
    at += torch.arange(len(planes), device=planes.device).unsqueeze(1) * planes.shape[1]
    rows = planes.reshape(-1, planes.shape[2]).index_select(0, at.flatten())
    return rows.view(len(planes), num + 2, planes.shape[2])
