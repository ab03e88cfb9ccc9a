"""What the parent asks of its child process: the kind, and values.

- ``"make"``: the number of a pass, and the indices of each batch of a chunk that is made together.
- ``"chunk"``: the same of one whose first batch is to be made.
- ``"next"``: the number of a pass: the next batch of the chunk is to be made.
- ``"epoch"``: its number, for the dataset.
- ``"describe"``: what each worker is doing.
- ``"close"``: to end.

Indices of ours travel as their bytes. Pickling them takes two microseconds in a loop, and twenty times as long between
two batches, as copying these leaves none of its code in the caches.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.sampling.batch import IndexBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT64 = np.dtype(np.int64)
# Words: 0, the pass, what is asked for, how many batches; of each of them how many indices, its epoch and seed.
_NUM_FIRST, _NUM_EACH = 4, 3
_KINDS = "make", "chunk", "next"


def ask(kind: str, *values: Any) -> bytes:
    """Return a message that asks for something."""
    return pickle.dumps((kind, *values), pickle.HIGHEST_PROTOCOL)


def ask_for(kind: str, number: int, batches: Sequence[Any] = ()) -> bytes:
    """Return a message that asks for batches, by the number of the pass and the indices of each."""
    words = [0, number, _KINDS.index(kind), len(batches)]  # a pickle begins with another byte
    for batch in batches:
        if not _is_plain(batch):
            return ask(kind, number, batches)
        words += len(batch.indices), batch.epoch, batch.seed
    try:
        head = struct.pack(f"<{len(words)}q", *words)
    except struct.error:  # a seed of more than 63 bits
        return ask(kind, number, batches)
    return b"".join([head, *[batch.indices for batch in batches]])


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
    _, number, kind, num_batches = words[:_NUM_FIRST].tolist()
    at = _NUM_FIRST + _NUM_EACH * num_batches
    batches = []
    for count, epoch, seed in words[_NUM_FIRST:at].reshape(num_batches, _NUM_EACH).tolist():
        batches.append(IndexBatch(words[at : at + count], epoch, seed=seed))
        at += count
    return _KINDS[kind], number, batches
