"""Rows of token ids, and the tokenizer that made them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaders.errors import SchemaError
from loaders.schema.field import Field, check_dtype, check_nbytes, field_kind, is_count

if TYPE_CHECKING:
    from collections.abc import Mapping

# Fields of a stream, by name; ``labels`` where there are some.
TOKENS, NUM_TOKENS, DOCUMENT_ENDS, LABELS = "tokens", "num_tokens", "document_ends", "labels"
IGNORED = -100  # as a label: torch's cross_entropy counts no such target
# Beside the manifest: a plain name, that no shard and no manifest can have.
_SIDE_FILE = re.compile(r"tokenizer-[A-Za-z0-9_-]{1,100}\.json")
_DIGEST = re.compile(r"[0-9a-f]{32}")


@field_kind
class Tokens(Field):
    """One row of a stream of token ids: where it ends early, another field counts those that are valid.

    Attributes:
        dtype: uint8, uint16 or uint32.
        row_tokens: Tokens of a row, at least 2.
        vocab_size: Ids are below it; None if only the dtype limits them.
        eod: The id that ends a document, or None.
        tokenizer: ``"bytes"``, the name of a ``tokenizer.json`` beside the manifest, or None.
        tokenizer_xxh3_128: Hash of that file, hexadecimal.
        codec: ``raw``.
    """

    kind: ClassVar[str] = "tokens"
    meaning: ClassVar[tuple[str, ...]] = ("tokenizer", "tokenizer_xxh3_128", "vocab_size", "eod")
    leaves_open: ClassVar[bool] = True  # files of ids name no tokenizer
    dtype: str = "uint16"
    row_tokens: int = 8192
    vocab_size: int | None = None
    eod: int | None = None
    tokenizer: str | None = None
    tokenizer_xxh3_128: str | None = None
    codec: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", check_dtype(self.dtype, "u"))
        if not is_count(self.row_tokens, least=2):
            raise SchemaError(f"row_tokens must be at least 2, got {self.row_tokens!r}")
        most = int(np.iinfo(self.dtype).max) + 1
        if self.vocab_size is not None and not is_count(self.vocab_size, most=most):
            what = f"vocab_size must be in [1, {most}] for {self.dtype}"
            raise SchemaError(f"{what}, got {self.vocab_size!r}")
        end = self.vocab_size or most
        if self.eod is not None and not (type(self.eod) is int and 0 <= self.eod < end):
            raise SchemaError(f"eod must be an id below {end}, got {self.eod!r}")
        _check_side_file(self.tokenizer, self.tokenizer_xxh3_128)
        check_nbytes(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The tokens of a row."""
        return (self.row_tokens,)

    @property
    def files(self) -> Mapping[str, str]:
        """Name and xxh3-128 of the file that the tokenizer is kept in, if there is one."""
        if self.tokenizer is None or self.tokenizer_xxh3_128 is None:
            return {}
        return {self.tokenizer: self.tokenizer_xxh3_128}


def _check_side_file(name: Any, digest: Any) -> None:
    if name in (None, "bytes") and digest is None:
        return
    if not isinstance(name, str) or not _SIDE_FILE.fullmatch(name):
        raise SchemaError(f"tokenizer must be 'bytes' or tokenizer-*.json, got {name!r}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise SchemaError(f"tokenizer_xxh3_128 must be 32 hexadecimal digits, got {digest!r}")
