"""Packs images, tokens, tables and arrays into shards that ``loaders`` serves.

The command is ``packdata``; from Python there are ``Writer`` and ``pack`` for any samples,
``write`` for a view of what was packed, and ``pack_images`` for what ``packdata images`` does.
Nothing here imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packdata.arrays import pack_arrays
    from packdata.images.plan import pack_images
    from packdata.packed.views import write
    from packdata.packing.engine import pack_recipe, pack_recipes
    from packdata.packing.summary import Summary
    from packdata.recipe import Block, Recipe, Records, Target
    from packdata.tables import pack_tables
    from packdata.tables.plan import arrays_of
    from packdata.tokens.plan import TokenOptions, pack_tokens
    from packdata.writer import Writer, pack

__all__ = [
    "Block",
    "Recipe",
    "Records",
    "Summary",
    "Target",
    "TokenOptions",
    "Writer",
    "arrays_of",
    "pack",
    "pack_arrays",
    "pack_images",
    "pack_recipe",
    "pack_recipes",
    "pack_tables",
    "pack_tokens",
    "write",
]

_HOMES = {
    "Block": "recipe",
    "Recipe": "recipe",
    "Records": "recipe",
    "Summary": "packing.summary",
    "Target": "recipe",
    "TokenOptions": "tokens.plan",
    "Writer": "writer",
    "arrays_of": "tables.plan",
    "pack": "writer",
    "pack_arrays": "arrays",
    "pack_images": "images.plan",
    "pack_recipe": "packing.engine",
    "pack_recipes": "packing.engine",
    "pack_tables": "tables",
    "pack_tokens": "tokens.plan",
    "write": "packed.views",
}


def __getattr__(name: str) -> Any:
    """Load a public name on its first use, so that ``packdata --help`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
