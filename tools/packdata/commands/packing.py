"""What the commands that pack a source share: their options, and the way from a plan to a result.

And ``packdata plan`` and ``finish``, before and after a packing in parts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loaders.commandline import show
from loaders.errors import SourceError
from loaders.progress import Meter
from loaders.remote.url import is_url
from loaders.text import describe_size
from packdata.commands.common import (
    JSON,
    SIZES,
    TARGET,
    Command,
    show_json,
    show_notes,
    usage_errors,
    with_options,
)
from packdata.describe import counted
from packdata.packing.shards import DEFAULT_SHARD_BYTES, FORMATS, check_shard_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

AT_URLS = True  # as --shuffle: the usual seed where the target is a URL
_DRAWN = "in an order drawn at random, as shards in a store are best read; --shuffle none keeps that of the source"
AGAIN = """
After a kill, a full disk or Ctrl-C, run the same command again to continue. The result does not
depend on --workers."""


def packing_command(
    name: str,
    summary: str,
    *,
    src: str,  # what SRC is
    takes: Mapping[str, str],
    item: str,  # what may be bad: ``file``, ``row``, ...
    format: str = "",  # the default; "" where it depends on what is packed
    usual: str = "",  # then says on what
    shuffles: str,  # what --shuffle brings into another order
    order: str = "source order",  # without it
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    has_first_pass: bool = False,  # something may have to be learned of all of the source first
    how: Mapping[str, Mapping[str, Any]],
    **about: Any,
) -> Command:
    """Return a command that packs SRC... to DST."""
    places = {"": f"SRC...\n  {src}\nDST\n  folder or URL to pack into: new or empty"}
    shared = _packing_options(item, usual or format, shard_bytes, shuffles, order, has_first_pass)
    own: Mapping[str, Mapping[str, Any]] = {
        "src": TARGET,
        "dst": TARGET,
        "format": {"default": format or None},
        "shard-size": {"dest": "shard_bytes", "default": shard_bytes},
        "on-error": {"default": "fail"},
        "part": {"type": _parse_part},
        "shuffle": {"type": parse_shuffle},
        "plan": TARGET,
    }
    return Command(
        name=name,
        summary=summary,
        takes=places | {**takes, "packing": shared},
        how={**own, **how},
        defaults={"item": item},
        has_remote=True,
        **about,
    )


def _packing_options(
    item: str, usual: str, shard_bytes: int, shuffles: str, order: str, has_first_pass: bool
) -> str:
    names = "; a file name that is not UTF-8 always stops the command" if item == "file" else ""
    return f"""
--format {{{",".join(FORMATS)}}}
  file format of the shards (default: {usual})
--shard-size SIZE
  size of a shard; {SIZES} (default: {shard_bytes >> 20}MB)
--workers N
  threads (default: all usable cores)
--on-error {{fail,skip}}
  at a {item} that cannot be packed: stop (default), or leave it out, list it in rejected.jsonl, and exit with
  status 3{names}
--shuffle SEED|none
  pack {shuffles} in a random order drawn from this seed (default: {order})
--part I/N
  pack only part I of N (I counts from 0), on any machine; 'packdata finish DST' joins the parts
--engine {{ray}}
  pack parts as Ray tasks, on all of its nodes, and join them; DST is a URL or a folder that they share
--address ADDRESS
  with --engine ray: a running Ray: auto, HOST:PORT or ray://... (default: start one here)
--parts N
  with --engine ray: number of parts (default: one per 10,000 files, or per 128 pieces of text or tables)
{_PLAN if has_first_pass else ""}--overwrite
  replace a dataset or unfinished packing in DST
--dry-run
  print what would be packed, and stop
--json
  print the summary, or the plan, as JSON
"""


_PLAN = """\
--plan FILE
  with --part: output of the same command with --dry-run --json, so that what is learned from the whole source (column
  types, statistics, a tokenizer, the largest id) is learned once; without it, each part reads all of the source first
"""


def source_options(kind: str, files: str) -> str:
    """Return the options of commands whose items are files: of ``image`` or ``array``, called ``files``."""
    return f"""
--masks FOLDER
  folder with a mask for each {files}, under the same relative name, with any suffix
--mask-suffix SUFFIX|OLD=NEW
  how mask names differ from {files} names: _mask is added, _leftImg8bit=_gtFine_labelIds replaces;
  without --masks, masks lie beside their {files}s
--classes FILE|DATASET
  class names, in the order of their numbers: a file with one per line, or a packed dataset
--{kind}-column NAME
  column of {files}s or paths (default: guessed)
--mask-column NAME
  column of masks (default: 'mask', if there is one)
--label-column NAME
  column of labels, none missing (default: the first of label, class and target); missing numbers in
  other columns are stored as NaN
