"""Strings, JSON values and plain bytes as records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from loaders.errors import CodecError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loaders.schema import Field


def _check_kind(field: Field, codec: str) -> Field:
    if field.kind != codec:
        raise CodecError(f"codec {codec!r} stores {codec} fields, not {field.kind}")
    return field


class TextCodec:
    """A string as UTF-8."""

    def __init__(self, field: Field) -> None:
        self.field = _check_kind(field, "text")

    def encode(self, value: Any) -> bytes:
        """Return the UTF-8 bytes."""
        if not isinstance(value, str):
            raise CodecError(f"a text field takes str, got {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise CodecError(f"the string is not Unicode text ({error})") from error

    def decode(self, record: npt.NDArray[np.uint8]) -> str:
        try:
            return record.tobytes().decode()
        except UnicodeDecodeError as error:
            raise CodecError(f"the record is not UTF-8 ({error})") from error


class JsonCodec:
    """Any JSON value as compact text; tuples come back as lists, and keys as strings."""

    def __init__(self, field: Field) -> None:
        self.field = _check_kind(field, "json")

    def encode(self, value: Any) -> bytes:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"the value is not JSON ({error})") from error

    def decode(self, record: npt.NDArray[np.uint8]) -> Any:
        try:
            return json.loads(record.tobytes())
        except (ValueError, RecursionError) as error:
            raise CodecError(f"the record is not JSON ({error})") from error


class BytesCodec:
    """Bytes as they are."""

    def __init__(self, field: Field) -> None:
        self.field = _check_kind(field, "bytes")

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise CodecError(f"a bytes field takes bytes, got {type(value).__name__}")
        return bytes(value)

    def decode(self, record: npt.NDArray[np.uint8]) -> bytes:
        return record.tobytes()
