"""Columns made of single records."""

from collections.abc import Sequence

import numpy as np

from loaders.data.columns import FixedColumn


def fixed_column(rows: Sequence[bytes], nbytes: int) -> FixedColumn:
    """Lay records of one size out as a column; ValueError if one has another size."""
    for i, row in enumerate(rows):
        if len(row) != nbytes:
            raise ValueError(f"row {i} has {len(row)} bytes, the column {nbytes}")
    return FixedColumn(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), nbytes))
