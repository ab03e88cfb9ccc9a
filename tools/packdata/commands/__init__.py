"""The commands, a module for each group of them, thin over functions that a notebook can call."""

from packdata.commands.arrays import ARRAYS
from packdata.commands.derive import COPY, EXTEND, MERGE, SPLIT
from packdata.commands.images import IMAGES
from packdata.commands.keep import VERIFY
from packdata.commands.look import DIFF, INFO, PREVIEW, STATS
from packdata.commands.packing import FINISH
from packdata.commands.remote import CACHE, FETCH
from packdata.commands.tables import TABLES
from packdata.commands.tokens import TOKENS

GROUPS = {
    "pack": (IMAGES, TOKENS, TABLES, ARRAYS, FINISH),
    "look": (INFO, PREVIEW, STATS, DIFF),
    "derive": (COPY, SPLIT, MERGE, EXTEND),
    "keep whole": (VERIFY,),
    "fetch": (FETCH, CACHE),
}

__all__ = ["GROUPS"]
