"""Torch's copy of rows, for batches: ``index_select`` writes to where the batch has them, without a copy between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]
    UInt8Array = npt.NDArray[np.uint8]


def take_rows(rows: UInt8Array) -> Callable[[Indices, UInt8Array], None]:
    """Return what copies rows of some numbers to those of another array."""
    source = torch.from_numpy(rows)

    def copy(numbers: Indices, out: UInt8Array) -> None:
        torch.index_select(source, 0, torch.from_numpy(numbers), out=torch.from_numpy(out))

    return copy
