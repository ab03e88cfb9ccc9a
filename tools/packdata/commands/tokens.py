"""``packdata tokens``: text, conversations or token ids to a packed stream of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packdata.commands.packing import packing_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from packdata.tokens.plan import TokensPlan


def _options() -> Mapping[str, type]:
    from packdata.tokens.options import TokenOptions

    return {"tokens": TokenOptions}


def _plan(args: argparse.Namespace, options: dict[str, Any]) -> TokensPlan:
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
    options=_options,
    item="text",
    unit="rows",
    usual="parquet",
    format="parquet",
    shuffles="pieces of about 4 MB, and the texts in each,",
    has_plan=True,
    details="""\
The source is text files; JSON lines, Parquet and Arrow whose rows are texts, lists of ids or
conversations; CSV with a column of texts (text, JSON lines and CSV also as .gz and .zst); or files
of ids: .npy, flat .bin (nanoGPT, llm.c, modded-nanogpt), Megatron-LM's .bin with .idx, datatrove's
.ds with its index. Ids are stored in 8, 16 or 32 bits, as the vocabulary needs.""",
    example=r"""packdata tokens shakespeare.txt packed
packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json
packdata tokens books packed --train-bpe 8192 --val-share 0.01
packdata tokens sft.jsonl packed --chat-template tokenizer_config.json --tokenizer tokenizer.json
packdata tokens poems.txt packed --documents '\n\n'
packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256""",
)
