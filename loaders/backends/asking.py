"""What the parent asks of its child process: the kind, and values.

- ``"make"``: the number of a pass, and the indices of each batch of a group.
- ``"epoch"``: its number, for the dataset.
- ``"describe"``: what each worker is doing.
- ``"close"``: to end.

Indices of ours travel as their bytes. Pickling them takes two microseconds in a loop, and twenty times as long between
two batches, as copying these leaves none of its code in the caches.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np

from loaders.sampling.batch import IndexBatch

_INT64 = np.dtype(np.int64)
# Words: 0, the pass, how many batches; of each of them how many indices, its epoch and seed.
_NUM_FIRST, _NUM_EACH = 3, 3


def ask(kind: str, *values: Any) -> bytes:
    """Return a message that asks for something."""
    return pickle.dumps((kind, *values), pickle.HIGHEST_PROTOCOL)


def ask_for(number: int, group: list[Any]) -> bytes:
    """Return a message that asks for a group of batches, by the number of the pass and the indices of each."""
    words = [0, number, len(group)]  # a pickle begins with another byte
    for batch in group:
        if not _is_plain(batch):
            return ask("make", number, group)
        words += len(batch.indices), batch.epoch, batch.seed
    try:
        head = struct.pack(f"<{len(words)}q", *words)
    except struct.error:  # a seed of more than 63 bits
        return ask("make", number, group)
    return b"".join([head, *[batch.indices for batch in group]])


def _is_plain(batch: Any) -> bool:
    """Tell whether a batch is indices, an epoch and a seed, and nothing else."""
    if type(batch) is not IndexBatch or batch.draws is not None or batch.valid is not None:
        return False
    indices = batch.indices
    return indices.dtype == _INT64 and indices.flags.c_contiguous


def asked(message: bytearray) -> tuple[Any, ...]:
    """Return the kind and the values of a message of our own parent; indices are the message's own bytes."""
    if message[0]:
        kind_and_values: tuple[Any, ...] = pickle.loads(message)  # noqa: S301
        return kind_and_values
    words = np.frombuffer(message, _INT64)
    _, number, num_batches = words[:_NUM_FIRST].tolist()
    at = _NUM_FIRST + _NUM_EACH * num_batches
    group = []
    for count, epoch, seed in words[_NUM_FIRST:at].reshape(num_batches, _NUM_EACH).tolist():
        group.append(IndexBatch(words[at : at + count], epoch, seed=seed))
        at += count
    return "make", number, group
