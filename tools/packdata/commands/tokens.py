"""``packdata tokens``: text, conversations or token ids to a packed stream of tokens."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packdata.commands.common import TARGET, parse_names, unescaped
from packdata.commands.packing import AGAIN, packing_command, run_packing

if TYPE_CHECKING:
    from packdata.tokens.plan import TokensPlan

_TEXT = r"""
--documents file|line|SEPARATOR
  what a document is in a text file (default: the whole file); '\n\n' is a blank line, also
  where lines end in \r\n. Separators, line breaks too, are dropped: see --eod
--text-column NAME
  key of JSON lines, column of Parquet or Arrow (default: text)
--ids-column NAME
  column of lists of ids, one document each (default: input_ids, if there is one). Used beside it: labels,
  attention_mask (0: padding), completion_mask, assistant_masks, loss_mask (0: no target), seq_lengths
--drop NAMES
  columns beside the ids that are not used: other lists of as many numbers are an error
--chat-template FILE
  Jinja file or tokenizer_config.json that turns conversations (lists of messages with role and
  content) into text. What the assistant says is the target
--messages-column NAME
  column of conversations (default: messages)
--chat-date YYYY-MM-DD
  for templates that write the date (default: today)
"""
_TOKENS = """
--tokenizer bytes|FILE
  bytes (default), or a tokenizer.json, which is kept with the dataset; for files of ids: what
  made them, so that they can be decoded
--train-bpe N
  train a byte-level BPE of N ids, at least 257, on the corpus (256 MB of it, evenly spread)
--eod ID|auto|none
  id to append to each document. Text: the tokenizer's own by default; none for bytes (10 is the
  line break, 256 is unused but makes ids two bytes wide). Lists of ids and conversations: appended
  where it is missing (default: none). Files of ids: the id that ends a document there
--bos ID|auto|none
  id to put before each document (auto: the tokenizer's own; default: none)
--vocab-size N
  for ids: all are below it (default: the tokenizer's, else all that their type can hold)
--bin-dtype {uint8,uint16,uint32,int32,int64}
  type of ids in files without a header: a flat .bin (default: uint16), or a .npy such as OLMo's
--row-tokens N
  tokens per stored row, 2 to 16777216 (default: 8192)
--val-share SHARE
  share of the documents, below 1, that goes to DST/val; the others go to DST/train, and equal
  ones stay together (default: 0, all to DST)
--seed N
  with --val-share: another seed gives another division (default: 0)
"""


def _eod(text: str) -> int | str:
    if text in ("auto", "none"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes an id, 'auto' or 'none', got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run ``packdata tokens``."""
    return run_packing(args, lambda: _plan(args), unit="rows")


def _plan(args: argparse.Namespace) -> TokensPlan:
    from dataclasses import fields

    from packdata.packing.firstpass import FirstPass
    from packdata.tokens.plan import TokenOptions, plan_tokens

    options = {field.name: getattr(args, field.name) for field in fields(TokenOptions)}
    options["drop"] = tuple(args.drop)
    return plan_tokens(
        args.src,
        TokenOptions(**options),
        format=args.format,
        on_error=args.on_error,
        shuffle=args.shuffle,
        first_pass=FirstPass(args.plan),
    )


TOKENS = packing_command(
    "tokens",
    "pack text, conversations or token ids as a stream of tokens",
    src="files, folders, or URLs of such, or patterns",
    takes={"text": _TEXT, "tokens": _TOKENS},
    item="text",
    shuffles="pieces of about 4 MB, and the texts in each,",
    format="parquet",
    has_first_pass=True,
    run=run,
    details=f"""\
The source is text files; JSON lines, Parquet and Arrow whose rows are texts, lists of ids or
conversations; CSV with a column of texts (text, JSON lines and CSV also as .gz and .zst); or files
of ids: .npy, flat .bin (nanoGPT, llm.c, modded-nanogpt), Megatron-LM's .bin with .idx, datatrove's
.ds with its index. Ids are stored in 8, 16 or 32 bits, as the vocabulary needs, in one stream with
the ends of documents marked, which loaders.TokenWindows serves.
{AGAIN}""",
    example=r"""packdata tokens shakespeare.txt packed                      every byte is an id
packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json
packdata tokens books packed --train-bpe 8192 --val-share 0.01
packdata tokens sft.jsonl packed --chat-template tokenizer_config.json --tokenizer tokenizer.json
packdata tokens poems.txt packed --documents '\n\n'
packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256""",
    how={
        "documents": {"default": "file", "type": unescaped},
        "drop": {"type": parse_names, "default": ()},
        "tokenizer": TARGET,
        "chat-template": TARGET,
        "train-bpe": {"type": int},
        "eod": {"type": _eod, "default": "auto"},
        "bos": {"type": _eod, "default": "none"},
        "row-tokens": {"default": 8192},
        "val-share": {"type": float, "default": 0.0},
        "seed": {"type": int, "default": 0},
    },
)
