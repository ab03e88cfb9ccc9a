"""The command ``packdata``; each subcommand is thin over a function that a notebook can call."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from loaders.commandline import Commands, run
from loaders.errors import LoadersError
from loaders.remote.options import set_remote
from loaders.remote.url import URL
from loaders.text import printable
from loaders.version import __version__
from packdata.commands import GROUPS
from packdata.commands.common import with_options
from packdata.gone import sentence_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal, TextIO

_BAD_DATA, _INTERRUPTED = 1, 130  # beside a command's own 0 and 3
_DESCRIPTION = """\
Pack images, tokens, tables and arrays into shards that the Python package 'loaders' serves,
and look after them."""

_EXAMPLES = """\
examples:
  packdata images photos packed               keep the files as they are
  packdata images photos packed --size 256    shorter side 256 pixels
  packdata arrays scans packed --masks marks  volumes from .npy and .npz files
  packdata info packed                        what is in it
  packdata verify packed                      check every byte

Exit status: 0 done, 1 bad data or target, 2 wrong usage, 3 done but some items were rejected,
130 interrupted."""


def build_parser(word: str = "") -> Commands:
    """Return the parsers of all commands; where a word names one, its own: all take as long as a small packing."""
    groups = {title: [each.name for each in some] for title, some in GROUPS.items()}
    commands = Commands("packdata", _DESCRIPTION, groups, examples=_EXAMPLES, version=__version__)
    every = [*chain.from_iterable(GROUPS.values())]
    for command in [each for each in every if each.name == word] or every:
        command.add_to(commands)
    return commands


def _open_closed_streams() -> None:
    """Open standard streams that the parent process has closed (``2>&-``) on the null device.

    In this order they get descriptors 0 to 2, which then no output file can get.
    """
    if sys.stdin is None:
        sys.stdin = _null("r")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _null("w"))


def _null(mode: Literal["r", "w"]) -> TextIO:
    """Open the null device; its descriptor is never closed, so that Python warns of nothing at exit."""
    number = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
    return open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Print no warnings of Pillow, which name no file: what matters of them, our messages say."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _start_fetcher(args: argparse.Namespace) -> None:
    """Start what reads the first URL that was given, while the command imports its libraries."""
    given = (each if isinstance(each, list) else [each] for each in vars(args).values())
    url = next((each for each in chain.from_iterable(given) if isinstance(each, URL)), None)
    if url is not None:
        from loaders.remote.origin import open_early  # late: --help is quick without

        open_early(url)


def _message(error: LoadersError | OSError, options: Mapping[str, str]) -> str:
    """Return an error as a line; those of the system without their number, as other commands print them."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    return printable(with_options(str(error), options), keep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 for done, 1 for bad data, 3 for done with rejects, 130 for Ctrl-C (wrong usage exits with 2).
    """
    _open_closed_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(*words[:1])
    if removed := sentence_for(words):
        parser.parsers.get(words[0], parser).error(removed)
    args = parser.parse_args(words)
    try:
        set_remote(args)
        _start_fetcher(args)
        with _quiet_pillow():
            return run(args)
    except KeyboardInterrupt as error:
        what = ", ".join(["interrupted", *getattr(error, "__notes__", ())])
        print(f"packdata: {what}", file=sys.stderr)
        return _INTERRUPTED
    except (LoadersError, OSError) as error:
        options = getattr(args, "options", {})
        notes = (with_options(note, options) for note in getattr(error, "__notes__", ()))
        for line in (_message(error, options), *map(printable, notes)):
            print(f"packdata: {line}", file=sys.stderr)
        return _BAD_DATA
