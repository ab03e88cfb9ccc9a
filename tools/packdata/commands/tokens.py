"""``packdata tokens``: text, conversations or token ids to a packed stream of tokens."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from packdata.commands.common import parse_count, parse_place, unescaped
from packdata.commands.packing import add_packing_options, new_packing_parser, run_packing

if TYPE_CHECKING:
    from loaders.commandline import Commands
    from packdata.tokens.plan import TokensPlan

_ABOUT = """\
Pack text files; JSON lines, Parquet and Arrow whose rows are texts, lists of ids or conversations
(text and JSON lines also as .gz and .zst); or files of ids: .npy, flat .bin (nanoGPT, llm.c,
modded-nanogpt), Megatron-LM's .bin with .idx, datatrove's .ds with its index. Ids are stored in 8, 16
or 32 bits, as the vocabulary needs, in one stream with the ends of documents marked, which
loaders.TokenWindows serves.

After a kill, a full disk or Ctrl-C, run the same command again to continue. The result does not
depend on --workers."""

_EXAMPLES = r"""examples:
  packdata tokens shakespeare.txt packed                      every byte is an id
  packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json
  packdata tokens books packed --train-bpe 8192 --val-share 0.01
  packdata tokens sft.jsonl packed --chat-template tokenizer_config.json --tokenizer tokenizer.json
  packdata tokens poems.txt packed --documents '\n\n'
  packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "pack text, conversations or token ids as a stream of tokens"
    src = "files, folders, or URLs of such, or patterns"
    parser = new_packing_parser(commands, "tokens", summary, _ABOUT, _EXAMPLES, src=src)
    _add_text_options(parser.add_argument_group("text"))
    tokens = parser.add_argument_group("tokens")
    _add_tokenizer_options(tokens)
    _add_layout_options(tokens)
    add_packing_options(parser, item="text", format="parquet", has_first_pass=True)
    parser.set_defaults(run=run)


def _add_text_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--documents",
        default="file",
        metavar="file|line|SEPARATOR",
        help=r"what a document is in a text file (default: the whole file); '\n\n' is a blank line, also "
        r"where lines end in \r\n. Separators, line breaks too, are dropped: see --eod",
    )
    add(
        "--text-column",
        metavar="NAME",
        help="key of JSON lines, column of Parquet or Arrow (default: text)",
    )
    add(
        "--ids-column",
        metavar="NAME",
        help="column of lists of ids, one document each (default: input_ids, if there is one); labels and "
        "attention_mask beside it are used",
    )
    add(
        "--chat-template",
        type=parse_place,
        metavar="FILE",
        help="Jinja file or tokenizer_config.json that turns conversations (lists of messages with role and "
        "content) into text. What the assistant says is the target",
    )
    add("--messages-column", metavar="NAME", help="column of conversations (default: messages)")
    add(
        "--chat-date",
        metavar="YYYY-MM-DD",
        help="for templates that write the date (default: today)",
    )


def _add_tokenizer_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--tokenizer",
        type=parse_place,
        metavar="bytes|FILE",
        help="bytes (default), or a tokenizer.json, which is kept with the dataset; for files of ids: what "
        "made them, so that they can be decoded",
    )
    add(
        "--train-bpe",
        type=int,
        metavar="N",
        help="train a byte-level BPE of N ids, at least 257, on the corpus (256 MB of it, evenly spread)",
    )
    add(
        "--eod",
        type=_eod,
        default="auto",
        metavar="ID|auto|none",
        help="id to append to each document. Text: the tokenizer's own by default; none for bytes (10 is the "
        "line break, 256 is unused but makes ids two bytes wide). Lists of ids and conversations: appended "
        "where it is missing (default: none). Files of ids: the id that ends a document there",
    )
    add(
        "--bos",
        type=_eod,
        default="none",
        metavar="ID|auto|none",
        help="id to put before each document (auto: the tokenizer's own; default: none)",
    )
    add(
        "--vocab-size",
        type=parse_count,
        metavar="N",
        help="for ids: all are below it (default: the tokenizer's, else all that their type can hold)",
    )


def _add_layout_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--bin-dtype",
        choices=("uint8", "uint16", "uint32", "int32", "int64"),
        help="type of ids in files without a header: a flat .bin (default: uint16), or a .npy such as OLMo's",
    )
    add(
        "--row-tokens",
        type=parse_count,
        default=8192,
        metavar="N",
        help="tokens per stored row, 2 to 16777216 (default: 8192)",
    )
    add(
        "--val-share",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the documents, below 1, that goes to DST/val; the others go to DST/train, and equal "
        "ones stay together (default: 0, all to DST)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="with --val-share: another seed gives another division (default: 0)",
    )


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

    names = [field.name for field in fields(TokenOptions) if field.name != "documents"]
    options = {name: getattr(args, name) for name in names}
    options["documents"] = unescaped(args.documents)
    return plan_tokens(
        args.src,
        TokenOptions(**options),
        format=args.format,
        on_error=args.on_error,
        first_pass=FirstPass(args.plan, is_part=args.part is not None),
    )
