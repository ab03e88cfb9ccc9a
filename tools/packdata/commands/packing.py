"""``packdata images``, ``tokens``, ``tables`` and ``arrays``, which pack a source; and ``finish``, after parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from packdata.commands.common import (
    JSON,
    SHARD_SIZE,
    argument,
    command,
    given,
    group,
    number,
    options_of,
    place,
    setting,
    show_made,
    show_note,
    switch,
    usage_errors,
)
from packdata.options import parse_target, take
from packdata.packing.shards import TABLE_SHARD_BYTES

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from packdata.commands.common import Argument
    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan


_LIKE = argument(
    "--like",
    "take columns, categories, statistics and fill values from a packed table; no other options of columns, but "
    "--drop and --missing-values",
    metavar="DATASET",
    type=parse_target,
)
_PLAN = argument(
    "--plan",
    "with --part: output of this command with --dry-run --json, so that only one reads all of the source",
    metavar="FILE",
    type=parse_target,
)


def _places(src: str) -> tuple[Argument, Argument]:
    """Return SRC, which may be several, and DST."""
    source = argument("src", src, nargs="+", metavar="SRC", type=parse_target)
    return source, place("dst", "folder or URL to pack into: new or empty")


def _packing(
    *more: Argument, size: str = SHARD_SIZE, order: str = "source order", **words: str
) -> Argument:
    """Return the options of packing with ``more`` of this kind of data; the others are words of their help."""
    return group(
        "packing",
        setting("format", "shard_bytes", "workers", size=size, **words),
        setting("on_error", "shuffle", "part", order=order, **words),
        argument(
            "--engine",
            "pack parts as Ray tasks, on all nodes, and join them; DST is a URL or a folder that they share",
            choices=("ray",),
        ),
        argument(
            "--address",
            "with --engine ray: a running Ray: auto, HOST:PORT or ray://... (default: start one)",
            metavar="ADDRESS",
        ),
        number(
            "--parts",
            "with --engine ray: number of parts (default: one per 10,000 files, or per 128 pieces of text or tables)",
        ),
        setting("overwrite", old="a dataset or unfinished packing in DST"),
        switch("--dry-run", "print what would be packed, and stop"),
        JSON,
        *more,
    )


def _run(
    args: Namespace, make_plan: Callable[..., SourcePlan], *, unit: str, item: str = "file"
) -> int:
    """Make a plan of the options and carry it out, or only show it; return the exit status.

    Progress counts what a ``unit`` is; what cannot be packed is an ``item``.
    """
    from packdata.packing.target import check_outside
    from packdata.parts.part import Part

    check_outside(args.dst, args.src)
    unwanted = [args.part] if args.engine else [args.address, args.parts]
    if any(each is not None for each in unwanted):
        args.parser.error("--engine ray takes --parts and --address, and no --part")
    with usage_errors(args, schema=True):
        if args.part is not None:
            Part.parse(args.part)
        plan = make_plan(**given(args), progress=Meter("packed", unit))
    return show_made(args, plan if args.dry_run else _pack(args, plan, item))


def _pack(args: Namespace, plan: SourcePlan, item: str) -> Summary:
    from packdata.cluster import pack_on_ray
    from packdata.plan import pack_plan

    try:
        if args.engine is None:
            return pack_plan(plan, args.dst)
        return pack_on_ray(plan, args.dst, parts=args.parts, address=args.address, note=show_note)
    except SourceError as error:
        if args.on_error == "fail":
            what = f"stopped at the first {item} that cannot be packed"
            error.add_note(f"{what}; on_error='skip' continues and lists such {item}s")
        raise
    except KeyboardInterrupt as error:
        error.add_note("the same command continues")
        raise


@command(
    *_places(
        "folder, list, tar or Parquet file, or its URL, or a pattern; several tars or Parquet files are one"
    ),
    group("pictures", options_of("packdata.images.recipe:ImageOptions")),
    group("source", options_of("packdata.files.splits:SourceOptions", without="array_column")),
    group("shapes", options_of("packdata.images.shapes:ShapeOptions")),
    _packing(
        usual="lmdb for files, else parquet",
        item="file",
        drawn="the pictures of folders and lists",
        order="source order; to a URL a random one",
    ),
    add_remote,
    example="""\
