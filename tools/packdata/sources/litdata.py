"""Folders that ``litdata.optimize`` wrote, read without its package, which needs torch.

Source:
    litdata, ``streaming/writer.py``, ``serializers.py``, ``constants.py``: a chunk is the uint32
    number of items, the uint32 offset of each and of the end, and the items; an item is the uint32
    size of each of its values, then the values; of tokens it is bare ids. Rows without pictures or
    arrays are Arrow in place of items: an IPC file, its uint32 length, ``LDARW01`` and NUL.
    ``index.json`` lists the chunks, the names of values, and how they are stored. All little-endian.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.arrow import read_json
from packdata.sources.base import read_file
from packdata.sources.mds import DECODERS, INDEX, decode_sample
from packdata.sources.row_file import COMPLETE, RowFile, decompressed, map_file, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TOKENS = "input_ids"
_ARROW_END = b"LDARW01\0"
_TORCH_DTYPES = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1"}
_TORCH_DTYPES |= {13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"}
_NUMPY_DTYPES = dict(
    enumerate(("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"))
)
_ARRAYS = {"no_header_tensor": _TORCH_DTYPES, "no_header_numpy": _NUMPY_DTYPES}
# Of LitData's formats those that MDS has, too, by the name that they have there.
_SHARED = {name: name for name in ("str", "int", "bytes", "jpeg", "pil")} | {"float": "float64"}
Decoder = tuple[pa.DataType, "Callable[[bytes], Any]"]


def is_litdata(path: Path) -> bool:
    """Tell whether a file is the ``index.json`` of a folder of chunks."""
    if path.name != INDEX or not path.is_file():
        return False
    index = read_json(path)
    return isinstance(index, dict) and "chunks" in index and isinstance(index.get("config"), dict)


class LitDataRows(RowFile):
    """A folder, by its ``index.json``; a chunk is a group.

    A value of a tuple or list is called ``column_0`` and so on, ids of tokens ``input_ids``.

    Raises:
        SourceError: A chunk is missing or damaged, or values are stored in a way that is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._open(read_json(path))
        except SourceError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            what = f"it does not describe chunks as LitData does ({error!r})"
            raise SourceError(what, path) from error

    def _open(self, index: Mapping[str, Any]) -> None:
        path = self.path
        self._config: Mapping[str, Any] = index["config"]
        if self._config.get("encryption"):
            raise SourceError("its chunks are encrypted", path, "Write them without it")
        if self._config.get("compression_level") not in (None, "chunk"):
            what = f"its chunks are compressed by {self._config['compression_level']}"
            raise SourceError(what, path, "Write them with compression_level='chunk', or without")
        if self._config.get("compression") not in (None, "zstd"):
            raise SourceError(f"its chunks are compressed as {self._config['compression']}", path)
        self._chunks = [path.with_name(Path(c["filename"]).name) for c in index["chunks"]]
        sizes = [chunk.get("chunk_size") for chunk in index["chunks"]]
        formats = self._config.get("data_format") or []
        self._is_tokens = self._config.get("item_loader") == "TokensLoader"
        names = [TOKENS] if self._is_tokens else _names(self._config, len(formats))
        self._decoders = [
            (name, *self._decoder(kind)) for name, kind in zip(names, formats, strict=True)
        ]
        self.schema = pa.schema({name: kind for name, kind, _ in self._decoders})
        self.groups = [self._num_items(*pair) for pair in zip(self._chunks, sizes, strict=True)]

    def _decoder(self, kind: str) -> Decoder:
        encoding, _, option = kind.partition(":")
        if encoding in _SHARED:
            return DECODERS[_SHARED[encoding]]
        if encoding == "image":
            return DECODERS["jpeg"]
        if encoding == "bool":
            return pa.bool_(), lambda data: data != b"\0"
        dtype = _ARRAYS.get(encoding, {}).get(int(option or -1))
        if dtype is None:
            hint = "Write it again as numbers, texts, bytes, pictures, or arrays of one axis"
            raise SourceError(f"a value is stored as {kind!r}", self.path, hint)
        item = pa.float32() if dtype == "<f2" else pa.from_numpy_dtype(np.dtype(dtype))
        return pa.large_list(item), lambda data: np.frombuffer(data, dtype).tolist()

    def _num_items(self, chunk: Path, listed: Any) -> int:
        """Return the items of a chunk; an uncompressed one is checked, others when they are read."""
        if not chunk.is_file():
            raise SourceError("it is listed in index.json and is not there", chunk)
        if self._config.get("compression"):
            return int(listed)
        data = np.frombuffer(map_file(chunk), np.uint8)
        arrow = self._arrow(data, chunk)
        return len(self._offsets(data, chunk)) - 1 if arrow is None else len(arrow)

    def _arrow(self, data: Any, chunk: Path) -> pa.Table | None:
        """Return the rows of a chunk that are Arrow; None if they are not."""
        if len(data) < 12 or data[-8:].tobytes() != _ARROW_END:
            return None
        try:
            length = int(data[-12:-8].view("<u4")[0])
            table = pa.ipc.open_file(pa.py_buffer(data[-12 - length : -12])).read_all()
            return table.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            what = f"its Arrow rows cannot be read ({error})"
            raise SourceError(what, chunk, COMPLETE) from error

    def _offsets(self, data: Any, chunk: Path) -> list[int]:
        num = int(data[:4].view("<u4")[0]) if len(data) >= 4 else -1
        offsets = data[4 : 4 * (num + 2)]
        offsets = offsets.view("<u4").tolist() if len(offsets) == 4 * (num + 1) else []
        is_whole = offsets and offsets[0] == 4 * (num + 2) and offsets[-1] == len(data)
        if not is_whole or offsets != sorted(offsets):
            raise SourceError("it is not a whole chunk of LitData", chunk, COMPLETE)
        return [int(offset) for offset in offsets]

    def _data(self, chunk: Path) -> Any:
        data = read_file(chunk, str(chunk))
        if compression := self._config.get("compression"):
            data = decompressed(data, compression, chunk)
        return np.frombuffer(data, np.uint8)

    def _table(self, group: int) -> pa.Table:
        chunk = self._chunks[group]
        data = self._data(chunk)
        if (arrow := self._arrow(data, chunk)) is not None:
            return arrow
        offsets = self._offsets(data, chunk)
        if self._is_tokens:
            ends = np.array(offsets, np.int64) - offsets[0]
            return self._tokens(data[offsets[0] :], ends, chunk)
        columns = [(name, decode, None) for name, _, decode in self._decoders]
        items = enumerate(itertools.pairwise(offsets))
        rows = [
            decode_sample(data[start:end].tobytes(), columns, f"{chunk}, row {row}")
            for row, (start, end) in items
        ]
        return table_of(rows, self.schema, f"{chunk}")

    def _tokens(self, data: Any, ends: Any, chunk: Path) -> pa.Table:
        """Return ids that lie end to end, without an object of each."""
        kind = self.schema.field(TOKENS).type
        item = kind.value_type.bit_width // 8
        if (ends % item).any():
            raise SourceError(f"its items are not of {kind.value_type}", chunk)
        values = data.view(kind.value_type.to_pandas_dtype())
        return pa.table({TOKENS: pa.LargeListArray.from_arrays(ends // item, values)})

    def nbytes(self, group: int, columns: Sequence[str]) -> int:
        return self._chunks[group].stat().st_size


def _names(config: Mapping[str, Any], num: int) -> list[str]:
    """Return the names of values: the keys of a flat dictionary, else their numbers."""
    names = None
    try:
        spec = json.loads(config.get("data_spec") or "")[1]
        if spec["type"] == "builtins.dict":
            names = [str(name) for name in json.loads(spec["context"])]
    except (ValueError, TypeError, KeyError, IndexError):
        pass  # of an older version: numbered below
    return names if names and len(names) == num else [f"column_{i}" for i in range(num)]
