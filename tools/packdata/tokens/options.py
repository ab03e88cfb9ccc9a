"""The options of ``packdata tokens``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal

from packdata.options import check_options, opt, parse_target, unescaped

if TYPE_CHECKING:
    from loaders.remote.url import Location

Eod = int | Literal["auto", "none"]
DEFAULT_ROW_TOKENS = 8192
_MAX_ROW_TOKENS = 1 << 24
_CONTENTS = ("text_column", "ids_column", "chat_template")  # of rows


def _id(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """What becomes of text or ids.

    Raises:
        ValueError: An option is out of range, or contradicts another.
    """

    documents: str = opt(
        "file",
        r"what a document is in a text file (default: the whole file); '\n\n' is a blank line ('\r\n\r\n' where lines "
        r"end in \r\n). Separators, line breaks too, are dropped: see --eod",
        "file|line|SEPARATOR",
        type=unescaped,
    )
    text_column: str | None = opt(
        None, "key of JSON lines, column of Parquet or Arrow (default: text)", "NAME"
    )
    ids_column: str | None = opt(
        None,
        "column of lists of ids, one document each (default: input_ids, if there is one). Used beside it: labels, "
        "attention_mask (0: padding), completion_mask, assistant_masks, loss_mask (0: no target), seq_lengths",
        "NAME",
    )
    drop: tuple[str, ...] = opt(
        (),
        "columns, and keys of messages, to leave out: lists beside the ids, and what would change conversations "
        "(system, documents, thinking, ...), are an error where they are not used",
    )
    chat_template: Location | str | None = opt(
        None,
        "Jinja file or tokenizer_config.json that turns conversations (lists of messages with role and content) into "
        "text. What the assistant says is the target",
        "FILE",
        type=parse_target,
    )
    messages_column: str | None = opt(None, "column of conversations (default: messages)", "NAME")
    chat_date: str | None = opt(
        None, "for templates that write the date (default: today)", "YYYY-MM-DD"
    )
    tokenizer: Location | str | None = opt(
        None,
        "bytes (default), or a tokenizer.json, which is kept with the dataset; for ids: the tokenizer that made them",
        "bytes|FILE",
        type=parse_target,
    )
    train_bpe: int | None = opt(
        None,
        "train a byte-level BPE of N ids, at least 257, on the corpus (256 MB of it, evenly spread)",
        "N",
        within=(257, 1 << 32),
    )
    eod: Eod = opt(
        "auto",
        "id to append to each document (default: for text the tokenizer's own, if it has one; else none); to lists of "
        "ids and conversations where it is missing. Files of ids: the id that ends a document there",
        "ID|auto|none",
        type=_id,
    )
    bos: Eod = opt(
        "none",
        "id to put before each document (auto: the tokenizer's own; default: none)",
        "ID|auto|none",
        type=_id,
    )
    vocab_size: int | None = opt(
        None,
        "for ids: size of the vocabulary, above every id (default: the tokenizer's, else all that their type can hold)",
        "N",
        within=(1, 1 << 32),
    )
    bin_dtype: str | None = opt(
        None,
        "type of ids in files without a header: a flat .bin (default: uint16), or a .npy such as OLMo's",
        choices=("uint8", "uint16", "uint32", "int32", "int64"),
    )
    row_tokens: int = opt(
        DEFAULT_ROW_TOKENS,
        f"tokens per stored row, 2 to {_MAX_ROW_TOKENS} (default: {DEFAULT_ROW_TOKENS})",
        "N",
        within=(2, _MAX_ROW_TOKENS),
    )
    val_share: float = opt(
        0.0,
        "share of the documents, below 1, that goes to DST/val, the rest to DST/train; equal ones stay together",
        "SHARE",
        type=float,
    )
    seed: int = opt(
        0, "with --val-share: another seed gives another division (default: 0)", "N", type=int
    )

    def __post_init__(self) -> None:
        if not 0 <= self.val_share < 1:
            raise ValueError(f"val_share must be in [0, 1), got {self.val_share}")
        check_options(self)
        if not self.documents:
            raise ValueError("documents must be 'file', 'line' or a separator, got ''")
        if None not in (self.tokenizer, self.train_bpe):
            raise ValueError("leave out tokenizer or train_bpe")
        for name, token in (("eod", self.eod), ("bos", self.bos)):
            if isinstance(token, str) and token not in ("auto", "none"):
                raise ValueError(f"{name} must be an id, 'auto' or 'none', got {token!r}")
        given = [name for name in _CONTENTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a row is one document: leave out {' or '.join(given)}")
        for name in ("messages_column", "chat_date"):
            if getattr(self, name) is not None and self.chat_template is None:
                raise ValueError(f"{name} needs a chat_template")
        if self.seed and not self.val_share:
            raise ValueError("seed needs a val_share")
        if self.chat_date is not None:
            date.fromisoformat(self.chat_date)
