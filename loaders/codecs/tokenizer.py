"""Token ids back to text, by the tokenizer that is kept with a dataset.

``bytes`` needs nothing. A ``tokenizer.json`` of Hugging Face's format needs the package
``tokenizers``; it is data: reading it executes nothing.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from loaders.errors import LoadersError, ShardError, SourceError
from loaders.system.regular import read_regular

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from loaders.remote.url import Location
    from loaders.schema import Tokens


class BytesDecoder:
    """Every byte is its own id."""

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Return the text; ids outside of [0, 256) stand for no byte."""
        return _below(ids, 256).astype(np.uint8).tobytes().decode(errors="replace")


class JsonDecoder:
    """A ``tokenizer.json``; SourceError if it is none, LoadersError if ``tokenizers`` is not installed."""

    def __init__(self, data: bytes, where: Location | str) -> None:
        tokenizers = import_tokenizers()
        try:
            json.loads(data)
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
            vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
            self.vocab_size = max(vocab.values()) + 1  # ids are below it
        except Exception as error:  # tokenizers raises Exception itself
            raise SourceError(f"not a tokenizer.json ({error})", where) from error

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Return the text, special tokens included."""
        known = _below(ids, self.vocab_size)
        return str(self._tokenizer.decode(known.tolist(), skip_special_tokens=False))


Decoder = BytesDecoder | JsonDecoder  # turns ids into text; one instance serves all threads


def _below(ids: npt.NDArray[Any], limit: int) -> npt.NDArray[Any]:
    """Return the ids that stand for something: targets may be -100, a stream's ``eod`` be of no tokenizer."""
    return ids[(ids >= 0) & (ids < limit)]


def import_tokenizers() -> Any:
    """Return the package ``tokenizers``; LoadersError if it is not installed."""
    try:
        import tokenizers
    except ImportError as error:
        what = "a tokenizer.json needs the package 'tokenizers': pip install tokenizers"
        raise LoadersError(what) from error
    return tokenizers


def decoder_of(folder: Location, field: Tokens) -> Decoder | None:
    """Return what decodes the ids of a dataset, or None where no tokenizer is kept with it.

    Raises:
        ShardError: The file is missing, or another one.
        LoadersError: ``tokenizers`` is not installed.
    """
    if field.tokenizer is None:
        return None
    if field.tokenizer == "bytes":
        return BytesDecoder()
    from loaders.remote.origin import file_beside

    return _opened(file_beside(folder, field.tokenizer), field)


@lru_cache(maxsize=4)
def _opened(path: Path, field: Tokens) -> Decoder:
    try:
        data = read_regular(path)
    except OSError as error:
        raise ShardError(f"the tokenizer cannot be read ({error.strerror})", path) from error
    if xxhash.xxh3_128_hexdigest(data) != field.tokenizer_xxh3_128:
        raise ShardError("not the tokenizer of this dataset", path, hint="Run 'packdata verify'")
    return JsonDecoder(data, path)
