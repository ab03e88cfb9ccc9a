"""The commands, a module for each group of them, thin over functions that a notebook can call."""

from packdata.commands.derive import copy, extend, merge, split
from packdata.commands.look import diff, info, preview, stats, verify
from packdata.commands.packing import arrays, finish, images, tables, tokens
from packdata.commands.remote import cache, fetch

GROUPS = {
    "pack": (images, tokens, tables, arrays, finish),
    "look": (info, preview, stats, diff),
    "derive": (copy, split, merge, extend),
    "keep whole": (verify,),
    "fetch": (fetch, cache),
}

__all__ = ["GROUPS"]
