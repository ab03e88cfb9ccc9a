"""What the commands that pack a source share: their options, and the way from a plan to a result.

And ``packdata finish``, after a packing in parts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loaders.commandline import Command, show
from loaders.errors import SourceError
from loaders.progress import Meter
from loaders.remote.options import add_remote
from packdata.commands.common import (
    add_json,
    add_number,
    add_shards,
    add_switch,
    show_json,
    show_notes,
    usage_errors,
    with_options,
)
from packdata.options import add_options, parse_target
from packdata.packing.shards import DEFAULT_SHARD_BYTES, check_shard_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loaders.commandline import Parser
    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

AT_URLS = True  # as --shuffle: the usual seed where the target is a URL
_DRAWN = "in an order drawn at random, as shards in a store are best read; --shuffle none keeps that of the source"
_AGAIN = """

After a kill, a full disk or Ctrl-C, run the same command again to continue."""


def packing_command(
    name: str,
    summary: str,
    make_plan: Callable[[argparse.Namespace, dict[str, Any]], SourcePlan],
    *,
    src: str,
    options: Callable[[], Mapping[str, type]],
    names: Mapping[str, str] = MappingProxyType({}),
    item: str = "file",
    unit: str,
    usual: str,
    format: str | None = None,
    shuffles: str,
    shuffle: int | bool | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    has_plan: bool = False,
    details: str,
    example: str,
) -> Command:
    """Return a command that packs SRC... to DST.

    Args:
        name: Of the command.
        summary: What it does, in a line.
        make_plan: Returns the plan of parsed arguments and of the options that dataclasses declare.
        src: What SRC is.
        options: Returns these dataclasses by the title of their group, once they are needed.
        names: Other names of their fields.
        item: What may be bad: ``file``, ``row``, ...
        unit: What is counted while it packs.
        usual: The format, if none is given.
        format: The same, where it does not depend on what is packed.
        shuffles: What ``--shuffle`` brings into another order.
        shuffle: Its default.
        shard_bytes: The default of ``--shard-size``.
        has_plan: All of the source may have to be read before any of it is packed.
        details: What the source is, and what becomes of it.
        example: How it may be called, in lines.
    """

    def add(parser: Parser) -> None:
        parser.add_argument("src", nargs="+", metavar="SRC", type=parse_target, help=src)
        add_target(parser, "folder or URL to pack into: new or empty")
        declared: list[str] = []
        for title, kind in options().items():
            declared += add_options(parser.add_argument_group(title), kind, **names)
        group = parser.add_argument_group("packing")
        add_shards(group, usual, shard_bytes, format)
        _add_packing(group, item, shuffles, shuffle)
        if has_plan:
            what = "with --part: output of this command with --dry-run --json, so that only one reads all of the source"
            group.add_argument("--plan", metavar="FILE", type=parse_target, help=what)
        add_remote(parser)
        parser.set_defaults(item=item, declared=declared)

    def run(args: argparse.Namespace) -> int:
        values = {name: getattr(args, name) for name in args.declared}
        given = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return _run_packing(args, lambda: make_plan(args, given), unit)

    about = f"{details}{_AGAIN}"
    return Command(name=name, summary=summary, add=add, run=run, details=about, example=example)


def add_target(parser: Parser, help: str) -> None:
    """Add DST."""
    parser.add_argument("dst", metavar="DST", type=parse_target, help=help)


def _add_packing(group: Any, item: str, shuffles: str, shuffle: int | bool | None) -> None:
    """Add the options of every packing."""
    add_number(group, "--workers", "threads (default: all usable cores)")
    skip = "skip it, list it in rejected.jsonl, and exit with status 3"
    what = f"at a {item} that cannot be packed: stop (default), or {skip}"
    group.add_argument("--on-error", choices=("fail", "skip"), default="fail", help=what)
    order = "source order" + ("; to a URL a random one" if shuffle else "")
    what = f"pack {shuffles} in a random order drawn from this seed (default: {order})"
    group.add_argument(
        "--shuffle", type=_parse_shuffle, default=shuffle, metavar="SEED|none", help=what
    )
    what = (
        "pack only part I of N (I counts from 0), on any machine; 'packdata finish DST' joins them"
    )
    group.add_argument("--part", type=_parse_part, metavar="I/N", help=what)
    what = "pack parts as Ray tasks, on all nodes, and join them; DST is a URL or a folder that they share"
    group.add_argument("--engine", choices=("ray",), help=what)
    what = "with --engine ray: a running Ray: auto, HOST:PORT or ray://... (default: start one)"
    group.add_argument("--address", metavar="ADDRESS", help=what)
    what = "with --engine ray: number of parts (default: one per 10,000 files, or per 128 pieces of text or tables)"
    add_number(group, "--parts", what)
    add_switch(group, "--overwrite", "replace a dataset or unfinished packing in DST")
    add_switch(group, "--dry-run", "print what would be packed, and stop")
    add_json(group)


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


def _run_packing(args: argparse.Namespace, make_plan: Callable[[], SourcePlan], unit: str) -> int:
    """Make a plan and carry it out, or only show it; return the exit status."""
    from packdata.packing.outside import check_outside
    from packdata.sources.fetched import drop_copies

    check_outside(args.dst, args.src)
    if args.engine is not None and args.part is not None:
        args.parser.error("--engine packs all parts: give --parts N, or --part without it")
    if args.engine is None and (args.address is not None or args.parts is not None):
        args.parser.error("--address and --parts go with --engine ray")
    try:
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
        show("\n".join(with_options(line, args) for line in str(result).splitlines()))
    return 0


# -- parts -----------------------------------------------------------------------------------------


def _finish(args: argparse.Namespace) -> int:
    from packdata.parts.joining import finish

    with usage_errors(args, schema=False):
        summary = finish(args.dst, overwrite=args.overwrite, delete_old=args.delete_old)
    return show_result(args, summary) or (3 if summary.rejected else 0)


def _add_finish(parser: Parser) -> None:
    add_target(parser, "where the parts were packed")
    add_switch(parser, "--overwrite", "replace a dataset in DST")
    add_switch(
        parser,
        "--delete-old",
        "at a URL, delete shards of earlier datasets; nobody may read or pack there meanwhile",
    )
    add_json(parser)
    add_remote(parser)


FINISH = Command(
    name="finish",
    summary="join the parts that were packed with --part",
    add=_add_finish,
    run=_finish,
    details="""\
Parts of other sources, options or versions are refused, and those that are missing are named.
Killed, the same command finishes.""",
    example="packdata finish packed",
)
