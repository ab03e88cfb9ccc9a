"""What the commands that pack a source share: their options, and the way from a plan to a result.

And ``packdata finish``, after a packing in parts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pkgutil import resolve_name
from types import MappingProxyType
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
    shards,
    show_note,
    show_result,
    switch,
    usage_errors,
    with_options,
)
from packdata.options import add_options, parse_target
from packdata.packing.shards import DEFAULT_SHARD_BYTES, check_shard_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loaders.commandline import Command
    from packdata.commands.common import Argument
    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

AT_URLS = True  # as --shuffle: the usual seed where the target is a URL
_DRAWN = "in an order drawn at random, as shards in a store are best read; --shuffle none keeps that of the source"
_AGAIN = """

After a kill, a full disk or Ctrl-C, run the same command again to continue."""


def packing_command(
    name: str,
    summary: str,  # what it does, in a line
    # Returns the plan of parsed arguments and of the options that dataclasses declare.
    make_plan: Callable[[argparse.Namespace, dict[str, Any]], SourcePlan],
    *,
    src: str,  # what SRC is
    options: Mapping[str, str],  # these dataclasses by title, as module:name: imported when needed
    names: Mapping[str, str] = MappingProxyType({}),  # other names of their fields
    item: str = "file",  # what may be bad: file, row, ...
    unit: str,  # what is counted while it packs
    usual: str,  # the format, if none is given, or what it depends on
    shuffles: str,  # what --shuffle brings into another order
    shuffle: int | bool | None = None,  # its default
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    has_plan: bool = False,  # all of the source may have to be read before any of it is packed
    details: str,  # what the source is, and what becomes of it
    example: str,  # how it may be called, in lines
) -> Command:
    """Return a command that packs SRC... to DST."""
    packing = [
        *shards(usual, shard_bytes),
        WORKERS,
        _on_error(item),
        _shuffle(shuffles, shuffle),
        *_PACKING,
    ]
    if has_plan:
        what = "with --part: output of this command with --dry-run --json, so that only one reads all of the source"
        packing.append(argument("--plan", what, metavar="FILE", type=parse_target))

    def add(parser: Any) -> None:
        declared: list[str] = []
        for title, kind in options.items():
            group = parser.add_argument_group(title)
            declared += add_options(group, resolve_name(kind), **names)
        group = parser.add_argument_group("packing")
        for each in packing:
            each(group)
        add_remote(parser)
        parser.set_defaults(item=item, declared=declared)

    def run(args: argparse.Namespace) -> int:
        values = given(args, args.declared)
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return _run(args, lambda: make_plan(args, values), unit)

    target = _target("folder or URL to pack into: new or empty")
    places = argument("src", src, nargs="+", metavar="SRC", type=parse_target), target
    about = f"{details}{_AGAIN}"
    return command(name, summary, run, *places, add, details=about, example=example)


def _on_error(item: str) -> Argument:
    what = (
        f"at a {item} that cannot be packed: stop (default), or skip it, list it in rejected.jsonl, and exit with "
        "status 3"
    )
    return argument("--on-error", what, choices=("fail", "skip"), default="fail")


def _shuffle(what: str, default: int | bool | None) -> Argument:
    order = "source order" + ("; to a URL a random one" if default else "")
    return argument(
        "--shuffle",
        f"pack {what} in a random order drawn from this seed (default: {order})",
        type=_parse_shuffle,
        default=default,
        metavar="SEED|none",
    )


def _target(help: str) -> Argument:
    return argument("dst", help, metavar="DST", type=parse_target)


def _parse_shuffle(text: str) -> int | None:
    try:
        return None if text == "none" else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"takes a whole number or none, got {text!r}") from error


def _parse_part(text: str) -> str:
    from packdata.parts.part import Part

    try:
        return str(Part.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_PACKING = (
    argument(
        "--part",
        "pack only part I of N (I counts from 0), on any machine; 'packdata finish DST' joins them",
        type=_parse_part,
        metavar="I/N",
    ),
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
    switch("--overwrite", "replace a dataset or unfinished packing in DST"),
    switch("--dry-run", "print what would be packed, and stop"),
    JSON,
)


def _run(args: argparse.Namespace, make_plan: Callable[[], SourcePlan], unit: str) -> int:
    """Make a plan and carry it out, or only show it; return the exit status."""
    from packdata.packing.outside import check_outside

    check_outside(args.dst, args.src)
    if args.engine is not None and args.part is not None:
        args.parser.error("--engine packs all parts: give --parts N, or --part without it")
    if args.engine is None and (args.address is not None or args.parts is not None):
        args.parser.error("--address and --parts go with --engine ray")
    with usage_errors(args, schema=True):
        if args.format is not None:  # before a source is read for long
            check_shard_options(args.format, args.shard_bytes)
        plan = make_plan()
        check_shard_options(plan.format, args.shard_bytes)
    return _show(args, plan if args.dry_run else _pack(args, plan, unit))


def _pack(args: argparse.Namespace, plan: SourcePlan, unit: str) -> Summary:
    from packdata.packing.target import is_unfinished
    from packdata.parts.part import usual_shuffle
    from packdata.plan import pack_plan

    is_usual = args.shuffle is AT_URLS
    settings = given(args, ("shard_bytes", "workers", "on_error", "overwrite"))
    settings["shuffle"] = usual_shuffle(plan.splits, args.dst) if is_usual else args.shuffle
    settings["progress"] = Meter("packed", unit)
    try:
        if args.engine is None:
            summary = pack_plan(plan, args.dst, part=args.part, **settings)
        else:
            from packdata.cluster import pack_on_ray

            settings |= given(args, ("parts", "address"))
            summary = pack_on_ray(plan, args.dst, note=show_note, **settings)
        if is_usual and settings["shuffle"] is not None and summary.datasets:
            return replace(summary, notes=(*summary.notes, _DRAWN))
        return summary
    except SourceError as error:
        if args.on_error == "fail":
            what = f"stopped at the first {args.item} that cannot be packed"
            error.add_note(f"{what}; on_error='skip' continues and lists such {args.item}s")
        raise
    except KeyboardInterrupt as error:
        if args.part or args.engine or is_unfinished(args.dst):
            error.add_note("the same command continues")
        raise


def _show(args: argparse.Namespace, result: SourcePlan | Summary) -> int:
    """Print a plan or a summary; return the exit status."""
    lines = (with_options(line, args) for line in str(result).splitlines())
    show_result(args, result.to_json(), lines)
    return 3 if getattr(result, "rejected", ()) else 0


# -- parts -----------------------------------------------------------------------------------------


def _finish(args: argparse.Namespace) -> int:
    from packdata.parts.joining import finish

    with usage_errors(args, schema=False):
        summary = finish(args.dst, overwrite=args.overwrite, delete_old=args.delete_old)
    return _show(args, summary)


FINISH = command(
    "finish",
    "join the parts that were packed with --part",
    _finish,
    _target("where the parts were packed"),
    switch("--overwrite", "replace a dataset in DST"),
    switch(
        "--delete-old",
        "at a URL, delete shards of earlier datasets; nobody may read or pack there meanwhile",
    ),
    JSON,
    add_remote,
    details="""\
Parts of other sources, options or versions are refused, and those that are missing are named.
Killed, the same command finishes.""",
    example="packdata finish packed",
)
