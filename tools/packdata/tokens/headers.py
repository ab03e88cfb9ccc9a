"""What a file is by its first bytes, so that no header is taken for tokens or text.

Source:
    ``LLMC``: llm.c's ``dev/data/data_common.py``; modded-nanogpt writes the first of the two.
    LitData and MDS chunks: uint32 number of samples, uint32 offset of each and of the end.
    TFRecord: uint64 length, uint32 masked CRC-32C of the length.
"""

from __future__ import annotations

import itertools
import os
import pickletools
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from loaders.errors import SourceError
from packdata.sources.base import open_file
from packdata.sources.tfrecord import masked_crc32c

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

LLMC_BYTES = 1024  # 256 int32: magic, version, number of tokens, zeros
LLMC = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic: version, type of the ids
_OF_LLMC = {
    20240522: "an evaluation file of llm.c",
    20240326: "a model of llm.c",
    20240327: "a state of llm.c",
    20240328: "a tokenizer of llm.c",
}
_HEAD_BYTES = 64 << 10
_MIN_TEXT_BYTES = 32
_MAX_OPERATIONS = 1000  # of a pickle, that are parsed
_AS_IDS = "Give what holds the ids"
_UNPACK = "Unpack it first"
_AS_ARRAYS = (
    "Read them by numpy.fromfile, and pack arrays: packdata.pack({'image': x, 'label': y}, ...)"
)
_MAGICS = (
    (0, b"\x93NUMPY", "a numpy array", "Call it .npy"),
    (0, b"PAR1", "Parquet", "Call it .parquet"),
    (0, b"ARROW1\0\0", "Arrow", "Call it .arrow"),
    (0, b"MMIDIDX\0\0", "the index of a Megatron-LM .bin", "Give the .bin beside it"),
    (0, b"TNTIDX\0\0", "an index of fairseq", "Binarize with --dataset-impl mmap"),
    (0, b"LITPKDS", "a chunk of lit-gpt", _AS_IDS),
    (0, b"PK\x03\x04", "a zip archive (.npz and torch.save's .pt are, too)", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", "Call it .zst, or unpack it first"),
    (0, b"\xfd7zXZ\0", "compressed by xz", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (4, b"1AY&SY", "compressed by bzip2", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5", "Save the ids with numpy.save"),
    (0, b"GGUF", "a GGUF model", _AS_IDS),
    (0, b"SQLite format 3\0", "an SQLite database", "Convert it to Parquet or JSONL"),
    (16, b"\xde\xc0\xef\xbe", "an LMDB database", _AS_IDS),
    (0, b"Obj\x01", "Avro", "Convert it to Parquet or JSONL"),
    (0, b"ORC", "ORC", "Convert it to Parquet or JSONL"),
    (0, b"%PDF-", "a PDF", "Extract its text"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", "See 'packdata images'"),
    (0, b"\xff\xd8\xff", "a JPEG picture", "See 'packdata images'"),
    (0, b"\x7fELF", "a program", _AS_IDS),
    (8, b"WAVEfmt ", "sound, as WAV", _AS_ARRAYS),
    (0, b"\xba\x16O/", "a model of fastText", _AS_IDS),
    (0, b"WARC/1.", "a WARC, with headers between its texts", "Extract the texts, as JSON lines"),
)


_CIFAR_PIXELS, _STL_PIXELS = 32 * 32 * 3, 96 * 96 * 3
_MIN_PICTURES, _MAX_PICTURES = 16, 256  # whose labels count: of fewer, chance may make some
_STL_NAME = re.compile(r"(train|test|unlabeled)_X\.bin")


def check_header(path: Path, size: int) -> None:
    """Raise SourceError for a file of known kind and of this size, which is no plain row of ids."""
    with open_file(path, str(path)) as file:
        head = file.read(_HEAD_BYTES)
        known = recognize(head) or _recognize_whole(file, head, size)
        known = known or _recognize_pixels(file, path.name, size)
    if known is not None:
        raise SourceError(f"it is {known[0]}, not plain ids", path, known[1])


def recognize(head: bytes) -> tuple[str, str] | None:
    """Return what a file is that begins so, and what to do; None if that is not known.

    Example:
        >>> recognize(b"PAR1...")
        ('Parquet', 'Call it .parquet')
    """
    for at, magic, what, hint in _MAGICS:
        if head[at : at + len(magic)] == magic:
            return what, hint
    if _is_gzip(head):
        return "compressed by gzip", "Call it .gz, or unpack it first"
    if _is_arrow_stream(head):
        return "an Arrow stream", "Call it .arrow"
    return None


def _is_gzip(head: bytes) -> bool:
    """Tell whether it can be decompressed: two bytes alone may be an id."""
    try:
        return head[:3] == b"\x1f\x8b\x08" and bool(zlib.decompressobj(31).decompress(head))
    except zlib.error:
        return False


def _is_arrow_stream(head: bytes) -> bool:
    if len(head) < 16 or head[:4] != b"\xff\xff\xff\xff":
        return False
    length, root = np.frombuffer(head[4:12], "<i4").tolist()
    return bool(length > 0 and length % 8 == 0 and 0 < root < length)


def _recognize_whole(file: BinaryIO, head: bytes, size: int) -> tuple[str, str] | None:
    """Recognize what has no magic, by how its parts fit its size."""
    magic = int.from_bytes(head[:4], "little")
    if magic in LLMC:
        return "a file of llm.c, with a header before its ids", "Call it .bin"
    if int.from_bytes(head[:4], "big") in LLMC:
        return "a file of llm.c of the other byte order", _AS_IDS
    if what := _OF_LLMC.get(magic):
        return what, _AS_IDS
    if _is_idx(head, size):
        return "an IDX file, as MNIST's", _AS_ARRAYS
    if chunk := _chunk_of(file, head, size):
        return chunk
    is_long = len(head) >= 16 and _uint64(head) + 16 <= size
    if is_long and struct.unpack_from("<I", head, 8)[0] == masked_crc32c(head[:8]):
        return "TFRecord", "Call it .tfrecord"
    if len(head) > 10 and head[8:10] == b'{"' and 2 <= _uint64(head) <= size - 8:
        return "safetensors", "Save the ids with numpy.save"
    if _is_pickle(file, head):
        return "a pickle", "Save the ids with numpy.save"
    return None


def _recognize_pixels(file: BinaryIO, name: str, size: int) -> tuple[str, str] | None:
    """Recognize pictures without a header: by the labels that stand before each, or by their names.

    Source: cs.toronto.edu/~kriz/cifar.html, "Binary version"; cs.stanford.edu/~acoates/stl10.
    """
    for what, labels in (("CIFAR-10", (10,)), ("CIFAR-100", (20, 100))):
        nbytes = len(labels) + _CIFAR_PIXELS
        if size % nbytes == 0 and size >= _MIN_PICTURES * nbytes:
            file.seek(0)
            data = np.frombuffer(file.read(_MAX_PICTURES * nbytes), np.uint8)
            if (data.reshape(-1, nbytes)[:, : len(labels)] < labels).all():
                return f"the pictures of {what}", _AS_ARRAYS
    if _STL_NAME.fullmatch(name) and size and size % _STL_PIXELS == 0:
        return "the pictures of STL-10", _AS_ARRAYS
    return None


def _uint64(head: bytes) -> int:
    return int.from_bytes(head[:8], "little")


def _chunk_of(file: BinaryIO, head: bytes, size: int) -> tuple[str, str] | None:
    if len(head) < 12:
        return None
    num, first = struct.unpack_from("<II", head)
    begin = 4 * (num + 2)
    if num == 0 or not begin <= first <= size:
        return None
    file.seek(begin - 4)
    if int.from_bytes(file.read(4), "little") != size:
        return None
    if first == begin:
        return "a chunk of LitData", "Give the folder with its index.json"
    return "a shard of MosaicML Streaming", "Call it .mds"


def _is_idx(head: bytes, size: int) -> bool:
    """Tell whether the sides of an array are in front of as many values (yann.lecun.com/exdb/mnist)."""
    if len(head) < 8 or head[:2] != b"\0\0" or not 1 <= head[3] <= 4:
        return False
    width = {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}.get(head[2], 0)
    values = head[4 : 4 + 4 * head[3]]
    return width > 0 and size == 4 + len(values) + width * int(np.frombuffer(values, ">u4").prod())


def _is_pickle(file: BinaryIO, head: bytes) -> bool:
    """Tell whether it ends as a pickle does, and parses as one: nothing is executed."""
    if len(head) < 4 or head[0] != 0x80 or not 2 <= head[1] <= 5:
        return False
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b".":
        return False
    file.seek(0)
    try:
        return sum(1 for _ in itertools.islice(pickletools.genops(file), _MAX_OPERATIONS)) > 0
    except ValueError:
        return False


def check_no_text(path: Path) -> None:
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
        hint = "Call it .txt or .jsonl, or give --bin-dtype uint8 for bytes as ids"
        raise SourceError("it is text, not plain ids", path, hint)


def check_width(ids: Any, path: Path) -> None:
    """Raise SourceError for 16-bit ids of which every second is as good as empty: they are 32-bit ones."""
    head = np.asarray(ids[:_HEAD_BYTES])
    low, high = head[0::2][: len(head) // 2], head[1::2]
    if len(high) < 8 or not low.any():
        return
    if not high.any() or (int(high.max()) < 16 and int(low.max()) >= 256):
        what = f"as uint16, every second id is below {int(high.max()) + 1}: they seem to be wider"
        hint = (
            "Give --bin-dtype uint32, or what they are (Megatron-LM's .idx tells, put it beside)"
        )
        raise SourceError(what, path, hint)
