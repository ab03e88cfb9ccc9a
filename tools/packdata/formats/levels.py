"""The levels of lists that all have one size, which tell Parquet where each begins: run-length encoded.

An encoder that is given every level takes longer than all else in writing such a column. The levels repeat
themselves after a few rows, so here those are encoded, and repeated.

Source:
    https://parquet.apache.org/docs/file-format/data-pages/encodings/: run length encoding / bit-packing hybrid, of
    one bit; where runs begin is Arrow's choice (``RleBitPackedEncoder``).
"""

from __future__ import annotations

import numpy as np

from packdata.formats.thrift import varint

_GROUP = 8  # levels that are packed into a byte
_MOST_GROUPS = 63  # of a packed run, whose size takes one byte


def list_levels(num_lists: int, size: int) -> bytes:
    """Return the repetition and the definition levels of lists, as a data page of version 1 has them."""
    defined = _run(num_lists * size, 1)
    repeated = _run(num_lists, 0) if size == 1 else _repetition(num_lists, size)
    return b"".join(len(part).to_bytes(4, "little") + part for part in (repeated, defined))


def _repetition(num_lists: int, size: int) -> bytes:
    """Return a 0 and ``size - 1`` 1 for each list, encoded.

    Levels are packed until all of a byte are 1: from there to the end of the list is a run of them, and the next
    list begins a byte, as the first did. In lists of at most eight that never comes, and packed runs repeat.
    """
    for period in range(1, _GROUP + 1):
        begin = -(-((period - 1) * size + 1) // _GROUP) * _GROUP
        if (num := period * size - begin) >= _GROUP:
            lists = _packed(begin, size) + _run(num, 1)
            break
    else:
        period = _GROUP * _MOST_GROUPS
        lists = _packed(period * size, size)
    times, rest = divmod(num_lists, period)
    return lists * times + _packed(rest * size, size)


def _packed(num: int, size: int) -> bytes:
    """Return the first so many levels, eight a byte."""
    levels = np.packbits(np.arange(num) % size > 0, bitorder="little").tobytes()
    runs = (levels[at : at + _MOST_GROUPS] for at in range(0, len(levels), _MOST_GROUPS))
    return b"".join(bytes([len(run) << 1 | 1]) + run for run in runs)


def _run(num: int, level: int) -> bytes:
    return varint(num << 1) + bytes([level])