"""


def parse_shuffle(text: str) -> int | None:
    """Read a seed, or that there is none."""
    try:
        return None if text == "none" else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"takes a whole number or none, got {text!r}") from error


SOURCE_OPTIONS = ("masks", "mask_suffix", "classes", "mask_column", "label_column")
OF_SOURCE: dict[str, dict[str, Any]] = {
    "masks": TARGET,
    "classes": TARGET,
    "mask-suffix": {"default": ""},
}


def _parse_part(text: str) -> str:
    from packdata.parts.part import Part

    try:
        return str(Part.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run_packing(
    args: argparse.Namespace, make_plan: Callable[[], SourcePlan], *, unit: str = "images"
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


def _run(args: argparse.Namespace, make_plan: Callable[[], SourcePlan], unit: str) -> int:
    with usage_errors(args, schema=True):
        if args.format is not None:  # before a source is read for long
            check_shard_options(args.format, args.shard_bytes)
        plan = make_plan()
        check_shard_options(plan.format, args.shard_bytes)
    if args.dry_run:
        return show_result(args, plan)
    summary = _pack(args, plan, unit)
    return show_result(args, summary) or (3 if summary.rejected else 0)


def _pack(args: argparse.Namespace, plan: SourcePlan, unit: str) -> Summary:
    from packdata.packing.target import is_unfinished
    from packdata.parts.part import usual_shuffle
    from packdata.plan import pack_plan

    is_usual = args.shuffle is AT_URLS
    shuffle = usual_shuffle(plan.splits, args.dst) if is_usual else args.shuffle
    settings: dict[str, Any] = {
        "shard_bytes": args.shard_bytes,
        "workers": args.workers,
        "on_error": args.on_error,
        "overwrite": args.overwrite,
        "progress": Meter("packed", unit),
        "shuffle": shuffle,
    }
    try:
        if args.engine is None:
            summary = pack_plan(plan, args.dst, part=args.part, **settings)
        else:
            from packdata.cluster import pack_on_ray

            settings |= {"parts": args.parts, "address": args.address}
            summary = pack_on_ray(plan, args.dst, note=lambda text: show_notes([text]), **settings)
        drawn = [_DRAWN] if is_usual and shuffle is not None and summary.datasets else []
        return replace(summary, notes=(*summary.notes, *drawn))
    except SourceError as error:
        if args.on_error == "fail":
            what = f"stopped at the first {args.item} that cannot be packed"
            error.add_note(f"{what}; on_error='skip' continues and lists such {args.item}s")
        raise
    except KeyboardInterrupt as error:
        if args.part or args.engine or is_unfinished(args.dst):
            error.add_note("the same command continues")
        raise


def show_result(args: argparse.Namespace, result: SourcePlan | Summary) -> int:
    """Print a plan or a summary."""
    if args.json:
        show_json(result.to_json())
    else:
        show("\n".join(with_options(line, args.options) for line in str(result).splitlines()))
    return 0


# -- parts -----------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    from packdata.packing.outside import check_outside
    from packdata.parts.lists import keep_list

    if local := [source for source in args.src if not is_url(source)]:
        if local[0] in ("images", "tokens", "tables", "arrays"):
            how = f"'packdata {local[0]} SRC... DST --dry-run --json > plan.json'"
            args.parser.error(f"what --plan takes is printed by {how}")
        args.parser.error(f"{local[0]} is no URL: parts list folders and files themselves")
    check_outside(args.dst, args.src)
    for source in args.src:
        num, nbytes = keep_list(source, args.dst, overwrite=args.overwrite)
        if args.json:
            show_json({"src": str(source), "dst": str(args.dst), "objects": num, "bytes": nbytes})
        else:
            much = f"{counted(num, 'object')}, {describe_size(nbytes)}"
            show(f"{source}: {much}, listed in {args.dst}")
    return 0


def _finish(args: argparse.Namespace) -> int:
    from packdata.parts.local import finish

    with usage_errors(args, schema=False):
        summary = finish(args.dst, overwrite=args.overwrite, delete_old=args.delete_old)
    return show_result(args, summary) or (3 if summary.rejected else 0)


PLAN = Command(
    name="plan",
    summary="list sources at URLs once, for packing in parts",
    takes={
        "": f"""
SRC...
  URL of a source
DST
  folder or URL that parts will be packed into
--overwrite
  replace a list in DST; parts packed by it are refused
{JSON}"""
    },
    run=_plan,
    details="""\
Parts of a packing whose SRC is a URL read the list of its objects beside DST, where this command keeps it until
'packdata finish': a thousand parts need not list the store each, and all see the same.""",
    example="packdata plan s3://raw/photos s3://bucket/packed",
    how={"src": TARGET, "dst": TARGET},
    has_remote=True,
)
FINISH = Command(
    name="finish",
    summary="join the parts that were packed with --part",
    takes={
        "": f"""
DST
  where the parts were packed
--overwrite
  replace a dataset in DST
--delete-old
  at a URL, delete shards beside the dataset that it does not have, and end all unfinished uploads;
  no reader may use an earlier dataset, and no packing may run, meanwhile
{JSON}"""
    },
    run=_finish,
    details="""\
The parts are those that --part has packed into DST, on one machine or on many. Nothing is read of
what they hold: their shards are linked, in their order. Parts of other sources, options or versions
are refused, and those that are missing are named. Killed, the same command finishes. At a URL,
unfinished uploads of shards that are now complete are ended.""",
    example="packdata finish packed",
    how={"dst": TARGET},
    has_remote=True,
)
