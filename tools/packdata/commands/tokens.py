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
Pack text files, JSON lines, Parquet and Arrow (text and JSON lines also as .gz and .zst), of which
rows are texts, lists of ids or conversations; or files of ids: .npy, flat .bin (nanoGPT, llm.c,
modded-nanogpt), Megatron-LM's .bin with .idx, datatrove's .ds with its index. Ids are stored in the
smallest of 8, 16 and 32 bits that holds the vocabulary, as one stream that knows where documents
end; loaders.TokenWindows serves it.

The same command run again continues after a kill, a full disk or Ctrl-C; the result does not
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
    src = "files, folders or patterns"
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
        help=r"what is a document of a text file (default: the file); '\n\n' is a blank line, also "
        r"where lines end in \r\n. What parts them, line breaks too, is left out: see --eod",
    )
    add(
        "--text-column",
        metavar="NAME",
        help="key of JSON lines, column of Parquet or Arrow (default: text)",
    )
    add(
        "--ids-column",
        metavar="NAME",
        help="the one that holds lists of ids, a document each (default: input_ids, where there is "
        "one); labels and attention_mask beside it are heeded",
    )
    add(
        "--chat-template",
        type=parse_place,
        metavar="FILE",
        help="a Jinja file or a tokenizer_config.json, which makes text of conversations: lists of "
        "messages with role and content. Targets are what the assistant says",
    )
    add("--messages-column", metavar="NAME", help="the one with conversations (default: messages)")
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
        help="bytes (default), or a tokenizer.json, which is kept with the dataset; of ids: what they "
        "were made with, if it shall be known",
    )
    add(
        "--train-bpe",
        type=int,
        metavar="N",
        help="make a byte-level BPE of N ids, at least 257, from the corpus (256 MB of it, evenly "
        "spread)",
    )
    add(
        "--eod",
        type=_eod,
        default="auto",
        metavar="ID|auto|none",
        help="id to put behind each document (default: the tokenizer's own, none for bytes: there "
        "256, the highest, is an id of its own, for which ids become two bytes wide, and 10 the line "
        "break); "
        "of lists of ids and conversations: put where it is not there (default: none); of files of "
        "ids: the one behind which documents end",
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
        help="of ids: all are below it (default: the tokenizer's, else what their type holds)",
    )


def _add_layout_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--bin-dtype",
        choices=("uint8", "uint16", "uint32", "int32", "int64"),
        help="of ids without a header: in a flat .bin (default: uint16), or a .npy such as OLMo's",
    )
    add(
        "--row-tokens",
        type=parse_count,
        default=8192,
        metavar="N",
        help="of a stored row, 2 to 16777216 (default: 8192)",
    )
    add(
        "--val-share",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the documents, below 1, that goes to DST/val, the others to DST/train; equal "
        "ones go together (default: 0, all to DST)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="with --val-share: another seed, another division (default: 0)",
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

    from packdata.firstpass import FirstPass
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
