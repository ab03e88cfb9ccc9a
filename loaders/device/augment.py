"""``BatchAugment``: crops, resizes, flips and pixel ops of whole batches, on whichever device holds them.

Each sample gets the parameters that the same ops would have drawn for it on the host (``loaders.augment.planning``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from loaders.augment.planning import as_ops, draw_geometry
from loaders.checks import shown, whole_number
from loaders.device.nested import map_tensors
from loaders.device.pixels import check_fit, move_images, move_masks
from loaders.device.planning import Moves, moves_of
from loaders.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.augment import Op
    from loaders.device.normalize import Normalize


class BatchAugment(nn.Module):
    """Crop, resize and flip a batch of images of one size, and their masks with them.

    Sample ``i`` gets the box and flips that the same ops draw on the host for
    ``(seed, epoch, indices[i], draws[i])``, whatever else is in its batch.

    Args:
        ops: Ops of ``loaders.augment``; of volumes, crops and flips alone.
        seed: Of the run: the loader's.
        view: Number of the view, where a sample has several.
        normalize: Applied at the end, to the same pixels.

    Shape:
        images uint8 or uint16 ``(N, C, H, W)`` (of crops and flips alone, any dtype and also
        ``(N, C, D, H, W)``) in, ``(N, C, *size)`` out, channels-last in memory as the loader's;
        masks any dtype ``(N, H, W)`` (or ``(N, D, H, W)``) in, ``(N, *size)`` out, by nearest.

    Raises:
        TypeError: At construction, ``ops`` is not a list of ops.
        BatchError: At call, the tensors do not fit together, or an op does not suit them.

    Example:
        >>> from loaders.augment import CenterCrop
        >>> images = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
        >>> BatchAugment([CenterCrop(2)])(images, indices=[0])
        tensor([[[[ 5,  6],
                  [ 9, 10]]]], dtype=torch.uint8)
    """

    def __init__(
        self,
        ops: Sequence[Op],
        *,
        seed: int = 0,
        view: int = 0,
        normalize: Normalize | None = None,
    ) -> None:
        super().__init__()
        self.ops = as_ops(ops)
        self.seed, self.view = whole_number("seed", seed), whole_number("view", view, at_least=0)
        if normalize is not None and not callable(normalize):
            raise TypeError(f"normalize must be a Normalize, got {shown(normalize)}")
        self.normalize = normalize

    def forward(
        self,
        images: torch.Tensor,
        *masks: torch.Tensor,
        indices: Any = None,
        epoch: int = 0,
        draws: Any = None,
        moves: Moves | None = None,
    ) -> Any:
        """Return the augmented images; with masks, a tuple of images and masks.

        Args:
            images: The batch.
            *masks: Of the same spatial size, if any.
            indices: ``(N,)`` positions in the dataset, on the host (a batch's ``sample_id``).
            epoch: From 0.
            draws: ``(N,)``: which repeat of its index within the epoch each sample is.
            moves: What ``draw`` returned, in place of the three before.
        """
        for tensor in (images, *masks):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"BatchAugment takes tensors of images of one size, got {shown(tensor)}"
                )
        if moves is None:
            moves = self.draw(images, indices, epoch, draws)
        check_fit(images, masks, moves)
        moves = map_tensors(moves, partial(_moved, device=images.device))
        pixels = move_images(images, moves)
        if self.normalize is not None:
            pixels = self.normalize(pixels)
        return (pixels, *(move_masks(mask, moves) for mask in masks)) if masks else pixels

    def draw(self, images: torch.Tensor, indices: Any, epoch: int, draws: Any = None) -> Moves:
        """Draw what happens to these images."""
        numbers = np.asarray([] if indices is None else indices)
        is_whole = numbers.dtype.kind in "iu" or not numbers.size
        if numbers.shape != (len(images),) or not is_whole:
            what = f"one whole number per image ({len(images)})"
            raise BatchError(f"indices must have {what}, got {shown(indices)}")
        if any(getattr(op, "foreground", None) for op in self.ops):
            raise BatchError(
                "RandomCrop(foreground=...) needs the labels: use it in augment= of the dataset, not in BatchAugment"
            )
        size = images.shape[2:]
        drawn = draw_geometry(
            self.ops,
            np.broadcast_to(size, (len(images), len(size))),
            seed=self.seed,
            epoch=whole_number("epoch", epoch, at_least=0),
            indices=numbers.astype(np.int64),
            draws=draws,
            view=self.view,
        )
        return moves_of(self.ops, drawn, size)

    def extra_repr(self) -> str:
        """Show the ops."""
        return f"ops={list(self.ops)}, seed={self.seed}"


def _moved(table: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """Bring the parameters to the device without waiting for what it is doing."""
    if device.type == "cuda" and not table.is_cuda:
        table = table.pin_memory()
    return table.to(device, non_blocking=True)
