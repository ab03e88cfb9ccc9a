"""Thrift's compact protocol, as far as Parquet's metadata take it: values to bytes.

An ``int`` is an i32, numpy's types say other widths; a ``dict`` is a struct of fields by number, of which None is
left out; a list is ``(kind of its items, items)``.

Source:
    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

import numpy as np

I64, BINARY, STRUCT = 6, 8, 12
I32 = 5
_TRUE, _FALSE, _I8, _LIST = 1, 2, 3, 9
_KINDS: dict[type, int] = {
    np.int8: _I8,
    int: I32,
    np.int64: I64,
    bytes: BINARY,
    tuple: _LIST,
    dict: STRUCT,
}


def packed(value: Any) -> bytes:
    """Return the bytes of a value."""
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, bytes):
        return varint(len(value)) + value
    if isinstance(value, tuple):
        kind, items = value
        size = len(items)
        head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
        return head + b"".join(map(packed, items))
    number = int(value)
    return bytes([number]) if isinstance(value, np.int8) else varint(number << 1 ^ number >> 63)


def _fields(struct: dict[int, Any]) -> bytes:
    out, before = bytearray(), 0
    for number, value in ((n, each) for n, each in struct.items() if each is not None):
        is_flag = isinstance(value, bool)
        kind = (_TRUE if value else _FALSE) if is_flag else _KINDS[type(value)]
        out.append(number - before << 4 | kind)
        out += b"" if is_flag else packed(value)
        before = number
    return bytes(out) + b"\0"


def varint(number: int) -> bytes:
    """Return a number that is not negative, seven bits a byte."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
