"""The commands, a module for each group of them, thin over functions that a notebook can call."""

from packdata.commands.derive import COPY, EXTEND, MERGE, SPLIT
from packdata.commands.look import DIFF, INFO, PREVIEW, STATS, VERIFY
from packdata.commands.packing import ARRAYS, FINISH, IMAGES, TABLES, TOKENS
from packdata.commands.remote import CACHE, FETCH

GROUPS = {
    "pack": (IMAGES, TOKENS, TABLES, ARRAYS, FINISH),
    "look": (INFO, PREVIEW, STATS, DIFF),
    "derive": (COPY, SPLIT, MERGE, EXTEND),
    "keep whole": (VERIFY,),
    "fetch": (FETCH, CACHE),
}

__all__ = ["GROUPS"]
