"""What a child process is started with: a pickle of what makes batches, which names the memory files that it maps.

The child is a fresh interpreter, which never imports the trainer's main module: what is defined there, or in no module,
cannot be found by it.
"""

from __future__ import annotations

import io
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import loaders.codecs as codecs
from loaders.datasets.base import BatchDataset
from loaders.datasets.memory.held import HeldShard
from loaders.datasets.memory.memfile import MemoryFile, open_memory_file
from loaders.errors import LoadersError, UnsendableError
from loaders.schema import Schema

if TYPE_CHECKING:
    from loaders.backends.maker import Maker
    from loaders.data.shards import MemoryShard
    from loaders.datasets.memory.memfile import Place

# Of the trainer's own reads.
_COUNTERS = ("epoch", "_is_epoch_set", "_num_untold", "_has_warned")


def pack(maker: Maker) -> bytes:
    """Pickle what makes batches.

    Raises:
        UnsendableError: Something in it cannot be pickled, or would not be found by the child.
        LoadersError: There is no room for a copy of arrays.
    """
    head, body = io.BytesIO(), io.BytesIO()
    last = packer = _Packer(body)
    try:
        packer.dump(maker.for_child())
        last = _Packer(head)
        last.dump(packer.codecs)
    except LoadersError:
        raise
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        raise UnsendableError(last.last, str(error)) from error
    return head.getvalue() + body.getvalue()


def unpack(data: bytes) -> Maker:
    """Make what was packed, in the child."""
    stream = io.BytesIO(data)
    for name, factory in _Unpacker(stream).load().items():
        codecs.register_codec(name, factory)
    return _Unpacker(stream).load()  # type: ignore[no-any-return]


class _Packer(pickle.Pickler):
    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self.codecs: dict[str, Any] = {}  # of the user's, that a dataset needs
        self.last = ""

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, HeldShard):
            return None
        return value.file().place, value.path

    def reducer_override(self, value: Any) -> Any:
        self.last = _name(value)
        if not isinstance(value, BatchDataset):
            return NotImplemented
        schema = getattr(value, "schema", None)
        for field in schema.fields.values() if isinstance(schema, Schema) else ():
            factory = codecs._FACTORIES.get(getattr(field, "codec", ""))
            if factory and not str(factory.__module__).startswith("loaders."):
                self.codecs[field.codec] = factory
        return _without_counters(value.__reduce_ex__(pickle.HIGHEST_PROTOCOL))


def _without_counters(reduced: Any) -> Any:
    """Return how a dataset is pickled, without what changes when the trainer reads it or sets the epoch."""
    if not (isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict)):
        return reduced
    state = {name: value for name, value in reduced[2].items() if name not in _COUNTERS}
    return (*reduced[:2], state, *reduced[3:])


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


class _Unpacker(pickle.Unpickler):
    """Reads what our own parent packed."""

    def persistent_load(self, given: Any) -> MemoryShard:
        place, path = given
        file = _mapped.get(place) or open_memory_file(place)
        if file is None:
            what = "the memory of the dataset is gone: its process has ended, or dropped it"
            raise LoadersError(what)
        return HeldShard(path, _mapped.setdefault(place, file).columns, [file])


# In the child: the trainer names a file again and again.
_mapped: weakref.WeakValueDictionary[Place, MemoryFile] = weakref.WeakValueDictionary()
