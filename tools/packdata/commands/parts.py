"""``packdata plan`` and ``finish``: before and after a packing in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.commandline import show
from loaders.remote.url import is_url
from loaders.text import describe_size
from packdata.commands.common import JSON, TARGET, Command, show_json, usage_errors
from packdata.commands.packing import show_result
from packdata.describe import counted

if TYPE_CHECKING:
    import argparse


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
