"""The command ``packdata``; each subcommand is thin over a function that a notebook can call."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from loaders.commandline import Commands, run
from loaders.errors import LoadersError
from loaders.remote.options import set_remote
from loaders.text import printable
from loaders.version import __version__
from packdata.commands import GROUPS
from packdata.commands.common import with_options
from packdata.gone import GONE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_BAD_DATA, _INTERRUPTED = 1, 130  # beside a command's own 0 and 3
_DESCRIPTION = """\
Pack images, tokens, tables and arrays into shards that the Python package 'loaders' serves,
and look after them."""

_END = """\
Exit status: 0 done, 1 bad data or target, 2 wrong usage, 3 done but some items
were rejected, 130 interrupted."""


COMMANDS = Commands("packdata", _DESCRIPTION, GROUPS, end=_END, version=__version__, gone=GONE)


def _message(error: LoadersError | OSError, args: argparse.Namespace) -> str:
    """Return an error as a line; those of the system without their number, as other commands print them."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    return printable(with_options(str(error), args), keep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 for done, 1 for bad data, 3 for done with rejects, 130 for Ctrl-C (wrong usage exits with 2).
    """
    if None in (sys.stdout, sys.stderr):  # a shard would get its number, and what libraries print
        print("packdata: error: a standard stream is closed: use /dev/null", file=sys.stderr)
        return 2
    args = COMMANDS.parse_args(sys.argv[1:] if argv is None else argv)
    try:
        set_remote(args)
        with warnings.catch_warnings():
            # Those of Pillow name no file: what matters of them, our messages say. So does NumPy's of a header that
            # Python 2 wrote, which is read all the same.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            warnings.filterwarnings("ignore", "Reading `.npy`")
            return run(args)
    except KeyboardInterrupt as error:
        what = ", ".join(["interrupted", *getattr(error, "__notes__", ())])
        print(f"packdata: {what}", file=sys.stderr)
        return _INTERRUPTED
    except (LoadersError, OSError) as error:
        notes = (with_options(note, args) for note in getattr(error, "__notes__", ()))
        for line in (_message(error, args), *map(printable, notes)):
            print(f"packdata: {line}", file=sys.stderr)
        return _BAD_DATA
