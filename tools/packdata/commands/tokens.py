"""``packdata tokens``: text, conversations or token ids to a packed stream of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packdata.commands.packing import packing_command

if TYPE_CHECKING:
    import argparse

    from packdata.plan import SourcePlan


def _plan(args: argparse.Namespace, options: dict[str, Any]) -> SourcePlan:
    from packdata.packing.firstpass import FirstPass
    from packdata.tokens.plan import TokenOptions, plan_tokens

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
    _plan,
    src="files, folders, or URLs of such, or patterns",
    options={"tokens": "packdata.tokens.options:TokenOptions"},
    item="text",
    unit="rows",
    usual="parquet",
    shuffles="pieces of about 4 MB, and the texts in each,",
    has_plan=True,
    details="""\
The source is text files; JSON lines, Parquet, Arrow or CSV whose rows are texts, lists of ids or
conversations; or files of ids: .npy, .bin, Megatron-LM's .bin with .idx, datatrove's .ds.""",
    example="""\
packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json --val-share 0.01
packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256""",
)
