"""Pickles between the trainer and its child: what makes batches, with the memory files that it maps, and errors.

The child is a fresh interpreter, which never imports the trainer's main module: what is defined there, or in no module,
cannot be found by it.
"""

from __future__ import annotations

import io
import pickle
import traceback
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from loaders.datasets.base import BatchDataset
from loaders.datasets.memory.memfile import MemoryFile, open_memory_file
from loaders.datasets.memory.shared import HeldShard
from loaders.errors import LoadersError, UnsendableError

if TYPE_CHECKING:
    from pathlib import Path

    from loaders.backends.maker import Maker
    from loaders.datasets.memory.memfile import Descriptor

# Of the trainer's own reads.
_COUNTERS = ("epoch", "_is_epoch_set", "_num_untold", "_has_warned")


def pack(maker: Maker) -> bytes:
    """Pickle what makes batches.

    Raises:
        UnsendableError: Something in it cannot be pickled, or would not be found by the child.
        LoadersError: There is no room for a copy of arrays.
    """
    out = io.BytesIO()
    packer = _Packer(out)
    try:
        packer.dump(maker.for_child())
    except LoadersError:
        raise
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        raise UnsendableError(packer.last, str(error)) from error
    return out.getvalue()


class _Packer(pickle.Pickler):
    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self.last = ""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, HeldShard):
            return _map_held, (value.path, value.file().place)
        kind = value if hasattr(value, "__qualname__") else type(value)
        self.last = f"{kind.__module__}.{kind.__qualname__}"
        if not isinstance(value, BatchDataset):
            return NotImplemented
        reduced: Any = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict):
            # Without what changes when the trainer reads it, or sets the epoch.
            state = {name: each for name, each in reduced[2].items() if name not in _COUNTERS}
            reduced = (*reduced[:2], state, *reduced[3:])
        return reduced


# In the child: the trainer names a file again and again.
_mapped: weakref.WeakValueDictionary[Descriptor, MemoryFile] = weakref.WeakValueDictionary()


def _map_held(path: Path, place: Descriptor) -> HeldShard:
    """Return columns that the trainer has in a memory file, in the child."""
    file = _mapped.get(place) or open_memory_file(place)
    if file is None:
        what = "the memory of the dataset is gone: its process has ended, or dropped it"
        raise LoadersError(what)
    return HeldShard(path, _mapped.setdefault(place, file).columns, [file])


def portable(error: BaseException) -> BaseException:
    """Return what arrives as the same error, with its traceback; a RuntimeError if it does not pickle."""
    note = f"In the loader's child process:\n{''.join(traceback.format_exception(error))}"
    with suppress(Exception):
        arrived: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301  # what we made ourselves
        if type(arrived) is type(error) and str(arrived) == str(error):
            arrived.add_note(note)
            return arrived
    plain = RuntimeError(traceback.format_exception_only(error)[0].strip())
    plain.add_note(note)
    return plain
