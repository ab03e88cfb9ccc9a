"""``packdata tokens``: text, or token ids that others wrote, to a packed stream of tokens."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError, SchemaError, SourceError
from packdata.commands.common import parse_count, parse_size, show, show_json
from packdata.shards import DEFAULT_SHARD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packdata.engine import Summary
    from packdata.tokens.plan import TokenOptions, TokensPlan

_ABOUT = """\
Pack text files, JSON lines and Parquet (text and JSON lines also as .gz and .zst), or ids that
others wrote: .npy, nanoGPT's flat .bin, Megatron-LM's .bin with .idx. Ids are stored in the
smallest of 8, 16 and 32 bits that holds the vocabulary, as one stream that knows where documents
end; loaders.TokenWindows serves it.

The same command run again continues after a kill, a full disk or Ctrl-C; the result does not
depend on --workers."""

_EXAMPLES = r"""examples:
  packdata tokens shakespeare.txt packed                      every byte is an id
  packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json
  packdata tokens books packed --train-bpe 8192 --val-share 0.01
  packdata tokens poems.txt packed --documents '\n\n'
  packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256"""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tokens",
        help="pack text, or ids that others wrote, as a stream of tokens",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", metavar="SRC", nargs="+", help="files, folders or patterns")
    parser.add_argument("dst", metavar="DST", help="folder to pack into: new or empty")
    _add_text_options(parser.add_argument_group("text"))
    _add_token_options(parser.add_argument_group("tokens"))
    _add_packing_options(parser.add_argument_group("packing"))
    parser.set_defaults(run=run, parser=parser)


def _add_text_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--documents",
        default="file",
        metavar="file|line|SEPARATOR",
        help=r"what is a document of a text file (default: the file); '\n\n' is a blank line",
    )
    add(
        "--text-column",
        default="text",
        metavar="NAME",
        help="key of JSON lines, column of Parquet (default: text)",
    )


def _add_token_options(group: Any) -> None:
    add = group.add_argument
    add(
        "--tokenizer",
        metavar="bytes|FILE",
        help="bytes (default), or a tokenizer.json, which is kept with the dataset",
    )
    add("--train-bpe", type=int, metavar="N", help="make a tokenizer of N ids from the corpus")
    add(
        "--eod",
        type=_eod,
        default="auto",
        metavar="ID|auto|none",
        help="id to put behind each document (default: the tokenizer's own, none for bytes); "
        "of ids: the one behind which documents end",
    )
    add("--vocab-size", type=parse_count, metavar="N", help="of ids: all are below it")
    add(
        "--bin-dtype",
        default="uint16",
        choices=("uint8", "uint16", "uint32", "int32", "int64"),
        help="type of a flat .bin (default: uint16)",
    )
    add("--row-tokens", type=parse_count, default=8192, metavar="N", help="of a stored row (8192)")
    add(
        "--val-share",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="documents that go to DST/val, the others to DST/train; equal ones go together",
    )
    add("--seed", type=int, default=0, help="for --val-share: another seed, another division")


def _add_packing_options(group: Any) -> None:
    add = group.add_argument
    add("--format", choices=("lmdb", "parquet"), help="of the shards (default: parquet)")
    add(
        "--shard-size",
        type=parse_size,
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="bytes of a shard, such as 128MB (default 64MB)",
    )
    add("--workers", type=parse_count, metavar="N", help="threads (default: all usable cores)")
    add(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="at text that cannot be packed: stop (default), or list it in rejected.jsonl",
    )
    add("--overwrite", action="store_true", help="replace a dataset or unfinished packing in DST")
    add("--dry-run", action="store_true", help="print what would be packed, and stop")
    add("--json", action="store_true", help="print the summary, or the plan, as JSON")


def _eod(text: str) -> int | str:
    if text in ("auto", "none"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes an id, 'auto' or 'none', got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run ``packdata tokens``."""
    from packdata.progress import progress_on
    from packdata.shards import check_shard_options
    from packdata.tokens.plan import make_plan, pack_plan

    with _usage_errors(args):
        plan = make_plan(args.src, _options(args), format=args.format, on_error=args.on_error)
        check_shard_options(plan.format, args.shard_size)
    if args.dry_run:
        _show(args, plan)
        return 0
    try:
        summary = pack_plan(
            plan,
            args.dst,
            shard_bytes=args.shard_size,
            workers=args.workers,
            on_error=args.on_error,
            overwrite=args.overwrite,
            progress=progress_on(unit="rows"),
        )
    except SourceError:
        sys.stderr.write(
            "packdata: stopped at the first text that cannot be packed; "
            "--on-error skip continues and lists such places\n"
        )
        raise
    _show(args, summary)
    return 3 if summary.rejected else 0


def _show(args: argparse.Namespace, result: TokensPlan | Summary) -> None:
    if args.json:
        show_json(result.to_json())
    else:
        show(str(result))


@contextmanager
def _usage_errors(args: argparse.Namespace) -> Iterator[None]:
    """Let options that contradict each other end as argparse ends: usage, message, status 2."""
    try:
        yield
    except (SchemaError, ValueError) as error:
        if isinstance(error, LoadersError) and not isinstance(error, SchemaError):
            raise  # bad data
        args.parser.error(str(error))


def _options(args: argparse.Namespace) -> TokenOptions:
    from packdata.tokens.plan import TokenOptions

    return TokenOptions(
        documents=_unescaped(args.documents),
        text_column=args.text_column,
        tokenizer=args.tokenizer,
        train_bpe=args.train_bpe,
        eod=args.eod,
        vocab_size=args.vocab_size,
        bin_dtype=args.bin_dtype,
        row_tokens=args.row_tokens,
        val_share=args.val_share,
        seed=args.seed,
    )


def _unescaped(text: str) -> str:
    r"""Read ``\n``, ``\t``, ``\r`` and ``\0`` as Python does: shells pass them on as they are."""
    for written, meant in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(written, meant)
    return text
