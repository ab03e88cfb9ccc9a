"""The options of ``packdata tokens``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal

from loaders.checks import as_list

if TYPE_CHECKING:
    from pathlib import Path

Eod = int | Literal["auto", "none"]
DEFAULT_ROW_TOKENS = 8192
_MAX_ROW_TOKENS = 1 << 24
_COLUMNS = ("text_column", "ids_column", "messages_column")
_BIN_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """What becomes of text or ids.

    Attributes:
        documents: What is a document of a text file: ``file``, ``line``, or the text between them.
        text_column: The column of Parquet and Arrow, or key of JSON lines, that holds text; None for
            ``text``.
        ids_column: The one that holds lists of ids; None for ``input_ids``, where that is there and
            nothing says that text is meant. Beside it ``labels``, ``attention_mask`` (0: padding), ``completion_mask``,
            ``assistant_masks`` and ``loss_mask`` (0: no target) and ``seq_lengths`` (of packed documents) are used;
            any other list of as many numbers is an error.
        messages_column: The one that holds conversations, with ``chat_template``; None for
            ``messages``.
        drop: Columns beside the ids that are not used.
        chat_template: A Jinja file or a ``tokenizer_config.json``, which makes text of conversations.
        chat_date: What a template gets that asks for the time, as ``2024-07-26``; None for today.
        tokenizer: ``bytes``, or the path of a ``tokenizer.json``; of ids: what they stand for.
        train_bpe: Make a byte-level BPE of so many ids from the corpus instead.
        eod: The id to put behind each document, of bytes at most 256; ``auto``: the tokenizer's
            own, if it has one; none for conversations and ids. Of lists of ids and conversations:
            put where it is not there. Of files of ids: what is behind each document already.
        bos: The same before each document; not of files of ids.
        vocab_size: Of ids, where no tokenizer tells.
        bin_dtype: Type of ids without a header, in ``.bin`` files (None: uint16) and ``.npy``.
        row_tokens: Tokens of a stored row.
        val_share: Share of the documents that go to ``DST/val``, the others to ``DST/train``.
        seed: For that division.

    Raises:
        ValueError: An option is out of range, or contradicts another.
    """

    documents: str = "file"
    text_column: str | None = None
    ids_column: str | None = None
    messages_column: str | None = None
    drop: tuple[str, ...] = ()
    chat_template: Path | str | None = None
    chat_date: str | None = None
    tokenizer: Path | str | None = None
    train_bpe: int | None = None
    eod: Eod = "auto"
    bos: Eod = "none"
    vocab_size: int | None = None
    bin_dtype: str | None = None
    row_tokens: int = DEFAULT_ROW_TOKENS
    val_share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.val_share < 1:
            raise ValueError(f"val_share must be in [0, 1), got {self.val_share}")
        if not 2 <= self.row_tokens <= _MAX_ROW_TOKENS:
            raise ValueError(
                f"row_tokens must be in [2, {_MAX_ROW_TOKENS}], got {self.row_tokens}"
            )
        as_list("drop", self.drop, "names, such as ['token_type_ids']")
        if self.bin_dtype not in (None, *_BIN_DTYPES):
            raise ValueError(f"bin_dtype must be one of {_BIN_DTYPES}, got {self.bin_dtype!r}")
        if self.tokenizer is not None and self.train_bpe is not None:
            raise ValueError("a tokenizer is given or made: leave out one of the two")
        for name, token in (("eod", self.eod), ("bos", self.bos)):
            if isinstance(token, str) and token not in ("auto", "none"):
                raise ValueError(f"{name} must be an id, 'auto' or 'none', got {token!r}")
        given = [name for name in _COLUMNS if getattr(self, name) is not None]
        if self.chat_template is not None and self.messages_column is None:
            given.append("chat_template")
        if len(given) > 1:
            raise ValueError(f"a row is one document: leave out {' or '.join(given)}")
        if self.messages_column is not None and self.chat_template is None:
            raise ValueError("messages_column needs a chat_template, which makes text of messages")
        if self.chat_date is not None:
            date.fromisoformat(self.chat_date)
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {self.vocab_size}")
