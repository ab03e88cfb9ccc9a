"""Columns made of single records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loaders.data.columns import FixedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence


def fixed_column(rows: Sequence[bytes], nbytes: int) -> FixedColumn:
    """Lay records of one size out as a column; ValueError if one has another size."""
    for i, row in enumerate(rows):
        if len(row) != nbytes:
            raise ValueError(f"row {i} has {len(row)} bytes, the column {nbytes}")
    return FixedColumn(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), nbytes))
