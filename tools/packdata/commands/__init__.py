"""The commands on packed datasets, one module each, thin over functions that a notebook can call.

Every module has ``add_parser(subparsers)``, which adds its command and sets ``run``: a function
from the parsed arguments to the exit status.
"""

from packdata.commands import (
    copy,
    diff,
    extend,
    info,
    merge,
    preview,
    repair,
    split,
    stats,
    verify,
)

COMMANDS = (info, verify, repair, preview, stats, extend, merge, split, diff, copy)

__all__ = ["COMMANDS"]
