"""The commands, one module each, thin over functions that a notebook can call.

Every module has ``add_parser(commands)``, which adds its command and sets ``run``: a function from the
parsed arguments to the exit status.
"""

from packdata.commands import (
    arrays,
    cache,
    copy,
    diff,
    extend,
    fetch,
    finish,
    images,
    info,
    merge,
    plan,
    preview,
    repair,
    split,
    stats,
    tables,
    tokens,
    verify,
)

GROUPS = {
    "pack": (images, tokens, tables, arrays, plan, finish),
    "look": (info, preview, stats, diff),
    "derive": (copy, split, merge, extend),
    "keep whole": (verify, repair),
    "fetch": (fetch, cache),
}

__all__ = ["GROUPS"]
