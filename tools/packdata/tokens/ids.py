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
from loaders.system.regular import read_regular
from packdata.sources.base import open_file, read_file
from packdata.tokens.documents import Documents, Piece, TokenSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from packdata.tokens.files import SourceFile

PIECE_TOKENS = 2 << 20
DEFAULT_DTYPE = "uint16"
_NPY_MAGIC = b"\x93NUMPY"
_LLMC_BYTES = 1024  # 256 int32: magic, version, number of tokens, zeros
_LLMC = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic: version, type of the ids
_LLMC_MAGICS = [magic.to_bytes(4, "little") for magic in _LLMC]
_MEGATRON_NAMES = ("_document", "_sentence")  # as its preprocess_data.py ends them
_MAGIC = b"MMIDIDX\x00\x00"
_FAIRSEQ_BYTES = 26  # its header: without the number of documents' bounds
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats
_SCAN = 1 << 16
_HEAD_BYTES = 64 << 10
_MIN_TEXT_BYTES = 32


@dataclass(frozen=True, slots=True)
class IdsFile:
    """The ids of one file, mapped."""

    file: SourceFile
    ids: npt.NDArray[Any]  # 1-D, or 2-D with one document a row
    # Positions behind each document, where the file tells them; else None.
    ends: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.ids.size)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return ids by position; of a 2-D array whole rows."""
        if self.ids.ndim == 1:
            return self.ids[start:stop]
        width = self.ids.shape[1]
        return self.ids[start // width : stop // width].reshape(-1)

    def next_end(self, position: int, eod: int | None) -> int:
        """Return the first position from ``position`` on behind which no document goes on."""
        if self.ids.ndim == 2:
            width = self.ids.shape[1]
            return int(min(len(self), -(-position // width) * width))
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
    if file.kind == "ds":
        return _open_ds(file)
    index = file.path.with_suffix(".idx")
    if file.kind != "npy" and index.exists():
        return _open_pair(file, index)
    if _head(file)[:4] in _LLMC_MAGICS:
        return _open_llmc(file)
    if file.kind == "npy":
        return _open_npy(file, bin_dtype)
    return _open_flat(file, bin_dtype)


def _head(file: SourceFile) -> bytes:
    with open_file(file.path, str(file.path)) as opened:  # of a store it is mapped as a file, too
        return opened.read(_LLMC_BYTES)


def _open_npy(file: SourceFile, bin_dtype: str | None) -> IdsFile:
    if not _head(file).startswith(_NPY_MAGIC):
        if bin_dtype is not None:
            return _open_flat(file, bin_dtype)
        what = "the file cannot be read as .npy: it has no numpy header"
        hint = "If it holds plain ids, as OLMo's do, pass bin_dtype= (uint16, uint32, ...)"
        raise SourceError(what, file.path, hint)
    try:
        ids = np.load(file.path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        hint = (
            "Arrays of objects are pickles: save ids as integers" if "bject" in str(error) else ""
        )
        raise SourceError(f"the file cannot be read as .npy ({error})", file.path, hint) from error
    if ids.dtype.kind not in "ui":
        raise SourceError(f"it holds {ids.dtype}, not whole numbers", file.path)
    if bin_dtype is not None and ids.dtype != bin_dtype:
        what = f"its header says {ids.dtype}, bin_dtype={bin_dtype}"
        raise SourceError(what, file.path, "Leave out bin_dtype=")
    if ids.ndim not in (1, 2):
        what = f"the file has shape {ids.shape}"
        raise SourceError(what, file.path, "Ids are 1-D, or 2-D with one document a row")
    return IdsFile(file, ids)


def _open_flat(file: SourceFile, dtype: str | None) -> IdsFile:
    if dtype is None and file.path.stem.endswith(_MEGATRON_NAMES):
        what = f"Megatron-LM's {file.path.with_suffix('.idx').name}, which tells type and documents, is not beside it"
        raise SourceError(what, file.path, "Copy it there, or pass bin_dtype= for the plain ids")
    item = np.dtype(dtype or DEFAULT_DTYPE).newbyteorder("<")
    if file.size % item.itemsize:
        what = f"the file has {file.size} bytes, which is no multiple of {item.itemsize} ({item.name})"
        raise SourceError(what, file.path, "Is it complete? Pass bin_dtype= for another type")
    if item.itemsize > 1:
        _check_no_text(file.path)
    ids = _map(file.path, item, file.size // item.itemsize)
    if dtype is None:
        _check_width(ids, file.path)
    return IdsFile(file, ids)


def _check_no_text(path: Path) -> None:
    """Raise SourceError for a file that begins as text, whose bytes are about to be read as wider ids."""
    with open_file(path, str(path)) as file:
        head = file.read(_HEAD_BYTES)
    text = head.decode("utf-8", "ignore")
    is_whole = len(text.encode()) > len(head) - 4  # but for a character that the cut goes through
    if (
        len(head) >= _MIN_TEXT_BYTES
        and is_whole
        and all(c.isprintable() or c.isspace() for c in text)
    ):
        hint = "Call it .txt or .jsonl, or pass bin_dtype='uint8' for bytes as ids"
        raise SourceError("the file is text, not plain ids", path, hint)


def _check_width(ids: Any, path: Path) -> None:
    """Raise SourceError for 16-bit ids of which every second is as good as empty: they are 32-bit ones."""
    head = np.asarray(ids[:_HEAD_BYTES])
    low, high = head[0::2][: len(head) // 2], head[1::2]
    if len(high) < 8 or not low.any():
        return
    if not high.any() or (int(high.max()) < 16 and int(low.max()) >= 256):
        what = f"as uint16, every second id is below {int(high.max()) + 1}: they seem to be wider"
        hint = (
            "Pass bin_dtype='uint32', or what they are (Megatron-LM's .idx tells, put it beside)"
        )
        raise SourceError(what, path, hint)


def _open_llmc(file: SourceFile) -> IdsFile:
    magic, version, length = np.frombuffer(_head(file)[:12], "<i4").tolist()
    known, dtype = _LLMC[magic]
    item = np.dtype(dtype)
    if version != known:
        what = f"the file begins as ids of llm.c ({magic}), of version {version}"
        raise SourceError(what, file.path, f"Version {known} is read")
    needed = _LLMC_BYTES + length * item.itemsize
    if length < 0 or file.size != needed:
        what = f"the file has {file.size} bytes, its header (llm.c, {length} ids of {item.itemsize}) takes {needed}"
        raise SourceError(what, file.path, "Is it complete?")
    return IdsFile(file, _map(file.path, item, length, _LLMC_BYTES))


def _open_ds(file: SourceFile) -> IdsFile:
    index = file.path.with_name(f"{file.path.name}.index")
    try:
        ends = np.frombuffer(read_regular(index), "<u8").astype(np.int64)
    except (OSError, ValueError) as error:
        what = f"datatrove's {index.name}, which tells the documents, cannot be read ({error})"
        raise SourceError(what, file.path, "Copy it beside this file") from error
    length = int(ends[-1]) if len(ends) else 0
    itemsize = file.size // max(1, length)
    if itemsize * length != file.size or itemsize not in (0, 2, 4) or (np.diff(ends) < 0).any():
        what = f"the file lists {length} ids, {file.name} has {file.size} bytes"
        raise SourceError(what, index, "Are they a pair?")
    return IdsFile(file, _map(file.path, np.dtype(f"<u{itemsize or 2}"), length), ends)


def _map(path: Path, dtype: Any, length: int, offset: int = 0) -> npt.NDArray[Any]:
    if length == 0:  # nothing to map
        return np.empty(0, dtype)
    try:
        return np.memmap(path, dtype, "r", offset, shape=(length,))
    except (OSError, ValueError) as error:
        raise SourceError(f"the file cannot be mapped ({error})", path) from error


def _open_pair(file: SourceFile, index: Path) -> IdsFile:
    dtype, lengths, pointers, bounds = _read_index(index)
    if pointers[0:1].any() or (np.diff(pointers) != lengths[:-1] * dtype.itemsize).any():
        raise SourceError("its sequences do not follow each other in the .bin file", index)
    if int(lengths.sum()) * dtype.itemsize != file.size:
        what = f"the file lists {int(lengths.sum())} ids of {dtype.itemsize} bytes"
        raise SourceError(f"{what}, {file.name} has {file.size} bytes", index, "Are they a pair?")
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[bounds[1:]]
    return IdsFile(file, _map(file.path, dtype, file.size // dtype.itemsize), ends)


def _read_index(path: Path) -> tuple[Any, Any, Any, Any]:
    """Return the type of the ids, the sequences' lengths and offsets, and the documents' bounds."""
    data = read_file(path, str(path))
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise SourceError("the file does not begin as an index of Megatron-LM (MMIDIDX)", path)
    _, version, code, num_sequences, num_bounds = _HEADER.unpack_from(data)
    if version != 1 or code not in _DTYPES:
        what = f"the file has version {version} and type {code}"
        raise SourceError(what, path, f"Version 1 is read, and types {sorted(_DTYPES)}")
    needed = _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if len(data) == _FAIRSEQ_BYTES + 12 * num_sequences:
        what = "the file is an index of fairseq, which begins alike and lists no documents"
        raise SourceError(what, path, "Save the ids with numpy.save")
    if len(data) not in (needed, needed + num_sequences):
        what = f"the file has {len(data)} bytes, its header ({num_sequences} sequences) takes {needed}"
        raise SourceError(what, path, "Is it complete?")
    lengths = np.frombuffer(data, "<i4", num_sequences, _HEADER.size).astype(np.int64)
    at = _HEADER.size + 4 * num_sequences
    pointers = np.frombuffer(data, "<i8", num_sequences, at)
    bounds = np.frombuffer(data, "<i8", num_bounds, at + 8 * num_sequences)
    whole = len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == num_sequences
    if not whole or (np.diff(bounds) < 0).any() or (lengths < 0).any():
        raise SourceError("its documents are not made of its sequences, in order", path)
    return np.dtype(_DTYPES[code]), lengths, pointers, bounds


@dataclass(frozen=True, slots=True)
class IdsPiece:
    """A range of one file."""

    source: IdsFile
    start: int  # position of its first id
    stop: int  # position behind its last id
    eod: int | None  # the id behind which documents end, where the file does not tell

    @property
    def where(self) -> str:
        return f"{self.source.file.name}, ids {self.start} to {self.stop - 1}"

    def read(self) -> Documents:
        """Return the ids and where documents end among them."""
        ids = self.source.read(self.start, self.stop)
        ends = self._ends(ids) - self.start
        return Documents(ids, ends, lambda at: f"{self.source.file.name}, id {self.start + at}")

    def _ends(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        total = len(self.source)
        if self.source.ends is not None:
            first, last = np.searchsorted(self.source.ends, [self.start, self.stop], "right")
            ends = self.source.ends[first:last]
        elif self.source.ids.ndim == 2:
            width = self.source.ids.shape[1]
            ends = np.arange(self.start + width, self.stop + 1, width)
        elif self.eod is not None:
            ends = np.flatnonzero(ids == self.eod) + self.start + 1
        else:
            ends = np.empty(0, np.int64)
        if self.stop == total and (len(ends) == 0 or ends[-1] != total):
            ends = np.append(ends, total)
        return np.unique(ends).astype(np.int64)


class IdsSource(TokenSource):
    """Pieces of files of ids, in a fixed order.

    Raises:
        SourceError: A file is damaged, or of the wrong kind.
    """

    kind = "ids"

    def __init__(
        self,
        files: Sequence[SourceFile],
        # Type of ids without a header; None for uint16, if they look like it.
        bin_dtype: str | None = None,
        eod: int | None = None,  # the id behind which documents end, where a file does not tell
        # Pieces end at multiples of so many ids; None: only where a document ends.
        cut: int | None = PIECE_TOKENS,
    ) -> None:
        self.eod, self.cut = eod, cut
        self._opened = [open_ids(file, bin_dtype) for file in files]
        self.empty_files = [ids.file.name for ids in self._opened if not len(ids)]
        self._plan = [piece for ids in self._opened for piece in self._cut(ids)]

    def _cut(self, ids: IdsFile) -> Iterator[IdsPiece]:
        start = 0
        while start < len(ids):
            if self.cut is not None and ids.ids.ndim == 1:
                stop = min(start + self.cut, len(ids))
            else:
                stop = ids.next_end(min(start + PIECE_TOKENS, len(ids)), self.eod)
            yield IdsPiece(ids, start, stop, self.eod)
            start = stop

    @property
    def itemsize(self) -> int:
        """Bytes of the widest ids."""
        return max(ids.ids.dtype.itemsize for ids in self._opened)

    def pieces(self, start: int = 0) -> Iterator[Piece]:
        yield from map(self._plan.__getitem__, range(start, len(self)))