packdata images imagenet packed --size 256
packdata images scans packed --masks masks --keep-depth""",
)
def images(args: Namespace) -> int:
    """Pack pictures with their labels and masks.

    The source is a .csv, .tsv or .jsonl list, a folder per class, a flat folder, WebDataset tars,
    Parquet, or a folder of splits of these but lists, each of which becomes a dataset. Without
    --size and --codec, files are kept byte for byte, except those that decoders read differently.

    After a kill, a full disk or Ctrl-C, run the same command again to continue.
    """
    from packdata.images.plan import plan_images

    return _run(args, partial(plan_images, args.src), unit="images")


@command(
    *_places("folder of .npy and .npz files, or a list, or the URL of one"),
    group("arrays", options_of("packdata.arrays:ArrayOptions")),
    group("source", options_of("packdata.files.splits:SourceOptions", without="image_column")),
    _packing(
        usual="lmdb for arrays of 1 MB and more, else parquet",
        item="file",
        drawn="the arrays of folders and lists",
    ),
    add_remote,
    example="""\
packdata arrays scans packed --masks labels --dtype float16 --mask-dtype uint8
packdata arrays cases packed --array image --mask-array label""",
)
def arrays(args: Namespace) -> int:
    """Pack volumes and other arrays with their labels and masks.

    The source is a .csv, .tsv or .jsonl list, a folder per class, a flat folder, or a folder of splits
    of folders, each of which becomes a dataset. Volumes are served as (C, D, H, W), masks as (D, H, W).

    After a kill, a full disk or Ctrl-C, run the same command again to continue.
    """
    from packdata.arrays import plan_arrays

    return _run(args, partial(plan_arrays, args.src), unit="arrays")


@command(
    *_places("files, folders, or URLs of such, or patterns"),
    group("columns and values", options_of("packdata.tables.options:TableOptions")),
    group(".csv, .tsv and .txt", options_of("packdata.delimited:CsvOptions")),
    _packing(
        _LIKE,
        _PLAN,
        usual="parquet",
        size=f"{TABLE_SHARD_BYTES >> 20}MB",
        item="row",
        drawn="pieces of about 4 MB (of Parquet and Arrow: groups of rows), and the rows in each,",
    ),
    add_remote,
    example="""\
packdata tables train.csv packed/train --target price --missing mean
packdata tables test.csv packed/test --like packed/train""",
)
def tables(args: Namespace) -> int:
    """Pack rows of numbers and categories.

    Tables are .csv, .tsv, .jsonl (also compressed), .parquet, .arrow and .feather files. Numbers become
    the field 'features', texts 'categories', and each --target a field of its own. NAMES are separated
    by commas; quote a name that holds a comma: '"income, EUR",age'.

    After a kill, a full disk or Ctrl-C, run the same command again to continue.
    """
    from packdata.tables.plan import plan_tables

    meter = Meter("read", "rows")
    make_plan = partial(plan_tables, args.src, like=args.like, reading=meter, plan=args.plan)
    return _run(args, make_plan, unit="rows", item="row")


@command(
    *_places("files, folders, or URLs of such, or patterns"),
    group("tokens", options_of("packdata.tokens.options:TokenOptions")),
    _packing(
        _PLAN,
        usual="parquet",
        item="text",
        drawn="pieces of about 4 MB, and the texts in each,",
    ),
    add_remote,
    example="""\
packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json --val-share 0.01
packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256""",
)
def tokens(args: Namespace) -> int:
    """Pack text, conversations or token ids as a stream of tokens.

    The source is text files; JSON lines, Parquet, Arrow or CSV whose rows are texts, lists of ids or
    conversations; or files of ids: .npy, .bin, Megatron-LM's .bin with .idx.

    After a kill, a full disk or Ctrl-C, run the same command again to continue.
    """
    from packdata.tokens.plan import TokenOptions, plan_tokens

    def make_plan(**options: Any) -> SourcePlan:
        chosen = take(TokenOptions, options)
        return plan_tokens(args.src, chosen, plan=args.plan, **options)

    return _run(args, make_plan, unit="rows", item="text")


@command(
    place("dst", "where the parts were packed"),
    setting("overwrite", old="a dataset in DST"),
    switch(
        "--delete-old",
        "at a URL, delete shards of earlier datasets; do not read or pack there meanwhile",
    ),
    JSON,
    add_remote,
    example="packdata finish packed",
)
def finish(args: Namespace) -> int:
    """Join the parts that were packed with --part.

    Parts of other sources, options or versions are refused, and those that are missing are named.
    Killed, the same command finishes.
    """
    from packdata.parts.packing import finish

    with usage_errors(args, schema=False):
        summary = finish(args.dst, overwrite=args.overwrite, delete_old=args.delete_old)
    return show_made(args, summary)
