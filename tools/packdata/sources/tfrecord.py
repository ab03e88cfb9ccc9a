"""TFRecord files of ``tf.train.Example``, read without TensorFlow.

Source:
    TensorFlow, "TFRecord and tf.train.Example": a record is a uint64 length, its masked CRC-32C, the
    data, and their masked CRC-32C; the data are the protocol buffer ``tensorflow/core/example``:
    Example {1: Features {1: map of name (1) to Feature (2)}}, Feature {1: bytes, 2: floats, 3: ints}.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from loaders.errors import SourceError
from packdata.sources.row_file import MappedRows, map_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD = struct.Struct("<QI")
_FOOT_BYTES = 4
# What reading a message of another kind comes to: numbers stand where messages should, or the other way round.
_OTHER_MESSAGE = (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error)
Value = list[Any]  # of one feature: bytes, floats or whole numbers


def masked_crc32c(data: bytes) -> int:
    """Return TFRecord's checksum of a few bytes.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class TfrecordRows(MappedRows):
    """One file, all of whose records are read once for their columns; all rows are one group.

    A feature of one value in every record is a column of values, else one of lists. Bytes are text
    if all of them are UTF-8. Lengths are checked against their checksums, data are not.

    Raises:
        SourceError: It is damaged, or holds other messages than ``tf.train.Example``.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._data = path, map_file(path)
        self._bounds = list(self._records())
        self.groups = [len(self._bounds)]
        self.schema = self._find_schema()

    def _records(self) -> Iterator[tuple[int, int]]:
        at, size = 0, len(self._data)
        while at < size:
            head = self._data[at : at + _HEAD.size]
            length, crc = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
            first = at + _HEAD.size
            at = first + length + _FOOT_BYTES
            if crc != masked_crc32c(head[:8]) or at > size:
                what = f"its record at byte {first - _HEAD.size} is damaged or cut"
                hint = "Is it complete? Compressed files are unpacked first"
                raise SourceError(what, self.path, hint)
            yield first, first + length

    def _find_schema(self) -> pa.Schema:
        kinds: dict[str, pa.DataType] = {}
        lists: set[str] = set()
        seen: Counter[str] = Counter()
        for row in range(self.groups[0]):
            for name, values in self._sample(row).items():
                seen[name] += 1
                kinds[name] = _common(kinds.get(name), values)
                if len(values) != 1:
                    lists.add(name)
        return pa.schema(
            {n: pa.list_(kinds[n]) if n in lists else kinds[n] for n in sorted(kinds)}
        )

    def _sample(self, number: int) -> dict[str, Value]:
        first, last = self._bounds[number]
        try:
            return dict(_features(self._data[first:last]))
        except _OTHER_MESSAGE as error:
            where = f"{self.path}, row {number}"
            raise SourceError(f"it is no tf.train.Example ({error})", where) from error

    def _row(self, number: int) -> dict[str, Any]:
        sample = self._sample(number)
        return {field.name: _value(sample.get(field.name), field.type) for field in self.schema}


def _value(values: Value | None, kind: pa.DataType) -> Any:
    if values is None or pa.types.is_list(kind):
        return values
    return values[0]


def _common(kind: pa.DataType | None, values: Value) -> pa.DataType:
    """Return the type that holds values of a type and others."""
    if not values:
        return pa.string() if kind is None else kind
    if isinstance(values[0], bytes):
        is_text = kind in (None, pa.string()) and all(map(_is_text, values))
        return pa.string() if is_text else pa.binary()
    return pa.int64() if isinstance(values[0], int) else pa.float32()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- protocol buffers ------------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message; ValueError if it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 5:
            yield key >> 3, data[at : at + 4]
            at += 4
        elif key & 7 == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field goes beyond its end")
            yield key >> 3, data[at : at + length]
            at += length
        else:
            raise ValueError(f"a field of wire type {key & 7}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _features(data: bytes) -> Iterator[tuple[str, Value]]:
    for number, features in _fields(data):
        if number == 2 and features:
            raise ValueError("it is a SequenceExample, with lists of features")
        for _, entry in _fields(features) if number == 1 else ():
            pair = dict(_fields(entry))
            yield pair[1].decode(), _feature(pair.get(2, b""))


def _feature(data: bytes) -> Value:
    """Return the values of a feature: packed, as writers leave them, or one by one."""
    found: Value = []
    for kind, packed in _fields(data):
        for _, value in _fields(packed):
            if kind == 1:
                found.append(value)
            elif kind == 2:
                found += np.frombuffer(value, "<f4").tolist()
            else:
                found += _ints(value)
    return found


def _ints(value: int | bytes) -> list[int]:
    if isinstance(value, int):
        return [_signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_signed(number))
    return numbers


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
