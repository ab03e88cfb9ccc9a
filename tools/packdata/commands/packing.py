"""What the commands that pack a source share: their options, and the way from a plan to a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from packdata.commands.common import (
    SIZES,
    parse_count,
    parse_part,
    parse_place,
    parse_size,
    parse_target,
    show,
    show_json,
    show_notes,
    usage_errors,
)
from packdata.packing.shards import DEFAULT_SHARD_BYTES, FORMATS, check_shard_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from loaders.commandline import Commands, Parser
    from packdata.packing.engine import Summary
    from packdata.packing.shards import Format
    from packdata.plan import Plan


def new_packing_parser(
    commands: Commands,
    name: str,
    summary: str,
    about: str,
    examples: str,
    *,
    src: str,
) -> Parser:
    """Add a command that packs SRC... to DST, with help and examples."""
    parser = commands.add_parser(name, help=summary, description=about, epilog=examples)
    parser.add_argument("src", type=parse_target, metavar="SRC", nargs="+", help=src)
    target = "folder or URL to pack into: new or empty"
    parser.add_argument("dst", type=parse_target, metavar="DST", help=target)
    return parser


def add_packing_options(
    parser: Parser,
    *,
    item: str,
    format: Format | None = None,
    usual: str = "",
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    has_first_pass: bool = False,
) -> None:
    """Add the options of every packing.

    Args:
        parser: Of the command.
        item: What may be bad: ``file``, ``row``, ...
        format: The default; None where it depends on what is packed.
        usual: Then says on what.
        shard_bytes: The default.
        has_first_pass: Something may have to be learned of all of the source first.
    """
    add = parser.add_argument_group("packing").add_argument
    add(
        "--format",
        choices=FORMATS,
        default=format,
        help=f"file format of the shards (default: {usual or format})",
    )
    size = f"size of a shard; {SIZES} (default: {shard_bytes >> 20}MB)"
    add("--shard-size", type=parse_size, default=shard_bytes, metavar="SIZE", help=size)
    add("--workers", type=parse_count, metavar="N", help="threads (default: all usable cores)")
    add("--on-error", choices=("fail", "skip"), default="fail", help=_on_error(item))
    _add_part_options(add)
    if has_first_pass:
        learned = "learned from the whole source: column types, statistics, a tokenizer"
        plan = f"with --part: output of the same command with --dry-run --json; needed where something is {learned}"
        add("--plan", type=parse_place, metavar="FILE", help=plan)
    add("--overwrite", action="store_true", help="replace a dataset or unfinished packing in DST")
    add("--dry-run", action="store_true", help="print what would be packed, and stop")
    add("--json", action="store_true", help="print the summary, or the plan, as JSON")
    add_remote(parser)
    parser.set_defaults(item=item)


def _on_error(item: str) -> str:
    listing = "; a file name that is not UTF-8 always stops the command" if item == "file" else ""
    skip = f"leave it out, list it in rejected.jsonl, and exit with status 3{listing}"
    return f"at a {item} that cannot be packed: stop (default), or {skip}"


def _add_part_options(add: Callable[..., Any]) -> None:
    """Add what divides a packing among machines."""
    part = "pack only part I of N (I counts from 0), on any machine; 'packdata finish DST' joins the parts"
    add("--part", type=parse_part, metavar="I/N", help=part)
    shared = "DST is a URL or a folder that they share"
    engine = f"pack parts as Ray tasks, on all of its nodes, and join them; {shared}"
    add("--engine", choices=("ray",), help=engine)
    address = (
        "with --engine ray: a running Ray: auto, HOST:PORT or ray://... (default: start one here)"
    )
    add("--address", metavar="ADDRESS", help=address)
    usual = "default: one per 10,000 files, or per 128 pieces of text or tables"
    add(
        "--parts",
        type=parse_count,
        metavar="N",
        help=f"with --engine ray: number of parts ({usual})",
    )


def add_source_options(group: Any, *, files: str) -> None:
    """Add the options of commands whose items are files: ``picture`` or ``array``."""
    kind = "image" if files == "picture" else files
    add = group.add_argument
    add(
        "--shuffle",
        type=int,
        metavar="SEED",
        help=f"pack the {files}s of folders and lists in a random order drawn from this seed (default: source order)",
    )
    add(
        "--masks",
        type=parse_target,
        metavar="FOLDER",
        help=f"folder with a mask for each {files}, under the same relative name, with any suffix",
    )
    add(
        "--mask-suffix",
        default="",
        metavar="SUFFIX|OLD=NEW",
        help=f"how mask names differ from {files} names: _mask is added, _leftImg8bit=_gtFine_labelIds replaces; "
        f"without --masks, masks lie beside their {files}s",
    )
    add(
        "--classes",
        type=parse_place,
        metavar="FILE|DATASET",
        help="class names, in the order of their numbers: a file with one per line, or a packed dataset",
    )
    add(f"--{kind}-column", metavar="NAME", help=f"column of {files}s or paths (default: guessed)")
    add("--mask-column", metavar="NAME", help="column of masks (default: 'mask', if there is one)")
    add(
        "--label-column",
        metavar="NAME",
        help="column of labels, none missing (default: the first of label, class and target); missing numbers in "
        "other columns are stored as NaN",
    )


def run_packing(
    args: argparse.Namespace, make_plan: Callable[[], Plan], *, unit: str = "images"
) -> int:
    """Make a plan and carry it out, or only show it; return the exit status."""
    from packdata.packing.outside import check_outside
    from packdata.parts.lists import kept_lists
    from packdata.sources.fetched import drop_copies
    from packdata.sources.listed import given

    check_outside(args.dst, args.src)
    if args.engine is not None and args.part is not None:
        args.parser.error("--engine packs all parts: give --parts N, or --part without it")
    if args.engine is None and (args.address is not None or args.parts is not None):
        args.parser.error("--address and --parts go with --engine ray")
    beside = [getattr(args, name, None) for name in ("masks", "annotations")]
    read = [*args.src, *filter(None, beside)]
    lists = {} if args.part is None else kept_lists(read, args.dst, overwrite=args.overwrite)
    try:
        with given(lists):
            return _run(args, make_plan, unit)
    finally:
        drop_copies()


def _run(args: argparse.Namespace, make_plan: Callable[[], Plan], unit: str) -> int:
    from packdata.packing.target import is_unfinished
    from packdata.plan import pack_plan

    with usage_errors(args, schema=True):
        if args.format is not None:  # before a source is read for long
            check_shard_options(args.format, args.shard_size)
        plan = make_plan()
        check_shard_options(plan.format, args.shard_size)
    if args.dry_run:
        return _show(args, plan)
    settings: dict[str, Any] = {
        "shard_bytes": args.shard_size,
        "workers": args.workers,
        "on_error": args.on_error,
        "overwrite": args.overwrite,
        "progress": Meter("packed", unit),
        "shuffle": getattr(args, "shuffle", None),
    }
    try:
        if args.engine is None:
            summary = pack_plan(plan, args.dst, part=args.part, **settings)
        else:
            from packdata.cluster import pack_on_ray

            parts, address = args.parts, args.address
            summary = pack_on_ray(
                plan, args.dst, parts=parts, address=address, note=_say, **settings
            )
    except SourceError as error:
        if args.on_error == "fail":
            what = f"stopped at the first {args.item} that cannot be packed"
            error.add_note(f"{what}; --on-error skip continues and lists such {args.item}s")
        raise
    except KeyboardInterrupt as error:
        if args.part or args.engine or is_unfinished(args.dst):
            error.add_note("the same command continues")
        raise
    return _show(args, summary) or (3 if summary.rejected else 0)


def _say(text: str) -> None:
    show_notes([text])


def _show(args: argparse.Namespace, result: Plan | Summary) -> int:
    if args.json:
        show_json(result.to_json())
    else:
        show(str(result))
    return 0
