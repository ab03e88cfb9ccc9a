r"""Token ids in files: ``.npy`` arrays, flat ``.bin``, Megatron's ``.bin`` with ``.idx``.

Source:
    Flat: nanoGPT's ``data/*/prepare.py`` writes uint16 and nothing else; OLMo calls such files
    ``.npy``; llm.c and modded-nanogpt put a header before them (llm.c, ``dev/data/data_common.py``).
    Pairs: Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``, ``_IndexWriter``: ``MMIDIDX\\0\\0``, uint64 1,
    uint8 code of the type, uint64 number of sequences, uint64 number of document bounds; then int32
    length of each sequence, int64 offset of each in the ``.bin``, int64 document bounds (numbers of
    sequences, from 0 to their number), and for some int8 mode of each sequence. All little-endian.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import SourceError
from packdata.reading import read_file
from packdata.sources.listed import is_file
from packdata.sources.names import key_of

if TYPE_CHECKING:
    from loaders.remote.url import Location
    from packdata.tokens.files import SourceFile

DEFAULT_DTYPE = "uint16"
_NPY_MAGIC = b"\x93NUMPY"
_LLMC_BYTES = 1024  # 256 int32: magic, version, number of tokens, zeros
# Type of the ids by the first four bytes.
_LLMC = {(20240520).to_bytes(4, "little"): "<u2", (20240801).to_bytes(4, "little"): "<u4"}
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats
_SCAN = 1 << 16
_MIN_TEXT_BYTES = 32


class StoredIds(NamedTuple):
    """The ids of a file, 1-D; it is mapped for as long as some of them are used."""

    file: SourceFile
    dtype: np.dtype[Any]
    length: int
    offset: int = 0  # bytes before the first
    ends: npt.NDArray[np.int64] | None = None  # behind each document, where an index or rows tell

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the ids of a range, mapped; SourceError if the file cannot be read."""
        if not self.length:
            return np.empty(0, self.dtype)
        path = self.file.file.local()
        try:
            return np.memmap(path, self.dtype, "r", self.offset, (self.length,))[start:stop]
        except (OSError, ValueError) as error:
            raise SourceError(f"the file cannot be mapped ({error})", self.file.path) from error


def open_ids(file: SourceFile, bin_dtype: str | None) -> StoredIds:
    """Find the ids of a file, and where its documents end; SourceError if it cannot be read."""
    name, folder = file.path.name, file.path.parent
    index = folder / f"{key_of(name)}.idx"
    mask = folder / name.replace("token_ids", "labels_mask")  # of OLMo-core's targets
    if "mask" in re.split(r"[\W_]", name.lower()) or (mask != file.path and is_file(mask)):
        hint = "Pack rows of input_ids and loss_mask (Parquet), or move the masks away"
        raise SourceError(f"mask files are not supported: {mask.name}", file.path, hint)
    if file.kind == "bin" and is_file(index):
        return _open_pair(file, index)
    if file.kind == "bin" and key_of(name).endswith("_document"):
        hint = "Copy the .idx beside the .bin; rename a .bin that another tool made"
        raise SourceError(f"Megatron's {index.name} is missing", file.path, hint)
    head = file.read(0, _LLMC_BYTES)
    if (dtype := _LLMC.get(head[:4])) is not None:
        (length,) = struct.unpack_from("<i", head.ljust(12, b"\0"), 8)
        return _sized(StoredIds(file, np.dtype(dtype), max(0, length), _LLMC_BYTES))
    if head.startswith(_NPY_MAGIC):
        return _open_npy(file, bin_dtype)
    if file.kind == "npy" and bin_dtype is None:
        hint = "For plain ids, as OLMo's are, pass bin_dtype= (uint16, uint32, ...)"
        raise SourceError("the file has no numpy header", file.path, hint)
    return _open_flat(file, bin_dtype, head)


