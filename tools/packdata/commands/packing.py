"""``packdata images``, ``tokens``, ``tables`` and ``arrays``, which pack a source; and ``finish``, after parts."""

from __future__ import annotations

from functools import wraps
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from packdata.commands.common import (
    JSON,
    WORKERS,
    argument,
    command,
    given,
    number,
    setting,
    show_note,
    show_result,
    switch,
    usage_errors,
    with_options,
)
from packdata.options import add_options, parse_target, take
from packdata.packing.settings import PackSettings
from packdata.packing.shards import DEFAULT_SHARD_BYTES, TABLE_SHARD_BYTES

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

    from loaders.commandline import Command
    from packdata.commands.common import Argument
    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

    MakePlan = Callable[[Namespace, dict[str, Any]], SourcePlan]

_AGAIN = """
    After a kill, a full disk or Ctrl-C, run the same command again to continue."""
_DST = argument(
    "dst", "folder or URL to pack into: new or empty", metavar="DST", type=parse_target
)


_PACKING = (
    setting("part"),
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
)

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


def _packs(
    *,
    src: str,  # what SRC is
    options: Mapping[str, str],  # dataclasses by title, as module:name: imported when needed
    without: str = "",  # a field of theirs that is of other data
    item: str = "file",  # what may be bad: file, row, ...
    unit: str,  # what is counted while it packs
    usual: str,  # the format, if none is given, or what it depends on
    shuffles: str,  # what --shuffle brings into another order
    order: str = "source order",  # without it
    shard_bytes: int = DEFAULT_SHARD_BYTES,  # if none are given
    more: Sequence[Argument] = (),  # of this kind of data alone
    example: str,  # how it may be called, in lines
) -> Callable[[MakePlan], Command]:
    """Return a decorator that makes a command of what makes a plan of parsed arguments and the options among them."""
    packing = [
        setting("format", usual=usual),
        setting("shard_bytes", size=f"{shard_bytes >> 20}MB"),
        WORKERS,
        setting("on_error", item=item),
        setting("shuffle", drawn=shuffles, order=order),
        *_PACKING,
        *more,
    ]

    def add(parser: Any) -> None:
        for title, kind in options.items():
            add_options(parser.add_argument_group(title), resolve_name(kind), without)
        group = parser.add_argument_group("packing")
        for each in packing:
            each(group)
        add_remote(parser)
        parser.set_defaults(item=item, unit=unit)

    def made(make_plan: MakePlan) -> Command:
        @wraps(make_plan)
        def run(args: Namespace) -> int:
            kinds = map(resolve_name, options.values())
            return _run(args, make_plan, given(args, PackSettings, *kinds))

        run.__doc__ = f"{make_plan.__doc__}{_AGAIN}"
        places = argument("src", src, nargs="+", metavar="SRC", type=parse_target), _DST
        return command(*places, add, example=example)(run)

    return made


def _run(args: Namespace, make_plan: MakePlan, options: dict[str, Any]) -> int:
    """Make a plan and carry it out, or only show it; return the exit status."""
    from packdata.packing.target import check_outside
    from packdata.parts.part import Part

    check_outside(args.dst, args.src)
    unwanted = [args.part] if args.engine else [args.address, args.parts]
    if any(each is not None for each in unwanted):
        args.parser.error("--engine ray takes --parts and --address, and no --part")
    with usage_errors(args, schema=True):
        if args.part is not None:
            Part.parse(args.part)
        plan = make_plan(args, options | {"progress": Meter("packed", args.unit)})
    return _show(args, plan if args.dry_run else _pack(args, plan))


def _pack(args: Namespace, plan: SourcePlan) -> Summary:
    from packdata.cluster import pack_on_ray
    from packdata.plan import pack_plan

    try:
        if args.engine is None:
            return pack_plan(plan, args.dst)
        return pack_on_ray(plan, args.dst, parts=args.parts, address=args.address, note=show_note)
    except SourceError as error:
        if args.on_error == "fail":
            what = f"stopped at the first {args.item} that cannot be packed"
            error.add_note(f"{what}; on_error='skip' continues and lists such {args.item}s")
        raise
    except KeyboardInterrupt as error:
        error.add_note("the same command continues")
        raise


def _show(args: Namespace, result: SourcePlan | Summary) -> int:
    """Print a plan or a summary; return the exit status."""
    lines = (with_options(line, args) for line in str(result).splitlines())
    show_result(args, result.to_json(), lines)
    return 3 if getattr(result, "rejected", ()) else 0


