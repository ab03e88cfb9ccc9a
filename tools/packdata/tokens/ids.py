r"""Token ids in files: ``.npy`` arrays, flat ``.bin``, Megatron's ``.bin`` with ``.idx``, datatrove's ``.ds``.

Source:
    Flat: nanoGPT's ``data/*/prepare.py`` writes uint16 and nothing else; OLMo calls such files
    ``.npy``; llm.c and modded-nanogpt put a header before them (llm.c, ``dev/data/data_common.py``). datatrove's
    ``TokenizedFile`` writes the uint64 end of each document into ``.ds.index``. Pairs: Megatron-LM,
    ``megatron/core/datasets/indexed_dataset.py``, ``_IndexWriter``: ``MMIDIDX\\0\\0``, uint64 1,
    uint8 code of the type, uint64 number of sequences, uint64 number of document bounds; then int32
    length of each sequence, int64 offset of each in the ``.bin``, int64 document bounds (numbers of
    sequences, from 0 to their number), and for some int8 mode of each sequence. All little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loaders.errors import SourceError
from packdata.sources.base import read_file
from packdata.tokens.documents import Documents, Piece, TokenSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from packdata.tokens.files import SourceFile

PIECE_TOKENS = 2 << 20
DEFAULT_DTYPE = "uint16"
_NPY_MAGIC = b"\x93NUMPY"
_LLMC_BYTES = 1024  # 256 int32: magic, version, number of tokens, zeros
# By the first four bytes: version, type of the ids.
_LLMC = {
    (20240520).to_bytes(4, "little"): (1, "<u2"),
    (20240801).to_bytes(4, "little"): (7, "<u4"),
}
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats
_SCAN = 1 << 16
_MIN_TEXT_BYTES = 32


@dataclass(frozen=True, slots=True)
class IdsFile:
    """The ids of one file, mapped."""

    file: SourceFile
    ids: npt.NDArray[Any]  # 1-D
    # Positions behind each document, if an index or rows have them.
    ends: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def next_end(self, position: int, eod: int | None) -> int:
        """Return the first position from ``position`` on behind which no document goes on."""
        if self.ends is not None:
            at = int(np.searchsorted(self.ends, position))
            return int(self.ends[at]) if at < len(self.ends) else len(self)
        first = max(position - 1, 0)  # an end right before it will do
        while eod is not None and first < len(self):
            found = np.flatnonzero(self.ids[first : first + _SCAN] == eod)
            if len(found):
                return first + int(found[0]) + 1
            first += _SCAN
        return len(self)


def open_ids(file: SourceFile, bin_dtype: str | None) -> IdsFile:
    """Map a file of ids; without a header they are of ``bin_dtype``, None for uint16, if they look like it.

    Raises:
        SourceError: It is not what its name says, or holds no whole numbers.
    """
    index = file.path.with_suffix(".idx")
    if file.kind == "ds":
        return _open_ds(file)
    if file.kind == "bin" and index.exists():
        return _open_pair(file, index)
    if file.kind == "bin" and file.path.stem.endswith("_document"):
        hint = "Put it beside: without it nothing tells where documents end. Ids of another tool: rename the file"
        raise SourceError(f"Megatron's {index.name} is missing", file.path, hint)
    head = file.read(0, _LLMC_BYTES)
    if head[:4] in _LLMC:
        return _open_llmc(file, head)
    if head.startswith(_NPY_MAGIC):
        return _open_npy(file, bin_dtype)
    if file.kind == "npy" and bin_dtype is None:
        hint = "For plain ids, as OLMo's are, pass bin_dtype= (uint16, uint32, ...)"
        raise SourceError("the file has no numpy header", file.path, hint)
    return _open_flat(file, bin_dtype, head)


def _open_npy(file: SourceFile, bin_dtype: str | None) -> IdsFile:
    try:
        ids = np.load(file.path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise SourceError(f"the file cannot be read as .npy ({error})", file.path) from error
    if ids.dtype.kind not in "ui" or ids.dtype != (bin_dtype or ids.dtype):
        raise SourceError(f"the file holds {ids.dtype}, not {bin_dtype or 'ids'}", file.path)
    if ids.ndim not in (1, 2) or not ids.flags.c_contiguous:
        hint = "Ids are 1-D, or 2-D with one document a row, in C order"
        raise SourceError(f"unexpected array of shape {ids.shape}", file.path, hint)
    width = ids.shape[-1]
    ends = np.arange(width, ids.size + 1, width) if ids.ndim == 2 and ids.size else None
    return IdsFile(file, ids.reshape(-1), ends)


def _open_flat(file: SourceFile, dtype: str | None, head: bytes) -> IdsFile:
    item = np.dtype(dtype or DEFAULT_DTYPE).newbyteorder("<")
    if file.size % item.itemsize:
        what = f"{file.size} bytes are not a multiple of {item.itemsize} ({item.name})"
        raise SourceError(what, file.path, "Is it complete? Pass bin_dtype= for another type")
    text = head.decode("utf-8", "ignore")
    is_whole = len(text.encode()) > len(head) - 4  # but for a character that the cut goes through
    is_text = is_whole and all(c.isprintable() or c.isspace() for c in text)
    if item.itemsize > 1 and len(head) >= _MIN_TEXT_BYTES and is_text:
        hint = "Call it .txt or .jsonl, or pass bin_dtype='uint8' for bytes as ids"
        raise SourceError("the file is text, not plain ids", file.path, hint)
    ids = _map(file, item, file.size // item.itemsize)
    if dtype is None:
        # Wider ids, read as 16 bits, have a second half that is next to nothing.
        low, high = np.asarray(ids[0:_SCAN:2]), np.asarray(ids[1:_SCAN:2])
        if len(high) >= 8 and int(high.max()) * 64 < int(low.max()):
            what = f"every second id is below {int(high.max()) + 1} as uint16"
            raise SourceError(what, file.path, "Pass bin_dtype='uint32', or what the ids are")
    return IdsFile(file, ids)


def _open_llmc(file: SourceFile, head: bytes) -> IdsFile:
    known, dtype = _LLMC[head[:4]]
    version, length = struct.unpack_from("<2i", head.ljust(12, b"\0"), 4)
    if version != known or length < 0:
        what = f"version {version} of llm.c's header, {length} ids"
        raise SourceError(what, file.path, f"Version {known} is read")
    return IdsFile(file, _map(file, np.dtype(dtype), length, _LLMC_BYTES))


def _open_ds(file: SourceFile) -> IdsFile:
    index = file.path.with_name(f"{file.path.name}.index")
    data = read_file(index, str(index), "datatrove writes it: copy it beside the .ds")
    ends = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    if (np.diff(ends, prepend=0) < 0).any():
        raise SourceError("the ends of documents are not in order", index)
    length = int(ends[-1]) if len(ends) else 0
    wide = "<u4" if file.size == 4 * length else "<u2"
    return IdsFile(file, _map(file, np.dtype(wide), length), ends)


def _map(file: SourceFile, dtype: Any, length: int, offset: int = 0) -> npt.NDArray[Any]:
    """Map so many ids behind a header; SourceError if the file has not as many."""
    if file.size != offset + length * dtype.itemsize:
        what = f"{file.size} bytes, for {length} ids of {dtype.itemsize} bytes"
        raise SourceError(what, file.path, "Is it complete, and that of its index?")
    try:
        return (
            np.memmap(file.path, dtype, "r", offset, (length,)) if length else np.empty(0, dtype)
        )
    except (OSError, ValueError) as error:
        raise SourceError(f"the file cannot be mapped ({error})", file.path) from error


def _open_pair(file: SourceFile, index: Path) -> IdsFile:
    data = read_file(index, str(index))
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise SourceError("the file does not begin as an index of Megatron-LM (MMIDIDX)", index)
    _, version, code, num_sequences, num_bounds = _HEADER.unpack_from(data)
    if version != 1 or code not in _DTYPES:
        hint = f"Version 1 is read, and types {sorted(_DTYPES)}"
        raise SourceError(f"unexpected version {version} or type {code}", index, hint)
    needed = _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if len(data) not in (needed, needed + num_sequences):
        what = f"{len(data)} bytes, for {num_sequences} sequences that take {needed}"
        raise SourceError(what, index, "Is it complete?")
    dtype = np.dtype(_DTYPES[code])
    lengths = np.frombuffer(data, "<i4", num_sequences, _HEADER.size).astype(np.int64)
    at = _HEADER.size + 4 * num_sequences
    pointers = np.frombuffer(data, "<i8", num_sequences, at)
    bounds = np.frombuffer(data, "<i8", num_bounds, at + 8 * num_sequences)
    ends = np.append(0, np.cumsum(lengths))
    is_whole = len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == num_sequences
    is_in_order = (pointers == ends[:-1] * dtype.itemsize).all() and (lengths >= 0).all()
    if not (is_whole and is_in_order and (np.diff(bounds) >= 0).all()):
        raise SourceError("documents are not made of the sequences of the .bin, in order", index)
    return IdsFile(file, _map(file, dtype, int(ends[-1])), ends[bounds[1:]])


@dataclass(frozen=True, slots=True)
class IdsPiece:
    """A range of one file."""

    source: IdsFile
    start: int  # position of its first id
    stop: int  # position behind its last id
    eod: int | None  # the id behind which documents end, in a file without an index

    @property
    def where(self) -> str:
        return f"{self.source.file.name}, ids {self.start} to {self.stop - 1}"

    def read(self) -> Documents:
        """Return the ids and where documents end among them."""
        ids, ends = self.source.ids[self.start : self.stop], self.source.ends
        if ends is not None:
            first, last = np.searchsorted(ends, [self.start, self.stop], "right")
            ends = ends[first:last] - self.start
        elif self.eod is not None:
            ends = np.flatnonzero(ids == self.eod) + 1
        else:
            ends = np.empty(0, np.int64)
        if self.stop == len(self.source):
            ends = np.append(ends, len(ids))
        where = f"{self.source.file.name}, id "
        return Documents(ids, np.unique(ends), lambda at: f"{where}{self.start + at}")


class IdsSource(TokenSource):
    """Pieces of files of ids, in a fixed order.

    Raises:
        SourceError: A file is damaged, or of the wrong kind.
    """

    kind = "ids"
    has_ids = True

    def __init__(
        self,
        files: Sequence[SourceFile],
        # Type of ids without a header; None for uint16, if they look like it.
        bin_dtype: str | None = None,
        eod: int | None = None,  # the id behind which documents end, in files without an index
        # Pieces end at multiples of so many ids; None: only where a document ends.
        cut: int | None = PIECE_TOKENS,
    ) -> None:
        self.eod, self.cut = eod, cut
        opened = [open_ids(file, bin_dtype) for file in files]
        self.itemsize = max(ids.ids.dtype.itemsize for ids in opened)
        self.empty_files = [ids.file.name for ids in opened if not len(ids)]
        self._plan = [piece for ids in opened for piece in self._cut(ids)]

    def _cut(self, ids: IdsFile) -> Iterator[IdsPiece]:
        start = 0
        while start < len(ids):
            if self.cut is not None:
                stop = min(start + self.cut, len(ids))
            else:
                stop = ids.next_end(min(start + PIECE_TOKENS, len(ids)), self.eod)
            yield IdsPiece(ids, start, stop, self.eod)
            start = stop

    def pieces(self, start: int = 0) -> Iterator[Piece]:
        yield from map(self._plan.__getitem__, range(start, len(self)))