def _open_npy(file: SourceFile, bin_dtype: str | None) -> StoredIds:
    path = file.file.local()
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of numpy's parser: the header is Python
        raise SourceError(f"the file cannot be read as .npy ({error})", file.path) from error
    if ids.dtype.kind not in "ui" or ids.dtype != (bin_dtype or ids.dtype):
        raise SourceError(f"the file holds {ids.dtype}, not {bin_dtype or 'ids'}", file.path)
    if ids.ndim not in (1, 2) or not ids.flags.c_contiguous:
        hint = "Ids are 1-D, or 2-D with one document a row, in C order"
        raise SourceError(f"unexpected array of shape {ids.shape}", file.path, hint)
    ends = np.arange(1, len(ids) + 1) * ids.shape[1] if ids.ndim == 2 else None
    return StoredIds(file, ids.dtype, ids.size, ids.offset, ends)


def _open_flat(file: SourceFile, dtype: str | None, head: bytes) -> StoredIds:
    item = np.dtype(dtype or DEFAULT_DTYPE).newbyteorder("<")
    text = head.decode("utf-8", "ignore")
    is_whole = len(text.encode()) > len(head) - 4  # but for a character that the cut goes through
    is_text = is_whole and all(c.isprintable() or c.isspace() for c in text)
    if item.itemsize > 1 and len(head) >= _MIN_TEXT_BYTES and is_text:
        hint = "Call the file .txt or .jsonl, or pass bin_dtype='uint8' for bytes as ids"
        raise SourceError("the file is text, not plain ids", file.path, hint)
    ids = _sized(StoredIds(file, item, file.size // item.itemsize))
    # Wider ids, read as 16 bits, have a second half that is next to nothing.
    first = ids.read(0, _SCAN)
    low, high = first[0::2], first[1::2]
    if dtype is None and len(high) >= 8 and int(high.max()) * 64 < int(low.max()):
        what = f"the ids look like uint32: as uint16, every second is below {int(high.max()) + 1}"
        raise SourceError(what, file.path, "Pass bin_dtype= with the type of the ids")
    return ids


def _open_pair(file: SourceFile, index: Location) -> StoredIds:
    data = read_file(index)
    try:
        magic, version, code, num_sequences, num_bounds = _HEADER.unpack_from(data)
        dtype, at = np.dtype(_DTYPES[code]), _HEADER.size + 4 * num_sequences
        lengths = np.frombuffer(data, "<i4", num_sequences, _HEADER.size).astype(np.int64)
        pointers = np.frombuffer(data, "<i8", num_sequences, at)
        bounds = np.frombuffer(data, "<i8", num_bounds, at + 8 * num_sequences)
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        hint = f"Is the file complete? Types {sorted(_DTYPES)} are read"
        what = f"the file cannot be read as Megatron-LM's index ({error!r})"
        raise SourceError(what, index, hint) from error
    ends = np.append(0, np.cumsum(lengths))
    is_right = (
        (magic, version) == (_MAGIC, 1)
        and len(data) - at - 8 * (num_sequences + num_bounds) in (0, num_sequences)  # modes
        and bounds[:1].tolist() + bounds[-1:].tolist() == [0, num_sequences]
        and (pointers == ends[:-1] * dtype.itemsize).all()
        and (lengths >= 0).all()
        and (np.diff(bounds) >= 0).all()
    )
    if not is_right:
        hint = "Version 1 is read, with documents of the sequences of the .bin, in order"
        raise SourceError("Megatron-LM's index is damaged or of another version", index, hint)
    return _sized(StoredIds(file, dtype, int(ends[-1]), ends=ends[bounds[1:]]))


def _sized(ids: StoredIds) -> StoredIds:
    """Return ids as they are; SourceError if their file has not as many."""
    file, itemsize = ids.file, ids.dtype.itemsize
    if file.size != ids.offset + ids.length * itemsize:
        what = f"{file.size} bytes, for {ids.length} ids of {itemsize} bytes"
        hint = "Are the file and its index complete? Of plain ids bin_dtype= gives the type"
        raise SourceError(what, file.path, hint)
    return ids
