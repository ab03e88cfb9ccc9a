"""Tokenizers: documents of UTF-8 to documents of ids; ``loaders.codecs.tokenizer`` makes text of them again.

``bytes`` needs nothing. A ``tokenizer.json`` of Hugging Face's format needs the package
``tokenizers`` (``pip install tokenizers``); it is data: reading it executes nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from loaders.codecs.tokenizer import BytesDecoder, JsonDecoder, import_tokenizers
from loaders.remote.url import Location, place_of
from loaders.schema.tokens import IGNORED
from packdata.reading import read_file
from packdata.tokens.documents import Documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from packdata.types import Flags

END_OF_TEXT = "<|endoftext|>"
# Of GPT-2, GPT-NeoX and Qwen; Llama 2 and T5; Llama 3; Gemma; Mistral; DeepSeek.
_END_TOKENS = (
    *(END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "[SEP]"),
)
# Of Llama 3; Llama 2 and Mistral; Gemma; DeepSeek; BERT.
_BEGIN_TOKENS = (
    *("<|begin_of_text|>", "<s>", "<bos>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "[CLS]"),
)


class BytesTokenizer(BytesDecoder):
    """Every byte is its own id."""

    name = "bytes"  # what the schema keeps
    vocab_size = 256  # ids are below it
    begin: int | None = None  # the id that begins a document by convention
    end: int | None = None  # the one that ends it
    file: bytes | None = None  # to keep with the dataset
    digest: str | None = None  # of the file

    def encode(self, documents: Documents) -> Documents:
        if (labels := documents.labels) is not None:
            labels = np.where(labels != IGNORED, documents.data.astype(np.int32), IGNORED)
        return replace(documents, labels=labels)


class JsonTokenizer(JsonDecoder):
    """A ``tokenizer.json``.

    No special tokens are added, and nothing is cut or padded, whatever the file says. Text is text:
    special tokens that are spelled out in it are not recognized. In a conversation (``is_chat``) they are: the
    template spells them out.

    Raises:
        LoadersError: ``tokenizers`` is not installed.
        SourceError: It is not such a file.
    """

    def __init__(self, data: bytes, where: Location | str, *, is_chat: bool = False) -> None:
        super().__init__(data, where)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = not is_chat
        # It trims blanks off the places of tokens, by which a mask is found.
        self._tokenizer.post_processor = None
        model = self._tokenizer.model
        for name in ("dropout", "alpha", "nbest_size"):  # of draws at random
            if hasattr(model, name):
                setattr(model, name, None)
        self.begin, self.end = self._first_of(_BEGIN_TOKENS), self._first_of(_END_TOKENS)
        self.file: bytes | None = data
        digest = xxhash.xxh3_128_hexdigest(data)
        self.digest: str | None = digest
        self.name = f"tokenizer-{digest[:16]}.json"

    def _first_of(self, names: Iterable[str]) -> int | None:
        ids: Iterable[int | None] = map(self._tokenizer.token_to_id, names)
        return next((token for token in ids if token is not None), None)

    def encode(self, documents: Documents) -> Documents:
        """Return the ids of each document; of characters with a label, these are labels, too."""
        has_labels = documents.labels is not None
        # Of a fast batch no places are known.
        encode = self._tokenizer.encode_batch if has_labels else self._tokenizer.encode_batch_fast
        batch = encode([*map(bytes.decode, documents.slices())], add_special_tokens=False)
        ids = [encoding.ids for encoding in batch]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        labels = None
        if has_labels:
            spans = [np.array(encoding.offsets, np.int64).reshape(-1, 2) for encoding in batch]
            labels = np.where(_is_learned(documents, spans), flat.astype(np.int32), IGNORED)
        return Documents(flat, np.cumsum(lengths), documents.place, documents.rejects, labels)


def _is_learned(documents: Documents, spans: Sequence[npt.NDArray[np.int64]]) -> Flags:
    """Tell which tokens hold a character with a label, by the characters of each in its document."""
    is_first = documents.data & 0xC0 != 0x80  # byte of a character
    numbers = np.append(0, np.cumsum(is_first))  # of the characters that the bytes are of
    learned = np.append(0, np.cumsum(np.asarray(documents.labels)[is_first] != IGNORED))
    begins = np.repeat(numbers[documents.starts], [len(each) for each in spans])
    first, last = np.concatenate([np.empty((0, 2), np.int64), *spans]).T + begins
    return np.asarray(learned[last] > learned[first])


Tokenizer = BytesTokenizer | JsonTokenizer


def open_tokenizer(name: Location | str, *, is_chat: bool = False) -> Tokenizer:
    """Return the tokenizer of a name: ``bytes``, or a ``tokenizer.json``.

    Raises:
        SourceError: It cannot be read, or is none.
    """
    if name == "bytes":
        return BytesTokenizer()
    path = place_of(name)
    data = read_file(path, "Pass 'bytes' or the path of a tokenizer.json")
    return JsonTokenizer(data, path, is_chat=is_chat)


def train_bpe(texts: Iterable[str], vocab_size: int) -> bytes:
    """Make a byte-level BPE of a corpus, as a ``tokenizer.json``; the same texts give the same file.

    ``vocab_size`` is of all ids, at least 257: the bytes and ``<|endoftext|>``, which is 0.
    """
    tokenizers = import_tokenizers()
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return str(tokenizer.to_str()).encode()


def dtype_of(size: int | None, itemsize: int, **used: int | None) -> str:
    """Return the smallest type that holds a vocabulary, or else the source's own; ValueError if ids are beyond."""
    limit = size or 1 << 8 * min(itemsize, 4)
    for name, token in used.items():
        if token is not None and not 0 <= token < limit:
            raise ValueError(f"{name} must be an id below {limit}, got {token}")
    return next(f"uint{bits}" for bits in (8, 16, 32) if limit <= 1 << bits)