@_packs(
    src="folder, list, tar, Parquet or IDX file, or its URL, or a pattern; several tars or Parquet files are one",
    options={
        "pictures": "packdata.images.recipe:ImageOptions",
        "source": "packdata.files.splits:SourceOptions",
        "shapes": "packdata.images.shapes:ShapeOptions",
    },
    without="array_column",
    unit="images",
    usual="lmdb for files, else parquet",
    shuffles="the pictures of folders and lists",
    order="source order; to a URL a random one",
    example="""\
packdata images imagenet packed --size 256
packdata images scans packed --masks masks --keep-depth""",
)
def images(args: Namespace, options: dict[str, Any]) -> SourcePlan:
    """Pack pictures with their labels and masks.

    The source is a folder per class, a flat folder, a .csv, .tsv or .jsonl list, WebDataset tars,
    Parquet or IDX (MNIST), or a folder of splits of these, each of which becomes a dataset. Without
    --size and --codec, files are kept byte for byte, except those that decoders read differently.
    """
    from packdata.images.plan import plan_images

    return plan_images(args.src, **options)


@_packs(
    src="folder of .npy and .npz files, or a list, or the URL of one",
    options={
        "arrays": "packdata.arrays:ArrayOptions",
        "source": "packdata.files.splits:SourceOptions",
    },
    without="image_column",
    unit="arrays",
    usual="lmdb for arrays of 1 MB and more, else parquet",
    shuffles="the arrays of folders and lists",
    example="""\
packdata arrays scans packed --masks labels --dtype float16 --mask-dtype uint8
packdata arrays cases packed --array image --mask-array label""",
)
def arrays(args: Namespace, options: dict[str, Any]) -> SourcePlan:
    """Pack volumes and other arrays with their labels and masks.

    The source is a folder per class, a flat folder, a .csv, .tsv or .jsonl list, or a folder of splits
    of these, each of which becomes a dataset. Volumes are served as (C, D, H, W), masks as (D, H, W).
    """
    from packdata.arrays import plan_arrays

    return plan_arrays(args.src, **options)


@_packs(
    src="files, folders, or URLs of such, or patterns",
    options={
        "columns and values": "packdata.tables.options:TableOptions",
        ".csv, .tsv and .txt": "packdata.delimited:CsvOptions",
    },
    item="row",
    unit="rows",
    usual="parquet",
    shuffles="pieces of about 4 MB (of Parquet and Arrow: groups of rows), and the rows in each,",
    shard_bytes=TABLE_SHARD_BYTES,
    more=(_LIKE, _PLAN),
    example="""\
packdata tables train.csv packed/train --target price --missing mean
packdata tables test.csv packed/test --like packed/train""",
)
def tables(args: Namespace, options: dict[str, Any]) -> SourcePlan:
    """Pack rows of numbers and categories.

    Tables are .csv, .tsv, .jsonl (also compressed), .parquet, .arrow and .feather files. Numbers become
    the field 'features', texts 'categories', and each --target a field of its own. NAMES are separated
    by commas; quote a name that holds a comma: '"income, EUR",age'.
    """
    from packdata.tables.plan import plan_tables

    meter = Meter("read", "rows")
    return plan_tables(args.src, like=args.like, reading=meter, plan=args.plan, **options)


@_packs(
    src="files, folders, or URLs of such, or patterns",
    options={"tokens": "packdata.tokens.options:TokenOptions"},
    item="text",
    unit="rows",
    usual="parquet",
    shuffles="pieces of about 4 MB, and the texts in each,",
    more=(_PLAN,),
    example="""\
packdata tokens corpus/*.jsonl.zst packed --tokenizer tokenizer.json --val-share 0.01
packdata tokens openwebtext/train.bin packed --vocab-size 50257 --eod 50256""",
)
def tokens(args: Namespace, options: dict[str, Any]) -> SourcePlan:
    """Pack text, conversations or token ids as a stream of tokens.

    The source is text files; JSON lines, Parquet, Arrow or CSV whose rows are texts, lists of ids or
    conversations; or files of ids: .npy, .bin, Megatron-LM's .bin with .idx, datatrove's .ds.
    """
    from packdata.tokens.plan import TokenOptions, plan_tokens

    return plan_tokens(args.src, take(TokenOptions, options), plan=args.plan, **options)


@command(
    argument("dst", "where the parts were packed", metavar="DST", type=parse_target),
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
    return _show(args, summary)
