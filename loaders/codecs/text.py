"""Strings, JSON values and plain bytes as records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.errors import CodecError
from loaders.schema import Field


class TextCodec:
    """A string as UTF-8."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def encode(self, value: Any) -> bytes:
        """Return the UTF-8 bytes."""
        if not isinstance(value, str):
            raise CodecError(f"a text field takes str, got {type(value).__name__}")
        return value.encode()

    def decode(self, record: npt.NDArray[np.uint8]) -> str:
        """Return the string."""
        try:
            return record.tobytes().decode()
        except UnicodeDecodeError as error:
            raise CodecError(f"the record is not UTF-8 ({error})") from error


class JsonCodec:
    """Any JSON value as compact text."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def encode(self, value: Any) -> bytes:
        """Return the JSON text."""
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise CodecError(f"the value is not JSON ({error})") from error

    def decode(self, record: npt.NDArray[np.uint8]) -> Any:
        """Return the value."""
        try:
            return json.loads(record.tobytes())
        except ValueError as error:
            raise CodecError(f"the record is not JSON ({error})") from error


class BytesCodec:
    """Bytes as they are."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def encode(self, value: Any) -> bytes:
        """Return the bytes."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise CodecError(f"a bytes field takes bytes, got {type(value).__name__}")
        return bytes(value)

    def decode(self, record: npt.NDArray[np.uint8]) -> bytes:
        """Return the bytes."""
        return record.tobytes()
