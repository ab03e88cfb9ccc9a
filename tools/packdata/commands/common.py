"""What the commands share: their arguments, mistakes in them, and what is printed."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from inspect import cleandoc
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from loaders.commandline import Command, number_from, show
from loaders.errors import LoadersError, SchemaError
from loaders.remote.url import URL, Location
from loaders.text import printable
from packdata.options import parse_source
from packdata.packing.shards import DEFAULT_SHARD_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

    Argument = Callable[[Any], object]  # adds one to a parser, or to a group of one

SHARD_SIZE = f"{DEFAULT_SHARD_BYTES >> 20}MB"  # by default
_NAMED = re.compile(r"(?<![\w'\"/.-])([a-z]+(?:_[a-z]+)*)\b(?:(=)|(?![\w'\"/.-]))")


def command(
    *arguments: Argument, example: str
) -> Callable[[Callable[[argparse.Namespace], int]], Command]:
    """Return a decorator that makes a command of a function: its name and docstring are what ``--help`` shows."""

    def add(parser: Any) -> None:
        parser.set_defaults(declared={})  # by ``options_of``
        for each in arguments:
            each(parser)

    def made(run: Callable[[argparse.Namespace], int]) -> Command:
        summary, _, details = cleandoc(run.__doc__ or run.__name__).partition("\n\n")
        summary = f"{summary[0].lower()}{summary[1:].rstrip('.')}"
        return Command(
            name=run.__name__, summary=summary, add=add, run=run, details=details, example=example
        )

    return made


def argument(name: str, help: str, **options: Any) -> Argument:
    """Return an argument, with what else ``add_argument`` takes."""
    return lambda parser: parser.add_argument(name, help=help, **options)


def place(name: str, help: str = "folder or URL of the dataset", **options: Any) -> Argument:
    """Return the place of a packed dataset, or of several."""
    return argument(name, help, metavar=name.upper(), type=parse_source, **options)


def switch(name: str, help: str) -> Argument:
    """Return an option that takes nothing."""
    return argument(name, help, action="store_true")


def number(name: str, help: str, default: int | None = None) -> Argument:
    """Return an option that takes a number from 1 on."""
    return argument(name, help, type=number_from(1), metavar="N", default=default)


def seed(what: str) -> Argument:
    """Return ``--seed``; ``what`` says what another one does."""
    help = f"another seed {what} (default: 0)"
    return argument("--seed", help, type=int, default=0, metavar="N")


def group(title: str, *arguments: Argument) -> Argument:
    """Return arguments that ``--help`` lists below a title."""

    def add(parser: Any) -> None:
        titled = parser.add_argument_group(title)
        for each in arguments:
            each(titled)

    return add


def options_of(
    kind: str, *names: str, without: str = "", help: str = "", **words: str
) -> Argument:
    """Return the options that the fields of a dataclass are.

    Parsed arguments have them as ``declared``: by name of the field, how its option is typed.

    Args:
        kind: The dataclass, as module:name, imported when it is needed.
        names: Its fields, if not all.
        without: A field to leave out.
        help: What the option does here, if not what its field says.
        words: What stands in the help, for what is there in braces.
    """

    def add(parser: Any) -> None:
        known = {each.name: each.metadata for each in fields(resolve_name(kind)) if each.metadata}
        known.pop(without, None)
        for name in names or known:
            about = known[name]
            flag = f"--{about['name'] or name.replace('_', '-')}"
            said = (help or about["help"]).format(**words)
            argument(flag, said, dest=name, **about["argument"])(parser)
            parser.get_default("declared")[name] = flag

    return add


JSON = switch("--json", "print the result as JSON")
setting = partial(options_of, "packdata.packing.settings:PackSettings")
WORKERS = setting("workers")
DATASETS = place("dataset", "folder or URL of the dataset, or a folder of several")


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of all options that fields of dataclasses declare."""
    return {name: getattr(args, name) for name in args.declared}


def with_options(text: str, args: argparse.Namespace) -> str:
    """Return a message with the options of the arguments that it names: ``overwrite=``, ``row_tokens``.

    Example:
        >>> from argparse import Namespace
        >>> with_options("Pass overwrite=True to replace it", Namespace(overwrite=False, declared={}))
        'Pass overwrite=True to replace it (option: --overwrite)'
    """
    # A single word is one of English, too, unless a value follows.
    found = [name for name, equals in _NAMED.findall(text) if equals or "_" in name]
    named = [args.declared.get(n, f"--{n.replace('_', '-')}") for n in vars(args) if n in found]
    word = "option" if len(named) == 1 else "options"
    return f"{text} ({word}: {', '.join(named)})" if named else text


def datasets_at(folder: Location) -> Sequence[Location]:
    """Return the dataset at a folder; of a folder of splits, of sizes or of both, each of them."""
    from packdata.packing.store import FolderStore, datasets_below

    if isinstance(folder, URL):
        return [folder]
    return [folder / below for below in datasets_below(FolderStore(folder))] or [folder]


@contextmanager
def usage_errors(args: argparse.Namespace, *, schema: bool) -> Iterator[None]:
    """Let options that contradict each other end as argparse ends: message, status 2.

    With ``schema``, a SchemaError is the options' fault, too, and not that of a dataset.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, LoadersError) and not (schema and isinstance(error, SchemaError)):
            raise  # bad data: SourceError, ManifestError, ...
        args.parser.error(with_options(str(error), args))


def show_result(args: argparse.Namespace, data: Any, lines: Iterable[str]) -> None:
    """Print a result: as JSON if that is asked for, else in lines."""
    if args.json:
        print(json.dumps(data, indent=1))
    else:
        for line in lines:
            show(printable(line))


def show_made(args: argparse.Namespace, made: SourcePlan | Summary) -> int:
    """Print a plan or a summary; return the exit status."""
    lines = (with_options(line, args) for line in str(made).splitlines())
    show_result(args, made.to_json(), lines)
    return 3 if getattr(made, "rejected", ()) else 0


def show_note(text: str) -> None:
    """Print to standard error what deserves a look."""
    sys.stderr.write(f"packdata: {printable(text)}\n")
